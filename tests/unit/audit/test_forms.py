"""A line that is matched by its form says what it says when it is parsed, and no other line is."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from stockade.audit.chain import Link, opened, sealed
from stockade.audit.events import made
from stockade.audit.forms import Reader

WHEN = "2026-11-30T12:00:00.000000000Z"
KINDS: list[dict[str, Any]] = [
    made("spawn.started", "wrapped", WHEN, run_id="0" * 26, actor={"caller": "agent", "pid": 4242, "uid": 0}, tiers={"kept": ["a.b", "c"], "missing": []}),
    made("spawn.finished", "failed", WHEN, detail={"exit_code": -1, "wall_ms": 10, "persistence": [], "guard_lost": False, "hash": "x", "prev": "y", "seq": 3}),
    made("inside.record", "completed", WHEN, origin="inside", detail={"data": "{\"a\": \"\u00e4\\\" \u2028\u009b\x7f\"}"}),
    made("audit.pruned", "completed", WHEN, detail={"ends": [{"last_seq": 1}], "taken": {"0" * 16: 3}}), {"a": 1}, {"z\u00e4": [], "a": {"b": {"c": [1, None, True, "x"]}}},
]


def lines() -> list[bytes]:
    """A log of all kinds, their values different each time."""
    found, link = [], Link()
    for number in range(400):
        one = KINDS[number % len(KINDS)]
        line, link = sealed({**one, "plan": random.choice((None, "a" * 64, "\u00e4\u00df", 'q"', "", 7)), "n": random.choice((0, -1, 2**53 - 1, number))}, link)
        found.append(line[:-1])
    return found


@pytest.fixture(scope="module")
def trained() -> Reader:
    """A reader that knows all these forms."""
    random.seed(1)
    reader = Reader()
    for line in lines():
        assert reader.opened(line) == opened(line)
    assert len(reader._forms) >= 5
    return reader


@pytest.mark.parametrize("seed", range(4))
def test_both_ways_say_the_same_of_any_line(trained: Reader, seed: int) -> None:
    random.seed(seed)
    told = 0
    for line in lines():
        assert trained.opened(line) == opened(line) is not None
        for _ in range(10):
            at, end = sorted(random.randrange(len(line) + 1) for _ in range(2))
            byte = bytes([random.choice(b' \t"\\{}[],:-+.0123456789eEaznulltrue\x00\x1f\x7f\x80\xc3\xa4\xff\n')])
            other = random.choice((line[:at] + byte + line[at + 1:], line[:at] + byte + line[at:], line[:at] + line[end:], line[:at] + line[at:end] * 2 + line[end:]))
            assert trained.opened(other) == opened(other), other
            told += opened(other) is not None
    assert told > 50


@pytest.mark.parametrize("change", [
    (b'"n":', b'"n": '), (b'"n":', b'"n":0'), (b'"n":', b'"n":-'), (b'"n":', b'"n":1.'), (b'"n":', b'"n":"n","n":'), (b'"origin"', b'"\\u006frigin"'),
    (b'"outcome":"', b'"outcome":"\\u0061'), (b'"outcome":"', b'"outcome":"\t'), (b'"outcome":"', b'"outcome":"\xff'), (b'"outcome":"', b'"outcome":"\xed\xa0\x80'),
    (b'"seq":', b'"seq":0'), (b'"seq":', b'"seq":-'), (b'"kept":[', b'"kept":[,'), (b'"kept":[', b'"kept":[ '), (b'null', b'NULL'), (b'null', b'nan'),
])
def test_another_spelling_fits_no_form(trained: Reader, change: tuple[bytes, bytes]) -> None:
    for line in lines()[:12]:
        other = line.replace(*change, 1)
        assert other == line or trained.opened(other) is None or json.loads(other) != json.loads(line), other
        assert trained.opened(other) == opened(other)
