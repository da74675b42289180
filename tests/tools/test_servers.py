"""MCP servers that are fetched by name: they answer from a strict box, and the second start needs no network."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence

import pytest

from requirements import requirement
from support.actors import Actor
from support.cli import environment, line
from tools.support import FORWARDED, Tool

WAIT_S = 240
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "initialize",
         "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}
SERVERS = [(["npx", "-y", "@modelcontextprotocol/server-everything"], [".npm"], ["npm_config_offline=true"], "ENOTCACHED"),
           (["uvx", "mcp-server-time"], [".cache/uv", ".local/share/uv"], ["UV_OFFLINE=1"], "network was disabled")]


def greet(actor: Actor, tool: Tool, argv: Sequence[str], *options: str) -> subprocess.CompletedProcess[bytes]:
    """Start a server in a strict box, greet it, end its input."""
    given = {name: os.environ[name] for name in FORWARDED if name in os.environ}
    env = environment(actor, **given, PATH=":".join([*tool.path, actor.env["PATH"]]))
    read = [word for path in tool.read for word in ("--read", path)]
    words = line("run", "--quiet", "--as", "mcp_server", "--tier", "strict", *read, *options, "--", *argv)
    return actor.call(words, stdin=json.dumps(HELLO).encode() + b"\n", env=env, timeout_s=WAIT_S)


def hello(actor: Actor, tool: Tool, argv: Sequence[str], *options: str) -> str:
    """Greet a server; return the name it gave."""
    done = greet(actor, tool, argv, *options)
    assert b'"serverInfo"' in done.stdout, (argv, done.stdout[-2000:], done.stderr[-2000:])
    answer = json.loads(next(text for text in done.stdout.splitlines() if b'"serverInfo"' in text))
    return str(answer["result"]["serverInfo"]["name"])


@requirement("caches.modes")
@pytest.mark.parametrize(("argv", "user_caches", "offline", "missing"), SERVERS, ids=["npx", "uvx"])
def test_the_second_start_of_a_fetched_server_is_warm_without_network(
        actor: Actor, python_tool: Callable[..., Tool], argv: list[str], user_caches: list[str], offline: list[str],
        missing: str) -> None:
    tool = python_tool("uv")
    for path in (*user_caches, ".local/state/stockade/caches"):
        actor.remove(f"{actor.home}/{path}")
    options = [word for item in offline for word in ("--env", item)]
    cold = greet(actor, tool, argv, "--net", "none", *options)
    assert cold.returncode and not cold.stdout and missing in " ".join(cold.stderr.decode().split()), (cold.stdout, cold.stderr[-2000:])
    first = hello(actor, tool, argv)
    assert hello(actor, tool, argv, "--net", "none", *options) == first
    assert not [path for path in user_caches if actor.host(f"{actor.home}/{path}").exists()], "only in the identity's cache"
