"""``Sandbox.check``: the answers that a random tree seldom asks for, and the words of a denial."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from requirements import ALL, requirement
from support import uses
from support.actors import PYTHON, Actor, make_repository
from support.boxes import op
from support.cli import stockade


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
    assert stockade(actor, "cache", "clear", "--all").status == 0


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


def _acl(*entries: tuple[int, int, int]) -> bytes:
    """acl(5) as the kernel stores it: version 2, then tag, bits and id of each entry."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, bits, number & 0xFFFFFFFF) for tag, bits, number in entries)


@requirement("F.check_agrees")
@pytest.mark.known_gap("no_root_caller")
@pytest.mark.parametrize("tier", ALL)
def test_an_access_list_gives_and_takes_as_the_kernel_does(user: Actor, tier: str) -> None:
    base = user.make_dir(f"{user.home}/work/lists")
    mine, other = (user.uid, user.gid), (0, 0)
    lists = {"given": (other, 0o600, _acl((1, 6, -1), (2, 6, user.uid), (4, 0, -1), (16, 6, -1), (32, 0, -1))),
             "masked": (other, 0o600, _acl((1, 6, -1), (2, 6, user.uid), (4, 0, -1), (16, 4, -1), (32, 6, -1))),
             "group": (other, 0o600, _acl((1, 6, -1), (4, 0, -1), (8, 4, user.gid), (16, 6, -1), (32, 6, -1))),
             "taken": (other, 0o666, _acl((1, 6, -1), (2, 0, user.uid), (4, 6, -1), (16, 6, -1), (32, 6, -1))),
             "owned": (mine, 0o600, _acl((1, 4, -1), (2, 6, user.uid), (4, 6, -1), (16, 6, -1), (32, 6, -1)))}
    for name, (owner, mode, data) in lists.items():
        place = user.host(user.put(f"{base}/{name}", name, mode))
        os.chown(place, *owner)
        os.setxattr(place, "system.posix_acl_access", data)
    pairs = [(f"{base}/{name}", mode) for name in lists for mode in ("read", "write")]
    said = _states(_check(user, tier, *pairs, cwd_arg=base, write=[base]))
    got = uses.boxed(user, [op(f"use_{mode}", f"{mode} {path}", path=path) for path, mode in pairs], tier=tier, cwd=base, write=[base]).answers
    assert dict(zip(pairs, said, strict=True)) == {(path, mode): "denied" if got[f"{mode} {path}"]["errno"] else "same_object" for path, mode in pairs}
    assert said == ["same_object", "same_object", "same_object", "denied", "same_object", "denied", "denied", "denied", "same_object", "denied"]
    user.remove(base)


@requirement("F.check_agrees")
@pytest.mark.parametrize("tier", ALL)
def test_questions_that_are_none_are_refused_and_not_answered(user: Actor, fresh_repo_of_user: str, tier: str) -> None:
    said = [user.answer({"mode": "check", "kwargs": user._grants(tier, None, {"cwd_arg": fresh_repo_of_user}), "pairs": [pair]}, cwd=fresh_repo_of_user)
            for pair in (("README", "look"), ("", "read"), ("a\0b", "read"))]
    assert [each["refused"]["code"] for each in said] == ["value_invalid", "path_invalid", "path_invalid"]
    assert said[0]["refused"]["type"] == "ConfigError"
    assert _states(_check(user, tier, ("/proc/1/environ", "read"), ("/dev/tty", "read"), cwd_arg=fresh_repo_of_user)) == ["unknown", "unknown"]


@pytest.fixture
def fresh_repo_of_user(user: Actor) -> Iterator[str]:
    """A repository of the ordinary account for one test."""
    path = f"{user.home}/work/asked"
    user.remove(path)
    yield make_repository(user, path)
    user.remove(path)


@requirement("F.check_agrees")
def test_without_a_box_the_host_itself_is_asked(user: Actor, fresh_repo_of_user: str) -> None:
    pairs = (("README", "write"), ("/etc/hostname", "read"), ("/etc/hostname", "write"), ("new", "create"), ("/tmp/x", "create"))
    assert _states(_check(user, "off", *pairs, cwd_arg=fresh_repo_of_user)) == ["same_object", "same_object", "denied", "same_object", "same_object"]


@requirement("F.check_agrees")
@pytest.mark.parametrize("tier", ALL)
def test_a_narrowed_sandbox_is_asked_about_what_is_left(user: Actor, fresh_repo_of_user: str, tier: str) -> None:
    code = ("import json, sys, stockade\n"
            f"box = stockade.Sandbox(tier={tier!r}, caller='operator', cwd='.', net='none')\n"
            "less = box.narrow(write=[], hide=['README'])\n"
            "def ask(box, path, mode):\n"
            "    try:\n        return box.check(path, mode)\n"
            "    except stockade.Denied as denied:\n        return str(denied.grant)\n"
            "print(json.dumps([ask(box, 'README', 'write'), ask(box, b'README', 'read'), ask(less, 'README', 'read'), ask(less, 'new', 'create')]))")
    done = user.call([PYTHON, "-B", "-c", code], cwd=fresh_repo_of_user, env={**user.env, "PYTHONPATH": str(user.stage.lib)})
    # The ceiling stays: no grant gives back what was taken away.
    assert json.loads(done.stdout) == ["same_object", "same_object", "None", "None"], done.stderr
