"""Becoming the launcher: for a command line that has nothing to do after the end of the box.

Owns: whether that is so, and the last step. Apart from ``attend.py``, whose signals and receipts such a
start would load for nothing. Fails closed: as ``_exec.become``. Read next: ``_exec.py``.
"""

from __future__ import annotations

from stockade.frozen import replace
from stockade.process import _exec
from stockade.process.prepare import Prepared, launch_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def must_stay(prepared: Prepared) -> bool:
    """Tell whether something has to be done after the end of the box, whoever watches."""
    return prepared.compiled is not None and prepared.compiled.tmp_disk


def become(prepared: Prepared, *, quiet: bool) -> NoReturn:
    """Replace this process by the launcher, which says what is lost unless ``quiet``.

    Raises: Error when it cannot be started.
    """
    _exec.become(replace(launch_of(prepared, {}), quiet=quiet))
