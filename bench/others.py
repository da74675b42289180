"""Starting a no-op in the peers that the registries have, each with its own idea of an agent's policy.

Owns: fetching them, their command lines, and what is said of one that cannot be had or does not run
here; one that gives no answer in time is one of those. Nothing is compared but the start: what each keeps is docs/comparison.md.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from measure import Contestant, interleave
from peers import bubblewrap
from rows import Budget, Row, World, judged

WAIT_S = 300
NOOP_WAIT_S = 60
NO_ANSWER = 124
PYTHON_PEERS = {"sandlock": "sandlock", "nono": "nono-py", "postern": "postern"}
SYSTEM_PROGRAMS = {"firejail": "firejail", "rg": "ripgrep", "socat": "socat"}  # sandbox-runtime asks for the last two
NODE_PEERS = {"codex": "@openai/codex", "sandbox-runtime": "@anthropic-ai/sandbox-runtime"}


def fetch(tools: Path) -> None:
    """Install each below ``tools``; what fails leaves its reason there.

    Their newest releases are nobody's reviewed code and root may be here: wheels alone, and no scripts.
    """
    missing = [package for program, package in SYSTEM_PROGRAMS.items() if shutil.which(program) is None]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        _try(tools, "system", ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-qq", "-y", "--no-install-recommends", *missing])
    python = tools / "python-peers"
    subprocess.run(["/usr/bin/python3", "-m", "venv", str(python)], check=True, capture_output=True)
    for name, package in PYTHON_PEERS.items():
        _try(tools, name, [str(python / "bin" / "pip"), "install", "-q", "--only-binary", ":all:", package])
    for name, package in NODE_PEERS.items():
        prefix = tools / name
        prefix.mkdir()
        _try(tools, name, ["npm", "install", "--silent", "--no-save", "--ignore-scripts", "--prefix", str(prefix), package])


def _try(tools: Path, name: str, argv: Sequence[str]) -> None:
    try:
        done = answer(argv, WAIT_S)
        reason = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    except OSError as error:
        reason = str(error)
    if reason:
        (tools / f"{name}.failed").write_text(f"not installed: {reason[:200]}")


def answer(argv: Sequence[str], timeout_s: float, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a peer in a session of its own; one that is not done in time is ended with all it started, and says so."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, text=True, start_new_session=True, **pipes, **more) as peer:
        try:
            out, err = peer.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as late:
            os.killpg(peer.pid, signal.SIGKILL)
            out = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else ""
            return subprocess.CompletedProcess(argv, NO_ANSWER, out, f"no answer within {timeout_s:g} s")
    return subprocess.CompletedProcess(argv, peer.returncode, out, err)


def versions(tools: Path) -> Iterator[str]:
    """Yield name and release of bubblewrap and of each peer that was installed: always its newest."""
    yield " ".join(subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=True).stdout.split())
    listed = [str(tools / "python-peers" / "bin" / "pip"), "list", "--format", "json", "--disable-pip-version-check"]
    done = subprocess.run(listed, capture_output=True, text=True, check=True)
    found = {row["name"]: row["version"] for row in json.loads(done.stdout)}
    for name, package in PYTHON_PEERS.items():
        if package in found:
            yield f"{name} {found[package]}"
    for name, package in NODE_PEERS.items():
        described = tools / name / "node_modules" / package / "package.json"
        if described.exists():
            yield f"{name} {json.loads(described.read_text())['version']}"


def commands(world: World) -> Iterator[tuple[str, list[str]]]:
    """Yield the peers that are commands."""
    tools = world.base / "tools"
    settings = world.where / "srt.json"
    settings.write_text(json.dumps({
        "network": {"allowedDomains": [], "deniedDomains": []},
        "filesystem": {"denyRead": ["~/.ssh", "~/.aws"], "allowWrite": ["."], "denyWrite": []},
    }))  # fmt: skip
    noop = world.noop
    # Without a private home: it takes none but the account's own. After `--` it would start the account's shell.
    yield "firejail", ["firejail", "--quiet", "--noprofile", "--net=none", "--caps.drop=all", "--seccomp", "/bin/true"]
    yield "codex", [f"{tools}/codex/node_modules/.bin/codex", "sandbox", "--", noop]
    yield "sandbox-runtime", [f"{tools}/sandbox-runtime/node_modules/.bin/srt", "--settings", str(settings), noop]


def rows(world: World, runs: int) -> Iterator[Row]:
    """The Python interfaces, then the commands."""
    yield from python_rows(world, runs)
    launch = world.launch(tier="strict", net="none")
    for name, argv in commands(world):
        program = shutil.which(argv[0], path=world.env["PATH"])
        reason = unusable(world, name, [program or argv[0], *argv[1:]])
        if reason:
            yield Row(what=f"no-op in {name}", measured=reason, values={})
            continue
        contestants = {
            "stockade": launch.contestant(), "bubblewrap": bubblewrap(launch),
            name: Contestant(argv=[program or argv[0], *argv[1:]], env=peer_env(world)),
        }  # fmt: skip
        times = interleave(contestants, max(5, runs // 15))
        yield compared(name, times)


def peer_env(world: World) -> dict[str, str]:
    """Return the environment of a peer: a home of its own, so that none reads another's settings."""
    return {**world.env, "CODEX_HOME": str(world.home / ".codex")}


def unusable(world: World, name: str, argv: list[str]) -> str:
    """Return why a peer cannot be measured, or nothing."""
    failed = world.base / "tools" / f"{name}.failed"
    if failed.exists():
        return failed.read_text()
    if not os.path.exists(argv[0]):
        return f"not installed: apt-get install {name}" if name == "firejail" else "not installed"
    (world.home / ".codex").mkdir(exist_ok=True)
    done = answer(argv, NOOP_WAIT_S, env=peer_env(world))
    said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
    return "" if done.returncode == 0 else f"does not run here: status {done.returncode}: {said[:160]}"


def compared(name: str, times: Mapping[str, float]) -> Row:
    """A row without a budget: the peer, ours and bubblewrap of the same turns."""
    detail = f"stockade strict {times['stockade']:.2f} ms, bubblewrap {times['bubblewrap']:.2f} ms"
    text = f"{times[name]:.2f} ms, {times[name] / times['stockade']:.1f} × ours ({detail})"
    return Row(what=f"no-op in {name}", measured=text, values=dict(times))


def loop(world: World, name: str, runs: int) -> float | str:
    """Return the median of one Python interface, or why there is none."""
    failed = world.base / "tools" / f"{name}.failed"
    if failed.exists():
        return failed.read_text()
    ours = name == "stockade"
    python = "/usr/bin/python3" if ours else f"{world.base}/tools/python-peers/bin/python"
    argv = [python, "-B", str(world.base / "bench" / "peerloop.py"), name, str(runs), str(world.workspace), world.noop]
    env = {**world.env, **({"PYTHONPATH": str(world.base / "src")} if ours else {})}
    done = answer(argv, WAIT_S, env=env)
    if done.returncode != 0:
        return f"does not run here: {(done.stderr.strip().splitlines() or ['no reason given'])[-1][:160]}"
    return float(done.stdout)


def python_rows(world: World, runs: int) -> Iterator[Row]:
    """Each interface in its own interpreter, in rounds, so that none has the quiet moment to itself."""
    names = ["stockade", "minimal", *PYTHON_PEERS]
    rounds = [{name: loop(world, name, max(5, runs // 10)) for name in names} for _ in range(3)]
    medians: dict[str, float] = {}
    for name in names:
        figures = [found[name] for found in rounds]
        numbers = sorted(figure for figure in figures if isinstance(figure, float))
        if len(numbers) < len(figures):
            yield Row(what=f"no-op from Python in {name}", measured=str(next(f for f in figures if isinstance(f, str))), values={})
            continue
        medians[name] = numbers[1]
        yield Row(what=f"no-op from Python in {name}", measured=f"{numbers[1]:.2f} ms", values={name: numbers[1]})
    peers = {name: value for name, value in medians.items() if name in PYTHON_PEERS}
    if peers:
        best = min(peers, key=peers.__getitem__)
        budget = Budget(most=0.5, unit="×", floor=medians["minimal"] / peers[best])
        detail = f"{best}; the minimal helper, namespaces and no sandbox, {budget.floor:.2f} ×"
        what = "strict from Python over the best Python peer that runs here"
        yield judged(what, medians["stockade"] / peers[best], budget, medians, detail)
