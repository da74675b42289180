"""A box as a child process: the half of the chokepoint that waits.

Owns: the report pipe, the lifetime link to the caller, and the reading of records. No Python runs
between fork and exec: there is no ``preexec_fn``. A command without a box of its own is held in
the same way, so that its caller need not care. Fails closed: a launcher that ends without a
record is ``launch_failed``, also when it ends with status 0; a child's own 125 is never taken for
a refusal, because only the record decides. Read next: ``receipt.py``, ``_exec.py``.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time

from stockade.errors import EXIT_TIMED_OUT, LaunchFailed, Refused
from stockade.process._exec import (
    DEVNULL,
    KILL_SIGNAL,
    Bare,
    Launch,
    above_streams,
    closed_streams,
    command_line,
    env_items,
    sealed_memfd,
    start_error,
)
from stockade.process.receipt import Reader, Receipt, refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, AnyStr
else:
    AnyStr = None  # importing ``typing`` for it costs 3 ms


_STREAMS = ("stdin", "stdout", "stderr")


class Box(subprocess.Popen[AnyStr]):
    """A box as a ``subprocess.Popen``: the process is the supervisor, the status the command's.

    The constructor returns when the launcher has reported: the command runs, or the typed
    refusal is raised. ``defer`` leaves that wait to the caller (the asyncio layer).
    """

    def __init__(self, launch: Launch | Bare, *, defer: bool = False, **popen: Any) -> None:
        self.timed_out = False  # set by whoever ends it for that reason
        self._bare = launch if isinstance(launch, Bare) else None
        self._reader = Reader(() if isinstance(launch, Bare) else launch.degraded)
        self._report: int | None = None
        self._gate: int | None = None
        self._report_lock = threading.RLock()
        check_open(launch.pass_fds)
        # A stream that the caller closed is /dev/null for the command, in a box and without one:
        # a closed number would be given to the first file that it opens.
        for number in closed_streams(launch.pass_fds):
            if popen.get(_STREAMS[number]) is None:
                popen[_STREAMS[number]] = DEVNULL
        if isinstance(launch, Bare):
            self._start_bare(launch, popen)
        else:
            self._start(launch, popen)
        self.args = list(launch.argv)
        if not defer:
            self.wait_started()

    def _start(self, launch: Launch, popen: dict[str, Any]) -> None:
        # (9) Start the launcher: nothing of Python runs between fork and exec.
        opened: list[int] = []
        try:
            plan = sealed_memfd("stockade-plan", launch.plan)
            opened.append(plan)
            self._report, write_end = _pipe()
            opened.append(write_end)
            extra = ["--report-fd", str(write_end)]
            if launch.set_env:
                opened.append(sealed_memfd("stockade-env", env_items(launch.set_env)))
                extra += ["--setenv-fd", str(opened[-1])]
            if launch.gated:
                read_end, self._gate = _pipe()
                opened.append(read_end)
                extra += ["--go-fd", str(read_end)]
            if launch.tied:
                caller = above_streams(os.pidfd_open(os.getpid()))
                opened.append(caller)
                extra += ["--caller-pidfd", str(caller)]
            handed = [*launch.pass_fds, *opened]
            if launch.trace_fd is not None:
                handed.append(launch.trace_fd)
                extra += ["--trace-fd", str(launch.trace_fd)]
            line = command_line(launch, source=["--plan-fd", str(plan)], extra=extra)
            super().__init__(line, pass_fds=handed, **popen)
        except BaseException as err:
            self._close_report()
            self._drop_gate()
            if isinstance(err, OSError):
                raise start_error(err) from err
            raise
        finally:
            for fd in opened:
                os.close(fd)

    def _start_bare(self, bare: Bare, popen: dict[str, Any]) -> None:
        popen = {**popen, "env": dict(bare.env), "cwd": bare.cwd, "pass_fds": bare.pass_fds}
        try:
            super().__init__(list(bare.argv), **popen)
        except OSError as err:
            raise bare.journal.failed(bare.argv[0], err) from err
        self._reader.launch = bare.journal.launch

    def release(self) -> None:
        """Let a gated launcher go on. The byte is the word for it: the end of the pipe alone ends the launcher."""
        if self._gate is None:
            return
        try:
            os.write(self._gate, b"\1")
        except BrokenPipeError:
            pass  # it has ended; its record says why
        self._drop_gate()

    def _drop_gate(self) -> None:
        fd, self._gate = self._gate, None
        if fd is not None:
            os.close(fd)

    def _close_gate(self) -> None:
        """End a launcher that was not let go, before it could say so."""
        if self._gate is not None:
            super().send_signal(signal.SIGKILL)
            self._drop_gate()

    # -- records ---------------------------------------------------------------------------

    @property
    def report_fd(self) -> int | None:
        """The reading end of the report pipe while it is open (for event loops)."""
        return self._report

    @property
    def receipt(self) -> Receipt | None:
        """What is known: the launch record, and the end record once the box has ended."""
        self._drain(block=False)
        return self._reader.receipt()

    @property
    def decided(self) -> bool:
        """True once the launch is known to have succeeded or been refused."""
        return self._reader.decided

    def wait_started(self) -> None:
        """Wait for the launch record.

        Raises: Refused or LaunchFailed; the supervisor is reaped before.
        """
        while not self._reader.decided and self._report is not None:
            self._drain(block=True)
        self.check_started()

    def check_started(self) -> None:
        """Raise the typed error if the launch is known to have failed. Does not wait."""
        if self._reader.launch is not None:
            return
        status = self._reap()
        self._close_streams()
        if self._reader.refused is not None:
            # No name for the error here: with its traceback it would hold this box, and its pipe, until a collection.
            raise _forgetting(refusal(self._reader.refused, status))
        raise LaunchFailed("launch_failed", f"launcher: got status {status} and no record, expected a record",
                           returncode=status)

    def read_report(self) -> bool:
        """Read what is there (event-loop callback). Returns: True at the end of the report."""
        self._drain(block=False)
        return self._report is None

    def _drain(self, *, block: bool) -> None:
        with self._report_lock:
            while self._report is not None:
                if not block and not select_readable(self._report):
                    return
                try:
                    data = os.read(self._report, 1 << 16)
                    self._reader.feed(data)
                except LaunchFailed:
                    self._close_report()
                    self.kill()
                    raise
                # The end record is the last one. Who else holds the pipe, a fork of the caller, is not waited for.
                if not data or self._reader.end is not None:
                    self._close_report()
                elif block:
                    return

    def _close_report(self) -> None:
        fd, self._report = self._report, None
        if fd is not None:
            os.close(fd)

    def _close_streams(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    continue

    # -- the end ---------------------------------------------------------------------------

    def _reap(self) -> int:
        return super().wait()

    def poll(self) -> int | None:
        """Return the command's status, or None while the box lives."""
        self._drain(block=False)
        return self._settle(super().poll())

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the box; reads the report meanwhile, so it can never block the end."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._report is not None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            if select_readable(self._report, left):
                self._drain(block=True)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        status = self._settle(super().wait(left))
        assert status is not None
        return status

    def _settle(self, status: int | None) -> int | None:
        """Where the caller ignores SIGCHLD the kernel keeps no status: the record has it."""
        if self._bare is not None and status is not None and self._reader.end is None:
            self._reader.end = self._bare.journal.ended(status, timed_out=self.timed_out)
        end = self._reader.end
        if status == 0 and end is not None:
            if end.get("exit_code"):
                self.returncode = int(end["exit_code"])
            elif end.get("signal"):
                self.returncode = -int(end["signal"])
            elif end.get("outcome") == "timed_out":
                self.returncode = EXIT_TIMED_OUT
            return self.returncode
        return status

    def send_signal(self, sig: int) -> None:
        """Send a signal to the command through the supervisor; SIGKILL ends the whole box."""
        super().send_signal(KILL_SIGNAL if sig == signal.SIGKILL and self._bare is None else sig)

    def kill(self) -> None:
        """End every process of the box with SIGKILL, through the supervisor."""
        self.send_signal(signal.SIGKILL)

    def __exit__(self, *exc: Any) -> None:
        try:
            self._close_gate()
            super().__exit__(*exc)
        finally:
            self._close_report()

    def __del__(self, *args: Any, **kwargs: Any) -> None:
        if getattr(self, "_gate", None) is not None and getattr(self, "_child_created", False):
            self._close_gate()
        for name in ("_report", "_gate"):
            fd = getattr(self, name, None)
            if fd is not None:
                setattr(self, name, None)
                os.close(fd)
        if getattr(self, "_child_created", False):
            super().__del__(*args, **kwargs)


def _forgetting(error: Refused | LaunchFailed) -> Refused | LaunchFailed:
    """Drop answers and plans of this process that the kernel has just denied; the launcher drops those on disk."""
    from stockade.host import answers, probe
    from stockade.process import prepare

    if isinstance(error, Refused) and error.code in answers.OF_THE_HOST and not error.transient:
        probe.forget()
        prepare.forget()
    return error


def _pipe() -> tuple[int, int]:
    """Return a pipe (reading end, writing end), both above the standard streams."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        read_end = above_streams(read_end)
    except OSError:
        os.close(write_end)
        raise
    try:
        return read_end, above_streams(write_end)
    except OSError:
        os.close(read_end)
        raise


def check_open(fds: tuple[int, ...]) -> None:
    """Refuse to hand over a number that is not open: the next pipe of our own would take it.

    Raises: Refused(fds_denied).
    """
    for fd in fds:
        try:
            os.fstat(fd)
        except OSError:
            raise Refused("fds_denied", f"pass_fds {fd}: got a number that is not open (EBADF)") from None


def select_readable(fd: int, timeout_s: float | None = 0.0) -> bool:
    """Wait until ``fd`` can be read or is at its end; poll(2), because numbers above 1023 occur."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))
