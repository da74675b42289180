"""fs.metadata: modes, owners, times and attributes change inside the write roots only."""

from __future__ import annotations

from requirements import at_tiers, requirement
from support.actors import Actor
from support.boxes import Op, failed_with, kept, op, worked
from support.trees import changes, snapshot


def _metadata(path: str) -> list[Op]:
    return [op(kind, path=path) for kind in ("chmod", "fchmod", "chown", "utime", "setxattr")]


@requirement("fs.metadata")
@at_tiers("fs.metadata")
def test_metadata_outside_the_write_roots_stays(actor: Actor, tier: str) -> None:
    path = actor.put(f"{actor.elsewhere}/file", "elsewhere\n", 0o644)
    ops = [*_metadata(path), *_metadata(actor.elsewhere)]
    worked(actor.bare(ops))
    before = snapshot(actor.host(actor.elsewhere))
    run = actor.box(ops, tier=tier, read=[actor.elsewhere])
    failed_with(run.answers, {"EROFS"})
    assert changes(before, snapshot(actor.host(actor.elsewhere))) == {}
    kept(run, "fs.metadata", tier)


@requirement("fs.metadata")
@at_tiers("fs.metadata")
def test_metadata_inside_a_write_root_can_change(actor: Actor, tier: str) -> None:
    path = actor.put(f"{actor.workspace}/file", "mine\n", 0o644)
    worked(actor.box(_metadata(path), tier=tier).answers)


@requirement("fs.metadata")
@at_tiers("fs.metadata")
def test_metadata_of_system_files_stays(root: Actor, tier: str) -> None:
    """The same values are written back, so the first run changes nothing either."""
    ops = [op("chown", path="/etc/hostname"), op("utime", path="/etc/hostname"), op("chown", path="/usr/bin/env"), op("utime", path="/usr/bin/env")]
    worked(root.bare(ops))
    failed_with(root.box(ops, tier=tier).answers, {"EROFS", "ENOENT"})
