"""A caller with low limits: the box is whole or refused with a typed reason, never a weaker one.

A limit that makes a step of the launch fail must not make it fail softly. The attack uses nothing
but built-in commands of the shell, so it works under every limit without a box.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from requirements import at_tiers, requirement
from support.actors import PYTHON, Actor
from support.cli import environment, line

NEEDLE = "starved-needle"
WHOLE = "started\nended\n"
BARE = f"started\nread {NEEDLE}\nwrote\nended\n"
# What the limit counts is said in the shell's own unit (KiB for stack and memory).
LIMITS = ("-u 1", "-u 3", "-u 8", "-f 0", "-f 1", "-n 4", "-n 8", "-n 12", "-n 20", "-n 32", "-s 32", "-s 64", "-s 512", "-v 4000", "-v 50000")
# Enough for every box: here a refusal is a fault as well.
ENOUGH = ("-u 4000", "-f 100000", "-n 256", "-s 64", "-v 200000")


def _limited(limit: str) -> list[str]:
    return ["/bin/bash", "-c", f'ulimit {limit} || exit 77; exec "$@"', "bash"]


@pytest.fixture
def attack(actor: Actor) -> Iterator[list[str]]:
    """Reads a key of the state home and makes a file in a directory that was not granted."""
    key = actor.put(f"{actor.home}/.local/state/stockade/keys/starved", f"{NEEDLE}\n")
    made = f"{actor.elsewhere}/starved"
    script = f"echo started; {{ read key < {key} && echo read $key; }} 2>&-; {{ true > {made} && echo wrote; }} 2>&-; echo ended"
    yield ["/bin/sh", "-c", script]
    actor.remove(key)
    actor.remove(made)


def _works_without(actor: Actor, attack: list[str], limit: str) -> None:
    bare = actor.call([*_limited(limit), *attack])
    assert (bare.returncode, bare.stdout.decode()) == (0, BARE), (limit, bare.stderr)
    actor.remove(f"{actor.elsewhere}/starved")


def _names_a_shortage(refused: Mapping[str, Any], limit: str) -> None:
    """Typed, worth a retry, with the limit, its value and what raises it."""
    name = {"-u": "RLIMIT_NPROC", "-f": "RLIMIT_FSIZE", "-n": "RLIMIT_NOFILE"}[limit[:2]]
    value = int(limit[2:]) * (1024 if limit[:2] == "-f" else 1)
    assert refused["code"] in ("resource", "transient") and refused["transient"] is True, refused
    assert f"{name} is {value}" in refused["text"] and f"ulimit {limit[:2]}" in refused["hint"], refused
    assert "doctor" not in refused["text"], refused


@requirement("C.starved_callers", "fs.own_state", "fs.write_roots")
@at_tiers("fs.own_state")
@pytest.mark.parametrize("limit", LIMITS)
def test_a_launch_line_under_a_low_limit_gives_a_whole_box_or_a_refusal(actor: Actor, attack: list[str], tier: str, limit: str) -> None:
    if limit not in ("-n 4", "-n 8"):  # too few for the shell itself
        _works_without(actor, attack, limit)
    made = actor.plan(attack, tier=tier)
    done = actor.call([*_limited(limit), *made["argv"]], env=made["env"])
    out, err = done.stdout.decode(), done.stderr.decode()
    if done.returncode == 125:
        assert out == "" and err.startswith("stockade: refused: ") and "(hint: " in err and err.count("\n") == 1, err
    else:
        assert (done.returncode, out) == (0, WHOLE), (done.returncode, out, err)
    assert not actor.host(f"{actor.elsewhere}/starved").exists()
    again = actor.call(made["argv"], env=made["env"])
    assert (again.returncode, again.stdout.decode()) == (0, WHOLE), again.stderr


@requirement("C.starved_callers")
@at_tiers("fs.own_state")
def test_a_deep_write_root_needs_no_more_stack_than_a_caller_has_left(actor: Actor, tier: str) -> None:
    """What the command writes runs at every depth, so the walk goes as deep as it goes."""
    deep = actor.make_dir(f"{actor.elsewhere}/deep")
    below = "/".join(f"node_modules{number}" for number in range(14))
    actor.sh(f"git init -q . && mkdir -p {below}/.git/hooks .git/modules/a/modules/b/modules/c/hooks && for d in $(find . -name 'node_modules*'); "
             "do mkdir -p $d/.git/hooks $d/.vscode; : > $d/.git/HEAD; : > $d/.envrc; done", cwd=deep)
    made = actor.plan(["/bin/sh", "-c", "echo whole"], tier=tier, write=[deep], cwd=deep)
    done = actor.call([*_limited("-s 32"), *made["argv"]], env=made["env"], cwd=deep)
    actor.remove(deep)
    if platform.machine() == "x86_64" or done.returncode == 0:
        assert (done.returncode, done.stdout) == (0, b"whole\n"), (done.returncode, done.stderr)
    else:  # no stack of its own there (limitations): it ends before the command runs
        assert done.returncode < 0 and done.stdout == b"", done


@requirement("C.starved_callers")
@at_tiers("fs.own_state")
@pytest.mark.parametrize("limit", ENOUGH)
def test_a_limit_that_is_enough_refuses_nothing(actor: Actor, attack: list[str], tier: str, limit: str) -> None:
    run = actor.run(attack, tier=tier, before=_limited(limit))
    assert (run.code, run.returncode, run.stdout) == (None, 0, WHOLE), run.raw
    assert run.receipt["effective_tier"] == tier


@requirement("C.starved_callers", "A.exhaustion_is_transient", "fs.own_state")
@at_tiers("fs.own_state")
@pytest.mark.parametrize("limit", ["-f 0", "-f 1", "-n 12", "-n 16", "-n 20"])
def test_the_interface_under_a_low_limit_answers_and_remembers_nothing(actor: Actor, attack: list[str], tier: str, limit: str) -> None:
    """With an empty state home, so that what was learned under the limit would be kept."""
    _works_without(actor, attack, limit)
    fresh = {**actor.env, "STOCKADE_HOME": f"{actor.home}/starved-state"}
    actor.remove(fresh["STOCKADE_HOME"])
    run = actor.run(attack, tier=tier, before=_limited(limit), env=fresh)
    if run.refused is None:
        assert (run.returncode, run.stdout, run.receipt["effective_tier"]) == (0, WHOLE, tier), run.raw
    else:
        assert run.code != "internal" and run.refused["hint"], run.refused
        _names_a_shortage(run.refused, limit)
    assert not actor.host(f"{actor.elsewhere}/starved").exists()
    again = actor.run(attack, tier=tier, env=fresh)
    actor.remove(fresh["STOCKADE_HOME"])
    assert (again.code, again.stdout) == (None, WHOLE), again.raw


CALLS = {
    "run": "stockade.run(['true'], **options)",
    "Popen": "stockade.Popen(['true'], **options).wait()",
    "wrap": "stockade.wrap(['true', str(os.getpid())], **options)",
    "tmp disk": "stockade.run(['true'], tmp='disk', **options)",
    "run_async": "loop.run_until_complete(stockade.run_async(['true'], **options))",
    "off": "stockade.run(['true'], **{**options, 'tier': 'off', 'net': 'host'})",
}
LOWERED = """
import asyncio, json, os, resource, sys
sys.path.insert(0, sys.argv[1])
import stockade
options = dict(tier='guarded', caller='operator', net='none')
loop = asyncio.new_event_loop()  # closing it under the limit would start a thread
stockade.run_async  # loads its half of the interface
def call():
    WHAT
if sys.argv[4] == 'warm':
    call()
resource.setrlimit(getattr(resource, sys.argv[2]), (int(sys.argv[3]),) * 2)
try:
    call()
    said = None
except stockade.Error as error:
    said = {'code': error.code, 'transient': getattr(error, 'transient', None), 'hint': error.hint, 'text': str(error)}
os.write(1, json.dumps(said).encode())
"""


@requirement("C.starved_callers", "A.exhaustion_is_transient")
@pytest.mark.parametrize("kept", ["cold", "warm"])
@pytest.mark.parametrize("limit", ["-u 1", "-f 0", "-n 5"])
@pytest.mark.parametrize("how", CALLS)
def test_every_call_answers_a_shortage_as_one(actor: Actor, how: str, limit: str, kept: str) -> None:
    """Either it works all the same, or the answer is the transient one; no error of the system leaves it."""
    name = {"-u": "RLIMIT_NPROC", "-f": "RLIMIT_FSIZE", "-n": "RLIMIT_NOFILE"}[limit[:2]]
    script = LOWERED.replace("WHAT", CALLS[how])
    done = actor.call([PYTHON, "-B", "-c", script, str(actor.stage.lib), name, limit[2:].strip(), kept], env={**actor.env, "STOCKADE_HOME": f"{actor.home}/starved-calls"})
    actor.remove(f"{actor.home}/starved-calls")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    if said is not None:
        _names_a_shortage(said, limit)


@requirement("C.starved_callers")
@pytest.mark.parametrize("limit", ["-f 0", "-n 5", "-u 1"])
@pytest.mark.parametrize("words", [("run", "--", "true"), ("explain", "true"), ("explain", "--argv", "true"), ("ps",)], ids=" ".join)
def test_the_command_line_calls_no_shortage_a_fault_of_its_own(actor: Actor, words: tuple[str, ...], limit: str) -> None:
    for _ in ("cold", "warm"):
        done = actor.call([*_limited(limit), *line(*words)], env=environment(actor))
        assert b"internal" not in done.stderr and b"Traceback" not in done.stderr, done.stderr
        assert done.returncode in (0, 1 if words[0] == "explain" else 0, 125 if words[0] == "run" else 2), done
        actor.run(["true"], tier="guarded")
