"""JSON in its one canonical spelling.

Owns: the bytes that a hash or a signature of the audit log is made of. The spelling is that of the JSON
Canonicalization Scheme, RFC 8785, for the values that it spells the same everywhere: no numbers but integers
below 2**53. Fails closed: a value without such a spelling is a ValueError that names its place, never a guess.
Read next: ``audit/chain.py``; plans have a spelling of their own, ``plan/canonical.py``.
"""

from __future__ import annotations

from stockade.jsontext import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# RFC 8785, appendix D: every reader has these; a larger one loses digits where numbers are doubles.
MAX_INTEGER = (1 << 53) - 1


def encode(value: Any, name: str = "value") -> bytes:
    """Return the canonical bytes of a value.

    Args: value: dict with text keys, list, str, int up to 2**53 - 1 either way, bool, None. name: of the value, for
    errors.
    Raises: ValueError for anything else; UnicodeEncodeError (one of them) for text with a lone surrogate.
    Source: RFC 8785, sections 3.2.2 and 3.2.3.
    """
    usual = _check(value, name)
    text = dumps(value if usual else _in_order(value), sort_keys=usual, ascii_only=False, compact=True)
    return text.encode("utf-8")


_PLAIN = frozenset({str, bool, type(None)})


def _check(value: Any, where: str) -> bool:
    """Tell whether the encoder's own order of keys, by code point, is the canonical one."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is int:
        if -MAX_INTEGER <= value <= MAX_INTEGER:
            return True
        raise ValueError(f"{where}: got {value}, expected an integer below 2**53")
    if kind is list:
        # A list, not a generator: an unusual key in one item must not end the check of those behind it.
        return all([type(item) in _PLAIN or _check(item, f"{where}[]") for item in value])  # noqa: C419
    if kind is not dict:
        raise ValueError(f"{where}: got {kind.__name__}, expected text, integer, list or table")
    usual = True
    for key, item in value.items():
        if type(key) is not str:
            raise ValueError(f"key in {where}: got {key!r}, expected text")
        usual = key.isascii() and usual
        if type(item) not in _PLAIN:
            usual = _check(item, f"{where}.{key}") and usual
    return usual


def _in_order(value: Any) -> Any:
    """Order keys by UTF-16 code units, as section 3.2.3 has it: of our own schemas none needs that."""
    if type(value) is list:
        return [_in_order(item) for item in value]
    if type(value) is dict:
        return {key: _in_order(value[key]) for key in sorted(value, key=_units)}
    return value


def _units(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")
