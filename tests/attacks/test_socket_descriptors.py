"""A box that floods its supervisor with descriptors takes nothing from what is done at the end.

The supervisor needs descriptors of its own to compare the write roots and to write the record. What
a box sends can be closed only with the help of a process, so a box that also fills the caller's
process limit makes it hold them; and requests wait until the box's namespaces are lent.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator

import pytest

from requirements import requirement
from support.actors import Actor
from support.cli import stockade

FLOOD = textwrap.dedent("""
    import array, os, socket, sys, time
    message, processes = sys.argv[1].encode(), int(sys.argv[2])
    null = os.open("/dev/null", os.O_RDONLY)
    fds = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 200).tobytes())
    held = 0
    while held < processes:
        try:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        except OSError:
            break
        held += 1
    links, until = [], time.monotonic() + 3
    while time.monotonic() < until:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.settimeout(0.1)
        try:
            link.connect("/run/stockade/box.sock")
            link.sendmsg([message], [fds])
        except OSError:  # no room, or too many on their way: unix(7), ETOOMANYREFS
            time.sleep(0.01)
        links.append(link)
        del links[:-500]
    open(".envrc", "w").write("evil")
    print("held", held, flush=True)
""")
KINDS = {"requests": "stockade.nest.v1\n", "messages": "{}"}


def repository(actor: Actor) -> str:
    path = f"{actor.elsewhere}/flooded"
    actor.make_dir(path)
    actor.sh("git init -q . && git -c user.email=a@b -c user.name=a commit -q --allow-empty -m first", cwd=path)
    return path


@pytest.fixture
def tree(actor: Actor) -> Iterator[str]:
    path = repository(actor)
    yield path
    actor.remove(path)


def flooded(actor: Actor, tree: str, message: str, processes: int, before: list[str]) -> tuple[str, str, list[dict[str, object]]]:
    words = ["run", "--tier", "guarded", "--on-persistence", "quarantine", "--write", tree, "--receipt", f"{actor.home}/flood.json", "--",
             "/usr/bin/python3", "-c", FLOOD, message, str(processes)]
    said = stockade(actor, *words, cwd=tree, before=before)
    assert said.status == 0, said
    receipt = json.loads(actor.host(f"{actor.home}/flood.json").read_text())
    actor.remove(f"{actor.home}/flood.json")
    return said.out, said.err, receipt["end"]["persistence"]


@requirement("end.quarantine")
def test_the_plant_stays_without_a_box(actor: Actor, tree: str) -> None:
    actor.sh("echo evil > .envrc", cwd=tree)
    assert actor.host(f"{tree}/.envrc").exists()


@requirement("end.quarantine")
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_planted_is_moved_whatever_was_sent(actor: Actor, tree: str, kind: str) -> None:
    _, err, changes = flooded(actor, tree, KINDS[kind], 0, ["prlimit", "--nofile=1024"])
    assert "could not be written" not in err, err
    assert [(row["path"], row.get("left")) for row in changes] == [(".envrc", None)], (changes, err)
    assert not actor.host(f"{tree}/.envrc").exists()


@requirement("end.quarantine")
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_process_limit_changes_nothing_of_that(user: Actor, kind: str) -> None:
    """Root has no process limit of its own."""
    tree = repository(user)
    out, err, changes = flooded(user, tree, KINDS[kind], 200, ["prlimit", "--nproc=60", "--nofile=1024"])
    assert 0 < int(out.split()[1]) < 200, "the limit was not reached"
    assert "could not be written" not in err, err
    assert [(row["path"], row.get("left")) for row in changes] == [(".envrc", None)], (changes, err)
    assert not user.host(f"{tree}/.envrc").exists()
    user.remove(tree)
