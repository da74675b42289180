"""Records become receipts or typed errors; what is malformed becomes neither."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.errors import LaunchFailed, Refused
from stockade.process.receipt import SCHEMA, Reader, refusal

LAUNCH = {"schema": SCHEMA, "record": "launch", "run_id": "R", "plan": "d", "backend": "namespaces",
          "requested_tier": "strict", "effective_tier": "strict", "kept": 19, "of": 19, "missing": [],
          "promises": [{"id": "fs.home", "state": "kept", "mechanism": ["mounts"], "reason": None}]}
END = {"schema": SCHEMA, "record": "end", "run_id": "R", "outcome": "exited", "exit_code": 0, "signal": None,
       "persistence": [{"root": "/w", "path": ".envrc", "change": "created"}]}
REFUSED = {"schema": SCHEMA, "record": "refused", "run_id": "R", "code": "mount_denied", "step": 4,
           "object": "/w", "message": "bind /w: EACCES", "hint": "h", "transient": False}


def line(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


@given(st.lists(st.integers(1, 60), max_size=30))
def test_records_are_read_however_the_pipe_cuts_them(cuts: list[int]) -> None:
    data = line(LAUNCH) + line(END)
    reader = Reader()
    for size in cuts:
        reader.feed(data[:size])
        data = data[size:]
    reader.feed(data)
    receipt = reader.receipt()
    assert receipt is not None
    assert receipt.outcome == "exited"
    assert receipt.effective_tier == "strict"
    assert receipt.promises[0].mechanism == ("mounts",)
    assert receipt.persistence[0]["path"] == ".envrc"


@pytest.mark.parametrize("data", [
    b"stockade: refused: mount_denied: x\n", b"[]\n", b"{}\n", line({**LAUNCH, "schema": "other"}),
    line(END), line(LAUNCH) + line(LAUNCH), line(REFUSED) + line(LAUNCH), line(LAUNCH) + line(END) + line(END),
])
def test_what_is_no_record_or_out_of_order_is_an_error(data: bytes) -> None:
    with pytest.raises(LaunchFailed) as caught:
        Reader().feed(data)
    assert caught.value.code == "receipt_invalid"


def test_an_endless_report_is_cut_off() -> None:
    reader = Reader()
    with pytest.raises(LaunchFailed):
        for _ in range(200):
            reader.feed(b"x" * (1 << 16))


def test_a_refusal_is_typed_by_its_code() -> None:
    error = refusal(REFUSED, 125)
    assert isinstance(error, Refused)
    assert (error.code, error.transient) == ("mount_denied", False)
    assert isinstance(refusal({**REFUSED, "code": "plan_invalid"}, 125), LaunchFailed)
    assert refusal({**REFUSED, "transient": True}, 125).transient  # type: ignore[union-attr]


def test_a_refused_launch_has_no_receipt() -> None:
    reader = Reader()
    reader.feed(line(REFUSED))
    assert reader.receipt() is None
