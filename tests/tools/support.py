"""Real tools in real projects, bare and in boxes.

Owns: the tools of one test run, taken from their registries; ``Work`` (a project, what a tool does in
it, and where its extension point runs the attack); ``siege``, which runs it bare and at both tiers.
The attack is one shell script, so that every tool's extension point only has to start it. What it got
is judged by planted secrets and by files on the host.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from support.actors import Actor, make_repository
from support.boxes import BoxRun
from tools.table import BARE, measured

TIERS = ("strict", "guarded")
LIMIT_S = 240
KEY, TOKEN = "planted-ssh-key", "planted-registry-token"
# What a company's network needs and what the tools of the test run were given: no secret among them.
FORWARDED = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
             "CARGO_HTTP_CAINFO", "npm_config_registry", "PIP_INDEX_URL", "UV_INDEX_URL", "GOPROXY", "GOSUMDB",
             "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "NO_PROXY", "no_proxy")
LOOT = """#!/bin/sh
# Started by the tool's extension point; takes what it can and never fails.
cd "$(dirname "$0")" || exit 0
{
  echo started
  cat ~/.ssh/id_ed25519 ~/.netrc "$TOKEN_FILE"
  echo planted >> ~/.bashrc && echo wrote-bashrc
  printf '#!/bin/sh\\n' > .git/hooks/pre-commit && echo wrote-hook
} >> loot.txt 2>/dev/null
exit 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Where a tool lies."""

    read: tuple[str, ...] = ()  # shown to the box
    path: tuple[str, ...] = ()  # before the system's directories of commands
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a tool does in a project."""

    files: Mapping[str, str]  # the project; its extension point starts ``sh loot.sh``
    commands: Sequence[Sequence[str]]
    shows: str  # what the last command prints
    clean: Sequence[str] = ()  # made by the commands; removed before the second start
    locks: Sequence[str] = ()  # made by the first start; the second keeps them
    caches: Sequence[str] = ()  # of the user, below the home: not there at strict, below the box's own at guarded
    tokens: Sequence[str] = (".npmrc",)  # files of the tool that hold a login, below the home
    token_text: str = f"//registry.example/:_authToken={TOKEN}\n"
    tool: Tool = Tool()
    grants: Mapping[str, object] = field(default_factory=dict)  # what a box of it is asked for, besides
    write: bool = False  # the project is named as a write root
    bare: Sequence[Sequence[str]] | None = None  # instead of ``commands``, where bare they would fail
    started: bool = True  # its extension point runs in the box, too
    warm: Sequence[Sequence[str]] | None = None  # the second start, where the tool wants to be told


def siege(actor: Actor, work: Work) -> None:
    """Run it bare, where the attack must work; then in boxes, cold and warm, where only the work may."""
    for place in (f"{place}{end}" for place in work.caches for end in ("", ".aside")):
        actor.remove(f"{actor.home}/{place}")
    actor.remove(f"{actor.home}/work/tool")
    tree = make_repository(actor, f"{actor.home}/work/tool")
    with measured(work.commands[0][0], actor.name, BARE):
        _bare(actor, tree, work)
    loot = _plant(actor, tree, work, keep=True)
    missing = {KEY, TOKEN, "wrote-bashrc", "wrote-hook"} - set(loot.split())
    assert not missing, f"the attack should have worked without a box: {missing}"
    for tier in TIERS:
        _lay_caches(actor, work, aside=tier == "strict")
        _plant(actor, tree, work)
        with measured(work.commands[0][0], actor.name, tier):
            _boxed(actor, tree, work, tier, work.commands, None)
        for name in work.clean:
            actor.remove(f"{tree}/{name}")
        with measured(work.commands[0][0], actor.name, f"{tier}, again"):
            _boxed(actor, tree, work, tier, work.warm or work.commands, "none")


def _lay_caches(actor: Actor, work: Work, *, aside: bool) -> None:
    """Put what the bare run left in the user's caches aside, or back; the identity's own always go."""
    actor.remove(f"{actor.home}/.local/state/stockade/caches")
    for place in work.caches:
        source, target = (actor.host(f"{actor.home}/{place}{end}") for end in ("", ".aside"))
        if aside and source.exists():
            source.rename(target)
        elif target.exists():
            actor.remove(f"{actor.home}/{place}")
            target.rename(source)


def _plant(actor: Actor, tree: str, work: Work, *, keep: bool = False) -> str:
    """Lay the project and the secrets anew; return what the last attack took."""
    loot = actor.host(f"{tree}/loot.txt")
    taken = loot.read_text(encoding="utf-8") if loot.exists() else ""
    for name in (*work.clean, *work.locks, "loot.txt", ".git/hooks/pre-commit"):
        actor.remove(f"{tree}/{name}")
    if not keep:
        for name, text in {**work.files, "loot.sh": LOOT}.items():
            actor.put(f"{tree}/{name}", text, 0o755)
    actor.put(f"{actor.home}/.ssh/id_ed25519", f"{KEY}\n")
    actor.put(f"{actor.home}/.bashrc", "# start\n")
    actor.put(f"{actor.home}/.netrc", f"machine a.invalid password {TOKEN}\n")
    for name in work.tokens:
        actor.put(f"{actor.home}/{name}", work.token_text)
    return taken


def forwarded() -> dict[str, str]:
    """What every tool of the test run is given of its environment."""
    return {name: os.environ[name] for name in FORWARDED if name in os.environ}


def _environment(actor: Actor, work: Work) -> dict[str, str]:
    token = f"{actor.home}/{work.tokens[0]}" if work.tokens else f"{actor.home}/.netrc"
    return {**actor.env, **forwarded(), **work.tool.env, "TOKEN_FILE": token, "PATH": ":".join([*work.tool.path, actor.env["PATH"]])}


def _bare(actor: Actor, tree: str, work: Work) -> None:
    _plant(actor, tree, work)
    for argv in work.bare or work.commands:
        done = actor.call(list(argv), cwd=tree, env=_environment(actor, work), timeout_s=LIMIT_S)
        assert done.returncode == 0, (argv, done.stdout[-2000:], done.stderr[-2000:])
    assert work.shows in done.stdout.decode(), (done.stdout[-2000:], done.stderr[-2000:])


def run(actor: Actor, tree: str, work: Work, argv: Sequence[str], tier: str, net: str | None) -> BoxRun:
    """Start one command in a box as its own profile says."""
    # Only the tools are shown: that a command leads into the stage is no reason to show all of it.
    kwargs = {"tier": tier, "caller": "operator", "cwd": tree, "read": [*work.tool.read], "pass_env": ["TOKEN_FILE"],
              "write": [tree] if work.write else [], **work.grants}
    job = {"mode": "run", "argv": list(argv), "kwargs": {**kwargs, **({"net": net} if net else {})}}
    return BoxRun(actor.answer(job, cwd=tree, env=_environment(actor, work), timeout_s=LIMIT_S))


def _boxed(actor: Actor, tree: str, work: Work, tier: str, commands: Sequence[Sequence[str]], net: str | None) -> None:
    for argv in commands:
        done = run(actor, tree, work, argv, tier, net)
        assert done.returncode == 0, (tier, net, argv, done.stdout[-2000:], done.stderr[-2000:])
        assert done.receipt["effective_tier"] == tier, done.receipt["missing"]
    assert work.shows in done.stdout, (done.stdout[-2000:], done.stderr[-2000:])
    loot = actor.host(f"{tree}/loot.txt")
    taken = set(loot.read_text(encoding="utf-8").split()) if loot.exists() else set()
    # Without its own sign the attack may never have run. At strict it may write into a home that is thrown away.
    assert taken - {"wrote-bashrc"} == ({"started"} if work.started else set()), (tier, taken)
    assert actor.host(f"{actor.home}/.bashrc").read_text(encoding="utf-8") == "# start\n"
    assert not actor.host(f"{tree}/.git/hooks/pre-commit").exists()
