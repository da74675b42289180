"""Boxes inside a box: they work, and whatever is asked for can only take away.

The attacked thing is the supervisor outside: hostile code inside writes its requests.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
from typing import Any

import pytest

from requirements import requirement
from stockade.rules.promises import PROMISE_IDS, PROMISES
from stockade.rules.tiers import Tier
from support.actors import PYTHON, WAIT_S, Actor
from support.left import records
from support.live import wait_until
from support.plans import bind, small_plan, tmpfs

TIERS = ("standard", "guarded")


def asked(actor: Actor, jobs: list[dict[str, Any]], *, tier: str = "standard", **kwargs: Any) -> tuple[Any, list[Any]]:
    """Do jobs inside a box; the run and the answers."""
    stdin = json.dumps({"lib": str(actor.stage.lib), "jobs": jobs})
    run = actor.run([PYTHON, "-I", "-B", str(actor.stage.bin / "asks.py")], tier=tier, stdin=stdin, **kwargs)
    assert run.returncode == 0, run.stderr
    return run, json.loads(run.stdout)


def inner(actor: Actor, script: str, tier: str = "strict", **options: Any) -> dict[str, Any]:
    """A job: a shell script in a box inside."""
    made = {"tier": tier, "caller": "operator", "net": "none", "cwd": actor.workspace, **options}
    return {"do": "run", "argv": ["/bin/sh", "-c", script], "options": made}


@requirement("nest.strict_in_standard")
@pytest.mark.parametrize("tier", TIERS)
def test_a_stricter_box_runs_inside_a_box_and_says_what_it_keeps(actor: Actor, tier: str) -> None:
    actor.put(f"{actor.elsewhere}/secret", "outer can read this\n")
    look = f"cat {actor.elsewhere}/secret"
    _, (outer, got, ok) = asked(actor, [
        {"do": "plain", "argv": ["/bin/sh", "-c", look]}, inner(actor, look), inner(actor, "echo $(id -u) > made; cat made")], tier=tier)
    assert outer["status"] == 0, "the outer box shows the file"
    assert got["status"] != 0 and "outer can read" not in got["out"]
    assert (ok["status"], ok["out"]) == (0, f"{actor.uid}\n"), ok
    launch = got["receipt"]["launch"]
    assert (launch["requested_tier"], got["active"], got["receipt"]["effective_tier"]) == ("strict", tier, "strict")
    assert launch["origin"] == "inside"
    said = [launch[name] for name in ("decision", "row", "active_tier", "tier_known", "tier_downgrade")]
    assert said == ["tighten", "D8", tier, True, False]
    assert all(len(row["mechanism"]) == len(set(row["mechanism"])) for row in launch["promises"]), launch["promises"]
    assert ok["receipt"]["end"]["degraded"] == [], ok["receipt"]["end"]


@requirement("nest.only_narrows")
@pytest.mark.parametrize("around", ["host", "none"])
@pytest.mark.parametrize("inside", ["host", "none"])
def test_a_network_is_never_more_than_that_of_the_outer_box(actor: Actor, around: str, inside: str) -> None:
    _, (got,) = asked(actor, [inner(actor, "ls /sys/class/net 2>/dev/null | wc -l; cat /proc/net/dev | wc -l", tier="standard", net=inside)], net=around)
    if (around, inside) == ("none", "host"):
        assert got["code"] == "grant_unreachable", got
        return
    assert got["status"] == 0, got
    told = got["receipt"]["launch"]["net"]
    assert told == ("host" if (around, inside) == ("host", "host") else "none")
    kept = {row["id"]: row["state"] for row in got["receipt"]["launch"]["promises"]}
    assert kept["net.policy"] == "kept"


@requirement("nest.only_narrows")
def test_a_read_only_place_of_the_outer_box_stays_so_whatever_the_inner_one_is_granted(actor: Actor) -> None:
    hook, made = f"{actor.workspace}/.git/hooks/pre-push", f"{actor.workspace}/made-inside"
    before = actor.sh(f"cat {hook}")
    # All of it works without a box.
    actor.sh(f"cp -a {hook} /tmp/kept && echo x >> {hook} && mv .git .git2 && mv .git2 .git && cp -a /tmp/kept {hook}; rm -f /tmp/kept")
    ask = [inner(actor, f"echo x >> {hook}; mv .git .git2; echo x > {made}", tier="standard", write=[actor.workspace]),
           inner(actor, f"echo x > {actor.elsewhere}/new", tier="standard", write=[actor.elsewhere])]
    _, (started, refused) = asked(actor, ask, tier="guarded")
    assert started["status"] == 0 and actor.host(made).exists(), started
    actor.remove(made)
    assert refused["code"] == "grant_unreachable" and actor.elsewhere in refused["message"], refused
    assert actor.sh(f"cat {hook}") == before
    assert actor.sh(f"ls {actor.elsewhere}").split().count("new") == 0
    assert actor.sh("test -d .git && echo there") == "there\n"


def _fields(*rows: tuple[str, bytes]) -> list[list[Any]]:
    return [[ord(tag), value.hex()] for tag, value in rows]


@requirement("nest.hostile_requests")
def test_bytes_that_are_no_request_are_refused_and_the_box_goes_on(actor: Actor) -> None:
    good = _fields(("a", b"/bin/true"))
    jobs = [
        {"do": "raw", "plan": {}, "fields": good},
        {"do": "raw", "plan": {}, "fields": []},
        {"do": "raw", "plan": {}, "fields": _fields(("z", b""))},
        {"do": "raw", "plan": {}, "fields": good, "sealed": False},
        {"do": "raw", "plan": {}, "fields": good, "count": 3},
        {"do": "raw", "plan": {}, "fields": good, "more": ["/etc/passwd"]},
        {"do": "raw", "plan": {}, "fields": _fields(("a", b"/bin/true"), ("c", b"/../etc"))},
        inner(actor, "echo still here"),
    ]
    _, got = asked(actor, jobs)
    assert got[0] == "plan_invalid"
    assert got[1:7] == ["nest_invalid"] * 6
    assert got[7]["out"] == "still here\n", got[7]


def raw_plan(actor: Actor, **changed: Any) -> dict[str, Any]:
    """A plan for a box inside: what the small plan has, read-only, with the hostile programs and the package."""
    plan = small_plan(actor)
    shown = [bind(str(path), "ro", "nosuid", "nodev", type="dir") for path in (actor.stage.bin, actor.stage.lib)]
    work = bind(actor.workspace, "nosuid", "nodev", type="dir", create=False)
    kept = [row for row in plan["mounts"] if row["target"] not in (actor.home, actor.workspace)]
    plan.update(mounts=[*kept, *shown, work], guards=[], persistence=[], accept=list(PROMISE_IDS))
    return plan | changed


RUNS = _fields(("a", b"/bin/true"))


@requirement("nest.hostile_requests")
@pytest.mark.parametrize("changed", [
    {"ids": {"mode": "shifted", "kernel_uid": 0, "kernel_gid": 0, "owner_uid": 0, "owner_gid": 0}},
    {"fds": [3]}, {"fds": [5, 6, 7]}, {"seccomp": {"filter": "init"}}, {"cwd": "/proc/self/fd/5"},
    {"copyback": [{"source": "/etc/passwd", "target": "/tmp/x"}]},
], ids=["ids", "descriptor", "descriptors", "filter", "cwd", "copyback"])
def test_a_plan_that_reaches_for_what_is_not_its_own_is_refused(actor: Actor, changed: dict[str, Any]) -> None:
    """Descriptors: the supervisor's own would have these numbers."""
    jobs = [{"do": "raw", "plan": raw_plan(actor), "fields": RUNS}, {"do": "raw", "plan": raw_plan(actor, **changed), "fields": RUNS}]
    _, (twin, got) = asked(actor, jobs)
    assert twin == "end 0", "the same plan without it starts"
    assert got in ("plan_invalid", "fds_denied", "chdir_denied", "usage"), got


@requirement("nest.only_narrows")
def test_a_plan_that_binds_past_a_guard_or_uncovers_a_mount_is_refused(actor: Actor) -> None:
    """Without its submounts the workspace would show writable hooks: the kernel has locked them to it."""
    plan = raw_plan(actor)
    alone = [row for row in plan["mounts"] if row["target"] != actor.workspace]
    alone.append(bind(actor.workspace, type="dir", target="/tmp/past"))
    with_all = [*alone[:-1], bind(actor.workspace, type="dir", target="/tmp/past", recursive=True)]
    hook = "/tmp/past/.git/hooks/pre-push"
    script = _fields(("a", b"/bin/sh"), ("a", b"-c"), ("a", f"echo x >> {hook}".encode()))
    before = actor.sh("cat .git/hooks/pre-push")
    rules = {"abi": 6, "scope_signal": False, "scope_abstract": False, "rules": [{"path": "/", "access": "write"}]}
    jobs = [{"do": "raw", "plan": plan | {"mounts": mounts, "landlock": rules}, "fields": script} for mounts in (alone, with_all)]
    _, (bare, whole) = asked(actor, jobs, tier="guarded")
    assert bare == "mount_denied" and whole.startswith("end ") and whole != "end 0", (bare, whole)
    assert actor.sh("cat .git/hooks/pre-push") == before


@requirement("nest.only_narrows")
def test_a_lying_plan_keeps_no_promise_that_the_outer_box_does_not_know(actor: Actor) -> None:
    """It claims strict with the outer box's own promises left out."""
    lie = [{"id": "fs.made_up", "tiers": ["strict"], "ns": False, "needs": [["seccomp"]], "state": None, "reason": None}]
    jobs = [{"do": "raw", "plan": raw_plan(actor, requested_tier="strict", promises=lie, accept=[]), "fields": RUNS}]
    _, (got,) = asked(actor, jobs)
    assert got == "promise_not_kept"


# What a plan says that promises all of strict, whatever its mounts show.
CLAIMS = [{"id": one.id, "tiers": sorted(map(str, one.tiers)), "ns": one.needs_namespaces, "needs": [list(facts) for facts in one.needs_for("none")],
           "state": None, "reason": None} for one in PROMISES]
# A program in the box: what it believes of the place, and what an honest strict box in it shows of the home.
ASKS = """
import json, sys
sys.path.insert(0, {lib!r})
import stockade
place, record = stockade.active(), json.load(open("/run/stockade/box.json"))
bare = stockade.run(["cat", {secret!r}], tier="off", capture_output=True, text=True)
done = stockade.run(["cat", {secret!r}], tier="strict", caller="operator", net="none", cwd="/tmp", read=[], capture_output=True, text=True)
print(json.dumps({{"where": place.where, "tier": str(place.tier), "record": record, "bare": bare.stdout, "out": done.stdout, "row": done.receipt.launch["row"]}}))
"""


def said_inside(rows: list[dict[str, Any]], run_id: str) -> list[dict[str, Any]]:
    """What the log holds of the boxes inside a run, at any depth."""
    found = []
    for row in rows:
        if row.get("record") == "inside" and row["run_id"] == run_id:
            more = [json.loads(line) for line in row["data"].splitlines()]
            found += [*more, *(deeper for one in more if one.get("record") == "inside" for deeper in said_inside([one], one["run_id"]))]
    return found


def lying_plan(actor: Actor, show: list[str]) -> dict[str, Any]:
    """It promises strict in a view of its own that shows these directories of the box around, and says that it is allowed nothing."""
    rows = [row for row in raw_plan(actor)["mounts"] if row["kind"] in ("proc", "dev")]
    made = [bind(path, type="dir", recursive=True) for path in show]
    links = [{"kind": "symlink", "target": f"/{name}", "to": f"usr/{name}"} for name in ("bin", "lib", "lib64")]
    mounts = [tmpfs("/"), *sorted([*rows, *made, *links, tmpfs("/run"), tmpfs("/tmp", mode="1777")], key=lambda row: (row["target"].count("/"), row["target"]))]
    env = {"mode": "deny", "keep": [], "drop": [], "drop_values": [], "set": {"HOME": actor.home}}
    record = {name: [] for name in ("env", "read", "write", "sockets", "devices", "allow", "limits")}
    record |= {"net": "none", "tier": "strict", "effective_tier": "strict", "decision": "wrap", "row": "D2", "active_tier": "off", "chain": []}
    return raw_plan(actor, requested_tier="strict", promises=CLAIMS, accept=[], mounts=mounts, landlock=None, env=env, record=record, cwd="/tmp")


@requirement("nest.word_of_a_plan")
@pytest.mark.parametrize("tier", TIERS)
def test_what_a_plan_from_inside_promises_beyond_the_box_around_is_believed_by_nobody(actor: Actor, tier: str) -> None:
    secret = actor.put(f"{actor.home}/diary.txt", "dear-diary\n")
    show = ["/usr", "/etc", actor.home, str(actor.stage.root)]
    argv = [PYTHON, "-I", "-B", "-c", ASKS.format(lib=str(actor.stage.lib), secret=secret)]
    run, (got,) = asked(actor, [{"do": "told", "plan": lying_plan(actor, show), "argv": argv}], tier=tier)
    assert got["end"] == "end 0", got
    inside = json.loads(got["out"])
    assert inside["bare"] == "dear-diary\n", "the box shows the home, whatever its plan says"
    assert (inside["where"], inside["tier"], inside["record"]["effective_tier"]) == ("box", tier, tier)
    said = [inside["record"][name] for name in ("decision", "row", "active_tier", "tier_known", "write")]
    assert said == ["tighten", "D8", tier, True, [actor.workspace]]
    assert (inside["row"], inside["out"]) == ("D8", ""), "an honest request in it is not passed through"
    # The log has it as data of the outer run, and no higher.
    launches = [row for row in said_inside(records(actor), run.receipt["run_id"]) if row.get("record") == "launch" and row["backend"] == "namespaces"]
    assert [row["effective_tier"] for row in launches] == [tier, tier], launches
    assert all(row["tier_downgrade"] and (row["active_tier"], row["would_be"]) == (tier, "strict") for row in launches)
    # Who asked may be told of its own promises, as such.
    launch = got["records"][0]
    own = {row["id"] for row in launch["promises"] if row["state"] == "kept" and row["reason"] == "by the plan of the program that asked"}
    assert own == {one.id for one in PROMISES if Tier[tier] not in one.tiers}


@requirement("nest.word_of_a_plan")
def test_a_view_that_is_the_outer_box_s_is_no_strict_one(actor: Actor) -> None:
    whole = lying_plan(actor, [])
    parts = [row for row in whole["mounts"] if row["kind"] in ("proc", "dev") or row["target"] == "/run"]
    laid = whole | {"mounts": [bind("/", type="dir", recursive=True, create=False), *parts]}
    under = whole | {"mounts": [tmpfs("/"), *parts, bind("/", type="dir", recursive=True, target="/all")]}
    argv = ["/usr/bin/true"]
    _, got = asked(actor, [{"do": "told", "plan": plan, "argv": argv} for plan in (laid, under)])
    assert [one["end"] for one in got] == ["promise_not_kept"] * 2, got


@requirement("nest.only_narrows")
def test_a_plan_from_inside_has_no_more_memory_and_no_more_of_proc_than_the_box_around(actor: Actor) -> None:
    look = "import os\ns = os.statvfs('/tmp')\nprint(s.f_blocks * s.f_frsize)"
    plan = raw_plan(actor, limits=small_plan(actor)["limits"] | {"memory_bytes": None})
    for row in plan["mounts"]:
        if row["kind"] == "tmpfs":
            row["size_bytes"] = 1 << 40
        if row["kind"] == "proc":
            row["covers"] = []
    script = f"{look}\nprint(os.statvfs('/proc/sys').f_flag & os.ST_RDONLY)"
    _, (got,) = asked(actor, [{"do": "told", "plan": plan, "argv": [PYTHON, "-I", "-c", script]}], limits={"memory_bytes": 200 << 20})
    assert got["end"] == "end 0", got
    size, opened = got["out"].split()
    assert int(size) <= 200 << 20, got
    assert opened == "1", "the controls of the kernel stay covered"


FORKS = """
import os, signal
made = []
try:
    for _ in range(60):
        child = os.fork()
        if not child:
            signal.pause()
        made.append(child)
except BlockingIOError:
    pass
print(len(made))
for child in made:
    os.kill(child, signal.SIGKILL)
"""


@requirement("nest.only_narrows")
def test_a_process_limit_holds_for_a_box_and_all_that_lives_inside_it_together(actor: Actor) -> None:
    idle = {"do": "plain", "argv": ["/bin/sh", "-c", "for one in 1 2 3 4 5 6 7 8; do sleep 60 >/dev/null 2>&1 </dev/null & done"]}
    forks = {**inner(actor, ""), "argv": [PYTHON, "-I", "-c", FORKS]}
    _, (free,) = asked(actor, [forks])
    assert free["out"] == "60\n", free  # without a limit they are made
    run, (alone, _, among) = asked(actor, [forks, idle, forks], limits={"processes": 30})
    # Beside them live at least the one who asks, its client and the command.
    assert 0 < int(alone["out"]) <= 27 and 0 < int(among["out"]) <= 19, (alone["out"], among["out"])
    (row,) = [row for row in run.receipt["limits"] if row["name"] == "processes"]
    assert (row["value"], row["exact"]) == (30, True), row


@requirement("nest.only_narrows")
def test_the_receipt_of_a_box_inside_says_the_limit_that_is_in_force_and_how_far_it_reaches(actor: Actor) -> None:
    jobs = [inner(actor, "true", limits={"processes": most, "memory_bytes": 1 << 30}) for most in (90, 20)]
    _, got = asked(actor, jobs, limits={"processes": 40, "files": 200, "memory_bytes": 500 << 20})
    for one, most in zip(got, (40, 20), strict=True):
        rows = {row["name"]: row for row in one["receipt"]["launch"]["limits"]}
        assert {name: rows[name]["value"] for name in ("processes", "files", "memory_bytes")} == {
            "processes": most, "files": 200, "memory_bytes": 500 << 20}, rows
        assert not rows["processes"]["exact"] and "boxes inside" in rows["processes"]["mechanism"], rows


@requirement("nest.hostile_requests")
@pytest.mark.parametrize("talks", [False, True], ids=["silent", "talking"])
def test_connections_that_ask_for_nothing_keep_nobody_from_asking(actor: Actor, *, talks: bool) -> None:
    asks = inner(actor, "echo works")
    run, (few, alone, more, beside) = asked(actor, [{"do": "crowd", "times": 10, "talks": talks}, asks,
                                                    {"do": "crowd", "times": 70, "talks": False}, asks])
    assert (few, more) == (10, 80), "more than the supervisor holds at once"
    # Without an answer in time the run has ended before this line.
    assert (alone["out"], beside["out"]) == ("works\n", "works\n"), (alone, beside)
    assert any("to let others in" in word for word in run.receipt["end"]["degraded"]), run.receipt["end"]


WRITES = """
import os, sys, time
open("ready", "w").close()
for _ in range(200):
    try:
        with open(".git/config", "a") as stream:
            stream.write("[core]\\n\\thooksPath = /tmp/theirs\\n")
        break
    except OSError:
        time.sleep(0.05)
"""


@requirement("nest.only_narrows", "fs.persistence")
def test_a_guard_that_the_host_replaces_stands_in_no_box_inside_either(actor: Actor) -> None:
    """The kernel takes the guard away in every view, and it is put back in one."""
    actor.sh(f"cp -a .git/config /tmp/config-kept && {PYTHON} -I -c {shlex.quote(WRITES)} && grep -q theirs .git/config && mv /tmp/config-kept .git/config && rm ready")
    plan = lying_plan(actor, ["/usr", "/etc", str(actor.stage.root)])
    plan["mounts"].append(bind(actor.workspace, "nosuid", "nodev", type="dir", recursive=True))
    plan["cwd"] = actor.workspace
    job = {"do": "told", "plan": plan, "argv": [PYTHON, "-I", "-c", WRITES]}
    done: list[Any] = []
    asking = threading.Thread(target=lambda: done.extend(asked(actor, [job], tier="guarded")[1]))
    asking.start()
    try:
        wait_until(lambda: done or actor.host(f"{actor.workspace}/ready").exists(), "the box inside tries")
        assert not done, done
        actor.sh("git config user.email somebody@example.org")  # renames another file over it
    finally:
        asking.join()
        actor.remove(f"{actor.workspace}/ready")
    assert "theirs" not in actor.sh("cat .git/config") and "somebody" in actor.sh("cat .git/config")
    assert done[0]["end"] != "end 0", done


@requirement("nest.hostile_requests")
def test_a_flood_of_requests_is_bounded_and_the_box_goes_on(actor: Actor) -> None:
    jobs = [{"do": "flood", "plan": raw_plan(actor, cwd="/nowhere"), "times": 60}, inner(actor, "echo still here")]
    _, (answers, ok) = asked(actor, jobs)
    assert set(answers) <= {"chdir_denied", "nest_busy", "closed"}, answers
    assert ok.get("out") == "still here\n", ok


LIVES = ["/bin/sh", "-c", "echo lives; exec sleep 1000"]


def living(actor: Actor, do: str, **more: Any) -> dict[str, Any]:
    """A job with a box inside that ends by no itself."""
    options = {"tier": "standard", "caller": "operator", "net": "none", "cwd": actor.workspace}
    return {"do": do, "argv": LIVES, "options": options, **more}


@requirement("nest.ends_with")
def test_a_client_that_is_killed_takes_its_box_along(actor: Actor) -> None:
    _, (said,) = asked(actor, [living(actor, "killed")])
    assert said == "lives\n"


@requirement("nest.ends_with")
def test_the_end_of_the_outer_command_is_the_end_of_what_is_inside(actor: Actor) -> None:
    """The box inside holds the stream that is read to its end here."""
    stdin = json.dumps({"lib": str(actor.stage.lib), "jobs": [living(actor, "left", go=True)]})
    run = actor.run([PYTHON, "-I", "-B", str(actor.stage.bin / "asks.py")], tier="standard", stdin=stdin)
    assert run.returncode == 0 and run.stderr in ("", "lives\n")


@requirement("nest.ends_with")
def test_a_supervisor_that_is_killed_takes_all_along(actor: Actor) -> None:
    stdin = json.dumps({"lib": str(actor.stage.lib), "jobs": [living(actor, "left")]}).encode()
    argv = [PYTHON, "-I", "-B", str(actor.stage.bin / "asks.py")]
    with actor.live(argv, tier="standard", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stderr is not None
        child.stdin.write(stdin)
        child.stdin.close()
        assert child.stderr.readline() == b"lives\n"
        child.kill()
        ended = threading.Event()
        reader = threading.Thread(target=lambda: (child.stderr.read(), ended.set()), daemon=True)
        reader.start()
        assert ended.wait(WAIT_S), "something of the box still holds its standard error"
        reader.join()


@requirement("nest.deep")
def test_twenty_boxes_inside_each_other(actor: Actor) -> None:
    plan, launcher = json.dumps(raw_plan(actor)), str(actor.stage.launcher)
    argv = [PYTHON, "-I", "-B", str(actor.stage.bin / "asks.py"), "deep", "20", plan, launcher]
    run = actor.run(argv, tier="standard")
    assert (run.returncode, run.stdout) == (0, "around 21\n"), run.stderr
