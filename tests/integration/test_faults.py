"""Faults in every launcher step: a typed refusal, never a weaker box, nothing left behind.

No hook in the launcher: ``hostile/fault_loader`` lets the kernel answer chosen calls with an
error, or the plan itself asks for what this host cannot do.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
from typing import Any

import pytest

from requirements import requirement
from stockade.rules.promises import FACTS
from support.actors import WAIT_S, Actor
from support.live import processes_with, wait_until
from support.plans import ENOUGH, Ended, bind, launch, launching, small_plan, tmpfs
from support.trees import changes, snapshot

# code, step, faults. Values are those of the calls' public headers.
FAULTS = [
    ("userns_denied", 1, "clone:EPERM:0:0x10000000:0x10000000"),
    ("userns_denied", 1, "clone:ENOMEM:0:0x10000000:0x10000000"),
    # One call makes them all: each flag by itself is enough to refuse.
    ("userns_denied", 1, "clone:EPERM:0:0x20000:0x20000"),
    ("userns_denied", 1, "clone:EPERM:0:0x20000000:0x20000000"),
    ("userns_denied", 1, "clone:EPERM:0:0x8000000:0x8000000"),
    ("userns_denied", 1, "clone:EPERM:0:0x4000000:0x4000000"),
    ("userns_denied", 1, "clone:EPERM:0:0x2000000:0x2000000"),
    ("map_denied", 1, "write:EPERM:2:0xffffffff:{map}"),
    ("namespace_denied", 3, "unshare:EPERM:0:0x40000000:0x40000000"),
    ("namespace_denied", 3, "setns:EPERM:1:0x40000000:0x40000000"),
    ("namespace_denied", 3, "sethostname:EPERM"),
    ("mount_denied", 4, "mount:EPERM"),
    ("mount_denied", 4, "open_tree:EPERM"),
    ("mount_denied", 4, "move_mount:EPERM"),
    ("mount_denied", 4, "mount_setattr:EPERM"),
    ("mount_denied", 4, "fsmount:EPERM:2:0xffffffff:6"),
    ("source_denied", 4, "openat2:EACCES"),
    ("overlay_denied", 4, "fsconfig:EIO:1:0xffffffff:0"),
    ("mount_denied", 4, "fsconfig:EPERM:1:0xffffffff:0 move_mount:EPERM"),
    ("proc_denied", 4, "fsmount:EPERM:2:0xffffffff:14"),
    # Covers are the first mounts whose attributes are set without their submounts.
    ("proc_denied", 4, "mount_setattr:EPERM:2:0x8000:0"),
    # The supervisor's table of sockets, /proc/net/unix.
    ("proc_denied", 4, "openat:EACCES:2:0xffffffff:0x80000"),
    ("dev_denied", 5, "mknodat:EPERM:2:0xffffffff:0x8180"),
    ("dev_denied", 5, "fsmount:EPERM:2:0xffffffff:10"),
    ("dev_denied", 5, "symlinkat:EPERM"),
    ("pivot_denied", 6, "pivot_root:EPERM"),
    ("pivot_denied", 6, "umount2:EPERM"),
    ("fork_failed", 7, "clone:EAGAIN:0:0xffffffff:17"),
    ("fork_failed", 7, "socketpair:EMFILE"),
    ("fork_failed", 7, "pipe2:EMFILE"),
    ("fork_failed", 7, "setpgid:EPERM"),
    ("fork_failed", 7, "prctl:EPERM:0:0xffffffff:1"),
    ("fork_failed", 7, "prctl:EPERM:0:0xffffffff:4"),
    ("fds_denied", 8, "close_range:EPERM fcntl:EPERM:1:0xffffffff:2"),
    ("nnp_denied", 10, "prctl:EPERM:0:0xffffffff:38"),
    ("keyring_denied", 10, "keyctl:ENOSYS"),
    ("keyring_denied", 10, "keyctl:EDQUOT"),
    ("caps_denied", 10, "capset:EPERM"),
    ("caps_denied", 10, "prctl:EPERM:0:0xffffffff:24"),
    ("caps_denied", 10, "prctl:EPERM:0:0xffffffff:47"),
    ("landlock_unavailable", 11, "landlock_create_ruleset:ENOSYS"),
    ("landlock_denied", 11, "landlock_create_ruleset:ENOMEM:2:0xffffffff:0"),
    ("landlock_denied", 11, "landlock_add_rule:EINVAL"),
    ("landlock_denied", 11, "landlock_restrict_self:EPERM"),
    ("rlimit_denied", 12, "prlimit64:EPERM:1:0xffffffff:4"),
    *(("rlimit_denied", 12, f"prlimit64:EPERM:1:0xffffffff:{resource}") for resource in (0, 2, 6, 7, 9)),
    ("seccomp_denied", 13, "seccomp:EINVAL"),
    ("pivot_denied", 6, "fchdir:EACCES"),
    ("exec_failed", 14, "execve:EACCES"),
    ("exec_failed", 14, "execve:ENOMEM"),
]
# Every fact that a receipt may claim, and the fault or plan above and below that shows its step refuse.
SHOWN_BY = {
    "userns": "clone:EPERM:0:0x10000000:0x10000000", "mntns": "clone:EPERM:0:0x20000:0x20000", "pidns": "clone:EPERM:0:0x20000000:0x20000000",
    "ipcns": "clone:EPERM:0:0x8000000:0x8000000", "utsns": "clone:EPERM:0:0x4000000:0x4000000", "cgroupns": "clone:EPERM:0:0x2000000:0x2000000",
    "netns": "unshare:EPERM:0:0x40000000:0x40000000", "mounts": "move_mount:EPERM", "overlay_home": "fsconfig:EIO:1:0xffffffff:0",
    "snapshot_home": "fsconfig:EPERM:1:0xffffffff:0 move_mount:EPERM", "guards": "guard below a link", "proc_fresh": "fsmount:EPERM:2:0xffffffff:14",
    "proc_covers": "mount_setattr:EPERM:2:0x8000:0", "dev_private": "fsmount:EPERM:2:0xffffffff:10", "init_protected": "prctl:EPERM:0:0xffffffff:4",
    "fds_closed": "close_range:EPERM fcntl:EPERM:1:0xffffffff:2", "env_filtered": "variable that cannot be", "no_new_privs": "prctl:EPERM:0:0xffffffff:38",
    "keyring": "keyctl:ENOSYS", "caps_empty": "capset:EPERM", "bounding_empty": "prctl:EPERM:0:0xffffffff:24",
    "landlock_fs": "landlock_restrict_self:EPERM", "landlock_signal": "landlock_create_ruleset:ENOSYS", "landlock_abstract": "landlock_create_ruleset:ENOSYS",
    "rlimits": "prlimit64:EPERM:1:0xffffffff:0", "seccomp": "seccomp:EINVAL", "terminal_filter": "seccomp:EINVAL",
    "persistence_watch": "watched root missing", "supervised": "prctl:EPERM:0:0xffffffff:1", "sockets_covered": "openat:EACCES:2:0xffffffff:0x80000",
    "ids_shifted": "root's own map",
    # Of a box without namespaces, whose steps fail in test_alone.py.
    "domain": "landlock_restrict_self:EPERM", "ipc_refused": "seccomp:EINVAL", "unix_refused": "seccomp:EINVAL", "net_refused": "seccomp:EINVAL",
    "keyring_refused": "keyctl:EDQUOT",
}
# Where the call alone does not say which step it hit, the object does.
OBJECTS = {"openat:EACCES:2:0xffffffff:0x80000": "/proc/net/unix", "mount_setattr:EPERM:2:0x8000:0": "/proc/sys", "prlimit64:EPERM:1:0xffffffff:0": "cpu_time",
           "prlimit64:EPERM:1:0xffffffff:2": "memory", "prlimit64:EPERM:1:0xffffffff:6": "processes", "prlimit64:EPERM:1:0xffffffff:9": "address_space"}
# Each limit is asked for, so that each is set.
LIMITS = {"processes": 4000, "files": 256, "cpu_time_s": 600, "memory_bytes": 1 << 33, "address_space_bytes": 1 << 40, "wall_ms": 30000}
STATUS = {"exec_failed": 126, "not_found": 127}


def _marked(actor: Actor) -> tuple[list[str], str]:
    """A command that leaves a marker when it runs at all."""
    marker = f"{actor.workspace}/ran-{os.urandom(4).hex()}"
    return ["/bin/sh", "-c", f"touch {marker}"], marker


def _refused(actor: Actor, ended: Ended, code: str, step: int | None, marker: str) -> None:
    assert ended.code == code, (ended.status, ended.records, ended.err)
    row = ended.records["refused"]
    assert ended.status == STATUS.get(code, 125)
    assert step is None or row["step"] == step, row
    assert "launch" not in ended.records and "end" not in ended.records
    assert not actor.host(marker).exists(), "the command ran"
    assert ended.err.startswith(f"stockade: refused: {code}: ") and ended.err.count("\n") == 1, ended.err
    assert row["hint"] and row["message"]
    assert processes_with(marker) == []


@requirement("launcher.fault_is_typed", "launcher.refusal_runs_nothing")
@pytest.mark.parametrize(("code", "step", "fault"), FAULTS, ids=[f"{code}-{fault.split(':')[0]}-{n}" for n, (code, _, fault) in enumerate(FAULTS)])
def test_a_failing_call_refuses_with_the_code_of_its_step(actor: Actor, code: str, step: int, fault: str) -> None:
    argv, marker = _marked(actor)
    before = snapshot(actor.host(actor.workspace))
    fault = fault.format(map=len(f"{actor.uid} {actor.uid} 1"))
    before_launch = [str(actor.stage.bin / "fault_loader"), *fault.split(), "--"]
    # Written here and not by the driver: the loader stands between Python and the launcher.
    ended = launch(actor, small_plan(actor, limits=LIMITS), argv, before=before_launch)
    _refused(actor, ended, code, step, marker)
    assert OBJECTS.get(fault, "") in ended.records["refused"]["object"]
    number = fault.split(":")[1]
    if code not in ("exec_failed",):
        assert ended.records["refused"]["transient"] is (number in {"ENOMEM", "EMFILE", "EAGAIN", "EDQUOT"}), ended.records
    assert changes(before, snapshot(actor.host(actor.workspace))) == {}


@requirement("launcher.fault_is_typed")
def test_every_fact_of_a_receipt_has_a_fault_that_refuses() -> None:
    """A fact is claimed because its step cannot fail softly: each step is shown to refuse."""
    assert sorted(SHOWN_BY) == sorted(FACTS)
    known = {fault for _, _, fault in FAULTS} | set(PLANS) | {"root's own map"}
    assert set(SHOWN_BY.values()) - known == set()


@requirement("launcher.fault_is_typed")
@pytest.mark.parametrize(("code", "fault", "owner"), [
    ("map_denied", "setgroups:EPERM", 0), ("mount_denied", "mount_setattr:EPERM:2:0x8000:0", 0), ("userns_denied", "clone:EPERM:0:0x10000000:0x10000000", 0),
    ("userns_denied", "clone:EPERM:0:0x10000000:0x10000000", 54321)])
def test_a_root_caller_whose_ids_cannot_be_shifted_is_refused(root: Actor, code: str, fault: str, owner: int) -> None:
    """Files of another owner need a second user namespace, which may be the one that is refused."""
    argv, marker = _marked(root)
    ids = {"mode": "shifted", "kernel_uid": 0x50000000, "kernel_gid": 0x50000000, "owner_uid": owner, "owner_gid": owner}
    rows = [row | {"idmap": True} if row.get("source") == root.workspace else row for row in small_plan(root)["mounts"]]
    ended = launch(root, small_plan(root, ids=ids, mounts=rows), argv, before=[str(root.stage.bin / "fault_loader"), fault, "--"])
    _refused(root, ended, code, None, marker)
    assert any(word in ended.err for word in ("idmap", "setgroups", "id map", "clone")), ended.err


@requirement("launcher.fault_is_typed")
def test_the_same_plan_without_a_fault_runs(actor: Actor) -> None:
    """The twin: the loader alone, with a fault in a call that nobody makes."""
    argv, marker = _marked(actor)
    ended = launch(actor, small_plan(actor, limits=LIMITS), argv, before=[str(actor.stage.bin / "fault_loader"), "chroot:EPERM", "--"])
    assert (ended.status, ended.code) == (0, None), ended.err
    assert ended.records["launch"]["effective_tier"] == "strict" and ended.records["end"]["exit_code"] == 0
    # What nobody counted is null and not zero.
    assert ended.records["end"]["net_denied"] is None
    assert ended.records["end"]["discarded"] == {"files": 0, "bytes": 0, "names": [], "complete": True}
    assert actor.host(marker).exists()
    actor.remove(marker)


def _journals(actor: Actor) -> list[str]:
    kept = actor.host(f"{actor.home}/.local/state/stockade/audit/open")
    return sorted(path.name for path in kept.iterdir() if path.name != ".lock")


@requirement("launcher.fault_is_typed", "launcher.refusal_runs_nothing")
@pytest.mark.parametrize("call", ["fchdir", "flock", "socketpair"])
def test_a_start_that_hangs_is_ended_and_said_to_be_transient(actor: Actor, call: str) -> None:
    """A call that never returns, as of a file system that hangs: the limit is the command's, and the start has ten seconds more.

    It is process 1's, or the supervisor's own: while process 1 builds, or before there is one.
    """
    argv, marker = _marked(actor)
    state = actor.make_dir(f"{actor.home}/.local/state/stockade/audit/open").removesuffix("/audit/open")
    loader = str(actor.stage.bin / "fault_loader")
    options = ["--state-home", state, "--timeout-ms"]
    before, begun = _journals(actor), time.monotonic()
    ended = launch(actor, small_plan(actor), argv, options=[*options, "300"], before=[loader, f"{call}:HANG", "--"])
    took_s = time.monotonic() - begun
    wait_until(lambda: processes_with(marker) == [], "who held the call is gone")
    _refused(actor, ended, "start_timed_out", None, marker)
    assert ended.records["refused"]["transient"] is True and ended.records["refused"]["object"] == "box"
    assert 10.3 <= took_s < 40
    assert [name for name in _journals(actor) if name not in before and not name.startswith(".")] == []
    twin = launch(actor, small_plan(actor), argv, options=[*options, "30000"], before=[loader, "chroot:HANG", "--"])
    assert (twin.status, twin.code) == (0, None) and actor.host(marker).exists(), "the twin: a call that nobody makes"
    actor.remove(marker)


@requirement("launcher.fault_is_typed", "launcher.refusal_runs_nothing")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_launcher_that_waits_for_variables_ends_by_a_signal_like_any_program(actor: Actor, number: int) -> None:
    argv, marker = _marked(actor)
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb", buffering=0) as values:
        child = launching(actor, small_plan(actor), argv, options=["--setenv-fd", str(reader)], extra_fds=[reader])
        os.close(reader)
        # More than a pipe holds: with the last byte in it somebody has read the first.
        held = fcntl.fcntl(values, fcntl.F_GETPIPE_SZ)
        text = memoryview(b"A=" + b"x" * held)
        while text:
            assert select.select([], [values], [], WAIT_S)[1], "the launcher does not read"
            text = text[os.write(values.fileno(), text[:4096]):]
        child.send_signal(number)
        assert child.wait(WAIT_S) == -number
    assert processes_with(marker) == [] and not actor.host(marker).exists()


@requirement("launcher.fault_is_typed")
def test_a_launcher_that_gets_its_variables_by_a_pipe_runs_the_command(actor: Actor) -> None:
    """The twin: the same pipe, closed by its writer."""
    argv, marker = _marked(actor)
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb", buffering=0) as values:
        child = launching(actor, small_plan(actor), argv, options=["--setenv-fd", str(reader)], extra_fds=[reader])
        os.close(reader)
        values.write(b"A=1\0")
    assert child.wait(WAIT_S) == 0 and actor.host(marker).exists()
    actor.remove(marker)


@requirement("launcher.fault_is_typed")
def test_a_kernel_without_overlay_gets_a_snapshot_of_the_home_and_the_receipt_says_so(actor: Actor) -> None:
    actor.put(f"{actor.home}/.netrc", "netrc-content\n")
    look = ["/bin/sh", "-c", "cat ~/.netrc; ls -A ~; echo x > ~/.netrc; ls ~/work/repo/README"]
    ended = launch(actor, small_plan(actor), look, before=[str(actor.stage.bin / "fault_loader"), "fsconfig:EPERM:1:0xffffffff:0", "--"])
    assert ended.records["launch"]["home"] == "snapshot", ended.records
    lines = ended.out.splitlines()
    assert "netrc-content" not in lines and ".netrc" not in lines and f"{actor.workspace}/README" in lines
    assert actor.host(f"{actor.home}/.netrc").read_text() == "netrc-content\n"


def _bad_plans(actor: Actor) -> dict[str, tuple[str, int, dict[str, Any]]]:
    rows = small_plan(actor)["mounts"]
    link = f"{actor.elsewhere}/link"
    actor.remove(link)
    actor.host(link).symlink_to(actor.workspace)
    actor.remove(f"{actor.workspace}/linked")
    actor.host(f"{actor.workspace}/linked").symlink_to(actor.elsewhere)
    missing = {"id": "x.y", "tiers": ["standard"], "ns": False, "needs": [["snapshot_home"]], "state": None, "reason": None}
    watched = {"names": [".envrc"], "mode": "report", "quarantine": None}
    env = small_plan(actor)["env"]
    return {
        "guard below a link": ("guard_denied", 4, {"guards": [{"path": f"{actor.workspace}/linked/x", "read_only": True}]}),
        "guard with no possible name": ("guard_denied", 4, {"guards": [{"path": f"{actor.workspace}/{'n' * 300}", "read_only": True}]}),
        "watched root missing": ("source_denied", 4, {"persistence": [watched | {"root": "/no/such/root"}]}),
        "watched root is a link": ("source_denied", 4, {"persistence": [watched | {"root": link}]}),
        "variable that cannot be": ("env_invalid", 9, {"env": env | {"set": {"A=B": "x"}}}),
        "variable with NUL": ("env_invalid", 9, {"env": env | {"set": {"A": "x\0y"}}}),
        "source missing": ("source_missing", 4, {"mounts": [*rows, bind("/no/such/source", target="/tmp/x")]}),
        "source type": ("source_type", 4, {"mounts": [*rows, bind(actor.elsewhere, target="/tmp/x", type="file")]}),
        "source is a link": ("source_symlink", 4, {"mounts": [*rows, bind(link, target="/tmp/x")]}),
        "source below a link": ("source_symlink", 4, {"mounts": [*rows, bind(f"{link}/README", target="/tmp/x")]}),
        "no mount point": ("mount_point_missing", 4, {"mounts": [*rows, bind(actor.elsewhere, target=f"{actor.workspace}/no-such-point", create=False)]}),
        "mount point in the tree": ("mount_point_missing", 4, {"mounts": [*rows, bind(actor.elsewhere, target=f"{actor.workspace}/no-such-point", create=True)]}),
        "descriptor not open": ("fds_denied", 8, {"fds": [77]}),
        "cwd missing": ("chdir_denied", 14, {"cwd": "/no/such/cwd"}),
        "other interpreter": ("interpreter_changed", 14, {"executable": "/usr/bin/env"}),
        "promise without its facts": ("promise_not_kept", 14, {"promises": [*small_plan(actor)["promises"], missing]}),
        "landlock too new": ("landlock_unavailable", 11, {"landlock": small_plan(actor)["landlock"] | {"abi": 99}}),
        "filter unknown": ("plan_invalid", 0, {"seccomp": {"filter": "none"}}),
        "filter for no command": ("plan_invalid", 0, {"seccomp": {"filter": "trace"}}),
        "no namespaces": ("plan_invalid", 0, {"namespaces": []}),
        "net mismatch": ("plan_invalid", 0, {"net": "host"}),
        "unknown field": ("plan_invalid", 0, {"surprise": 1}),
        "unknown schema": ("plan_invalid", 0, {"schema": "stockade.plan.v2"}),
        "relative path": ("plan_invalid", 0, {"cwd": "work"}),
        "dotted path": ("plan_invalid", 0, {"cwd": f"{actor.workspace}/../repo"}),
        "no root row": ("plan_invalid", 0, {"mounts": [tmpfs("/run")]}),
        "no rows": ("plan_invalid", 0, {"mounts": []}),
        "unknown parameter": ("bind_invalid", 0, {"cwd": "@nobody"}),
        "unknown fact state": ("plan_invalid", 0, {"promises": [missing | {"state": "kept"}]}),
        "unknown tier": ("plan_invalid", 0, {"requested_tier": "paranoid"}),
        "hidden name climbs": ("plan_invalid", 0, {"mounts": [row | {"hide": ["../x"]} if row["kind"] == "overlay" else row for row in rows]}),
    }


PLANS = ("guard below a link", "guard with no possible name", "watched root missing", "watched root is a link", "variable that cannot be", "variable with NUL",
         "source missing", "source type", "source is a link", "source below a link", "no mount point", "mount point in the tree", "descriptor not open", "cwd missing",
         "other interpreter", "promise without its facts", "landlock too new", "filter unknown", "filter for no command", "no namespaces", "net mismatch", "unknown field", "unknown schema",
         "relative path", "dotted path", "no root row", "no rows", "unknown parameter", "unknown fact state", "unknown tier", "hidden name climbs")


@requirement("launcher.fault_is_typed", "launcher.refusal_runs_nothing")
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_that_cannot_be_carried_out_is_refused(actor: Actor, name: str) -> None:
    code, step, changed = _bad_plans(actor)[name]
    argv, marker = _marked(actor)
    before = snapshot(actor.host(actor.workspace))
    ended = launch(actor, small_plan(actor, **changed), argv)
    _refused(actor, ended, code, step, marker)
    assert changes(before, snapshot(actor.host(actor.workspace))) == {}


@requirement("launcher.fault_is_typed")
@pytest.mark.parametrize("field", sorted(["schema", "backend", "caller", "requested_tier", "profiles", "accept", "net", "namespaces", "ids", "mounts", "guards", "guard_lost",
                                          "cover_sockets", "env", "fds", "landlock", "limits", "seccomp", "cwd", "executable", "hostname", "persistence", "promises", "record",
                                          "appearing", "discards", "copyback"]))
def test_a_plan_without_one_of_its_fields_is_refused(user: Actor, field: str) -> None:
    argv, marker = _marked(user)
    plan = small_plan(user)
    del plan[field]
    _refused(user, launch(user, plan, argv), "plan_invalid", 0, marker)


@requirement("launcher.fault_is_typed")
def test_commands_that_cannot_start_have_their_own_status(actor: Actor) -> None:
    plain = actor.put(f"{actor.workspace}/not-a-program", "text\n", 0o644)
    broken = actor.put(f"{actor.workspace}/broken", "#!/no/such/interpreter\n", 0o755)
    for argv, code in (([plain], "exec_failed"), ([broken], "exec_failed"), (["/no/such/program"], "not_found"), (["no-such-program"], "not_found")):
        ended = launch(actor, small_plan(actor), argv)
        assert (ended.code, ended.status) == (code, STATUS[code]), ended.records
        assert "launch" not in ended.records


@requirement("launcher.fault_is_typed")
def test_receipts_that_cannot_be_written_refuse_the_launch(actor: Actor) -> None:
    argv, marker = _marked(actor)
    closed = actor.put(f"{actor.elsewhere}/shut/x")
    for spool in ("/no/such/dir/spool", "/proc/version", f"{closed}/below"):
        ended = launch(actor, small_plan(actor), argv, options=["--spool", spool])
        _refused(actor, ended, "spool_failed", None, marker)
    full = launch(actor, small_plan(actor), argv, options=["--spool", "/dev/full"])
    assert full.code == "spool_failed" and not actor.host(marker).exists()
    reader, writer = os.pipe()
    os.close(reader)
    job = {"mode": "raw", "plan": small_plan(actor), "launcher": str(actor.stage.launcher), "argv": argv, "report_fd": writer}
    with actor.drive(job, pass_fds=[writer], stdin=-3, stdout=-3, stderr=-1) as child:
        os.close(writer)
        err = child.communicate(timeout=60)[1].decode()
    assert child.returncode == 125 and "report_failed" in err
    assert not actor.host(marker).exists()


@requirement("launcher.fault_is_typed")
def test_wrong_parameters_are_usage_errors(actor: Actor) -> None:
    argv, marker = _marked(actor)
    for options, code in ((["--bind", "ws"], "bind_invalid"), (["--bind", "ws=relative"], "bind_invalid"), (["--surprise"], "usage"),
                          (["--timeout-ms", "soon"], "usage"), (["--setenv-fd", "99"], "env_invalid")):
        ended = launch(actor, small_plan(actor), argv, options=options)
        assert ended.code in (code, None) and f"refused: {code}" in ended.err and ended.status == 125, (options, ended.err)
        assert not actor.host(marker).exists()


@requirement("launcher.plan_is_verified")
@pytest.mark.parametrize("seals", [0, 0x1, 0x7, 0xE])
def test_a_plan_that_could_still_be_changed_is_refused(actor: Actor, seals: int) -> None:
    argv, marker = _marked(actor)
    _refused(actor, launch(actor, small_plan(actor), argv, seals=seals), "plan_unsealed", 0, marker)


def _stored(actor: Actor, name: str, body: bytes, mode: int = 0o400, owner: int | None = None) -> None:
    path = actor.host(f"{actor.elsewhere}/plans/{name}.json")
    actor.make_dir(f"{actor.elsewhere}/plans")
    actor.remove(f"{actor.elsewhere}/plans/{name}.json")
    path.write_bytes(body)
    path.chmod(mode)
    os.chown(path, actor.uid if owner is None else owner, actor.gid)


@requirement("launcher.plan_is_verified")
def test_a_stored_plan_is_checked_by_owner_mode_and_digest(actor: Actor) -> None:
    import hashlib
    import json

    body = json.dumps(small_plan(actor), sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(body).hexdigest()
    store = f"{actor.elsewhere}/plans"

    def run(name: str) -> tuple[int, str]:
        done = actor.call([str(actor.stage.launcher), "--plan", name, "--plan-store", store, "--", "/bin/echo", "ran"])
        return done.returncode, done.stdout.decode() + done.stderr.decode()

    _stored(actor, digest, body)
    assert run(digest) == (0, "ran\n")
    _stored(actor, digest, body.replace(b"stockade", b"stockadE", 1))
    assert "plan_digest" in run(digest)[1]
    _stored(actor, digest, body, mode=0o422)
    assert "plan_owner" in run(digest)[1]
    if os.geteuid() == 0:
        _stored(actor, digest, body, mode=0o444, owner=65534)
        assert "plan_owner" in run(digest)[1]
    assert "plan_missing" in run("0" * 64)[1]
    for name in ("../plans/" + digest, digest.upper(), digest[:63], ""):
        code, text = run(name)
        assert code == 125 and ("plan_digest" in text or "usage" in text), text
    actor.remove(f"{store}/{digest}.json")
    _stored(actor, "real", body)
    actor.host(f"{store}/{digest}.json").symlink_to("real.json")
    assert run(digest)[0] == 125


@requirement("C.descriptors_closed")
def test_descriptors_are_closed_also_when_close_range_is_refused(actor: Actor) -> None:
    """The parent left a pipe with a secret and a directory open; a child without a box has both."""
    look = ["/usr/bin/python3", "-c", "import os\nfor n in range(3, 256):\n    try:\n        print(n, os.readlink(f'/proc/self/fd/{n}').split(':')[0])\n    except OSError: pass"]
    reader, writer = os.pipe()
    directory = os.open("/etc", os.O_RDONLY)
    os.write(writer, b"secret of the parent")
    try:
        with actor.spawn(look, pass_fds=[reader, directory], stdout=-1) as bare:
            assert sorted(line.split()[1] for line in bare.communicate()[0].decode().splitlines()) == ["/etc", "pipe"]
        for fault in ("chroot:EPERM", "close_range:ENOSYS", "close_range:EPERM"):
            ended = launch(actor, small_plan(actor), look, before=[str(actor.stage.bin / "fault_loader"), fault, "--"], extra_fds=[reader, directory])
            assert (ended.status, ended.out) == (0, ""), (fault, ended.out, ended.err)
        named = launch(actor, small_plan(actor, fds=[reader]), look, extra_fds=[reader, directory])
        assert named.out == f"{reader} pipe\n", named.err
    finally:
        for descriptor in (reader, writer, directory):
            os.close(descriptor)


@requirement("A.exhaustion_is_transient")
def test_shortage_is_transient_and_the_next_launch_works(actor: Actor) -> None:
    argv, marker = _marked(actor)
    for fault in ("clone:ENOMEM:0:0x10000000:0x10000000", "pipe2:EMFILE", "socketpair:ENFILE", "fsopen:ENOMEM"):
        ended = launch(actor, small_plan(actor), argv, before=[str(actor.stage.bin / "fault_loader"), fault, "--"])
        assert ended.status == 125 and ended.records["refused"]["transient"] is True, ended.records
        assert not actor.host(marker).exists()
    few = launch(actor, small_plan(actor), argv, before=["/bin/sh", "-c", 'ulimit -n 8; exec "$@"', "sh"])
    assert few.status == 125 and few.code is not None and few.records["refused"]["transient"] is True, few.records
    assert launch(actor, small_plan(actor), ["/bin/true"]).status == 0


@requirement("launcher.refusal_runs_nothing", "F.forged_refusal")
def test_an_accepted_promise_is_said_in_the_receipt(actor: Actor) -> None:
    """The twin of promise_not_kept: the same plan with the caller's word for it."""
    missing = {"id": "x.y", "tiers": ["standard"], "ns": False, "needs": [["snapshot_home"]], "state": None, "reason": None}
    enough = {"id": "x.z", "tiers": ["standard"], "ns": False, "needs": [ENOUGH], "state": None, "reason": None}
    plan = small_plan(actor, promises=[missing, enough], accept=["x.y"])
    ended = launch(actor, plan, ["/bin/sh", "-c", "echo 'stockade: refused: mount_denied: x' >&2; exit 125"])
    assert ended.status == 125 and ended.code is None
    assert ended.records["launch"]["missing"] == ["x.y"] and ended.records["launch"]["effective_tier"] == "off"
    assert ended.records["end"]["exit_code"] == 125
