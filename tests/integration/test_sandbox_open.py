"""``Sandbox.open``: the file that the box has under that name, or nothing; also while names are swapped."""

from __future__ import annotations

import os
import stat
from typing import Any

import pytest

from requirements import ALL, requirement
from support.actors import Actor


def _open(actor: Actor, tier: str, path: str, how: str = "r", text: str = "", **kwargs: Any) -> dict[str, Any]:
    given = actor._grants(tier, None, kwargs)
    return actor.answer({"mode": "open", "kwargs": given, "path": path, "how": how, "text": text}, cwd=given["cwd"])


def _tree(actor: Actor, base: str) -> None:
    """A workspace whose names can lead to a secret beside it, and the twins to exchange them with."""
    actor.put(f"{base}/w/s/file", "inside", 0o644)
    actor.put(f"{base}/w/s/dir/file", "inside", 0o644)
    actor.put(f"{base}/w/s/deep/er/file", "inside", 0o644)
    actor.put(f"{base}/w/s/up/x/file", "inside", 0o644)
    secret = actor.put(f"{actor.home}/.ssh/race/file", "outside", 0o644)
    actor.put(f"{actor.home}/.ssh/race/er/file", "outside", 0o644)
    for name, target in (("file.alt", secret), ("dir.alt", os.path.dirname(secret)), ("deep.alt", os.path.dirname(secret)), ("up.alt", "../../../../.ssh/race")):
        os.symlink(target, actor.host(f"{base}/w/s/{name}"))
    os.symlink("file", actor.host(f"{base}/w/s/link"))
    os.symlink(secret, actor.host(f"{base}/w/s/link.alt"))


@requirement("F.open_stays_inside")
@pytest.mark.parametrize("tier", ("guarded", "strict"))
def test_no_swap_of_names_leads_an_open_outside_what_the_box_may_reach(actor: Actor, tier: str) -> None:
    base = f"{actor.home}/work/race"
    actor.remove(base)
    actor.remove(f"{actor.home}/.ssh/race")
    _tree(actor, base)
    before = sorted(os.listdir(actor.host(f"{actor.home}/.ssh/race")))
    opens = [(f"s/{name}", "r") for name in ("file", "link", "dir/file", "deep/er/file", "dir/../file", "up/x/../x/file")]
    opens += [("s/dir/new", "w"), ("s/deep/er/new", "a"), ("s/dir/fresh", "x")]
    job = {"mode": "storm", "seconds": 3, "opens": opens, "kwargs": actor._grants(tier, None, {"cwd_arg": f"{base}/w", "write": [f"{base}/w"]}),
           "swaps": [(f"{base}/w/s/{name}", f"{base}/w/s/{name}.alt") for name in ("file", "link", "dir", "deep", "up")]}
    got = actor.answer(job, cwd=f"{base}/w")
    print(f"{actor.name} {tier}: {got}")
    assert set(got["seen"]) == {"inside", "written"}
    assert min(got["seen"]["inside"], got["denied"]) > 100
    assert sorted(os.listdir(actor.host(f"{actor.home}/.ssh/race"))) == before
    assert actor.host(f"{actor.home}/.ssh/race/file").read_text() == "outside"
    actor.remove(base)
    actor.remove(f"{actor.home}/.ssh/race")


@requirement("F.open_stays_inside")
@pytest.mark.parametrize("tier", ALL)
def test_open_makes_changes_and_appends_as_the_builtin_does(actor: Actor, fresh_repo: str, tier: str) -> None:
    path = f"{fresh_repo}/notes"
    assert _open(actor, tier, path, cwd_arg=fresh_repo) == {"error": "FileNotFoundError"}
    assert _open(actor, tier, "notes", "w", "one", cwd_arg=fresh_repo) == {"text": 3}
    assert _open(actor, tier, path, "a", "two", cwd_arg=fresh_repo) == {"text": 3}
    assert _open(actor, tier, path, "r+", cwd_arg=fresh_repo) == {"text": "onetwo"}
    assert _open(actor, tier, path, "x", "no", cwd_arg=fresh_repo) == {"error": "FileExistsError"}
    assert _open(actor, tier, fresh_repo, "w", "no", cwd_arg=fresh_repo) == {"error": "IsADirectoryError"}
    info = os.stat(actor.host(path))
    assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (actor.uid, actor.gid, 0o666 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@requirement("F.open_stays_inside")
@pytest.mark.parametrize("tier", ("guarded", "strict"))
def test_hidden_files_private_places_and_guarded_points_are_denied(actor: Actor, fresh_repo: str, tier: str) -> None:
    secret = actor.put(f"{actor.home}/.aws/credentials", "secret\n")
    absent = f"{actor.home}/.kube/not-there"
    denied = {path: _open(actor, tier, path, cwd_arg=fresh_repo) for path in (secret, absent)}
    # A name that is hidden is denied whether it exists or not.
    assert {path: (said["errno"], said["filename"]) for path, said in denied.items()} == {path: (13, path) for path in denied}
    assert all("fs.credentials" in said["denied"] for said in denied.values())
    hook = _open(actor, tier, f"{fresh_repo}/.git/hooks/pre-push", "w", "x", cwd_arg=fresh_repo)
    assert (hook["errno"], hook["grant"]) == (13, "allow=['git-config'], accept=['fs.persistence']")
    actor.put("/tmp/of-the-host", "host\n")
    assert _open(actor, tier, "/tmp/of-the-host", cwd_arg=fresh_repo)["errno"] == 13
    assert _open(actor, tier, "/tmp/made", "w", "x", cwd_arg=fresh_repo)["errno"] == 13
    assert not os.path.lexists(actor.host("/tmp/made"))
    assert _open(actor, tier, f"{fresh_repo}/README", cwd_arg=fresh_repo) == {"text": "hello\n"}
