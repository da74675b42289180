"""Files that their tool saves by rename: copied into the private home, and back at the end.

Owns: which files may be. What comes back is content that the command chose, so a file that runs
code later, holds credentials or is ours can never be one, whatever a profile says. Fails closed:
where there is no private home (below strict) the request is refused, because the file would only
look as if it were kept. Read next: ``launcher/src/copyback.rs``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from stockade.errors import Refused
from stockade.plan import inputs
from stockade.plan.hiding import parents
from stockade.plan.rows import Row
from stockade.plan.table import enclosing
from stockade.plan.want import Want, below_any
from stockade.rules.load import load_list
from stockade.rules.resolve import Resolved
from stockade.rules.voiding import path_matches

MAX_FILES = 16


def plan_rows(want: Want, resolved: Resolved, table: Iterable[Row]) -> list[dict[str, str]]:
    """Return source and target of each file. Raises: Refused (``copyback_unsupported``, ``copyback_refused``)."""
    paths = [spec.path for spec in resolved.state if spec.mode == "copyback"]
    if not paths:
        return []
    if not want.strict:
        raise Refused("copyback_unsupported", f"state {paths[0]!r}: got tier {want.tier}, expected strict",
                      hint="ask for tier strict, or move the file into a granted directory with mode env")
    if len(paths) > MAX_FILES:
        raise Refused("copyback_refused", f"state: got {len(paths)} files to copy back, expected at most {MAX_FILES}")
    made = {row["target"]: row for row in table}
    return [_row(path, want, resolved, made) for path in paths]


def _row(path: str, want: Want, resolved: Resolved, made: dict[str, Row]) -> dict[str, str]:
    real = os.path.realpath(path)
    want.witness.saw(path)
    above = enclosing(path, made)
    if not below_any(path, want.homes) or path in want.homes:
        raise _refused(path, "is in no home")
    if path in made or above["kind"] != "tmpfs" or not below_any(above["target"], want.homes):
        raise _refused(path, "lies in what the box is granted already")
    if below_any(real, want.write):
        raise _refused(path, "leads into a write root")
    if any(not inputs.is_harmless(name, resolved) or _runs_later(name, want) for name in (path, real)):
        raise _refused(path, "holds credentials, runs code later, or is hidden or ours")
    return {"source": real, "target": path}


def _refused(path: str, why: str) -> Refused:
    return Refused("copyback_refused", f"state {path!r}: {why}")


def _runs_later(path: str, want: Want) -> bool:
    """Tell whether a path is a persistence point of a home, or lies in one."""
    names = [path, *parents(path)]
    entries = [entry for entry in load_list("persistence") if entry.scope == "home"]
    return any(path_matches(f"{home}/{entry.path}", name, home, want.env)
               for home in want.homes for entry in entries for name in names)
