"""What a box costs real work, side by side with no box and with peers: `make bench-tools`.

Owns: the rows that need the registries or minutes, kept apart from `make bench`. The world, the
table and the two callers are those of bench/spawn.py. A tool that cannot be fetched is a row that
says why. Read next: bench/warm.py, bench/inside.py, bench/stuck.py, bench/others.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import inside
import others
import stuck
import warm
from rows import Row, World
from spawn import HERE, NORMAL, USER, print_table, publish, python_of_users, world, write_json

GROUPS: dict[str, Callable[[World, int], Iterator[Row]]] = {
    "stuck": stuck.rows,
    "warm": warm.rows,
    "inside": inside.rows,
    "others": others.rows,
}
FETCHED = {"stuck": stuck.fetch, "warm": warm.fetch, "inside": inside.fetch, "others": others.fetch}
MOUNTS = ("stuck",)  # measured by root, whose boxes are then those of both callers


def phase(base: Path, name: str, runs: int, only: list[str]) -> list[Row]:
    """Measure as the user of this process."""
    sys.path.insert(0, str(base / "src"))
    found = []
    for group, rows in GROUPS.items():
        if only and group not in only:
            continue
        with world(base, name) as place, contextlib.chdir(place.workspace):
            for row in rows(place, runs):
                print(f"  {name:5} {row.text()}", file=sys.stderr, flush=True)
                found.append(row)
    return found


def phase_as(base: Path, user: str, runs: int, only: list[str]) -> list[Row]:
    """Run the phase of an ordinary user in a process of that user."""
    account = pwd.getpwnam(user)
    argv = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--",
            python_of_users(), "-B", str(base / "bench" / "tools.py"), "--phase", str(base), "--runs", str(runs),
            *[part for name in only for part in ("--only", name)]]  # fmt: skip
    given = {name: os.environ[name] for name in warm.FORWARDED if name in os.environ}
    env = {**given, "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True, check=True, cwd="/")
    return [Row(**row) for row in json.loads(done.stdout)]


def measure(runs: int, only: list[str]) -> dict[str, list[Row]]:
    """Fetch the tools, then measure: as an ordinary user, also when root asks."""
    base = Path(tempfile.mkdtemp(prefix="stockade-bench-", dir="/var/tmp"))
    try:
        publish(base)
        (base / "worlds").mkdir()
        (base / "worlds").chmod(0o1777)
        (base / "tools").mkdir()
        for group, fetch in FETCHED.items():
            if not only or group in only:
                fetch(base / "tools")
        subprocess.run(["chmod", "-R", "a+rX", str(base / "tools")], check=True)
        if os.geteuid() != 0:
            return {"user": phase(base, "user", runs, only)}
        chosen = only or list(GROUPS)
        mounts, others_ = [name for name in chosen if name in MOUNTS], [name for name in chosen if name not in MOUNTS]
        return {
            "both": phase(base, "both", runs, mounts) if mounts else [],
            "user": phase_as(base, USER, runs, others_) if others_ else [],
        }
    finally:
        shutil.rmtree(base, ignore_errors=True)


def main() -> int:
    """Measure, print, keep; status 1 when a budget is missed."""
    parser = argparse.ArgumentParser(description="Measure what a box costs real work.")
    parser.add_argument("--runs", type=int, default=300, help="how thorough, in the unit of make bench (default 300)")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "tools.json", help="where the figures go")
    parser.add_argument("--only", action="append", choices=GROUPS, default=[], help="measure only these rows")
    parser.add_argument("--phase", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        answer = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what a tool prints is not the answer
        with answer:
            json.dump([row.as_json() for row in phase(options.phase, "user", options.runs, options.only)], answer)
        return 0
    results = measure(options.runs, options.only)
    print_table(results)
    write_json(options.json, results, runs=options.runs, priority=NORMAL)
    return 1 if any(row.verdict == "FAIL" for rows in results.values() for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
