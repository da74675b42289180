"""``prove``: every attack without a box, then in a box of each tier.

Owns: the order of events and the answer. An attack counts only when it worked without a box in the
same run. Fails closed: a place in which the attacks could not be made has a code and no findings; it
is never read as kept. Read next: ``model.py`` (how states are made), ``cli/prove.py`` (the table).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from stockade.errors import Error, LaunchFailed, Refused, shortage
from stockade.frozen import dataclass, field, replace
from stockade.host.active import active
from stockade.paths import config_home
from stockade.process.receipt import Receipt
from stockade.prove import sessions
from stockade.prove.catalogue import attacks
from stockade.prove.model import Answer, Attack, Claim, Finding, Outcome, Shape, find
from stockade.prove.sessions import SHAPES, Session
from stockade.prove.stage import MARK, Stage, opened
from stockade.rules.governance import load_policy
from stockade.rules.promises import PROMISES, by_id, required
from stockade.rules.tiers import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.prove.sessions import Start

PEER_SHAPES = ("plain", "killed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One tier, or another sandbox. ``code``: why there is no answer.

    ``raised``: lower tiers that were asked for as well; ``raised_by``: the policy that makes this one of them.
    """

    name: str
    raised: tuple[str, ...] = ()
    raised_by: str = ""
    findings: tuple[Finding, ...] = ()
    effective_tier: str = ""
    backend: str = ""
    seconds: float = 0.0
    code: str = ""
    reason: str = ""

    def of(self, promise: str) -> Finding | None:
        """Return what a promise came to; None where it is not made."""
        return next((item for item in self.findings if item.promise == promise), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Everything that was shown. ``bare``: each attack without a box."""

    bare: tuple[Outcome, ...] = field(repr=False)
    trials: tuple[Trial, ...]
    peer: Trial | None = None

    @property
    def broken(self) -> tuple[tuple[str, Finding], ...]:
        """Promises that a receipt called kept and an attack broke, with their tier."""
        return tuple((trial.name, item) for trial in self.trials for item in trial.findings if item.state == "broken")

    @property
    def unanswered(self) -> tuple[Trial, ...]:
        """Places without an answer."""
        every = self.trials if self.peer is None else (*self.trials, self.peer)
        return tuple(trial for trial in every if trial.code)

    @property
    def status(self) -> int:
        """Exit status: 1 something is broken, 2 cannot tell, 0 otherwise."""
        return 1 if self.broken else 2 if self.unanswered else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """What came of a set of attacks in one place."""

    outcomes: Mapping[str, Outcome]
    receipts: Mapping[str, Receipt]


def prove(tiers: Sequence[Tier], *, against: str | None = None, more: Mapping[str, Any] | None = None,
          progress: Callable[[float], None] = lambda part: None) -> Proof:
    """Attack every promise of the tiers and say what held.

    Args: against: another sandbox to try the same in; more: options added to each box, so that a
    test can weaken it; progress: is told the part that is done.
    Raises: Refused, ConfigError, LaunchFailed when nothing could be tried at all.
    """
    if active().where == "box":
        raise Refused("nested_unsupported", "prove: got a process inside a box, expected one outside")
    rival = None if against is None else sessions.peer(against)
    try:
        return _proof(tiers, against, rival, more or {}, progress)
    except OSError as error:
        # The fixtures are ordinary files, and limits of the caller hold for them.
        raise shortage(error, "fixtures") or _impossible(error) from error


def _impossible(error: OSError) -> LaunchFailed:
    what = "fixtures" if error.filename is None else f"fixture {os.fsdecode(error.filename)!r}"
    name = errno.errorcode.get(error.errno or 0, "EIO")
    return LaunchFailed("prove_failed", f"{what}: cannot be made or used ({name})")


def _proof(tiers: Sequence[Tier], against: str | None, rival: Start | None, more: Mapping[str, Any],
           progress: Callable[[float], None]) -> Proof:
    with opened() as stage:
        every = tuple(attacks(stage))
        policy = load_policy(config_home(os.environ))
        tried = dict.fromkeys(max(tier, policy.min_tier) for tier in tiers)
        places = len(tried) + (2 if rival else 1)
        bare = [_first(outcome) for outcome in _run(stage, every, sessions.bare).outcomes.values()]
        trials = []
        for number, tier in enumerate(tried):
            progress((number + 1) / places)
            trial = _timed(str(tier), partial(_tier, stage, tier, bare, more))
            raised = tuple(str(asked) for asked in tiers if asked < tier and tier == policy.min_tier)
            trials.append(replace(trial, raised=raised, raised_by=policy.origin("min_tier") if raised else ""))
        progress((places - 1) / places)
        peer = None if rival is None else _timed(str(against), partial(_peer, stage, rival, bare))
    return Proof(bare=tuple(bare), trials=tuple(trials), peer=peer)


def _first(outcome: Outcome) -> Outcome:
    """Return what an attack without a box means for the boxes: one that does not work proves nothing."""
    if outcome.state == "worked":
        return outcome
    return replace(outcome, state="not_tried", detail=f"does not work without a box ({outcome.detail})")


def _timed(name: str, trial: Callable[[], Trial]) -> Trial:
    """Run one place; an error of ours is its answer, since the others may still have one."""
    started = time.monotonic()
    try:
        found = trial()
    except Error as error:
        found = Trial(name=name, code=error.code, reason=error.message)
    return replace(found, name=name, seconds=round(time.monotonic() - started, 2))


def _tier(stage: Stage, tier: Tier, bare: Sequence[Outcome], more: Mapping[str, Any]) -> Trial:
    """Attack the promises that the tier makes."""
    counted = [first for first in bare if tier in by_id(first.attack.promise).tiers
               and (first.attack.tiers is None or tier in first.attack.tiers)]
    ran = _run(stage, _workable(counted), sessions.box(tier, more))
    findings = []
    for promise in required(tier):
        mine = [first for first in counted if first.attack.promise == promise.id]
        outcomes = tuple(ran.outcomes.get(first.attack.key, first) for first in mine)
        claims = tuple(_claim(ran.receipts, first.attack.shape, promise.id) for first in mine)
        findings.append(find(promise.id, outcomes, claims))
    plain = ran.receipts["plain"]
    return Trial(name=str(tier), findings=tuple(findings), effective_tier=plain.effective_tier,
                 backend=str(plain.launch["backend"]))


def _workable(firsts: Sequence[Outcome]) -> list[Attack]:
    return [first.attack for first in firsts if first.state == "worked"]


def _claim(receipts: Mapping[str, Receipt], shape: str, promise: str) -> Claim:
    """Return what the receipt of that box says; a box that was not needed says what the plain one does."""
    receipt = receipts.get(shape) or receipts["plain"]
    row = next((row for row in receipt.promises if row.id == promise), None)
    return Claim(state="not_kept", reason="not in the receipt") if row is None else \
        Claim(state=row.state, reason=row.reason or "")


def _peer(stage: Stage, start: Start, bare: Sequence[Outcome]) -> Trial:
    """Try the same attacks in another sandbox, which promises nothing: they are only counted."""
    mine = [attack for attack in _workable(bare) if attack.peer and attack.shape in PEER_SHAPES]
    ran = _run(stage, mine, start)
    findings = []
    for promise in PROMISES:
        outcomes = tuple(ran.outcomes[attack.key] for attack in mine if attack.promise == promise.id)
        worked = sum(outcome.state == "worked" for outcome in outcomes)
        state = "not_tried" if not outcomes else "open" if worked else "stopped"
        findings.append(Finding(promise=promise.id, state=state, outcomes=outcomes))
    return Trial(name="", findings=tuple(findings))


# -- one place -------------------------------------------------------------------------------------


def _run(stage: Stage, chosen: Sequence[Attack], start: Start) -> _Ran:
    """Make the attacks, one session for each shape of box that they need."""
    outcomes: dict[str, Outcome] = {}
    receipts: dict[str, Receipt] = {}
    for shape in SHAPES:
        mine = [attack for attack in chosen if attack.shape == shape.name]
        if not mine and shape.name != "plain":
            continue
        try:
            outcomes.update(_session(stage, shape, mine, start, receipts))
        except Refused as refused:
            if refused.code != "policy_denied" or shape.name == "plain":
                raise
            why = f"no box of that kind may be made here ({refused.message})"
            outcomes.update({attack.key: Outcome(attack=attack, state="not_tried", detail=why) for attack in mine})
    return _Ran(outcomes={attack.key: outcomes[attack.key] for attack in chosen}, receipts=receipts)


def _session(stage: Stage, shape: Shape, mine: Sequence[Attack], start: Start,
             receipts: dict[str, Receipt]) -> dict[str, Outcome]:
    stage.lay()
    found: dict[str, Outcome] = {}
    late: list[tuple[Attack, Answer]] = []
    with Session(stage, shape, start) as session:
        if shape.ending in ("exit", "limit"):
            _control(stage, session)
        for attack in mine:
            got = _attacked(stage, session, attack)
            if start is not sessions.bare and not _made(stage, attack, got):
                raise session.silent(attack.name)
            if attack.late:
                late.append((attack, got))
            else:
                found[attack.key] = _judged(stage, attack, got)
            if attack.after is not None:
                attack.after(stage)
        left = session.finish()
        if session.receipt is not None:
            receipts[shape.name] = session.receipt
    for attack, got in late:
        found[attack.key] = _judged(stage, attack, replace(got, left=left, receipt=session.receipt))
    return found


def _made(stage: Stage, attack: Attack, got: Answer) -> bool:
    """Tell whether the kernel gave an answer: an attack that was late, or that failed by itself, was not stopped.

    Leaving a process behind has to work in every place, on the fifo that is looked at from outside, else its
    death shows nothing.
    """
    if attack.op["op"] == "stay":
        return got.errno == "ended" or got.value == os.stat(stage.fifo).st_ino
    return got.errno is None or not (got.errno == "ETIMEDOUT" or ":" in got.errno)


def _attacked(stage: Stage, session: Session, attack: Attack) -> Answer:
    if attack.before is not None:
        attack.before(stage)
    return session.ask(attack.op)


def _judged(stage: Stage, attack: Attack, got: Answer) -> Outcome:
    evidence = attack.seen(stage, got)
    if evidence:
        return Outcome(attack=attack, state="worked", detail=evidence)
    return Outcome(attack=attack, state="stopped", detail=got.errno or "nothing outside changed or came back")


def _control(stage: Stage, session: Session) -> None:
    """What is allowed has to work: a program that can do nothing would find nothing.

    Raises: LaunchFailed ``prove_failed``.
    """
    path = f"{stage.project}/control"
    got = session.ask({"op": "create", "path": path, "text": MARK})
    if got.errno is not None or stage.text(path) != MARK:
        raise LaunchFailed("prove_failed", f"control: writing into the project: got {got.errno}, expected it to work")
