"""The built wheel through the installers that people use, each in a home where nothing is yet."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from requirements import requirement
from support.actors import Actor
from support.builders import Stage
from support.wheels import sdist, wheel
from tools.support import FORWARDED, Tool

WAIT_S = 240


def call(actor: Actor, tool: Tool, home: str, argv: Sequence[str]) -> str:
    """Run a command with an environment that holds a home, a PATH and what the machine's network needs."""
    given = {name: os.environ[name] for name in FORWARDED if name in os.environ}
    path = ":".join([f"{home}/.local/bin", *tool.path, "/usr/bin", "/bin"])
    done = actor.call(list(argv), env={**given, "HOME": home, "PATH": path, "LANG": "C.UTF-8"}, cwd=home, timeout_s=WAIT_S)
    assert done.returncode == 0, (argv, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout.decode()


def works(actor: Actor, tool: Tool, home: str) -> None:
    """See that the installed command makes a whole box, and that the box cannot change the install."""
    assert "strict" in call(actor, tool, home, ["stockade", "doctor"])
    assert "in a box" in call(actor, tool, home, ["stockade", "run", "--tier", "strict", "--", "echo", "in a box"])
    launcher = call(actor, tool, home, ["stockade", "explain", "--argv", "true"]).split()[0]
    assert launcher.startswith(home), "the command is that of this home"
    attack = ["sh", "-c", f"chmod 755 {launcher} && echo changed; true"]
    assert call(actor, tool, home, attack).split() == ["changed"]
    assert call(actor, tool, home, ["stockade", "run", "--tier", "standard", "--", *attack]).split() == []


@requirement("install.tools")
def test_uv_tool_installs_the_wheel(actor: Actor, stage: Stage, python_tool: Callable[..., Tool]) -> None:
    home = fresh_home(actor)
    call(actor, python_tool("uv"), home, ["uv", "tool", "install", "--quiet", "--no-python-downloads", str(wheel(stage))])
    works(actor, python_tool("uv"), home)


@requirement("install.tools")
def test_uvx_runs_the_wheel_without_an_install(actor: Actor, stage: Stage, python_tool: Callable[..., Tool]) -> None:
    home = fresh_home(actor)
    once = ["uvx", "--quiet", "--no-python-downloads", "--from", str(wheel(stage)), "stockade"]
    assert "strict" in call(actor, python_tool("uv"), home, [*once, "doctor"])
    assert "in a box" in call(actor, python_tool("uv"), home, [*once, "run", "--tier", "strict", "--", "echo", "in a box"])


@requirement("install.tools")
def test_pipx_installs_the_wheel(actor: Actor, stage: Stage, python_tool: Callable[..., Tool]) -> None:
    home = fresh_home(actor)
    call(actor, python_tool("pipx"), home, ["pipx", "install", "--quiet", "--python", "/usr/bin/python3", str(wheel(stage))])
    works(actor, python_tool("pipx"), home)


@requirement("install.tools")
@pytest.mark.timeout(900)
def test_the_source_archive_builds_a_wheel_with_a_launcher_where_rust_is(stage: Stage, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(sdist(stage))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [path.name for path in tmp_path.iterdir()] == [wheel(stage).name]


def fresh_home(actor: Actor) -> str:
    """A home with nothing in it."""
    home = f"{actor.home}/new-home"
    actor.remove(home)
    return actor.make_dir(home, 0o700)
