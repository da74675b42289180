"""The launcher's tracer (``--trace-fd``): it sees what strace sees, and the traced program notices nothing.

The set of (call, name, result) is compared with strace's, run in a box of the same plan. What a
program sees of signals, stops, forks and threads is compared with a bare run and an untraced box.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from conftest import skip_for_gap
from requirements import requirement
from support.actors import Actor

# openat2 is answered by the box's own filter; getcwd takes no name. %file has them too.
_NOT_OURS = {"getcwd", "openat2"}
_CALLS = re.compile(r"^(?P<pid>\d+) +(?P<call>\w+)\((?P<args>.*)\) += (?P<result>-?\d+|\?)(?:<(?P<fd>[^>]*)>)?(?: (?P<errno>E\w+))?")
_UNFINISHED = re.compile(r"^(\d+) +(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. \w+ resumed>(.*)$")
_NAME = re.compile(r'(?:(AT_FDCWD|\d+)<((?:[^>\\]|\\.)*)>, )?(NULL|"((?:[^"\\]|\\.)*)")')
# The first of these is the text of a link, no name.
_SECOND_ONLY = {"symlink", "symlinkat"}
_BOTH = {"rename", "renameat", "renameat2", "link", "linkat"}
_RANDOM = [(re.compile(r"/proc/\d+"), "/proc/N"), (re.compile(r"/cc[A-Za-z0-9]{6}\b"), "/ccX"),
           (re.compile(r"objects/[0-9a-f]{2}(/[0-9a-f]{38})?"), "objects/X"), (re.compile(r"tmp_obj_\w{6}"), "tmp_obj_X"),
           (re.compile(r"\.pyc\.\d+"), ".pyc.N")]

GIT = """
git init -q --initial-branch=main r && cd r && git config user.name n && git config user.email n@example.org
mkdir d && echo one >a && echo two >d/b && git add . && git commit -q -m one && echo more >>a && git add a
touch -d 2020-01-01 a d/b && git update-index --refresh -q
"""
TOOLS = {
    "git": (GIT, "cd r && git status --porcelain && git commit -q -m two && git log --oneline"),
    "gcc": ("printf '#include <stdio.h>\\n#include \"own.h\"\\nint main(void) { puts(OWN); return 0; }\\n' >m.c; echo '#define OWN \"own\"' >own.h",
            "gcc -Wall -o m m.c && ./m"),
    "python3": ("mkdir pkg && touch pkg/__init__.py && echo 'import json, sqlite3' >pkg/inner.py",
                "python3 -c 'import pkg.inner, subprocess, os; subprocess.run([\"true\"]); os.chdir(\"pkg\"); open(\"__init__.py\").close()'"),
    "node": ("echo 'module.exports = require(\"fs\").readdirSync(\".\")' >m.js", "node -e 'console.log(require(\"./m\"), require(\"os\").hostname())'"),
}


@pytest.fixture
def place(actor: Actor) -> Iterator[tuple[str, str]]:
    """A fresh directory to work in and one for strace's output, of the same names each time."""
    found = f"{actor.home}/work/seen", f"{actor.home}/work/out"
    for directory in found:
        actor.remove(directory)
        actor.make_dir(directory)
    yield found
    for directory in found:
        actor.remove(directory)


def _names(call: str, args: str) -> list[tuple[str, str]]:
    """(directory, name) of each name among the arguments as strace prints them."""
    found = [(m[2] or "", m[4]) for m in _NAME.finditer(args) if m[4] is not None]
    if call in _SECOND_ONLY:
        return found[1:2]
    return found[:2] if call in _BOTH else found[:1]


def _absolute(base: str, name: str) -> str:
    whole = name if name.startswith("/") else f"{base}/{name}"
    return "/" + "/".join(part for part in whole.split("/") if part not in ("", "."))


def _joined(text: str) -> Iterator[str]:
    begun: dict[str, str] = {}
    for line in text.splitlines():
        if match := _UNFINISHED.match(line):
            begun[match[1]] = match[2]
        elif match := _RESUMED.match(line):
            yield f"{match[1]} {begun.pop(match[1])}{match[2]}"
        else:
            yield line


def by_strace(text: str, cwd: str) -> set[tuple[str, str, str]]:
    """What strace -f -y -e trace=%file wrote, as (call, absolute name, result)."""
    found = set()
    # Every process of these tools keeps the directory of the script, but for what it changes itself.
    places: dict[str, str] = {}
    for line in _joined(text):
        match = _CALLS.match(line)
        if match is None or match["call"] in _NOT_OURS:
            continue
        base = places.get(match["pid"], cwd)
        result = match["errno"] or "ok"
        for directory, name in _names(match["call"], match["args"]):
            if name:
                found.add((match["call"], _absolute(directory or base, name), result))
            if match["call"] == "chdir" and result == "ok":
                places[match["pid"]] = _absolute(base, name)
    return found


def _plain(found: set[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    """Without what is random in names."""
    out = set()
    for call, name, result in found:
        for pattern, word in _RANDOM:
            name = pattern.sub(word, name)
        out.add((call, name, result))
    return out


def both(actor: Actor, place: tuple[str, str], tool: str, tier: str) -> tuple[set[tuple[str, str, str]], set[tuple[str, str, str]]]:
    """What our tracer and strace saw of one run each."""
    (work, out), (before, script) = place, TOOLS[tool]
    inner = ["/bin/sh", "-c", script]
    kwargs = {"cwd": work, "write": [work, out], "profile": []}
    actor.remove(work)
    actor.make_dir(work)
    actor.sh(before, cwd=work)
    watched = actor.trace(["/bin/sh", "-c", 'exec "$@"', "sh", *inner], tier=tier, **kwargs)
    assert watched.get("returncode") == 0, watched
    actor.remove(work)
    actor.make_dir(work)
    actor.sh(before, cwd=work)
    strace = ["/usr/bin/strace", "-f", "-y", "-qq", "-s", "5000", "-e", "trace=%file", "-e", "signal=none", "-o", f"{out}/strace"]
    done = actor.run(["/bin/sh", "-c", 'exec "$@"', "sh", *strace, *inner], tier=tier, **kwargs)
    assert done.returncode == 0, done.stderr
    theirs = by_strace(actor.host(f"{out}/strace").read_text(encoding="utf-8"), work + ("/r" if tool == "git" else ""))
    *lines, last = watched["lines"]
    assert last == {"end": True, "lines": len(lines), "cut": 0}
    ours = {(line["call"], line["path"], line["result"]) for line in lines if "path" in line}
    assert len(theirs) > 20
    return _plain(ours), _plain(theirs)


@requirement("learn.sees_what_strace_sees")
@pytest.mark.parametrize("tier", ["guarded", "strict"])
@pytest.mark.parametrize("tool", TOOLS)
def test_the_tracer_sees_what_strace_sees(actor: Actor, place: tuple[str, str], tool: str, tier: str) -> None:
    for needed in (tool, "strace"):
        if not any(os.path.exists(f"{directory}/{needed}") for directory in ("/usr/bin", "/usr/local/bin")):
            skip_for_gap("no_debian_tools")
    runs: list[tuple[set[tuple[str, str, str]], set[tuple[str, str, str]]]] = []
    # A process has one tracer, so these are two runs, and node opens its own file in one of a dozen:
    # what a run of one tracer has must be in every run of the other only if each run has it.
    for _ in range(3):
        runs.append(both(actor, place, tool, tier))
        ours, theirs = zip(*runs, strict=True)
        missed = set.intersection(*theirs) - set.union(*ours)
        invented = set.intersection(*ours) - set.union(*theirs)
        if not missed and not invented:
            break
    assert (sorted(missed), sorted(invented)) == ([], [])
