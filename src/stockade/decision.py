"""The decision: a pure function of the request, the place and the host; no I/O.

Owns: the table D1-D13. Rows are asked in their order; the first that applies is the answer, and each
that does not says why. A row whose mechanism this version lacks waits for a fact that nobody gives yet.
Fails closed: what no row allows is refused with a code, the missing promises and a remedy; there is
no weaker run without a word from the caller, the operator or an installed program that was proven.
Read next: ``rules/circumstances.py`` (the facts), ``rules/case.py``, ``docs/decision.md`` (its table is made
from here), ``stockade.process.prepare`` (what becomes of an answer).
"""

from __future__ import annotations

from stockade.frozen import NamedTuple, replace
from stockade.rules.answer import KINDS, Decision
from stockade.rules.case import Case
from stockade.rules.circumstances import BackendVerdict, Host, Place
from stockade.rules.promises import effective_tier
from stockade.rules.tiers import Caller, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stockade.rules.resolve import Resolved

    Answer = Decision | str  # the decision, or why the row does not apply
    Ask = Callable[[Case], Answer]

__all__ = ["KINDS", "ROWS", "BackendVerdict", "Decision", "Host", "Place", "decide"]

INSIDE, OUTSIDE = "this process is in a box", "this process is in no box"
UNKNOWN = "whether this process is confined cannot be told"


class Row(NamedTuple):
    """One row: what docs/decision.md says of it, and the function that answers."""

    id: str
    where: str
    host: str
    request: str
    answer: str
    ask: Ask


ROWS: list[Row] = []


def row(where: str, host: str, request: str, answer: str) -> Callable[[Ask], Ask]:
    """Add the function below as the next row of the table."""
    def add(ask: Ask) -> Ask:
        ROWS.append(Row(f"D{len(ROWS) + 1}", where, host, request, answer, ask))
        return ask
    return add


# (6): decide.
def decide(where: Place, host: Host, request: Resolved) -> Decision:
    """Return the first row of the table that applies; pure.

    Args: where: step 4; host: step 5; request: steps 1-3, with the floor applied.
    """
    case = Case(place=where, host=host, request=request)
    passed: list[tuple[str, str]] = []
    for item in ROWS:
        found = item.ask(case)
        if isinstance(found, Decision):
            return replace(found, row=item.id, passed_over=tuple(passed))
        passed.append((item.id, found))
    raise AssertionError("unreachable: D6 and D13 take what no other row takes")


@row("outside, foreign sandbox", "any", "`off`, and no floor forbids it",
     "`unconfined`; the environment promises of standard are kept")
def _off(case: Case) -> Answer:
    if case.inside or case.where == "unknown":
        return INSIDE if case.inside else UNKNOWN
    if case.tier > Tier.off or case.floor:
        return case.floor if case.tier == Tier.off else f"{case.tier} was asked for, not off"
    return case.answer("unconfined", effective_tier="off",
                       reasons=("tier off was asked for and no floor forbids it", "environment as at standard"))


@row("anywhere but in a box of ours", "a backend keeps all promises of the tier that nobody accepted to lose", "a tier",
     "`wrap` with the strongest backend")
def _wrap(case: Case) -> Answer:
    best = case.best
    if case.inside or case.tier == Tier.off:
        return INSIDE if case.inside else "off asks for no box"
    if best is None or best.code:
        return "no backend exists for this host" if best is None else f"{best.name}: {best.reason or best.code}"
    open_ = case.uncovered(best)
    if open_:
        return f"{best.name} does not keep {', '.join(open_)}"
    missing, kept = case.lost(best), best.kept(case.request.net)
    effective = min(effective_tier(kept, namespaces=best.namespaces), case.tier)
    why = f"{best.name} keeps what {case.tier} promises" if not missing else \
        f"{best.name} does not keep {', '.join(missing)}, which the caller accepts"
    return case.answer("wrap", backend=best.name, effective_tier=str(effective), missing=missing, reasons=(why,),
                       tier_downgrade=effective < case.tier)


@row("outside", "no backend at all, and none that was only short of something",
     "class `first_party`, proven; no floor",
     "`unconfined`; the environment promises of the tier are kept; one warning per process")
def _first_party(case: Case) -> Answer:
    barred = case.carve_out()
    if barred or case.request.caller != Caller.FIRST_PARTY:
        return barred or f"class {case.request.caller} is no proven first_party"
    return case.unconfined("a program of this installation, proven by its distribution, runs without a box",
                           "min_tier or deny_unconfined in /etc/stockade/policy.toml refuses it")


@row("outside", "no backend at all, and none that was only short of something",
     "the operator set `allow_unconfined`; no floor",
     "`unconfined`; the environment promises of the tier are kept; one warning per process")
def _allow_unconfined(case: Case) -> Answer:
    barred, word = case.carve_out(), case.request.allow_unconfined
    if barred or word is None:
        return barred or "no configuration says allow_unconfined"
    return case.unconfined(f"{word.origin} says allow_unconfined", f"allow_unconfined = false in {word.origin}")


@row("outside", "the agent's own sandbox is verified on, no other fits around it, and it keeps the tier",
     "class `agent`, no path restriction of its own", "`delegate` to that sandbox; audit or deny")
def _agents_own(case: Case) -> Answer:
    inner, request = case.host.inner, case.request
    if case.where != "outside" or request.caller != Caller.AGENT:
        return "only for an agent outside every sandbox"
    if inner is None or inner.code or case.tier == Tier.off or case.uncovered(inner):
        return "the agent has no verified sandbox of its own that keeps the tier"
    if request.hide or any(grant.named for grant in (*request.read, *request.write_roots)):
        return "the request restricts paths, which that sandbox cannot express"
    missing = case.lost(inner)
    effective = min(effective_tier(inner.kept(request.net), namespaces=inner.namespaces), case.tier)
    return case.answer("delegate", backend=inner.name, effective_tier=str(effective), missing=missing,
                       tier_downgrade=effective < case.tier, reasons=(f"{inner.name} confines this agent itself",))


@row("anywhere but in a box of ours", "otherwise, and D9 does not apply", "any",
     "`refuse`: `no_backend`, `foreign_sandbox`, `transient` or `policy_denied`, the missing promises, the remedy")
def _refuse(case: Case) -> Answer:
    if case.inside:
        return INSIDE
    layered = _layer(case)
    return case.no_backend(UNKNOWN if case.where == "unknown" else "") if isinstance(layered, str) else \
        "a further layer keeps what the tier adds"


@row("a box at the tier or above", "the box allows nothing that the request does not",
     "needs nothing that the box lacks", "`passthrough`; the environment delta is applied")
def _pass(case: Case) -> Answer:
    blocked = _cannot_serve(case)
    if blocked or case.tier == Tier.off:
        return blocked or case.through("off asks for no box of its own, and the one around stays")
    if case.below():
        return f"{case.around()} is below {case.tier}"
    if case.place.wider is None or case.place.wider:
        return case.beyond()
    return case.through(f"{case.around()} keeps what {case.tier} promises, and allows no more than was asked for")


@row("a box of known tier", "its supervisor answers", "a tier; needs nothing that the box lacks",
     "`tighten` by the nest service: a real narrower box")
def _nest(case: Case) -> Answer:
    blocked = _cannot_serve(case)
    if blocked or not case.nested():
        return blocked or ("the tier of the box is not known" if case.active is None else
                           "the supervisor of the box builds none inside it")
    return case.answer("tighten", backend="namespaces", effective_tier=str(case.tier),
                       reasons=(f"the supervisor of {case.around()} builds a box of {case.tier} in it",))


@row("a box below the tier, foreign sandbox", "Landlock and seccomp keep all that the tier adds, or it was accepted",
     "a tier; needs nothing that the box lacks", "`tighten` by a further layer")
def _layer(case: Case) -> Answer:
    layer, blocked = case.host.layer, _cannot_serve(case) if case.inside else ""
    if blocked or case.where not in ("box", "foreign") or case.tier == Tier.off or (case.inside and not case.below()):
        return blocked or "only in a box below the tier, or in a foreign sandbox"
    lost = case.unlayered()
    if layer is None or layer.code or case.refused_of(lost, case.layered()):
        return f"a further layer does not keep {', '.join(lost)}" if layer else "no further layer can be had"
    effective = min(case.layered(), case.tier)
    return case.answer("tighten", backend=layer.name, effective_tier=str(effective), missing=lost,
                       tier_downgrade=effective < case.tier,
                       reasons=(f"{layer.name} as a further layer keeps what {case.tier} adds",
                                *((f"but {', '.join(lost)}, which the caller accepts",) if lost else ())))


@row("a box below the tier", "the gateway answers", "exactly one pinned shape; needs nothing that the box lacks",
     "`delegate` to the gateway")
def _broker(case: Case) -> Answer:
    blocked = _cannot_serve(case) or ("" if case.below() else "only in a box below the tier")
    if blocked or case.host.broker is None or case.request.request.pass_fds:
        return blocked or "no gateway has one pinned shape for this call"
    return case.answer("delegate", backend="gateway", effective_tier=str(case.tier),
                       reasons=(f"shape {case.host.broker} of the gateway is this call",))


@row("a box of known tier below the tier", "–", "`accept` covers every missing promise; no floor above the box",
     "`passthrough`, `downgraded`: the network, limits and grants of the box hold, not those of the request; the "
     "environment delta is applied; a warning on every call names what is kept and what is not")
def _accept(case: Case) -> Answer:
    blocked = _cannot_serve(case) or ("" if case.below() and case.active is not None else
                                      "only in a box of known tier below the tier")
    if blocked or case.place.wider is None:
        return blocked or case.beyond()
    open_ = case.refused_of(case.missing_inside(), case.active or Tier.off)
    if open_ or case.request.policy.min_tier > (case.active or Tier.off):
        return f"nobody accepts to lose {', '.join(open_)}" if open_ else "policy sets a floor above the box"
    return case.through(f"{case.kept_inside()}, which the caller accepts",
                        "the environment of the caller can be read in /proc",
                        *((case.beyond(),) if case.place.wider else ()))


@row("a box", "–", "a higher tier, or less than the box allows; nothing of the above",
     "`refuse`: `tier_unreachable`, the missing promises, the remedy")
def _unreachable(case: Case) -> Answer:
    if not case.inside:
        return OUTSIDE
    if case.place.lacks and (case.nested() or not case.below()):
        return "the tier can be reached; what is missing is a grant"
    return case.unreachable()


@row("a box", "–", "needs a path, socket, host or variable that the box does not have",
     "`refuse`: `grant_unreachable`, naming it")
def _no_grant(case: Case) -> Answer:
    if not case.place.lacks:
        return "nothing that the request needs is missing"
    return case.refuse("grant_unreachable", f"{case.around()} does not have {', '.join(case.place.lacks)}")


def _cannot_serve(case: Case) -> str:
    """Return why no row that runs inside a box applies, whatever it would run."""
    if not case.inside:
        return OUTSIDE
    return f"the box does not have {', '.join(case.place.lacks)}" if case.place.lacks else ""
