"""The answer to a request, as a type: kind, row, reasons, and what was passed over.

Owns: its fields and their plain form. Fails closed: a refusal without a code cannot be raised, so the
decision never makes one. Read next: ``stockade.decision``.
"""

from __future__ import annotations

from stockade.errors import Refused
from stockade.frozen import dataclass, field
from stockade.light import Mapping
from stockade.rules.tiers import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.rules.layer import Sourced

KINDS = ("wrap", "tighten", "delegate", "passthrough", "unconfined", "refuse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer, always with reasons.

    ``effective_tier`` is what is expected to be kept; the receipt says what was. ``env_tier`` is the
    tier whose environment promises hold, also when nothing else does. ``remedy``: what chooses otherwise.
    ``passed_over``: the better rows, and why each did not apply.
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
    passed_over: tuple[tuple[str, str], ...] = ()
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
            "passed_over": [{"row": row, "why": why} for row, why in self.passed_over],
            "values": {name: {"value": item.value, "origin": item.origin} for name, item in self.values.items()},
        }
