"""A file system below / that never answers: does the start of a box wait for it?

Owns: two mount namespaces that differ in that file system alone, and the same launch line started
in both in turn. The host's own mounts are untouched. Mounting needs root; the boxes are those of an
ordinary user and of root.
"""

from __future__ import annotations

import os
import pwd
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from measure import Contestant, interleave
from rows import Budget, Row, World, judged

WITHOUT = "rows of a stuck mount"
USER = "daemon"


def fetch(tools: Path) -> None:
    """Compile the file system."""
    source = Path(__file__).resolve().parent / "stuckfs.c"
    subprocess.run(["gcc", "-O2", "-static", "-Wall", "-Wextra", "-o", str(tools / "stuckfs"), str(source)], check=True)


class Namespace:
    """A private mount namespace that lasts as long as its holder; ``stuck``: with the file system in it."""

    def __init__(self, holder: list[str]) -> None:
        argv = ["unshare", "--mount", "--propagation", "private", "--", *holder]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Namespace:
        assert self.process.stdout
        if self.process.stdout.readline() != b"ready\n":
            raise RuntimeError("bench_failed: mount of a FUSE file system: got no answer, expected /dev/fuse to work")
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()

    def enter(self, uid: int) -> list[str]:
        """Return the words before a command that is to run in it as somebody."""
        who = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"] if uid else []
        return ["/usr/bin/nsenter", f"--mount=/proc/{self.process.pid}/ns/mnt", "--", *who]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whose boxes start, in the two namespaces."""

    name: str
    uid: int
    stuck: Namespace
    free: Namespace


def line(world: World, namespace: Namespace, uid: int, tier: str) -> list[str]:
    """Return the launch line that the account itself compiles, in the stuck namespace."""
    argv = [*namespace.enter(uid), "/usr/bin/python3", "-B", "-m", "stockade", "explain", "--argv", "--tier", tier,
            "--cwd", "/", world.noop]  # fmt: skip
    env = {**world.env, "PYTHONPATH": str(world.base / "src")}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=30)
    return shlex.split(done.stdout)


def rows(world: World, runs: int) -> Iterator[Row]:
    """Both callers at strict and standard, and the command line, which compiles."""
    if os.geteuid() != 0:
        yield Row(what=WITHOUT, measured="not measured: mounting needs root", values={})
        return
    place = world.where / "stuck"
    place.mkdir()
    world.where.chmod(0o755)
    holder = [str(world.base / "tools" / "stuckfs"), str(place)]
    with Namespace(holder) as stuck, Namespace(["sh", "-c", "echo ready; exec cat"]) as free:
        see_that_it_sticks(stuck, place)
        for name, uid in (("user", pwd.getpwnam(USER).pw_uid), ("root", 0)):
            for path in (world.home, world.workspace, world.where / "state"):
                for entry in (path, *path.rglob("*")):
                    os.chown(entry, uid, uid)
            yield from both(world, runs, Caller(name=name, uid=uid, stuck=stuck, free=free))


def both(world: World, runs: int, caller: Caller) -> Iterator[Row]:
    """The rows of one caller."""
    for tier in ("strict", "standard"):
        argv = line(world, caller.stuck, caller.uid, tier)
        yield compare(f"start at {tier}", Contestant(argv=argv, env=world.env), caller, runs)
    argv = ["/usr/bin/python3", "-B", "-m", "stockade", "run", "--quiet", "--cwd", "/", "--", "true"]
    env = {**world.env, "PYTHONPATH": str(world.base / "src")}
    yield compare("stockade run", Contestant(argv=argv, env=env), caller, max(10, runs // 6))


def compare(what: str, start: Contestant, caller: Caller, runs: int) -> Row:
    """One line in both namespaces, in turn."""
    contestants = {
        name: Contestant(argv=[*space.enter(caller.uid), *start.argv], env=start.env)
        for name, space in (("stuck", caller.stuck), ("free", caller.free))
    }
    what = f"{caller.name}: {what} with a stuck mount over without"
    times = interleave(contestants, runs)
    detail = f"{times['stuck']:.2f} ms, {times['free']:.2f} ms"
    return judged(what, times["stuck"] / times["free"], Budget(most=1.10, unit="×"), times, detail)


def see_that_it_sticks(stuck: Namespace, place: Path) -> None:
    """Stop the benchmark if the file system answers: then nothing would be shown."""
    done = subprocess.run([*stuck.enter(0), "timeout", "-s", "KILL", "1", "ls", str(place)], capture_output=True, check=False)
    if done.returncode not in (137, -9):
        raise RuntimeError(f"bench_failed: a look at the stuck file system: got status {done.returncode}, expected to wait for ever")
