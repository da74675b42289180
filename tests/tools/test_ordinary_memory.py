"""Threads, shared memory, data bases: what programs ask of memory, files and each other."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from requirements import requirement
from support.actors import PYTHON, Actor
from tools.ordinary import Job, at_work, script
from tools.support import Tool
from tools.table import measured

EVERY = ("strict", "guarded", "standard")
THREADS = """import java.util.concurrent.*;
public class Threads {
    public static void main(String[] a) throws Exception {
        int count = 2000;
        CountDownLatch all = new CountDownLatch(count), go = new CountDownLatch(1);
        for (int i = 0; i < count; i++) new Thread(() -> { all.countDown(); try { go.await(); } catch (InterruptedException e) { } }).start();
        all.await();
        System.out.println("alive together " + (Thread.activeCount() >= count));
        go.countDown();
    }
}
"""
POOL = """import multiprocessing as m
from multiprocessing import shared_memory

def fill(name, start):
    block = shared_memory.SharedMemory(name=name)
    block.buf[start:start + 1000] = bytes([start // 1000 % 251]) * 1000
    block.close()

def add(lock, total):
    for _ in range(200):
        with lock:
            total.value += 1

if __name__ == "__main__":
    for way in ("fork", "spawn", "forkserver"):
        c = m.get_context(way)
        block = shared_memory.SharedMemory(create=True, size=100_000)
        with c.Pool(3) as pool:
            pool.starmap(fill, [(block.name, n * 1000) for n in range(100)])
        assert all(block.buf[n * 1000 + 999] == n % 251 for n in range(100))
        block.close(); block.unlink()
        lock, total, queue = c.Lock(), c.Value("i", 0), c.Queue()
        workers = [c.Process(target=add, args=(lock, total)) for _ in range(4)]
        [w.start() for w in workers]; [w.join() for w in workers]
        queue.put("through a queue")
        with c.Manager() as manager:
            shared = manager.dict(x=1)
            print(way, total.value, queue.get(), shared["x"])
"""
WAL = """import os, sqlite3, sys
def connect():
    made = sqlite3.connect("data.db", timeout=30, isolation_level=None)
    assert made.execute("pragma journal_mode=wal").fetchone() == ("wal",)
    return made
if len(sys.argv) > 1:
    base = connect()
    for number in range(100):
        base.execute("insert into t values (?)", (os.getpid(),))
    sys.exit()
import subprocess
base = connect()
base.execute("create table t (who int)")
reader = connect()
reader.execute("begin"); before = reader.execute("select count(*) from t").fetchone()
writers = [subprocess.Popen([sys.executable, __file__, "write"]) for _ in range(2)]
assert [w.wait() for w in writers] == [0, 0]
print("a snapshot stays", before == reader.execute("select count(*) from t").fetchone())
print("rows", *base.execute("select count(*), count(distinct who) from t").fetchone(), os.path.exists("data.db-shm"))
"""


@requirement("E.memory")
def test_a_jvm_with_two_thousand_threads(actor: Actor, debian: Callable[..., Tool]) -> None:
    debian("javac", "default-jdk-headless")
    at_work(actor, Job(tool="java, 2000 threads", files={"Threads.java": THREADS}, lay="javac Threads.java",
                       argv=["java", "Threads"], shows="alive together true", tiers=EVERY))


@requirement("E.memory")
def test_multiprocessing_with_locks_queues_and_shared_memory(actor: Actor) -> None:
    lines = "fork 800 through a queue 1\nspawn 800 through a queue 1\nforkserver 800 through a queue 1\n"
    at_work(actor, Job(tool="multiprocessing", files={"pool.py": POOL}, argv=[PYTHON, "pool.py"], shows=lines, tiers=EVERY))


@requirement("E.memory")
def test_two_processes_write_one_sqlite_base_ahead_of_a_reader(actor: Actor) -> None:
    at_work(actor, Job(tool="sqlite, write-ahead log", files={"wal.py": WAL}, argv=[PYTHON, "wal.py"],
                       shows="a snapshot stays True\nrows 200 2 True\n", tiers=EVERY))


@requirement("E.streams")
def test_a_device_named_stdout_that_is_a_file(actor: Actor) -> None:
    """The descriptors are files of the workspace: their names below /dev open them again."""
    inner = "echo by-descriptor; echo by-name > /dev/stdout; echo by-number > /proc/self/fd/1; echo error > /dev/stderr; cat /dev/stdin"
    outer = f"echo input > in; sh -c '{inner}' < in >> out 2> err; cat out err"
    at_work(actor, Job(tool="/dev/stdout is a file", argv=script(outer), shows="by-number\ninput\nerror\n", tiers=EVERY))


@requirement("E.streams")
@pytest.mark.parametrize("tier", EVERY)
def test_standard_output_redirected_to_a_file_outside_the_grants(actor: Actor, tier: str) -> None:
    """As a shell does with ``stockade run … > file``: the name opens what the descriptor is."""
    path, source = f"{actor.elsewhere}/redirected", actor.put(f"{actor.elsewhere}/source", "written\n")
    gap = "root-opens-stdout-by-name" if actor.is_root else None
    with measured("/dev/stdout > elsewhere", actor.name, tier, gap):
        for words in (["tee", "/dev/stdout"], ["cp", "/dev/stdin", "/dev/stdout"], ["sh", "-c", "cat > /dev/stdout"]):
            actor.put(path, "")
            with open(actor.host(path), "r+b") as out, open(actor.host(source), "rb") as given:
                child = actor.live(words, tier=tier, stdin=given, stdout=out, stderr=subprocess.PIPE)
                _, err = child.communicate(timeout=60)
            opened = child.returncode == 0 and actor.host(path).read_text(encoding="utf-8") == "written\n"
            assert opened is (gap is None) and (gap is None or b"Permission denied" in err), (words, child.returncode, err)
