"""What a spawn costs, side by side with bubblewrap in one run: `make bench`.

Owns: the rows of the table, their budgets, and the two callers (an ordinary
user and, when started by root, root). Every figure is a median of interleaved
runs on this machine; a run that fails stops the benchmark. Read next:
bench/measure.py (how it is timed), bench/peers.py (what "equivalent" means).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rows import GROUPS, Row, World, all_rows

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
USER = "nobody"  # an account of every system; owns nothing, and its home is no directory that others use
C_PROGRAMS = ("floor", "minimal_helper", "noop", "pause")


def build(target: Path) -> None:
    """Compile the static helpers."""
    target.mkdir(parents=True, exist_ok=True)
    for name in C_PROGRAMS:
        subprocess.run(
            ["gcc", "-O2", "-static", "-Wall", "-Wextra", "-o", str(target / name), str(HERE / f"{name}.c")], check=True
        )


def python_of_users() -> str:
    """An interpreter that an ordinary user can read."""
    return "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable


def publish(base: Path) -> None:
    """Copy what an ordinary user must be able to read: the package, the launcher, the benchmark."""
    ignore = shutil.ignore_patterns("__pycache__", "results", "build")
    shutil.copytree(ROOT / "src", base / "src", ignore=ignore)
    shutil.copytree(HERE, base / "bench", ignore=ignore)
    build(base / "bench" / "build")
    # Byte code as an installed package has it; the measured runs use -B and write none.
    subprocess.run([python_of_users(), "-m", "compileall", "-q", str(base / "src")], check=True)
    base.chmod(0o755)
    for path in base.rglob("*"):
        path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444))


@contextlib.contextmanager
def world(base: Path, name: str, home: Path | None = None) -> Iterator[World]:
    """Make the home, state home and workspace of one caller, and keep its state there."""
    where = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=base / "worlds"))
    before = dict(os.environ)
    try:
        place = World.make(where, base, home)
        # The product asks its own process where its state is, not the environment of a command.
        os.environ["STOCKADE_HOME"] = place.env["STOCKADE_HOME"]
        yield place
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(where, ignore_errors=True)


def phase(base: Path, name: str, runs: int, only: list[str], *, home: Path | None = None) -> list[Row]:
    """Measure every row as the user of this process."""
    sys.path.insert(0, str(base / "src"))
    with world(base, name, home) as place, contextlib.chdir(place.workspace):
        # A command is run where one works: a tree of its own, the same for both callers.
        rows = []
        os.sync()  # what the machine wrote before is not charged to the first row
        for row in all_rows(place, runs, only):
            print(f"  {name:5} {row.text()}", file=sys.stderr, flush=True)
            rows.append(row)
        return rows


def as_user(user: str) -> list[str]:
    """A process of an ordinary user, whose home is the one that HOME names."""
    account = pwd.getpwnam(user)
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--"]


def as_root() -> list[str]:
    """A process of root with an empty home of its own, where the account has it: two homes are hidden twice."""
    home = pwd.getpwuid(0).pw_dir
    if Path(python_of_users()).resolve().is_relative_to(home):
        raise SystemExit(f"bench: {python_of_users()}: got an interpreter in root's home, expected one elsewhere")
    return ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c",
            'mount -t tmpfs -o mode=700 bench "$0" && exec "$@"', home]  # fmt: skip


def phase_in(before: list[str], base: Path, runs: int, only: list[str]) -> list[Row]:
    """Run the phase in a process of its own, started by that line."""
    argv = [*before, python_of_users(), "-B", str(base / "bench" / "spawn.py"), "--phase", str(base), "--runs", str(runs),
            *[part for name in only for part in ("--only", name)]]  # fmt: skip
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True, check=True, cwd="/")
    return [Row(**row) for row in json.loads(done.stdout)]


def measure(user: str, runs: int, only: list[str]) -> dict[str, list[Row]]:
    """Measure as an ordinary user, and as root too when root asks."""
    base = Path(tempfile.mkdtemp(prefix="stockade-bench-", dir="/var/tmp"))
    try:
        publish(base)
        (base / "worlds").mkdir()
        (base / "worlds").chmod(0o1777)
        if os.geteuid() != 0:
            return {"user": phase(base, "user", runs, only)}
        return {"user": phase_in(as_user(user), base, runs, only), "root": phase_in(as_root(), base, runs, only)}
    finally:
        shutil.rmtree(base, ignore_errors=True)


def print_table(results: dict[str, list[Row]]) -> None:
    """Print the table in Markdown, so that it can be put into a document."""
    print("| caller | what | measured | budget | |")
    print("|---|---|---|---|---|")
    for caller, rows in results.items():
        for row in rows:
            print(f"| {caller} | {row.what} | {row.measured} | {row.budget or '-'} | {row.verdict} |")


def write_json(path: Path, results: dict[str, list[Row]], *, runs: int, priority: str) -> None:
    """Keep the figures, with the machine they belong to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bwrap = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    document = {
        "schema": "stockade.bench.v1", "runs": runs, "kernel": platform.release(), "cpus": os.cpu_count(), "peer": bwrap,
        "priority": priority,
        "results": {caller: [row.as_json() for row in rows] for caller, rows in results.items()},
    }  # fmt: skip
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


NORMAL = "normal priority: whatever else runs on this machine is in the figures"


def undisturbed() -> str:
    """Take real-time priority where that is allowed: other work of the machine stays out of the figures."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    except PermissionError:
        return NORMAL
    return "real-time priority (SCHED_FIFO 50)"


def main() -> int:
    """Measure, print, keep; status 1 when a budget is missed."""
    parser = argparse.ArgumentParser(description="Measure spawning side by side with bubblewrap.")
    parser.add_argument("--runs", type=int, default=300, help="runs of each contestant (default 300)")
    parser.add_argument(
        "--as-user", default=USER, help=f"ordinary account to measure as when started by root (default {USER})"
    )
    parser.add_argument("--json", type=Path, default=HERE / "results" / "spawn.json", help="where the figures go")
    parser.add_argument("--only", action="append", choices=GROUPS, default=[], help="measure only these rows")
    parser.add_argument("--phase", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        name, home = ("root", Path(pwd.getpwuid(0).pw_dir)) if os.geteuid() == 0 else ("user", None)
        rows = phase(options.phase, name, options.runs, options.only, home=home)
        json.dump([row.as_json() for row in rows], sys.stdout)
        return 0
    priority = undisturbed()
    print(f"bench: {priority}", file=sys.stderr)
    results = measure(options.as_user, options.runs, options.only)
    print_table(results)
    write_json(options.json, results, runs=options.runs, priority=priority)
    return 1 if any(row.verdict == "FAIL" for rows in results.values() for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
