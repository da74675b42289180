"""Attacks on the environment, on processes, sockets, shared objects and the network.

Owns: the ``env.*``, ``proc.*``, ``ipc.*`` and ``net.policy`` promises. Success is a planted value
that came back, a signal that arrived, a priority that changed, a process that stayed.
Read next: ``victim.py`` (what is attacked), ``catalogue.py``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

from stockade.prove import samples
from stockade.prove.model import Answer, Attack
from stockade.prove.on_files import Seen, answered
from stockade.prove.stage import Stage


def environment(stage: Stage) -> Iterator[Attack]:
    """Yield the attacks on variables."""
    for item in stage.variables:
        yield Attack(promise=item.promise, name=f"read ${item.name}", tiers=item.tiers, seen=_returned(item.value),
                     op={"op": "environment", "needle": item.value})
    first = stage.variables[0]
    yield Attack(promise=first.promise, name="read the environment that the box's parent began with",
                 seen=_returned(first.value), op={"op": "parent_environment", "needle": first.value})


def attacks(stage: Stage) -> Iterator[Attack]:
    """Yield the attacks on everything outside that lives."""
    yield from _control(stage)
    yield from _invisible(stage)
    yield from _reaped(stage)
    yield from _isolated(stage)
    yield from _sockets(stage)
    yield Attack(promise="net.policy", name="reach a server on the loopback of the host", seen=_said,
                 op={"op": "connect_tcp", "port": stage.victim["port"]})


def _returned(value: str) -> Seen:
    return lambda stage, got: f"found: {got.value}" if value in str(got.value) else ""


def _said(stage: Stage, got: Answer) -> str:
    """What only the process outside knows came back."""
    return f"got {stage.memory!r}" if stage.memory in str(got.value) else ""


def _control(stage: Stage) -> Iterator[Attack]:
    promise, pid = "proc.no_control", stage.victim["pid"]
    memory = {"pid": pid, "address": stage.victim["address"], "length": len(stage.memory)}
    for name, op in (("read the memory of a host process", "memory_file"),
                     ("read it by process_vm_readv", "memory_call"), ("trace it", "trace")):
        yield Attack(promise=promise, name=name, seen=_said, op={"op": op, **memory})
    for name, tail in (("environment", "environ"), ("open file", f"fd/{stage.victim['descriptor']}")):
        yield Attack(promise=promise, name=f"read its {name}", seen=_said,
                     op={"op": "read_start", "path": f"/proc/{pid}/{tail}"})
    yield Attack(promise=promise, name="open the memory of the parent, in a box its init", seen=answered,
                 op={"op": "parent_memory"})
    yield Attack(promise=promise, name="signal it", seen=_signalled,
                 op={"op": "kill", "pid": pid, "signal": int(signal.SIGUSR1)})


def _signalled(stage: Stage, got: Answer) -> str:
    return f"the signal reached process {stage.victim['pid']}" if stage.signalled() else ""


def _invisible(stage: Stage) -> Iterator[Attack]:
    promise, pid = "proc.invisible", stage.victim["pid"]
    yield Attack(promise=promise, name="find a host process by its command line", seen=_returned(stage.argument),
                 op={"op": "command_lines", "needle": stage.argument})
    yield Attack(promise=promise, name="lower its priority", seen=_lowered, before=_look,
                 op={"op": "lower_priority", "pid": pid})


def _look(stage: Stage) -> None:
    stage.nice = os.getpriority(os.PRIO_PROCESS, stage.victim["pid"])


def _lowered(stage: Stage, got: Answer) -> str:
    pid = stage.victim["pid"]
    now = os.getpriority(os.PRIO_PROCESS, pid)
    return f"priority of process {pid} went from {stage.nice} to {now}" if now > stage.nice else ""


def _reaped(stage: Stage) -> Iterator[Attack]:
    for shape, name in (("plain", "leave a process behind"), ("killed", "outlive the supervisor")):
        yield Attack(promise="proc.reaped", name=name, seen=_left, late=True, shape=shape,
                     op={"op": "stay", "fifo": stage.fifo})
    yield Attack(promise="limits", name="run on past the wall clock", seen=_overran, late=True, shape="wall",
                 peer=False, op={"op": "stay", "fifo": stage.fifo})


def _left(stage: Stage, got: Answer) -> str:
    return "a process lives after the end" if got.left else ""


def _overran(stage: Stage, got: Answer) -> str:
    if got.left or got.receipt is None:
        return "a process lives after the limit"
    return "" if got.receipt.outcome == "timed_out" else f"the end is called {got.receipt.outcome!r}, not timed_out"


def _isolated(stage: Stage) -> Iterator[Attack]:
    promise = "ipc.isolated"
    ops = (("shm", "System V shared memory", {"op": "shared_memory", "key": stage.key, "length": 32}, _said),
           ("sem", "System V semaphores", {"op": "semaphores", "key": stage.key}, answered),
           ("msg", "a System V queue", {"op": "messages", "key": stage.key}, answered),
           ("queue", "a POSIX queue", {"op": "posix_queue", "name": f"/{stage.name}"}, answered),
           ("file", "POSIX shared memory", {"op": "read", "path": f"/dev/shm/{stage.name}"}, _said))
    for made, name, op, seen in ops:
        if stage.has(made):
            yield Attack(promise=promise, name=f"open {name} of the host", seen=seen, op=op)
    for shape in ("plain", "net"):
        more = ", on the host's network" if shape == "net" else ""
        yield Attack(promise=promise, name=f"talk to an abstract socket{more}", seen=_said, shape=shape,
                     op={"op": "connect_abstract", "name": stage.name})


def _sockets(stage: Stage) -> Iterator[Attack]:
    for shape in ("plain", "net"):
        more = ", on the host's network" if shape == "net" else ""
        for directory, names in ((stage.runtime, samples.RUNTIME_SOCKETS), (stage.home, samples.HOME_SOCKETS)):
            place = "$XDG_RUNTIME_DIR" if directory == stage.runtime else "~"
            for name in names:
                path = f"{directory}/{name}"
                if stage.has(path):
                    yield Attack(promise="ipc.sockets", name=f"talk to {place}/{name}{more}", seen=_said, shape=shape,
                                 op={"op": "connect", "path": path})
