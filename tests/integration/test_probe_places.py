"""An answer of the probe belongs to how its caller is confined, and is given to nobody else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence

import pytest

from requirements import requirement
from support import alone
from support.actors import PYTHON, Actor
from support.cli import environment, stockade
from support.where import filtered, own

NO_MOUNTS = ["move_mount:EPERM", "--"]
NO_NAMESPACES = ["clone:EPERM:0:0x10000000:0x10000000", "unshare:EPERM:0:0x10000000:0x10000000", "--"]


@pytest.fixture
def kept(actor: Actor) -> Iterator[dict[str, str]]:
    """An environment whose state home is empty."""
    state = f"{actor.home}/places-state"
    actor.remove(state)
    yield {**actor.env, "STOCKADE_HOME": state}
    actor.remove(state)


def loader(actor: Actor, faults: Sequence[str]) -> list[str]:
    """The kernel refuses those calls."""
    return [str(actor.stage.bin / "fault_loader"), *faults]


@requirement("F.probe_of_ones_own", "F.probe_agrees")
@pytest.mark.parametrize("faults", [NO_MOUNTS, NO_NAMESPACES], ids=["mounts", "namespaces"])
def test_what_a_filter_denies_is_said_of_the_filtered_caller_alone(actor: Actor, kept: dict[str, str], faults: list[str]) -> None:
    for _ in range(2):  # the first round finds nothing kept, the second what the other caller left
        refused = actor.run(["true"], tier="guarded", before=loader(actor, faults), env=kept)
        # A user's repository is a write root in which nothing is guarded without namespaces; root has no box at all.
        assert refused.code == ("foreign_sandbox" if actor.is_root else "promise_not_kept") and refused.refused is not None and refused.refused["missing"], refused.raw
        assert actor.run(["true"], tier="guarded", env=kept).receipt["effective_tier"] == "guarded"


@requirement("F.probe_of_ones_own", "D.older_landlock")
def test_a_kernel_that_is_older_for_one_caller_is_not_for_the_next(actor: Actor, kept: dict[str, str]) -> None:
    older = [str(actor.stage.bin / "old_landlock"), "0", "--"]
    for _ in range(2):
        assert "landlock_fs" not in actor.run(["true"], tier="strict", before=older, env=kept).receipt["mechanisms"]
        assert "landlock_fs" in actor.run(["true"], tier="strict", net="host", env=kept).receipt["mechanisms"]


KEY = ("import sys; sys.path.insert(0, sys.argv[1]); from stockade.host import facts; from stockade.process import _exec; "
       "print(facts.gather(0, _exec.launcher_path()).key())")


@requirement("F.probe_of_ones_own")
def test_every_confinement_has_a_key_of_its_own(actor: Actor) -> None:
    twice = ["/usr/bin/setpriv", "--no-new-privs"]
    places: dict[str, list[str]] = {
        "plain": [], "no new privileges": twice, "filter": filtered(actor), "two filters": [*filtered(actor), *filtered(actor)],
        "user namespace": ["/usr/bin/unshare", "--user", "--"], "mount namespace": own(), "processes": own("--pid", "--fork", "--mount-proc"),
        "network": own("--net"), "covered proc": [*own(), "/bin/sh", "-ec", 'mount -t tmpfs none /proc/fs; exec "$@"', "sh"],
        "no more namespaces": [*own(), "/bin/sh", "-ec", 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"', "sh"],
    }
    if actor.is_root and os.geteuid() == 0:
        places["fewer capabilities"] = ["/usr/bin/setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
    keys = {}
    for name, before in places.items():
        done = actor.call([*before, PYTHON, "-I", "-B", "-c", KEY, str(actor.stage.lib)])
        assert done.returncode == 0, (name, done.stderr)
        keys[name] = done.stdout
    assert len(set(keys.values())) == len(places), keys
    again = actor.call([PYTHON, "-I", "-B", "-c", KEY, str(actor.stage.lib)]).stdout
    assert again == keys["plain"], "the same caller gets its answer again"


CHANGING = """
import ctypes, json, os, sys, threading
sys.path.insert(0, sys.argv[1])
from stockade.host import probe
from stockade.paths import state_home
state = state_home(dict(os.environ))
first = probe.host_facts(state)
warm = probe.host_facts(state)
theirs = []
def confined():
    ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS: of this thread
    theirs.append(probe.host_facts(state))
thread = threading.Thread(target=confined)
thread.start()
thread.join()
print(json.dumps([warm is first, theirs[0] is first, theirs[0].standing.no_new_privs, probe.host_facts(state) == first]))
"""


@requirement("F.probe_of_ones_own")
def test_a_thread_that_confines_itself_gets_an_answer_of_its_own(actor: Actor, kept: dict[str, str]) -> None:
    done = actor.call([PYTHON, "-I", "-B", "-c", CHANGING, str(actor.stage.lib)], env=kept)
    assert json.loads(done.stdout) == [True, False, True, True], done


@requirement("F.probe_of_ones_own")
def test_answers_of_several_callers_are_kept_beside_each_other(actor: Actor, kept: dict[str, str]) -> None:
    places: tuple[list[str], ...] = ([], filtered(actor), ["/usr/bin/setpriv", "--no-new-privs"])
    # The first start of all makes the state home, where the others keep theirs.
    for before in ([], *places):
        assert actor.run(["true"], tier="standard", before=before, env=kept).code is None
    path = actor.host(f"{kept['STOCKADE_HOME']}/host-probe.json")
    written = path.stat().st_ino
    assert len(json.loads(path.read_text())["answers"]) == len(places)
    for before in places:
        assert actor.run(["true"], tier="standard", before=before, env=kept).code is None
    assert path.stat().st_ino == written, "nobody had to ask again"


def told(actor: Actor, way: str, kept: dict[str, str], before: list[str]) -> tuple[str, str]:
    """Start a command at standard; the code of its refusal and what was said of it (backend or error)."""
    if way == "api":
        run = actor.run(["true"], tier="standard", before=before, env=kept)
        return ("", run.receipt["backend"]) if run.refused is None else (str(run.code), run.refused["text"])
    # Without a terminal and a receipt no Python stays to read what the launcher said.
    said = stockade(actor, "run", "--tier", "standard", "true", before=before, env=environment(actor, **kept))
    return ("", said.err) if said.status == 0 else (said.err.split(":")[2].strip(), said.err)


@requirement("F.probe_of_ones_own", "F.answer_taken_back")
@pytest.mark.parametrize("way", ["api", "line"])
def test_an_answer_that_the_kernel_does_not_bear_out_is_forgotten_and_the_refusal_says_so(actor: Actor, kept: dict[str, str], way: str) -> None:
    # As many filters as the other caller has, none of which denies anything: they have one key.
    allowed, denied = [*filtered(actor) * 3], alone.filtered(actor)
    for _ in range(2):  # the first start of all makes the state home
        assert told(actor, way, kept, allowed)[0] == ""
    path = actor.host(f"{kept['STOCKADE_HOME']}/host-probe.json")
    assert len(json.loads(path.read_text())["answers"]) == 1
    code, words = told(actor, way, kept, denied)
    assert code == "userns_denied" and "next start asks" in words and not path.exists(), words
    code, words = told(actor, way, kept, denied)
    assert code == ("foreign_sandbox" if actor.is_root else ""), words
    assert actor.is_root or way == "line" or words == "landlock"
    assert told(actor, way, kept, allowed)[0] == ""
