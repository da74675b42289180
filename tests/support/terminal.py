"""A pseudo terminal with a program on it, as a person at a shell has it.

Owns ``Terminal``: the program becomes the leader of a session whose controlling terminal is the
pty; reads are bounded. Used for the terminal promise and for job control.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shlex
import struct
import subprocess
import termios
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from support.actors import WAIT_S, Actor
from support.live import descendants, state_of, wait_until

# Takes the terminal on standard input as its own, then becomes the program.
TAKE = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"

# Counts interrupts until it is asked. A handler alone would miss one that comes just before the read begins:
# the interpreter runs it after the read; its wake-up descriptor is written at once (signal.set_wakeup_fd).
COUNT = ("import os, select, signal\nr, w = os.pipe()\nos.set_blocking(w, False)\nsignal.set_wakeup_fd(w)\nsignal.signal(2, lambda *a: None)\n"
         "print('ready', flush=True)\nn = 0\nwhile r in select.select([0, r], [], [])[0]:\n"
         "    n += len(os.read(r, 99))\n    os.write(1, b'interrupted ')\nprint('count', n, '.', flush=True)")
# Says something, then reads a line.
LINES = "print('one', flush=True)\nimport sys\nprint('got', sys.stdin.readline().strip(), '.', flush=True)"


class Terminal:
    """The master side of the pty and the program on the other side."""

    def __init__(self, start: Any) -> None:
        """``start(slave, before)`` starts the program with the slave as its standard streams."""
        self.master, slave = pty.openpty()
        self.modes = termios.tcgetattr(self.master)  # before anybody could change them
        try:
            self.process: subprocess.Popen[bytes] = start(slave, ["/usr/bin/python3", "-c", TAKE])
        finally:
            os.close(slave)
        self.seen = b""

    @classmethod
    def bare(cls, actor: Actor, argv: Sequence[str], **kw: Any) -> Terminal:
        """Without a box."""
        return cls(lambda slave, before: actor.spawn([*before, *argv], stdin=slave, stdout=slave, stderr=slave, **kw))

    @classmethod
    def boxed(cls, actor: Actor, argv: Sequence[str], *, tier: str, **kw: Any) -> Terminal:
        """In a box; the launcher itself leads the session."""
        job = {"mode": "exec", "argv": list(argv), "kwargs": actor._grants(tier, None, dict(kw))}
        return cls(lambda slave, before: actor.drive(job, before=before, stdin=slave, stdout=slave, stderr=slave))

    def type(self, text: bytes) -> None:
        """Press keys."""
        os.write(self.master, text)

    def resize(self, rows: int, columns: int) -> None:
        """Change the window size: the kernel sends SIGWINCH to the foreground group."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, text: str) -> str:
        """Everything seen since the last call, up to and with the text."""
        while text.encode() not in self.seen:
            ready, _, _ = select.select([self.master], [], [], WAIT_S)
            try:
                more = os.read(self.master, 65536) if ready else b""
            except OSError:  # EIO: the other side is closed
                more = b""
            if not more:
                raise AssertionError(f"{text!r} did not come; seen {self.seen!r}")
            self.seen += more
        end = self.seen.index(text.encode()) + len(text.encode())
        got, self.seen = self.seen[:end], self.seen[end:]
        return got.decode("utf-8", "replace")

    def pending_input(self) -> int:
        """Characters that wait to be read on the program's side."""
        return struct.unpack("i", fcntl.ioctl(self.master, termios.FIONREAD, b"\0" * 4))[0] if self.process.poll() is None else 0

    def foreground(self) -> int:
        """Process group in the foreground of the terminal."""
        return os.tcgetpgrp(self.master)

    def wait(self) -> int:
        """End status of the program."""
        return self.process.wait(WAIT_S)

    def __enter__(self) -> Terminal:
        """Nothing to do."""
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """Hang up: everything on the terminal ends."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)
        os.close(self.master)


def interrupt(terminal: Terminal) -> str:
    """Press Ctrl-C on ``COUNT`` and ask, once nothing is on its way any more, how often it came."""
    terminal.read_until("ready")
    terminal.type(b"\x03")
    terminal.read_until("interrupted")
    # A signal that is still to be passed on keeps somebody awake.
    top = terminal.process.pid
    wait_until(lambda: {state_of(pid) for pid in (top, *descendants(top))} <= {"S", None}, "everybody sleeps")
    terminal.type(b"\n")
    return terminal.read_until(" .")


def suspend_and_resume(actor: Actor, argv: Sequence[str], env: dict[str, str], then: str = "") -> None:
    """Start ``LINES`` from a shell with job control as a person would, suspend it, go on; ``then``: said at its end."""
    script = actor.put(f"{actor.workspace}/line.sh", f"exec {shlex.join(argv)}\n", 0o755)
    env = {**env, "PS1": "prompt> ", "HISTFILE": ""}
    with Terminal.bare(actor, ["/bin/bash", "--norc", "--noprofile", "-i"], env=env) as terminal:
        terminal.read_until("prompt> ")
        terminal.type(f"sh {script}\n".encode())
        terminal.read_until("one")
        wait_until(lambda: terminal.foreground() != terminal.process.pid, "the program has the terminal")
        terminal.type(b"\x1a")
        terminal.read_until("Stopped")
        terminal.read_until("prompt> ")
        terminal.type(b"echo between\n")
        terminal.read_until("between")
        terminal.read_until("prompt> ")
        terminal.type(b"fg\n")
        wait_until(lambda: terminal.foreground() != terminal.process.pid, "the program has the terminal again")
        terminal.type(b"hello\n")
        assert "got hello ." in terminal.read_until("hello .")
        terminal.read_until(then)
        terminal.read_until("prompt> ")
        terminal.type(b"exit\n")
        assert terminal.wait() == 0
    actor.remove(script)
