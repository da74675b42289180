"""From a resolved request and host facts to the plain values of ``Want``.

Owns: canonical paths of grants, named sockets, caches of the identity, generated tool
configuration, and who the box is to the kernel. Fails closed: a named grant that does not exist
is refused; only what a profile marks optional may be missing. Read next: ``compile.py``.
"""

from __future__ import annotations

import os
import stat

from stockade.environment import compile_env
from stockade.errors import Refused
from stockade.ids import digest
from stockade.jsontext import dumps
from stockade.light import Iterable, Mapping
from stockade.paths import atomic_write
from stockade.plan import gitfacts, mountinfo, own
from stockade.plan.files import small_text
from stockade.plan.hiding import parents
from stockade.plan.linux import CONFIG_DIR, owner_of
from stockade.plan.trails import leads_out, trail
from stockade.plan.want import Cache, Ids, Want, below_any, is_below
from stockade.plan.witness import Witness
from stockade.rules import units
from stockade.rules.denial import denies_place
from stockade.rules.grants import Grant
from stockade.rules.load import load_list
from stockade.rules.match import expanded, is_pattern
from stockade.rules.moves import locations
from stockade.rules.resolve import Resolved
from stockade.rules.tiers import Tier
from stockade.rules.voiding import address, expand, path_matches, waived_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.host.facts import HostFacts

# A root caller's box 0 is this kernel id. It lies above every range that useradd and the
# container engines hand out (524288 and up) and below 2^31, and owns no file anywhere.
KERNEL_ID = 0x7057_0000

GIVES_AWAY = "a place whose change gives promises away"


def gather(resolved: Resolved, host: HostFacts, tier: Tier,
           repositories: tuple[gitfacts.Repository, ...]) -> Want:
    """Return everything a compilation needs to know."""
    env = resolved.request.environ()
    witness = Witness()
    write = write_paths(resolved, repositories)
    notes = _doubts(resolved, repositories, write)
    generated, extra_env = _generated(resolved, env, tier, witness)
    extra_env = {**_cache_places(resolved, env, write), **extra_env}
    witness.read_env(env, ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "SSH_AUTH_SOCK", "PATH",
                           *(spec.env for spec in resolved.caches if spec.env)))
    kind, size = units.parse_tmp(resolved.tmp)
    return Want(
        tier=tier, caller=resolved.caller, net=resolved.net, argv0=resolved.request.argv[0],
        cwd=resolved.cwd, host_cwd=resolved.request.cwd, ids=ids_of(host, write, resolved.home),
        home=resolved.home, homes=resolved.homes, env=env, witness=witness,
        state_home=os.path.realpath(resolved.state_home.path), config_home=resolved.config_home,
        policy=compile_env(resolved, tier=tier, extra_set={"TMPDIR": "/tmp", **extra_env}),
        mounts=_mounts(witness), workspace=_workspace(resolved, write), profiles=resolved.profiles,
        accept=tuple(item.value for item in resolved.accept), write=write,
        asked=frozenset(g.real for g in (*resolved.read, *resolved.write_roots)
                        if not g.origin.startswith("profile ")),
        read=_existing(resolved.read, "read grant", resolved), hide=tuple(g.path for g in resolved.hide),
        spelled=_spelled(resolved), sockets=socket_paths(resolved, env),
        devices=_existing(resolved.devices, "device", resolved),
        allow=frozenset(item.value for item in resolved.allow),
        caches=caches(resolved, write), private=_private(resolved, write), generated=generated, limits=resolved.limits,
        tmp_bytes=size, tmp_disk=kind == "disk", on_persistence=resolved.on_persistence,
        fds=tuple(sorted(resolved.request.pass_fds)), landlock_abi=host.landlock_abi,
        ram_bytes=host.ram_bytes, notes=notes,
    )


def _mounts(witness: Witness) -> tuple[mountinfo.Mount, ...]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
        text = stream.read()
    witness.saw_mounts(text)
    return mountinfo.parse(text)


def ids_of(host: HostFacts, write: tuple[str, ...], home: str) -> Ids:
    """Return the identity of the box: the caller's own, or for a real root a shifted one."""
    groups = tuple(sorted(os.getgroups()))
    if host.uid != 0 or not host.has_sys_admin:
        return Ids(uid=host.uid, gid=host.gid, groups=groups)
    owner = owner_of(write[0] if write else home)
    return Ids(uid=0, gid=0, shifted=True, kernel_id=KERNEL_ID, owner=owner)


def repositories_of(roots: Iterable[str]) -> tuple[gitfacts.Repository, ...]:
    """Return the repositories at the top of write roots, and those of their submodules."""
    found: dict[str, gitfacts.Repository] = {}
    for root in roots:
        repo = gitfacts.find(root)
        if repo is None:
            continue
        found[repo.git_dir] = repo
        for tree in gitfacts.submodule_trees(repo):
            inner = gitfacts.find(tree)
            if inner is not None:
                found.setdefault(inner.git_dir, inner)
    return tuple(found.values())


def write_paths(resolved: Resolved, repositories: tuple[gitfacts.Repository, ...]) -> tuple[str, ...]:
    """Write roots, canonical, and the repositories of linked work trees among them."""
    roots = _existing(resolved.write_roots, "write root", resolved)
    return tuple(dict.fromkeys((*roots, *(path for path in _commit_places(repositories, roots)
                                          if is_harmless(path, resolved)))))


def _commit_places(repositories: Iterable[gitfacts.Repository], roots: tuple[str, ...]) -> list[str]:
    """Commits in a linked work tree or a submodule go to the repository it belongs to."""
    found = []
    for repo in repositories:
        place = gitfacts.commits_outside(repo, roots)
        if place is not None and repo.dot_git is not None and owner_of(place)[0] == owner_of(repo.dot_git)[0]:
            found.append(place)
    return found


def is_harmless(path: str, resolved: Resolved) -> bool:
    """Tell whether a directory that nobody granted by name may be written all the same.

    A grant that the caller made is refused when it gives too much away; one that was only found
    is left out, so that no tree can keep its own box from starting.
    """
    return harm(path, resolved) is None


def harm(path: str, resolved: Resolved) -> str | None:
    """Return what speaks against writing a path that nobody granted by name, or None."""
    env = resolved.request.environ()
    if resolved.policy.denies_grant(path):
        return f"a path that {resolved.policy.origin('deny_grants')} denies"
    if _touches(path, own.places(resolved.homes, env, resolved.state_home.path, resolved.config_home)):
        return "a place of stockade's own"
    if _touches(path, (name for grant in resolved.hide for name in (grant.path, grant.real))):
        return "a name that is hidden by request"
    if any(is_below(home, path) for home in resolved.homes):
        return "a directory that holds a home"
    store = _credential(path, resolved, env)
    if store is not None:
        return f"credential store {store}"
    if any(waived_by("write", path, home, env) for home in resolved.homes):
        return GIVES_AWAY
    return None


def _touches(path: str, places: Iterable[str]) -> bool:
    return any(is_below(path, place) or is_below(place, path) for place in places)


def _credential(path: str, resolved: Resolved, env: Mapping[str, str]) -> str | None:
    """Return the id of the credential store that a path is or lies in."""
    above = [path, *parents(path)]
    for home in resolved.homes:
        for entry in load_list("credentials"):
            places = locations(entry, home, env)
            real = [os.path.realpath(place) for place in places if not is_pattern(place)]
            if any(path_matches(place, each, home, env) for place in (*places, *real) for each in above):
                return entry.id
    return None


def _doubts(resolved: Resolved, repositories: Iterable[gitfacts.Repository], write: tuple[str, ...]) -> tuple[str, ...]:
    """What the tree asks for and does not get, because nobody but the tree says so."""
    found = []
    for repo in repositories:
        if repo.dot_git is not None and not below_any(repo.common_dir, write):
            found.append(f"{repo.dot_git!r} names {repo.common_dir!r}, which is not granted on the word of the tree "
                         "alone: commits may fail")
        if resolved.tier >= Tier.strict:
            found += [f"{repo.git_dir!r} borrows objects from {path!r}, which is not granted on the word of the tree "
                      "alone: git may fail" for path in gitfacts.borrowed(repo) if not below_any(path, write)]
    return tuple(dict.fromkeys(found))


def _existing(grants: Iterable[Grant], what: str, resolved: Resolved) -> tuple[str, ...]:
    """Return the real paths of grants.

    A link inside a write root is a word of the tree: an earlier box may have turned ``./build`` into
    a link to anywhere, and a grant of that name would follow it.
    """
    found: list[str] = []
    for grant in grants:
        others = [other.real for other in resolved.write_roots if other.path != grant.path]
        link = leads_out(grant.path, others)
        if link is not None:
            if not grant.optional:
                raise Refused("source_symlink", f"{what} {grant.path!r} ({grant.origin}): the link {link!r} leads out "
                              f"of the write root to {grant.real!r}", hint=f"grant {grant.real!r} by its own name")
        elif os.path.lexists(grant.real):
            found.append(grant.real)
        elif not grant.optional:
            raise Refused("source_missing", f"{what} {grant.path!r} ({grant.origin}): does not exist (ENOENT)")
    return tuple(dict.fromkeys(found))


def links(grants: Iterable[Grant]) -> dict[str, str]:
    """Symbolic links that granted paths are or lead through as they were written: place -> real path."""
    found: dict[str, str] = {}
    for grant in grants:
        if grant.path != grant.real:
            found[grant.path] = grant.real
        if grant.spelled:
            found.update((place, os.path.realpath(place)) for place in trail(grant.spelled)[0])
    return found


def _spelled(resolved: Resolved) -> tuple[tuple[str, str], ...]:
    kinds = (("read", resolved.read), ("write", resolved.write_roots))
    return tuple((kind, grant.path) for kind, grants in kinds for grant in grants if grant.path != grant.real)


def _workspace(resolved: Resolved, write: tuple[str, ...]) -> str | None:
    """The write root that holds the working directory: a parameter of the plan."""
    place = resolved.cwd
    if place is None:
        return None
    above = [root for root in write if is_below(place, root)]
    return max(above, key=len) if above else None


def socket_paths(resolved: Resolved, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return canonical paths of granted sockets; named ones are found by variable, then by path."""
    named = {entry.id: entry for entry in load_list("grants") if entry.klass == "socket"}
    found: list[str] = []
    for item in resolved.sockets:
        entry = named.get(item.value)
        if entry is None:
            found.append(_socket(item.value, [root.real for root in resolved.write_roots]))
            continue
        places = [address(env.get(name, "")) for name in entry.env]
        if not item.origin.startswith("tier "):
            # What a tier grants unasked is the agent that the caller uses, not any that is there.
            places += [expand(pattern, resolved.home, env) or "" for pattern in entry.paths]
        path = next((path for place in places for path in _matching(place) if is_socket(path)), None)
        if path is not None and denies_place(resolved.policy, path, resolved.home, env):
            # A variable may call any socket the agent's.
            if item.origin == "argument":
                raise Refused("policy_denied", f"socket {item.value!r} at {path!r}: "
                              f"{resolved.policy.origin('deny_grants')} forbids it")
        elif path is not None:
            found.append(os.path.realpath(path))
        elif item.origin == "argument":
            raise Refused("source_missing", f"socket {item.value!r}: no such socket on this host",
                          hint="start the service, or drop the grant")
    return tuple(dict.fromkeys(found))


def _socket(path: str, roots: list[str]) -> str:
    link = leads_out(path, roots)
    if link is not None:
        raise Refused("source_symlink", f"socket {path!r}: the link {link!r} leads out of the write root",
                      hint="name the socket itself")
    if not is_socket(path):
        raise Refused("source_type", f"socket {path!r}: not a socket", hint="name the socket itself")
    return os.path.realpath(path)


def _matching(place: str) -> list[str]:
    if not place.startswith("/"):
        return []
    return expanded(place, hidden=False) if is_pattern(place) else [place]


def is_socket(path: str) -> bool:
    """Tell whether a path leads to a socket."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def caches(resolved: Resolved, write: tuple[str, ...]) -> tuple[Cache, ...]:
    """Return the caches of this identity; ``ephemeral`` and ``off`` have no place in the state home."""
    if resolved.cache == "off":
        return ()
    found: list[Cache] = []
    base = os.path.join(os.path.realpath(resolved.state_home.caches), identity_of(resolved))
    for spec in resolved.caches:
        path = os.path.realpath(spec.path)
        if below_any(path, write) or path in resolved.homes or leads_out(spec.path, write):
            continue
        place = os.path.join(base, spec.name)
        keep = resolved.cache == "keep"
        found.append(Cache(name=spec.name, path=path, lower=path if os.path.isdir(path) and not spec.plain else None,
                           upper=os.path.join(place, "upper") if keep else "",
                           work=os.path.join(place, "work") if keep else ""))
    return tuple(found)


def _private(resolved: Resolved, write: tuple[str, ...]) -> tuple[str, ...]:
    """Directories inside the write roots of which the box gets an empty one; a missing one has nothing to reach."""
    found = (os.path.realpath(place.path) for place in resolved.private)
    return tuple(path for path in found if path not in write and below_any(path, write) and os.path.isdir(path))


def _cache_places(resolved: Resolved, env: Mapping[str, str], write: tuple[str, ...]) -> dict[str, str]:
    """Variables that lead tools to their caches in the box, where the host's own value may not come in.

    Some choose a place by trying hard links between project and cache (pnpm), and would use the project.
    """
    if resolved.cache == "off":
        return {}
    given = {name for name, _ in resolved.set_env}
    return {spec.env: spec.path for spec in resolved.caches
            if spec.env and spec.env not in given and (spec.plain or env.get(spec.env, "/").startswith("/"))
            and not leads_out(spec.path, write)}


def identity_of(resolved: Resolved) -> str:
    """Whose cache it is: profiles and workspace. No other identity ever mounts it."""
    return digest("\0".join([*resolved.profiles, resolved.workspace]).encode("utf-8", "surrogateescape"))[:24]


def make_cache_dirs(want: Want, resolved: Resolved) -> None:
    """Create the directories of the identity's caches, and a note of whose they are.

    The launcher makes what is missing by then; ``check`` looks at them without a launcher.
    """
    if not any(item.upper for item in want.caches):
        return
    base = os.path.join(os.path.realpath(resolved.state_home.caches), identity_of(resolved))
    note = os.path.join(base, "identity.json")
    os.makedirs(base, mode=0o700, exist_ok=True)
    if os.path.islink(base):
        return  # the launcher will refuse it; nothing is written where it leads
    if not os.path.exists(note):
        data = {"profiles": list(resolved.profiles), "workspace": resolved.workspace}
        atomic_write(note, dumps(data, sort_keys=True).encode())
    for item in want.caches:
        for path in (item.upper, item.work):
            if path:
                os.makedirs(path, mode=0o700, exist_ok=True)


def _generated(resolved: Resolved, env: Mapping[str, str], tier: Tier,
               witness: Witness) -> tuple[tuple[tuple[str, str], ...], dict[str, str]]:
    """Tool configuration with the safe keys alone, and variables that point tools to places.

    The originals may hold a token, so guarded and strict hide them; a private mirror must still
    be found.
    """
    files: list[tuple[str, str]] = []
    extra: dict[str, str] = {}
    given = {name for name, _ in resolved.set_env}
    for inner in resolved.inner_sandbox:
        extra.update(inner.set_env)
    for spec in resolved.state:
        if spec.mode == "env" and spec.env and spec.dir and not env.get(spec.env):
            extra[spec.env] = spec.dir
    for config in resolved.config:
        # git reads the real ~/.gitconfig wherever it is visible; files with tokens are not.
        if tier >= (Tier.strict if config.filter == "gitconfig" else Tier.guarded):
            witness.saw(*config.sources)
            from stockade.rules.derive import derive  # compiles expressions; most requests make no file

            text = derive(config.filter, [small_text(path) for path in config.sources])
            if text:
                files.append((config.to, text))
                extra[config.env] = f"{CONFIG_DIR}/{config.to}"
    return tuple(files), {name: value for name, value in extra.items() if name not in given}
