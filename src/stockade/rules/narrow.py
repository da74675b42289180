"""Ceilings on one request: what ``Sandbox.narrow`` takes away.

Owns: ``Ceiling`` and its effect on resolved values. A ceiling is applied after profiles, files,
class row and policy have had their say, so whatever they come to, the result is never more than
without it. Fails closed: a path is granted only inside one that is granted anyway.
Read next: ``stockade.rules.resolve``, ``stockade.process.sandbox``.
"""

from __future__ import annotations

import os

from stockade.frozen import dataclass, replace
from stockade.light import Iterable
from stockade.paths import is_below
from stockade.rules.grants import Grant, unique
from stockade.rules.tiers import Tier

Paths = tuple[str, ...]
Limits = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """What a narrowed request gets at most; the default takes nothing away.

    ``write``, ``read``: absolute paths that replace the grants, None leaves them; ``limits``: keys
    of the plan. ``net_none``: whatever the request says, the box has no network.
    """

    tier: Tier = Tier.off
    net_none: bool = False
    write: Paths | None = None
    read: Paths | None = None
    limits: Limits = ()


def join(first: Ceiling | None, second: Ceiling) -> Ceiling:
    """Return the ceiling of both. Paths of the second were checked to lie inside the first."""
    if first is None:
        return second
    return Ceiling(tier=max(first.tier, second.tier), net_none=first.net_none or second.net_none,
                   write=first.write if second.write is None else second.write,
                   read=first.read if second.read is None else second.read,
                   limits=tuple(sorted(lower(dict(first.limits), second).items())))


def lower(limits: dict[str, int], ceiling: Ceiling) -> dict[str, int]:
    """Return the limits with none above the ceiling."""
    return {**limits, **{name: min(limits.get(name, most), most) for name, most in ceiling.limits}}


def paths(ceiling: Ceiling, write: tuple[Grant, ...],
          read: tuple[Grant, ...]) -> tuple[tuple[Grant, ...], tuple[Grant, ...]]:
    """Return the write roots and read grants that are left.

    A root that is no longer written can still be read, unless ``read`` says what can.
    """
    roots = write if ceiling.write is None else _within(ceiling.write, write)
    if ceiling.read is not None:
        return roots, _within(ceiling.read, (*read, *write))
    return roots, unique((*read, *(grant for grant in write if not inside(grant.real, roots))))


def _within(wanted: Paths, granted: tuple[Grant, ...]) -> tuple[Grant, ...]:
    return unique(found for path in wanted for found in _narrowed(path, granted))


def _narrowed(path: str, granted: tuple[Grant, ...]) -> Iterable[Grant]:
    """Return the grant of ``path`` inside a wider one; none when its real place is outside of all.

    Resolved at each start: a link that a box made meanwhile leads nowhere new.
    """
    real = os.path.realpath(path)
    for grant in granted:
        if is_below(real, grant.real):
            return (replace(grant, path=path, real=real, named=True, optional=False),)
    return ()


def inside(path: str, granted: Iterable[Grant]) -> bool:
    """Tell whether a fully resolved path lies in one of the grants."""
    return any(is_below(path, grant.real) for grant in granted)
