"""Host sockets for the attacks: concrete paths of list entries, bound by the host process.

Owns the expansion of a listed path in an actor's world and the binding of it.
"""

from __future__ import annotations

import os

from support.actors import Actor


def expand(path: str, actor: Actor) -> str:
    """A concrete socket path of one list entry, in the actor's world."""
    path = path.replace("$XDG_RUNTIME_DIR", f"/run/user/{actor.uid}").replace("<uid>", str(actor.uid)).replace("$UID", str(actor.uid))
    path = path.replace("%u", actor.env["USER"]).replace("<user>", actor.env["USER"]).replace("$USER", actor.env["USER"])
    path = path.replace("$XDG_STATE_HOME", "~/.local/state").replace("$XDG_DATA_HOME", "~/.local/share").replace("$XDG_CONFIG_HOME", "~/.config")
    path = path.replace("$XDG_CACHE_HOME", "~/.cache").replace("$HOME", "~").replace("$TMPDIR", "/tmp")
    path = path.replace("$TMUX_TMPDIR", "/tmp").replace("/var/run/", "/run/")
    if path.startswith("~/"):
        path = f"{actor.home}/{path[2:]}"
    elif not path.startswith("/"):
        path = f"{actor.home}/{path}"
    if "$" in path:
        raise ValueError(f"a variable that the fixture does not know: {path}")
    return path.replace("**", "s").replace("*", "s").replace("?", "s").rstrip("/")


def bind_sockets(actor: Actor, paths: list[str]) -> list[str]:
    """Bind every path that this account may create; root's world makes /run writable for it."""
    bound = []
    for path in paths:
        if path.startswith(("/run/", "/tmp/", "/var/tmp/", actor.home + "/")):
            own_parents(actor, path)
            actor.remove(path)
            actor.agent.do("listen", path=path)
            bound.append(path)
    return bound


def own_parents(actor: Actor, path: str) -> None:
    """System directories of the fixture /run belong to nobody else: lend them to the account."""
    parent = actor.host(path).parent
    # For the account alone, as tmux and others make theirs: they refuse a directory that is open to more.
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    stop = actor.host("/run") if path.startswith("/run/") else actor.host("/tmp") if path.startswith("/tmp/") else actor.host(actor.home)
    while parent != stop and parent != parent.parent:
        os.chown(parent, actor.uid, actor.gid)
        parent = parent.parent
    if path.startswith("/run/"):
        os.chown(actor.host("/run"), actor.uid, actor.gid)


def unbind_sockets(actor: Actor, paths: list[str]) -> None:
    """Close what was bound and remove the names."""
    actor.agent.do("forget")
    for path in paths:
        actor.remove(path)
