"""The promises in a plan: what each needs to be kept, and what a grant has given away.

Owns: the ``promises`` list of the plan and the check of voiding grants. The launcher decides
kept or not_kept from what it really applied; here only ``waived`` is decided. Fails closed: a
grant that gives a required promise away needs ``accept``, else ``grant_voids_tier``.
Read next: ``rules/promises.py``, ``rules/voiding.py``.
"""

from __future__ import annotations

from stockade.errors import Refused
from stockade.light import Mapping
from stockade.plan import guards, own
from stockade.plan.want import Want
from stockade.rules.promises import PROMISES, Promise, required
from stockade.rules.tiers import ALL_TIERS
from stockade.rules.voiding import waived_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.host.facts import HostFacts


def waived(want: Want, opened: str | None) -> dict[str, str]:
    """Return promise id -> the grant that waives it. ``opened``: a grant that shows a credential store."""
    asked: list[tuple[str, str]] = [("allow", name) for name in sorted(want.allow)]
    asked += [("socket", path) for path in want.sockets]
    asked += [("read", path) for path in want.read]
    asked += [("write", path) for path in want.write]
    asked += want.spelled
    asked += [("device", path) for path in want.devices]
    asked += [("env", name) for name in want.policy.keep]
    found: dict[str, str] = {}
    root = own.imported_from(want)
    if root is not None:
        found["fs.own_state"] = f"write {root} (on the caller's import path)"
    point = guards.inside_home_point(want)
    if point is not None:
        found["fs.persistence"] = f"write {point} (what is written there runs later)"
    if opened is not None:
        # Also by a write grant, and where ~/.ssh is a link into a directory of dotfiles.
        found["fs.credentials"] = f"path {opened}"
    for kind, value in asked:
        for entry in waived_by(kind, value, want.home, want.env):
            for promise in entry.waives:
                found.setdefault(promise, f"{kind} {value}")
    return found


def promise_rows(want: Want, opened: str | None = None,
                 lost: Mapping[str, tuple[str, str]] | None = None, because: str = "") -> list[dict[str, Any]]:
    """Return the plan's promises.

    Args: lost: promise -> why the compiler found that it cannot be kept here: reason and sentence;
    because: what is behind that on this host, for a refusal.
    Raises: Refused(grant_voids_tier, promise_not_kept).
    """
    if "userns" in want.allow:
        # Waiving kernel.surface for a grant that the filter does not honour would be all loss.
        raise Refused("grant_unsupported", "grant allow userns: the seccomp filter of this version refuses "
                      "new user namespaces", hint="switch the inner sandbox off, as the profiles do")
    given_away = waived(want, opened)
    _check(want, given_away)
    lost = lost or {}
    _check_lost(want, lost, because)
    reasons = {promise: reason for promise, (reason, _) in lost.items()}
    return [_row(promise, want, given_away.get(promise.id), reasons.get(promise.id)) for promise in PROMISES]


def _row(promise: Promise, want: Want, grant: str | None, lost: str | None) -> dict[str, Any]:
    return {
        "id": promise.id,
        "tiers": [str(tier) for tier in ALL_TIERS if tier in promise.tiers],
        "ns": promise.needs_namespaces,
        "needs": [list(facts) for facts in promise.needs_for(want.net)],
        **_state(promise, want, grant, lost),
    }


def _state(promise: Promise, want: Want, grant: str | None, lost: str | None) -> dict[str, str | None]:
    """A promise of a higher tier is not made here, though the mechanisms it needs are in use:

    without this a guarded box, whose home is readable, would call itself strict.
    """
    if grant is not None:
        return {"state": "waived", "reason": f"grant: {grant}"}
    if want.tier not in promise.tiers:
        return {"state": "not_kept", "reason": f"not promised at {want.tier}"}
    if lost is not None:
        return {"state": "not_kept", "reason": lost}
    return {"state": None, "reason": None}


def _check(want: Want, given_away: dict[str, str]) -> None:
    needed = [promise.id for promise in required(want.tier) if promise.id in given_away]
    lost = [promise for promise in needed if promise not in want.accept]
    if not lost or _accepted_by_tier(want, needed):
        return
    grant = given_away[lost[0]]
    raise Refused(
        "grant_voids_tier",
        f"grant {grant}: gives away {', '.join(lost)}, which tier {want.tier} requires",
        reasons=tuple(f"{given_away[promise]} waives {promise}" for promise in lost),
        missing=tuple(lost),
        remedy=f"drop the grant, or accept {' and '.join(lost)}",
    )


def _check_lost(want: Want, lost: Mapping[str, tuple[str, str]], because: str) -> None:
    needed = [promise.id for promise in required(want.tier) if promise.id in lost]
    missing = [promise for promise in needed if promise not in want.accept]
    if not missing or _accepted_by_tier(want, needed):
        return
    raise Refused("promise_not_kept", f"{lost[missing[0]][1]}; tier {want.tier} requires {', '.join(missing)}"
                  f"{because}", reasons=tuple(lost[promise][1] for promise in missing), missing=tuple(missing),
                  remedy=f"change that, make a smaller directory the write root, or accept {' and '.join(missing)}")


def _accepted_by_tier(want: Want, lost: list[str]) -> bool:
    """``accept`` may name the tier that is left when the waived promises are gone."""
    for tier in reversed(ALL_TIERS):
        if tier < want.tier and not any(promise.id in lost for promise in required(tier)):
            return any(str(lower) in want.accept for lower in ALL_TIERS if lower <= tier)
    return "off" in want.accept


def verdict_words(host: HostFacts) -> str:
    """Return why the stronger backend is not there, for a refusal that it would spare."""
    return next((f"; {verdict.name}: {verdict.reason}" for verdict in host.backends if verdict.namespaces and
                 verdict.code), "")

