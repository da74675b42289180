"""Where this process stands, as one request sees it: step 4.

Owns: the answer for a process in no box of ours, which is nearly every one; what a box means for a request
is asked of ``within.py``, which others do not pay for. Fails closed: as ``within.py``.
Read next: ``within.py``, ``active.py``.
"""

from __future__ import annotations

from stockade.frozen import dataclass
from stockade.host.active import Active, box_record
from stockade.rules.circumstances import Wider
from stockade.rules.tiers import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.rules.resolved import Resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Standpoint:
    """Step 4 for one request: ``stockade.rules.circumstances.Place``."""

    where: str
    tier: Tier | None = None
    known: bool = False
    nests: bool = False
    wider: tuple[Wider, ...] | None = None
    lacks: tuple[str, ...] = ()


def standpoint(place: Active, resolved: Resolved) -> Standpoint:
    """Return where this process stands, as one request sees it."""
    if place.where != "box":
        return Standpoint(where=place.where, tier=place.tier, known=place.known)
    from stockade.host.within import lacks, tells, wider

    record = box_record()
    told = place.known and resolved.tier > Tier.off and tells(record)
    return Standpoint(where=place.where, tier=place.tier, known=place.known, nests=place.nests,
                      wider=tuple(wider(record, resolved)) if told else None,
                      lacks=tuple(dict.fromkeys(lacks(record, resolved))))
