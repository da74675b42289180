"""JSON as the standard module reads and writes it, without what importing that module costs.

Owns: ``loads`` and ``dumps`` for the files and records of this package. ``json`` compiles half a
dozen regular expressions when it is imported, 4 ms of each command line with ``re``; the C scanner and
encoder below it need none of them. Where an interpreter has no such parts, or they want more than is
given here, the standard module does it all. Fails closed: text that ``json.loads`` refuses is a
ValueError here too. Read next: ``tests/unit/test_jsontext.py`` (compared value by value).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BLANK = " \t\n\r"  # RFC 8259, section 2


class _Context:
    """What the C scanner asks of a decoder: see ``json.decoder.JSONDecoder``."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int

    @staticmethod
    def parse_constant(name: str) -> float:
        """``NaN``, ``Infinity`` and ``-Infinity``, which ``json`` reads."""
        return float(name)


def _scanner() -> Callable[[str, int], tuple[Any, int]] | None:
    try:
        import _json

        make: Any = _json.make_scanner
        scan: Callable[[str, int], tuple[Any, int]] = make(_Context())
        return scan if scan("[1.5]", 0) == ([1.5], 5) else None
    except (ImportError, AttributeError, TypeError, ValueError):
        return None


_scan = _scanner()


def loads(text: str | bytes) -> Any:
    """Return the value that a JSON text (UTF-8 where it is bytes) stands for. Raises: ValueError."""
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    if _scan is None:
        import json

        return json.loads(text)
    start = len(text) - len(text.lstrip(_BLANK))
    try:
        value, end = _scan(text, start)
    except StopIteration as stop:
        raise ValueError(f"no JSON value at character {stop.value}") from None
    except SystemError:
        # To say what is wrong the scanner of 3.11 needs a module that it does not import itself.
        import json

        return json.loads(text)
    if text[end:].strip(_BLANK):
        raise ValueError(f"JSON text goes on at character {end}")
    return value


def begins_with_object(text: bytes) -> bool:
    """Tell whether a whole JSON object stands at the beginning, whatever comes behind it."""
    if not text.startswith(b"{"):
        return False
    import json

    try:
        json.JSONDecoder().raw_decode(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return False
    return True


def dumps(value: Any, *, sort_keys: bool = False, ascii_only: bool = True, compact: bool = False) -> str:
    """Return the JSON text of a value, in one line. Raises: TypeError, ValueError (a NaN or a cycle)."""
    comma, colon = (",", ":") if compact else (", ", ": ")
    try:
        from _json import encode_basestring, encode_basestring_ascii, make_encoder

        text = encode_basestring_ascii if ascii_only else encode_basestring
        encode = make_encoder({}, _unknown, text, None, colon, comma, sort_keys, False, False)
    except (ImportError, TypeError):
        import json

        return json.dumps(value, sort_keys=sort_keys, ensure_ascii=ascii_only, allow_nan=False,
                          separators=(comma, colon))
    return "".join(encode(value, 0))


def _unknown(value: object) -> Any:
    raise TypeError(f"{type(value).__name__}: has no JSON text")
