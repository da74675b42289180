"""One question to the decision table: the facts, and what several rows want to know of them.

Owns: which promises are lost, added or accepted, and which backend is best. Pure.
Fails closed: absence of a verdict is not a verdict; a box of unknown tier keeps nothing.
Read next: ``stockade.decision`` (the rows).
"""

from __future__ import annotations

from stockade.frozen import dataclass
from stockade.light import Iterable
from stockade.rules.answer import Decision
from stockade.rules.circumstances import BackendVerdict, Host, Place
from stockade.rules.promises import effective_tier, required
from stockade.rules.tiers import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.rules.resolve import Resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question: the facts, and what several rows want to know of them."""

    place: Place
    host: Host
    request: Resolved

    @property
    def tier(self) -> Tier:
        """The tier that is asked for."""
        return self.request.tier

    @property
    def where(self) -> str:
        """The kind of place: ``Place.where``."""
        return self.place.where

    @property
    def inside(self) -> bool:
        """Whether it is in a box of ours."""
        return self.where == "box"

    @property
    def active(self) -> Tier | None:
        """The tier of the surrounding box, where that is attested."""
        return self.place.tier if self.inside and self.place.known else None

    @property
    def floor(self) -> str:
        """What of policy forbids a run without a box; empty when nothing does."""
        policy = self.request.policy
        return "policy sets a floor" if policy.min_tier > Tier.off else \
            "policy denies unconfined runs" if policy.deny_unconfined else ""

    @property
    def best(self) -> BackendVerdict | None:
        """The backend to take, or the one whose obstacle is the news."""
        # A usable backend comes before a broken one; among broken ones a transient fault is the better
        # news, because its remedy is to try again, and then the strongest: what it lacks is the obstacle.
        # The first named wins a tie (strongest first).
        return min(self.host.backends, default=None, key=lambda b: (True, not b.transient, 0, 0) if b.code else
                   (False, False, len(self.uncovered(b)), len(self.lost(b))))

    def lost(self, backend: BackendVerdict) -> tuple[str, ...]:
        """Return the promises of the tier that a backend does not keep for this request."""
        keeps = backend.kept(self.request.net)
        return tuple(p.id for p in required(self.tier, namespaces=backend.namespaces) if p.id not in keeps)

    def uncovered(self, backend: BackendVerdict) -> tuple[str, ...]:
        """Return those of them that no ``accept`` word covers; a tier covers all once that tier is kept."""
        kept = effective_tier(backend.kept(self.request.net), namespaces=backend.namespaces)
        return self.refused_of(self.lost(backend), kept)

    def refused_of(self, lost: Iterable[str], kept: Tier) -> tuple[str, ...]:
        """Return what of ``lost`` nobody accepts to lose."""
        words = {item.value for item in self.request.accept}
        by_tier = any(tier.name in words and kept >= tier for tier in Tier if tier > Tier.off)
        return () if by_tier else tuple(name for name in lost if name not in words)

    def added(self) -> tuple[str, ...]:
        """Return the promises that the tier adds to those that the surrounding box is known to keep."""
        has = {p.id for p in required(self.active)} if self.active else set()
        return tuple(p.id for p in required(self.tier) if p.id not in has)

    def below(self) -> bool:
        """Tell whether the surrounding box is not known to reach the tier."""
        return self.inside and self.tier > (self.active or Tier.off)

    def nested(self) -> bool:
        """Tell whether a narrower box can be made in the surrounding one."""
        return self.active is not None and self.place.nests

    def unlayered(self) -> tuple[str, ...]:
        """Return what of ``added`` no further layer keeps; where there is no box, ``ns`` rows do not count."""
        keeps = frozenset() if self.host.layer is None else self.host.layer.kept(self.request.net)
        counted = {p.id for p in required(self.tier, namespaces=self.inside)}
        return tuple(name for name in self.added() if name in counted and name not in keeps)

    def layered(self) -> Tier:
        """Return the tier that is reached with a further layer."""
        keeps = frozenset() if self.host.layer is None else self.host.layer.kept(self.request.net)
        has = {p.id for p in required(self.active)} if self.active else set()
        return effective_tier(keeps | has, namespaces=self.inside)

    def missing_inside(self) -> tuple[str, ...]:
        """Return the promises that the request loses when it runs as it is in the surrounding box."""
        beyond = (promise for promise, _ in self.place.wider or ())
        # A higher tier keeps more variables away, and what the caller has can be read in /proc.
        own = (*self.added(), "env.secrets") if self.below() else ()
        return tuple(dict.fromkeys((*own, *beyond)))

    def carve_out(self) -> str:
        """Return why no run without a box comes into question: D3 and D4 are for hosts that have none."""
        best = self.best
        if self.where != "outside" or self.tier == Tier.off:
            return "only outside every sandbox, and above off"
        if best is not None and not best.code:
            return f"{best.name} can make a box here"
        if best is not None and (best.transient or not best.settled):
            return "the host was only short of something"
        return self.floor

    # -- words ----------------------------------------------------------------------------------

    def around(self) -> str:
        """Name the surrounding box."""
        return "a box of unknown tier" if self.active is None else f"this {self.active} box"

    def beyond(self) -> str:
        """Say what the surrounding box allows that the request does not."""
        if self.place.wider is None:
            return "the record of the box does not say what it allows"
        return f"the box allows more than the request: {', '.join(what for _, what in self.place.wider)}"

    def kept_inside(self) -> str:
        """Say what holds when the request runs as it is in the surrounding box, and what does not."""
        gone = self.missing_inside()
        but = ", ".join(promise.id for promise in required(self.active or Tier.off) if promise.id in gone)
        return (f"{self.around()} keeps what {self.active} promises{f' but {but}' if but else ''}, and nothing that "
                f"{self.tier} adds ({', '.join(self.added())})")

    # -- answers --------------------------------------------------------------------------------

    def answer(self, kind: str, **fields: Any) -> Decision:
        """Fill what every record carries; ``decide`` fills the row."""
        known = self.place.known if self.inside else self.where == "outside"
        active = self.place.tier if self.inside else Tier.off if known else None
        return Decision(**{
            "kind": kind, "row": "", "tier": self.tier, "requested_tier": str(self.tier),
            "active_tier": None if active is None else str(active), "tier_known": known, "effective_tier": None,
            "env_tier": max(self.tier, Tier.standard), "values": self.request.values, **fields})

    def through(self, *reasons: str) -> Decision:
        """Run in the surrounding box as it is; only the environment changes."""
        below = self.below()
        return self.answer("passthrough", effective_tier=None if self.active is None else str(self.active),
                           tier_downgrade=below, missing=self.missing_inside() if below else (), reasons=reasons,
                           remedy="deny_accept in /etc/stockade/policy.toml refuses it" if below else None)

    def unconfined(self, reason: str, setting: str) -> Decision:
        """Run without a box at a tier that asks for one; only the promises of the environment are kept."""
        missing = tuple(p.id for p in required(self.tier) if not p.id.startswith("env."))
        return self.answer("unconfined", effective_tier=str(Tier.off), tier_downgrade=True, missing=missing,
                           reasons=(reason, f"environment as at {self.tier}"), remedy=setting)

    def refuse(self, code: str, *reasons: str, missing: tuple[str, ...] = (), remedy: str = "",
               transient: bool = False) -> Decision:
        """Return a refusal; the remedy is that of the code where the host has none of its own."""
        from stockade.codes import CODES

        return self.answer("refuse", code=code, missing=missing, remedy=remedy or CODES[code].hint, transient=transient,
                           reasons=(f"tier {self.tier}: {reasons[0]}", *reasons[1:]))

    def no_backend(self, doubt: str) -> Decision:
        """D6: what is missing, and the remedy for this host."""
        best = self.best
        if self.tier == Tier.off:
            # The floor raises the tier before this step; a request that gets here anyway is a fault.
            return self.refuse("foreign_sandbox" if doubt else "policy_denied", doubt or self.floor,
                               remedy="stockade doctor names what was found" if doubt else "")
        missing = self.lost(best) if best else tuple(p.id for p in required(self.tier))
        transient = best is not None and best.transient
        code = "transient" if transient else "foreign_sandbox" if self.where != "outside" else "no_backend"
        why, remedy = (best.reason or best.code, best.remedy) if best else ("no backend exists for this host", "")
        if best is not None and not best.code and set(missing) <= best.open_net:
            # Everything but the host's network is fine; what is wrong with that is the reason.
            why, remedy = f"with the host's network {why}", f"{remedy}, or accept {' and '.join(missing)}"
        elif not why:
            why = f"{best.name if best else 'host'} does not keep {', '.join(missing)}"
        other = self._another_way(best, transient=transient)
        more = [text for text in (doubt, other.reason if other else "") if text]
        remedy = f"{remedy}; or {other.remedy}" if other and remedy else remedy
        return self.refuse(code, why, *more, missing=missing, remedy=remedy, transient=transient)

    def _another_way(self, best: BackendVerdict | None, *, transient: bool) -> BackendVerdict | None:
        """The backend after the best, where both were asked, neither is there, and its remedy is another one."""
        rest = [verdict for verdict in self.host.backends if verdict is not best and verdict.code and verdict.remedy]
        return rest[0] if rest and best and best.code and not transient and rest[0].remedy != best.remedy else None

    def unreachable(self) -> Decision:
        """D12: this box does not reach the tier, or it allows too much, and nothing in it changes that."""
        why = f"{self.around()} does not reach it" if self.below() else self.beyond()
        more = (self.beyond(),) if self.below() and self.place.wider else ()
        return self.refuse("tier_unreachable", why, *more, missing=self.missing_inside())
