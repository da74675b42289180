"""Requests that were refused before any launcher was asked: the record of it.

Owns: the ``declined`` record (``schemas/receipt.v1.json``), in the spool or, in a box, told to its supervisor. Fails
closed: a refusal stands whether or not it could be recorded, and what could not be is logged. What asks and starts
nothing (``explain``, ``why``, ``decide``) makes no record. Read next: ``prepare.py``, ``record.py``.
"""

from __future__ import annotations

import os

from stockade.errors import ConfigError, Error, Refused
from stockade.process.prepare import Prepared, prepare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.rules.request import Request


def prepare_to_start(request: Request, *, stored: bool = False) -> Prepared:
    """Do what ``prepare`` does, for something that is to be started; a refusal is on record when it leaves.

    Args: stored: as ``prepare``. Raises: Refused, ConfigError.
    """
    try:
        return prepare(request, stored=stored)
    except (Refused, ConfigError) as err:
        note(request, err)
        raise


def note(request: Request, error: Refused | ConfigError) -> None:
    """Record the refusal; where that cannot be done, say so in the log of this process."""
    if error.code == "state_home_invalid":
        return  # it says itself that there is no place for a record
    try:
        done = _noted(_row(request, error))
    except (OSError, Error) as err:
        done = str(err)
    if done:
        from logging import getLogger  # only what goes wrong is logged

        getLogger("stockade").warning("audit degraded: the refusal %s was not recorded (%s)", error.code, done)


def _noted(row: dict[str, Any]) -> str:
    """Write it; return why not."""
    from stockade.host.active import active
    from stockade.process import record

    if active().where == "box":
        return "" if record.tell_outside(row) else "the box around was not told"
    record.append(_audit(), row)
    return ""


def _audit() -> str:
    """The directory of the spool, made where it is not there; an invalid policy names no place of its own."""
    from stockade.paths import state_home
    from stockade.rules.settings import state_of_policy

    try:
        state = state_of_policy()
    except ConfigError as err:
        if err.code == "state_home_invalid":
            raise
        state = state_home(os.environ, create=False)
    if not os.path.isdir(state.audit):
        state = state_home({**os.environ, "STOCKADE_HOME": state.path}, create=True)
    return state.audit


def _row(request: Request, error: Refused | ConfigError) -> dict[str, Any]:
    from stockade.ids import timestamp
    from stockade.process.receipt import SCHEMA

    return {
        "schema": SCHEMA, "record": "declined", "ts": timestamp(), "decision": "refuse",
        "code": error.code, "message": error.message, "hint": error.hint,
        "reasons": list(getattr(error, "reasons", ())), "missing": list(getattr(error, "missing", ())),
        "transient": bool(getattr(error, "transient", False)), "caller": request.caller,
        "requested_tier": request.tier, "argv0": request.argv[0], "cwd": request.cwd, "pid": os.getpid(),
        "origin": "outside",
    }
