"""Compile a request without starting anything: what the tests of plans share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from stockade.decision import Decision
from stockade.frozen import replace
from stockade.host import facts
from stockade.plan.compile import Compiled, compile_plan
from stockade.rules.request import build_request
from stockade.rules.resolve import resolve


def compiled(cwd: Path, *, as_user: bool = True, stored: bool = False, **options: Any) -> Compiled:
    """Compile a request, by default as a caller whose ids are its own."""
    options = {"tier": "strict", "caller": "repository", "cwd": cwd, **options}
    resolved = resolve(build_request(options.pop("args", ["/bin/true"]), **options))
    host = facts.gather(6, sys.executable)
    if as_user:
        host = replace(host, has_sys_admin=False)
    decision = Decision(kind="wrap", row="D2", tier=resolved.tier, requested_tier=str(resolved.tier), active_tier=None,
                        tier_known=True, effective_tier=str(resolved.tier), env_tier=resolved.tier)
    return compile_plan(resolved, host, decision, stored=stored)


def rows(result: Compiled, kind: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the rows of a plan by target."""
    return {row["target"]: row for row in result.plan["mounts"] if kind is None or row["kind"] == kind}


def promise(result: Compiled, name: str) -> str | None:
    """Return the state that a plan gives a promise before the launch."""
    state: str | None = next(row["state"] for row in result.plan["promises"] if row["id"] == name)
    return state
