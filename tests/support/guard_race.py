#!/usr/bin/python3
"""Moves a guarded file once, at a random moment of each start, and tells what was written without a word.

Usage: guard_race.py LIB JOB, JOB = {"starts", "seed", "place", "kwargs"}; ``place`` is the guarded file. Prints how many
boxes wrote, how many were told, and the silent ones.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
import threading
import time

RENAME_EXCHANGE = 2


def exchange(place):
    libc = ctypes.CDLL(None, use_errno=True)
    at = ctypes.c_int(-100)
    if libc.renameat2(at, place.encode(), at, f"{place}2".encode(), RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), place)


def one(stockade, job, choice):
    """Start one box; True when it wrote, and whether its receipt says that the guard was away."""
    place = job["place"]

    def later(delay):
        time.sleep(delay)
        exchange(place)

    mover = threading.Thread(target=later, args=(0.0005 + choice.random() * 0.006,))
    mover.start()
    script = f"sleep 0.03; echo '#' >> '{place}' && echo WROTE"
    done = stockade.run(["/bin/sh", "-c", script], stdin=subprocess.DEVNULL, capture_output=True, **job["kwargs"])
    mover.join()
    return b"WROTE" in done.stdout, bool(done.receipt.end["guard_lost"])


def main():
    sys.path.insert(0, sys.argv[1])
    import stockade

    job = json.loads(sys.argv[2])
    choice = random.Random(job["seed"])
    for name in (job["place"], f"{job['place']}2"):
        if not os.path.exists(name):
            open(name, "w").close()
    stockade.run(["/bin/true"], **job["kwargs"])
    found = [one(stockade, job, choice) for _ in range(job["starts"])]
    print(json.dumps({"wrote": sum(wrote for wrote, _ in found), "told": sum(told for _, told in found),
                      "silent": sum(wrote and not told for wrote, told in found)}))


main()
