"""Where things are: home, state home, configuration home, git top level.

Owns: the search order of the state home, path relations, atomic file replacement.
Fails closed: a state home that another user owns is refused, one that others may enter is closed before it is used; a
``.git`` that a stranger could have planted never widens a write root.
Read next: ``stockade.rules.settings`` (who uses these), ``stockade.plan.store``.
"""

from __future__ import annotations

import errno
import os
import stat

from stockade.errors import ConfigError
from stockade.frozen import dataclass
from stockade.light import Iterator, Mapping

AnyPath = str | os.PathLike[str]
MAX_LINKS = 40  # as many as the kernel follows

# The variables that say where our own files are. They are read from this process alone: what a request
# gives as ``env`` is for the command, and must not choose the policy, the trust or the log.
OUR_VARIABLES = ("STOCKADE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "STATE_DIRECTORY", "HOME")

# No home of a person or a service, whoever owns them: HOME names them by mistake (root in an image
# without accounts, a cron job), and nothing is made there.
_SYSTEM_TREES = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/sbin", "/sys", "/usr")
_SHARED_PLACES = frozenset({"/", "/home", "/media", "/mnt", "/opt", "/run", "/srv", "/tmp", "/var", "/var/cache",
                            "/var/lib", "/var/log", "/var/tmp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StateHome:
    """The directory of plans, log, keys, caches.

    ``ephemeral``: it may vanish at reboot, and stands for ``wanted``, which cannot be written.
    """

    path: str
    ephemeral: bool = False
    wanted: str = ""

    @property
    def plans(self) -> str:
        """Plan store: ``<sha256>.json``."""
        return f"{self.path}/plans"

    @property
    def audit(self) -> str:
        """Spool and log."""
        return f"{self.path}/audit"

    @property
    def run(self) -> str:
        """Live boxes, sockets, persistence records."""
        return f"{self.path}/run"

    @property
    def keys(self) -> str:
        """Signing keys; no box can read them."""
        return f"{self.path}/keys"

    @property
    def caches(self) -> str:
        """Cache uppers, one directory per identity."""
        return f"{self.path}/caches"

    @property
    def apps(self) -> str:
        """Data and secrets of apps."""
        return f"{self.path}/apps"

    @property
    def trust_file(self) -> str:
        """Digests of project configurations that a person trusted."""
        return f"{self.path}/trust.json"


def home_dir(uid: int | None = None, env: Mapping[str, str] | None = None) -> str:
    """Return the home: ``HOME`` of ``env`` when given and absolute, else the account's own.

    Raises: ConfigError ``identity_invalid`` when neither names an absolute path.
    """
    given = (env or {}).get("HOME", "")
    if given.startswith("/"):
        return _normal(given)
    import pwd  # opens /etc/passwd through NSS only when HOME is of no use

    number = os.getuid() if uid is None else uid
    try:
        entry = pwd.getpwuid(number).pw_dir
    except KeyError:
        entry = ""
    if not entry.startswith("/"):
        raise ConfigError("identity_invalid", f"home of uid {number}: got {entry!r}, expected an absolute path")
    return _normal(entry)


def _normal(path: str) -> str:
    """Return an absolute path in one spelling: normpath keeps two slashes in front (POSIX allows them a meaning)."""
    return "/" + os.path.normpath(path).lstrip("/")


def homes(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the canonical homes to protect: that of ``HOME``, this process's own and the account's.

    A caller whose ``HOME`` points elsewhere still has secrets in the account's home.
    """
    found: list[str] = []
    for source in (env, os.environ, None):
        try:
            home = canonical(home_dir(env=source))
        except ConfigError:
            continue
        if home not in found:
            found.append(home)
    return tuple(found)


def config_home(env: Mapping[str, str]) -> str:
    """Return ``$XDG_CONFIG_HOME/stockade`` or ``~/.config/stockade``."""
    base = env.get("XDG_CONFIG_HOME", "")
    # XDG: a relative value must be ignored (it would let cwd choose the configuration).
    return os.path.join(base, "stockade") if base.startswith("/") else f"{home_dir(env=env)}/.config/stockade"


def state_home(env: Mapping[str, str], *, create: bool = True) -> StateHome:
    """Find the state home; with ``create`` make it and its directories, mode 0700.

    Order: STOCKADE_HOME, XDG_STATE_HOME/stockade, ~/.local/state/stockade; when that one cannot
    be written: STATE_DIRECTORY, XDG_RUNTIME_DIR/stockade, a directory in /var/tmp (ephemeral).
    Only STOCKADE_HOME is made with its parents wherever it is; the others only below a directory
    of the caller, and the default one only in a home that exists.
    Raises: ConfigError ``state_home_invalid``.
    """
    wanted = _main_candidate(env)
    for candidate in _state_candidates(env):
        if _may_be_made(candidate, env) and _usable(candidate, create=create):
            return StateHome(path=candidate, ephemeral=candidate != wanted, wanted=wanted)
    raise ConfigError("state_home_invalid", "state home: no candidate can be written")


def _state_candidates(env: Mapping[str, str]) -> Iterator[str]:
    yield _main_candidate(env)
    for name, tail in (("STATE_DIRECTORY", ""), ("XDG_RUNTIME_DIR", "stockade")):
        # systemd joins several state directories with ':'; the first is ours.
        value = env.get(name, "").split(":")[0]
        if value.startswith("/"):
            yield os.path.join(os.path.normpath(value), tail) if tail else os.path.normpath(value)
    yield _last_candidate()


def _last_candidate() -> str:
    return f"/var/tmp/stockade-{os.geteuid()}"


def _main_candidate(env: Mapping[str, str]) -> str:
    own = env.get("STOCKADE_HOME", "")
    if own:
        if not own.startswith("/"):
            raise ConfigError("state_home_invalid", f"STOCKADE_HOME: got {own!r}, expected an absolute path")
        return os.path.normpath(own)
    base = env.get("XDG_STATE_HOME", "")
    if base.startswith("/"):
        return os.path.join(os.path.normpath(base), "stockade")
    return os.path.join(home_dir(env=env), ".local/state/stockade")


def _may_be_made(path: str, env: Mapping[str, str]) -> bool:
    """Tell whether a place that nobody named for us exists or is the caller's to make."""
    named = env.get("STOCKADE_HOME") and path == _main_candidate(env)
    if named or path == _last_candidate() or os.path.lexists(path):
        return True  # whether that is safe to use is `_check_owner`'s to say
    existing = _nearest_existing(path)
    if existing is None or not _is_own_directory(existing):
        return False
    if env.get("XDG_STATE_HOME", "").startswith("/") or path != _main_candidate(env):
        return True
    home = canonical(home_dir(env=env))
    system = home in _SHARED_PLACES or any(is_below(home, tree) for tree in _SYSTEM_TREES)
    return not system and _is_own_directory(home)


def _is_own_directory(path: str) -> bool:
    try:
        info = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid()


def _usable(path: str, *, create: bool) -> bool:
    """Tell whether ``path`` is, or can become, a private directory of this user."""
    _check_owner(path)
    if not create:
        existing = _nearest_existing(path)
        return existing is not None and os.access(existing, os.W_OK | os.X_OK) and _opens(existing)
    try:
        for directory in (path, *(f"{path}/{name}" for name in ("plans", "audit", "run", "keys", "caches", "apps"))):
            _make_private(directory)
    except OSError:
        return False
    return os.access(path, os.W_OK | os.X_OK)


def _opens(directory: str) -> bool:
    """Tell whether it is not closed by what access(2) does not know of: Landlock."""
    try:
        os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as err:
        return err.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # a shortage, and of that others speak
    return True


def _make_private(directory: str) -> None:
    if not os.path.isdir(directory):
        os.makedirs(os.path.dirname(directory), mode=0o700, exist_ok=True)
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            pass  # another start made it meanwhile; the check below is for both
    info = os.lstat(directory)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        _refuse_state(directory, info)
    if info.st_mode & 0o077:
        os.chmod(directory, 0o700)


def _check_owner(path: str) -> None:
    """Refuse a place that somebody else controls: they could swap plans and read the log."""
    existing = _nearest_existing(path)
    if existing is None:
        return
    info = os.stat(existing) if existing != path else os.lstat(path)
    if existing == path:
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
            _refuse_state(path, info)
    elif info.st_uid not in (0, os.geteuid()):
        _refuse_state(existing, info)


def _refuse_state(path: str, info: os.stat_result) -> None:
    raise ConfigError("state_home_invalid", f"state home {str(path)!r}: got owner {info.st_uid} and mode "
                      f"{stat.filemode(info.st_mode)!r}, expected a directory of uid {os.geteuid()}")


def _nearest_existing(path: str) -> str | None:
    for candidate in (path, *parents(path)):
        if os.path.lexists(candidate):
            return candidate
    return None


def canonical(path: AnyPath) -> str:
    """Return the absolute path with every symbolic link resolved; missing tails are kept."""
    return os.path.realpath(os.fspath(path))


def is_below(path: AnyPath, root: AnyPath) -> bool:
    """Tell whether ``path`` is ``root`` or inside it, by text; give canonical paths."""
    inner, outer = os.fspath(path), os.fspath(root)
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def parents(path: str) -> Iterator[str]:
    """Yield the directories above a canonical path, innermost first."""
    while (above := os.path.dirname(path)) != path:
        yield above
        path = above


def steps(path: str) -> Iterator[str]:
    """Yield each place on the way along an absolute path, links followed, before it is looked at.

    Each stands in a directory that the steps before led to. The last is a link only when there are more of
    them than the kernel follows.
    """
    rest, here, links = path.split("/")[::-1], "/", 0
    while rest:
        part = rest.pop()
        if part in ("", "."):
            continue
        if part == "..":
            here = os.path.dirname(here)
            continue
        here = os.path.join(here, part)
        yield here
        target = _target(here)
        if target is None:
            continue
        links += 1
        if links > MAX_LINKS:
            return
        here = "/" if target.startswith("/") else os.path.dirname(here)
        rest.extend(target.split("/")[::-1])


def _target(path: str) -> str | None:
    """Return what a link leads to; None for what is no link, or gone."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def git_top(path: AnyPath) -> str | None:
    """Return the top of the work tree that holds ``path``, or None.

    No git process runs. A ``.git`` counts only where the caller owns both it and its directory
    (root: where both have one owner) and nobody else can write there: a ``/tmp/.git`` planted
    by a stranger would otherwise turn all of /tmp into a write root.
    """
    start = canonical(path)
    for directory in (start, *parents(start)):
        if _is_work_tree(directory):
            return directory
    return None


def _is_work_tree(directory: str) -> bool:
    dot_git = os.path.join(directory, ".git")
    try:
        entry, parent = os.lstat(dot_git), os.stat(directory)
        if stat.S_ISDIR(entry.st_mode):
            shaped = os.path.lexists(f"{dot_git}/HEAD")
        else:
            shaped = stat.S_ISREG(entry.st_mode) and _starts_with(dot_git, b"gitdir:")
    except OSError:
        return False
    owner_ok = parent.st_uid == entry.st_uid and os.geteuid() in (0, parent.st_uid)
    return shaped and owner_ok and not parent.st_mode & stat.S_IWOTH


def _starts_with(path: str, prefix: bytes) -> bool:
    # O_NONBLOCK: the name may have become a FIFO since lstat; a read must not hang.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(descriptor, len(prefix)) == prefix
    finally:
        os.close(descriptor)


def atomic_write(path: AnyPath, data: bytes, mode: int = 0o600) -> None:
    """Write ``data`` whole to a new file beside ``path``, then rename over it.

    A reader sees the old file or the new one; a crash leaves no half-written name.
    Raises: OSError as the system calls gave it; the temporary file is removed.
    """
    target = os.fspath(path)
    temporary = f"{target}.{os.getpid()}.{os.urandom(6).hex()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            os.fchmod(descriptor, mode)
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view):]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
