"""Write roots: the real directories and files of the host that the box may change.

Owns: which of them get a mount of their own. Fails closed: a root that does not exist is refused,
never made. Read next: ``guards.py`` (what inside them stays as it is), ``linux.py``.
"""

from __future__ import annotations

import os

from stockade.errors import Refused
from stockade.light import Iterable
from stockade.plan import rows
from stockade.plan.linux import owner_of
from stockade.plan.table import Table
from stockade.plan.want import Want, is_below


def mounted(want: Want, locked: Iterable[str]) -> tuple[str, ...]:
    """Return the write roots that need a mount of their own.

    One inside another is there already, and a mount on it would break what it is granted for: a
    file that is saved by rename cannot be renamed over a mount point (EBUSY).
    Args: locked: points inside write roots that are made read-only or masked, and would cover it.
    """
    points = tuple(locked)
    found: list[str] = []
    for root in sorted(want.write, key=rows.depth):
        outer = max((above for above in found if is_below(root, above)), key=len, default=None)
        covered = outer is not None and any(is_below(root, p) and is_below(p, outer) for p in points)
        if outer is None or covered or (want.ids.shifted and owner_of(root) != owner_of(outer)):
            found.append(root)
    return tuple(root for root in want.write if root in found)


def add(table: Table, want: Want, roots: Iterable[str]) -> None:
    """Add the rows: the real thing, writable; under /tmp they lie on the private one."""
    for root in roots:
        if not os.path.lexists(root):
            raise Refused("source_missing", f"write root {root!r}: does not exist (ENOENT)",
                          hint="create it first")
        table.add(rows.bind(root, attrs=rows.SAFE, idmap=want.ids.shifted, owner=owner_of(root)))
