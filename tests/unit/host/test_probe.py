"""The probe: what is a fact about the host, and what only stood in the way of one request."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stockade import paths
from stockade.decision import BackendVerdict
from stockade.errors import Refused
from stockade.frozen import replace
from stockade.host import answers as module_of_answers
from stockade.host import facts, probe, standing
from stockade.rules.promises import PROMISE_IDS


@pytest.fixture
def state(tmp_path: Path) -> paths.StateHome:
    return paths.state_home({**os.environ, "STOCKADE_HOME": str(tmp_path / "state")})


@pytest.fixture
def host() -> facts.HostFacts:
    return replace(facts.gather(6, sys.executable), uid=1000)


def answers(monkeypatch: pytest.MonkeyPatch, **codes: str) -> None:
    """Let the box of a tier be refused with a code; the others keep every promise."""
    def kept(host: facts.HostFacts, state: paths.StateHome, tier: str, net: str, backend: str) -> set[str]:
        if tier in codes:
            raise Refused(codes[tier], f"box at {tier}")
        return set(PROMISE_IDS)
    monkeypatch.setattr(probe, "_kept", kept)


def test_a_path_in_the_way_of_one_probe_is_no_verdict_about_the_host(
        monkeypatch: pytest.MonkeyPatch, host: facts.HostFacts, state: paths.StateHome) -> None:
    answers(monkeypatch, guarded="mount_point_missing")
    verdict = probe.probe(host, state)
    assert verdict.code == "" and verdict.keeps == frozenset(PROMISE_IDS)
    assert not verdict.settled


def test_a_path_in_the_way_of_all_is_the_answer_itself(
        monkeypatch: pytest.MonkeyPatch, host: facts.HostFacts, state: paths.StateHome) -> None:
    answers(monkeypatch, guarded="source_denied", strict="source_denied")
    with pytest.raises(Refused) as caught:
        probe.probe(host, state)
    assert caught.value.code == "source_denied"


def test_what_the_kernel_refuses_is_a_verdict(
        monkeypatch: pytest.MonkeyPatch, host: facts.HostFacts, state: paths.StateHome) -> None:
    answers(monkeypatch, guarded="overlay_denied")
    verdict = probe.probe(host, state)
    assert (verdict.code, verdict.keeps, verdict.settled) == ("overlay_denied", frozenset(), True)


def test_a_refusal_is_asked_for_anew(monkeypatch: pytest.MonkeyPatch, state: paths.StateHome) -> None:
    """What stood in the way may be gone, and a service must not have to be told so."""
    answers(monkeypatch, strict="userns_denied")
    assert probe.host_facts(state, fresh=True).backends[0].code == "userns_denied"
    assert not os.path.exists(f"{state.path}/host-probe.json")
    answers(monkeypatch)
    assert probe.host_facts(state).backends[0].code == ""


def test_where_another_backend_is_there_the_answer_is_kept_for_a_while(monkeypatch: pytest.MonkeyPatch, state: paths.StateHome) -> None:
    asked: list[str] = []

    def probed(host: facts.HostFacts, state: paths.StateHome, backend: str = "namespaces") -> BackendVerdict:
        asked.append(backend)
        return BackendVerdict(name=backend, keeps=frozenset(PROMISE_IDS), code="userns_denied" if backend == "namespaces" else "")
    monkeypatch.setattr(probe, "probe", probed)
    first = probe.host_facts(state)
    assert probe.host_facts(state) is first and asked == ["namespaces", "landlock"]
    probe._memory.clear()  # the next process
    assert probe.host_facts(state).backends == first.backends and len(asked) == 2
    later = time.time() + 601
    for module in (probe, module_of_answers):
        monkeypatch.setattr(module, "time", lambda: later)
    assert probe.host_facts(state).backends == first.backends and len(asked) == 4
    assert probe.host_facts(state, fresh=True).backends == first.backends and len(asked) == 6


def test_what_is_remembered_of_a_weaker_host_is_no_older_than_what_is_kept_and_yields_to_it(
        monkeypatch: pytest.MonkeyPatch, state: paths.StateHome) -> None:
    asked: list[str] = []

    def probed(host: facts.HostFacts, state: paths.StateHome, backend: str = "namespaces") -> BackendVerdict:
        asked.append(backend)
        return BackendVerdict(name=backend, keeps=frozenset(PROMISE_IDS), code="userns_denied" if backend == "namespaces" else "")

    def at(later_s: float) -> facts.HostFacts:
        for module in (probe, module_of_answers):
            monkeypatch.setattr(module, "time", lambda: now + later_s)
        return probe.host_facts(state)
    now = 1_800_000_000
    monkeypatch.setattr(probe, "probe", probed)
    weak = at(0)
    probe._memory.clear()  # the next process, which finds the answer on disk
    assert at(599).backends == weak.backends and len(asked) == 2
    assert at(601).backends == weak.backends and len(asked) == 4, "ten minutes from when the host was asked, not from when it was read"
    strong = (replace(weak.backends[0], code=""),)
    module_of_answers.keep(state, weak.key(), weak.landlock_abi, strong)  # doctor, in another process
    assert at(602).backends == strong and len(asked) == 4


def test_nothing_is_kept_for_a_caller_whose_proc_cannot_be_believed(
        monkeypatch: pytest.MonkeyPatch, state: paths.StateHome) -> None:
    monkeypatch.setattr(probe, "standing", standing.Standing)
    answers(monkeypatch)
    first = probe.host_facts(state)
    assert first.backends[0].settled and probe.host_facts(state) is not first
    assert not os.path.exists(f"{state.path}/host-probe.json")


def test_only_a_settled_answer_is_kept(monkeypatch: pytest.MonkeyPatch, state: paths.StateHome) -> None:
    answers(monkeypatch, guarded="mount_point_missing")
    assert not probe.host_facts(state, fresh=True).backends[0].settled
    assert not os.path.exists(f"{state.path}/host-probe.json")
    answers(monkeypatch)
    assert probe.host_facts(state).backends[0].settled
    assert os.path.exists(f"{state.path}/host-probe.json")


POLICIES = ('deny_grants = ["*"]\n', 'deny_accept = ["*"]\nmin_tier = "guarded"\n', 'max_net = "none"\nallow_profiles = []\n',
            'min_tier = "paranoid"\n')
CONFIGS = ('hide = ["/usr", "/bin", "/lib", "/lib64"]\n', 'profile = ["mine"]\n', 'read = ["/nowhere"]\n[limits]\nfiles = 4\n',
           'tier = "nonsense"\n')


@pytest.mark.parametrize(("name", "text"), [*(("policy.toml", text) for text in POLICIES), *(("config.toml", text) for text in CONFIGS)])
def test_what_its_owner_wants_does_not_change_what_the_host_can_keep(
        monkeypatch: pytest.MonkeyPatch, state: paths.StateHome, tmp_path: Path, name: str, text: str) -> None:
    plain = probe.host_facts(state, fresh=True).backends
    (tmp_path / "config/stockade/profiles").mkdir(parents=True)
    (tmp_path / f"config/stockade/{name}").write_text(text)
    (tmp_path / "config/stockade/profiles/mine.toml").write_text('schema = "profile.v1"\nhide = ["/usr"]\n')
    (tmp_path / "config/stockade/profiles/stockade-launch.toml").write_text("not valid")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert probe.host_facts(state, fresh=True).backends == plain


KILLER = """
import os, signal, sys, time
parent, mine = int(sys.argv[1]), str(os.getpid())
print("ready", flush=True)
until = time.monotonic() + 10
while time.monotonic() < until:
    try:
        children = open(f"/proc/{parent}/task/{parent}/children").read().split()
        below = [child for pid in children for child in open(f"/proc/{pid}/task/{pid}/children").read().split()]
    except OSError:
        continue
    for pid in (children if sys.argv[2] == "supervisor" else below):
        above = parent
        try:
            if pid != mine and b"--plan-fd" in open(f"/proc/{pid}/cmdline", "rb").read():
                above = int(open(f"/proc/{pid}/stat").read().split()[3])
                if sys.argv[2] == "first process, unseen":
                    # Its supervisor notices when it wants to say something.
                    os.kill(above, signal.SIGSTOP)
                os.kill(int(pid), signal.SIGKILL)
                while sys.argv[2] == "first process, unseen" and time.monotonic() < until and b" Z " not in open(f"/proc/{pid}/stat", "rb").read():
                    pass
                raise SystemExit
        except OSError:
            continue
        finally:
            if above != parent and os.path.exists(f"/proc/{above}"):
                os.kill(above, signal.SIGCONT)
"""


@pytest.mark.parametrize("who", ["supervisor", "first process", "first process, unseen"])
def test_a_launcher_that_is_killed_while_the_host_is_asked_is_no_reason_for_a_weaker_backend(state: paths.StateHome, who: str) -> None:
    for _ in range(12):
        with subprocess.Popen([sys.executable, "-c", KILLER, str(os.getpid()), who], stdout=subprocess.PIPE) as killer:
            assert killer.stdout is not None and killer.stdout.readline() == b"ready\n"
            found = probe.host_facts(state, fresh=True)
            killer.kill()
        first = found.backends[0]
        assert not first.code or (first.transient and len(found.backends) == 1), found
        if first.code:
            break
    else:
        pytest.fail("nothing was hit in twelve tries")
    # And the next answer is the host's.
    assert probe.host_facts(state).backends[0].code == ""
