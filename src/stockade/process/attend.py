"""A box in front of a person: run it to its end and stay out of its way.

Owns: what must happen while and after a command runs when this process cannot simply become the
launcher, because a receipt or a line about the end is wanted. The terminal belongs to the
supervisor; here stops are followed, so that a shell sees one job, and signals that a process sent
to us are passed on. Fails closed: if this process dies, the box does.
Read next: ``_exec.py``, ``launcher/src/terminal.rs``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import NoReturn

from stockade.errors import Error
from stockade.frozen import dataclass
from stockade.process import _exec, tmpdisk
from stockade.process.api import launch_of
from stockade.process.prepare import Prepared
from stockade.process.receipt import Receipt

# The terminal sends the first three to the whole group, the supervisor's included.
_WATCHED = frozenset({
    signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1,
    signal.SIGUSR2, signal.SIGCONT, signal.SIGWINCH, signal.SIGCHLD,
})
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


def become(prepared: Prepared) -> NoReturn:
    """Replace this process by the launcher. Raises: Error when it cannot be started."""
    _exec.become(launch_of(prepared, {}))


def must_stay(prepared: Prepared) -> bool:
    """Tell whether something has to be done after the end of the box, whoever watches."""
    return prepared.compiled is not None and prepared.compiled.tmp_disk


def attend(prepared: Prepared) -> Ended:
    """Run the command to its end with our own standard streams."""
    tmp = tmpdisk.make(prepared)
    try:
        box = _exec.Box(launch_of(prepared, {}, tmp), defer=True)
        with box:
            return _attend(box)
    finally:
        tmpdisk.remove(tmp)


def _attend(box: _exec.Box) -> Ended:
    # Blocked only now: the launcher keeps the mask it was started with for the command.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        try:
            box.wait_started()
        except Error as error:
            return Ended(error=error, told=box.decided)
        _follow(box)
        return Ended(status=box.wait(), receipt=box.receipt)
    finally:
        # What came meanwhile was for the command, which has had it; unblocking must not end us
        # before the receipt is written.
        _drain(_WATCHED)
        signal.signal(signal.SIGCHLD, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _follow(box: _exec.Box) -> None:
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
            _stop_too(box, state.si_status)
            continue
        info = signal.sigwaitinfo(_WATCHED)
        # si_code above 0 is the kernel's: a key of the terminal, which the supervisor has got too.
        if info.si_code <= 0 and info.si_signo != signal.SIGCHLD:
            box.send_signal(info.si_signo)


def _stop_too(box: _exec.Box, number: int) -> None:
    """Stop this process as the supervisor stopped, and let it go on when we go on."""
    if number not in _STOPS:
        return
    stop = signal.Signals(number)
    if stop != signal.SIGSTOP:
        handler = signal.signal(stop, signal.SIG_DFL)
        _drain({stop})
        os.kill(os.getpid(), stop)
        # Delivered here, and only here: the process stops inside this call.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {stop})
        signal.pthread_sigmask(signal.SIG_BLOCK, {stop})
        signal.signal(stop, handler)
    else:
        os.kill(os.getpid(), stop)
    box.send_signal(signal.SIGCONT)


def _drain(numbers: Iterable[int]) -> None:
    while signal.sigtimedwait(frozenset(numbers), 0) is not None:
        continue
