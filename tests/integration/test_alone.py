"""Boxes without namespaces: how they end, what is refused, how deep they go, and what is said of them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from support.actors import PYTHON, Actor
from support.alone import filtered, limited, plain_plan
from support.boxes import op
from support.cli import environment, stockade
from support.live import LiveBox, descendants, parent_of, processes_with, wait_until
from support.plans import bind, launch, launching, small_plan, tmpfs

# Sessions of their own, deaf to what can be ignored; each announces itself only once all of that is so.
BOMB = """
import os, signal, sys
for number in (1, 2, 13, 15): signal.signal(number, signal.SIG_IGN)
for n in range(300):
    if os.fork() == 0:
        os.setsid()
        for fd in (1, 2): os.close(fd)
        while True: signal.pause()
print("ready", flush=True)
signal.pause() if sys.argv[2] == "stay" else os._exit(0)
"""


@pytest.fixture
def place(user: Actor) -> Iterator[str]:
    """A write root in which nothing runs later."""
    path = f"{user.home}/work/plain"
    user.remove(path)
    user.make_dir(path)
    yield path
    user.remove(path)


def bomb(marker: str, then: str) -> list[str]:
    """Three hundred processes that are told by the marker in their command line."""
    return ["/usr/bin/python3", "-c", BOMB, marker, then]


NEEDED = {"fs.write_roots", "proc.no_control", "ipc.isolated"}


def marked() -> str:
    """A word that no other process has in its command line."""
    return f"alone-bomb-{os.urandom(6).hex()}"


def clear(pids: list[int]) -> None:
    """Kill what a test that failed has left."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@requirement("alone.reaped")
def test_without_a_box_the_bomb_lives_on(user: Actor) -> None:
    marker = marked()
    try:
        user.call(bomb(marker, "leave"))
        assert len(processes_with(marker)) == 300
    finally:
        clear(processes_with(marker))


@requirement("alone.reaped", "proc.reaped")
def test_a_fork_bomb_ends_with_its_command(user: Actor) -> None:
    marker = marked()
    ended = launch(user, plain_plan(user), bomb(marker, "leave"))
    assert (ended.status, ended.out, ended.records["end"]["outcome"]) == (0, "ready\n", "exited"), ended
    assert processes_with(marker) == []
    assert user.agent.alive()


@requirement("alone.reaped", "proc.reaped")
@pytest.mark.parametrize("who", ["supervisor", "supervisor by request", "first process"])
def test_a_fork_bomb_ends_when_one_of_ours_is_killed(user: Actor, who: str) -> None:
    marker = marked()
    child = launching(user, plain_plan(user), bomb(marker, "stay"), extra_fds=())
    try:
        wait_until(lambda: len(processes_with(marker)) >= 301, "the bomb went off")
        first = next(pid for pid in descendants(child.pid) if parent_of(pid) == child.pid)
        os.kill(first if who == "first process" else child.pid, 63 if who == "supervisor by request" else signal.SIGKILL)
        child.wait(30)
        wait_until(lambda: processes_with(marker) == [], "every process of the box is dead")
        wait_until(lambda: not os.path.exists(f"/proc/{first}"), "its first process is gone, too")
    finally:
        clear(processes_with(marker))
        if child.poll() is None:
            child.kill()
        child.wait()
    assert user.agent.alive()


def ours(supervisor: int) -> tuple[int, int]:
    """The first process of a box and its keeper."""
    first = next(pid for pid in descendants(supervisor) if parent_of(pid) == supervisor)
    keeper = next(pid for pid in descendants(first) if parent_of(pid) == first and comm(pid) == "box-keeper")
    return first, keeper


def comm(pid: int) -> str:
    """The name of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


# Processes that are stopped first hear of each other's death as late as can be: all are killed before one acts.
TOGETHER = {"supervisor and first process": (0, 1), "first process and supervisor": (1, 0), "supervisor and keeper": (0, 2), "keeper and first process": (2, 1),
            "keeper alone": (2,)}


@requirement("alone.reaped", "proc.reaped")
@pytest.mark.parametrize("who", TOGETHER)
def test_a_fork_bomb_ends_when_two_of_ours_are_killed_at_once(user: Actor, who: str) -> None:
    marker = marked()
    child = launching(user, plain_plan(user), bomb(marker, "stay"), extra_fds=())
    try:
        wait_until(lambda: len(processes_with(marker)) >= 301, "the bomb went off")
        three = (child.pid, *ours(child.pid))
        for index in TOGETHER[who]:
            os.kill(three[index], signal.SIGSTOP)
        for index in TOGETHER[who]:
            with suppress(ProcessLookupError):  # the rest of ours was faster than this loop
                os.kill(three[index], signal.SIGKILL)
        child.wait(30)
        wait_until(lambda: processes_with(marker) == [], "every process of the box is dead")
        wait_until(lambda: all(comm(pid) not in ("stockade-init", "box-keeper") for pid in three[1:]), "and so are ours")
    finally:
        clear(processes_with(marker))
        if child.poll() is None:
            child.kill()
        child.wait()
    assert user.agent.alive()


@requirement("alone.reaped", "proc.reaped")
def test_a_first_process_that_is_stopped_does_not_outlive_its_supervisor(user: Actor) -> None:
    marker = marked()
    child = launching(user, plain_plan(user), bomb(marker, "stay"), extra_fds=())
    try:
        wait_until(lambda: len(processes_with(marker)) >= 301, "the bomb went off")
        first, _ = ours(child.pid)
        os.kill(first, signal.SIGSTOP)
        child.kill()
        wait_until(lambda: processes_with(marker) == [] and comm(first) != "stockade-init", "everything is dead")
    finally:
        clear(processes_with(marker))
        child.kill()
        child.wait()


@requirement("alone.reaped", "proc.reaped")
def test_a_supervisor_killed_at_any_moment_of_the_start_leaves_nothing(user: Actor) -> None:
    marker = marked()
    argv = ["/bin/sh", "-c", f": {marker}; sleep 60"]
    child = launching(user, plain_plan(user), argv)
    wait_until(lambda: len(processes_with(marker)) >= 2, "left alone it starts")
    child.kill()
    child.wait()
    for number in range(60):
        with launching(user, plain_plan(user), argv) as child:
            wait_until(lambda child=child: _runs(child.pid), "the launcher runs")
            end = os.times().elapsed + number * 0.0002
            while os.times().elapsed < end:
                pass
            child.kill()
    wait_until(lambda: processes_with(marker) == [], "every process is gone")


def _runs(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/exe").endswith("/stockade-launch")
    except (FileNotFoundError, PermissionError):
        return True


@requirement("alone.refused")
def test_a_root_caller_has_no_box_without_namespaces(root: Actor) -> None:
    run = root.run(["true"], tier="standard", before=filtered(root))
    # The filter that refuses them here is another sandbox to whoever looks.
    assert run.code in ("no_backend", "foreign_sandbox") and run.refused is not None and run.refused["remedy"], run.raw
    ended = launch(root, plain_plan(root), ["true"])
    assert (ended.code, "launch" in ended.records) == ("plan_invalid", False), ended


@requirement("alone.refused")
@pytest.mark.parametrize("abi", [0, 3, 5])
def test_an_older_kernel_without_namespaces_has_no_backend_and_says_what_helps(user: Actor, place: str, abi: int) -> None:
    before = [str(user.stage.bin / "old_landlock"), str(abi), "--", *filtered(user)]
    run = user.run(["true"], tier="standard", cwd=place, before=before)
    assert run.code in ("no_backend", "foreign_sandbox") and run.refused is not None, run.raw
    assert "clone and unshare" in run.refused["remedy"] and "Linux 6.12" in run.refused["remedy"], run.refused
    assert run.refused["reasons"][-1].endswith(f"got ABI {abi}") and set(run.refused["missing"]) > NEEDED, run.refused
    said = stockade(user, "doctor", "--json", before=before, env=environment(user, STOCKADE_HOME=f"{user.home}/alone-state"))
    user.remove(f"{user.home}/alone-state")
    found = {row["backend"]: row for row in said.json()["obstacles"]}
    assert found["landlock"]["class"] == "landlock_too_old" and "Linux 6.12" in found["landlock"]["commands"][0], found


@requirement("alone.refused")
def test_a_socket_that_was_named_is_refused_and_one_by_default_is_left_out_by_name(user: Actor, place: str) -> None:
    path = f"{user.home}/alone-agent.sock"
    user.agent.do("listen", path=path)
    try:
        env = {**user.env, "SSH_AUTH_SOCK": path}
        run = user.run(["true"], tier="standard", cwd=place, before=filtered(user), env=env, sockets=[path])
        assert run.code == "socket_grant_impossible" and path in str(run.refused), run.raw
        said = stockade(user, "explain", "--json", "--tier", "standard", "--cwd", place, "true", before=filtered(user),
                        env=environment(user, SSH_AUTH_SOCK=path)).json()
        assert said["decision"]["backend"] == "landlock" and any("ssh-agent" in note for note in said["notes"]), said["notes"]
        assert user.run(["true"], tier="standard", cwd=place, before=filtered(user), env=env).returncode == 0
    finally:
        user.agent.do("forget")
        user.remove(path)


def _bad(user: Actor) -> dict[str, dict[str, Any]]:
    plan = plain_plan(user)
    return {
        "a mount": {"mounts": [bind("/", "ro"), tmpfs("/run")]}, "a guard": {"guards": [{"path": user.workspace, "read_only": True}]},
        "a namespace": {"namespaces": ["net"]}, "covers": {"cover_sockets": True}, "no rules": {"landlock": None},
        "no scope of signals": {"landlock": plan["landlock"] | {"scope_signal": False}}, "an older version": {"landlock": plan["landlock"] | {"abi": 5}},
        "the filter of namespaces": {"seccomp": {"filter": "default"}}, "the filter of a network": {"seccomp": {"filter": "landlock"}},
        "counted places": {"discards": ["/tmp"]}, "a file to copy back": {"copyback": [{"source": "/a", "target": "/b"}]},
        "other ids": {"ids": {"mode": "shifted", "kernel_uid": 1, "kernel_gid": 1, "owner_uid": 1, "owner_gid": 1}},
    }


@requirement("alone.refused", "launcher.fault_is_typed")
@pytest.mark.parametrize("what", ["a mount", "a guard", "a namespace", "covers", "no rules", "no scope of signals", "an older version", "the filter of namespaces",
                                  "the filter of a network", "counted places", "a file to copy back", "other ids"])
def test_a_plan_that_asks_for_what_needs_a_namespace_is_refused(user: Actor, what: str) -> None:
    ended = launch(user, plain_plan(user, **_bad(user)[what]), ["touch", f"{user.workspace}/alone-ran"])
    assert (ended.status, ended.code) == (125, "plan_invalid"), ended
    assert not user.host(f"{user.workspace}/alone-ran").exists()


@requirement("alone.refused", "launcher.fault_is_typed")
@pytest.mark.parametrize(("fault", "code"), [("landlock_restrict_self:EPERM", "landlock_denied"), ("seccomp:EINVAL", "seccomp_denied"),
                                             ("keyctl:EDQUOT", "keyring_denied"), ("keyctl:EPERM", None)])
def test_a_step_that_fails_refuses_and_keyrings_that_nobody_reaches_are_called_so(user: Actor, fault: str, code: str | None) -> None:
    ended = launch(user, plain_plan(user), ["true"], before=[str(user.stage.bin / "fault_loader"), fault, "--"])
    assert ended.code == code, ended
    if code is None:
        assert "keyring_refused" in ended.records["launch"]["mechanisms"] and "keyring" not in ended.records["launch"]["mechanisms"]


@requirement("alone.refused")
def test_a_plan_of_namespaces_cannot_be_called_a_further_layer(user: Actor) -> None:
    assert launch(user, small_plan(user), ["true"], options=["--tighten"]).code == "usage"
    assert launch(user, plain_plan(user), ["true"], options=["--tighten"]).status == 0


@requirement("alone.refused", "ipc.sockets")
def test_a_local_socket_that_could_be_aimed_anywhere_is_not_handed_over(user: Actor) -> None:
    stream, aimed = socket.socketpair(), socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    fresh = socket.socket(socket.AF_UNIX)
    try:
        for end, code in ((stream[0], None), (aimed[0], "fds_denied"), (fresh, "fds_denied")):
            ended = launch(user, plain_plan(user, fds=[end.fileno()]), ["true"], extra_fds=[end.fileno()])
            assert ended.code == code, ended
    finally:
        for end in (*stream, *aimed, fresh):
            end.close()


@requirement("alone.promises")
@pytest.mark.parametrize("backend", ["landlock", "namespaces"])
def test_a_memory_file_and_a_deleted_file_can_be_handed_over(user: Actor, backend: str) -> None:
    """Neither has a name; the one has no place that a rule could allow, the other has."""
    held = os.memfd_create("held")
    os.write(held, b"in memory")
    path = user.put(f"{user.elsewhere}/deleted", "on disk", 0o644)
    gone = os.open(path, os.O_RDONLY)
    user.remove(path)
    fds = [held, gone]
    plan = plain_plan(user, fds=fds) if backend == "landlock" else small_plan(user, fds=fds, landlock={**plain_plan(user)["landlock"], "abi": 3, "scope_signal": False, "scope_abstract": False})
    try:
        ended = launch(user, plan, ["/bin/sh", "-c", " && ".join(f"cat /proc/self/fd/{fd}" for fd in fds)], extra_fds=fds)
    finally:
        for fd in fds:
            os.close(fd)
    assert (ended.code, ended.out) == (None, "in memoryon disk"), ended


@requirement("alone.refused")
def test_a_rule_whose_path_became_a_link_gives_nothing(user: Actor) -> None:
    secret = user.put(f"{user.elsewhere}/swap-target/secret", "needle", 0o644)
    user.sh(f"ln -sfn {user.elsewhere}/swap-target {user.elsewhere}/swapped")
    rules = [{"path": path, "access": "read"} for path in ("/usr", "/bin", "/lib", "/lib64", "/etc", f"{user.elsewhere}/swapped")]
    plan = plain_plan(user)
    plan["landlock"] = plan["landlock"] | {"rules": [*rules, {"path": user.workspace, "access": "write"}]}
    assert launch(user, plan, ["/usr/bin/cat", f"{user.workspace}/README"]).out == "hello\n"
    denied = launch(user, plan, ["/usr/bin/cat", secret])
    assert denied.status == 1 and "Permission denied" in denied.err, denied
    plan["landlock"]["rules"].append({"path": f"{user.elsewhere}/swapped", "access": "write"})
    assert launch(user, plan, ["true"]).code == "landlock_denied"
    user.remove(f"{user.elsewhere}/swapped")


@requirement("alone.layers")
def test_sixteen_layers_are_used_and_the_next_is_refused_with_nothing_started(user: Actor) -> None:
    """Each box takes two: that of its first process and that of its command."""
    store = f"{user.home}/alone-plans"
    user.make_dir(store, 0o700)
    data = json.dumps(plain_plan(user), sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(data).hexdigest()
    user.put(f"{store}/{digest}.json", data.decode(), 0o400)
    inner = [str(user.stage.launcher), "--plan", digest, "--plan-store", store, "--tighten", "--"]
    ran = ["/bin/sh", "-c", f"touch {user.workspace}/alone-deep"]
    deep = launch(user, plain_plan(user), [*inner * 7, *ran], timeout_s=120)
    assert deep.status == 0 and deep.records["launch"]["backend"] == "landlock", deep
    assert user.host(f"{user.workspace}/alone-deep").exists()
    user.remove(f"{user.workspace}/alone-deep")
    refused = launch(user, plain_plan(user), [*inner * 8, *ran], timeout_s=120)
    assert refused.status == 125 and "landlock_denied" in refused.err and "E2BIG" in refused.err, refused
    assert "(hint: sixteen layers" in refused.err, refused
    assert not user.host(f"{user.workspace}/alone-deep").exists()
    user.remove(store)


@requirement("alone.promises", "limits")
def test_limits_of_the_tree_count_the_box_alone(user: Actor) -> None:
    limits = plain_plan(user)["limits"]
    marker = marked()
    ended = launch(user, plain_plan(user, limits=limits | {"processes": 50}), bomb(marker, "stay"))
    assert (ended.records["end"]["outcome"], ended.records["end"]["limit_hit"]) == ("limit", "processes"), ended.records["end"]
    assert processes_with(marker) == []
    noted = {row["name"]: row for row in ended.records["launch"]["limits"]}
    assert not noted["processes"]["exact"] and "sampling" in noted["processes"]["mechanism"]
    assert launch(user, plain_plan(user, limits=limits | {"processes": 50}), ["true"]).status == 0
    slow = launch(user, plain_plan(user, limits=limits | {"wall_ms": 300}), ["sleep", "60"])
    assert (slow.status, slow.records["end"]["limit_hit"]) == (124, "wall"), slow


@requirement("alone.chosen")
def test_the_end_of_the_command_is_the_end_of_the_launcher(user: Actor) -> None:
    assert launch(user, plain_plan(user), ["/bin/sh", "-c", "exit 7"]).status == 7
    assert launch(user, plain_plan(user), ["/bin/sh", "-c", "kill -USR1 $$"]).status == -signal.SIGUSR1
    assert launch(user, plain_plan(user), ["/no/such/program"]).code == "not_found"


@requirement("alone.chosen")
def test_the_temporary_directory_is_the_boxs_own_and_goes_with_it(user: Actor, place: str) -> None:
    run = user.run(["/bin/sh", "-c", 'echo x > "$TMPDIR/file" && mktemp -d && echo "$TMPDIR"'], tier="strict", cwd=place, before=filtered(user))
    assert run.returncode == 0, run.raw
    made = run.stdout.splitlines()[-1]
    assert made.startswith(user.home) and not user.host(made).exists()


@requirement("alone.chosen", "F.probe_agrees")
def test_doctor_says_which_promises_are_lost(user: Actor) -> None:
    env = environment(user, STOCKADE_HOME=f"{user.home}/alone-state")
    said = stockade(user, "doctor", "--json", before=limited(user), env=env)
    user.remove(f"{user.home}/alone-state")
    lost = {(row["tier"], row["net"]): row["lost"] for row in said.json()["trials"]}
    assert said.status == 1 and set(map(tuple, lost.values())) == {("fs.metadata", "proc.invisible")}, lost
    assert [row["backend"] for row in said.json()["obstacles"]] == ["namespaces"]


def launchers(user: Actor, before: list[str], env: dict[str, str], place: str) -> int:
    """How often a start runs the launcher, itself included."""
    seen = f"{user.home}/alone-trace"
    strace = ["/usr/bin/strace", "-f", "-qq", "-e", "trace=execve", "-e", "signal=none", "-o", seen]
    said = stockade(user, "run", "--tier", "standard", "--cwd", place, "--receipt", f"{user.home}/alone-receipt", "true", before=[*strace, *before], env=env)
    assert said.status == 0, said
    rows = user.host(seen).read_text(encoding="utf-8").splitlines()
    return len([row for row in rows if 'execve("' in row and row.split('"')[1].endswith("/stockade-launch") and "= -1 " not in row])


@requirement("alone.kept", "F.probe_of_ones_own")
def test_the_next_start_does_not_ask_the_host_again_and_no_answer_leaves_its_filter(user: Actor, place: str) -> None:
    state = f"{user.home}/alone-state"
    env = environment(user, STOCKADE_HOME=state)

    def backend() -> str:
        return str(json.loads(user.host(f"{user.home}/alone-receipt").read_text(encoding="utf-8"))["launch"]["backend"])
    try:
        # The first start of all makes the state home; the second keeps its answer there.
        for _ in range(2):
            assert launchers(user, filtered(user), env, place) > 2, "it tries what the host can"
            assert backend() == "landlock"
        for _ in range(2):
            assert launchers(user, filtered(user), env, place) == 1
            assert backend() == "landlock"
        outside = [launchers(user, [], env, place) for _ in range(2)]
        assert backend() == "namespaces" and outside[0] > 1 and outside[1] == 1, outside
        assert launchers(user, filtered(user), env, place) == 1 and backend() == "landlock"
    finally:
        for name in ("alone-state", "alone-trace", "alone-receipt"):
            user.remove(f"{user.home}/{name}")


IN_ONE_PROCESS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import stockade
from stockade.cli import main

def limit(most):
    with open("/proc/sys/user/max_user_namespaces", "w") as stream:
        stream.write(str(most))

def start():
    try:
        return stockade.run(["true"], tier="standard", caller="operator", cwd=sys.argv[2]).receipt.backend
    except stockade.Refused as error:
        return error.code

said = [start(), start()]
limit(0)  # the plan is compiled, and the answer behind it holds no more
said += [start(), start(), start()]
limit(1000)
said += [start()]
stdout, sys.stdout = sys.stdout, sys.stderr
main(["doctor"])
sys.stdout = stdout
said += [start(), start()]
print(json.dumps(said))
"""


@requirement("F.answer_taken_back", "alone.kept")
def test_a_process_that_goes_on_follows_what_its_host_allows(user: Actor, place: str) -> None:
    state = f"{user.home}/alone-state"
    mine = ["/usr/bin/unshare", "--user", f"--map-user={user.uid}", f"--map-group={user.gid}", "--keep-caps", "--"]
    try:
        done = user.call([*mine, PYTHON, "-I", "-B", "-c", IN_ONE_PROCESS, str(user.stage.lib), place], env=environment(user, STOCKADE_HOME=state))
        assert done.returncode == 0, done.stderr.decode()
        assert json.loads(done.stdout) == ["namespaces", "namespaces", "userns_denied", "landlock", "landlock", "landlock", "namespaces", "namespaces"]
    finally:
        user.remove(state)


@requirement("alone.chosen", "F.check_agrees")
@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_check_answers_as_the_box_does(user: Actor, place: str, tier: str) -> None:
    own, other = user.put(f"{place}/own", "own", 0o644), user.put(f"{user.elsewhere}/plain", "x", 0o644)
    key = user.put(f"{user.home}/.netrc", "needle")
    pairs = [(own, "read"), (own, "write"), (f"{place}/new", "create"), (other, "read"), (other, "write"), (key, "read"), ("/tmp/alone-new", "create"),
             ("/usr/bin/true", "exec"), ("/etc/passwd", "read"), (user.home, "read")]
    kwargs = user._grants(tier, None, {"cwd_arg": place})
    said = user.answer({"mode": "check", "kwargs": kwargs, "pairs": pairs, "grants_every": 1}, cwd=place, before=filtered(user))
    ops = [op("read", "0", path=own), op("rewrite", "1", path=own), op("create", "2", path=f"{place}/new"), op("read", "3", path=other), op("write_open", "4", path=other),
           op("read", "5", path=key), op("create", "6", path="/tmp/alone-new"), op("run", "7", argv=["/usr/bin/true"]), op("read", "8", path="/etc/passwd"),
           op("list", "9", path=user.home)]
    run = user.box(ops, tier=tier, cwd=place, before=filtered(user))
    user.remove(key)
    real = [run.answers[str(number)]["errno"] is None for number in range(len(ops))]
    assert [answer["answer"] == "same_object" for answer in said["answers"]] == real, (said["answers"], run.answers)
    assert {answer["answer"] for answer in said["answers"]} == {"same_object", "denied"}


@requirement("alone.reaped")
def test_a_stop_of_the_first_process_does_not_save_the_box(user: Actor, place: str) -> None:
    with LiveBox(user, tier="standard", cwd=place, before=filtered(user)) as box:
        command = box.command_pid()
        first = next(pid for pid in descendants(box.process.pid) if parent_of(pid) == box.process.pid)
        os.kill(first, signal.SIGSTOP)
        box.process.send_signal(63)
        box.process.wait(20)
        wait_until(lambda: not os.path.exists(f"/proc/{command}"), "the command is dead")


@requirement("alone.layers", "nest.strict_in_standard")
def test_strict_inside_standard_is_strict_without_namespaces_too(user: Actor, place: str) -> None:
    """To what runs in it the outer box is a foreign sandbox; the inner one is a further layer of rules."""
    secret = user.put(f"{user.home}/work/outside/secret.txt", "outer-reads-this\n")
    state = user.make_dir(f"{user.home}/work/state-inside", 0o700)
    inner = f"{PYTHON} -B -m stockade run --tier strict --net none --receipt - sh -c 'cat {secret}; echo work > made; cat made'"
    script = f"cat {secret}; export PYTHONPATH={user.stage.lib} STOCKADE_HOME={state}; exec {inner}"
    said = stockade(user, "run", "--tier", "standard", "--net", "none", "--quiet", "--write", state, "sh", "-c", script, cwd=place,
                    before=filtered(user))
    user.remove(state)
    user.remove(f"{user.home}/work/outside")
    outer, inside, receipt = said.out.split("\n", 2)
    assert (said.status, outer, inside) == (0, "outer-reads-this", "work"), said
    assert receipt.startswith("strict · kept 17 of 17 · net none · backend landlock"), said
