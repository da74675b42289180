"""The errors of a command that ran: out of time, or ended with another status than 0.

Each is also the error of ``subprocess`` that its reader expects. They stand apart from
``errors.py`` because a start that ends in another program never needs ``subprocess``, which costs
3 ms. Fails closed: neither carries a value of the environment or an argument but argv[0].
"""

from __future__ import annotations

import subprocess

from stockade.errors import Error
from stockade.light import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class TimedOut(Error, subprocess.TimeoutExpired):
    """The wall-clock limit ended the box; also a ``subprocess.TimeoutExpired``."""

    _fields = ("cmd", "timeout", "output", "stderr", "receipt")

    def __init__(self, cmd: Sequence[Any], timeout: float, *, output: Any = None,
                 stderr: Any = None, receipt: Any = None) -> None:
        Error.__init__(self, "timed_out", f"box of {name_of(cmd)}: ran longer than {timeout} s")
        self.cmd = cmd
        self.timeout = timeout
        self.output = output
        self.stderr = stderr
        self.receipt = receipt

    __str__ = Error.__str__


class CommandFailed(Error, subprocess.CalledProcessError):
    """The command ended with a status other than 0; also a ``subprocess.CalledProcessError``."""

    _fields = ("returncode", "cmd", "output", "stderr", "receipt")

    def __init__(self, returncode: int, cmd: Sequence[Any], *, output: Any = None,
                 stderr: Any = None, receipt: Any = None) -> None:
        how = f"signal {-returncode}" if returncode < 0 else f"status {returncode}"
        Error.__init__(self, "command_failed", f"{name_of(cmd)}: ended with {how}, expected status 0")
        self.returncode = returncode
        self.cmd = cmd
        self.output = output
        self.stderr = stderr
        self.receipt = receipt

    __str__ = Error.__str__


def name_of(cmd: Sequence[Any]) -> str:
    # Only argv[0]: later arguments may hold a secret, and errors are printed and logged.
    first = cmd if isinstance(cmd, (str, bytes)) else (cmd[0] if cmd else "")
    return repr(first.decode("utf-8", "backslashreplace") if isinstance(first, bytes) else str(first))
