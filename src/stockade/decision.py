"""The decision: a pure function of the request, the place and the host; no I/O.

Owns: the table D1-D13 of docs/decision.md. This version answers with D1, D2 and D6, and with
D12 inside a box; the rows between need mechanisms that it does not have.
Fails closed: whatever no row allows is refused with a code, the missing promises and a remedy;
there is no weaker run without a word from the caller.
Read next: ``stockade.plan.compile`` (what becomes of ``wrap``), ``stockade.host`` (the facts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stockade.errors import CODES, Refused
from stockade.frozen import dataclass, field
from stockade.rules.promises import effective_tier, required
from stockade.rules.tiers import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from stockade.rules.layer import Sourced
    from stockade.rules.resolve import Resolved
else:
    Protocol = object

KINDS = ("wrap", "tighten", "delegate", "passthrough", "unconfined", "refuse")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendVerdict:
    """What one backend can keep on this host, found by the probe.

    Args: keeps: promise ids; open_net: those of them that it does not keep for a box with the host's
    network; code: why it cannot be used at all (``""`` when it can): a key of ``CODES`` such as
    ``userns_denied``; reason, remedy: for people; transient: worth a retry.
    settled: False when a part of the probe could not be made, so that the next request tries again.
    obstacle: its class (``stockade.host.obstacles``); step, object, errno: what the launcher was refused;
    commands: the remedy, to paste; sysctl: the setting that is the whole of it.
    """

    name: str
    keeps: frozenset[str] = frozenset()
    open_net: frozenset[str] = frozenset()
    namespaces: bool = False
    code: str = ""
    reason: str = ""
    remedy: str = ""
    transient: bool = False
    settled: bool = True
    obstacle: str = ""
    step: int | None = None
    object: str = ""
    errno: str = ""
    commands: tuple[str, ...] = ()
    sysctl: tuple[str, str] | None = None

    def kept(self, net: str) -> frozenset[str]:
        """Return the promises that it keeps for a box with network ``net``."""
        if self.code:
            return frozenset()
        return self.keeps if net == "none" else self.keeps - self.open_net


class Place(Protocol):
    """Where the calling process is, attested by the kernel (``stockade.host.active``)."""

    @property
    def where(self) -> str:
        """``outside``, ``box``, ``foreign`` or ``unknown``."""

    @property
    def tier(self) -> Tier | None:
        """Tier of the surrounding box, if there is one and it is known."""

    @property
    def known(self) -> bool:
        """Whether ``tier`` is attested."""


class Host(Protocol):
    """What the host can keep, strongest backend first (``stockade.host.facts``)."""

    @property
    def backends(self) -> Sequence[BackendVerdict]:
        """Verdicts of all backends that exist here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer, always with reasons.

    ``effective_tier`` is what the chosen backend is expected to keep; the receipt says what it
    kept. ``env_tier`` is the tier whose environment promises hold, also when nothing else does.
    """

    kind: str
    row: str
    tier: Tier
    requested_tier: str
    active_tier: str | None
    tier_known: bool
    effective_tier: str | None
    tier_downgrade: bool = False
    env_tier: Tier
    backend: str | None = None
    code: str | None = None
    reasons: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    remedy: str | None = None
    transient: bool = False
    values: Mapping[str, Sourced] = field(default_factory=dict)

    def raise_if_refused(self) -> None:
        """Raise: Refused with the code, reasons, missing promises and remedy of the decision."""
        if self.kind == "refuse" and self.code is not None:
            raise Refused(self.code, "; ".join(self.reasons), reasons=self.reasons, missing=self.missing,
                          remedy=self.remedy, transient=self.transient)

    def to_json(self) -> dict[str, Any]:
        """Return the decision as plain data (schema ``stockade.decision.v1``)."""
        return {
            "schema": "stockade.decision.v1", "kind": self.kind, "row": self.row, "tier": str(self.tier),
            "requested_tier": self.requested_tier, "active_tier": self.active_tier, "tier_known": self.tier_known,
            "effective_tier": self.effective_tier, "tier_downgrade": self.tier_downgrade,
            "backend": self.backend, "code": self.code, "reasons": list(self.reasons),
            "missing": list(self.missing), "remedy": self.remedy, "transient": self.transient,
            "values": {name: {"value": item.value, "origin": item.origin} for name, item in self.values.items()},
        }


# (6): decide.
def decide(where: Place, host: Host, request: Resolved) -> Decision:
    """Return the one row of the table that applies; pure.

    Args: where: step 4; host: step 5; request: steps 1-3, with the floor applied.
    """
    if where.where == "box":
        return _nested(where, request)
    if request.tier == Tier.off:
        return _off(where, request)
    best = _best(host, request)
    # Absence of a verdict is not a verdict: a host nobody probed keeps nothing.
    if best is None or best.code or _uncovered(best, request):
        return _no_backend(where, best, request)
    return _wrap(where, best, request)


def _wrap(where: Place, backend: BackendVerdict, request: Resolved) -> Decision:
    """D2: wrap with the strongest backend; what it misses was accepted by name."""
    missing = _missing(backend, request)
    effective = min(effective_tier(backend.kept(request.net), namespaces=backend.namespaces), request.tier)
    reasons = [f"{backend.name} keeps what {request.tier} promises"] if not missing else [
        f"{backend.name} does not keep {', '.join(missing)}, which the caller accepts"]
    return _decision(where, request, "wrap", "D2", backend=backend.name, effective_tier=str(effective),
                     tier_downgrade=effective < request.tier, missing=missing, reasons=tuple(reasons))


def _off(where: Place, request: Resolved) -> Decision:
    """D1: off without a floor runs unconfined, with the environment promises of standard."""
    if request.policy.min_tier > Tier.off or request.policy.deny_unconfined:
        # The floor raises the tier before this step; a request that gets here anyway is a fault.
        return _decision(where, request, "refuse", "D6", code="policy_denied",
                         reasons=("tier off: policy sets a floor",))
    if where.where not in ("outside", "foreign"):
        return _decision(where, request, "refuse", "D6", code="foreign_sandbox",
                         reasons=("tier off: whether this process is confined cannot be told",),
                         remedy="stockade doctor names what was found")
    return _decision(where, request, "unconfined", "D1", effective_tier=str(Tier.off), env_tier=Tier.standard,
                     reasons=("tier off was asked for and no floor forbids it", "environment as at standard"))


def _no_backend(where: Place, best: BackendVerdict | None, request: Resolved) -> Decision:
    """D6: refuse with the missing promises and the remedy for this host.

    D3-D5 would start a weaker run here (own argv, an operator's opt-in, another sandbox); without
    their mechanisms the answer is the same typed refusal for every class.
    """
    missing = _missing(best, request) if best else tuple(p.id for p in required(request.tier))
    transient = best is not None and best.transient
    code = "transient" if transient else "foreign_sandbox" if where.where != "outside" else "no_backend"
    why = best.reason or best.code if best else "no backend exists for this host"
    remedy = best.remedy if best else ""
    if best is not None and not best.code and set(missing) <= best.open_net:
        # Everything but the host's network is fine; what is wrong with that is the reason.
        why, remedy = f"with the host's network {why}", f"{remedy}, or accept {' and '.join(missing)}"
    elif not why:
        why = f"{best.name if best else 'host'} does not keep {', '.join(missing)}"
    reasons = [f"tier {request.tier}: {why}"]
    if where.where == "unknown":
        reasons.append("whether this process is confined cannot be told")
    return _decision(where, request, "refuse", "D6", code=code, transient=transient, missing=missing,
                     reasons=tuple(reasons), remedy=remedy or CODES[code].hint)


def _nested(where: Place, request: Resolved) -> Decision:
    """D7-D13 need the nest service, a further layer or the gateway: refuse, whatever is asked."""
    around = f"a {where.tier} box" if where.tier is not None and where.known else "a box of unknown tier"
    return _decision(where, request, "refuse", "D12", code="nested_unsupported",
                     missing=tuple(p.id for p in required(request.tier)) if request.tier else (),
                     reasons=(f"tier {request.tier}: this process is inside {around}, and this version cannot "
                              "start another one in it",),
                     remedy="start the command from outside the box, or run it directly inside this one")


def _best(host: Host, request: Resolved) -> BackendVerdict | None:
    """Return the backend that misses least; the first named wins a tie (strongest first)."""
    if not host.backends:
        return None
    # A usable backend comes before a broken one; among broken ones a transient fault is the
    # better news, because its remedy is to try again, and then the strongest: what it lacks is the obstacle.
    return min(host.backends, key=lambda b: (True, not b.transient, 0, 0) if b.code else
               (False, False, len(_uncovered(b, request)), len(_missing(b, request))))


def _missing(backend: BackendVerdict, request: Resolved) -> tuple[str, ...]:
    keeps = backend.kept(request.net)
    return tuple(p.id for p in required(request.tier, namespaces=backend.namespaces) if p.id not in keeps)


def _uncovered(backend: BackendVerdict, request: Resolved) -> tuple[str, ...]:
    """Return missing promises that no ``accept`` word covers.

    A tier name covers everything once the backend keeps at least that tier.
    """
    words = {item.value for item in request.accept}
    kept = effective_tier(backend.kept(request.net), namespaces=backend.namespaces)
    if any(tier.name in words and kept >= tier for tier in Tier if tier > Tier.off):
        return ()
    return tuple(name for name in _missing(backend, request) if name not in words)


def _decision(where: Place, request: Resolved, kind: str, row: str, **fields: Any) -> Decision:
    """Fill what every record carries."""
    known = where.known if where.where == "box" else where.where == "outside"
    active = str(where.tier) if where.where == "box" and where.tier is not None else \
        str(Tier.off) if where.where == "outside" else None
    return Decision(**{
        "kind": kind, "row": row, "tier": request.tier, "requested_tier": str(request.tier),
        "active_tier": active, "tier_known": known, "effective_tier": None,
        "env_tier": max(request.tier, Tier.standard), "values": request.values, **fields})
