"""Find what a command needs to start: its file, interpreters, virtual environment, toolchains.

Everything is resolved on the host before the box exists, so that the box runs the file the
caller meant. Owns: PATH search, shebang chain, ``pyvenv.cfg``, and whose word counts. Fails closed:
nothing here grants a home directory, a directory above one, or ``/``; and what a file or link
inside a write root names is shown only where it is public or a known toolchain, because that
file may have come with the tree.
Read next: ``strict.py``, which turns the result into read-only rows.
"""

from __future__ import annotations

import os
import stat

from stockade.frozen import dataclass, field
from stockade.light import Callable, Iterable
from stockade.plan.trails import trail
from stockade.plan.want import below_any, is_below

MAX_CHAIN = 5
_INTERPRETER_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command as the host resolves it.

    ``path`` is the spelling found, ``canonical`` the object behind it (None: not found on the
    host; the box may still have it), ``needs`` the paths that must be visible to start it.
    """

    path: str | None
    canonical: str | None
    needs: tuple[str, ...] = field(default=())
    doubted: tuple[str, ...] = field(default=())


class Ground:
    """What discovery may show.

    ``blocked``: homes and other directories that are never shown whole. ``tree``: the write
    roots, whose words are doubted. ``known``: toolchains that the list and the caller's own PATH
    lead to; asked for only when something is doubted.
    """

    __slots__ = ("_known", "blocked", "doubted", "tree")

    def __init__(self, blocked: Iterable[str] = (), tree: tuple[str, ...] = (),
                 known: Callable[[], tuple[str, ...]] = tuple) -> None:
        self.blocked = frozenset(blocked)
        self.tree = tree
        self.doubted: list[str] = []
        self._known = known

    def may_show(self, path: str) -> bool:
        """Tell whether a discovered directory may be shown whole: never a home or above one."""
        return grantable(path, self.blocked)

    def owns(self, path: str) -> bool:
        """Tell whether a path lies in the tree, so that whoever wrote the tree wrote it."""
        return below_any(path, self.tree)

    def is_told(self, path: str) -> bool:
        """Tell whether the tree says where ``path`` ends: it lies there or a link there leads to it."""
        links, end = trail(path)
        return any(self.owns(place) for place in (*links, end))

    def believed(self, paths: Iterable[str], *, told: bool) -> list[str]:
        """Return the paths that count; of what the tree told only what anybody could have known."""
        found = []
        for path in paths:
            if not told or self.owns(path) or is_public(path, self.blocked) or below_any(path, self._known()):
                found.append(path)
            else:
                self.doubted.append(path)
        return found


def is_public(path: str, blocked: Iterable[str] = ()) -> bool:
    """Tell whether everybody may read ``path``: root's own, open to others, and in no home."""
    current = os.path.realpath(path)
    if any(is_below(current, home) for home in blocked):
        return False
    while True:
        try:
            info = os.lstat(current)
        except OSError:
            return False
        wanted = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(info.st_mode) else stat.S_IROTH
        if info.st_uid != 0 or info.st_mode & wanted != wanted:
            return False
        if current == "/":
            return True
        current = os.path.dirname(current)


def find_command(argv0: str, cwd: str, search_path: str) -> str | None:
    """Return the absolute spelling of a command, as execvp would find it."""
    if "/" in argv0:
        path = os.path.join(cwd, argv0)
        return path if os.path.exists(path) else None
    for directory in search_path.split(":"):
        path = os.path.join(cwd, directory, argv0)
        if _is_program(path):
            return path
    return None


def command(argv0: str, *, cwd: str, search_path: str, ground: Ground) -> Command:
    """Resolve a command and everything that its start touches."""
    path = find_command(argv0, cwd, search_path)
    if path is None:
        return Command(path=None, canonical=None)
    found: list[str] = []
    current: str | None = path
    told = False
    for _ in range(MAX_CHAIN):
        if current is None:
            break
        told = told or ground.is_told(current)
        found.extend(_needs_of(current, ground, told=told))
        real = os.path.realpath(current)
        if told and not ground.believed([real], told=told):
            break
        current, looked_up = _interpreter(real, cwd, search_path)
        # A plain name for env is looked up in the caller's own PATH: what is found there the
        # caller chose. A path is the script's word.
        told = ground.owns(real) and not looked_up
    return Command(path=os.path.normpath(path), canonical=os.path.realpath(path),
                   needs=tuple(dict.fromkeys(found)), doubted=tuple(dict.fromkeys(ground.doubted)))


def _needs_of(path: str, ground: Ground, *, told: bool) -> list[str]:
    """The file, each symlink hop to it, its installation prefix, its virtual environment."""
    found: list[str] = []
    for hop in hops(path):
        found += ground.believed([hop], told=told)
        prefix = prefix_of(hop, ground.blocked)
        if prefix is not None:
            found += ground.believed([prefix], told=told or ground.owns(hop))
        found += _venv(hop, ground, told=told)
    package = _node_package(os.path.realpath(path), ground.blocked)
    if package is not None:
        found += ground.believed([package], told=told)
    return found


def hops(path: str) -> list[str]:
    """Return every spelling on the way from ``path`` through symlinks to the file."""
    seen: list[str] = []
    current = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    for _ in range(40):  # the kernel's own limit on symlinks
        if current in seen:
            break
        seen.append(current)
        try:
            target = os.readlink(current)
        except OSError:
            break
        joined = os.path.join(os.path.dirname(current), target)
        current = os.path.join(os.path.realpath(os.path.dirname(joined)), os.path.basename(joined))
    return seen


def prefix_of(path: str, blocked: frozenset[str]) -> str | None:
    """Return the installation prefix of ``<prefix>/bin/<name>`` when it looks like one."""
    directory = os.path.dirname(path)
    if os.path.basename(directory) not in ("bin", "sbin", "libexec"):
        return None
    prefix = os.path.dirname(directory)
    if not grantable(prefix, blocked):
        return None
    shaped = any(os.path.isdir(os.path.join(prefix, name)) for name in ("lib", "lib64", "libexec", "include"))
    # ~/.local has bin and lib too, and holds the user's keyrings and application state.
    return prefix if shaped and os.path.basename(prefix) != ".local" else None


def grantable(path: str, blocked: frozenset[str]) -> bool:
    """Tell whether a discovered directory may be shown whole: never a home or above one."""
    if path in ("/", "") or path in blocked:
        return False
    return not any(home.startswith(path.rstrip("/") + "/") for home in blocked)


def _venv(path: str, ground: Ground, *, told: bool) -> list[str]:
    """A virtual environment names the interpreter that made it in ``home = <bin directory>``."""
    root = os.path.dirname(os.path.dirname(path))
    values = read_pyvenv(os.path.join(root, "pyvenv.cfg"))
    if values is None or not ground.may_show(root):
        return []
    found = ground.believed([root], told=told or ground.owns(path))
    base = values.get("home", "")
    if base.startswith("/") and found and "\0" not in base:
        # Whoever wrote the tree wrote the file in it; elsewhere it is the user's own.
        doubted = told or ground.is_told(os.path.join(root, "pyvenv.cfg"))
        found += ground.believed(_base_of(base, ground, doubted=doubted), told=doubted)
    return [item for item in found if ground.may_show(item)]


def _base_of(base: str, ground: Ground, *, doubted: bool) -> list[str]:
    real = os.path.realpath(base)
    if doubted and not any(name.startswith("python3") for name in _names(real)):
        ground.doubted.append(base)
        return []
    found = [*hops(base), real]
    prefix = prefix_of(os.path.join(real, "python3"), ground.blocked)
    if prefix is not None and (not doubted or _has_python(prefix)):
        found.append(prefix)
    return found


def _has_python(prefix: str) -> bool:
    return any(name.startswith("python3.") for lib in ("lib", "lib64") for name in _names(os.path.join(prefix, lib)))


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def read_pyvenv(path: str) -> dict[str, str] | None:
    """Return the keys of a pyvenv.cfg, or None when there is none."""
    data = _head(path, 65536)
    if data is None:
        return None
    pairs = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines())
    return {key.strip().lower(): value.strip() for key, mark, value in pairs if mark}


def _node_package(path: str, blocked: frozenset[str]) -> str | None:
    """``npm`` is a script inside ``node_modules``; its siblings are needed as well."""
    marker = "/node_modules/"
    index = path.find(marker)
    if index < 0:
        return None
    root = path[:index] + marker.rstrip("/")
    return root if grantable(root, blocked) else None


def _interpreter(path: str, cwd: str, search_path: str) -> tuple[str | None, bool]:
    """Return the program that a script's first line names, and whether PATH answered for ``env``."""
    data = _head(path, _INTERPRETER_BYTES)
    if data is None or not data.startswith(b"#!"):
        return None, False
    words = data[2:].split(b"\n")[0].decode("utf-8", "surrogateescape").split()
    if not words or not words[0].startswith("/") or "\0" in words[0]:
        return None, False
    if os.path.basename(words[0]) != "env":
        return (words[0] if os.path.exists(words[0]) else None), False
    for word in words[1:]:
        if not word.startswith("-") and "=" not in word and "\0" not in word:
            return find_command(word, cwd, search_path), "/" not in word
    return words[0], False


def path_directories(search_path: str, ground: Ground) -> tuple[str, ...]:
    """Return the canonical directories of PATH that exist and may be shown."""
    found: list[str] = []
    for entry in search_path.split(":"):
        # An empty or relative entry means cwd: the workspace is granted on its own terms.
        if not entry.startswith("/"):
            continue
        path = os.path.realpath(entry)
        # PATH is the caller's word; a link in the tree that it names is not.
        told = ground.is_told(entry) and not ground.owns(path)
        if os.path.isdir(path) and ground.may_show(path) and path not in found \
                and (not told or is_public(path, ground.blocked)):
            found.append(path)
    return tuple(found)


def _is_program(path: str) -> bool:
    try:
        info = os.stat(path)
    except OSError:
        return False
    return stat.S_ISREG(info.st_mode) and os.access(path, os.X_OK)


def _head(path: str, size: int) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return os.read(fd, size)
    finally:
        os.close(fd)
