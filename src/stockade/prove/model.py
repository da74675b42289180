"""What an attack is, what came of it, and what a promise comes to.

Owns: the records between the parts of ``prove`` and the rule that makes one state of many attacks.
Fails closed: a promise is kept only when its receipt says so in every box and at least one attack
was stopped; an attack that succeeded where the receipt says kept is ``broken``, whatever else holds.
Read next: ``catalogue.py``, ``run.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stockade.frozen import dataclass, field
from stockade.process.receipt import Receipt
from stockade.rules.tiers import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.prove.stage import Stage

STATES = ("kept", "not_kept", "waived", "broken", "not_tried")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the attack program said, and for a late attack how the box ended (None without a box)."""

    errno: str | None = None
    value: Any = None
    receipt: Receipt | None = None
    left: bool = False  # a process of the session lived after its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One way in.

    ``op``: the operation of ``attack.py``; ``seen``: returns the evidence that it worked, or an
    empty text; ``before`` runs outside, just before it, and ``after`` puts back what outlives the
    session; ``tiers``: where it counts, None for all that require the promise; ``shape``: which
    box; ``late``: judged when the session has ended; ``peer``: means the same in another sandbox.
    """

    promise: str
    name: str
    op: Mapping[str, Any]
    seen: Callable[[Stage, Answer], str]
    before: Callable[[Stage], None] | None = None
    after: Callable[[Stage], None] | None = None
    tiers: frozenset[Tier] | None = None
    shape: str = "plain"
    late: bool = False
    peer: bool = True

    @property
    def key(self) -> str:
        """Return what no other attack is called."""
        return f"{self.promise}: {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One kind of box.

    ``ending``: exit, limit (exit, if no limit ends it before), wait (for its wall clock), kill (its supervisor).
    """

    name: str
    net: str = "none"
    limits: Mapping[str, Any] = field(default_factory=dict)
    ending: str = "exit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One attack in one place: ``worked`` with evidence, ``stopped`` with an errno, ``not_tried`` with a reason."""

    attack: Attack
    state: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a receipt says of a promise."""

    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one promise comes to at one tier."""

    promise: str
    state: str
    reason: str = ""
    outcomes: tuple[Outcome, ...] = ()

    def count(self, state: str) -> int:
        """Return how many attacks came to that."""
        return sum(outcome.state == state for outcome in self.outcomes)

    @property
    def tried(self) -> int:
        """Attacks that work without a box."""
        return len(self.outcomes) - self.count("not_tried")


def find(promise: str, outcomes: tuple[Outcome, ...], claims: tuple[Claim, ...]) -> Finding:
    """Return the state of a promise from its attacks and from what each receipt says of it.

    Args: claims: one of each box in which it was attacked; none when nothing of it could be tried.
    """
    for outcome, claim in _paired(outcomes, claims):
        if outcome.state == "worked" and claim.state == "kept":
            return Finding(promise=promise, state="broken", reason=outcome.detail, outcomes=outcomes)
    for state in ("not_kept", "waived"):
        for claim in claims:
            if claim.state == state:
                return Finding(promise=promise, state=state, reason=claim.reason, outcomes=outcomes)
    if not any(outcome.state == "stopped" for outcome in outcomes):
        why = next((outcome.detail for outcome in outcomes), "no attack of it can be made here")
        return Finding(promise=promise, state="not_tried", reason=why, outcomes=outcomes)
    return Finding(promise=promise, state="kept", outcomes=outcomes)


def _paired(outcomes: tuple[Outcome, ...], claims: tuple[Claim, ...]) -> tuple[tuple[Outcome, Claim], ...]:
    """Each outcome with the claim of its own box."""
    return tuple(zip(outcomes, claims, strict=True))
