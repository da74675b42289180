"""The root of a strict box: an empty tmpfs, the operating system read-only, grants, a tmpfs home.

Owns: rows made from ``rules/system.toml``, the generated /etc files, toolchains and read grants.
Fails closed: what no row shows does not exist in the box. Read next: ``linux.py``, ``discover.py``.
"""

from __future__ import annotations

import os

from stockade.errors import Refused
from stockade.plan import accounts, discover, own, rows
from stockade.plan.files import small_text
from stockade.plan.hiding import Hidden, stays
from stockade.plan.linux import link_or_show, memory_budget, owner_of, show
from stockade.plan.rows import Row
from stockade.plan.table import Table
from stockade.plan.trails import leads_out
from stockade.plan.want import Want, below_any, is_below
from stockade.rules.load import Entry, load_list
from stockade.rules.match import expanded, is_pattern
from stockade.rules.moves import locations

HOSTNAME = "stockade"
COPY_BYTES = 2048
READ_BYTES = 8192
EMPTY_DEPTH = 3
FEW_NAMES = 12
SYSTEM_BIN = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/bin", "/sbin")


def view(table: Table, want: Want, hidden: tuple[Hidden, ...], tools: list[str]) -> None:
    """Build the whole root of a strict box. ``tools``: what ``toolchains`` found."""
    if "/" in want.read:
        raise Refused("grant_unsupported", "grant read /: a strict root is built from grants, not shown whole",
                      hint="name the directories, or ask for tier guarded, which shows the host's root read-only")
    table.add(rows.tmpfs("/", size_bytes=32 << 20))
    system = _system(table, want)
    _etc(table, want)
    _drop(table, [item.path for item in hidden if item.why == "hide"])
    budget = memory_budget(want.ram_bytes)
    for home in want.homes:
        if home != "/" and not below_any(home, system):
            table.add(rows.tmpfs(home, mode="0700", size_bytes=budget // 8))
    _git_config(table, want)
    for path in tools:
        if not _covered(path, want, system):
            table.add(*_hop(path, want, hidden))
    for path in want.read:
        if not below_any(path, list(want.write)):
            table.add(*show(path, want, hidden=hidden))
    _hidden_elsewhere(table, want, hidden)
    table.add(rows.seal("/"))


def _system(table: Table, want: Want) -> list[str]:
    """Rows of the operating system; returns the directories they show."""
    shown: list[str] = []
    for entry in load_list("system"):
        if entry.generated or (entry.scope == "net-host" and want.net != "host"):
            continue
        if entry.scope == "user" and want.ids.shifted:
            continue
        paths = matches(entry.path)
        for path in paths if paths and has_reader(entry, want) else ():
            table.add(*_system_rows(path, entry, want))
            shown.append(path)
    return shown


def _drop(table: Table, gone: list[str]) -> None:
    """``--hide`` of what the system itself would show, or of a directory around it: no row, no name."""
    table.rows[:] = [row for row in table.rows if row["target"] == "/" or not below_any(row["target"], gone)]


def matches(path: str) -> list[str]:
    """Return what exists of a listed path or pattern."""
    if is_pattern(path):
        return expanded(path, hidden=False)
    return [path] if os.path.lexists(path) else []


def has_reader(entry: Entry, want: Want) -> bool:
    """Configuration of a program that is not installed would only cost a mount."""
    if not entry.bin:
        return True
    directories = [*SYSTEM_BIN, *(item for item in want.env.get("PATH", "").split(":") if item.startswith("/"))]
    want.witness.saw(*directories)
    return any(os.path.lexists(os.path.join(directory, name)) for name in entry.bin for directory in directories)


def _system_rows(path: str, entry: Entry, want: Want) -> list[Row]:
    if os.path.islink(path):
        # usrmerge: /bin is a link to usr/bin; it stays one, and what it names has its own row.
        return [rows.symlink(path, os.readlink(path))]
    if entry.klass == "etc":
        want.witness.saw(path)
        if os.path.isdir(path) and _says_nothing(path, want):
            return []
        text = accounts.public_text(path, READ_BYTES) if os.path.isfile(path) else None
        if text is not None and _only_comments(text):
            return []
        if text is not None and len(text.encode()) <= COPY_BYTES:
            # A copy on the private root costs less than a mount, and /etc has dozens of such files.
            return [rows.file(path, text)]
    inside: dict[str, list[str]] = {}
    for place in (os.path.join(path, name) for name in entry.except_):
        if os.path.lexists(place) and not os.path.islink(place):
            inside.setdefault(os.path.dirname(place), []).append(os.path.basename(place))
    # Absent, not unreadable: a missing configuration is usual, and some tools (Yarn 1) stop at EACCES.
    if set(inside) == {path} and len(_listing(path)) <= FEW_NAMES:
        return _entry_by_entry(path, inside[path])
    return [rows.bind(path), *(row for parent, names in inside.items() for row in _without(parent, names))]


def _entry_by_entry(path: str, names: list[str]) -> list[Row]:
    """A small system directory as binds of what may be seen: an overlay over it costs 0.4 ms."""
    others = [os.path.join(path, name) for name in sorted(_listing(path)) if name not in names]
    return [rows.directory(path), *(rows.symlink(other, os.readlink(other)) if os.path.islink(other)
                                    else rows.bind(other) for other in others)]


def _without(parent: str, names: list[str]) -> list[Row]:
    """What is laid over a system directory so that some of its names are not there."""
    if set(_listing(parent)) <= set(names):
        return [rows.tmpfs(parent, size_bytes=4096, attrs=rows.SEALED, create=False)]
    places = [os.path.join(parent, name) for name in names]
    files = [os.path.basename(place) for place in places if not os.path.isdir(place)]
    masks = [rows.mask(place, is_dir=True) for place in places if os.path.isdir(place)]
    return [*([rows.overlay(parent, hide=files, dirs=[])] if files else []), *masks]


def _listing(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _only_comments(text: str) -> bool:
    """A file of comments says what no file says."""
    return all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines())


def _says_nothing(directory: str, want: Want) -> bool:
    """Tell whether a directory holds no file with content, at any of a few levels."""
    level = [directory]
    for _ in range(EMPTY_DEPTH):
        below: list[str] = []
        for path in level:
            want.witness.saw(path)
            try:
                entries = list(os.scandir(path))
            except OSError:
                return False
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.path)
                elif not entry.is_file(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_size:
                    return False
        if not below:
            return True
        level = below
    return False


def _etc(table: Table, want: Want) -> None:
    """Account, name-service and host files made for this box."""
    ids = want.ids
    network = want.net == "host"
    want.witness.saw("/etc/passwd", "/etc/group", "/etc/hosts")
    table.add(
        rows.file("/etc/passwd", accounts.passwd(ids.uid, ids.gid, want.home)),
        rows.file("/etc/group", accounts.group(ids.gid, ids.groups)),
        rows.file("/etc/nsswitch.conf", accounts.nsswitch(network=network)),
        rows.file("/etc/hostname", f"{HOSTNAME}\n"),
    )
    if network:
        _host_resolver(table)
    else:
        table.add(rows.file("/etc/resolv.conf", accounts.RESOLV_NONE),
                  rows.file("/etc/hosts", accounts.hosts(HOSTNAME)))
    for name, text in sorted((accounts.ssh_config_files() or {}).items()):
        table.add(rows.file(f"/etc/ssh/{name}", text))


def _host_resolver(table: Table) -> None:
    if os.path.exists("/etc/hosts"):
        table.add(rows.bind("/etc/hosts", kind="file"))
    if os.path.islink("/etc/resolv.conf"):
        table.add(rows.symlink("/etc/resolv.conf", os.path.realpath("/etc/resolv.conf")))
    elif os.path.exists("/etc/resolv.conf"):
        table.add(rows.bind("/etc/resolv.conf", kind="file"))


def _git_config(table: Table, want: Want) -> None:
    """Name, mail, branch and line-end settings of the user; nothing that runs a program."""
    path = os.path.join(want.home, ".gitconfig")
    other = os.path.join(want.home, ".config", "git", "config")
    want.witness.saw(path, other)
    texts = [small_text(other), small_text(path)]
    if not any(texts):
        return
    from stockade.rules.derive import derive  # compiles expressions

    text = derive("gitconfig", texts)
    if text and not below_any(path, [*want.read, *want.write]):
        table.add(rows.file(path, text))


def toolchains(want: Want, command: discover.Command) -> list[str]:
    """What the command, PATH and well-known toolchains need, outermost first."""
    found = [*command.needs, *discover.path_directories(want.env.get("PATH", ""), ground_of(want))]
    found += [*toolchain_roots(want, tuple(found)), *own.shown()]
    want.witness.saw(*found)
    unique = sorted(dict.fromkeys(found), key=lambda path: (rows.depth(path), path))
    kept: list[str] = []
    for path in unique:
        if not any(is_below(path, seen) and os.path.isdir(seen) for seen in kept):
            kept.append(path)
    return kept


def ground_of(want: Want) -> discover.Ground:
    """Return what discovery may show in this request."""
    blocked = (*want.homes, *want.write, want.state_home)

    def known() -> tuple[str, ...]:
        own = discover.path_directories(want.env.get("PATH", ""), discover.Ground(blocked, want.write))
        return (*own, *toolchain_roots(want, own))

    return discover.Ground(blocked, want.write, known)


def toolchain_roots(want: Want, led: tuple[str, ...]) -> list[str]:
    """Roots of the listed toolchains; those outside the home only when one of ``led`` is in them.

    The home is the one that HOME names: what lies in the account's other home is used by no tool that
    nothing leads there.
    """
    want.witness.read_env(want.env, ("PATH",))
    ground = discover.Ground((*want.homes, *want.write, want.state_home), want.write)
    return [root for entry in load_list("toolchains") for root in _toolchain(entry, want, ground, led)]


def _toolchain(entry: Entry, want: Want, ground: discover.Ground, led: tuple[str, ...]) -> list[str]:
    want.witness.read_env(want.env, entry.env)
    found: list[str] = []
    homes = list(want.homes)
    for home in want.homes:
        for place in locations(entry, home, want.env):
            usual = home == want.home or not is_below(place, home)
            for path in matches(place):
                real = os.path.realpath(path)
                mine = usual and (below_any(real, homes) or below_any(path, homes))
                if ground.may_show(real) and (mine or below_any_of(led, real)) and not leads_out(path, want.write):
                    found.append(real)
    return found


def below_any_of(paths: tuple[str, ...], root: str) -> bool:
    """Tell whether one of ``paths`` lies in ``root``: a command or PATH leads there."""
    return any(is_below(path, root) for path in paths)


def _covered(path: str, want: Want, system: list[str]) -> bool:
    """Already visible through the system, a write root or a private place."""
    if below_any(path, [item for item in system if not os.path.islink(item)]):
        return True
    if below_any(path, list(want.write)) or below_any(path, ["/proc", "/dev"]):
        return True
    # /bin -> usr/bin: the link is a row of its own.
    return any(os.path.islink(item) and is_below(path, item) for item in system)


def _hop(path: str, want: Want, hidden: tuple[Hidden, ...]) -> list[Row]:
    if any(is_below(path, item.path) and not (item.open and stays(path, item)) for item in hidden):
        return []
    return link_or_show(path, want, (*hidden, *_toolchain_secrets(path)))


def _toolchain_secrets(path: str) -> list[Hidden]:
    """Credential files inside a toolchain root (cargo, pip, npm) are left out."""
    found: list[Hidden] = []
    for entry in load_list("toolchains"):
        for name in entry.except_:
            place = os.path.join(path, name)
            if os.path.lexists(place):
                found.append(Hidden(path=place, why=entry.id))
    return found


def _hidden_elsewhere(table: Table, want: Want, hidden: tuple[Hidden, ...]) -> None:
    """``--hide`` of a path that the system rows would show: an overlay over its parent."""
    shown = [row["source"] for row in table.rows if row["kind"] == "bind" and row["source"] == row["target"]]
    grouped: dict[str, list[str]] = {}
    for item in hidden:
        parent, name = os.path.split(item.path)
        if item.why != "hide" or not below_any(parent, shown) or below_any(item.path, list(want.write)):
            continue
        grouped.setdefault(parent, []).append(name)
    for parent, names in sorted(grouped.items()):
        table.add(rows.overlay(parent, hide=names, dirs=(), idmap=want.ids.shifted and
                               below_any(parent, list(want.homes)), owner=owner_of(parent)))
