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


# Rows whose warning is said once: every start of a process that has them is alike.
_ONCE = frozenset({"D3", "D4"})
_said: set[str] = set()


def lost(prepared: Prepared) -> dict[str, str]:
    """Return the promises of the tier that this start does without: id -> why."""
    decision = prepared.decision
    if prepared.compiled is None:
        return dict.fromkeys(decision.missing, "no box" if decision.kind == "unconfined" else "the box around does not "
                             "keep it")
    plan = prepared.compiled.plan
    counted = {promise.id for promise in required(prepared.resolved.tier, namespaces=plan["backend"] != "landlock")}
    found = {row["id"]: str(row["reason"]) for row in plan["promises"]
             if row["id"] in counted and row["state"] in ("waived", "not_kept")}
    return {**dict.fromkeys(decision.missing, "this host does not keep it"), **found}


def text(prepared: Prepared) -> str:
    """Return what is lost and what chooses otherwise, in one line; empty when nothing is lost."""
    less, decision = lost(prepared), prepared.decision
    if not less:
        return ""
    name = f"{prepared.resolved.request.argv[0]!r} runs below tier {prepared.resolved.tier}"
    if decision.kind == "unconfined":
        return f"{name}, without a box: {decision.reasons[0]}; otherwise: {decision.remedy}"
    if decision.kind == "passthrough":
        less = {"in the box around": "; ".join(decision.reasons)}
    words = ", ".join(f"{item.value!r} ({item.origin})" for item in prepared.resolved.accept)
    whys = "; ".join(f"{promise}: {why}" for promise, why in less.items())
    return f"{name}: {whys}; accepted by accept {words}"


def tell(prepared: Prepared, *, stacklevel: int = 3) -> None:
    """Warn when the start is a downgrade; the text ends with what chooses otherwise, and where it is."""
    line, row = text(prepared), prepared.decision.row
    if not line or row in _said:
        return
    import warnings
    from logging import getLogger

    logger = getLogger("stockade")
    if logger.hasHandlers():  # else Python would print the line that the warning prints
        logger.warning("%s", line)
    warnings.warn(line, DowngradeWarning, stacklevel=stacklevel)
    if row in _ONCE:
        _said.add(row)  # not where the warning was raised: the next start has not been warned of
