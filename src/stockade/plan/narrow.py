"""A narrowed request: fewer roots and reads, with everything protected that was protected before.

A root that becomes smaller must not lose the guards that the larger one brought: ``core.hooksPath``
of the repository may name the very directory that is left, and a file that was masked may be named
now. So hidden names, masks and guards come from the wide request, and only then roots and reads
shrink. Fails closed: what lies inside a protected place is refused, not shown.
Read next: ``rules/narrow.py`` (what may be taken away), ``guards.py``.
"""

from __future__ import annotations

import os

from stockade.errors import Refused
from stockade.frozen import replace
from stockade.light import Iterable
from stockade.plan import writeroots
from stockade.plan.guards import Guards
from stockade.plan.hiding import Hidden
from stockade.plan.want import Want, below_any, is_below
from stockade.rules.grants import Grant
from stockade.rules.resolved import Resolved


def wide(resolved: Resolved) -> Resolved:
    """Return the request as it was before it was narrowed; mostly the same one."""
    if resolved.unnarrowed is None:
        return resolved
    write, read = resolved.unnarrowed
    return replace(resolved, write_roots=write, read=read)


def apply(want: Want, resolved: Resolved, found: Guards, hidden: tuple[Hidden, ...]) -> Want:
    """Shrink roots and reads of the wide ``want``; ``found`` keeps what still concerns it.

    Raises: Refused(write_root_refused) for a path inside a guarded, masked or hidden place.
    """
    if resolved.unnarrowed is None:
        return want
    write = _left(resolved.write_roots)
    before = frozenset(grant.real for grant in resolved.unnarrowed[0])
    if before <= frozenset(write):
        # Nothing was taken away, so what belongs to the roots (the repository of a linked work
        # tree) stays as well.
        write = tuple(dict.fromkeys((*write, *(root for root in want.write if root not in before))))
    ceiling = resolved.request.ceiling
    if ceiling is not None and ceiling.read is not None:
        read = _left(resolved.read)
    else:
        read = tuple(path for path in dict.fromkeys((*want.read, *want.write)) if path not in write)
    secret = [item.path for item in hidden]
    _refuse(set(write).difference(want.write), [*found.points, *found.masks, *secret], "write")
    _refuse(set(read).difference(want.read, want.write), [*found.masks, *secret], "read")
    smaller = replace(want, write=write, read=read, cwd=resolved.cwd,
                      workspace=want.workspace if resolved.cwd is not None else None)
    _concern(found, smaller, frozenset(secret))
    return smaller


def _concern(found: Guards, want: Want, secret: frozenset[str]) -> None:
    """Drop the masks of what is out of sight, or is hidden by a view that is only read."""
    found.masks = {path: is_dir for path, is_dir in found.masks.items()
                   if below_any(path, want.write)
                   or (path not in secret and (not want.strict or below_any(path, want.read)))}
    found.mounted = writeroots.mounted(want, (*found.points, *found.masks))


def _left(grants: Iterable[Grant]) -> tuple[str, ...]:
    found = [grant for grant in grants if not grant.optional or os.path.lexists(grant.real)]
    for grant in found:
        if not os.path.lexists(grant.real):
            raise Refused("source_missing", f"narrowed path {grant.path!r}: does not exist (ENOENT)")
    return tuple(dict.fromkeys(grant.real for grant in found))


def _refuse(paths: Iterable[str], protected: list[str], key: str) -> None:
    for path in paths:
        around = next((place for place in protected if is_below(path, place)), None)
        if around is not None:
            raise Refused("write_root_refused", f"narrow {key} {path!r}: lies in {around!r}, which the wider "
                          "sandbox protects", hint="narrow to a directory outside of it")
