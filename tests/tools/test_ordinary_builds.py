"""Builds that keep something between two starts: a compiler's cache, a daemon, a pool of workers."""

from __future__ import annotations

from collections.abc import Callable

from requirements import requirement
from support.actors import Actor
from tools.ordinary import Job, at_work, boxed, laid, script
from tools.support import Tool
from tools.table import measured

SOURCE = {"a.c": "#include <stdio.h>\nint main(void) { printf(\"answer %d\\n\", 42); return 0; }\n"}


@requirement("E.builds")
def test_ccache_hits_at_the_second_start_and_never_in_the_users_cache(actor: Actor, debian: Callable[..., Tool]) -> None:
    """The cache belongs to the identity: a second box is warm, and what a box wrote the user does not run."""
    debian("ccache", "ccache")
    actor.remove(f"{actor.home}/.cache/ccache")
    text = "ccache -z > /dev/null; ccache gcc -c a.c -o a.o; gcc -o a a.o; ./a; ccache -s -v | grep -E '^ *(Hits|Misses):' | tr -s ' '"
    job = Job(tool="ccache", files=SOURCE, argv=script(text), shows="answer 42", grants={"profile": ["make"]})
    at_work(actor, job)
    outside = sorted(path.name for path in actor.host(f"{actor.home}/.cache/ccache").rglob("*R"))
    assert outside, "without a box the user's own cache is filled"
    for tier in job.tiers:
        fresh = {**SOURCE, "a.c": SOURCE["a.c"].replace("42", f"{len(tier)}")}
        tree = laid(actor, Job(tool="ccache", files=fresh, argv=(), shows=""))
        with measured("ccache, second start", actor.name, tier):
            first, second = (boxed(actor, job, tree, tier).stdout for _ in range(2))
            assert "Hits: 0 / 1" in first.replace("  ", " ") and "Hits: 1 / 1" in second.replace("  ", " "), (first, second)
    assert sorted(path.name for path in actor.host(f"{actor.home}/.cache/ccache").rglob("*R")) == outside


GRADLE = {"build.gradle": "task hello { doLast { println 'built by ' + (System.getProperty('org.gradle.appname') ?: 'a daemon') } }\n", "settings.gradle": ""}


@requirement("E.builds")
def test_a_gradle_daemon_serves_the_starts_of_one_box_and_ends_with_it(actor: Actor, debian: Callable[..., Tool]) -> None:
    """It listens on loopback, which is there without a network too."""
    debian("gradle", "gradle")
    text = ("export GRADLE_OPTS=-XX:-UseContainerSupport; g='gradle --daemon -q -Dorg.gradle.jvmargs=-XX:-UseContainerSupport'\n"
            "$g hello; $g hello; gradle --status | grep -c -e IDLE -e BUSY; test -e /run/stockade/box.json || gradle --stop > /dev/null")
    at_work(actor, Job(tool="gradle --daemon", files=GRADLE, argv=script(text), shows="\n1\n", tiers=("strict", "guarded"), grants={"profile": ["gradle"], "limits": {"wall": "200s"}}))
    left = actor.call(["pgrep", "-u", str(actor.uid), "-f", "GradleDaemon"]).stdout.decode().split()
    assert left == [], "a daemon outlived its box"


XDIST = {"test_t.py": "import os, pytest\n\n\n@pytest.mark.parametrize('n', range(40))\ndef test_n(n, tmp_path, worker_id):\n"
         "    (tmp_path / 'f').write_text('x')\n    open(f'seen-{worker_id}', 'w').close()\n"}


@requirement("E.builds")
def test_pytest_distributes_over_workers(actor: Actor, python_tool: Callable[..., Tool]) -> None:
    at_work(actor, Job(tool="pytest-xdist", files=XDIST, argv=["pytest", "-q", "-n", "3", "-p", "no:cacheprovider"], shows="40 passed",
                       uses=python_tool("pytest-xdist", "pytest"), check=_three_worked))


def _three_worked(actor: Actor, tree: str) -> None:
    assert sorted(path.name for path in actor.host(tree).glob("seen-*")) == ["seen-gw0", "seen-gw1", "seen-gw2"]
