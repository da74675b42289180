"""Callers whose PATH, HOME, working directory, streams, environment or arguments are unusual.

Whatever of these is empty, missing, foreign or too long widens no box and runs nothing outside of
it; what cannot be done is refused with a typed reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from requirements import at_tiers, requirement
from support.actors import PYTHON, Actor
from support.boxes import BoxRun, Op, failed_with, kept, op, worked
from support.cli import environment, line, stockade

OUT_OF_REACH = {"ENOENT", "EROFS", "EACCES"}
NEEDLE = "odd-needle"


def _with(*changes: str) -> list[str]:
    """Change the environment of the caller after the fixture has used it."""
    return ["/usr/bin/env", *changes]


# -- PATH ------------------------------------------------------------------------------------------

PLANTED = ("git", "true", "sh", "python3", "getent", "uname", "mount", "newuidmap", "ldconfig", "stockade-launch")
PATHS = {"empty": "", "colon": ":", "dot": ".", "relative": "tools:/usr/bin:/bin", "dotted": "./tools:/usr/bin:/bin", "up": "../repo/tools:/usr/bin:/bin",
         "absolute": "{workspace}/tools:/usr/bin:/bin", "trailing colon": "/nonexistent:"}


@pytest.fixture
def planted(actor: Actor) -> Iterator[str]:
    """Programs in the workspace and in a directory of it that tell when they ran outside of a box."""
    marker = f"{actor.home}/planted-ran"
    made = [f"{actor.workspace}/{place}{name}" for place in ("", "tools/") for name in PLANTED]
    for path in made:
        actor.put(path, f"#!/bin/sh\necho {NEEDLE} > {marker}\n", 0o755)
    yield marker
    for path in (*made, marker):
        actor.remove(path)


@requirement("C.odd_places", "C.no_planted_code")
@at_tiers("fs.own_state")
@pytest.mark.parametrize("how", PATHS)
def test_nothing_that_path_leads_to_runs_outside_the_box(actor: Actor, planted: str, tier: str, how: str) -> None:
    before = _with("PATH=" + PATHS[how].format(workspace=actor.workspace))
    actor.call([*before, "git"])
    assert actor.host(planted).read_text() == f"{NEEDLE}\n", "without a box the search finds it"
    actor.remove(planted)
    run = actor.run(["/bin/sh", "-c", "echo inside"], tier=tier, before=before)
    assert (run.code, run.stdout) == (None, "inside\n"), run.raw
    assert not actor.host(planted).exists()
    # Named without a directory it may run inside, where the marker is out of reach, or is not found.
    named = actor.run(["git"], tier=tier, before=before)
    assert named.code in (None, "not_found"), named.raw
    assert not actor.host(planted).exists()
    kept(run, "fs.own_state", tier)


@requirement("C.odd_places", "fs.write_roots")
@at_tiers("fs.write_roots")
def test_a_directory_of_path_that_the_user_may_write_is_not_the_boxs_to_write(actor: Actor, tier: str) -> None:
    """What lies there runs outside as soon as the user types its name."""
    tools = f"{actor.home}/odd-tools"
    tool = actor.put(f"{tools}/odd-tool", "#!/bin/sh\necho from the host\n", 0o755)
    ops = [op("rewrite", path=tool), op("create", path=f"{tools}/ls"), op("rename", path=tool, to=f"{tools}/moved"), op("chmod", path=tool),
           op("rename", "directory", path=tools, to=f"{tools}-away"), op("symlink", path=f"{tools}/link", to="odd-tool"), op("unlink", path=tool)]
    before = _with(f"PATH={tools}:/usr/bin:/bin")
    worked(actor.bare(ops))
    failed_with(actor.box(ops, tier=tier, before=before).answers, OUT_OF_REACH | {"EBUSY", "EXDEV"})
    assert actor.run(["odd-tool"], tier=tier, before=before).stdout == "from the host\n"
    actor.remove(tools)


# -- HOME ------------------------------------------------------------------------------------------

HOMES = {"missing": ["-u", "HOME"], "empty": ["HOME="], "root directory": ["HOME=/"], "a file": ["HOME=/etc/passwd"], "absent": ["HOME=/tmp/odd/none"],
         "relative": ["HOME=odd"], "foreign": ["HOME=/tmp/odd/foreign"], "workspace": ["HOME={workspace}"], "above": ["HOME={home}/.."]}


@pytest.fixture
def secrets(actor: Actor) -> Iterator[list[Op]]:
    """What the account's own home protects, whatever HOME says; places of the odd homes."""
    files = [actor.put(f"{actor.home}/{name}", f"{NEEDLE}\n") for name in (".local/state/stockade/keys/odd", ".aws/credentials", ".ssh/id_rsa")]
    foreign = actor.host("/tmp/odd/foreign")
    foreign.mkdir(mode=0o755, parents=True, exist_ok=True)
    actor.put(f"{actor.elsewhere}/file", "before\n", 0o644)
    yield [op("read", path=path) for path in files]
    for path in (*files, "/tmp/odd"):
        actor.remove(path)


@requirement("C.odd_places", "fs.own_state", "fs.credentials", "fs.write_roots")
@at_tiers("fs.own_state")
@pytest.mark.parametrize("how", HOMES)
def test_what_home_says_widens_nothing(actor: Actor, secrets: list[Op], tier: str, how: str) -> None:
    changes = [text.format(workspace=actor.workspace, home=actor.home) for text in HOMES[how]]
    reads = secrets if tier != "standard" else secrets[:1]
    writes = [op("rewrite", path=f"{actor.elsewhere}/file"), op("create", path=f"{actor.elsewhere}/odd"), op("rename", path=f"{actor.elsewhere}/file", to=f"{actor.elsewhere}/moved")]
    worked(actor.bare([*reads, *writes]))
    # A working directory that is the home grants nothing; the private temp is writable in any case.
    twin = "/tmp/twin" if how == "workspace" else f"{actor.workspace}/twin"
    run = actor.box([*reads, *writes, op("create", "twin", path=twin)], tier=tier, before=_with(*changes))
    failed_with(run.answers, OUT_OF_REACH, but={"twin"})
    run.value("twin")
    assert run.receipt["effective_tier"] == tier
    kept(run, "fs.own_state", tier)
    for left in ("odd", "odd-state"):
        actor.remove(f"{actor.workspace}/{left}")
        actor.remove(f"{actor.home}/{left}")


NOT_MADE = {"absent": "/tmp/odd/none/h", "below a system directory": "/etc/odd-home", "a system directory": "/etc", "root directory": "/", "foreign": "/tmp/odd/foreign"}


@requirement("C.odd_places")
@pytest.mark.parametrize("how", NOT_MADE)
def test_no_state_home_is_made_where_no_home_is(actor: Actor, secrets: list[Op], how: str) -> None:
    """The files of a run go where they may be lost, and its record says so."""
    home = NOT_MADE[how]
    if how == "foreign":
        os.chown(actor.host(home), 4321, 4321)
    made = [f"{home.rstrip('/')}/.local", f"{home.rstrip('/')}/.config"] + ([home, "/tmp/odd/none"] if "absent" in how or "below" in how else [])
    before = [path for path in made if actor.host(path).exists()]
    run = actor.run(["/bin/echo", "ok"], tier="guarded", before=_with(f"HOME={home}"))
    assert (run.code, run.stdout) == (None, "ok\n"), run.raw
    assert [path for path in made if actor.host(path).exists()] == before
    assert run.receipt["end"]["degraded"] == [f"audit: ephemeral, in {actor.env['XDG_RUNTIME_DIR']}/stockade"], run.raw
    said = stockade(actor, "run", "-v", "--net", "none", "--", "true", env=environment(actor, HOME=home))
    assert said.status == 0 and f"state home '{home.rstrip('/')}/.local/state/stockade'" in said.err and "may not last" in said.err, said
    twin = actor.run(["/bin/echo", "ok"], tier="guarded", before=_with(f"HOME={home}", f"STOCKADE_HOME={actor.home}/named/state"))
    assert twin.receipt["end"]["degraded"] == [] and actor.host(f"{actor.home}/named/state/audit/spool.jsonl").exists(), twin.raw
    actor.remove(f"{actor.home}/named")


# -- working directory -----------------------------------------------------------------------------

IN_PROCESS = """
import json, os, shutil, sys
sys.path.insert(0, sys.argv[1])
import stockade
place, tier, elsewhere = sys.argv[2:5]
shutil.rmtree(place, ignore_errors=True)
os.makedirs(place)
os.chdir(place)
{change}
script = f"pwd; ls; for d in . {{elsewhere}}; do ( true > $d/odd-cwd ) 2>&- && echo wrote $d; done; true"
try:
    done = stockade.run(["/bin/sh", "-c", script], tier=tier, caller="operator", net="none", capture_output=True)
    print(json.dumps({{"code": None, "out": done.stdout.decode(), "tier": done.receipt.effective_tier}}))
except stockade.Error as error:
    print(json.dumps({{"code": error.code, "hint": error.hint, "text": str(error)}}))
"""
CWDS = {"removed": "os.rmdir(place)", "removed and made anew": "os.rmdir(place); os.mkdir(place); open(place + '/not-mine', 'w').close()",
        "mode 0": "os.chmod(place, 0)", "search only": "os.chmod(place, 0o100)", "no list": "os.chmod(place, 0o300)", "no search": "os.chmod(place, 0o600)",
        "read only": "os.chmod(place, 0o500)", "whole": "pass"}


@requirement("B.odd_cwd", "C.odd_places", "fs.write_roots")
@at_tiers("fs.write_roots")
@pytest.mark.parametrize("how", CWDS)
def test_a_working_directory_that_is_gone_or_closed_is_not_replaced_by_another(actor: Actor, tier: str, how: str) -> None:
    place = f"{actor.home}/work/odd-cwd"
    script = IN_PROCESS.format(change=CWDS[how])
    done = actor.call([PYTHON, "-B", "-c", script, str(actor.stage.lib), place, tier, actor.elsewhere])
    if actor.host(place).exists():
        actor.host(place).chmod(0o700)
    written = actor.host(f"{actor.elsewhere}/odd-cwd").exists()
    actor.remove(place)
    assert done.returncode == 0 and not written, done.stderr
    got: dict[str, Any] = json.loads(done.stdout)
    if got["code"] is None:
        assert "removed" not in how and got["tier"] == tier, got
        assert got["out"].split("\n")[0] == place and "not-mine" not in got["out"], got
        assert actor.elsewhere not in got["out"], got
    else:
        assert how not in ("whole", "read only") and got["code"] != "internal" and got["hint"], got
        assert "removed" in how or "does not exist" not in str(got), got
        assert got["code"] != "chdir_denied" or "may not be entered" in got["hint"], got
    if how == "whole":
        assert got["out"] == f"{place}\nwrote .\n", got


# -- standard streams ------------------------------------------------------------------------------

STREAMS = ("<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-")
LOOK = """
import json, os, sys
found = {}
for number in range(20):
    try:
        found[number] = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        continue
for number in (1, 2):
    try:
        os.write(number, b"odd-needle\\n")
    except OSError:
        continue
with open(sys.argv[1], "w") as report:
    json.dump(found, report)
"""


@requirement("C.closed_streams", "C.descriptors_closed")
@at_tiers("fs.own_state")
@pytest.mark.parametrize("closed", STREAMS)
def test_a_closed_stream_of_the_caller_becomes_none_of_the_launchers_files(actor: Actor, tier: str, closed: str) -> None:
    """Else a descriptor of the launcher takes the free number, and the command writes into it."""
    report = f"{actor.workspace}/streams.json"
    actor.remove(report)
    look = [PYTHON, "-c", LOOK, report]
    shell = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh"]
    bare = actor.call([*shell, *look], stdin=b"x")
    assert bare.returncode == 0, bare.stderr
    without = json.loads(actor.host(report).read_text())
    gone = {number for number, text in (("0", "<&-"), ("1", " >&-"), ("2", "2>&-")) if text in f" {closed}"}
    assert gone and not gone & set(without), without
    actor.remove(report)
    made = actor.plan(look, tier=tier)
    done = actor.call([*shell, *made["argv"]], env=made["env"], stdin=b"x")
    if done.returncode == 125:
        assert "2" in gone or done.stderr.startswith(b"stockade: refused: "), done
        assert not actor.host(report).exists()
        return
    assert done.returncode == 0, done
    inside = json.loads(actor.host(report).read_text())
    actor.remove(report)
    assert {number: target for number, target in inside.items() if number in gone and target != "/dev/null"} == {}
    assert {number for number in inside if int(number) > 2} == set(), inside
    assert NEEDLE not in actor.sh(f"cat {actor.home}/.local/state/stockade/audit/spool.jsonl")


@requirement("C.closed_streams")
@pytest.mark.parametrize("kept", ["cold", "warm"])
@pytest.mark.parametrize("closed", STREAMS)
def test_the_command_line_works_with_closed_streams(actor: Actor, closed: str, kept: str) -> None:
    """What the command finds in their place is /dev/null."""
    report, env = f"{actor.workspace}/streams.json", environment(actor, STOCKADE_HOME=f"{actor.home}/closed-state")
    if kept == "cold":
        actor.remove(env["STOCKADE_HOME"])
    actor.remove(report)
    look = [PYTHON, "-c", LOOK + "\nraise SystemExit(3)", report]
    done = actor.call([*_closing(closed), *line("run", "--net", "none", "--", *look)], env=env, stdin=b"x")
    assert (done.returncode, done.stderr.replace(b"odd-needle\n", b"")) == (3, b""), done
    inside = json.loads(actor.host(report).read_text())
    gone = {number for number, text in (("0", "<&-"), ("1", " >&-"), ("2", "2>&-")) if text in f" {closed}"}
    assert set(inside) == {"0", "1", "2"} and {number for number in inside if inside[number] == "/dev/null"} == gone, inside
    actor.remove(report)


@requirement("C.closed_streams")
@pytest.mark.parametrize("words", [("--version",), ("profile", "list"), ("ps",), ("plan", "list", "--json"), ("explain", "true"), ("why", "/etc/passwd"), ("run", "--help"),
                                   ("show", "last"), ("trust",), ("run", "--no-such"), ("run", "--tier", "off", "--receipt", "{home}/closed.json", "true"), ()], ids=" ".join)
def test_a_command_with_closed_streams_ends_with_its_own_status(actor: Actor, words: tuple[str, ...]) -> None:
    asked = line(*(word.format(home=actor.home) for word in words))
    actor.run(["true"], tier="guarded")
    status = actor.call(asked, env=environment(actor)).returncode
    for closed in STREAMS:
        done = actor.call([*_closing(closed), *asked], env=environment(actor))
        assert done.returncode == status and b"internal" not in done.stderr and b"Traceback" not in done.stderr, (closed, done)


@requirement("C.closed_streams")
@pytest.mark.parametrize("target", ["-", "fd:1"])
def test_a_receipt_for_a_closed_stream_is_refused_before_the_start(actor: Actor, target: str) -> None:
    made = f"{actor.workspace}/closed-receipt"
    asked = line("run", "--net", "none", "--receipt", target, "--", "/usr/bin/touch", made)
    done = actor.call([*_closing(">&-"), *asked], env=environment(actor))
    assert done.returncode == 125 and b"value_invalid: --receipt" in done.stderr and not actor.host(made).exists(), done
    worked_out = actor.call(asked, env=environment(actor))
    assert worked_out.returncode == 0 and worked_out.stdout and actor.host(made).exists(), worked_out
    actor.remove(made)


CLOSING = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
report = os.dup2(os.open(sys.argv[2], os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), 50)
import stockade
for number in ({closed}): os.close(number)
look = "import os; print(sorted(os.readlink(f'/proc/self/fd/{{n}}').split(':')[0] for n in range(60) if os.path.lexists(f'/proc/self/fd/{{n}}')))"
said = []
for options in ({{}}, {{"set_env": {{"A": "b"}}}}, {{"stderr": -2, "stdout": -1}}, {{"input": b"x"}}, {{"tmp": "disk"}}):
    streams = {{}} if "stdout" in options else {{"capture_output": True}}
    done = stockade.run([sys.executable, "-c", look], tier="guarded", caller="operator", net="none", **options, **streams)
    said.append(done.stdout.decode())
stockade.run(["true"], tier="guarded", caller="operator", net="none")
os.write(report, json.dumps(said).encode())
"""


@requirement("C.closed_streams", "C.descriptors_closed")
@pytest.mark.parametrize("closed", ["0,", "1,", "2,", "0, 1", "0, 1, 2"])
def test_the_interface_works_with_closed_streams(actor: Actor, closed: str) -> None:
    answer = f"{actor.workspace}/closed-answer"
    env = {**actor.env, "STOCKADE_HOME": f"{actor.home}/closed-state"}
    actor.remove(env["STOCKADE_HOME"])
    done = actor.call([PYTHON, "-B", "-c", CLOSING.format(closed=closed), str(actor.stage.lib), answer], env=env)
    assert done.returncode == 0, done
    said = json.loads(actor.host(answer).read_text())
    stdin = "/dev/null" if "0" in closed else "pipe"
    assert said == [f"{sorted([stdin, 'pipe', 'pipe'])}\n"] * 3 + [f"{['pipe'] * 3}\n", f"{sorted([stdin, 'pipe', 'pipe'])}\n"], said
    actor.remove(answer)


def _closing(closed: str) -> list[str]:
    return ["/bin/sh", "-c", f'exec "$@" {closed}', "sh"]


# -- environment and arguments ---------------------------------------------------------------------

@requirement("C.big_environment", "env.secrets")
@at_tiers("env.secrets")
def test_a_secret_among_ten_thousand_variables_is_found(actor: Actor, tier: str) -> None:
    many = {f"ODD_{number}": "x" * 16 for number in range(10_000)}
    env = {**actor.env, **many, "ODD_5000_TOKEN": NEEDLE, "ZZ_API_KEY": NEEDLE, "LD_PRELOAD_64": "x"}
    count = [PYTHON, "-c", "import os; print(sum(name.startswith('ODD_') for name in os.environ), [n for n, v in os.environ.items() if v == 'odd-needle'])"]
    assert actor.call(count, env=env).stdout.decode() == "10001 ['ODD_5000_TOKEN', 'ZZ_API_KEY']\n"
    run = actor.run(count, tier=tier, env=env)
    assert (run.code, run.stdout) == (None, "0 []\n" if tier == "strict" else "10000 []\n"), run.raw
    passed = actor.run(count, tier=tier, env=env, pass_env=list(many))
    assert (passed.code, passed.stdout) == (None, "10000 []\n"), passed.raw


@requirement("C.big_environment")
@at_tiers("env.secrets")
def test_arguments_up_to_the_kernels_limit_arrive_whole_and_beyond_are_refused(actor: Actor, tier: str) -> None:
    count = [PYTHON, "-c", "import sys; print(len(sys.argv), sum(map(len, sys.argv[1:])), set(''.join(sys.argv[1:])))"]
    # Two megabytes in all, and 131,071 bytes in one argument, are what the kernel takes.
    for words in (["y" * 100_000] * 20, ["y"] * 100_000, ["y" * 131_071]):
        said = f"{len(words) + 1} {sum(map(len, words))} {{'y'}}\n"
        assert actor.call([*count, *words]).stdout.decode() == said
        run = actor.run([*count, *words], tier=tier)
        assert (run.code, run.returncode, run.stdout) == (None, 0, said), str(run.raw)[:500]
    for words in (["y" * 100_000] * 30, ["y" * 131_072]):
        with pytest.raises(OSError, match="too long"):
            actor.call([*count, *words])
        refused: BoxRun = actor.run([*count, *words], tier=tier)
        assert refused.code not in (None, "internal") and "too long" in refused.refused["text"], str(refused.raw)[:500]
        assert "doctor" not in refused.refused["hint"] and "ulimit -s" in refused.refused["hint"], refused.refused["hint"]
    assert actor.run(count, tier=tier).stdout == "1 0 set()\n"
