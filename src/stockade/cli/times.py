"""Times that a person gives: so long before now, or a time of the calendar.

Owns: their spellings, and what they become: text that compares with the ``ts`` of an event. Fails closed: a time that
no calendar has is an error, never one before or after all events. Read next: ``audit.py``.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta, timezone

from stockade.cli.grammar import usage
from stockade.errors import ConfigError
from stockade.rules.units import milliseconds

_TIME = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(\.\d{1,9})?)?)?)?)?)?"
                   r"(?:([Zz])|([+-])(\d\d):?(\d\d))?", re.ASCII)
_EXPECTED = "expected a duration such as 2h, or a time such as 2026-11-30T12:00 (UTC, or with +02:00 behind it)"


def moment(option: str, value: str) -> str:
    """Return a time as the beginning of RFC 3339 in UTC. Raises: ConfigError(usage)."""
    found = _TIME.fullmatch(value)
    if found is None:
        return _before_now(option, value)
    year, month, day, hour, minute, second = (int(found[at] or default) for at, default in enumerate("011000", 1))
    try:
        when = datetime(year, month, day, hour, minute, second, tzinfo=_zone(found)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise usage(f"option --{option}: got {value!r}, {_EXPECTED}") from None
    return f"{when:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + (found[7] or "")


def _zone(found: re.Match[str]) -> timezone:
    if found[9] is None:
        return UTC
    offset = timedelta(hours=int(found[10]), minutes=int(found[11]))
    return timezone(-offset if found[9] == "-" else offset)


def _before_now(option: str, value: str) -> str:
    try:
        past = time.time() - milliseconds(option, value) / 1000
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(past))
    except (ConfigError, ValueError, OverflowError, OSError):
        raise usage(f"option --{option}: got {value!r}, {_EXPECTED}") from None
