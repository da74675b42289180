"""ipc.isolated: SysV, POSIX queues, shared memory and abstract sockets of the host."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from requirements import at_tiers, requirement
from support.actors import Actor
from support.boxes import Op, failed_with, kept, op, worked


@pytest.fixture
def objects(actor: Actor) -> Iterator[list[Op]]:
    """IPC objects that the host process of the same user holds."""
    base = 0x53540000 + (os.getpid() % 0x4000) + actor.uid % 7 * 16
    queue, shm = f"/stk-{os.getpid()}-{actor.name}", f"/dev/shm/stk-{os.getpid()}"
    ids = actor.agent.do("hold_ipc", base=base, queue=queue, shm_file=shm)
    name = f"stk-abstract-{os.getpid()}-{actor.name}-{os.urandom(3).hex()}"
    actor.agent.do("listen_abstract", name=name)
    yield [op("sysv_get", "shm", kind="shm", key=base + 1), op("sysv_get", "msg", kind="msg", key=base + 2), op("sysv_get", "sem", kind="sem", key=base + 3),
           op("mq_open", "queue", name=queue), op("read", "shm file", path=shm), op("connect_abstract", "abstract", name=name)]
    actor.agent.do("drop_ipc", ids=ids, queue=queue, shm_file=shm)


@requirement("ipc.isolated")
@at_tiers("ipc.isolated")
@pytest.mark.parametrize("net", ["none", "host"])
def test_objects_of_the_host_cannot_be_reached(actor: Actor, objects: list[Op], tier: str, net: str) -> None:
    worked(actor.bare(objects))
    run = actor.box(objects, tier=tier, net=net)
    failed_with({k: v for k, v in run.answers.items() if k != "abstract"}, {"ENOENT"})
    failed_with({"abstract": run.answers["abstract"]}, {"ECONNREFUSED"} if net == "none" else {"EPERM", "EACCES"})
    kept(run, "ipc.isolated", tier)
    reached = [name for name, got in actor.bare(objects).items() if got["errno"] is None]
    assert len(reached) == len(objects), "they were there all the time, unharmed"


@requirement("ipc.isolated")
@at_tiers("ipc.isolated")
def test_the_box_has_ipc_of_its_own(actor: Actor, tier: str) -> None:
    script = ("import multiprocessing as m\nfrom multiprocessing import shared_memory as s\n"
              "x = s.SharedMemory(create=True, size=64)\nl = m.Lock()\nl.acquire()\nl.release()\nx.close()\nx.unlink()\nprint('ok')")
    ops = [op("sysv_own", "sysv"), op("mq_open", "queue", name="/stk-own", create=True), op("create", "shm", path="/dev/shm/own"),
           op("run", "python", argv=["/usr/bin/python3", "-c", script])]
    run = actor.box(ops, tier=tier)
    worked(run.answers)
    assert run.value("python")["out"] == "ok\n", run.value("python")


@requirement("ipc.isolated")
@at_tiers("ipc.isolated")
def test_abstract_sockets_inside_the_box_work(actor: Actor, tier: str) -> None:
    script = ("import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0inside-of-a-box')\ns.listen(1)\n"
              "c = socket.socket(socket.AF_UNIX)\nc.connect('\\0inside-of-a-box')\nprint('ok')")
    for net in ("none", "host"):
        assert actor.run(["/usr/bin/python3", "-c", script], tier=tier, net=net).stdout == "ok\n"
