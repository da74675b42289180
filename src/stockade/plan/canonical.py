"""The canonical form of a plan and its name.

Same request on the same host gives the same bytes, so many starts share one stored plan and
a digest in a receipt names exactly what was applied. Fails closed: a value that has no
canonical spelling (a float, a key that is no string) is an error. Read next: ``compile.py``.
"""

from __future__ import annotations

from stockade.errors import Error
from stockade.ids import digest as sha256_hex
from stockade.jsontext import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_PLAIN = frozenset({str, int, bool, type(None)})


def canonical(plan: dict[str, Any]) -> bytes:
    """Return the canonical JSON bytes of a plan.

    Args: plan: only dict, list, str, int, bool and None.
    Raises: Error(plan_invalid) for anything else, lone surrogates included.
    """
    _check(plan, "plan")
    text = dumps(plan, sort_keys=True, ascii_only=False, compact=True)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as err:
        # A path that is not UTF-8 has no JSON spelling; guessing one would name another file.
        got = ascii(err.object[max(0, err.start - 40):err.end + 40])
        raise Error("path_invalid", f"path in plan: got {got}, expected UTF-8 text") from None


def digest(data: bytes) -> str:
    """Return the name of a canonical plan: its SHA-256 in lower-case hex."""
    return sha256_hex(data)


def _check(value: Any, where: str) -> None:
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise Error("plan_invalid", f"key in {where}: got {key!r}, expected a string")
            if type(item) not in _PLAIN:
                _check(item, f"{where}.{key}")
    elif kind is list:
        for item in value:
            if type(item) not in _PLAIN:
                _check(item, where)
    elif not isinstance(value, (str, int)):
        raise Error("plan_invalid", f"value of {where}: got {kind.__name__}, expected text, integer, list or table")
