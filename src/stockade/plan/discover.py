"""Find what a command needs to start: its file, interpreters, virtual environment, toolchains.

Everything is resolved on the host before the box exists, so that the box runs the file the
caller meant. Owns: PATH search, shebang chain, ``pyvenv.cfg``, the well-known toolchain roots.
Fails closed: nothing here grants a home directory, a directory above one, or ``/``.
Read next: ``strict.py``, which turns the result into read-only rows.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

from stockade.frozen import dataclass, field

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


def command(argv0: str, *, cwd: str, search_path: str, forbidden: Iterable[str] = ()) -> Command:
    """Resolve a command and everything that its start touches.

    Args: forbidden: homes and other directories that no discovery may grant whole.
    """
    path = find_command(argv0, cwd, search_path)
    if path is None:
        return Command(path=None, canonical=None)
    found: list[str] = []
    blocked = frozenset(forbidden)
    current: str | None = path
    for _ in range(MAX_CHAIN):
        if current is None:
            break
        found.extend(_needs_of(current, blocked))
        current = _interpreter(os.path.realpath(current), cwd, search_path)
    return Command(path=os.path.normpath(path), canonical=os.path.realpath(path),
                   needs=tuple(dict.fromkeys(found)))


def _needs_of(path: str, blocked: frozenset[str]) -> list[str]:
    """The file, each symlink hop to it, its installation prefix, its virtual environment."""
    found: list[str] = []
    for hop in hops(path):
        found.append(hop)
        prefix = prefix_of(hop, blocked)
        if prefix is not None:
            found.append(prefix)
        found.extend(_venv(hop, blocked))
    package = _node_package(os.path.realpath(path), blocked)
    if package is not None:
        found.append(package)
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


def _venv(path: str, blocked: frozenset[str]) -> list[str]:
    """A virtual environment names the interpreter that made it in ``home = <bin directory>``."""
    root = os.path.dirname(os.path.dirname(path))
    values = read_pyvenv(os.path.join(root, "pyvenv.cfg"))
    if values is None or not grantable(root, blocked):
        return []
    found = [root]
    base = values.get("home", "")
    if base.startswith("/"):
        found.extend(hops(base))
        found.append(os.path.realpath(base))
        prefix = prefix_of(os.path.join(os.path.realpath(base), "python3"), blocked)
        if prefix is not None:
            found.append(prefix)
    return [item for item in found if grantable(item, blocked)]


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


def _interpreter(path: str, cwd: str, search_path: str) -> str | None:
    """Return the program that a script's first line names, through ``env``."""
    data = _head(path, _INTERPRETER_BYTES)
    if data is None or not data.startswith(b"#!"):
        return None
    words = data[2:].split(b"\n")[0].decode("utf-8", "surrogateescape").split()
    if not words or not words[0].startswith("/"):
        return None
    if os.path.basename(words[0]) != "env":
        return words[0] if os.path.exists(words[0]) else None
    for word in words[1:]:
        if not word.startswith("-") and "=" not in word:
            return find_command(word, cwd, search_path)
    return words[0]


def path_directories(search_path: str, cwd: str, blocked: frozenset[str]) -> tuple[str, ...]:
    """Return the canonical directories of PATH that exist and may be shown."""
    found: list[str] = []
    for entry in search_path.split(":"):
        # An empty or relative entry means cwd: the workspace is granted on its own terms.
        if not entry.startswith("/"):
            continue
        path = os.path.realpath(entry)
        if os.path.isdir(path) and grantable(path, blocked) and path not in found:
            found.append(path)
    return tuple(found)


def well_known(entries: Iterable[tuple[str, str | None]], *, home: str, env: Mapping[str, str],
               blocked: frozenset[str]) -> tuple[str, ...]:
    """Return existing toolchain roots: (path relative to home or absolute, variable that moves it)."""
    found: list[str] = []
    for path, variable in entries:
        moved = env.get(variable, "") if variable else ""
        place = moved if moved.startswith("/") else os.path.join(home, path)
        real = os.path.realpath(place)
        if os.path.lexists(real) and grantable(real, blocked) and real not in found:
            found.append(real)
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
