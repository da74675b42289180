"""Grants as people give them: what is refused because it gives the tier away, and other names of secrets.

A voiding grant is asked for by name, refused with what it would cost, and given when that is
accepted; the receipt then says what is left. Another name of a credential (a hard link, a link, a
bind) is the same credential.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

import pytest

from requirements import PROMISES, requirement
from support.actors import Actor
from support.cli import stockade
from support.sockets import bind_sockets, unbind_sockets
from tools.support import Tool
from tools.table import BARE, measured

SECRET = "planted-in-a-store"
# option, what is granted, what is lost, what the grant then does, and how that is seen
VOIDING = {
    "docker socket": ("--allow-socket", "docker", "fs.home", "connect", "/run/docker.sock"),
    "session bus": ("--allow-socket", "dbus-session", "fs.home", "connect", "$XDG_RUNTIME_DIR/bus"),
    "tmux socket": ("--allow-socket", "tmux", "fs.home", "connect", "/tmp/tmux-UID/default"),
    "writable programs": ("--write", "HOME/.local/bin", "fs.persistence", "write", "HOME/.local/bin/written-by-grant"),
    "an ssh key": ("--read", "HOME/.ssh/id_ed25519", "fs.credentials", "read", "HOME/.ssh/id_ed25519"),
    "loader variable": ("--env", "LD_PRELOAD", "env.injection", "environ", "LD_PRELOAD"),
    "git's configuration": ("--allow", "git-config", "fs.persistence", "write", ".git/config"),
}
DO = {
    "connect": "import os, socket, sys; socket.socket(socket.AF_UNIX).connect(os.path.expandvars(sys.argv[1])); print('did it')",
    "write": "import sys; open(sys.argv[1], 'a').write('x'); print('did it')",
    "read": "import sys; print('did it' if 'planted' in open(sys.argv[1]).read() else 'other')",
    "environ": "import os, sys; print('did it' if sys.argv[1] in os.environ else 'absent')",
}


@requirement("E.grants")
@pytest.mark.parametrize("tier", ["strict", "guarded"])
@pytest.mark.parametrize("what", VOIDING)
def test_a_grant_that_gives_the_tier_away_is_refused_until_that_is_accepted(actor: Actor, fresh_repo: str, what: str, tier: str) -> None:
    option, value, promise, verb, target = VOIDING[what]
    if tier == "guarded" and promise == "fs.home":
        promise = "fs.credentials"
    value, target = (text.replace("HOME", actor.home).replace("UID", str(actor.uid)).replace("$XDG_RUNTIME_DIR", f"/run/user/{actor.uid}") for text in (value, target))
    actor.make_dir(f"{actor.home}/.local/bin")
    bound = bind_sockets(actor, [target]) if verb == "connect" else []
    actor.put(f"{actor.home}/.ssh/id_ed25519", f"{SECRET}\n")
    env = {**actor.env, "PYTHONPATH": str(actor.stage.lib), **({"LD_PRELOAD": ""} if verb == "environ" else {})}
    program = ["/usr/bin/python3", "-c", DO[verb], target]
    with measured(f"grant: {what}", actor.name, BARE):
        assert actor.call(program, cwd=fresh_repo, env=env).stdout == b"did it\n"
    asked = ("run", "--tier", tier, "--net", "none", option, value)
    try:
        with measured(f"grant: {what}", actor.name, tier):
            plain = stockade(actor, "run", "--tier", tier, "--net", "none", *program, cwd=fresh_repo, env=env)
            assert "did it" not in plain.out, "without the grant it is out of reach"
            refused = stockade(actor, *asked, *program, cwd=fresh_repo, env=env)
            assert (refused.status, refused.out) == (125, "") and "grant_voids_tier" in refused.err and promise in refused.err, refused
            _accepted(actor, asked, refused.err, program, fresh_repo, env)
    finally:
        if bound:
            unbind_sockets(actor, bound)
        actor.remove(f"{actor.home}/.local/bin")
        actor.remove(f"{actor.home}/.ssh")


def _accepted(actor: Actor, asked: Sequence[str], hint: str, program: list[str], cwd: str, env: dict[str, str]) -> None:
    """With what the hint names, and only with all of it, the box runs and says what it lacks."""
    said = re.findall(r"[a-z._]+", hint.split("or accept ", 1)[1])
    names = [entry.id for entry in PROMISES if entry.id in said]
    words = [word for name in names for word in ("--accept", name)]
    done = stockade(actor, *asked, *words, *program, cwd=cwd, env=env)
    assert done.status == 0 and "did it" in done.out, (shlex.join(words), done)
    assert "waived" in done.err and names[0] in done.err, done
    if len(names) > 1:
        fewer = stockade(actor, *asked, *words[2:], *program, cwd=cwd, env=env)
        assert fewer.status == 125 and "grant_voids_tier" in fewer.err, fewer


ALIASES = {
    "hard link": "ln {secret} {place}/alias",
    "symbolic link": "ln -s {secret} {place}/alias",
    "link of a link": "ln -s {secret} {place}/first; ln -s first {place}/alias",
    "hard link deep inside": "mkdir -p {place}/a/b/c; ln {secret} {place}/a/b/c/alias",
    "directory by a link": "ln -s {store} {place}/store",
}
LOOK = "cat $(find -L . -name alias -o -name credentials 2>/dev/null) 2>/dev/null; echo looked"


@requirement("E.grants")
@pytest.mark.parametrize("tier", ["strict", "guarded"])
@pytest.mark.parametrize("how", ALIASES)
def test_another_name_of_a_credential_is_the_same_credential(actor: Actor, fresh_repo: str, how: str, tier: str, debian: Callable[..., Tool]) -> None:
    debian("find", "findutils")
    store = f"{actor.home}/.aws"
    secret = actor.put(f"{store}/credentials", f"{SECRET}\n", 0o600)
    actor.sh(ALIASES[how].format(secret=secret, store=store, place=fresh_repo), cwd=fresh_repo)
    with measured(f"alias: {how}", actor.name, BARE):
        assert SECRET.encode() in actor.call(["sh", "-c", LOOK], cwd=fresh_repo).stdout, "without a box the other name opens it"
    with measured(f"alias: {how}", actor.name, tier):
        done = stockade(actor, "run", "--tier", tier, "--net", "none", "sh", "-c", LOOK, cwd=fresh_repo)
        assert SECRET not in done.out and "looked" in done.out, done
    actor.remove(store)
    with measured(f"alias: {how}, backup", actor.name, tier):
        # The same link of a file that is no secret is an ordinary file and stays one.
        plain = actor.put(f"{actor.home}/plain/credentials", f"{SECRET}\n", 0o644)
        actor.sh("rm -rf alias store first a; " + ALIASES["hard link"].format(secret=plain, place=fresh_repo), cwd=fresh_repo)
        done = stockade(actor, "run", "--tier", tier, "--net", "none", "sh", "-c", "cat alias && echo more >> alias && cat alias", cwd=fresh_repo)
        assert done.status == 0 and done.out.endswith(f"{SECRET}\nmore\n"), done
    actor.remove(f"{actor.home}/plain")
