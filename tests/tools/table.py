"""What the tools' tests found: tool × caller × tier × result × time over bare.

Owns the rows of one test run and the gaps that are known. A row is opened before the work and closed
after it, so that what failed, failed to start or was never reached is in the table too. A gap is no
skip: its test shows how the tool fails, and fails itself on the day the tool works.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

BARE = "bare"
PATH_VARIABLE = "STOCKADE_TOOLS_TABLE"


@dataclass(slots=True, kw_only=True)
class Row:
    """One start of one tool."""

    tool: str
    caller: str
    tier: str
    result: str = "not reached"
    seconds: float | None = None
    over_bare_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """What is known not to work, and why."""

    tool: str
    caller: str
    tiers: tuple[str, ...]
    reason: str


ROWS: list[Row] = []
_EVERY = ("standard", "guarded", "strict")
_SETGID = ("a setgid program of root would be root's to everybody; the system call filter sees modes and not what they are for, so box root "
           "sets that bit on nothing, directories included")
GAPS = {
    "root-setgid": Gap(tool="setgid directories", caller="root", tiers=_EVERY, reason=_SETGID),
    "root-setgid-git": Gap(tool="git init --shared", caller="root", tiers=_EVERY, reason=_SETGID),
    "root-ssh-agent": Gap(
        tool="git over ssh, agent", caller="root", tiers=("guarded", "strict"),
        reason="ssh-agent asks the kernel who connects, and box root is nobody to the kernel: run git as the owner of the agent"),
    "root-opens-stdout-by-name": Gap(
        tool="/dev/stdout > elsewhere", caller="root", tiers=_EVERY,
        reason="box root is nobody to the kernel: it may use the descriptor of root's own file, not open the file again by a name; "
               "a pipe helps: stockade run … | cat > file"),
}


@contextmanager
def measured(tool: str, caller: str, tier: str, gap: str | None = None) -> Iterator[None]:
    """Open the row of one start; it says ``ok`` (or the gap) only when the work ended well."""
    assert gap is None or ((tool, caller) == (GAPS[gap].tool, GAPS[gap].caller) and tier in GAPS[gap].tiers), gap
    row = Row(tool=tool, caller=caller, tier=tier)
    ROWS.append(row)
    start = time.monotonic()
    try:
        yield
    except BaseException as error:
        row.result = f"FAILED {str(error).strip().splitlines()[0][:60] if str(error).strip() else type(error).__name__}"
        raise
    row.result = f"gap {gap}" if gap else "ok"
    row.seconds = time.monotonic() - start
    bare = next((found.seconds for found in reversed(ROWS) if (found.tool, found.caller, found.tier) == (tool, caller, BARE)), None)
    row.over_bare_s = row.seconds - bare if tier != BARE and bare is not None else None


def lines() -> list[str]:
    """The table, and the gaps that it names."""
    if not ROWS:
        return []
    head = ["tool", "caller", "tier", "s", "over bare", "result"]
    cells = [[row.tool, row.caller, row.tier, _number(row.seconds), _number(row.over_bare_s, sign="+"), row.result] for row in ROWS]
    widths = [max(len(line[column]) for line in [head, *cells]) for column in range(len(head))]
    made = ["  ".join(word.rjust(width) if column in (3, 4) else word.ljust(width) for column, (word, width) in enumerate(zip(line, widths, strict=True))).rstrip()
            for line in [head, *cells]]
    met = sorted({row.result.removeprefix("gap ") for row in ROWS if row.result.startswith("gap ")})
    return [*made, *(["known gaps:"] if met else []), *(f"  {name}: {GAPS[name].reason}" for name in met)]


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.2f}"


def write() -> None:
    """The same as one JSON document, where the variable says."""
    if path := os.environ.get(PATH_VARIABLE):
        gaps = {name: asdict(gap) for name, gap in GAPS.items()}
        Path(path).write_text(json.dumps({"rows": [asdict(row) for row in ROWS], "gaps": gaps}, indent=1) + "\n", encoding="utf-8")
