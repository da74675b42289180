"""Stockade runs a subprocess at the isolation tier its caller asked for, or says why not.

Start reading at ``stockade.process.api`` (what ``run`` does, step by step), then
``stockade.decision`` and ``stockade.rules.promises``. Importing this package starts nothing and
reads nothing; each name is loaded when it is first used.
"""

from __future__ import annotations

import sys

# Type checkers know this name; importing ``typing`` for it would be most of the cost of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.decision import Decision
    from stockade.environment import EnvPolicy
    from stockade.errors import (
        AuditUnavailable,
        CommandFailed,
        ConfigError,
        Denied,
        DowngradeWarning,
        Error,
        LaunchFailed,
        Refused,
        TimedOut,
    )
    from stockade.host.active import Active, active
    from stockade.process.aio import run_async, spawn
    from stockade.process.api import Completed, Popen, decide, run, wrap
    from stockade.process.receipt import Receipt
    from stockade.process.sandbox import Sandbox
    from stockade.rules.firstparty import register_first_party
    from stockade.rules.promises import PROMISES, Promise
    from stockade.rules.tiers import Tier

__version__ = "0.1.0"

_HOME = {
    "Active": "host.active", "active": "host.active",
    "AuditUnavailable": "errors", "CommandFailed": "outcomes", "ConfigError": "errors", "Denied": "errors",
    "DowngradeWarning": "errors", "Error": "errors", "LaunchFailed": "errors", "Refused": "errors",
    "TimedOut": "outcomes",
    "Completed": "process.api", "Popen": "process.api", "decide": "process.api", "run": "process.api",
    "wrap": "process.api",
    "Decision": "decision", "EnvPolicy": "environment",
    "PROMISES": "rules.promises", "Promise": "rules.promises", "Tier": "rules.tiers",
    "Receipt": "process.receipt", "Sandbox": "process.sandbox",
    "register_first_party": "rules.firstparty",
    "run_async": "process.aio", "spawn": "process.aio",
}

__all__ = [
    "PROMISES", "Active", "AuditUnavailable", "CommandFailed", "Completed", "ConfigError", "Decision",
    "Denied", "DowngradeWarning", "EnvPolicy", "Error", "LaunchFailed", "Popen", "Promise", "Receipt",
    "Refused", "Sandbox", "Tier", "TimedOut", "__version__", "active", "decide", "register_first_party", "run",
    "run_async", "spawn", "wrap",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562), so that the import itself stays light."""
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if sys.platform != "linux" and (module.startswith("process.") or name == "active"):
        from stockade.elsewhere import stand_in

        value = stand_in(name)
    else:
        value = getattr(__import__(f"{__name__}.{module}", fromlist=(name,)), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
