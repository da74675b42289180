"""A box in front of a person: run it to its end and stay out of its way.

Owns: what must happen while and after a command runs when this process cannot simply become the
launcher, because a receipt or a line about the end is wanted. The supervisor leads a group of its
own and is given the terminal, as a shell does with a job: keys reach the box alone. Its stops are
followed, so that the shell around us sees one job, and signals that somebody sent to us are passed
on. Fails closed: if this process dies, the box does.
Read next: ``_exec.py``, ``launcher/src/terminal.rs``.
"""

from __future__ import annotations

import os
import signal

from stockade.errors import Error, LaunchFailed
from stockade.frozen import dataclass, replace
from stockade.light import Iterable
from stockade.process import _exec, tmpdisk
from stockade.process.prepare import Prepared, launch_of
from stockade.process.receipt import Receipt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WATCHED = frozenset({
    signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1,
    signal.SIGUSR2, signal.SIGCONT, signal.SIGWINCH, signal.SIGCHLD,
})
# Blocked so that the terminal can be taken back from the background (tcsetpgrp(3)).
_BLOCKED = _WATCHED | {signal.SIGTTOU}
_ENDS = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP})
_STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGSTOP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How it went: ``status`` as ``subprocess`` has it, or the error that kept it from starting.

    ``told``: the launcher has printed the line of the error itself.
    """

    status: int = 0
    receipt: Receipt | None = None
    error: Error | None = None
    told: bool = False


def attend(prepared: Prepared, *, trace_fd: int | None = None, **popen: Any) -> Ended:
    """Run the command to its end with our own standard streams, or those that are given.

    Args: trace_fd: a memory file for the launcher's tracer (``watched.py``).
    """
    tmp = tmpdisk.make(prepared)
    try:
        launch = replace(launch_of(prepared, {}, tmp), gated=True, trace_fd=trace_fd)
        with _exec.Box(launch, defer=True, process_group=0, **popen) as box, Console(box.pid) as console:
            # It looks at the terminal once: it must have it by then.
            box.release()
            return _attend(box, console)
    finally:
        tmpdisk.remove(tmp)


class Console:
    """The controlling terminal, if there is one, between our group and the supervisor's."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._own = os.getpgrp()
        self._given = False
        try:
            self._tty = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            self._tty = -1

    def give(self) -> None:
        """Hand the terminal to the supervisor when it is ours to give."""
        try:
            if self._tty >= 0 and os.tcgetpgrp(self._tty) == self._own:
                os.tcsetpgrp(self._tty, self._group)
                self._given = True
        except OSError:
            return  # hung up, or the supervisor has ended already

    def take(self) -> None:
        """Take back what was given, from whoever in the box has it."""
        given, self._given = self._given, False
        try:
            if given:
                os.tcsetpgrp(self._tty, self._own)
        except OSError:
            return

    def __enter__(self) -> Console:
        self.give()
        return self

    def __exit__(self, *_: object) -> None:
        if self._tty >= 0:
            os.close(self._tty)


def _attend(box: _exec.Box[Any], console: Console) -> Ended:
    # Blocked only now: the launcher keeps the mask it was started with for the command.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        try:
            box.wait_started()
        except Error as error:
            return _not_started(error, box)
        _follow(box, console)
        return Ended(status=box.wait(), receipt=box.receipt)
    finally:
        console.take()
        # What came meanwhile was for the command, which has had it; unblocking must not end us
        # before the receipt is written.
        _drain(_BLOCKED)
        signal.signal(signal.SIGCHLD, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _not_started(error: Error, box: _exec.Box[Any]) -> Ended:
    """A key of the terminal may have come before there was a box: this program then ends by it, too."""
    status = error.returncode if isinstance(error, LaunchFailed) and not box.decided else None
    if status is not None and -status in _ENDS:
        return Ended(status=status)
    return Ended(error=error, told=box.decided)


def _follow(box: _exec.Box[Any], console: Console) -> None:
    """Wait for the supervisor's end; stop when it stops."""
    while True:
        try:
            state = os.waitid(os.P_PID, box.pid, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return  # our caller ignores SIGCHLD and the supervisor ended before we did not
        if state is not None and state.si_code not in (os.CLD_STOPPED, os.CLD_TRAPPED):
            return
        if state is not None:
            os.waitid(os.P_PID, box.pid, os.WSTOPPED | os.WNOHANG)
            _stop_too(box, console, state.si_status)
            continue
        number = signal.sigwaitinfo(_WATCHED).si_signo
        if number not in (signal.SIGCHLD, signal.SIGCONT):
            box.send_signal(number)


def _stop_too(box: _exec.Box[Any], console: Console, number: int) -> None:
    """Stop this process as the supervisor stopped; when we are continued, so is it."""
    if number not in _STOPS:
        return
    console.take()
    stop = signal.Signals(number)
    if stop == signal.SIGSTOP:
        os.kill(os.getpid(), stop)
    else:
        _drain({stop})
        os.kill(os.getpid(), stop)
        # Delivered here, and only here: the process stops inside this call.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {stop})
        signal.pthread_sigmask(signal.SIG_BLOCK, {stop} & _BLOCKED)
    console.give()
    box.send_signal(signal.SIGCONT)


def _drain(numbers: Iterable[int]) -> None:
    while signal.sigtimedwait(frozenset(numbers), 0) is not None:
        continue
