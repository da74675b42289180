"""``Sandbox.check`` against the kernel: each answer is tried in a real box.

Owns: the comparison. Random trees, grants and paths from one seed; a disagreement in either
direction fails and prints the seed. ``STOCKADE_ACCESS_PAIRS`` asks for more than a CI run has,
``STOCKADE_ACCESS_SEED`` for another beginning.
"""

from __future__ import annotations

import os
import stat
from typing import Any

import pytest

from requirements import ALL, requirement
from support import forest, uses
from support.actors import Actor
from support.boxes import op

PAIRS = int(os.environ.get("STOCKADE_ACCESS_PAIRS", "320"))
SEED = int(os.environ.get("STOCKADE_ACCESS_SEED", "1"))
PER_TREE = 160


@requirement("F.check_agrees")
@pytest.mark.known_gap("not_x86_64")
@pytest.mark.timeout(max(120, PAIRS // 5))
@pytest.mark.parametrize("tier", ALL)
def test_check_says_what_the_kernel_of_the_box_answers(actor: Actor, tier: str) -> None:
    compared, seed = {"same_object": 0, "private": 0, "denied": 0, "unknown": 0}, SEED
    wrong: list[str] = []
    while sum(compared.values()) < PAIRS:
        grown = forest.grow(actor, seed)
        try:
            _compare(grown, tier, compared, wrong)
            print(*wrong, sep="\n", flush=True)
        finally:
            grown.remove()
        seed += 1
    print(f"{actor.name} {tier}: {compared}, seeds {SEED} to {seed - 1}")
    assert not wrong, f"{len(wrong)} disagree\n" + "\n".join(wrong)
    # A comparison of refusals alone would show little.
    assert min(compared["same_object"], compared["denied"]) > PAIRS / 10 > compared["unknown"]


def _compare(grown: forest.Forest, tier: str, compared: dict[str, int], wrong: list[str]) -> None:
    actor, kwargs = grown.actor, forest.grants(grown, tier)
    asked = forest.pairs(grown, PER_TREE)
    job = {"mode": "check", "kwargs": actor._grants(tier, None, kwargs), "pairs": asked}
    said = actor.answer(job, cwd=grown.workspace)
    if "refused" in said:
        print(f"seed {grown.seed}: no box with these grants: {said['refused']['text']}")
        return
    names = [op("whose", str(number), path=path, mode=mode) for number, (path, mode) in enumerate(asked)]
    host = uses.bare(actor, names, cwd=grown.workspace)
    ops = [op(f"use_{mode}", str(number), path=path) for number, (path, mode) in enumerate(asked)]
    run = uses.boxed(actor, ops, cwd=grown.workspace, **kwargs)
    if run.refused is not None:
        # Grants that cancel each other, or a tree too odd for the tier: there is no box to compare with.
        assert run.code in ("promise_not_kept", "mount_point_missing", "source_denied", "landlock_denied"), (grown.seed, run.refused)
        print(f"seed {grown.seed}: refused at the start: {run.refused['text']} {kwargs}")
        return
    if not run.answers:
        # A guard in a directory that nobody may search cannot be watched, and its box is ended.
        assert "guard_lost" in run.stderr, (grown.seed, run.stderr)
        print(f"seed {grown.seed}: {run.stderr.strip()} {kwargs}")
        return
    for number, (path, mode) in enumerate(asked):
        answer, got, there = said["answers"][number], run.answers[str(number)], host[str(number)]["value"]
        compared[answer["answer"]] += 1
        if mode == "delete" and there and got["value"] and there["kind"] == got["value"]["kind"] == stat.S_IFDIR:
            got["value"]["ino"] = there["ino"]  # an earlier question may have made the directory anew
        fault = _fault(answer["answer"], got, there)
        if fault:
            wrong.append(f"seed {grown.seed} {actor.name} {tier} {mode} {path!r}: {fault}: check {answer}, "
                         f"kernel {got}, host {there}, {kwargs}")


def _fault(said: str, got: dict[str, Any], host: dict[str, Any] | None) -> str | None:
    if said == "unknown":
        return None
    if (said == "denied") != (got["errno"] is not None):
        return "check denies, the kernel allows" if said == "denied" else "check allows, the kernel denies"
    if said == "denied":
        return None
    same = False if host is None else _same(got["value"], host)
    return None if same in (None, said == "same_object") else f"{said}, but {'the same' if same else 'another'} object"


def _same(box: dict[str, Any], host: dict[str, Any]) -> bool | None:
    """Device and inode tell. An overlay has a device of its own: there content does, a nonce in every file."""
    if (box["dev"], box["ino"]) == (host["dev"], host["ino"]):
        return True
    if box["kind"] != host["kind"]:
        return False
    if box.get("text") is not None and host.get("text") is not None:
        return bool(box["ino"] == host["ino"] and box["text"] == host["text"] != "")
    if box.get("names") is not None and host.get("names") is not None:
        # Private directories may have the names of the host's; what it does not have is no part of it.
        return None if set(box["names"]) <= set(host["names"]) else False
    return None if box["ino"] == host["ino"] or (box.get("names") is None and "text" in box) else False
