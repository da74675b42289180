"""fs.metadata: modes, owners, times and attributes change inside the write roots only."""

from __future__ import annotations

import os
from pathlib import Path

from requirements import at_tiers, requirement
from support.actors import PYTHON, Actor
from support.boxes import Op, failed_with, kept, op, worked
from support.plans import launch, small_plan
from support.trees import changes, snapshot

HOSTNAME = Path("/etc/hostname").read_text(encoding="utf-8")


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
    before = actor.host(path).stat().st_ctime_ns
    worked(actor.box(_metadata(path), tier=tier).answers)
    assert actor.host(path).stat().st_ctime_ns > before, "the host's own file has changed"


@requirement("fs.metadata")
@at_tiers("fs.metadata")
def test_metadata_of_system_files_stays(root: Actor, tier: str) -> None:
    """The same values are written back, so the first run changes nothing either."""
    ops = [op("chown", path="/etc/hostname"), op("utime", path="/etc/hostname"), op("chown", path="/usr/bin/env"), op("utime", path="/usr/bin/env")]
    worked(root.bare(ops))
    before = [os.stat(path).st_ctime_ns for path in ("/etc/hostname", "/usr/bin/env")]
    failed_with(root.box(ops, tier=tier).answers, {"EROFS", "ENOENT"})
    assert [os.stat(path).st_ctime_ns for path in ("/etc/hostname", "/usr/bin/env")] == before


@requirement("fs.metadata", "fs.credentials", "fs.own_state", "C.descriptors_closed")
@at_tiers("fs.metadata")
def test_a_directory_is_no_standard_stream(actor: Actor, tier: str) -> None:
    """Through a descriptor of a directory every name below and above it is the host's own."""
    actor.put(f"{actor.home}/.ssh/id_rsa", "descriptor-needle\n")
    look = [PYTHON, "-c", "import os; file = os.open('.ssh/id_rsa', 0, dir_fd=7); os.fchmod(file, 0o600); print(os.read(file, 20))"]
    shell = ["/bin/sh", "-c", 'at=$1; shift; exec "$@"', "sh"]
    assert b"needle" in actor.call([*shell[:2], f'{shell[2]} 7<"$at"', "sh", actor.home, *look]).stdout
    made = actor.plan(look, tier=tier)
    options = [item for at, word in enumerate(made["argv"]) if word in ("--bind", "--cwd") for item in (word, made["argv"][at + 1])]
    for redirect in ('0<"$at"', '1<"$at"', '2<"$at"'):
        ended = launch(actor, made["plan"], look, options=options, before=[*shell[:2], f"{shell[2]} {redirect}", "sh", actor.home])
        assert (ended.status, ended.code, ended.out) == (125, "fds_denied", ""), (redirect, ended.records)
    twin = launch(actor, made["plan"], [PYTHON, "-c", "import sys; print(sys.stdin.read(), end='')"], options=options, before=[*shell[:2], f'{shell[2]} 0<"$at"', "sh", "/etc/hostname"])
    assert twin.out == HOSTNAME, twin.err


@requirement("fs.metadata", "C.descriptors_closed")
def test_a_directory_cannot_be_passed_on(actor: Actor) -> None:
    directory, plain = os.open("/etc", os.O_RDONLY), os.open("/etc/hostname", os.O_RDONLY)
    try:
        refused = launch(actor, small_plan(actor, fds=[directory]), ["/bin/true"], extra_fds=[directory])
        assert (refused.status, refused.code) == (125, "fds_denied")
        passed = launch(actor, small_plan(actor, fds=[plain]), [PYTHON, "-c", f"import os; print(os.read({plain}, 100).decode(), end='')"], extra_fds=[plain])
        assert passed.out == HOSTNAME, passed.err
    finally:
        os.close(directory)
        os.close(plain)


@requirement("C.descriptors_closed", "F.forged_refusal")
def test_a_number_that_the_caller_does_not_have_open_is_refused(actor: Actor) -> None:
    """Else it becomes one of the launcher's own: its records, its sockets, its state home."""
    for number in range(3, 16):
        ended = launch(actor, small_plan(actor, fds=[number]), ["/bin/true"])
        assert (ended.status, ended.code) == (125, "fds_denied"), (number, ended.records)
        assert "launch" not in ended.records
    reply = actor.run(["/bin/true"], tier="standard", pass_fds=[5, 6, 8])
    assert reply.code is not None, reply.raw
