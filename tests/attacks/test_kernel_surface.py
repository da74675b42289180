"""kernel.surface: no privilege, no dangerous call, no setuid bit; ordinary calls work."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from requirements import at_tiers, requirement
from support.actors import Actor
from support.boxes import kept, op

DENIED = {"EPERM", "ENOSYS", "EAFNOSUPPORT", "EACCES", "EPROTONOSUPPORT"}
# What an ordinary account cannot do anyway; shown by the root caller.
ROOT_ONLY_BARE = {"bpf", "open_by_handle_at", "swapon", "reboot", "acct", "device_node", "setuid_zero"}
# Calls that this kernel may be built without.
OPTIONAL = {"init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "x32_getpid", "int80_getpid", "socket_alg", "socket_key",
            "socket_xdp", "socket_can", "socket_bluetooth", "socket_vsock", "netlink_crypto", "netlink_xfrm", "netlink_audit", "netlink_netfilter",
            "setuid_openat2", "setgid_openat2", "setuid_fchmodat2", "setgid_fchmodat2"}
# Reached the kernel's own checks: arguments were bad on purpose.
REACHED = {"ok", "ENOENT", "EBADF", "ENOKEY", "ESTALE", "EINVAL", "EFAULT", "ENOEXEC"}


def _surface(actor: Actor, how: str) -> dict[str, str]:
    return dict(json.loads(actor.call([str(actor.stage.bin / "surface"), how]).stdout))


def _is_attack(name: str, actor: Actor) -> bool:
    if name.startswith(("ok_", "mode_", "dir_")):
        return False
    if name == "setuid_zero" and actor.is_root:
        return False  # box uid 0 is an unused id of the kernel; fs.system shows that it opens nothing
    # Only root can hand a setgid bit to a group that it is not in.
    return not name.startswith("setgid_") or actor.is_root


@requirement("kernel.surface", "C.kernel_side_doors")
@at_tiers("kernel.surface")
def test_every_dangerous_call_is_answered_with_no(actor: Actor, tier: str) -> None:
    plain, spaced = _surface(actor, "plain" if not actor.is_root else "private"), _surface(actor, "user")
    attacks = {name for name in plain if _is_attack(name, actor)}
    assert len(attacks) >= 40, sorted(attacks)
    without = {name for name in attacks if not {plain[name], spaced[name]} & REACHED} - OPTIONAL
    assert without - (set() if actor.is_root else ROOT_ONLY_BARE) == set(), "these should work without a box"
    run = actor.run([str(actor.stage.bin / "surface"), "plain"], tier=tier)
    got = json.loads(run.stdout)
    # Id 0 is not mapped for an ordinary caller: the kernel calls it invalid.
    wrong = {name: got[name] for name in attacks if got[name] not in DENIED and (name, got[name]) != ("setuid_zero", "EINVAL")}
    assert wrong == {}
    kept(run, "kernel.surface", tier)


@requirement("kernel.surface")
@at_tiers("kernel.surface")
def test_ordinary_calls_work(actor: Actor, tier: str) -> None:
    got = json.loads(actor.run([str(actor.stage.bin / "surface"), "plain"], tier=tier).stdout)
    assert {name.split("_")[0] for name in got} >= {"ok", "mode", "setgid"}, got
    refused = {name: text for name, text in got.items() if name.startswith("ok_") and text not in ("ok", "inert")}
    assert refused == {}
    # Plain modes are asked for in every way; openat2 and fchmodat2 may be unknown, programs fall back.
    modes = {name: text for name, text in got.items() if name.startswith("mode_") and text != "inert"}
    assert set(modes) <= {"mode_openat2", "mode_fchmodat2"} and set(modes.values()) <= {"ENOSYS"}
    if not actor.is_root:
        groups = {name: text for name, text in got.items() if name.startswith("setgid_") and text not in ("ok", "inert")}
        assert set(groups) <= {"setgid_openat2", "setgid_fchmodat2"}


@requirement("kernel.surface")
@pytest.mark.known_gap("not_x86_64")
@at_tiers("kernel.surface")
def test_foreign_entry_points_are_unknown_calls(actor: Actor, tier: str) -> None:
    got = json.loads(actor.run([str(actor.stage.bin / "surface"), "plain"], tier=tier).stdout)
    assert (got["x32_getpid"], got["int80_getpid"]) == ("ENOSYS", "ENOSYS")


@requirement("kernel.surface")
@at_tiers("kernel.surface")
def test_the_process_has_no_capability_and_a_filter(actor: Actor, tier: str) -> None:
    run = actor.box([op("status", "status"), op("read", "cap", path="/proc/sys/kernel/cap_last_cap")], tier=tier)
    status = run.value("status")
    assert {name: status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp")} == {
        "CapInh": "0" * 16, "CapPrm": "0" * 16, "CapEff": "0" * 16, "CapAmb": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
    assert status["CapBnd"] == "0" * 16
    names = {row["name"] for row in [{"name": name} for name in run.receipt["mechanisms"]]}
    assert {"no_new_privs", "caps_empty", "seccomp", "keyring"} <= names


@requirement("kernel.surface")
@pytest.mark.known_gap("not_x86_64")
@at_tiers("kernel.surface")
def test_the_session_keyring_of_the_caller_is_not_inherited(actor: Actor, tier: str) -> None:
    """The caller holds a key in its session keyring; a child without a box reads it."""
    look = ("import ctypes, os\nl = ctypes.CDLL(None, use_errno=True)\nb = ctypes.create_string_buffer(16)\n"
            "key = l.syscall(250, 10, -3, b'user', b'stk-callers-key', 0)\n"
            "print('read' if key > 0 and l.syscall(250, 11, key, b, 16) > 0 else 'no', b.value.decode())\n"
            "try:\n    print([line.split()[8:] for line in open('/proc/keys')])\nexcept OSError:\n    print([])")
    loader = ["/usr/bin/python3", "-c",
              "import ctypes, os, sys\nl = ctypes.CDLL(None)\nl.syscall(250, 1, None)\n"
              "assert l.syscall(248, b'user', b'stk-callers-key', b'secret', 6, -3) > 0\nos.execvp(sys.argv[1], sys.argv[1:])"]
    bare = actor.call([*loader, "/usr/bin/python3", "-c", look])
    assert bare.stdout.startswith(b"read secret\n"), bare.stderr
    run = actor.run(["/usr/bin/python3", "-c", look], tier=tier, before=loader)
    answer, keyrings = run.stdout.splitlines()
    assert answer.strip() == "no" and "stk-callers-key" not in keyrings, run.stdout


@requirement("kernel.surface")
@at_tiers("kernel.surface")
def test_setuid_programs_give_nothing(actor: Actor, tier: str) -> None:
    """A copy of ``id`` that runs as its owner when it lies on a mount without nosuid."""
    program = f"{actor.workspace}/setuid-id"
    actor.host(program).write_bytes(Path("/usr/bin/id").read_bytes())
    # Owned by somebody else: what changes the id is the bit alone. Only root can make such a file.
    os.chown(actor.host(program), 54321 if os.geteuid() == 0 else actor.uid, actor.gid)
    actor.host(program).chmod(0o4755)
    ops = [op("run", "id", argv=[program, "-u"]),
           *(op("run", " ".join(argv), argv=argv) for argv in (["unshare", "-U", "true"], ["unshare", "-Ur", "true"]))]
    if os.geteuid() == 0:
        assert actor.bare(ops[:1])["id"]["value"]["out"] == "54321\n"
    run = actor.box(ops, tier=tier)
    actor.remove(program)
    assert run.value("id")["out"] == f"{actor.uid}\n"
    for item in ops[1:]:
        answer = run.value(item["id"])
        assert answer["status"] != 0 and "not permitted" in answer["err"], (item["id"], answer)


@requirement("kernel.surface", "B.right_on_file")
@at_tiers("kernel.surface")
def test_tools_that_set_group_bits_work_in_setgid_directories(actor: Actor, fresh_repo: str, tier: str) -> None:
    """tar -xp, cp -a, chmod g+w and git init --shared in a directory with the setgid bit."""
    directory = actor.make_dir(f"{fresh_repo}/shared")
    # A root caller gets no setgid bit at all: its tools work where the directory has none.
    actor.sh(f"chmod {775 if actor.is_root else 2775} {directory}")
    script = """set -e
    mkdir sub && touch sub/f && chmod g+w sub/f
    cp -a sub copy && tar -cpf t.tar sub && mkdir out && tar -xpf t.tar -C out
    git init -q --shared=group repo && mkdir repo/inner && mv repo/inner repo/inner2 && ln sub/f hard && rm -r copy out
    echo done
    """
    if actor.is_root:
        script = script.replace("--shared=group ", "")
    run = actor.run(["sh", "-c", script], tier=tier, cwd=directory, write=[fresh_repo])
    assert (run.returncode, run.stdout.strip()) == (0, "done"), run.stderr
