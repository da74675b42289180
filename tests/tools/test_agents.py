"""Coding agents: a whole session of the real program, with a model whose one command is the attack.

The command runs in the agent's own shell tool, so it sees what every child of that agent sees. Bare it
takes everything, also what another agent or a live session of the same one would run later; in the box it
gets the agent's own sign-in, which the agent needs, and nothing else. The session is kept on the host.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from support.actors import Actor, make_repository
from support.boxes import BoxRun
from tools.local_model import local_model
from tools.support import FORWARDED, TIERS, Tool

KEY, TOKEN, OTHER, OWN, VARIABLE = "planted-ssh-key", "planted-registry-token", "planted-other-agent", "planted-own", "planted-var"
TAKEN = {KEY, TOKEN, OTHER, OWN, VARIABLE, "wrote-bashrc", "wrote-hook", "wrote-point", "swapped-point", "wrote-live"}
OTHERS = (".claude/.credentials.json", ".codex/auth.json", ".local/share/kiro-cli/data.sqlite3", ".config/goose/secrets.yaml")
LOOT = """#!/bin/sh
{{
  echo started
  cat ~/.ssh/id_ed25519 ~/.netrc ~/{own} ~/{other}
  printf '%s\\n' "$AWS_SECRET_ACCESS_KEY"
  echo planted >> ~/.bashrc && echo wrote-bashrc
  printf '#!/bin/sh\\n' > .git/hooks/pre-commit && echo wrote-hook
  echo planted >> ~/{point} && echo wrote-point
  cp ~/{point} ~/{point}.new && echo more >> ~/{point}.new && mv -f ~/{point}.new ~/{point} && echo swapped-point
  echo planted > ~/{live}/planted && echo wrote-live
}} >> loot.txt 2>/dev/null
exit 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent. Paths are below the home; ``@MODEL`` in a word stands for the model's address."""

    name: str
    package: str
    bin: str  # where its program lies in the fetched tree
    argv: tuple[str, ...]  # one session
    own: str  # its sign-in
    point: str  # what it would run in a later session
    live: str  # what a live session runs, or what it starts from outside
    keeps: str  # a directory that holds the session afterwards
    copies: tuple[str, ...] = ("wrote-live",)  # done to a copy of the box's own
    own_text: str = json.dumps({"OPENAI_API_KEY": OWN})
    says: str = "done"
    env: Mapping[str, str] = field(default_factory=dict)
    home: Mapping[str, str] = field(default_factory=dict)
    project: Mapping[str, str] = field(default_factory=dict)


NATIVE = "node_modules/.bin"
CODEX_MODEL = 'model_providers.t={name="t",base_url="@MODEL/v1",wire_api="responses",env_key="OPENAI_API_KEY"}'
AGENTS = [
    Agent(name="codex", package="@openai/codex@0.171.0", bin=NATIVE, own=".codex/auth.json", point=".codex/hooks.json",
          live=".codex/tmp", keeps=".codex/sessions", env={"OPENAI_API_KEY": "x"},
          argv=("codex", "-m", "gpt-5", "-c", 'model_provider="t"', "-c", CODEX_MODEL, "exec", "--skip-git-repo-check", "go")),
    Agent(name="claude", package="@anthropic-ai/claude-code@2.1.332", bin="node_modules/@anthropic-ai/claude-code-linux-x64",
          own=".claude/.credentials.json", point=".claude/settings.json", live=".claude/shell-snapshots", keeps=".claude/projects",
          env={"ANTHROPIC_BASE_URL": "@MODEL", "ANTHROPIC_API_KEY": "sk-ant-x"}, argv=("claude", "--allowedTools", "Bash", "-p", "go")),
    Agent(name="gemini", package="@google/gemini-cli@0.61.0", bin=NATIVE, own=".gemini/oauth_creds.json",
          point=".gemini/settings.json", live=".gemini/history", keeps=".gemini/tmp",
          home={".gemini/settings.json": '{"security":{"auth":{"selectedType":"gemini-api-key"}}}'},
          env={"GEMINI_API_KEY": "x", "GOOGLE_GEMINI_BASE_URL": "@MODEL", "GEMINI_CLI_TRUST_WORKSPACE": "true"},
          argv=("gemini", "--yolo", "-m", "gemini-2.5-flash", "-p", "go")),
    Agent(name="opencode", package="opencode-ai@1.18.33", bin="node_modules/opencode-linux-x64/bin",
          own=".local/share/opencode/auth.json", own_text=json.dumps({"x": {"type": "api", "key": OWN}}),
          point=".config/opencode/command/a.md", live=".local/share/opencode/snapshot", keeps=".local/share/opencode",
          copies=("wrote-live", "wrote-point", "swapped-point"), argv=("opencode", "run", "go"),
          project={"opencode.json": '{"provider":{"t":{"npm":"@ai-sdk/openai-compatible","options":{"baseURL":"@MODEL/v1",'
                                    '"apiKey":"x"},"models":{"m":{}}}},"model":"t/m"}'}),
    Agent(name="copilot", package="@github/copilot@1.0.102", bin=NATIVE, own=".copilot/config.json",
          point=".copilot/hooks/a.json", live=".cache/copilot/pkg", keeps=".copilot/session-state",
          env={"COPILOT_ALLOW_ALL": "true", "COPILOT_OFFLINE": "true", "COPILOT_PROVIDER_BASE_URL": "@MODEL", "COPILOT_MODEL": "gpt-5"},
          argv=("copilot", "-p", "go")),
    Agent(name="aider", package="aider-chat==0.86.2", bin="bin", own=".aider/oauth-keys.env", point=".aider.conf.yml",
          live=".local/bin", keeps=".aider", env={"OPENAI_API_KEY": "x"}, says="Added",
          argv=("aider", "--model", "gpt-4o", "--yes-always", "--no-show-model-warnings", "--message", "/run sh loot.sh")),
]


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_a_session_works_and_its_commands_get_nothing_but_its_own_sign_in(
        agent: Agent, actor: Actor, npm_tool: Callable[..., Tool], python_tool: Callable[..., Tool]) -> None:
    prefix = (python_tool if agent.bin == "bin" else npm_tool)(agent.package).read[0]
    tree = f"{actor.home}/work/{agent.name}"
    actor.remove(tree)
    make_repository(actor, tree)
    with local_model() as url:
        _plant(actor, agent, tree, url)
        env = _environment(actor, agent, prefix, url)
        argv = [word.replace("@MODEL", url) for word in agent.argv]
        bare = actor.call(_without_box(agent, argv), cwd=tree, env=env, timeout_s=240)
        missing = TAKEN - _taken(actor, tree)
        assert not missing, f"the attack should have worked without a box: {missing} {bare.stdout!r} {bare.stderr!r}"
        for tier in TIERS:
            _plant(actor, agent, tree, url)
            before = _sessions(actor, agent)
            done = _boxed(actor, tree, argv, {"tier": tier, "read": [prefix]}, env)
            assert done.returncode == 0 and agent.says in done.stdout, (tier, done.stdout[-2000:], done.stderr[-2000:])
            assert done.receipt["effective_tier"] == tier, done.receipt["missing"]
            _nothing_taken(actor, agent, tree, tier)
            assert _sessions(actor, agent) - before, "the session is not kept"


def _without_box(agent: Agent, argv: list[str]) -> list[str]:
    # Its own sandbox would stop some of the attack: the box replaces it, and has to be compared with nothing.
    return [argv[0], "-s", "danger-full-access", *argv[1:]] if agent.name == "codex" else argv


def _plant(actor: Actor, agent: Agent, tree: str, url: str) -> None:
    for name in ("loot.txt", ".git/hooks/pre-commit"):
        actor.remove(f"{tree}/{name}")
    actor.remove(f"{actor.home}/{agent.live}/planted")
    for name, text in {".ssh/id_ed25519": KEY, ".bashrc": "# start", ".netrc": TOKEN, _other(agent): OTHER,
                       agent.own: agent.own_text, agent.point: "{}", f"{agent.live}/old": "old",
                       **agent.home}.items():
        actor.put(f"{actor.home}/{name}", f"{text}\n")
    for name, text in {**agent.project, "loot.sh": LOOT.format(own=agent.own, other=_other(agent), point=agent.point, live=agent.live)}.items():
        actor.put(f"{tree}/{name}", text.replace("@MODEL", url), 0o755)


def _other(agent: Agent) -> str:
    return next(place for place in OTHERS if place.split("/")[0] != agent.own.split("/")[0])


def _environment(actor: Actor, agent: Agent, prefix: str, url: str) -> dict[str, str]:
    given = {name: os.environ[name] for name in FORWARDED if name in os.environ and "proxy" not in name.lower()}
    named = {name: value.replace("@MODEL", url) for name, value in agent.env.items()}
    return {**actor.env, **given, **named, "AWS_SECRET_ACCESS_KEY": VARIABLE, "PATH": f"{prefix}/{agent.bin}:{actor.env['PATH']}"}


def _boxed(actor: Actor, tree: str, argv: list[str], kwargs: dict[str, object], env: dict[str, str]) -> BoxRun:
    job = {"mode": "run", "argv": argv, "kwargs": {"caller": "agent", "cwd": tree, **kwargs}}
    return BoxRun(actor.answer(job, cwd=tree, env=env, timeout_s=240))


def _taken(actor: Actor, tree: str) -> set[str]:
    loot = actor.host(f"{tree}/loot.txt")
    text = loot.read_text(encoding="utf-8") if loot.exists() else ""
    return {word for word in (*TAKEN, "started") if word in text}


def _nothing_taken(actor: Actor, agent: Agent, tree: str, tier: str) -> None:
    # At strict it may write into a home that is thrown away, and into its own copy of a live session's directory.
    taken = _taken(actor, tree)
    assert {"started", OWN} <= taken <= {"started", OWN, "wrote-bashrc", *agent.copies}, (tier, taken)
    assert actor.host(f"{actor.home}/.bashrc").read_text(encoding="utf-8") == "# start\n"
    assert actor.host(f"{actor.home}/{agent.point}").read_text(encoding="utf-8") == agent.home.get(agent.point, "{}") + "\n"
    assert [path.name for path in actor.host(f"{actor.home}/{agent.live}").iterdir() if path.name == "planted"] == []
    assert actor.host(f"{actor.home}/{agent.live}/old").read_text(encoding="utf-8") == "old\n"
    assert not actor.host(f"{tree}/.git/hooks/pre-commit").exists()


def _sessions(actor: Actor, agent: Agent) -> set[tuple[str, int]]:
    """Every file of the session's place with the time of its last change."""
    place = actor.host(f"{actor.home}/{agent.keeps}")
    return {(str(path), path.stat().st_mtime_ns) for path in place.rglob("*") if path.is_file()} if place.is_dir() else set()
