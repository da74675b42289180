"""``Sandbox.check``: the answers that a random tree seldom asks for, and the words of a denial."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from requirements import ALL, requirement
from support import uses
from support.actors import Actor
from support.boxes import op


def _check(actor: Actor, tier: str, *pairs: tuple[str, str], **kwargs: Any) -> list[dict[str, Any]]:
    given = actor._grants(tier, None, kwargs)
    said = actor.answer({"mode": "check", "kwargs": given, "pairs": pairs, "grants_every": 1}, cwd=given["cwd"])
    return list(said["answers"])


def _states(answers: list[dict[str, Any]]) -> list[str]:
    return [str(answer["answer"]) for answer in answers]


@requirement("F.check_agrees")
@pytest.mark.parametrize("tier", ALL)
def test_a_socket_can_be_connected_to_only_when_it_is_granted(actor: Actor, fresh_repo: str, tier: str) -> None:
    places = [actor.put(f"{actor.home}/work/sock/s.keep"), actor.put(f"{fresh_repo}/s.keep")]
    paths = [place.removesuffix(".keep") for place in places]
    for path in paths:
        actor.remove(path)
        actor.agent.do("listen", path=path)
    try:
        ops = [op("use_connect", path=path) for path in paths]
        assert _states(_check(actor, tier, *((path, "connect") for path in paths), cwd_arg=fresh_repo)) == ["denied", "denied"]
        denied = uses.boxed(actor, ops, tier=tier, cwd=fresh_repo).answers
        assert all(answer["errno"] for answer in denied.values())
        assert _states(_check(actor, tier, *((path, "connect") for path in paths), cwd_arg=fresh_repo, sockets=paths)) == ["same_object"] * 2
        granted = uses.boxed(actor, ops, tier=tier, cwd=fresh_repo, sockets=paths).answers
        assert not any(answer["errno"] for answer in granted.values())
        (answer,) = _check(actor, tier, (paths[1], "connect"), cwd_arg=fresh_repo)
        assert (answer["rule"], answer["grant"]) == ("a socket of the host is out of reach unless granted (ipc.sockets)", f"sockets=[{paths[1]!r}]")
    finally:
        actor.agent.do("forget")


@requirement("F.check_agrees")
@pytest.mark.parametrize("tier", ALL)
def test_a_grant_that_a_denial_names_changes_the_answer_to_itself(actor: Actor, fresh_repo: str, tier: str) -> None:
    path = actor.put(f"{actor.elsewhere}/plain", "x", 0o644)
    (answer,) = _check(actor, tier, (path, "write"), cwd_arg=fresh_repo)
    assert answer["grant"] == f"write=[{path!r}]"
    assert _states(_check(actor, tier, (path, "write"), cwd_arg=fresh_repo, write=[fresh_repo, path])) == ["same_object"]
    (new,) = _check(actor, tier, (f"{actor.elsewhere}/new", "create"), cwd_arg=fresh_repo)
    expected = {"standard": "denied", "guarded": "denied", "strict": "private"}
    assert new["answer"] == expected[tier] or (tier == "strict" and new["answer"] == "denied")


@requirement("F.check_agrees")
@pytest.mark.parametrize("tier", ALL)
def test_a_cache_is_the_users_own_until_it_is_changed(actor: Actor, fresh_repo: str, tier: str) -> None:
    cache = f"{actor.home}/.npm/_cacache/{tier}"  # the identity is the same at each tier
    kept = actor.put(f"{cache}/kept", "nonce of the host", 0o644)
    changed = actor.put(f"{cache}/changed", "nonce of the host too", 0o644)
    given = {"cwd_arg": fresh_repo, "profile": ["npm"]}
    pairs = ((kept, "read"), (kept, "write"), (f"{cache}/new", "create"), (changed, "read"))
    assert _states(_check(actor, tier, *pairs, **given)) == ["same_object", "private", "private", "same_object"]
    ops = [op("use_write", path=changed), op("use_create", path=f"{cache}/new"), op("rewrite", path=changed, keep=True), op("remove", path=kept)]
    done = uses.boxed(actor, ops, tier=tier, cwd=fresh_repo, profile=["npm"])
    assert not any(answer["errno"] for answer in done.answers.values()), done.answers
    after = ((kept, "read"), (changed, "read"), (kept, "create"))
    assert _states(_check(actor, tier, *after, **given)) == ["denied", "private", "private"]


@requirement("F.check_agrees")
@pytest.mark.known_gap("no_root_caller")
@pytest.mark.parametrize("tier", ALL)
def test_mounts_of_the_host_inside_the_tree_are_seen_as_the_box_has_them(root: Actor, tier: str) -> None:
    base = f"{root.home}/work/mounts"
    for name in ("w/tmpfs", "w/ro", "w/noexec"):
        root.make_dir(f"{base}/{name}")
    script = f"cd {base}/w && mount -t tmpfs t tmpfs && mount -t tmpfs -o ro t ro && mount -t tmpfs -o noexec t noexec && touch tmpfs/f && cp /usr/bin/true noexec/p"
    enter = [*root.world.enter(0, 0, "/"), "/bin/sh", "-ec"]
    subprocess.run([*enter, script], check=True)
    try:
        pairs = [(f"{base}/w/{name}", mode) for name in ("tmpfs/f", "tmpfs", "ro", "noexec/p", "noexec") for mode in ("read", "write", "exec")]
        pairs.append((f"{base}/w/tmpfs/f", "delete"))
        said = _states(_check(root, tier, *pairs, cwd_arg=f"{base}/w", write=[f"{base}/w"]))
        ops = [op(f"use_{mode}", f"{mode} {path}", path=path) for path, mode in pairs]
        got = uses.boxed(root, ops, tier=tier, cwd=f"{base}/w", write=[f"{base}/w"]).answers
        worked = [got[f"{mode} {path}"]["errno"] is None for path, mode in pairs]
        wrong = [(pair, state, got[f"{pair[1]} {pair[0]}"]) for pair, state, each in zip(pairs, said, worked, strict=True)
                 if state != "unknown" and (state == "denied") == each]
        assert wrong == []
        print(list(zip(pairs, said, strict=True)))
    finally:
        subprocess.run([*enter, f"cd {base}/w && umount ./tmpfs ./ro ./noexec"], check=True)
        root.remove(base)
