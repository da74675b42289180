"""The second start of a server that is fetched by name: `npx -y` and `uvx`, bare and at strict.

Owns: speaking to the real server over its streams (an initialize request, its answer, then the end
of input) and the time from the start to the answer. The bare home and the boxes' home are apart,
so that a box is warm by its own cache alone. A server that does not answer stops the benchmark.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rows import Budget, Row, World, judged

LIMIT_S = 240
NPX = ("npx", "-y", "@modelcontextprotocol/server-everything")
UVX = ("uvx", "mcp-server-time")
HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
}  # fmt: skip


def fetch(tools: Path) -> None:
    """Install uv; npx comes with Node."""
    place = tools / "uv"
    subprocess.run(["/usr/bin/python3", "-m", "venv", str(place)], check=True, capture_output=True)
    subprocess.run([str(place / "bin" / "pip"), "install", "-q", "--only-binary", ":all:", "uv"], check=True, capture_output=True)


def answered(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> float:
    """Start the server and return the milliseconds until it has answered."""
    begun = time.perf_counter()
    with subprocess.Popen(
        argv, env=dict(env), cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin and server.stdout and server.stderr
        server.stdin.write(json.dumps(HELLO) + "\n")
        server.stdin.flush()
        line = server.stdout.readline()
        taken = (time.perf_counter() - begun) * 1000
        server.stdin.close()
        try:
            server.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            server.kill()
        if "serverInfo" not in line:
            raise RuntimeError(f"bench_failed: start of {argv[:12]}: got {line!r} {server.stderr.read()[-2000:]}")
    return taken


def lines(world: World, argv: Sequence[str]) -> dict[str, tuple[Sequence[str], Mapping[str, str]]]:
    """Return the ways to start it: bare, as a launch line of strict, and by the command line."""
    import stockade

    boxed = {**world.env, "HOME": str(world.where / "box-home")}
    Path(boxed["HOME"]).mkdir(mode=0o700, exist_ok=True)
    # Where the tool itself lies is no secret; nothing else of the bench is shown.
    tool = str(world.base / "tools")
    line = stockade.wrap(list(argv), tier="strict", caller="operator", cwd=str(world.workspace), read=[tool], env=boxed)
    command = ["/usr/bin/python3", "-m", "stockade", "run", "--quiet", "--tier", "strict", "--read", tool, "--"]
    return {
        "bare": (argv, world.env),
        "strict": (line.argv, line.env),
        "stockade run": ([*command, *argv], {**boxed, "PYTHONPATH": str(world.base / "src")}),
    }


def warm_row(world: World, runs: int, argv: Sequence[str]) -> Iterator[Row]:
    """One server: each way once cold, then in turn."""
    ways = lines(world, argv)
    cold = {name: answered(*way, world.workspace) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for _ in range(runs):
        random.shuffle(order)
        for name in order:
            times[name].append(answered(*ways[name], world.workspace))
    warm = {name: statistics.median(values) for name, values in times.items()}
    detail = f"{warm['strict']:.0f} ms, bare {warm['bare']:.0f} ms; cold {cold['strict']:.0f} ms, bare {cold['bare']:.0f} ms"
    what = f"second start of {' '.join(argv)} at strict over the same bare"
    yield judged(what, warm["strict"] / warm["bare"], Budget(most=1.3, unit="×"), warm, detail)
    over = warm["stockade run"] / warm["bare"]
    yield judged(f"{what}, by `stockade run`", over, Budget(most=1.3, unit="×"), warm, f"{warm['stockade run']:.0f} ms")


def rows(world: World, runs: int) -> Iterator[Row]:
    """Both package runners."""
    for argv in (NPX, UVX):
        path = f"{world.base}/tools/uv/bin:{world.env['PATH']}"
        forwarded = {name: os.environ[name] for name in FORWARDED if name in os.environ}
        place = World(base=world.base, where=world.where, home=world.home, workspace=world.workspace, masks=world.masks,
                      env={**forwarded, **world.env, "PATH": path})  # fmt: skip
        yield from warm_row(place, max(3, runs // 30), argv)


# What a company's network needs to reach a registry; no secret among them.
FORWARDED = (
    "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "npm_config_registry", "PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
)  # fmt: skip
