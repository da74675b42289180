"""Timing of spawns: interleaved runs, medians, no shell and no Python in between.

Owns: how a spawn is timed (posix_spawn to wait, so that the parent's own size
does not count) and what a failed run means: the benchmark stops, because a
refused launch is fast and would win.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One command line to time; ``rewind``: descriptors that each run inherits and reads from the start."""

    argv: Sequence[str]
    env: Mapping[str, str]
    rewind: Sequence[int] = field(default=())


def spawn(contestant: Contestant) -> int:
    """Start one run and return its pid."""
    return os.posix_spawn(contestant.argv[0], list(contestant.argv), dict(contestant.env))


@contextlib.contextmanager
def inherited(fds: Sequence[int]) -> Iterator[None]:
    """Hand descriptors, at their start, to one run and to no other."""
    for fd in fds:
        os.lseek(fd, 0, os.SEEK_SET)
        os.set_inheritable(fd, True)
    try:
        yield
    finally:
        for fd in fds:
            os.set_inheritable(fd, False)


def reap(pid: int, argv: Sequence[str]) -> None:
    """Wait for one run; stop the benchmark when it failed."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        raise RuntimeError(
            f"bench_failed: run of '{argv[0]}': got status {status}, expected 0: {' '.join(argv)[:2000]}"
        )


def once(contestant: Contestant) -> float:
    """Time one run in milliseconds."""
    with inherited(contestant.rewind):
        start = time.perf_counter_ns()
        reap(spawn(contestant), contestant.argv)
        return (time.perf_counter_ns() - start) / 1e6


def interleave(contestants: Mapping[str, Contestant], runs: int) -> dict[str, float]:
    """Time all in turn, in a new random order each round, and return the medians in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    order = list(contestants)
    for name in order:
        once(contestants[name])  # warm: page cache, dentries
    for _ in range(runs):
        random.shuffle(order)
        for name in order:
            times[name].append(once(contestants[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def interleave_calls(calls: Mapping[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """The same for functions of this process."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for name in order:
        calls[name]()
    for _ in range(runs):
        random.shuffle(order)
        for name in order:
            start = time.perf_counter_ns()
            calls[name]()
            times[name].append((time.perf_counter_ns() - start) / 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def throughput(contestant: Contestant, workers: int, seconds: float) -> float:
    """Spawns per second with so many at a time."""
    deadline = time.perf_counter() + seconds
    counts = [0] * workers
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            while time.perf_counter() < deadline:
                once(contestant)
                counts[index] += 1
        except RuntimeError as error:
            failures.append(error)

    start = time.perf_counter()
    join_all([threading.Thread(target=work, args=(index,)) for index in range(workers)])
    if failures:
        raise failures[0]
    return sum(counts) / (time.perf_counter() - start)


def at_once(contestant: Contestant, threads: int, each: int) -> int:
    """Start ``each`` runs from every thread at the same moment; return how many failed."""
    barrier = threading.Barrier(threads)
    failed = [0] * threads

    def work(index: int) -> None:
        barrier.wait(timeout=60)
        pids = [spawn(contestant) for _ in range(each)]
        for pid in pids:
            failed[index] += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0

    join_all([threading.Thread(target=work, args=(index,)) for index in range(threads)])
    return sum(failed)


def join_all(threads: Sequence[threading.Thread]) -> None:
    """Start all threads and wait for them."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
