"""Reading TOML files that people wrote: configuration, profiles, policy.

Owns: safe opening, size bound, ownership, line numbers, key checks. Fails closed: a file that
exists and cannot be trusted or understood is an error with file, line and reason; only a file
that does not exist counts as absent.
Read next: ``stockade.rules.profile``, ``stockade.rules.settings``, ``stockade.rules.governance``.
"""

from __future__ import annotations

import errno
import os
import stat

from stockade.errors import ConfigError, Error, nearest
from stockade.frozen import dataclass, field
from stockade.light import Callable, Collection, Iterable, Mapping
from stockade.paths import steps
from stockade.rules.looked import Looked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_BYTES = 1 << 20  # far above any real file; a FIFO or device given as one must not fill memory
# The parser takes time by the square of the parts of a key; what checks values and prints them, stack by depth.
MAX_KEY_PARTS = 32
MAX_DEPTH = 16
_INTEGERS = range(-(1 << 63), 1 << 63)  # TOML 1.0: what every reader must take; Python prints no longer ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One TOML file as it was read once. ``code`` is the error code of its kind."""

    path: str
    code: str
    data: Mapping[str, Any]
    text: str = field(default="", repr=False)

    def error(self, reason: str, key: str | None = None, *, hint: str | None = None) -> ConfigError:
        """Return the error for this file, with the line of ``key`` when it can be found."""
        line = self.line_of(key) if key else None
        where = f"{self.path!r} line {line}" if line else repr(self.path)
        return ConfigError(self.code, f"file {where}: {reason}", hint=hint, path=self.path, line=line)

    def line_of(self, key: str) -> int | None:
        """Return the first line that sets ``key`` or opens a table of that name."""
        import re  # what is in order is never searched

        last = re.escape(key.rpartition(".")[2])
        expression = re.compile(rf"""^\s*(\[.*\b{last}\b.*\]|["']?{last}["']?\s*[=.]|.*[{{,]\s*["']?{last}["']?\s*=)""")
        for number, line in enumerate(self.text.splitlines(), 1):
            if expression.match(line):
                return number
        return None

    def check_keys(self, table: Any, known: Collection[str], where: str = "") -> None:
        """Refuse a key that is not known: a misspelt ``hide`` must not hide nothing."""
        if not isinstance(table, Mapping):
            raise self.error(f"{where or 'file'}: got a {type(table).__name__}, expected a table", where or None)
        for key in table:
            if key not in known:
                name = f"{where}.{key}" if where else key
                raise self.error(f"key {name!r}: not known", key, hint=nearest(key, known))

    def checked(self, key: str, check: Callable[[Any], Any], value: Any) -> Any:
        """Run a checker of an option value; its error is told with this file and line."""
        try:
            return check(value)
        except Error as error:
            raise self.error(f"key {key!r}: {error.message}", key, hint=error.hint) from None

    def strings(self, key: str, table: Mapping[str, Any]) -> tuple[str, ...]:
        """Return a list of strings; absent is empty."""
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.error(f"key {key!r}: expected a list of non-empty strings", key)
        return tuple(value)

    def string(self, key: str, table: Mapping[str, Any]) -> str | None:
        """Return a string; absent is None."""
        value = table.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(f"key {key!r}: got a {type(value).__name__}, expected a string", key)
        return value


def read_toml(path: str, code: str, *, owners: Iterable[int] | None = None, strict_mode: bool = False,
              looked: Looked | None = None) -> Document | None:
    """Read a TOML file, or return None when it does not exist.

    Args: owners: uids that may own it (default: root and this user); strict_mode: no write bit
    for group either; looked: learns what was read. Raises: ConfigError ``code`` with file, line and reason.
    """
    raw = read_checked(path, code, owners=owners, strict_mode=strict_mode, looked=looked)
    return None if raw is None else parse_toml(path, code, raw)


def parse_toml(path: str, code: str, raw: bytes) -> Document:
    """Parse the content of a TOML file. Raises: ConfigError ``code``."""
    import tomllib  # most starts read no TOML at all

    try:
        text = raw.decode("utf-8")
        _check_keys_are_short(text)
        data = tomllib.loads(text)
        _check_values(data)
    except RecursionError:
        raise _invalid(path, code, "nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError, and int() of thousands of digits
        raise _invalid(path, code, str(error), lines=raw.count(b"\n") + (not raw.endswith(b"\n"))) from None
    return Document(path=path, code=code, data=data, text=text)


def _invalid(path: str, code: str, reason: str, lines: int = 0) -> ConfigError:
    """Return the error of the parser, whose words name a line; "end of document" is the last of ``lines``."""
    import re

    found = re.search(r"\(at line (\d+)", reason)
    line = int(found[1]) if found else lines if "(at end of document)" in reason else None
    where = f"{path!r} line {line}" if line else repr(path)
    return ConfigError(code, f"file {where}: not valid TOML: {reason}", path=path, line=line)


def _check_keys_are_short(text: str) -> None:
    # Strings and comments, also unended ones. Each repetition ends with what may be absent, so none is tried twice; not
    # possessive, which Python 3.11 gets wrong beside a lookahead. Compiled here: most starts read no TOML.
    import re

    quoted = re.compile(r"""  "{3}(?:[^"\\]+|\\.|"(?!""))*(?:"{3,5})?  |  '{3}(?:[^']+|'(?!''))*(?:'{3,5})?
                           |  "(?:[^"\\\n]+|\\.)*"?  |  '[^'\n]*'?  |  \#[^\n]*  """, re.DOTALL | re.VERBOSE)
    for part in re.split(r"[\n,={]", quoted.sub("s", text)):
        if part.count(".") >= MAX_KEY_PARTS:
            raise ValueError(f"a key of more than {MAX_KEY_PARTS} parts")


def _check_values(data: Any) -> None:
    """Refuse what no key of ours holds and what could not even be named in a message about it."""
    left = [(data, 0)]
    while left:
        value, depth = left.pop()
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        if isinstance(value, dict):
            left += ((item, depth + 1) for pair in value.items() for item in pair)
        elif isinstance(value, list):
            left += ((item, depth + 1) for item in value)
        elif isinstance(value, str) and "\0" in value:
            raise ValueError("a string holds a NUL byte")
        elif isinstance(value, int) and value not in _INTEGERS:
            raise ValueError("a number of more than 64 bits")


def read_checked(path: str, code: str, *, owners: Iterable[int] | None = None, strict_mode: bool = False,
                 looked: Looked | None = None) -> bytes | None:
    """Read a file whose owner and mode were checked on the descriptor that is read."""
    if looked is not None:
        looked.at(path)
    try:
        # O_NONBLOCK: a FIFO planted under the name must not hang the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        _check_absent(path, code, "file")
        return None
    except OSError as error:
        raise _fault(path, code, "file", f"cannot be read ({_name(error)})") from None
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise _fault(path, code, "file", "got another kind of file, expected a regular one")
        _check_owner(path, code, "file", info, owners, strict_mode=strict_mode)
        return _read_bounded(path, code, descriptor)
    finally:
        os.close(descriptor)


def check_directory(path: str, code: str, *, owners: Iterable[int] | None = None, strict_mode: bool = False,
                    looked: Looked | None = None) -> bool:
    """Tell whether a directory of such files exists. What is there and is none, or is others' to write, is an error.

    Args: as for ``read_toml``; owners None: any owner, whose files are then checked. Raises: ConfigError ``code``.
    """
    if looked is not None:
        looked.at(path)
    try:
        info = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        # NotADirectory is absence as well: accounts of services have HOME=/dev/null.
        _check_absent(path, code, "directory")
        return False
    except OSError as error:
        raise _fault(path, code, "directory", f"cannot be read ({_name(error)})") from None
    if not stat.S_ISDIR(info.st_mode):
        raise _fault(path, code, "directory", "got a file, expected a directory (ENOTDIR)")
    _check_owner(path, code, "directory", info, (info.st_uid,) if owners is None else owners, strict_mode=strict_mode)
    return True


def check_above(path: str, code: str, owners: Iterable[int]) -> None:
    """Refuse a place whose name somebody else could give to another object.

    Args: path: absolute. Every directory on the way counts, also those of the links that are followed: who can
    turn one of them chooses among the files of root. A sticky one keeps the entries of others (unlink(2)).
    """
    here = path
    for here in steps(path):
        directory = os.path.dirname(here)
        info = os.stat(directory)
        if not (info.st_mode & stat.S_ISVTX and info.st_uid in owners and os.lstat(here).st_uid in owners):
            _check_owner(directory, code, f"file or directory {path!r}, below", info, owners, strict_mode=True)
    if os.path.islink(here):
        raise _fault(path, code, "file or directory", "got more links on the way than are followed (ELOOP)")


def _check_absent(path: str, code: str, kind: str) -> None:
    # A dangling link is not absence: somebody meant a file to be here.
    if os.path.islink(path):
        raise _fault(path, code, kind, f"got a link to nothing, expected a {kind} (ENOENT)")


def _check_owner(path: str, code: str, kind: str, info: os.stat_result, owners: Iterable[int] | None, *,
                 strict_mode: bool) -> None:
    allowed = {0, os.geteuid()} if owners is None else set(owners)
    if info.st_uid not in allowed:
        raise _fault(path, code, kind, f"got owner {info.st_uid}, expected {' or '.join(map(str, sorted(allowed)))}")
    if info.st_mode & (0o022 if strict_mode else 0o002):
        who = "group and others" if strict_mode else "others"
        mode = stat.S_IMODE(info.st_mode)
        raise _fault(path, code, kind, f"got mode {mode:04o}, expected that {who} cannot write it")


def _fault(path: str, code: str, kind: str, reason: str) -> ConfigError:
    return ConfigError(code, f"{kind} {path!r}: {reason}", path=path)


def _read_bounded(path: str, code: str, descriptor: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    while total <= MAX_BYTES:
        try:
            part = os.read(descriptor, 65536)
        except OSError as error:
            raise _fault(path, code, "file", f"cannot be read ({_name(error)})") from None
        if not part:
            return b"".join(parts)
        parts.append(part)
        total += len(part)
    raise _fault(path, code, "file", f"got more than {MAX_BYTES} bytes, expected at most that")


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "EIO")
