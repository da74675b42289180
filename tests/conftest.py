"""Set-up of the attack and integration tests, and the rule about skips.

Owns the session's stage (copies and hostile programs), its two callers and the check that every
skip is a known gap of this host. Fails closed: a skip that is not on the list fails the run.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from requirements import KNOWN_GAPS
from support import actors, builders

# How fast one example is says something of the machine and its other work, nothing of the property.
settings.register_profile("stockade", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("stockade")
# A shell without job control starts what goes to the background with the keys ignored (POSIX sh, 2.11), nohup
# does so with the hang-up, and a program keeps that: the tests of signals would be those of a caller that ignores them.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)
CALLERS = ("user", "root")
_UNKNOWN_SKIPS: list[str] = []
# What tells whether this host has the gap; ids are those of KNOWN_GAPS.
_HAS_GAP: dict[str, Callable[[], bool]] = {
    "no_root_caller": lambda: os.geteuid() != 0,
    "not_x86_64": lambda: platform.machine() != "x86_64",
    "no_debian_tools": lambda: os.geteuid() != 0,
    "no_pyenv": lambda: not os.path.exists(os.path.expanduser("~/.pyenv/libexec/pyenv")),
    "no_fuse": lambda: not os.path.exists("/dev/fuse"),
    "no_cryptography": lambda: importlib.util.find_spec("cryptography") is None,
    "no_cryptography_for_accounts": lambda: subprocess.run(
        [actors.PYTHON, "-I", "-c", "import cryptography"], capture_output=True, check=False).returncode != 0,
    "no_rustup": lambda: shutil.which("rustup") is None,
}


@pytest.fixture(scope="session")
def stage() -> Iterator[builders.Stage]:
    """The readable copy of the product and the built hostile programs."""
    actors.remove_dead_accounts()
    made = builders.make_stage()
    yield made
    shutil.rmtree(made.root)


@pytest.fixture(scope="session")
def user(stage: builders.Stage) -> Iterator[actors.Actor]:
    """An ordinary account with its own home."""
    made = actors.make_user(stage)
    yield made
    actors.drop_actor(made)


@pytest.fixture(scope="session")
def root(stage: builders.Stage) -> Iterator[actors.Actor]:
    """Root with a fixture home; a run that is not root has no root caller."""
    skip_for_gap("no_root_caller")
    made = actors.make_root(stage)
    yield made
    actors.drop_actor(made)


@pytest.fixture(params=CALLERS)
def actor(request: pytest.FixtureRequest) -> actors.Actor:
    """Each caller in turn."""
    made: actors.Actor = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def fresh_repo(actor: actors.Actor) -> Iterator[str]:
    """A repository of its own for one test."""
    path = f"{actor.home}/work/fresh"
    actor.remove(path)
    yield actors.make_repository(actor, path)
    actor.remove(path)


def skip_for_gap(gap_id: str) -> None:
    """Skip if this host has the gap; any other reason to skip fails the run."""
    if _HAS_GAP[gap_id]():
        pytest.skip(f"known gap {gap_id}: {KNOWN_GAPS[gap_id]}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """``@pytest.mark.known_gap("id")``: the test does not exist on a host with that gap."""
    for mark in item.iter_markers("known_gap"):
        skip_for_gap(mark.args[0])


def _reason_of(report: Any) -> str:
    longrepr = report.longrepr
    return str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember each skip that the list of known gaps does not explain."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = _reason_of(report).removeprefix("Skipped: ")
        if not any(reason.startswith(f"known gap {gap_id}:") for gap_id in KNOWN_GAPS):
            _UNKNOWN_SKIPS.append(f"{report.nodeid}: {reason}")
    elif hasattr(report, "wasxfail"):
        _UNKNOWN_SKIPS.append(f"{report.nodeid}: expected failures are not allowed ({report.wasxfail})")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which skips failed the run."""
    for line in _UNKNOWN_SKIPS:
        terminalreporter.write_line(f"skip outside the known gaps: {line}", red=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run with an unexplained skip is a failed run."""
    if _UNKNOWN_SKIPS and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
