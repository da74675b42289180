"""Units and words of option values: sizes, durations, counts, closed choices.

Owns: what ``2G`` and ``30s`` mean, for arguments and every TOML file alike.
Fails closed: no unit is guessed, no number is clipped; anything else is ``value_invalid``.
Read next: ``stockade.rules.request``.
"""

from __future__ import annotations

from stockade.errors import ConfigError, nearest
from stockade.light import Mapping, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Powers of 1024, as ulimit, tmpfs and the container engines read the same letters.
_SIZES: Mapping[str, int] = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIMES_MS: Mapping[str, int] = {"ms": 1, "": 1000, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MAX = (1 << 63) - 1  # rlimits and tmpfs sizes are signed in too many tools to go above


def size(name: str, value: Any) -> int:
    """Return a size in bytes from ``2G``, ``512m``, ``1.5GiB`` or a number of bytes."""
    if isinstance(value, str):
        number, unit = _split(value)
        unit = unit.lower().removesuffix("ib") if unit.lower().endswith("ib") else unit.lower()
        unit = unit[:-1] if len(unit) == 2 and unit.endswith("b") else unit
        return _scaled(name, value, number, _SIZES.get(unit), "a size such as 512M or 2G")
    return _whole(name, value, "a size such as 512M or 2G")


def milliseconds(name: str, value: Any) -> int:
    """Return a duration in milliseconds from ``30s``, ``500ms``, ``1.5h`` or a number of seconds."""
    expected = "a duration such as 30s or 5m"
    if isinstance(value, str):
        number, unit = _split(value)
        return _scaled(name, value, number, _TIMES_MS.get(unit.lower()), expected)
    if isinstance(value, float) and 0 < value * 1000 < _MAX:
        return max(1, round(value * 1000))
    return _scaled(name, value, str(_whole(name, value, expected)), 1000, expected)


def seconds(name: str, value: Any) -> int:
    """Return a duration in whole seconds, rounded up (a limit of 0 would mean: at once)."""
    return -(-milliseconds(name, value) // 1000)


def count(name: str, value: Any) -> int:
    """Return a whole number greater than 0."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    return _whole(name, value, "a whole number above 0")


def choice(name: str, value: Any, words: Sequence[str]) -> str | None:
    """Return the word, or None when left open."""
    if value is None:
        return None
    if value not in words:
        raise ConfigError("value_invalid", f"{name} {value!r}: expected {' or '.join(words)}",
                          hint=nearest(str(value), words))
    return str(value)


def tmp(value: Any) -> str | None:
    """Return ``memory``, ``memory:BYTES`` or ``disk``."""
    if value is None:
        return None
    kind, colon, limit = str(value).partition(":")
    choice("tmp", kind, ("memory", "disk"))
    if colon and kind == "disk":
        # A size that nothing holds would be a limit in words only.
        raise ConfigError("value_invalid", f"tmp {value!r}: got a size for a directory on disk, which this version "
                          "cannot limit", hint="use memory:SIZE, or disk without a size")
    return f"{kind}:{size('tmp', limit)}" if colon else kind


def parse_tmp(value: str) -> tuple[str, int | None]:
    """Return kind and size in bytes of a checked ``tmp`` value."""
    kind, colon, limit = value.partition(":")
    return kind, int(limit) if colon else None


def _split(text: str) -> tuple[str, str]:
    text = text.strip()
    end = len(text)
    while end and text[end - 1].isalpha():
        end -= 1
    return text[:end].strip(), text[end:]


def _scaled(name: str, value: Any, number: str, factor: int | None, expected: str) -> int:
    whole, _, part = number.partition(".")
    if factor is None or not (whole + part).isascii() or not whole.isdigit() or len(number) > 20 \
            or (part and not part.isdigit()) or number.endswith("."):
        raise ConfigError("value_invalid", f"{name}: got {value!r}, expected {expected}")
    # Integers alone: floats would round large sizes.
    total = int(whole + part) * factor // 10 ** len(part)
    return _whole(name, total, expected)


def _whole(name: str, value: Any, expected: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MAX:
        raise ConfigError("value_invalid", f"{name}: got {value!r}, expected {expected}")
    return value
