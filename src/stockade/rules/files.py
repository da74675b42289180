"""Reading TOML files that people wrote: configuration, profiles, policy.

Owns: safe opening, size bound, ownership, line numbers, key checks. Fails closed: a file that
exists and cannot be trusted or understood is an error with file, line and reason; only a file
that does not exist counts as absent.
Read next: ``stockade.rules.profile``, ``stockade.rules.settings``, ``stockade.rules.governance``.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Mapping

from stockade.errors import ConfigError, Error, nearest
from stockade.frozen import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_BYTES = 1 << 20  # far above any real file; a FIFO or device given as one must not fill memory


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
        return ConfigError(self.code, f"file {where}: {reason}", hint=hint)

    def line_of(self, key: str) -> int | None:
        """Return the first line that sets ``key`` or opens a table of that name."""
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


def read_toml(path: str, code: str, *, owners: Iterable[int] | None = None,
              strict_mode: bool = False) -> Document | None:
    """Read a TOML file, or return None when it does not exist.

    Args: owners: uids that may own it (default: root and this user); strict_mode: no write bit
    for group either. Raises: ConfigError ``code`` with file, line and reason.
    """
    raw = read_checked(path, code, owners=owners, strict_mode=strict_mode)
    return None if raw is None else parse_toml(path, code, raw)


def parse_toml(path: str, code: str, raw: bytes) -> Document:
    """Parse the content of a TOML file. Raises: ConfigError ``code``."""
    import tomllib  # most starts read no TOML at all

    try:
        text = raw.decode("utf-8")
        return Document(path=path, code=code, data=tomllib.loads(text), text=text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(code, f"file {path!r}: not valid TOML: {error or 'nested too deeply'}") from None


def read_checked(path: str, code: str, *, owners: Iterable[int] | None = None,
                 strict_mode: bool = False) -> bytes | None:
    """Read a file whose owner and mode were checked on the descriptor that is read."""
    try:
        # O_NONBLOCK: a FIFO planted under the name must not hang the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        # A dangling link is not absence: somebody meant a file to be here.
        if os.path.islink(path):
            raise ConfigError(code, f"file {path!r}: a link to nothing (ENOENT)") from None
        return None
    except OSError as error:
        raise ConfigError(code, f"file {path!r}: cannot be read ({_name(error)})") from None
    try:
        _check_file(path, code, os.fstat(descriptor), owners, strict_mode=strict_mode)
        return _read_bounded(path, code, descriptor)
    finally:
        os.close(descriptor)


def _check_file(path: str, code: str, info: os.stat_result, owners: Iterable[int] | None, *,
                strict_mode: bool) -> None:
    allowed = {0, os.geteuid()} if owners is None else set(owners)
    if not stat.S_ISREG(info.st_mode):
        raise ConfigError(code, f"file {path!r}: expected a regular file")
    if info.st_uid not in allowed:
        raise ConfigError(code, f"file {path!r}: got owner {info.st_uid}, "
                          f"expected {' or '.join(map(str, sorted(allowed)))}")
    if info.st_mode & (0o022 if strict_mode else 0o002):
        raise ConfigError(code, f"file {path!r}: got mode {stat.S_IMODE(info.st_mode):04o}, "
                          "expected that others cannot write it")


def _read_bounded(path: str, code: str, descriptor: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    while total <= MAX_BYTES:
        try:
            part = os.read(descriptor, 65536)
        except OSError as error:
            raise ConfigError(code, f"file {path!r}: cannot be read ({_name(error)})") from None
        if not part:
            return b"".join(parts)
        parts.append(part)
        total += len(part)
    raise ConfigError(code, f"file {path!r}: larger than {MAX_BYTES} bytes")


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "EIO")
