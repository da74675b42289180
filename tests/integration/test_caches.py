"""Caches of real boxes: kept, private or none; removed by size and by hand, never below a live box."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from requirements import requirement
from support.actors import Actor
from support.cli import environment, start, stockade
from support.live import wait_until

FILL = "mkdir -p ~/.npm && head -c 400000 /dev/urandom > ~/.npm/needle"
SEE = "ls ~/.npm/needle 2>&1 || true"


@pytest.fixture
def caches(actor: Actor) -> Iterator[str]:
    """The cache directory of a state home of its own."""
    for path in (".local/state/stockade/caches", ".npm"):
        actor.remove(f"{actor.home}/{path}")
    yield f"{actor.home}/.local/state/stockade/caches"
    actor.remove(f"{actor.home}/.config/stockade/config.toml")
    actor.remove(f"{actor.home}/.npm")


def boxed(actor: Actor, script: str, *options: str, cwd: str | None = None) -> str:
    said = stockade(actor, "run", "--tier", "strict", "--profile", "npm", "--net", "none", *options, "--", "sh", "-c", script, cwd=cwd)
    assert said.status == 0, said.err
    return said.out


def project(actor: Actor, name: str) -> str:
    return actor.make_dir(f"{actor.elsewhere}/{name}")


def due(actor: Actor, caches: str) -> None:
    """Make the last look two hours old."""
    os.utime(actor.host(f"{caches}/.looked"), (time.time() - 7200,) * 2)


@requirement("caches.modes")
def test_a_cache_is_kept_or_lasts_for_one_box_or_is_none(actor: Actor, caches: str) -> None:
    boxed(actor, FILL)
    assert "needle" in boxed(actor, SEE).split("/")[-1]
    assert not actor.host(f"{actor.home}/.npm/needle").exists(), "never the user's own"
    stockade(actor, "cache", "clear", "--all")
    assert "No such file" in boxed(actor, f"{FILL}; ls ~/.npm/needle > /dev/null && ls ~/.npm/gone 2>&1 || true", "--cache", "ephemeral")
    assert "No such file" in boxed(actor, SEE, "--cache", "ephemeral")
    assert stockade(actor, "cache", "list", "--json").json()["caches"] == []
    actor.put(f"{actor.home}/.npm/mine", "x\n")
    assert boxed(actor, "ls ~/.npm", "--cache", "keep").split() == ["mine"]
    assert "No such file" in boxed(actor, "ls ~/.npm/mine 2>&1 || true", "--cache", "off")


@requirement("caches.limit")
def test_the_cache_that_was_not_used_longest_goes_at_a_later_start(actor: Actor, caches: str) -> None:
    actor.put(f"{actor.home}/.config/stockade/config.toml", 'cache_limit = "1M"\n')
    places = [project(actor, name) for name in ("one", "two", "three")]
    for place in places:
        boxed(actor, FILL, cwd=place)
    listed = stockade(actor, "cache", "list", "--json").json()
    assert listed["limit_bytes"] == 1 << 20 and len(listed["caches"]) == 3
    assert "of at most 1.0 MiB" in stockade(actor, "cache", "list").out
    boxed(actor, "true", cwd=places[0])  # now "two" is the oldest
    assert len(stockade(actor, "cache", "list", "--json").json()["caches"]) == 3, "the look was not due"
    due(actor, caches)
    for words in (("explain", "--tier", "strict", "--profile", "npm", "--", "sh"), ("why", "--profile", "npm", ".")):
        assert stockade(actor, *words, cwd=places[2]).status == 0
    assert len(stockade(actor, "cache", "list", "--json").json()["caches"]) == 3, "nothing was started"
    boxed(actor, "true", cwd=places[2])
    kept = [row["workspace"] for row in stockade(actor, "cache", "list", "--json").json()["caches"]]
    assert sorted(kept) == sorted([places[0], places[2]])
    assert not [name for name in os.listdir(actor.host(caches)) if name.startswith(".gone")]
    assert "needle" in boxed(actor, SEE, cwd=places[0]).split("/")[-1]
    assert "No such file" in boxed(actor, SEE, cwd=places[1])


@requirement("caches.limit")
def test_neither_the_limit_nor_a_person_takes_a_cache_from_a_live_box(actor: Actor, caches: str) -> None:
    actor.put(f"{actor.home}/.config/stockade/config.toml", 'cache_limit = "1K"\n')
    one, two = project(actor, "one"), project(actor, "two")
    script = f"{FILL}; echo ready; read line; cat ~/.npm/needle | wc -c"
    with start(actor, "run", "--profile", "npm", "--", "sh", "-c", script, cwd=one, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdin is not None and child.stdout.readline() == b"ready\n"
        due(actor, caches)
        boxed(actor, "true", cwd=two)
        assert "a live box uses it" in stockade(actor, "cache", "clear", "--all").out
        child.stdin.write(b"\n")
        child.stdin.close()
        assert child.stdout.read().split() == [b"400000"]
    due(actor, caches)
    boxed(actor, "true", cwd=two)
    assert one not in [row["workspace"] for row in stockade(actor, "cache", "list", "--json").json()["caches"]]


@requirement("caches.limit")
def test_the_lock_lasts_until_the_last_process_of_a_box_is_dead(actor: Actor, caches: str) -> None:
    """Also where the supervisor is killed: what holds the overlay then is the init that dies after it."""
    with start(actor, "run", "--profile", "npm", "--", "sh", "-c", "echo ready; exec sleep 60", stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        assert stockade(actor, "cache", "clear", "--all").status == 1
        child.kill()
    wait_until(lambda: stockade(actor, "cache", "clear", "--all").status == 0, "the cache is free")


@requirement("caches.limit")
def test_a_launch_line_makes_the_cache_anew_that_was_cleared(actor: Actor, caches: str) -> None:
    script = "import stockade; line = stockade.wrap(['npm', '--version'], tier='strict', caller='operator'); print(*line.argv, sep='\\n')"
    line = actor.sh(f'PYTHONPATH={actor.stage.lib} /usr/bin/python3 -B -c "{script}"').splitlines()
    for _ in range(2):
        done = actor.call(line)
        assert done.returncode == 0, done.stderr
        assert stockade(actor, "cache", "clear", "--all").status == 0
    assert [name for name in os.listdir(actor.host(caches)) if not name.startswith(".")] == []


@requirement("caches.limit")
def test_a_link_that_somebody_laid_in_place_of_a_cache_is_not_followed(actor: Actor, caches: str) -> None:
    boxed(actor, FILL)
    identity = stockade(actor, "cache", "list", "--json").json()["caches"][0]["id"]
    target = actor.make_dir(f"{actor.elsewhere}/link-target")
    actor.put(f"{target}/precious", "x\n")
    actor.remove(f"{caches}/{identity}")
    Path(actor.host(f"{caches}/{identity}")).symlink_to(target)
    said = stockade(actor, "run", "--tier", "strict", "--profile", "npm", "--", "true")
    assert said.status == 125 and "stockade:" in said.err, said
    assert stockade(actor, "cache", "clear", "--all").status == 0
    assert sorted(os.listdir(actor.host(target))) == ["precious"]
    actor.host(f"{caches}/{identity}").unlink()


@requirement("caches.limit")
def test_clearing_by_hand_waits_for_a_start_that_looks(actor: Actor, caches: str) -> None:
    boxed(actor, FILL)
    kept = [name for name in os.listdir(actor.host(caches)) if not name.startswith(".")]
    fd = os.open(actor.host(f"{caches}/.looked"), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with start(actor, "cache", "clear", "--all", stdout=subprocess.PIPE) as child:
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(1.5)
            assert kept and set(kept) < set(os.listdir(actor.host(caches)))
        finally:
            os.close(fd)
        assert child.stdout is not None and b"1 cache removed" in child.stdout.read() and child.wait(30) == 0
    assert not set(kept) & set(os.listdir(actor.host(caches)))


def test_a_note_of_the_last_look_that_cannot_be_read_stops_no_box(actor: Actor, caches: str) -> None:
    boxed(actor, FILL)
    note = actor.host(f"{caches}/.looked")
    note.unlink()
    note.symlink_to(".looked")
    with pytest.raises(OSError, match="symbolic links"):
        note.stat()
    assert "needle" in boxed(actor, SEE).split("/")[-1]
    note.unlink()


def test_a_limit_that_is_none_of_the_kind_is_named(user: Actor) -> None:
    path = user.put(f"{user.home}/.config/stockade/config.toml", 'cache_limit = "lots"\n')
    said = stockade(user, "cache", "list")
    assert said.status == 2 and "cache_limit" in said.err and "config.toml" in said.err and said.err.count("\n") == 1
    user.put(path, 'cache_limit = "none"\n')
    assert stockade(user, "cache", "list", "--json").json()["limit_bytes"] is None
    user.put(f"{user.workspace}/.stockade.toml", 'cache_limit = "1K"\n')
    assert "cache_limit" in stockade(user, "run", "true", env=environment(user)).err, "a project has no say in it"
    user.remove(f"{user.workspace}/.stockade.toml")
    user.remove(path)
