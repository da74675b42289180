"""The plan store: ``<state home>/plans/<sha256>.json``.

``wrap()`` puts a plan here so that the launch line it returns is complete, can be started any
number of times, and leaves nothing to delete. A plan is written whole and then renamed, mode
0400; the launcher checks owner and digest again. A pin is a small file that names a digest.
Fails closed: a stored file whose content does not match its name is replaced, never trusted.
"""

from __future__ import annotations

import json
import os
import stat
import time

from stockade.errors import ConfigError, nearest
from stockade.frozen import dataclass
from stockade.ids import digest as sha256_hex
from stockade.ids import is_digest
from stockade.paths import AnyPath, atomic_write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KEEP_S = 30 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One plan in the store."""

    digest: str
    size_bytes: int
    used_s: float  # seconds since the epoch, of the last put
    pins: tuple[str, ...]


def put(directory: AnyPath, data: bytes, *, pin: str | None = None) -> str:
    """Store canonical plan bytes and return their digest; an equal plan is only touched."""
    name = sha256_hex(data)
    path = _plan_path(directory, name)
    if not _is_same(path, data):
        atomic_write(path, data, 0o400)
    else:
        os.utime(path)
    if pin is not None:
        atomic_write(_pin_path(directory, pin), name.encode(), 0o600)
    return name


def get(directory: AnyPath, name: str) -> dict[str, Any]:
    """Return the plan of a digest, a unique digest prefix (8 or more digits), or a pin.

    Raises: ConfigError(unknown_plan).
    """
    with open(_plan_path(directory, resolve(directory, name)), "rb") as stream:
        plan = json.load(stream)
    assert isinstance(plan, dict)
    return plan


def resolve(directory: AnyPath, name: str) -> str:
    """Return the digest that a digest, prefix or pin stands for."""
    if is_digest(name) and os.path.exists(_plan_path(directory, name)):
        return name
    if _is_pin(name):
        pinned = _read_pin(_pin_path(directory, name))
        if pinned is not None and os.path.exists(_plan_path(directory, pinned)):
            return pinned
    hits = [digest for digest in _digests(directory) if len(name) >= 8 and digest.startswith(name)]
    if len(hits) == 1:
        return hits[0]
    known = [pin for pins in pins_of(directory).values() for pin in pins]
    raise ConfigError("unknown_plan", f"plan {name!r}: got no stored plan of that name",
                      hint=nearest(name, known))


def listing(directory: AnyPath) -> tuple[Stored, ...]:
    """Return every stored plan, newest use first."""
    pins = pins_of(directory)
    found: list[Stored] = []
    for digest in _digests(directory):
        try:
            info = os.lstat(_plan_path(directory, digest))
        except FileNotFoundError:
            continue
        found.append(Stored(digest=digest, size_bytes=info.st_size, used_s=info.st_mtime,
                            pins=tuple(sorted(pins.get(digest, ())))))
    return tuple(sorted(found, key=lambda item: (-item.used_s, item.digest)))


def pins_of(directory: AnyPath) -> dict[str, list[str]]:
    """Return digest -> pin names."""
    found: dict[str, list[str]] = {}
    for name in _names(directory, ".pin"):
        digest = _read_pin(os.path.join(directory, f"{name}.pin"))
        if digest is not None:
            found.setdefault(digest, []).append(name)
    return found


def unpin(directory: AnyPath, pin: str) -> None:
    """Forget a pin; the plan stays until it is old."""
    try:
        os.unlink(_pin_path(directory, pin))
    except FileNotFoundError:
        known = [name for names in pins_of(directory).values() for name in names]
        raise ConfigError("unknown_plan", f"pin {pin!r}: got no pin of that name",
                          hint=nearest(pin, known)) from None


def gc(directory: AnyPath, *, older_than_s: float = KEEP_S, now_s: float | None = None) -> tuple[str, ...]:
    """Remove unpinned plans that were not put again for ``older_than_s``; return digests."""
    limit = (time.time() if now_s is None else now_s) - older_than_s
    removed: list[str] = []
    for item in listing(directory):
        if item.pins or item.used_s > limit:
            continue
        try:
            os.unlink(_plan_path(directory, item.digest))
        except FileNotFoundError:
            continue
        removed.append(item.digest)
    return tuple(removed)


def _is_same(path: str, data: bytes) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(fd, "rb") as stream:
        info = os.fstat(fd)
        private = info.st_uid == os.geteuid() and not info.st_mode & 0o022
        return stat.S_ISREG(info.st_mode) and private and stream.read(len(data) + 1) == data


def _names(directory: AnyPath, end: str) -> list[str]:
    """Return the names that end so, without that end, sorted."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(end) for name in names if name.endswith(end) and not name.startswith("."))


def _digests(directory: AnyPath) -> list[str]:
    return [name for name in _names(directory, ".json") if is_digest(name)]


def _plan_path(directory: AnyPath, digest: str) -> str:
    return os.path.join(directory, f"{digest}.json")


def _is_pin(name: str) -> bool:
    plain = name.translate(dict.fromkeys(map(ord, "._-")))
    return 0 < len(name) <= 64 and name[0].isalnum() and name.isascii() and (plain.isalnum() or not plain)


def _pin_path(directory: AnyPath, pin: str) -> str:
    if not _is_pin(pin):
        raise ConfigError("value_invalid", f"pin: got {pin!r}, expected letters, digits, '.', '_' or '-'")
    return os.path.join(directory, f"{pin}.pin")


def _read_pin(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            text = stream.read().strip()
    except OSError:
        return None
    return text if is_digest(text) else None
