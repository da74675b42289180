"""Saying that a box keeps less than its tier, because somebody said it may.

Owns: ``DowngradeWarning`` and the line in the logger ``stockade``, at every start from Python.
Fails closed: with warnings as errors the start does not happen. Read next: ``plan/states.py``
(what a grant waives), ``decision.py`` (what a host does not keep).
"""

from __future__ import annotations

from stockade.errors import DowngradeWarning
from stockade.rules.promises import required

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.process.prepare import Prepared


def lost(prepared: Prepared) -> dict[str, str]:
    """Return the promises of the tier that this start does without: id -> why."""
    if prepared.compiled is None:
        return {}
    states = {row["id"]: row for row in prepared.compiled.plan["promises"]}
    found = {promise.id: str(states[promise.id]["reason"]) for promise in required(prepared.resolved.tier)
             if states[promise.id]["state"] == "waived"}
    return {**found, **dict.fromkeys(prepared.decision.missing, "this host does not keep it")}


def tell(prepared: Prepared, *, stacklevel: int = 3) -> None:
    """Warn when the start is a downgrade; the text ends with what chooses otherwise, and where it is."""
    less = lost(prepared)
    if not less:
        return
    import warnings
    from logging import getLogger

    words = ", ".join(f"{item.value!r} ({item.origin})" for item in prepared.resolved.accept)
    text = (f"{prepared.resolved.request.argv[0]!r} runs below tier {prepared.resolved.tier}: "
            + "; ".join(f"{name}: {why}" for name, why in less.items()) + f"; accepted by accept {words}")
    logger = getLogger("stockade")
    if logger.hasHandlers():  # else Python would print the line that the warning prints
        logger.warning("%s", text)
    warnings.warn(text, DowngradeWarning, stacklevel=stacklevel)
