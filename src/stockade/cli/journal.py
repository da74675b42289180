"""What a person decides at the command line: in the log before it counts.

Owns: the one way from a command to a critical event (on the disk and under a head when the call returns). Fails
closed: what cannot be recorded is not decided (``audit_unavailable``). Read next: ``stockade.audit.log``.
"""

from __future__ import annotations

import os

from stockade.errors import AuditUnavailable, Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.paths import StateHome


def record(state: StateHome, kind: str, detail: dict[str, Any]) -> None:
    """Write an event of the operator's. Args: kind: a type of the schema. Raises: AuditUnavailable."""
    from stockade.audit.events import made
    from stockade.audit.keys import signer
    from stockade.audit.log import Log
    from stockade.ids import timestamp

    actor = {"caller": "operator", "app": None, "session": None, "uid": os.geteuid(), "pid": os.getpid(), "site": None}
    try:
        log = Log(state.audit, signer=signer(state.keys))
        try:
            log.append([made(kind, "completed", timestamp(), actor=actor, detail=detail)], critical=True)
        finally:
            log.close()
    except Error as err:
        raise AuditUnavailable("audit_unavailable", f"{kind}: {err.message}; without its record it does not count",
                               hint=err.hint) from err
