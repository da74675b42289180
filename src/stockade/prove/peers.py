"""Other sandboxes in which ``prove --against`` tries the same attacks.

Owns: how each is started, with the policy that people give it for an agent: the project writable, the rest of
the machine readable, no network, and what its own pages tell to deny. They promise nothing here: what works
in them is counted. Fails closed: a name that nobody knows and a program that is not there are errors.
Read next: ``sessions.py``, which talks to the attack program.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence

from stockade.errors import ConfigError, Refused, nearest
from stockade.paths import atomic_write
from stockade.prove.stage import Stage

Line = Callable[[str, Stage, Sequence[str]], list[str]]


def bubblewrap(program: str, stage: Stage, shown: Sequence[str]) -> list[str]:
    """bwrap(1) with a private /tmp, in which ``shown`` stays visible."""
    ours = [word for path in shown for word in ("--ro-bind", path, path)]
    return [program, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", *ours, "--bind",
            stage.project, stage.project, "--unshare-all", "--die-with-parent", "--new-session", "--chdir",
            stage.project]


def sandbox_runtime(program: str, stage: Stage, shown: Sequence[str]) -> list[str]:
    """The Node sandbox runtime with keys and cloud credentials denied, as its README has it."""
    settings = f"{stage.state}/srt-settings.json"
    rules = {"network": {"allowedDomains": [], "deniedDomains": []},
             "filesystem": {"denyRead": ["~/.ssh", "~/.aws"], "allowWrite": [stage.project], "denyWrite": []}}
    atomic_write(settings, json.dumps(rules).encode())
    return [program, "--settings", settings]


PEERS: Mapping[str, Line] = {"bwrap": bubblewrap, "srt": sandbox_runtime}


def peer(name: str) -> tuple[str, Line]:
    """Return the program of a peer, and what makes its command line.

    Raises: Refused ``prove_unsupported``, ConfigError ``peer_missing``.
    """
    if name not in PEERS:
        raise Refused("prove_unsupported", f"--against: got {name!r}, expected {' or '.join(PEERS)}",
                      hint=nearest(name, tuple(PEERS)))
    program = shutil.which(name)
    if program is None:
        raise ConfigError("peer_missing", f"{name}: got no such program on PATH, expected one")
    return program, PEERS[name]


def family(pid: int) -> list[int]:
    """Return pidfds of all that a process has started and that still lives below it.

    A peer that is killed may leave helpers of its own behind, which nobody could name afterwards.
    """
    found: list[int] = []
    for child in _children(pid):
        try:
            found.append(os.pidfd_open(child))
        except ProcessLookupError:
            continue
        found += family(child)
    return found


def _children(pid: int) -> list[int]:
    """Source: proc_pid_task(5), ``children``."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as stream:
            return [int(word) for word in stream.read().split()]
    except OSError:
        return []


def end(family_fds: Iterable[int]) -> None:
    """Kill what is left of a family, and close its pidfds."""
    for number in family_fds:
        try:
            signal.pidfd_send_signal(number, signal.SIGKILL)
        except OSError:
            pass  # it has ended, or is somebody else's by now: never a process that took its number
        os.close(number)
