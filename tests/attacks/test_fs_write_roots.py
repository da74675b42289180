"""fs.write_roots: content, names and sizes change inside the write roots only."""

from __future__ import annotations

import os

import pytest

from requirements import at_tiers, requirement
from support.actors import Actor, make_repository
from support.boxes import Op, failed_with, kept, op, worked
from support.trees import changes, snapshot


def _changes_in(directory: str, workspace: str) -> list[Op]:
    return [op("rewrite", path=f"{directory}/file"), op("write_open", path=f"{directory}/file"), op("create", path=f"{directory}/new"),
            op("unlink", path=f"{directory}/file"), op("rename", path=f"{directory}/file", to=f"{directory}/other"),
            op("mkdir", path=f"{directory}/sub"), op("symlink", path=f"{directory}/ln", to="file"),
            op("link", path=f"{directory}/file", to=f"{directory}/hard"), op("truncate", path=f"{directory}/file"),
            op("mkfifo", path=f"{directory}/fifo"), op("rename", "bring out", path=f"{workspace}/mine", to=f"{directory}/mine"),
            op("rewrite", "through a link", path=f"{workspace}/to-elsewhere"),
            op("rewrite", "dots", path=f"{workspace}/../../elsewhere/file"),
            op("rewrite", "proc root", path=f"/proc/self/root{directory}/file"),
            op("rewrite", "proc cwd", path="/proc/self/cwd/../../elsewhere/file"),
            op("exchange", path=f"{workspace}/mine", to=f"{directory}/file")]


def _fixtures(actor: Actor) -> None:
    actor.put(f"{actor.elsewhere}/file", "elsewhere\n", 0o644)
    actor.put(f"{actor.workspace}/mine", "mine\n", 0o644)
    actor.remove(f"{actor.workspace}/to-elsewhere")
    actor.host(f"{actor.workspace}/to-elsewhere").symlink_to(f"{actor.elsewhere}/file")


@requirement("fs.write_roots")
@at_tiers("fs.write_roots")
def test_nothing_outside_the_write_roots_changes(actor: Actor, tier: str) -> None:
    _fixtures(actor)
    ops = _changes_in(actor.elsewhere, actor.workspace)
    worked(actor.bare(ops))
    before = snapshot(actor.host(actor.elsewhere))
    run = actor.box(ops, tier=tier, read=[actor.elsewhere])
    failed_with(run.answers, {"EROFS", "EXDEV"})
    assert changes(before, snapshot(actor.host(actor.elsewhere))) == {}
    kept(run, "fs.write_roots", tier)


@requirement("fs.write_roots")
@at_tiers("fs.write_roots")
def test_the_same_changes_work_inside_a_write_root(actor: Actor, tier: str) -> None:
    _fixtures(actor)
    ops = [*_changes_in(actor.elsewhere, actor.workspace)]
    run = actor.box(ops, tier=tier, write=[actor.elsewhere])
    # Between two write roots a rename is a copy for every program; in one it must work.
    worked(run.answers, but={"bring out", f"exchange {actor.workspace}/mine"})
    failed_with({k: v for k, v in run.answers.items() if k in ("bring out", f"exchange {actor.workspace}/mine")}, {"EXDEV", None})
    inside = actor.box([op("create", path=f"{actor.workspace}/kept", keep=True, text="by the box")], tier=tier)
    worked(inside.answers)
    made = actor.host(f"{actor.workspace}/kept")
    assert made.read_text() == "by the box" and made.stat().st_uid == actor.uid and made.stat().st_gid == actor.gid
    made.unlink()


@requirement("fs.write_roots")
@at_tiers("fs.write_roots")
def test_the_home_and_shared_directories_keep_their_names(actor: Actor, tier: str) -> None:
    actor.put(f"{actor.home}/.bashrc", "# mine\n", 0o644)
    places = [actor.home, f"{actor.home}/.config", f"{actor.home}/.local/bin", "/tmp", "/var/tmp", "/dev/shm", f"/run/user/{actor.uid}"]
    for place in places[1:3]:
        actor.make_dir(place)
    ops = [op("create", path=f"{place}/planted", keep=True) for place in places] + [op("rewrite", path=f"{actor.home}/.bashrc", keep=True)]
    run = actor.box(ops, tier=tier)
    worked({name: run.answers[name] for name in ("create /tmp/planted", "create /var/tmp/planted", "create /dev/shm/planted")})
    assert [place for place in places if actor.host(f"{place}/planted").exists()] == []
    assert actor.host(f"{actor.home}/.bashrc").read_text() == "# mine\n"


@requirement("fs.write_roots")
@at_tiers("fs.write_roots")
def test_system_files_and_kernel_switches_cannot_be_written(root: Actor, tier: str) -> None:
    """For root every one of these opens without the box."""
    paths = ["/etc/passwd", "/etc/hostname", "/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern",
             "/proc/sys/vm/drop_caches", *(["/proc/sysrq-trigger"] if os.path.exists("/proc/sysrq-trigger") else [])]
    ops = [op("write_open", path=path) for path in paths]
    worked(root.bare(ops))
    run = root.box([*ops, op("create", "twin", path=f"{root.workspace}/twin")], tier=tier)
    failed_with(run.answers, {"EROFS", "EACCES", "EPERM", "ENOENT"}, but={"twin"})
    assert run.answers["twin"]["errno"] is None, "the workspace can be written"
    kept(run, "fs.write_roots", tier)


@requirement("fs.write_roots")
@at_tiers("fs.write_roots")
def test_the_private_temp_is_writable_and_gone_afterwards(actor: Actor, tier: str) -> None:
    run = actor.box([op("create", path="/tmp/private", keep=True), op("create", path="/var/tmp/private", keep=True), op("create", path="/dev/shm/private", keep=True)], tier=tier)
    worked(run.answers)
    assert not any(actor.host(f"{place}/private").exists() for place in ("/tmp", "/var/tmp", "/dev/shm"))


@requirement("fs.write_roots")
@pytest.mark.parametrize("tier", ("standard", "guarded", "strict"))
@pytest.mark.parametrize("place", ("work", "/tmp"))
def test_a_path_hidden_inside_a_read_grant_inside_a_write_root_is_hidden(actor: Actor, tier: str, place: str) -> None:
    workspace = make_repository(actor, os.path.join(actor.home, place, "hidden-inside"))
    secret = actor.put(f"{workspace}/sub/secret", "hidden-needle\n")
    plain = actor.put(f"{workspace}/sub/plain", "plain\n")
    worked(actor.bare([op("read", path=secret)], cwd=workspace))
    run = actor.box([op("read", path=secret), op("read", path=plain)], tier=tier, cwd=workspace,
                    read=[f"{workspace}/sub"], write=[workspace], hide=[secret])
    failed_with({f"read {secret}": run.answers[f"read {secret}"]}, {"ENOENT", "EACCES"})
    assert run.value(f"read {plain}") == "plain\n"
    actor.remove(workspace)
