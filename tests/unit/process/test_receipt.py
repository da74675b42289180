"""Records become receipts or typed errors; what is malformed becomes neither."""

from __future__ import annotations

import errno
import json
import resource
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.errors import LaunchFailed, Refused
from stockade.process.receipt import SCHEMA, Reader, Receipt, refusal
from stockade.rules.promises import PROMISES

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


def test_a_shortage_has_one_code_whatever_step_met_it() -> None:
    short = refusal({**REFUSED, "transient": True, "errno": errno.EMFILE}, 125)
    assert isinstance(short, Refused) and (short.code, short.transient) == ("resource", True)
    assert "bind /w: EACCES (RLIMIT_NOFILE is " in short.message and "ulimit -n" in short.hint
    fixed = refusal({**REFUSED, "transient": False, "errno": errno.EMFILE}, 125)
    assert (fixed.code, fixed.hint) == ("mount_denied", "h")


def test_a_record_beyond_the_file_size_limit_of_the_caller_is_a_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    full = {**REFUSED, "code": "spool_failed", "errno": errno.EFBIG, "message": "spool: EFBIG"}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    short = refusal(full, 125)
    assert (short.code, short.transient) == ("resource", True)  # type: ignore[union-attr]
    assert short.message == "spool: EFBIG (RLIMIT_FSIZE is 4096)" and "ulimit -f" in short.hint
    monkeypatch.setattr(resource, "getrlimit", lambda _: (-1, -1))
    assert refusal(full, 125).code == "spool_failed"


def test_the_hint_is_true_of_the_error_number() -> None:
    gone = {**REFUSED, "code": "chdir_denied", "errno": errno.ENOENT, "hint": "does not exist"}
    assert refusal(gone, 125).hint == "does not exist"
    assert "may not be entered" in refusal({**gone, "errno": errno.EACCES}, 125).hint
    assert "ulimit -s" in refusal({**REFUSED, "code": "exec_failed", "errno": errno.E2BIG}, 125).hint


def test_a_refused_launch_has_no_receipt() -> None:
    reader = Reader()
    reader.feed(line(REFUSED))
    assert reader.receipt() is None


KEPT = [{"id": promise.id, "state": "kept", "mechanism": ["mounts"], "reason": None} for promise in PROMISES]


def ended(requested: str, lost: list[str]) -> Receipt:
    launch = {**LAUNCH, "requested_tier": requested, "effective_tier": requested, "promises": KEPT, "kept": len(KEPT)}
    return Receipt(launch=launch, end={**END, "guard_lost": lost})


def test_a_promise_whose_guard_was_lost_was_not_kept() -> None:
    receipt = ended("strict", ["/w/.git/config"])
    row = next(row for row in receipt.promises if row.id == "fs.persistence")
    assert (row.state, row.reason, row.mechanism) == ("not_kept", "guard_lost", ())
    assert (receipt.effective_tier, receipt.missing, receipt.kept) == ("standard", ("fs.persistence",), len(KEPT) - 1)
    whole = receipt.to_json()
    assert (whole["effective_tier"], whole["missing"]) == ("standard", ["fs.persistence"])
    assert whole["launch"]["effective_tier"] == "strict"  # what the launcher proved stays as it was said


def test_a_lost_guard_takes_nothing_from_a_tier_that_does_not_promise_it() -> None:
    receipt = ended("standard", ["/w/.git/config"])
    assert (receipt.effective_tier, receipt.missing) == ("standard", ())


def test_a_socket_that_came_back_costs_the_promise_about_sockets(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        assert ended("guarded", [str(tmp_path / "s")]).missing == ("ipc.sockets",)


def test_without_a_lost_guard_the_launch_record_stands() -> None:
    receipt = ended("strict", [])
    assert (receipt.effective_tier, receipt.kept, receipt.missing) == ("strict", 19, ())


def test_what_the_caller_knows_of_the_log_is_in_the_end_record() -> None:
    reader = Reader(("audit: ephemeral, in /x",))
    reader.feed(line(LAUNCH) + line({**END, "degraded": ["persistence: 3 more"]}))
    assert reader.end is not None and reader.end["degraded"] == ["persistence: 3 more", "audit: ephemeral, in /x"]


def test_a_receipt_reads_as_one_line() -> None:
    assert str(ended("strict", [])) == "strict · kept 19 of 19 · net host · exited with status 0"
    lost = ended("strict", ["/w/.git/config"])
    assert "standard · kept 18 of 19" in str(lost) and "missing fs.persistence" in repr(lost) and "<Receipt R: " in repr(lost)
    assert str(Receipt(launch=LAUNCH)).endswith("no end yet") and "/w" not in repr(lost)
