"""What ordinary work costs inside a box at strict: a C build, `npm ci`, `git status`, `grep -r`.

Owns: the same command bare and as a launch line of strict, in turn, on the same tree; the box's
start is part of the time, and commands of milliseconds are repeated inside one box. Beside both, the
same under one filter and one rule set without a box (floor.c): the kernel's part of the cost. A
command that fails stops the benchmark.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from measure import Contestant, once
from rows import Budget, Row, World, judged
from warm import FORWARDED

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = {"name": "bench", "version": "1.0.0", "private": True,
           "dependencies": {"express": "4.21.2", "typescript": "5.6.3", "webpack": "5.97.1", "lodash": "4.17.21"}}  # fmt: skip
C_CRATE = "lua-src@547.0.0"
MAKEFILE = """OBJECTS := $(patsubst %.c,%.o,$(wildcard *.c))
liblua.a: $(OBJECTS)
\tar rcs $@ $^
%.o: %.c
\t$(CC) -O2 -c -o $@ $<
"""
COPIES = 8  # of the installed packages: the large tree
REPEAT = 10
SHARE = 0.015  # of the bare time, for the box itself where the kernel's part uses up the budget


def fetch(tools: Path) -> None:
    """Fetch the packages of the project and the C sources."""
    project = tools / "project"
    project.mkdir()
    (project / "package.json").write_text(json.dumps(PACKAGE))
    subprocess.run(["npm", "install", "--silent", "--ignore-scripts"], cwd=project, check=True)
    source = tools / "c-source"
    source.mkdir()
    script = f'. {shlex.quote(str(ROOT))}/scripts/lib.sh; use_cargo || exit 1; cd {shlex.quote(str(source))}; export CARGO_HOME=$PWD/home; cargo init -q --name c . && cargo add -q {C_CRATE} && cargo vendor -q >/dev/null'
    subprocess.run(["sh", "-c", script], check=True, capture_output=True, env={"HOME": "/nonexistent", **os.environ})


def rows(world: World, runs: int) -> Iterator[Row]:
    """Every kind of work; each tree is made in the workspace."""
    rounds = max(3, runs // 20)
    given = {name: os.environ[name] for name in FORWARDED if name in os.environ}
    world.env.update(given)
    yield c_build(world, max(3, runs // 30))
    yield npm_ci(world, max(3, runs // 30))
    tree = large_tree(world)
    files = sum(len(names) for _, _, names in os.walk(tree))
    repeat = f"for i in $(seq {REPEAT}); do"
    status = work(world, Work(tree=tree, script=f"{repeat} git status >/dev/null; done", profile="git"), rounds)
    yield overhead(f"git status, {files:,} files", status, 1.03)
    grep = work(world, Work(tree=tree, script="grep -r --exclude-dir=.git some-word-that-is-nowhere . || test $? = 1"), rounds)
    yield overhead(f"grep -r, {files:,} files", grep, 1.35)


def overhead(what: str, times: dict[str, float], limit: float) -> Row:
    """The row of one kind of work."""
    floor = times["floor"] / times["bare"]
    detail = f"{times['strict']:.0f} ms, bare {times['bare']:.0f} ms; a filter and rules alone {floor:.2f} ×"
    budget = Budget(most=limit, unit="×", floor=floor, share=SHARE)
    return judged(f"{what}: inside strict over bare", times["strict"] / times["bare"], budget, times, detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A shell script in a tree; ``before`` undoes what the last run made."""

    tree: Path
    script: str
    profile: str = ""
    before: Callable[[], None] = lambda: None


def work(world: World, job: Work, rounds: int) -> dict[str, float]:
    """Time it bare, boxed and under the floor in turn."""
    import stockade

    tree = str(job.tree)
    argv = ["/bin/sh", "-ec", f"cd {shlex.quote(tree)}; {job.script}"]
    line = stockade.wrap(argv, tier="strict", caller="operator", cwd=tree, write=[tree], net="host",
                         profile=[job.profile] if job.profile else [], env=world.env)  # fmt: skip
    floor = [str(world.base / "bench" / "build" / "floor"), tree, *argv]
    contestants = {"bare": Contestant(argv=argv, env=world.env), "strict": Contestant(argv=line.argv, env=line.env),
                   "floor": Contestant(argv=floor, env=world.env)}  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in contestants}
    order = list(contestants)
    for number in range(rounds + 1):
        random.shuffle(order)
        for name in order:
            job.before()
            taken = once(contestants[name])
            if number:  # the first round warms caches
                times[name].append(taken)
    return {name: statistics.median(values) for name, values in times.items()}


def c_build(world: World, rounds: int) -> Row:
    """Compile Lua with make."""
    tree = world.workspace / "lua"
    source = next((world.base / "tools" / "c-source" / "vendor").glob("lua-src/lua-5.4*"))
    shutil.copytree(source, tree)
    for name in ("luac.c", "onelua.c", "ltests.c"):
        (tree / name).unlink(missing_ok=True)
    (tree / "Makefile").write_text(MAKEFILE)

    def clean() -> None:
        for path in [*tree.glob("*.o"), tree / "liblua.a"]:
            path.unlink(missing_ok=True)

    times = work(world, Work(tree=tree, script="make -s -j2 liblua.a", profile="make", before=clean), rounds)
    return overhead(f"C build, {len(list(tree.glob('*.c')))} files with make -j2", times, 1.03)


def npm_ci(world: World, rounds: int) -> Row:
    """Install a locked project from a warm cache."""
    tree = world.workspace / "project"
    tree.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(world.base / "tools" / "project" / name, tree)
    script = "npm ci --silent --prefer-offline --no-audit --no-fund --ignore-scripts >/dev/null"
    def clean() -> None:
        shutil.rmtree(tree / "node_modules", ignore_errors=True)

    times = work(world, Work(tree=tree, script=script, profile="npm", before=clean), rounds)
    packages = len(list((tree / "node_modules").iterdir()))
    return overhead(f"npm ci, {packages} packages from a warm cache", times, 1.03)


def large_tree(world: World) -> Path:
    """A git repository of copies of the installed packages."""
    tree = world.workspace / "large"
    for number in range(COPIES):
        shutil.copytree(world.base / "tools" / "project" / "node_modules", tree / f"copy{number}", symlinks=True)
    script = "git init -q . && git add -A && git -c user.name=b -c user.email=b@example.invalid commit -q -m tree"
    subprocess.run(["sh", "-ec", script], cwd=tree, env=world.env, check=True, stdout=subprocess.DEVNULL)
    return tree
