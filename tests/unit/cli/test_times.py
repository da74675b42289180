"""A time that a person gives compares with those of events, or is an error."""

from __future__ import annotations

import time

import pytest

from stockade.cli.times import moment
from stockade.errors import ConfigError


@pytest.mark.parametrize(("given", "meant"), [
    ("2026", "2026-01-01T00:00:00"), ("2026-11", "2026-11-01T00:00:00"), ("2026-11-30", "2026-11-30T00:00:00"),
    ("2026-11-30T12", "2026-11-30T12:00:00"), ("2026-11-30 12:30", "2026-11-30T12:30:00"), ("2026-11-30T12:30:05Z", "2026-11-30T12:30:05"),
    ("2026-11-30T12:30:05.123456789Z", "2026-11-30T12:30:05.123456789"), ("2026-11-30T00:30:00+02:00", "2026-11-29T22:30:00"),
    ("2026-11-30T23:30-0100", "2026-12-01T00:30:00"), ("2024-02-29", "2024-02-29T00:00:00"), ("0001-01-01", "0001-01-01T00:00:00"),
])
def test_a_time_is_told_in_utc(given: str, meant: str) -> None:
    assert moment("since", given) == meant


@pytest.mark.parametrize("given", [
    "2026-13-77", "2026-02-30", "2026-11-30T25", "2026-11-30T12:60", "2026-11-30T12:00:00.1234567890", "0001-01-01T00:00+02:00", "9999-12-31T23:00-02:00",
    "2026-11-30T12+99:00", "0000", "yesterday", "", "2026-1-1", "\u0662026", "99999999999999d", "-1h", "2026-11-30T12:00:00ZZ", "1" * 5000,
])
def test_what_no_calendar_has_is_an_error(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        moment("until", given)
    assert caught.value.code == "usage" and caught.value.message.startswith("option --until: got "), caught.value


def test_a_duration_is_one_before_now() -> None:
    def ago(seconds: float) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - seconds))

    before = ago(7200)
    assert before <= moment("since", "2h") <= ago(7200)
