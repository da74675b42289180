"""Files that their tool saves by rename: copied into the private home, and back at the end.

Owns: which files may be. What comes back is content that the command chose, so a file that runs
code later, holds credentials or is ours can never be one, whatever a profile says. Fails closed:
where there is no private home (below strict) the request is refused, because the file would only
look as if it were kept. Read next: ``launcher/src/copyback.rs``.
"""

from __future__ import annotations

import os

from stockade.errors import Refused
from stockade.light import Iterable
from stockade.plan import inputs
from stockade.plan.hiding import parents
from stockade.plan.rows import Row
from stockade.plan.table import enclosing
from stockade.plan.want import Want, below_any, is_below
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
    if path in want.homes:
        raise _refused(path, "a home", "a file below it")
    if not below_any(path, want.homes):
        raise _refused(path, "a path in no home", "a file below a home")
    if path in made or above["kind"] != "tmpfs" or not below_any(above["target"], want.homes):
        raise _refused(path, f"a path in {above['target']}, which the box has already", "one in its private home")
    root = next((root for root in want.write if is_below(real, root)), None)
    if root is not None:
        raise _refused(path, f"a link into write root {root}", "a file outside the write roots")
    why = next(filter(None, (_harm(name, want, resolved) for name in (path, real))), None)
    if why is not None:
        raise _refused(path, why, "a file that holds no secret and runs nothing")
    return {"source": real, "target": path}


def _refused(path: str, got: str, expected: str) -> Refused:
    return Refused("copyback_refused", f"state {path!r}: got {got}, expected {expected}")


def _harm(name: str, want: Want, resolved: Resolved) -> str | None:
    """Return what speaks against copying a name back, or None."""
    why = inputs.harm(name, resolved)
    # What runs code later is nearer to the reader than what that gives away.
    return "a file that runs code later" if why in (None, inputs.GIVES_AWAY) and _runs_later(name, want) else why


def _runs_later(path: str, want: Want) -> bool:
    """Tell whether a path is a persistence point of a home, or lies in one."""
    names = [path, *parents(path)]
    entries = [entry for entry in load_list("persistence") if entry.scope == "home"]
    return any(path_matches(f"{home}/{entry.path}", name, home, want.env)
               for home in want.homes for entry in entries for name in names)
