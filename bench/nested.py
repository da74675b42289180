"""What a box costs where something confines its caller already.

Owns: the two ways to it. A further layer (`--tighten`) is timed with a plan that was made where user
namespaces are refused; a box by the nest service is timed by a program inside a standard box, which says
how long each took. Both are compared with bubblewrap outside, given strict's mounts, in the same rounds.
Only a box without namespaces has a layer, and only ordinary users have that.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from measure import Contestant, once

if TYPE_CHECKING:
    from rows import World

# A user namespace of its own in which no further one can be made, under the caller's own number.
WITHOUT_NAMESPACES = [
    "unshare", "--user", f"--map-user={os.getuid()}", f"--map-group={os.getgid()}", "--keep-caps", "--", "sh", "-c",
    'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --inh-caps -all --ambient-caps -all -- "$@"', "sh",
]  # fmt: skip

MAKE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import stockade
request = {"caller": "generated", "cwd": sys.argv[2], "write": [sys.argv[2]]}
print(json.dumps(stockade.wrap([sys.argv[3]], tier="strict", net="none", **request).argv))
"""

# One start for each line that is read; its duration in milliseconds is the answer.
INSIDE = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from stockade.process import _exec, prepare
from stockade.rules.request import build_request
request = build_request([sys.argv[3]], tier="strict", caller="generated", net="none", cwd=sys.argv[2], write=[sys.argv[2]])
launch = prepare.launch_of(prepare.prepare(request), {})
for _ in sys.stdin:
    plan = _exec.sealed_memfd("stockade-plan", launch.plan)
    os.set_inheritable(plan, True)
    line = _exec.command_line(launch, source=["--plan-fd", str(plan)])
    start = time.perf_counter_ns()
    status = os.waitpid(os.posix_spawn(line[0], line, os.environ), 0)[1]
    print((time.perf_counter_ns() - start) / 1e6 if status == 0 else status, "ms" if status == 0 else "failed", flush=True)
    os.close(plan)
"""


def medians(calls: Mapping[str, Callable[[], float]], runs: int) -> dict[str, float]:
    """Call all in turn, in a new random order each round; each says itself how long it took."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for name in order:
        calls[name]()
    for _ in range(runs):
        random.shuffle(order)
        for name in order:
            times[name].append(calls[name]())
    return {name: statistics.median(values) for name, values in times.items()}


def layer(world: World) -> Contestant:
    """The launch line of a strict box of a host without user namespaces, as a further layer."""
    argv = [*WITHOUT_NAMESPACES, sys.executable, "-B", "-c", MAKE, str(world.base / "src"), str(world.workspace), world.noop]
    made = subprocess.run(argv, env=world.env, stdout=subprocess.PIPE, text=True, check=True)
    launcher, *rest = json.loads(made.stdout)
    return Contestant(argv=[launcher, "--tighten", *rest], env=world.env)


@contextlib.contextmanager
def inside(world: World) -> Iterator[Callable[[], float]]:
    """A program in a standard box that starts strict boxes; gives the call for one start."""
    import stockade

    argv = [sys.executable, "-B", "-c", INSIDE, str(world.base / "src"), str(world.workspace), world.noop]
    with stockade.Popen(
        argv, tier="standard", caller="generated", cwd=str(world.workspace), read=[str(world.base / "src")],
        write=[str(world.workspace)], env=world.env,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as box:  # fmt: skip
        assert box.stdin is not None
        assert box.stdout is not None
        asks, answers = box.stdin, box.stdout

        def start() -> float:
            asks.write("\n")
            asks.flush()
            value, _, word = answers.readline().partition(" ")
            if word.strip() != "ms":
                raise RuntimeError(f"bench_failed: a start inside a box: got {value!r} {word!r}, expected its duration")
            return float(value)

        yield start
        asks.close()


def nested_times(world: World, peer: Contestant, runs: int) -> dict[str, float]:
    """Medians of both, as far as the caller has them, and of the peer."""
    calls = {"bubblewrap": lambda: once(peer)}
    with inside(world) as start:
        calls["nested"] = start
        if os.geteuid() != 0:
            further = layer(world)
            calls["tighten"] = lambda: once(further)
        return medians(calls, runs)
