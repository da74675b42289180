"""Hosts without namespaces: what Landlock and a filter keep alone, attacked as under namespaces.

Each list of operations works without a box first; each box has a twin that shows the allowed case.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from requirements import requirement
from support.actors import Actor
from support.alone import HOSTS, filtered
from support.boxes import BoxRun, Op, failed_with, op, worked
from support.cli import inside, stockade
from support.live import LiveBox

TIERS = ("standard", "guarded", "strict")
NEEDS_NAMESPACES = {"fs.metadata", "proc.invisible"}
DENIED = {"EACCES"}


@pytest.fixture
def place(user: Actor) -> Iterator[str]:
    """A write root in which nothing runs later and nothing is secret."""
    path = f"{user.home}/work/plain"
    user.remove(path)
    user.make_dir(path)
    user.put(f"{path}/own", "own\n", 0o644)
    yield path
    user.remove(path)


def alone(user: Actor, ops: list[Op], place: str, *, tier: str, **more: Any) -> BoxRun:
    """Run the operations in a box on a host whose filter denies user namespaces."""
    run = user.box(ops, tier=tier, cwd=place, before=filtered(user), **more)
    assert run.receipt["backend"] == "landlock", run.receipt["backend"]
    return run


def kept(run: BoxRun, promise: str, tier: str) -> None:
    """The receipt claims the promise and the tier, and names no mechanism that was not there."""
    row = next(row for row in run.receipt["promises"] if row["id"] == promise)
    assert row["state"] == "kept" and run.receipt["effective_tier"] == tier, (row, run.receipt["missing"])
    assert not {"userns", "mntns", "pidns", "mounts", "guards"} & {*run.receipt["mechanisms"], *row["mechanism"]}


@requirement("alone.chosen")
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("how", HOSTS)
@pytest.mark.parametrize("net", ["none", "host"])
def test_each_tier_is_reached_and_says_what_it_does_not_have(user: Actor, place: str, how: str, tier: str, net: str) -> None:
    run = user.run(["/bin/sh", "-c", "echo $$ > own-pid && cat own"], tier=tier, cwd=place, net=net, before=HOSTS[how](user))
    assert (run.returncode, run.stdout, run.receipt["backend"]) == (0, "own\n", "landlock"), run.raw
    states = {row["id"]: row["state"] for row in run.receipt["promises"]}
    assert (run.receipt["effective_tier"], run.receipt["missing"]) == (tier, []), run.receipt
    assert {name for name in NEEDS_NAMESPACES if states[name] != "not_kept"} == set()
    assert run.receipt["net"] == net and user.host(f"{place}/own-pid").exists()


@requirement("alone.chosen")
def test_a_host_with_namespaces_uses_them(user: Actor, place: str) -> None:
    assert user.run(["true"], tier="strict", cwd=place).receipt["backend"] == "namespaces"


@requirement("alone.promises")
@pytest.mark.parametrize("tier", TIERS)
def test_nothing_outside_the_write_roots_can_be_changed(user: Actor, place: str, tier: str) -> None:
    outside = user.put(f"{user.elsewhere}/plain", "before\n", 0o644)
    ops = [op("rewrite", path=outside), op("truncate", path=outside), op("create", path=f"{user.elsewhere}/new"), op("mkdir", path=f"{user.elsewhere}/dir"),
           op("unlink", path=outside), op("rename", path=outside, to=f"{user.elsewhere}/moved"), op("symlink", path=f"{user.elsewhere}/link", to="/etc"),
           op("mkfifo", path=f"{user.elsewhere}/fifo"), op("create", "temporary", path=f"/tmp/alone-{os.getpid()}"),
           op("create", "shared memory", path=f"/dev/shm/alone-{os.getpid()}")]
    ops += [op("link", "in", path=outside, to=f"{place}/linked"), op("rename", "out", path=f"{place}/own", to=f"{user.elsewhere}/own")]
    worked(user.bare(ops, cwd=place))
    run = alone(user, ops, place, tier=tier, read=[user.elsewhere])
    failed_with(run.answers, {"EACCES", "EXDEV"})
    kept(run, "fs.write_roots", tier)


@requirement("alone.promises")
@pytest.mark.parametrize("tier", TIERS)
def test_inside_the_write_root_everything_works_renames_too(user: Actor, place: str, tier: str) -> None:
    for name in ("one", "two"):
        user.make_dir(f"{place}/{name}")
    user.put(f"{place}/one/file", "x", 0o644)
    ops = [op("rewrite", path=f"{place}/own"), op("rename", path=f"{place}/own", to=f"{place}/renamed"), op("unlink", path=f"{place}/own"),
           op("rename", "across", path=f"{place}/one/file", to=f"{place}/two/file"), op("rename", "directory", path=f"{place}/one", to=f"{place}/two/one"),
           op("exchange", path=f"{place}/one", to=f"{place}/two"), op("link", path=f"{place}/own", to=f"{place}/one/own"), op("symlink", path=f"{place}/l", to="own"),
           op("list", path=place), op("mkfifo", path=f"{place}/fifo"), op("memfd_exec", path=f"{place}/own")]
    worked(alone(user, ops, place, tier=tier).answers)


@requirement("alone.promises")
def test_the_home_is_denied_by_default_also_for_what_appears_later(user: Actor, place: str) -> None:
    secret, later = user.put(f"{user.home}/.new-tool/token", "needle\n"), f"{user.home}/.later/secret"
    shown = user.put(f"{user.home}/shown/file", "shown", 0o644)
    ops = [op("read", path=secret), op("list", path=f"{user.home}/.new-tool"), op("list", "home", path=user.home), op("create", path=f"{user.home}/new"),
           op("list", "root", path="/"), op("memfd_exec", path=secret)]
    worked(user.bare(ops))
    with LiveBox(user, tier="strict", cwd=place, before=filtered(user), read=[f"{user.home}/shown"]) as box:
        answers = box.ask([*ops, op("read", "twin", path=shown), op("create", "change", path=f"{user.home}/shown/new"), op("list", "shown", path=f"{user.home}/shown")])
        failed_with(answers, DENIED, but={"twin", "shown", f"memfd_exec {secret}"})
        assert answers[f"memfd_exec {secret}"]["value"] != 0
        assert answers["twin"]["value"] == "shown" and answers["shown"]["value"] == ["file"]
        user.agent.do("write", path=later, text="late")
        ask = [op("read", path=later), op("list", path=f"{user.home}/.later")]
        worked(user.bare(ask))
        failed_with(box.ask(ask), DENIED)
        assert box.records(until="launch")["launch"]["effective_tier"] == "strict"
    for name in (".later", ".new-tool", "shown"):
        user.remove(f"{user.home}/{name}")


@requirement("alone.promises")
@pytest.mark.parametrize("tier", TIERS[1:])
def test_credentials_cannot_be_read_whether_they_exist_appear_or_are_replaced(user: Actor, place: str, tier: str) -> None:
    there, absent = f"{user.home}/.aws/credentials", f"{user.home}/.config/gcloud/credentials.db"
    user.put(there, "needle\n")
    user.put(f"{user.home}/.config/other/settings", "plain", 0o644)
    plain = user.put(f"{user.home}/plain", "plain", 0o644)
    with LiveBox(user, tier=tier, cwd=place, before=filtered(user), read=[plain]) as box:
        failed_with(box.ask([op("read", path=there)]), DENIED)
        user.agent.do("replace", path=there, text="replaced")
        user.agent.do("write", path=absent, text="appeared")
        ask = [op("read", path=there), op("read", path=absent), op("list", path=f"{user.home}/.aws")]
        worked(user.bare(ask))
        failed_with(box.ask(ask), DENIED)
        assert box.ask([op("read", path=plain)])[f"read {plain}"]["value"] == "plain"
        if tier == "guarded":
            worked(box.ask([op("read", "beside", path=f"{user.home}/.config/other/settings")]))
    for name in (".aws", ".config/gcloud", ".config/other", "plain"):
        user.remove(f"{user.home}/{name}")


@requirement("alone.promises")
@pytest.mark.parametrize("tier", TIERS)
def test_our_own_state_cannot_be_read_and_our_files_cannot_be_changed(user: Actor, place: str, tier: str) -> None:
    user.run(["true"], tier=tier, cwd=place)
    state = f"{user.home}/.local/state/stockade"
    key = user.put(f"{state}/keys/alone", "key\n")
    config = user.put(f"{user.home}/.config/stockade/config.toml", "", 0o644)
    ops = [op("read", path=key), op("list", path=state), op("create", path=f"{state}/new"), op("rename", path=state, to=f"{state}.moved"), op("rewrite", path=config),
           op("rename", "configuration", path=f"{user.home}/.config/stockade", to=f"{user.home}/.config/moved")]
    worked(user.bare(ops))
    run = alone(user, [*ops, op("create", "twin", path=f"{place}/twin")], place, tier=tier)
    user.remove(key)
    user.remove(config)
    failed_with(run.answers, DENIED, but={"twin"})
    run.value("twin")
    kept(run, "fs.own_state", tier)


@requirement("alone.promises")
@pytest.mark.parametrize("tier", TIERS)
def test_host_processes_cannot_be_signalled_traced_read_or_limited(user: Actor, place: str, tier: str) -> None:
    victim = user.agent.pid
    ops = [op("kill", f"kill {number}", pid=victim, signal=number) for number in (0, 18)]
    ops += [op("ptrace_seize", pid=victim), op("prlimit", pid=victim), op("proc_environ", path=f"/proc/{victim}/environ"), op("readlink", path=f"/proc/{victim}/exe"),
            op("readlink", path=f"/proc/{victim}/fd/2"), op("read", path=f"/proc/{victim}/fdinfo/2"),
            op("list", "root", path=f"/proc/{victim}/root/"), op("read", "memory map", path=f"/proc/{victim}/maps")]
    worked(user.bare(ops))
    run = alone(user, [*ops, op("vm_read", pid=victim), op("prlimit", "twin", pid=0), op("all_environ", "environs")], place, tier=tier)
    failed_with(run.answers, {"EPERM", "EACCES"}, but={"twin", "environs"})
    run.value("twin")
    assert "host-environment-secret" not in repr(run.value("environs"))
    assert user.agent.alive()
    kept(run, "proc.no_control", tier)


@requirement("alone.promises")
@pytest.mark.parametrize("tier", TIERS)
def test_supervisor_first_process_and_keeper_are_out_of_reach_and_keep_no_secret(user: Actor, place: str, tier: str) -> None:
    env = {**user.env, "DEPLOY_TOKEN": "alone-needle-77"}
    with LiveBox(user, tier=tier, cwd=place, before=filtered(user), env=env) as box:
        command = box.command_pid()
        pids = [pid for pid in box.tree() if pid != command]
        assert len(pids) == 3, pids
        for pid in pids:
            ops = [op("kill", f"kill {number}", pid=pid, signal=number) for number in (0, 9, 15, 19, 63)]
            ops += [op("ptrace_seize", pid=pid), op("vm_read", pid=pid), op("prlimit", pid=pid), op("proc_environ", path=f"/proc/{pid}/environ"),
                    op("write_open", path=f"/proc/{pid}/mem"), op("write_open", "score", path=f"/proc/{pid}/oom_score_adj")]
            failed_with(box.ask(ops), {"EPERM", "EACCES"})
        own = box.ask([op("kill", pid=command), op("all_environ", "environs"), op("run", argv=["/bin/sh", "-c", "sleep 60 & kill $! && wait"])])
        assert own[f"kill {command}"]["errno"] is None and "alone-needle-77" not in repr(own["environs"]["value"])
        assert box.finish() == 0


@requirement("alone.promises")
@pytest.mark.parametrize("tier", TIERS)
def test_signals_to_everybody_reach_the_box_alone(user: Actor, place: str, tier: str) -> None:
    script = "import os\nfor number in (1, 15, 9, 19):\n    try:\n        os.kill(-1, number)\n    except OSError: pass\nprint('alive')"
    run = user.run(["/usr/bin/python3", "-c", script], tier=tier, cwd=place, before=filtered(user))
    assert (run.returncode, run.stdout) == (0, "alive\n")
    assert user.agent.alive()


@requirement("alone.promises")
@pytest.mark.parametrize("net", ["none", "host"])
@pytest.mark.parametrize("tier", TIERS)
def test_objects_and_sockets_of_the_host_are_out_of_reach(user: Actor, place: str, tier: str, net: str) -> None:
    name, path = f"alone-{os.getpid()}-{os.urandom(3).hex()}", f"{user.home}/alone.sock"
    user.agent.do("listen_abstract", name=name)
    user.agent.do("listen", path=path)
    user.agent.do("listen", path=f"{path}.dgram", type="dgram")
    ops = [op("connect_abstract", "abstract", name=name), op("connect", "path", path=path), op("dgram_pair", "aimed", path=f"{path}.dgram")]
    worked(user.bare(ops))
    inside = [op("sysv_own", "own"), *(op("sysv_get", kind, kind=kind, key=0x53544B31) for kind in ("shm", "sem", "msg")), op("mq_open", "queue", name="/alone", create=True)]
    worked(user.bare([inside[0], inside[-1]]))
    pair = [op("run", "twin", argv=["/usr/bin/python3", "-c", "import socket as s; a, b = s.socketpair(); a.send(b'x'); c, d = s.socketpair(s.AF_UNIX, s.SOCK_SEQPACKET)"])]
    run = alone(user, [*ops, *inside, *pair], place, tier=tier, net=net)
    user.agent.do("forget")
    for left in (path, f"{path}.dgram"):
        user.remove(left)
    failed_with(run.answers, {"EPERM", "EAFNOSUPPORT"}, but={"twin"})
    assert run.value("twin")["status"] == 0, run.value("twin")
    for promise in ("ipc.isolated", "ipc.sockets", "net.policy"):
        kept(run, promise, tier)


@requirement("alone.promises")
def test_without_a_network_no_socket_of_any_family_can_be_made(user: Actor, place: str) -> None:
    ops = [op("loopback"), op("interfaces", "names")]
    worked(user.bare(ops))
    failed_with(alone(user, ops, place, tier="standard", net="none").answers, {"EAFNOSUPPORT"})
    worked(alone(user, ops[:1], place, tier="standard", net="host").answers)


@requirement("alone.promises")
@pytest.mark.parametrize("tier", TIERS)
def test_privileges_and_dangerous_calls_are_refused(user: Actor, place: str, tier: str) -> None:
    run = alone(user, [op("chmod", "setuid", path=f"{place}/own", mode=0o4755), op("status"), op("rlimit", "core", name="RLIMIT_CORE")], place, tier=tier)
    assert run.answers["setuid"]["errno"] == "EPERM"
    status = run.value("status")
    assert (status["NoNewPrivs"], status["Seccomp"], status["CapPrm"], status["CapEff"]) == ("1", "2", "0" * 16, "0" * 16)
    assert run.value("core") == [1, 1]
    kept(run, "kernel.surface", tier)


@requirement("alone.lost", "F.never_silently_weaker")
@pytest.mark.parametrize("tier", TIERS[1:])
def test_a_write_root_with_places_that_run_code_later_needs_a_word(user: Actor, tier: str) -> None:
    hook = f"{user.workspace}/.git/hooks/pre-push"
    refused = user.run(["true"], tier=tier, before=filtered(user))
    assert refused.refused is not None and (refused.code, refused.refused["missing"]) == ("promise_not_kept", ["fs.persistence"]), refused.raw
    assert "user namespace" in refused.refused["text"] or "seccomp filter" in refused.refused["text"], refused.refused["text"]
    run = user.box([op("rewrite", path=hook)], tier=tier, before=filtered(user), accept=["fs.persistence"])
    worked(run.answers)
    row = next(row for row in run.receipt["promises"] if row["id"] == "fs.persistence")
    assert (row["state"], row["reason"]) == ("not_kept", "write_root_holds_points")
    assert (run.receipt["effective_tier"], run.receipt["missing"]) == ("standard", ["fs.persistence"])
    said = stockade(user, "run", "--tier", tier, "--accept", "fs.persistence", "true", cwd=user.workspace, before=filtered(user))
    assert said.status == 0 and f"accepted: less than {tier}: missing fs.persistence" in said.err, said


@requirement("alone.lost")
def test_points_outside_the_write_roots_cannot_be_changed_and_new_ones_are_reported(user: Actor, place: str) -> None:
    profile = user.put(f"{user.home}/.bashrc", "# mine\n", 0o644)
    ops = [op("rewrite", path=profile), op("rename", path=profile, to=f"{profile}.moved")]
    worked(user.bare(ops))
    run = alone(user, [*ops, op("create", "new", path=f"{place}/.envrc", keep=True)], place, tier="guarded")
    user.remove(profile)
    failed_with(run.answers, DENIED, but={"new"})
    run.value("new")
    kept(run, "fs.persistence", "guarded")
    assert [change["path"] for change in run.receipt["end"]["persistence"]] == [".envrc"]


@requirement("alone.lost")
def test_secrets_of_a_root_are_lost_where_it_is_written_and_kept_where_it_is_read(user: Actor, place: str) -> None:
    secret = user.put(f"{place}/.env", "needle\n")
    refused = user.run(["true"], tier="strict", cwd=place, before=filtered(user))
    assert refused.refused is not None and refused.refused["missing"] == ["fs.workspace_secrets"], refused.raw
    accepted = user.box([op("read", path=secret)], tier="strict", cwd=place, before=filtered(user), accept=["fs.workspace_secrets"])
    worked(accepted.answers)
    assert accepted.state("fs.workspace_secrets") == "not_kept" and accepted.receipt["effective_tier"] == "guarded"
    other = f"{user.home}/work/other"
    user.make_dir(other)
    run = alone(user, [op("read", path=secret), op("read", "twin", path=f"{place}/own")], other, tier="strict", read=[place])
    user.remove(other)
    failed_with(run.answers, DENIED, but={"twin"})
    assert run.value("twin") == "own\n"
    kept(run, "fs.workspace_secrets", "strict")


@requirement("alone.promises")
def test_a_hidden_path_stays_out_of_a_read_grant(user: Actor, place: str) -> None:
    shown, hidden = user.put(f"{user.elsewhere}/shown", "shown", 0o644), user.put(f"{user.elsewhere}/hidden", "needle", 0o644)
    run = alone(user, [op("read", path=hidden), op("read", "twin", path=shown)], place, tier="strict", read=[user.elsewhere], hide=[hidden])
    failed_with(run.answers, DENIED, but={"twin"})
    assert run.value("twin") == "shown"


@requirement("alone.kept")
@pytest.mark.parametrize("words", [["run", "true"], ["ps"], ["show", "last"], ["explain", "true"], ["plan", "list"], ["audit", "verify"]], ids=" ".join)
def test_a_command_of_ours_in_such_a_box_says_that_it_has_no_state_home(user: Actor, place: str, words: list[str]) -> None:
    """access(2) knows of no Landlock: the directory looked usable, and each command ended with an error of its own."""
    user.answer({"mode": "plan", "argv": ["true"], "kwargs": {"tier": "standard", "cwd": place}}, cwd=place)  # makes the state home
    run = user.run(inside(user, *words), tier="standard", cwd=place, read=[str(user.stage.lib)], before=filtered(user))
    assert run.returncode in (2, 125) and run.raw["stderr"].startswith("stockade: state_home_invalid: "), run.raw
