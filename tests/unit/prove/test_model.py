"""What a promise comes to, from its attacks and its receipts."""

from __future__ import annotations

import pytest

from stockade.prove.model import Attack, Claim, Finding, Outcome, find
from stockade.prove.run import Proof, Trial

KEPT, LOST, WAIVED = Claim(state="kept"), Claim(state="not_kept", reason="no netns"), Claim(state="waived", reason="grant")


def outcome(state: str, detail: str = "detail") -> Outcome:
    return Outcome(attack=Attack(promise="fs.home", name=state, op={"op": "read"}, seen=lambda stage, got: ""),
                   state=state, detail=detail)


@pytest.mark.parametrize(("states", "claims", "state"), [
    (("stopped", "stopped"), (KEPT, KEPT), "kept"),
    (("stopped", "worked"), (KEPT, KEPT), "broken"),
    (("stopped", "worked"), (KEPT, LOST), "not_kept"),
    (("worked", "stopped"), (KEPT, LOST), "broken"),
    (("stopped", "stopped"), (KEPT, LOST), "not_kept"),
    (("worked",), (WAIVED,), "waived"),
    (("not_tried", "not_tried"), (KEPT, KEPT), "not_tried"),
    (("not_tried", "stopped"), (KEPT, KEPT), "kept"),
    (("not_tried",), (LOST,), "not_kept"),
    ((), (), "not_tried"),
])
def test_a_promise_is_kept_only_by_its_receipt_and_a_stopped_attack(
        states: tuple[str, ...], claims: tuple[Claim, ...], state: str) -> None:
    assert find("fs.home", tuple(outcome(item) for item in states), claims).state == state


def test_the_reason_of_a_broken_promise_is_the_evidence() -> None:
    found = find("fs.home", (outcome("stopped"), outcome("worked", "read the secret")), (KEPT, KEPT))
    assert (found.reason, found.tried, found.count("worked")) == ("read the secret", 2, 1)


def test_what_was_broken_is_said_before_what_cannot_be_told() -> None:
    broken = Trial(name="strict", findings=(Finding(promise="fs.home", state="broken"),))
    silent, good = Trial(name="guarded", code="prove_failed"), Trial(name="standard")
    status = {trials: Proof(bare=(), trials=trials).status for trials in ((broken, silent), (silent, good), (good,))}
    assert list(status.values()) == [1, 2, 0]
    assert Proof(bare=(), trials=(good,), peer=silent).status == 2
