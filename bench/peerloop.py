"""Starts a no-op many times through one Python interface and prints the median in milliseconds.

Run by the interpreter that has the interface: argv is its name, the number of runs, the workspace
and the command. Each policy is the interface's own idea of one agent: system readable, workspace
writable, no network where it has a word for that.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc")


def stockade(workspace: str, command: str) -> Callable[[], int]:
    """Ours."""
    from stockade import Sandbox

    box = Sandbox(tier="strict", net="none", cwd=workspace, write=[workspace])
    return lambda: box.run([command]).returncode


def minimal(workspace: str, command: str) -> Callable[[], int]:
    """The minimal helper: namespaces and ten masks, no sandbox. What is asked of a box costs at least this."""
    helper = Path(__file__).with_name("build") / "minimal_helper"
    masks = sorted(str(path) for path in Path.home().glob("mask*"))
    return lambda: subprocess.run([str(helper), "-n", *masks, "--", command], cwd=workspace, check=False).returncode


def sandlock(workspace: str, command: str) -> Callable[[], int]:
    """Landlock, seccomp and user notification."""
    from sandlock import Sandbox

    box = Sandbox(fs_readable=list(SYSTEM), fs_writable=[workspace], cwd=workspace)
    return lambda: 0 if box.run([command]).success else 1


def nono(workspace: str, command: str) -> Callable[[], int]:
    """Landlock and seccomp."""
    import nono_py as nono

    caps = nono.CapabilitySet()
    for path in SYSTEM:
        caps.allow_path(path, nono.AccessMode.READ)
    caps.allow_path(workspace, nono.AccessMode.READ_WRITE)
    caps.block_network()
    return lambda: nono.sandboxed_exec(caps, [command], cwd=workspace).exit_code


def postern(workspace: str, command: str) -> Callable[[], int]:
    """bubblewrap with a seccomp list; without its C init, which a user has to build, an interpreter starts inside."""
    from postern import Sandbox, SandboxProfile

    box = Sandbox(SandboxProfile())
    return lambda: box.run(["/bin/true"]).returncode


def main() -> int:
    """Time one interface."""
    name, runs, workspace, command = sys.argv[1:]
    call = {"stockade": stockade, "minimal": minimal, "sandlock": sandlock, "nono": nono, "postern": postern}[name](workspace, command)
    times = []
    for number in range(int(runs) + 1):
        begun = time.perf_counter_ns()
        status = call()
        if status != 0:
            raise SystemExit(f"status {status}")
        if number:  # the first one warms
            times.append((time.perf_counter_ns() - begun) / 1e6)
    print(statistics.median(times))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
