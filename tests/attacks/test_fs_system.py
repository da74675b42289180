"""fs.system: outside the home only the operating system, toolchains and grants are there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from requirements import at_tiers, requirement
from support.actors import Actor
from support.boxes import failed_with, kept, op, worked

NOT_SYSTEM = ("/opt", "/srv", "/mnt", "/media", "/boot", "/var/log", "/var/spool", "/var/backups", "/var/lib/dpkg", "/lost+found", "/sys/kernel", "/sys/firmware", "/sys/class")


@pytest.fixture
def outside(actor: Actor) -> Iterator[str]:
    """A world-readable file in a place that is neither home nor system."""
    base = actor.stage.root / f"data-{actor.name}"
    base.mkdir(mode=0o755)
    (base / "customers.db").write_text("data")
    (base / "customers.db").chmod(0o644)
    yield str(base)
    shutil.rmtree(base)


@requirement("fs.system")
@at_tiers("fs.system")
def test_places_that_are_no_system_do_not_exist(actor: Actor, outside: str, tier: str) -> None:
    there = [path for path in NOT_SYSTEM if Path(path).is_dir() and os.access(path, os.R_OK)]
    ops = [op("list", path=path) for path in there if path not in ("/opt", "/lost+found")]
    ops += [op("read", "data", path=f"{outside}/customers.db"), op("list", "data dir", path=outside)]
    worked(actor.bare(ops))
    run = actor.box([*ops, op("list", "opt", path="/opt"), op("list", "root", path="/")], tier=tier)
    shown = {name: got["value"] for name, got in run.answers.items() if got["errno"] is None and name not in ("opt", "root")}
    assert {name: value for name, value in shown.items() if value} == {}
    failed_with({name: run.answers[name] for name in ("data", "data dir")}, {"ENOENT"})
    assert run.answers["opt"]["value"] in (None, [actor.stage.root.name])
    assert set(run.value("root")) & {"boot", "srv", "mnt", "media", "lost+found"} <= {"mnt"}
    kept(run, "fs.system", tier)


@requirement("fs.system")
@at_tiers("fs.system")
def test_the_system_is_there_read_only(actor: Actor, tier: str) -> None:
    ops = [op("list", path="/usr/bin"), op("read", path="/etc/passwd"), op("run", path="sh", argv=["/bin/sh", "-c", "python3 -c 'import ssl, json'; git --version"]),
           op("read", path="/dev/null"), op("read", path="/dev/urandom", limit=4)]
    run = actor.box([*ops, op("create", "usr", path="/usr/new"), op("create", "etc", path="/etc/new"), op("create", "rootdir", path="/new")], tier=tier)
    worked(run.answers, but={"usr", "etc", "rootdir"})
    assert run.value("run sh")["status"] == 0
    failed_with({name: run.answers[name] for name in ("usr", "etc", "rootdir")}, {"EROFS", "EACCES"})


@requirement("fs.system")
@at_tiers("fs.system")
def test_secrets_of_the_system_cannot_be_read_by_root(root: Actor, tier: str) -> None:
    paths = [path for path in ("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/proc/kcore", "/proc/kmsg", "/dev/vda", "/dev/mem", "/dev/kmsg") if os.path.exists(path)]
    ops = [op("read", path=path, limit=16) for path in paths]
    bare = root.bare([item for item in ops if not item["path"].startswith(("/dev", "/proc"))])
    worked(bare)
    run = root.box([*ops, op("read", "twin", path="/etc/passwd")], tier=tier)
    failed_with(run.answers, {"ENOENT", "EACCES", "EPERM"}, but={"twin"})
    assert "root:" in run.value("twin")


@requirement("fs.system")
@at_tiers("fs.system")
def test_a_granted_place_is_there(actor: Actor, outside: str, tier: str) -> None:
    run = actor.box([op("read", "data", path=f"{outside}/customers.db"), op("create", "new", path=f"{outside}/new")], tier=tier, read=[outside])
    assert run.value("data") == "data"
    assert run.answers["new"]["errno"] == "EROFS"


@requirement("fs.system")
@at_tiers("fs.system")
def test_account_databases_name_no_other_people(root: Actor, user: Actor, tier: str) -> None:
    passwd = root.box([op("read", "passwd", path="/etc/passwd")], tier=tier).value("passwd")
    assert user.env["USER"] not in passwd
    assert "root:" in passwd


@requirement("fs.system")
@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_a_hidden_path_of_the_system_does_not_exist(actor: Actor, tier: str) -> None:
    """Whatever shows it: a row of the system itself, a directory around it, a copied file of /etc, a link to it."""
    hidden = ["/etc/ssl", "/etc/hosts", "/usr/share", "/usr/lib/git-core"]
    ops = [op("list", "ssl", path="/etc/ssl"), op("read", "hosts", path="/etc/hosts"), op("list", "share", path="/usr/share"), op("list", "git", path="/usr/lib/git-core")]
    worked(actor.bare(ops))
    worked(actor.box(ops, tier=tier, net="host").answers)
    failed_with(actor.box(ops, tier=tier, net="host", hide=hidden).answers, {"ENOENT"})
    gone = actor.run(["/bin/true"], tier=tier, hide=["/usr"])
    assert gone.code == "not_found", gone.raw
