"""What a host may have against boxes: each obstacle is real here, named by its class, and has a remedy.

The kernel refuses because of a filter, a namespace's own limits or a covered /proc that the test
made for its own process; nothing of the host is changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from requirements import requirement
from support.actors import Actor
from support.cli import Said, environment, stockade
from support.where import own, shell

USERNS = "0x10000000:0x10000000"
NO_USERNS = [f"clone:EPERM:0:{USERNS}", f"unshare:EPERM:0:{USERNS}"]


@pytest.fixture
def env(actor: Actor) -> Iterator[dict[str, str]]:
    """The command line's environment with a state home of its own."""
    state = f"{actor.home}/obstacle-state"
    actor.remove(state)
    yield environment(actor, STOCKADE_HOME=state)
    actor.remove(state)


def ordinary(actor: Actor, *script: str) -> list[str]:
    """Namespaces of one's own, with what root of them may do done, and then the caller's own number again."""
    back = [] if actor.is_root else ["/usr/bin/unshare", "--user", f"--map-user={actor.uid}", f"--map-group={actor.gid}", "--"]
    return [*own(), *shell("\n".join(script)), *back]


def doctor(actor: Actor, before: list[str], env: dict[str, str], *words: str) -> tuple[Said, dict[str, Any]]:
    """What doctor says as a document, and the one obstacle in it."""
    said = stockade(actor, "doctor", "--json", *words, before=before, env=env)
    assert said.err == "", said.err
    found = said.json()["obstacles"]
    return said, found[0] if found else {}


FILTERS = {
    "user namespaces": (NO_USERNS, "filter_namespaces", "userns_denied", "EPERM"),
    "unshare is unknown": (["clone:ENOSYS:0:" + USERNS], "filter_namespaces", "userns_denied", "ENOSYS"),
    "mount namespaces": (["clone:EPERM:0:0x20000:0x20000"], "filter_namespaces", "userns_denied", "EPERM"),
    "the network namespace": (["unshare:EPERM:0:0x40000000:0x40000000"], "filter_namespaces", "namespace_denied", "EPERM"),
    "clones of mounts": (["open_tree:EPERM"], "filter_mounts", None, "EPERM"),
    "moves of mounts": (["move_mount:EPERM"], "filter_mounts", None, "EPERM"),
    "the new mount calls": (["fsopen:ENOSYS"], "filter_mounts", None, "ENOSYS"),
    "a new root": (["pivot_root:EPERM"], "filter_mounts", "pivot_denied", "EPERM"),
    "keyrings": (["keyctl:EPERM"], "filter_calls", "keyring_denied", "EPERM"),
}


@requirement("D.obstacles")
@pytest.mark.parametrize("what", FILTERS)
def test_a_filter_that_denies_what_a_box_is_made_of_is_named_with_step_object_and_errno(actor: Actor, env: dict[str, str], what: str) -> None:
    faults, name, code, errno = FILTERS[what]
    before = [str(actor.stage.bin / "fault_loader"), *faults, "--"]
    said, found = doctor(actor, before, env)
    assert said.status == 1 and found["class"] == name and found["errno"] == errno and found["object"], found
    assert code is None or found["code"] == code, found
    assert isinstance(found["step"], int) and found["commands"] and errno in found["reason"], found
    run = stockade(actor, "run", "--quiet", "touch", "obstacle-ran", before=before, env=env)
    assert run.status == 125 and found["reason"] in run.err and run.err.count("\n") == 1, run
    assert not actor.host(f"{actor.workspace}/obstacle-ran").exists()


@requirement("D.obstacles")
@pytest.mark.parametrize("kind", ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"])
def test_a_limit_of_zero_names_the_setting_and_its_line(user: Actor, kind: str) -> None:
    env = environment(user, STOCKADE_HOME=f"{user.home}/obstacle-state")
    # In a namespace of one's own, under one's own number, and without a capability from there on.
    mine = ["/usr/bin/unshare", "--user", f"--map-user={user.uid}", f"--map-group={user.gid}", "--keep-caps", "--"]
    before = [*mine, *shell(f"echo 0 > /proc/sys/user/max_{kind}_namespaces"), "/usr/bin/setpriv", "--inh-caps", "-all", "--ambient-caps", "-all"]
    said, found = doctor(user, before, env)
    user.remove(f"{user.home}/obstacle-state")
    assert (said.status, found["class"], found["errno"], found["transient"]) == (1, "namespaces_off", "ENOSPC", False), found
    assert found["commands"][0] == f"sysctl -w user.max_{kind}_namespaces=15000", found


@requirement("D.obstacles")
def test_a_limit_that_a_sandbox_outside_has_set_is_no_passing_shortage(user: Actor) -> None:
    """Its number cannot be read from inside, and the errno is that of a machine which has many."""
    env = environment(user, STOCKADE_HOME=f"{user.home}/obstacle-state")
    before = ordinary(user, "echo 1 > /proc/sys/user/max_user_namespaces")
    said, found = doctor(user, before, env, "--require", "standard")
    bubblewrap = ["/usr/bin/bwrap", "--dev-bind", "/", "/", "--unshare-user", "--disable-userns"]
    theirs, same = doctor(user, bubblewrap, env)
    user.remove(f"{user.home}/obstacle-state")
    for status, got in ((said.status, found), (theirs.status, same)):
        assert (status, got["class"], got["errno"], got["transient"]) == (1, "namespaces_limited", "ENOSPC", False), got
        assert got["commands"] == ["# start it outside of that sandbox"]


@requirement("D.obstacles")
def test_root_of_a_user_namespace_is_told_apart_from_root(actor: Actor, env: dict[str, str]) -> None:
    said, found = doctor(actor, own(), env)
    assert (said.status, found["class"], found["code"], found["errno"]) == (1, "root_of_userns", "map_denied", "EPERM"), found
    # The line that is printed is one that helps.
    words = found["commands"][0].split()
    assert words[-2:] == ["stockade", "doctor"]
    helped = stockade(actor, "doctor", "--json", before=[*own(), *words[:-2]], env={**env, "STOCKADE_HOME": "/tmp/obstacle-helped"})
    actor.remove("/tmp/obstacle-helped")
    assert helped.json()["obstacles"] == [], helped.json()["obstacles"]


@requirement("D.obstacles")
def test_a_covered_proc_is_named_with_what_covers_it(actor: Actor, env: dict[str, str]) -> None:
    if actor.is_root and os.geteuid() == 0:
        before = ["/usr/bin/unshare", "--mount", "--propagation", "private", "--", *shell("mount -t tmpfs -o ro none /proc/fs")]
    else:
        before = ordinary(actor, "mount -t tmpfs -o ro none /proc/fs")
    said, found = doctor(actor, before, env)
    assert (said.status, found["class"], found["code"], found["errno"]) == (1, "proc_covered", "proc_denied", "EPERM"), found
    assert "/proc/fs" in found["reason"] and found["commands"] == ["umount /proc/fs"], found


@requirement("D.obstacles")
def test_below_a_root_of_chroot_the_cause_is_named(user: Actor, root: Actor) -> None:
    """An ordinary user: root is put there and gives up being root, as a service manager does."""
    script = ("mount -t tmpfs -o mode=0755 none /mnt; for d in bin lib lib64 usr etc opt dev proc sys run tmp var/tmp home; do test ! -d /$d || "
              "{ mkdir -p /mnt/jail/$d; mount --rbind /$d /mnt/jail/$d; }; done; exec /usr/sbin/chroot /mnt/jail \"$@\"")
    drop = ["/usr/bin/setpriv", "--reuid", str(user.uid), "--regid", str(user.gid), "--clear-groups"]
    before = ["/usr/bin/unshare", "--mount", "--propagation", "private", "--", *shell(script), *drop]
    env = environment(user, STOCKADE_HOME="/var/tmp/obstacle-chroot")
    said, found = doctor(root, before, env)
    root.remove("/var/tmp/obstacle-chroot")
    assert (said.status, found["class"], found["errno"]) == (1, "chroot", "EPERM"), found


@requirement("D.obstacles")
def test_root_without_its_capability_is_told_what_helps(actor: Actor, env: dict[str, str]) -> None:
    if not (actor.is_root and os.geteuid() == 0):
        return
    before = ["/usr/bin/setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
    said, found = doctor(actor, before, env)
    assert (said.status, found["class"]) == (1, "root_without_sys_admin") and found["commands"][0].startswith("setpriv --reuid 1000"), found


@requirement("D.obstacles", "A.exhaustion_is_transient")
def test_a_passing_shortage_is_no_answer(actor: Actor, env: dict[str, str]) -> None:
    before = [str(actor.stage.bin / "fault_loader"), f"clone:ENOMEM:0:{USERNS}", "--"]
    said, found = doctor(actor, before, env, "--require", "standard")
    assert said.status == 2 and found["transient"] is True and said.json()["reachable"] is None, said
    said = stockade(actor, "doctor", "--require", "strict", before=before, env=env)
    assert said.status == 2 and said.out.startswith("cannot tell: "), said


@requirement("D.obstacles")
def test_require_answers_for_the_tier_that_is_named(actor: Actor, env: dict[str, str]) -> None:
    for tier in ("standard", "guarded", "strict"):
        said, _ = doctor(actor, [], env, "--require", tier)
        assert (said.status, said.json()["reachable"], said.json()["required"]) == (0, True, tier)
    before = [str(actor.stage.bin / "fault_loader"), *NO_USERNS, "--"]
    assert doctor(actor, before, env, "--require", "standard")[0].status == 1


@requirement("D.obstacles")
def test_fix_prints_what_it_would_do_and_applies_only_a_setting(user: Actor) -> None:
    """The setting is that of a namespace of the test's own, whose root the caller is."""
    env = environment(user, STOCKADE_HOME=f"{user.home}/obstacle-state")
    limit = "/proc/sys/user/max_user_namespaces"
    before = [*own(), *shell(f"echo 0 > {limit}", f'"$@" || true; echo; cat {limit}')]
    dry = stockade(user, "doctor", "--fix", "--dry-run", before=before, env=env)
    assert "sysctl -w user.max_user_namespaces=15000" in dry.out and "applied: " not in dry.out and dry.out.endswith("\n0\n"), dry
    fixed = stockade(user, "doctor", "--fix", before=before, env=env)
    user.remove(f"{user.home}/obstacle-state")
    assert "applied: user.max_user_namespaces is 0" in fixed.out and fixed.out.endswith("\n15000\n"), fixed


@requirement("D.obstacles")
def test_flags_that_a_namespace_around_has_locked_stay_and_do_no_harm(user: Actor) -> None:
    """A read-only view of such a mount must name them again, or the kernel refuses it."""
    place = user.make_dir(f"{user.home}/locked")
    env = environment(user, STOCKADE_HOME=f"{user.home}/obstacle-state")
    before = ordinary(user, f"mount -t tmpfs -o nosuid,nodev,noexec none {place}", f"echo x > {place}/file", f"chmod 666 {place}/file")
    run = stockade(user, "run", "--quiet", "--tier", "strict", "--net", "none", "--read", place, "--", "/bin/sh", "-c",
                   f"cat {place}/file; grep ' {place} ' /proc/self/mountinfo", before=before, env=env)
    user.remove(f"{user.home}/obstacle-state")
    assert run.status == 0 and run.out.startswith("x\n"), run
    assert set(run.out.splitlines()[1].split(" ")[5].split(",")) >= {"ro", "nosuid", "nodev", "noexec"}, run.out
