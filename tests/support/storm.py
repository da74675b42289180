#!/usr/bin/python3
"""Many boxes from one process, as a platform starts them: threads, kills, parallel starts.

Usage: storm.py LIB JOB, JOB = {"spawns", "threads", "kill_every", "seed", "argv", "kwargs"}.
Prints what happened and the open descriptors of this process before and after.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor


def descriptors():
    return {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")}


def one(stockade, job, number, barrier):
    """Start one box; every so often kill its supervisor at a random moment."""
    choice = random.Random(job["seed"] + number)
    barrier.wait()
    try:
        child = stockade.Popen(job["argv"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **job["kwargs"])
    except stockade.Error as error:
        return f"refused {getattr(error, 'code', error)}"
    if job["kill_every"] and number % job["kill_every"] == 0:
        time.sleep(choice.random() * 0.008)
        try:
            os.kill(child.pid, 9)
        except ProcessLookupError:
            pass
        child.wait(30)
        return "killed"
    return f"ended {child.wait(30)}"


class NoBarrier:
    def wait(self):
        return 0


def main():
    sys.path.insert(0, sys.argv[1])
    import stockade

    job = json.loads(sys.argv[2])
    stockade.run(["/bin/true"], **job["kwargs"])
    before = descriptors()
    barrier = threading.Barrier(job["threads"]) if job.get("together") else NoBarrier()
    with ThreadPoolExecutor(job["threads"]) as pool:
        ends = Counter(pool.map(lambda n: one(stockade, job, n, barrier), range(1, job["spawns"] + 1)))
    import gc

    gc.collect()
    after = descriptors()
    new = sorted(target for name, target in after.items() if name not in before and "/proc/" not in target)
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as handle:
        children = handle.read().split()
    json.dump({"ends": dict(ends), "new_descriptors": new, "children": children}, sys.stdout)


if __name__ == "__main__":
    main()
