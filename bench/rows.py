"""The rows of the spawn table: what is measured against which budget.

Owns: one function for each budget. Every row names its measured figure, its
budget and the verdict; rows without a budget are there to read the others by.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure import Contestant, at_once, interleave, interleave_calls, throughput
from nested import nested_times
from peers import Launch, bubblewrap, minimal, take_apart

MASKS = 10
BIG_HOME = 100_000
GRANTS = (0, 100, 400, 1000)
LIVE_BOXES = 5
# A box that has said its first byte may still be parting with the helpers of its start.
REST_S = 0.1
PEERS = {
    "bubblewrap": "bubblewrap",
    "minimal": "the minimal helper",
    # The budget of standard was set against the policy that the helper of the reference figures builds, strict's.
    "reference": "bubblewrap with strict's mounts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    what: str
    measured: str
    budget: str = ""
    verdict: str = ""
    values: dict[str, float]

    def text(self) -> str:
        """The line for a person who waits."""
        return f"{self.what}: {self.measured}{f' (budget {self.budget})' if self.budget else ''} {self.verdict}"

    def as_json(self) -> dict[str, Any]:
        """The line for a file."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The directories of one caller."""

    base: Path
    where: Path
    home: Path
    workspace: Path
    masks: tuple[Path, ...]
    env: dict[str, str]

    @classmethod
    def make(cls, where: Path, base: Path, home: Path | None = None) -> World:
        """Make them, with the few files that an ordinary home has. ``home``: an empty one that is there already."""
        workspace, state = where / "workspace", where / "state"
        home = home or where / "home"
        masks = tuple(home / f"mask{index}" for index in range(MASKS))
        for path in (home, workspace, state, *masks):
            path.mkdir(mode=0o700, exist_ok=path == home)
        for index in range(10):
            (home / f"file{index}").write_text("x")
        for name in ("noop", "pause"):
            shutil.copy(base / "bench" / "build" / name, workspace)
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(home),
            "STOCKADE_HOME": str(state),
        }
        return cls(base=base, where=where, home=home, workspace=workspace, masks=masks, env=env)

    @property
    def noop(self) -> str:
        """The static command that does nothing."""
        return str(self.workspace / "noop")

    def launch(self, *, command: Sequence[str] = (), env: dict[str, str] | None = None, **request: Any) -> Launch:
        """Compile a request and take its launch line apart."""
        import stockade

        wrapped = stockade.wrap(
            list(command) or [self.noop],
            caller="generated",
            cwd=str(self.workspace),
            write=[str(self.workspace)],
            env=env or self.env,
            **request,
        )
        return take_apart(wrapped.argv, wrapped.env)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a figure may be at most, or must be at least; without either the row is there to read the others by.

    ``floor``: the same figure of the minimal helper, taken in the same run. A budget below it asks for less than
    the namespaces alone cost: a figure above it is called a limit then, up to twice that cost. ``share``: where the
    floor uses up the budget, but for half of this, how far above it a figure may be to be called a limit.
    """

    unit: str = ""
    most: float | None = None
    least: float | None = None
    floor: float | None = None
    share: float | None = None

    def text(self) -> str:
        """The budget for the table; nothing without one."""
        if self.most is not None:
            return f"≤ {self.most:g} {self.unit}".strip()
        return "" if self.least is None else f"≥ {self.least:g} {self.unit}".strip()

    def verdict(self, value: float) -> str:
        """Whether a figure keeps it."""
        if self.most is None and self.least is None:
            return ""
        kept = (self.most is None or value <= self.most) and (self.least is None or value >= self.least)
        return "ok" if kept else "limit" if self.out_of_reach(value) else "FAIL"

    def out_of_reach(self, value: float) -> bool:
        """Whether what is asked for is, with a tolerance, the floor."""
        if self.most is None or self.floor is None:
            return False
        if self.share is not None:
            return self.floor >= self.most - self.share / 2 and value <= self.floor + self.share
        return self.floor > self.most and value <= 2 * self.floor


def judged(what: str, value: float, budget: Budget, values: dict[str, float], detail: str = "") -> Row:
    """The row of a figure against its budget."""
    text = f"{value:.2f} {budget.unit}".strip() + (f" ({detail})" if detail else "")
    return Row(what=what, measured=text, budget=budget.text(), verdict=budget.verdict(value), values=values)


def spawn_rows(world: World, runs: int) -> Iterator[Row]:
    """A no-op at strict without network and at standard with the host's, against the peers.

    All hide the same ten directories of the home. Guarded has no budget; it is what
    `stockade run` starts when no tier is named, and hides some 250 names that the peers do not.
    """
    hide = [str(path) for path in world.masks]
    reference = bubblewrap(world.launch(tier="strict", net="host", hide=hide))
    # What root's box needs, trees with other owners, the helper does not have.
    helper_budget = 1.8 if os.geteuid() else None
    helper = world.base / "bench" / "build" / "minimal_helper"
    for tier, net, budgets in (
        ("strict", "none", {"bubblewrap": 0.60, "minimal": helper_budget}),
        ("standard", "host", {"bubblewrap": None, "reference": 0.45}),
        ("guarded", "host", {"bubblewrap": None}),
    ):
        launch = world.launch(tier=tier, net=net, hide=hide)
        near = interleave({
            "bare": Contestant(argv=[world.noop], env=world.env),
            "stockade": launch.contestant(),
            "minimal": minimal(helper, world.masks, [world.noop], world.env, net=net == "none"),
        }, runs)  # fmt: skip
        # Apart: what bubblewrap leaves to the kernel to clean up is not charged to who comes after it.
        far = interleave({
            "stockade": launch.contestant(),
            "bubblewrap": bubblewrap(launch),
            **({"reference": reference} if "reference" in budgets else {}),
        }, runs)  # fmt: skip
        for peer, limit in budgets.items():
            times = {**far, **near} if peer in near else {**near, **far}
            detail = " / ".join(f"{name} {value:.2f} ms" for name, value in times.items())
            what = f"{tier}, net {net}: no-op over {PEERS[peer]}"
            yield judged(what, times["stockade"] / times[peer], Budget(most=limit, unit="×"), times, detail)


def nested_rows(world: World, runs: int) -> Iterator[Row]:
    """A strict box from inside a standard one, and one as a further layer where there are no namespaces."""
    peer = bubblewrap(world.launch(tier="strict", net="none"))
    times = nested_times(world, peer, runs)
    detail = " / ".join(f"{name} {value:.2f} ms" for name, value in times.items())
    for name, what, limit in (
        ("nested", "strict inside standard: no-op over bubblewrap outside", 0.60),
        ("tighten", "strict as a further layer, no namespaces: no-op over bubblewrap", 0.30),
    ):
        if name in times:
            yield judged(what, times[name] / times["bubblewrap"], Budget(most=limit, unit="×"), times, detail)


def home_row(world: World, runs: int) -> Row:
    """The same launch with a home of 10 and of 100,000 entries."""
    big = world.where / "big-home"
    big.mkdir(mode=0o700)
    for index in range(BIG_HOME):
        os.close(os.open(big / f"entry{index}", os.O_CREAT | os.O_WRONLY, 0o600))
    contestants = {
        name: world.launch(tier="strict", net="none", env={**world.env, "HOME": str(home)}).contestant()
        for name, home in (("small", world.home), ("big", big))
    }
    times = interleave(contestants, runs)
    return judged(
        f"strict: home of {BIG_HOME:,} entries over 10", times["big"] / times["small"], Budget(most=1.10, unit="×"), times,
        f"{times['small']:.2f} ms, {times['big']:.2f} ms",
    )  # fmt: skip


def grant_row(world: World, runs: int) -> Row:
    """The slope of the cost per extra read grant, up to 1,000."""
    many = world.where / "granted"
    many.mkdir()
    paths = []
    for index in range(GRANTS[-1]):
        path = many / f"grant{index}"
        path.write_text("x")
        paths.append(str(path))
    contestants = {
        str(count): world.launch(tier="strict", net="none", read=paths[:count]).contestant() for count in GRANTS
    }
    times = interleave(contestants, max(20, runs // 6))
    slopes = [(times[str(count)] - times["0"]) / count * 1000 for count in GRANTS[1:]]
    return judged(
        "strict: cost of one extra grant (0 to 1,000)", slopes[-1], Budget(most=25, unit="µs"), times,
        f"at {', '.join(f'{count}: {slope:.1f}' for count, slope in zip(GRANTS[1:], slopes, strict=True))}",
    )  # fmt: skip


def concurrency_rows(world: World, runs: int) -> Iterator[Row]:
    """Spawns per second with two at a time per core, and 200 at once from 100 threads.

    The budgets are for one policy with the host's network and with a net namespace: that of strict.
    """
    workers = 2 * (os.cpu_count() or 1)
    seconds = min(4.0, runs / 75)
    for tier, net, limit in (("strict", "host", 2.0), ("strict", "none", 1.5), ("standard", "host", None)):
        launch = world.launch(tier=tier, net=net)
        peer = bubblewrap(launch, files_too=False)
        # In halves, in turn: the load of the machine changes over seconds.
        ours = theirs = 0.0
        for _ in range(2):
            ours += throughput(launch.contestant(), workers, seconds / 2) / 2
            theirs += throughput(peer, workers, seconds / 2) / 2
        rates = {"stockade": ours, "bubblewrap": theirs}
        what = f"{tier}, net {net}: spawns per second over bubblewrap"
        yield judged(what, ours / theirs, Budget(least=limit, unit="×"), rates, f"{ours:.0f}/s, {theirs:.0f}/s")
    failed = at_once(world.launch(tier="strict", net="none").contestant(), threads=100, each=2)
    yield judged("200 boxes at once from 100 threads: failures", failed, Budget(most=0), {"failed": failed})


def python_rows(world: World, runs: int) -> Iterator[Row]:
    """Import, the command line and a warm call."""
    source = str(world.base / "src")
    start = f"import sys; sys.path.insert(0, {source!r}); "
    texts = {
        "bare": "pass",
        "import": f"{start}import stockade",
        "first use": f"{start}import stockade; stockade.run",
        "command": f"{start}from stockade.cli import main; raise SystemExit(main())",
    }
    tail = {"command": ["run", "--quiet", "--", "true"]}
    contestants = {
        name: Contestant(argv=[sys.executable, "-B", "-c", text, *tail.get(name, [])], env=world.env)
        for name, text in texts.items()
    }
    times = interleave(contestants, max(15, runs // 6))
    over = {name: value - times["bare"] for name, value in times.items()}
    detail = f"bare interpreter {times['bare']:.1f} ms"
    yield judged("import stockade over a bare interpreter", over["import"], Budget(most=25, unit="ms"), times, detail)
    yield Row(what="the same, and stockade.run looked up", measured=f"{over['first use']:.2f} ms", values=times)
    yield judged("stockade run -- true over a bare interpreter", over["command"], Budget(most=45, unit="ms"), times, detail)
    yield foreign_modules(source, world.env)
    yield warm_row(world, runs)


def foreign_modules(source: str, env: dict[str, str]) -> Row:
    """Third-party modules that the import brings in."""
    text = f"import sys; sys.path.insert(0, {source!r}); old = set(sys.modules); import stockade; stockade.run\n"
    text += "new = {n.partition('.')[0] for n in set(sys.modules) - old} - set(sys.stdlib_module_names) - {'stockade'}; print(len(new))"
    done = subprocess.run([sys.executable, "-B", "-c", text], env=env, capture_output=True, text=True, check=True)
    count = int(done.stdout)
    return judged("third-party modules imported by the core", count, Budget(most=0), {"modules": count})


def warm_row(world: World, runs: int) -> Row:
    """A warm run() of one Sandbox against subprocess.run() of the launcher."""
    import stockade

    request: dict[str, Any] = {"tier": "strict", "caller": "generated", "net": "none", "write": [str(world.workspace)]}
    box = stockade.Sandbox(cwd=str(world.workspace), env=world.env, **request)
    launch = world.launch(tier="strict", net="none")
    calls: dict[str, Callable[[], object]] = {
        "run": lambda: box.run([world.noop], check=True),
        "subprocess": lambda: subprocess.run(launch.argv, env=launch.env, check=True),
    }
    times = interleave_calls(calls, runs)
    detail = f"{times['run']:.2f} ms, {times['subprocess']:.2f} ms"
    over = times["run"] - times["subprocess"]
    return judged("warm run() over subprocess.run() of the launcher", over, Budget(most=0.7, unit="ms"), times, detail)


def resident_kb(pid: int) -> int:
    """Resident memory of one process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def memory_row(world: World) -> Row:
    """Resident memory of supervisor, init and whatever else it keeps, of live boxes at rest."""
    launch = world.launch(command=[str(world.workspace / "pause")], tier="strict", net="none")
    boxes = [
        subprocess.Popen(launch.argv, env=launch.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(LIVE_BOXES)
    ]
    totals = []
    for box in boxes:
        with box:
            assert box.stdin and box.stdout and box.stdout.read(1) == b"."
            time.sleep(REST_S)
            init = Path(f"/proc/{box.pid}/task/{box.pid}/children").read_text().split()
            totals.append(resident_kb(box.pid) + sum(resident_kb(int(pid)) for pid in init))
            box.stdin.close()
            box.wait(timeout=30)
    worst = max(totals) / 1024
    what = "resident memory of supervisor and init of a live box"
    return judged(what, worst, Budget(most=2, unit="MB"), {"max_mb": worst})


GROUPS: dict[str, Callable[[World, int], Iterator[Row]]] = {
    "spawn": spawn_rows,
    "nested": nested_rows,
    "home": lambda world, runs: iter([home_row(world, max(50, runs // 2))]),
    "grants": lambda world, runs: iter([grant_row(world, runs)]),
    "concurrency": concurrency_rows,
    "python": python_rows,
    "memory": lambda world, _: iter([memory_row(world)]),
}


def all_rows(world: World, runs: int, only: Sequence[str]) -> Iterator[Row]:
    """Every row of the wanted groups, in the order of the table."""
    for name, rows in GROUPS.items():
        if not only or name in only:
            yield from rows(world, runs)
