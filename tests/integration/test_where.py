"""Where a process stands is told by the kernel: what others can make looks like no box.

Each forgery makes one thing more that a box has, up to what the next test calls a limit.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from requirements import requirement
from support import alone
from support.actors import PYTHON, Actor
from support.where import BARE_SETS, FORGE, active, filtered, own, saying, shell

TIERS = ("standard", "guarded", "strict")
OUTSIDE = ["outside", "off", True, None]
UNKNOWN = ["unknown", None, False, None]
FOREIGN = ["foreign", None, False, None]
# The fixture world of a run that is not root is a user namespace itself.
HERE = OUTSIDE if os.geteuid() == 0 else FOREIGN


@pytest.fixture
def record(actor: Actor) -> str:
    """The record of a real box of that account."""
    return actor.run(["/bin/cat", "/run/stockade/box.json"], tier="strict").stdout


@requirement("F.where_am_i")
@pytest.mark.parametrize("net", ["none", "host"])
@pytest.mark.parametrize("tier", TIERS)
def test_a_box_is_known_by_its_tier_and_run(actor: Actor, tier: str, net: str) -> None:
    assert active(actor) == HERE
    run = actor.run(saying(actor), tier=tier, net=net, read=[str(actor.stage.lib)])
    assert json.loads(run.stdout) == ["box", tier, True, run.receipt["run_id"]], run.stderr


@requirement("F.where_am_i")
def test_a_box_that_keeps_less_than_was_asked_for_says_what_it_keeps(actor: Actor) -> None:
    waived = actor.run(saying(actor), tier="guarded", read=[str(actor.stage.lib)], allow=["git-config"], accept=["fs.persistence"])
    assert waived.receipt["effective_tier"] == "standard" and json.loads(waived.stdout)[1] == "standard", waived.raw


@requirement("F.where_am_i", "F.marker_does_not_disable")
def test_variables_prove_nothing(actor: Actor, record: str) -> None:
    named = json.loads(record)
    env = {**actor.env, "STOCKADE_BOX": "strict", "STOCKADE_TIER": "strict", "STOCKADE_RUN_ID": named["run_id"], "container": "docker", "IN_SANDBOX": "1"}
    assert active(actor, env=env) == HERE


FORGERIES = {
    # A record that was copied out of a box; everybody may have seen one.
    "copied": ((), "", ()), "copied, filtered": ((), "", ("filter",)), "copied, as bare as a box": ((), "", ("sets", "filter")),
    # One that was written for this very place.
    "named": ((), "named", ("sets", "filter")), "named, own processes": (("--pid", "--fork", "--mount-proc"), "named", ("sets", "filter")),
}


@requirement("F.where_am_i")
@pytest.mark.parametrize("how", FORGERIES)
def test_a_forged_record_is_no_box(actor: Actor, record: str, how: str) -> None:
    options, named, bare = FORGERIES[how]
    before = [*own(*options), *shell(FORGE, '"$@"'), *(BARE_SETS if "sets" in bare else []), *(filtered(actor) if "filter" in bare else [])]
    env = {**actor.env, "RECORD": record, "NAMED": named}
    look = [*before, PYTHON, "-I", "-c", "import json; print(json.load(open('/run/stockade/box.json'))['effective_tier'])"]
    assert actor.call(look, env=env).stdout == b"strict\n", "the forgery stands, and who believes a file is fooled"
    assert active(actor, before, env=env) == UNKNOWN


@requirement("F.where_am_i")
def test_an_init_that_calls_itself_ours_is_not(actor: Actor, record: str) -> None:
    """All that a shell can do: names, sets, filter, a process 1 of that name; its memory can be read."""
    inner = [*BARE_SETS, *filtered(actor), *shell("printf stockade-init > /proc/self/comm; test $$ = 1", '"$@"')]
    before = [*own("--pid", "--fork", "--mount-proc"), *shell(FORGE), *inner]
    env = {**actor.env, "RECORD": record, "NAMED": "named"}
    assert actor.call([*before, "/bin/cat", "/proc/1/comm"], env=env).stdout == b"stockade-init\n"
    assert active(actor, before, env=env) == UNKNOWN


@requirement("F.where_am_i")
@pytest.mark.parametrize("script", ["mkdir /run/stockade; echo \"$RECORD\" > /run/stockade/box.json",
                                    "mkdir /run/fake /run/stockade; echo \"$RECORD\" > /run/fake/box.json; mount --bind /run/fake /run/stockade",
                                    "mkdir /run/fake; echo \"$RECORD\" > /run/fake/box.json; ln -s fake /run/stockade",
                                    "mkdir /run/stockade; mount -t tmpfs -o ro none /run/stockade",
                                    "mkdir /run/stockade; echo \"$RECORD\" > /run/r; touch /run/stockade/box.json; mount --bind -o ro /run/r /run/stockade/box.json"],
                         ids=["file", "bind", "link", "empty", "bound record"])
def test_whatever_else_lies_where_the_record_would_be_is_no_box_and_not_outside(actor: Actor, record: str, script: str) -> None:
    before = [*own(), *shell(f"mount -t tmpfs none /run; {script}")]
    for last in ([], filtered(actor)):
        assert active(actor, [*before, *last], env={**actor.env, "RECORD": record}) == UNKNOWN
    if actor.is_root and os.geteuid() == 0:
        # Root needs no user namespace for it, and then nothing else is in the way.
        before = ["/usr/bin/unshare", "--mount", "--propagation", "private", "--", *before[len(own()):]]
        assert active(actor, before, env={**actor.env, "RECORD": record}) == UNKNOWN


STATUS = "Umask:\\t0022\\nTgid:\\t$$\\nPid:\\t$$\\nNStgid:\\t$$\\nNSpid:\\t$$\\nUid:\\t0\\nGid:\\t0\\nNoNewPrivs:\\t0\\nSeccomp:\\t0\\nCapInh:\\t0\\nCapPrm:\\t0\\nCapEff:\\t0\\nCapBnd:\\t0\\nCapAmb:\\t0\\n"
NAMESPACES = "for n in user:4026531837 mnt:4026531832 pid:4026531836 net:4026531833; do ln -s \"${n%:*}:[${n#*:}]\" $t/ns/${n%:*}; done"
PROCS = {
    "empty": "mount -t tmpfs none /proc",
    "unreadable": "mount -t tmpfs -o mode=0 none /proc",
    # Everything that is asked for, written down; `exec` keeps the number of the process.
    "written": f"mount -t tmpfs none /proc; t=/proc/thread-self; mkdir -p $t/ns; printf '{STATUS}' > $t/status; {NAMESPACES}; "
               "echo '1 1 0:1 / / rw - ext4 x rw' > $t/mountinfo; echo '2 1 0:2 / /proc rw - proc proc rw' >> $t/mountinfo",
    "status of another": "mount --bind /proc/1/status /proc/$$/task/$$/status",
    "bound from the real one": "mkdir /run/p; mount --rbind /proc /run/p; mount -t tmpfs none /proc; mkdir /proc/thread-self; "
                               "for n in status mountinfo; do touch /proc/thread-self/$n; mount --bind /run/p/1/$n /proc/thread-self/$n; done",
    "part of the real one": "mount --bind /proc/$$ /run; mount --bind /proc/1 /proc/$$",
}


@requirement("F.where_am_i")
@pytest.mark.parametrize("how", PROCS)
def test_a_proc_that_is_not_the_kernels_is_believed_nothing(actor: Actor, how: str) -> None:
    script = PROCS[how] if how in ("empty", "unreadable", "written", "status of another") else f"mount -t tmpfs none /run; {PROCS[how]}"
    if actor.is_root or "1/" not in PROCS[how]:
        assert active(actor, [*own(), *shell(script)]) == UNKNOWN
    if actor.is_root and os.geteuid() == 0:
        assert active(actor, ["/usr/bin/unshare", "--mount", "--propagation", "private", "--", *shell(script)]) == UNKNOWN


JAIL = ("mount -t tmpfs none /mnt; for d in bin lib lib64 usr etc opt dev proc var/tmp; do test ! -d /$d || { mkdir -p /mnt/jail/$d; mount --rbind /$d /mnt/jail/$d; }; done; "
        "exec /usr/sbin/chroot /mnt/jail \"$@\"")


@requirement("F.where_am_i")
def test_a_root_of_ones_own_is_foreign(actor: Actor) -> None:
    assert active(actor, [*own(), *shell(JAIL)]) == FOREIGN
    if actor.is_root and os.geteuid() == 0:
        assert active(actor, ["/usr/bin/unshare", "--mount", "--propagation", "private", "--", *shell(JAIL)]) == FOREIGN


@requirement("F.where_am_i")
@pytest.mark.parametrize("how", ["filter", "no new privileges", "namespaces", "bubblewrap", "bubblewrap with processes"])
def test_sandboxes_of_others_are_foreign(actor: Actor, how: str) -> None:
    bubblewrap = ["/usr/bin/bwrap", "--dev-bind", "/", "/"]
    before = {"filter": filtered(actor), "no new privileges": ["/usr/bin/setpriv", "--no-new-privs"], "namespaces": own(), "bubblewrap": bubblewrap,
              "bubblewrap with processes": [*bubblewrap, "--unshare-pid", "--unshare-net", "--proc", "/proc"]}[how]
    assert active(actor, before) == FOREIGN


@requirement("F.where_am_i")
def test_bubblewrap_with_a_record_of_its_own_is_no_box(actor: Actor, record: str) -> None:
    copy = actor.put(f"{actor.elsewhere}/record", record, 0o644)
    before = ["/usr/bin/bwrap", "--dev-bind", "/", "/", "--unshare-user", "--unshare-pid", "--proc", "/proc", "--tmpfs", "/run", "--tmpfs", "/run/stockade",
              "--ro-bind", copy, "/run/stockade/box.json", "--remount-ro", "/run/stockade"]
    assert active(actor, before) == UNKNOWN
    assert active(actor, [*before, *filtered(actor)]) == UNKNOWN


@requirement("F.where_am_i")
@pytest.mark.known_gap("no_root_caller")
def test_a_user_namespace_that_maps_every_id_is_foreign(root: Actor) -> None:
    """Its map reads like that of the first one."""
    script = 'echo ready; read go; exec "$@"'
    argv = ["/usr/bin/unshare", "--user", "--", "/bin/sh", "-ec", script, "sh", *saying(root)]
    with root.spawn(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None and child.stdout.readline() == b"ready\n"
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{child.pid}/{name}", "w", encoding="ascii") as stream:
                stream.write("0 0 4294967295")
        out, _ = child.communicate(b"go\n", timeout=60)
    assert json.loads(out) == FOREIGN


@requirement("F.where_am_i")
@pytest.mark.known_gap("no_root_caller")
@pytest.mark.parametrize("options", [("--mount-proc",), ()])
def test_a_process_namespace_is_foreign(root: Actor, options: tuple[str, ...]) -> None:
    assert active(root, ["/usr/bin/unshare", "--pid", "--fork", *options, "--"]) == FOREIGN


@requirement("F.where_am_i")
@pytest.mark.known_gap("no_root_caller")
def test_who_enters_a_box_from_outside_is_not_told_that_it_confines_him(root: Actor) -> None:
    """The mounts and namespaces are the box's; the filter is not upon him."""
    with root.live(["/bin/cat"], tier="standard", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as box:
        assert box.stdout is not None and box.stdin is not None
        box.stdin.write(b"up\n")
        box.stdin.flush()
        assert box.stdout.readline() == b"up\n"
        enter = ["nsenter", "-t", str(_descendant(box.pid, "cat")), "-m", "-U", "-p", "--preserve-credentials", "--"]
        done = subprocess.run([*enter, *saying(root)], capture_output=True, check=False, timeout=60)
        box.stdin.close()
        assert box.wait(60) == 0
    assert json.loads(done.stdout) == UNKNOWN, done


def _descendant(pid: int, name: str) -> int:
    """The process of that name below another."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    for child in map(int, found):
        with open(f"/proc/{child}/comm", encoding="utf-8") as stream:
            if stream.read().strip() == name:
                return child
        below = _descendant(child, name)
        if below:
            return below
    return 0


# A child of what every first process of ours looks like, as far as a program in a box can make it.
POSES = """
import ctypes, subprocess, sys
ctypes.CDLL(None).prctl(15, b"stockade-init", 0, 0, 0)
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
raise SystemExit(subprocess.call(sys.argv[1:]))
"""


@requirement("F.where_am_i", "alone.layers")
@pytest.mark.parametrize("tier", ["standard", "strict"])
def test_a_box_without_namespaces_is_foreign_whatever_its_processes_pose_as(user: Actor, tier: str) -> None:
    """A tier that could be posed as would be a request that is passed through."""
    place = user.make_dir(f"{user.home}/work/posed")
    run = user.run([PYTHON, "-B", "-c", POSES, *saying(user)], tier=tier, net="none", read=[str(user.stage.lib)], cwd=place,
                   before=alone.filtered(user))
    user.remove(place)
    assert run.receipt["backend"] == "landlock", run.raw
    assert json.loads(run.stdout) == FOREIGN, run.raw
