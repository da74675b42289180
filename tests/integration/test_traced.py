"""A watched program notices nothing, a watched box promises what it promised, and who cannot be watched does not run."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from requirements import requirement
from support.actors import PYTHON, Actor
from support.live import wait_until
from support.plans import launch, small_plan


@requirement("learn.unnoticed")
def test_a_watched_program_notices_nothing(actor: Actor) -> None:
    """Ends by every signal, stops, 200 forks, 64 threads that execute, bad pointers: bare, boxed and watched alike."""
    argv = [PYTHON, str(actor.stage.bin / "traced.py")]
    bare = json.loads(actor.call(argv).stdout)
    boxed = json.loads(actor.run(argv, tier="strict").stdout)
    watched = actor.trace(argv, tier="strict")
    assert (watched["returncode"], json.loads(watched["stdout"])) == (0, boxed)
    # The box's own filter answers some of the garbage (modes with a setuid bit), so bare it differs.
    assert {**boxed, "garbage": None} == {**bare, "garbage": None} and len(boxed["garbage"]) == 3000
    assert bare["forks"] == 0 and bare["execs"] and bare["rewritten"]
    assert bare["pointers"] == [14, 14, 14, 14, 14, 36, 36, 2]
    # A name that changed while it was read is one of the two, or torn between them.
    paths = {line["path"] for line in watched["lines"] if "path" in line}
    assert paths & {"/etc/passwd", "/etc/no-such"} and not any(len(path) > 4096 for path in paths)


# Woken when it has stopped (t: held by its tracer), however long that takes; told again, in case it was only about to.
STOPPED = r"(until grep -q '^State:.[Tt]' /proc/$$/status; do :; done; while kill -CONT $$; do sleep 0.01; done) 2>/dev/null & kill -STOP $$; exit 6"


@requirement("learn.unnoticed")
@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -TERM $$", -15), ("kill -KILL $$", -9), ("kill -SEGV $$", -11),
                                                ("sleep 60 & exit 4", 4), (STOPPED, 6)])
def test_a_watched_command_ends_as_it_ended(actor: Actor, script: str, status: int) -> None:
    watched = actor.trace(["/bin/sh", "-c", script], tier="guarded")
    assert (watched["returncode"], watched["receipt"]["end"]["degraded"]) == (status, [])
    assert watched["lines"][-1]["end"] is True


@requirement("learn.unnoticed")
def test_a_fork_bomb_under_a_watch_ends_with_its_box(actor: Actor) -> None:
    bomb = "import os\nfor _ in range(200):\n    if os.fork() == 0:\n        while True: os.path.exists('/nope')\nos._exit(5)"
    watched = actor.trace([PYTHON, "-c", bomb], tier="strict")
    assert watched["returncode"] == 5 and watched["receipt"]["end"]["outcome"] == "exited"


@requirement("learn.unnoticed")
def test_more_names_than_the_bound_are_cut_and_counted(user: Actor) -> None:
    many = "import os\nfor n in range(200_050): os.access(f'/nope/{n}', 0)"
    watched = user.trace([PYTHON, "-c", many], tier="strict")
    last = watched["lines"][-1]
    assert (watched["returncode"], last["lines"], len(watched["lines"])) == (0, 200_000, 200_001)
    assert 50 <= last["cut"] < 5000


# CLONE_NEWUSER last: it changes who the process is.
ATTACKS = """import ctypes, os, sys
secret, outside, agent = sys.argv[1], sys.argv[2], int(sys.argv[3])
libc = ctypes.CDLL(None, use_errno=True)
def unshare(flags):
    if libc.unshare(flags): raise OSError(ctypes.get_errno(), 'unshare')
def errno_of(call, *args):
    try: call(*args); return 0
    except OSError as e: return e.errno
print(errno_of(open, secret), errno_of(open, outside, 'w'), errno_of(os.kill, agent, 0), errno_of(os.listdir, f'/proc/{agent}/fd'),
      errno_of(unshare, 0x10000000))"""
# standard does not promise to hide credentials; strict has nothing of the home.
KEPT_FROM = {"standard": [0, errno.EROFS, errno.ESRCH, errno.ENOENT, errno.EPERM],
             "guarded": [errno.ENOENT, errno.EROFS, errno.ESRCH, errno.ENOENT, errno.EPERM],
             "strict": [errno.ENOENT, errno.ENOENT, errno.ESRCH, errno.ENOENT, errno.EPERM]}


@requirement("learn.promises_hold")
@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_a_watched_box_keeps_its_promises(actor: Actor, tier: str) -> None:
    secret, outside = actor.put(f"{actor.home}/.aws/credentials"), actor.put(f"{actor.elsewhere}/file")
    argv = [PYTHON, "-c", ATTACKS, secret, outside, str(actor.agent.pid)]
    assert actor.call(argv).stdout.split() == [b"0"] * 5, "the attack works without a box"
    plain = actor.run(argv, tier=tier)
    watched = actor.trace(argv, tier=tier)
    assert [int(word) for word in plain.stdout.split()] == KEPT_FROM[tier]
    assert watched["stdout"] == plain.stdout, watched
    kept = [(row["id"], row["state"]) for row in watched["receipt"]["promises"]]
    assert kept == [(row["id"], row["state"]) for row in plain.receipt["promises"]]
    actor.remove(secret)


@requirement("learn.promises_hold")
def test_nothing_inside_sees_or_reaches_the_tracer(actor: Actor) -> None:
    script = ("import os\nstatus = open('/proc/self/status').read()\n"
              "print(status.split('TracerPid:')[1].split()[0], sum(p.isdigit() for p in os.listdir('/proc')), os.getppid(), *sorted(os.listdir('/proc/self/fd'))[:-1])")
    watched = actor.trace([PYTHON, "-c", script], tier="strict")
    # 0: the tracer has no number in the box. Two processes: init and the command.
    assert watched["stdout"].split() == ["0", "2", "1", "0", "1", "2"], watched


@requirement("learn.promises_hold")
def test_a_debugger_inside_a_watched_box_is_refused_and_works_without(actor: Actor) -> None:
    traceme = "import ctypes; print(ctypes.CDLL(None).ptrace(0, 0, 0, 0))"
    assert actor.run([PYTHON, "-c", traceme], tier="strict").stdout.strip() == "0"
    assert actor.trace([PYTHON, "-c", traceme], tier="strict")["stdout"].strip() == "-1"


def _options(actor: Actor, fd: int) -> dict[str, object]:
    return {"options": ["--trace-fd", str(fd)], "extra_fds": [fd]}


@requirement("learn.promises_hold")
def test_a_trace_needs_a_regular_file_open_for_writing(actor: Actor) -> None:
    reader, writer = os.pipe()
    readable = os.open("/etc/passwd", os.O_RDONLY)
    memory = os.memfd_create("trace")
    for fd in (writer, readable, 77):
        more = _options(actor, fd) if fd != 77 else {"options": ["--trace-fd", "77"]}
        ended = launch(actor, small_plan(actor), ["/bin/sh", "-c", "touch ran"], **more)  # type: ignore[arg-type]
        assert (ended.status, ended.code) == (125, "usage") and "--trace-fd" in ended.err, ended
    assert not actor.host(f"{actor.workspace}/ran").exists()
    ended = launch(actor, small_plan(actor), ["/bin/sh", "-c", "touch ran"], **_options(actor, memory))  # type: ignore[arg-type]
    assert ended.status == 0 and actor.host(f"{actor.workspace}/ran").exists()
    actor.remove(f"{actor.workspace}/ran")
    assert os.fstat(memory).st_size > 0
    for fd in (reader, writer, readable, memory):
        os.close(fd)


@requirement("learn.promises_hold")
def test_a_command_that_cannot_be_traced_does_not_run(actor: Actor) -> None:
    """Without ptrace(2) (a filter of the caller's, as in some containers) the launch is refused."""
    memory = os.memfd_create("trace")
    deny = str(actor.stage.bin / "fault_loader")
    ended = launch(actor, small_plan(actor), ["/bin/sh", "-c", "touch ran"], before=[deny, "ptrace:EPERM", "--"], **_options(actor, memory))  # type: ignore[arg-type]
    assert (ended.status, ended.code) == (125, "trace_denied"), ended
    assert not actor.host(f"{actor.workspace}/ran").exists()
    os.close(memory)


@requirement("learn.promises_hold")
def test_the_tracers_death_is_the_boxes_end(actor: Actor) -> None:
    job = {"mode": "trace", "argv": ["/bin/sleep", "60"], "kwargs": actor._grants("strict", None, {})}
    with actor.drive(job, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        tracer = _wait_for_tracer(child.pid)
        os.kill(tracer, signal.SIGKILL)
        out, _ = child.communicate(timeout=30)
    answer = json.loads(out)
    assert answer["returncode"] == -signal.SIGKILL
    assert answer["receipt"]["end"]["degraded"] == ["trace: not written to its end"]


@requirement("learn.promises_hold")
def test_a_killed_supervisor_takes_its_tracer_and_the_watched_box_along(actor: Actor) -> None:
    job = {"mode": "trace", "argv": ["/bin/sh", "-c", "sleep 61 & sleep 60"], "kwargs": actor._grants("strict", None, {})}
    with actor.drive(job, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        tracer = _wait_for_tracer(child.pid)
        supervisor = int(_field(Path(f"/proc/{tracer}"), "stat").rsplit(")", 1)[1].split()[1])
        inside = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _descends(int(entry.name), supervisor)]
        os.kill(supervisor, signal.SIGKILL)
        child.communicate(timeout=30)
    assert len(inside) >= 4
    wait_until(lambda: not any(_lives(pid) for pid in inside), "nothing of the box is left")


@requirement("learn.promises_hold")
def test_a_guard_that_the_host_moves_away_is_put_back_in_a_watched_box(actor: Actor, fresh_repo: str) -> None:
    # Tries until the guard is back, then twenty times more.
    script = ("import errno, os, time\n"
              "def attempt():\n"
              "    try: os.close(os.open('.git/config', os.O_WRONLY | os.O_APPEND)); return 0\n"
              "    except OSError as e: return e.errno\n"
              "first = attempt(); open('ready', 'w').close()\n"
              "until = time.monotonic() + 20\n"
              "while not os.path.exists('moved') and time.monotonic() < until: time.sleep(0.01)\n"
              "while attempt() == 0 and time.monotonic() < until: time.sleep(0.01)\n"
              "print(first, {attempt() for _ in range(20)})")
    job = {"mode": "trace", "argv": [PYTHON, "-c", script], "kwargs": actor._grants("guarded", fresh_repo, {})}
    with actor.drive(job, cwd=fresh_repo, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        wait_until(lambda: actor.host(f"{fresh_repo}/ready").exists(), "the command has looked once")
        actor.sh("cp -r .git ../g2; mv .git ../old; mv ../g2 .git; rm -rf ../old; touch moved", cwd=fresh_repo)
        out, err = child.communicate(timeout=40)
    answer = json.loads(out)
    assert answer["stdout"] == "30 {30}\n", (answer, err)
    assert answer["receipt"]["end"]["guard_lost"]


def _lives(pid: int) -> bool:
    stat = _field(Path(f"/proc/{pid}"), "stat")
    return bool(stat) and stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def _wait_for_tracer(driver: int) -> int:
    found: list[int] = []

    def look() -> bool:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (entry / "comm").exists() and _field(entry, "comm") == "stockade-trace":
                parent = int(_field(entry, "stat").rsplit(")", 1)[1].split()[1])
                if _descends(parent, driver) and _sleeps(parent):
                    found.append(int(entry.name))
        return bool(found)

    wait_until(look, "the tracer holds the command")
    return found[0]


def _field(entry: Path, name: str) -> str:
    try:
        return (entry / name).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _sleeps(supervisor: int) -> bool:
    """Tell whether a descendant of the supervisor has become the command."""
    return any(_field(entry, "comm") == "sleep" and _descends(int(entry.name), supervisor)
               for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        stat = _field(Path(f"/proc/{pid}"), "stat")
        if not stat:
            return False
        pid = int(stat.rsplit(")", 1)[1].split()[1])
    return False
