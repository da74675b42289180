"""What a stored plan protects although it does not exist when the plan is made.

Owns: the names that the launcher looks for at the top of each root when it is started, maybe
months later: persistence points of write roots, secrets of every root that the caller named.
Names that exist now are guards and masks of the plan itself. Fails closed: the launcher refuses
when it cannot look. Read next: ``guards.py``, ``launcher/src/appear.rs``.
"""

from __future__ import annotations

import os

from stockade.plan.guards import opened_classes
from stockade.plan.want import Want
from stockade.rules.load import load_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def plan_rows(want: Want) -> list[dict[str, Any]]:
    """Return one row per root.

    ``root``; ``guard``: patterns of persistence points; ``mask``: patterns of secrets and their
    exceptions; ``shown``: names at the top that the caller named, which are not masked.
    """
    secrets = [*want.write, *(path for path in want.read if path in want.asked)] if want.strict else []
    roots = dict.fromkeys((*(want.write if want.guarded else ()), *secrets))
    guard, mask = _points(want), _secrets()
    rows = [{"root": root, "guard": guard if root in want.write and root not in want.homes else [],
             "mask": mask if root in secrets else [], "shown": _shown(want, root)}
            for root in roots if os.path.isdir(root)]
    return sorted(rows, key=lambda row: str(row["root"]))


def _shown(want: Want, root: str) -> list[str]:
    return sorted(os.path.basename(path) for path in {*want.read, *want.write} if os.path.dirname(path) == root)


def _points(want: Want) -> list[str]:
    """Persistence points of a workspace and of its repository, but what a named grant opens."""
    opened = opened_classes(want)
    found: set[str] = set()
    for entry in load_list("persistence"):
        inside = {"workspace": entry.path, "git": f".git/{entry.path}"}.get(entry.scope)
        # A `.git` that appears later is a repository, which must be written, not the file of that name.
        if inside is not None and inside != ".git" and entry.guard and entry.klass not in opened:
            found.add(inside)
    return sorted(found)


def _secrets() -> list[dict[str, Any]]:
    return [{"pattern": entry.pattern, "except": sorted(entry.except_)} for entry in load_list("workspace-secrets")]
