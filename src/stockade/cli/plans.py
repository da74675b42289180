"""``stockade plan``: the stored plans of launch lines.

Owns: nothing but the printing. Read next: ``stockade.plan.store``.
"""

from __future__ import annotations

import time

from stockade.cli.grammar import Parsed
from stockade.cli.output import age, clean, emit, say, size, table
from stockade.cli.request import state_home
from stockade.plan import store


def listing(parsed: Parsed) -> int:
    """List the plans in the store."""
    plans = store.listing(state_home().plans)
    if parsed.flag("json"):
        emit("stockade.plans.v1", {"plans": [
            {"digest": p.digest, "size_bytes": p.size_bytes, "used_s": p.used_s, "pins": list(p.pins)} for p in plans]})
        return 0
    say(f"{len(plans)} plan{'' if len(plans) == 1 else 's'}, {size(sum(p.size_bytes for p in plans))}")
    now = time.time()
    table([(p.digest, size(p.size_bytes), age(now - p.used_s), " ".join(p.pins)) for p in plans],
          head=("DIGEST", "SIZE", "USED", "PINS") if plans else ())
    return 0


def show(parsed: Parsed) -> int:
    """Print one plan, readable; it is a document of its own schema."""
    plan = store.get(state_home().plans, parsed.words[0])
    emit(str(plan.get("schema")), {key: value for key, value in plan.items() if key != "schema"})
    return 0


def collect(parsed: Parsed) -> int:
    """Remove unpinned plans that were not used for a while."""
    from stockade.rules import units

    text = parsed.text("older_than")
    older_s = float(store.KEEP_S) if text is None else units.milliseconds("--older-than", text) / 1000
    directory = state_home().plans
    if parsed.flag("dry_run"):
        limit = time.time() - older_s
        gone = tuple(p.digest for p in store.listing(directory) if not p.pins and p.used_s <= limit)
    else:
        gone = store.gc(directory, older_than_s=older_s)
    if parsed.flag("json"):
        emit("stockade.plan-gc.v1", {"removed": list(gone), "dry_run": parsed.flag("dry_run")})
        return 0
    say(f"{len(gone)} plan{'' if len(gone) == 1 else 's'} {'would be ' if parsed.flag('dry_run') else ''}removed")
    for digest in gone:
        say(f"  {clean(digest)}")
    return 0
