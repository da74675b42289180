"""Files that tools save by rename: into the private home, and back.

The command chooses what lies under the name at the end, the host may have saved the file meanwhile:
each is shown to lose nothing and to change nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from support.actors import WAIT_S, Actor
from support.boxes import BoxRun, op, worked
from support.cli import environment, line, stockade
from support.live import LiveBox
from support.terminal import Terminal
from support.trees import changes, snapshot

NAME = ".tool-state.json"


@pytest.fixture
def state(actor: Actor) -> Iterator[str]:
    """A state file of the home with one setting in it."""
    yield actor.put(f"{actor.home}/{NAME}", "before\n", 0o640)
    actor.remove(f"{actor.home}/{NAME}")


def profile(actor: Actor, *paths: str, extra: str = "") -> str:
    """A profile that copies the paths back."""
    tables = "".join(f'[[state]]\npath = "{path}"\nmode = "copyback"\n' for path in paths or (f"~/{NAME}",))
    return actor.put(f"{actor.home}/copyback.toml", f'schema = "profile.v1"\ndescription = "x"\n{extra}\n{tables}', 0o644)


def save(actor: Actor, script: str, *paths: str, tier: str = "strict", **kwargs: Any) -> BoxRun:
    """Run a script in a box with the profile."""
    return actor.run(["/bin/sh", "-ec", script], tier=tier, profile=[profile(actor, *paths)], **kwargs)


def results(run: BoxRun) -> list[str]:
    """What was done with each file."""
    return [row["result"] for row in run.receipt["end"]["copyback"]]


@contextmanager
def slow_renames(pid: int) -> Iterator[None]:
    """Hold every rename of a process for a second before it happens."""
    argv = ["strace", "-qq", "-o", "/dev/null", "-e", "trace=renameat2", "-e", "inject=renameat2:delay_enter=1s", "-p", str(pid)]
    tracer = subprocess.Popen(argv)
    try:
        wait_for(lambda: f"TracerPid:\t{tracer.pid}\n" in Path(f"/proc/{pid}/status").read_text())
        yield
    finally:
        tracer.terminate()
        tracer.wait(WAIT_S)


def wait_for(true: Callable[[], bool]) -> None:
    """Until it is so; a test that hangs says nothing."""
    until = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)


BY_RENAME = f"test \"$(cat ~/{NAME})\" = before; echo after > ~/.tmp-1; mv ~/.tmp-1 ~/{NAME}"
IN_PLACE = f"test \"$(cat ~/{NAME})\" = before; echo after > ~/{NAME}"


@requirement("end.copyback")
@pytest.mark.parametrize("script", [BY_RENAME, IN_PLACE, f"{IN_PLACE}; chmod 0 ~/{NAME}"])
def test_what_the_tool_saved_is_on_the_host_whole_with_its_mode_and_nothing_else_is(actor: Actor, state: str, script: str) -> None:
    profile(actor)
    before = snapshot(actor.host(actor.home), (".local",))
    run = save(actor, f"echo lost > ~/.other; {script}")
    assert run.returncode == 0 and results(run) == ["written"], run.raw
    info = actor.host(state).stat()
    assert (actor.host(state).read_text(), info.st_mode & 0o7777, info.st_uid) == ("after\n", 0o640, actor.uid)
    assert set(changes(before, snapshot(actor.host(actor.home), (".local",)))) == {NAME, "copyback.toml"}
    assert run.receipt["end"]["discarded"]["names"] == [f"{actor.home}/.other"]
    assert run.receipt["effective_tier"] == "strict"


@requirement("end.copyback")
@pytest.mark.parametrize(("script", "result"), [
    ("true", "unchanged"), (f"cat ~/{NAME} > /dev/null", "unchanged"), (f"rm ~/{NAME}", "removed"),
    (f"rm ~/{NAME}; ln -s /etc/passwd ~/{NAME}", "not_a_file"), (f"rm ~/{NAME}; mkfifo ~/{NAME}", "not_a_file"),
    (f"rm ~/{NAME}; mkdir ~/{NAME}", "not_a_file"), (f"truncate -s 17M ~/{NAME}", "too_large")])
def test_what_is_no_new_content_leaves_the_hosts_file_untouched(actor: Actor, state: str, script: str, result: str) -> None:
    before = actor.host(state).stat()
    assert results(save(actor, script)) == [result]
    after = actor.host(state).stat()
    assert (actor.host(state).read_text(), after.st_ino, after.st_mtime_ns) == ("before\n", before.st_ino, before.st_mtime_ns)


@requirement("end.copyback")
def test_a_file_that_was_not_there_is_made_and_a_deep_one_too(actor: Actor) -> None:
    actor.make_dir(f"{actor.home}/.config/tool")
    deep = "~/.config/tool/state.json"
    run = save(actor, f"echo new > ~/{NAME}; echo deep > {deep}; echo lone > ~/.none/x", f"~/{NAME}", deep, "~/.never-made", "~/.none/x")
    assert results(run) == ["written", "written", "unchanged", "failed"], run.raw
    assert actor.host(run.receipt["end"]["copyback"][3]["kept"]).read_text() == "lone\n" and not actor.host(f"{actor.home}/.none").exists()
    for path, text in ((NAME, "new\n"), (".config/tool/state.json", "deep\n")):
        got = actor.host(f"{actor.home}/{path}")
        assert (got.read_text(), got.stat().st_mode & 0o777, got.stat().st_uid) == (text, 0o600, actor.uid)
        actor.remove(f"{actor.home}/{path}")


@requirement("end.copyback")
@pytest.mark.parametrize("how", ["in place", "by rename", "removed", "link"])
def test_a_file_that_the_host_saved_meanwhile_is_never_overwritten_and_the_boxes_version_is_kept(actor: Actor, state: str, how: str) -> None:
    with LiveBox(actor, tier="strict", profile=[profile(actor)]) as box:
        worked(box.ask([op("create", "new", path=f"{state}.tmp", text="box\n", keep=True), op("rename", "over", path=f"{state}.tmp", to=state, keep=True)]))
        actor.sh({"in place": f"echo host > {state}", "by rename": f"echo host > {state}.x; mv {state}.x {state}", "removed": f"rm {state}",
                  "link": f"rm {state}; ln -s {actor.elsewhere} {state}"}[how])
        box.finish()
        [row] = box.records(until="end")["end"]["copyback"]
    assert row["result"] == "conflict" and actor.host(row["kept"]).read_text() == "box\n"
    assert actor.host(row["kept"]).stat().st_mode & 0o777 == 0o600
    if how in ("in place", "by rename"):
        assert actor.host(state).read_text() == "host\n"
    assert os.path.lexists(actor.host(state)) is (how != "removed") and actor.host(actor.elsewhere).is_dir()


@requirement("end.copyback", "fs.metadata")
@pytest.mark.parametrize("script", ["rm -rf {in_home}/tool; ln -s {elsewhere} {in_home}/tool", "rm -rf {in_home}; mkdir {in_home}; ln -s {elsewhere} {in_home}/tool",
                                    "rm -rf {in_home}; ln -s {elsewhere}/over {in_home}"])
def test_a_directory_on_the_way_that_the_command_made_a_link_leads_nowhere(actor: Actor, script: str) -> None:
    """The supervisor has the host's namespace: a link that it followed would name a file of the host."""
    state = actor.put(f"{actor.home}/.config/tool/settings.json", "before\n")
    there = [actor.host(actor.put(f"{actor.elsewhere}/{path}", "before\n", 0o400)) for path in ("settings.json", "over/tool/settings.json")]
    script = script.format(in_home=f"{actor.home}/.config", elsewhere=actor.elsewhere)
    # Bare, whoever follows such a name changes the mode of a file over there.
    bare = actor.make_dir(f"{actor.home}/bare/.config")
    actor.sh(f"{script.replace(f'{actor.home}/.config', bare)}; chmod 600 {bare}/tool/settings.json")
    assert 0o600 in [path.stat().st_mode & 0o777 for path in there]
    actor.sh(f"chmod 400 {actor.elsewhere}/settings.json {actor.elsewhere}/over/tool/settings.json")
    before = [(path.stat().st_mode, path.stat().st_ctime_ns) for path in there]
    run = save(actor, script, "~/.config/tool/settings.json")
    assert results(run) == ["not_a_file"], run.raw
    assert [(path.stat().st_mode, path.stat().st_ctime_ns) for path in there] == before and actor.host(state).read_text() == "before\n"
    # The twin: the command's own file that it shut, in a directory that it made anew.
    made = "rm -rf ~/.config; mkdir -p ~/.config/tool; echo after > ~/.config/tool/settings.json; chmod 0 ~/.config/tool/settings.json"
    assert results(save(actor, made, "~/.config/tool/settings.json")) == ["written"] and actor.host(state).read_text() == "after\n"
    for path in (f"{actor.home}/.config", f"{actor.home}/bare", f"{actor.elsewhere}/settings.json", f"{actor.elsewhere}/over"):
        actor.remove(path)


@requirement("end.copyback")
@pytest.mark.parametrize("saves", [1, 2])
def test_a_host_save_between_the_look_and_the_rename_is_what_stays(actor: Actor, state: str, saves: int) -> None:
    """The renames of the supervisor are held up, so that the host's come between for certain: once, and while it goes back."""
    with LiveBox(actor, tier="strict", profile=[profile(actor)]) as box:
        worked(box.ask([op("create", "new", path=f"{state}.tmp", text="box\n", keep=True), op("rename", "over", path=f"{state}.tmp", to=state, keep=True)]))
        with slow_renames(box.process.pid):
            assert box.process.stdin is not None
            box.process.stdin.close()
            wait_for(lambda: list(actor.host(actor.home).glob(".stockade-*")) != [])
            for number in range(saves):
                wait_for(lambda: actor.host(state).read_text() == ("box\n" if number else "before\n"))  # noqa: B023
                actor.sh(f"echo host {number} > {state}.x; mv {state}.x {state}")
            [row] = box.records(until="end")["end"]["copyback"]
    assert actor.host(state).read_text() == f"host {saves - 1}\n" and list(actor.host(actor.home).glob(".stockade-*")) == []
    assert row["result"] == "conflict" and actor.host(row["kept"]).read_text() == "box\n"


@requirement("end.copyback")
@pytest.mark.parametrize(("mode", "without"), [(0o640, 0o600), (0o664, 0o604), (0o604, 0o600)])
def test_a_group_that_the_caller_is_not_in_is_kept_or_nobody_else_gets_its_bits(actor: Actor, state: str, mode: int, without: int) -> None:
    os.chown(actor.host(state), actor.uid, 54321)
    actor.host(state).chmod(mode)
    assert results(save(actor, BY_RENAME)) == ["written"]
    info = actor.host(state).stat()
    assert (info.st_gid, info.st_mode & 0o7777) == ((54321, mode) if actor.is_root else (actor.gid, without))


@requirement("end.copyback")
@pytest.mark.parametrize("room", [True, False])
def test_a_version_that_can_be_kept_nowhere_is_said_to_be_lost(actor: Actor, state: str, room: bool) -> None:
    """The host saved meanwhile, and what the place for the box's version would be is a file."""
    aside = f"{actor.home}/.local/state/stockade/copyback"
    actor.remove(aside)
    with LiveBox(actor, tier="strict", profile=[profile(actor)]) as box:
        worked(box.ask([op("create", "new", path=f"{state}.tmp", text="box\n", keep=True), op("rename", "over", path=f"{state}.tmp", to=state, keep=True)]))
        actor.sh(f"echo host > {state}")
        if not room:
            actor.put(aside, "")
        box.finish()
        end = box.records(until="end")["end"]
    actor.remove(aside)
    [row] = end["copyback"]
    assert (row["result"], bool(row["kept"])) == ("conflict", room) and actor.host(state).read_text() == "host\n"
    said = [word for word in end["degraded"] if word.startswith(f"copyback of {state}: the box's version could not be kept: ")]
    assert len(said) == (not room), end["degraded"]


@requirement("end.copyback")
def test_a_host_save_alone_is_no_conflict_and_two_boxes_lose_nothing(actor: Actor, state: str) -> None:
    with LiveBox(actor, tier="strict", profile=[profile(actor)]) as box:
        box.ask([op("environ")])
        assert results(save(actor, IN_PLACE)) == ["written"]
        box.finish()
        assert [row["result"] for row in box.records(until="end")["end"]["copyback"]] == ["unchanged"]
    assert actor.host(state).read_text() == "after\n"


@requirement("end.copyback")
def test_a_linked_state_file_stays_a_link_and_its_target_is_saved(actor: Actor) -> None:
    actor.put(f"{actor.elsewhere}/dotfile", "before\n", 0o644)
    actor.host(f"{actor.home}/{NAME}").symlink_to(f"{actor.elsewhere}/dotfile")
    run = save(actor, BY_RENAME)
    assert results(run) == ["written"], run.raw
    assert actor.host(f"{actor.home}/{NAME}").is_symlink() and actor.host(f"{actor.elsewhere}/dotfile").read_text() == "after\n"
    actor.remove(f"{actor.home}/{NAME}")


@requirement("end.copyback", "fs.own_state", "fs.credentials", "fs.persistence")
@pytest.mark.parametrize(("path", "got"), [("~/.bashrc", "a file that runs code later"), ("~/.ssh/config", "credential store"), ("~/.netrc", "credential store"),
                                           ("~/.aws/credentials", "credential store"), ("~/.config/stockade/policy.toml", "a place of stockade's own"),
                                           ("~/.local/state/stockade/trust.json", "a place of stockade's own"),
                                           ("~/.config/autostart/x.desktop", "a file that runs code later"), ("/etc/hosts", "a path in no home"), ("~", "a home"),
                                           ("./README", "which the box has already"), ("~/elsewhere/x", "which the box has already"), ("~/kept-out/x", "a name that is hidden by request"),
                                           ("~/into", "a link into write root")])
def test_files_that_run_code_hold_secrets_or_are_granted_otherwise_cannot_come_back(actor: Actor, path: str, got: str) -> None:
    actor.remove(f"{actor.home}/into")
    actor.host(f"{actor.home}/into").symlink_to(f"{actor.workspace}/README")
    actor.make_dir(f"{actor.home}/kept-out")
    run = save(actor, "true", path, read=[actor.elsewhere], hide=[f"{actor.home}/kept-out"])
    actor.remove(f"{actor.home}/into")
    assert run.code == "copyback_refused", run.raw
    said, _, expected = run.refused["message"].partition(", expected ")
    assert said.startswith("state '/") and ": got " in said and got in said and expected, run.refused


@requirement("end.copyback")
@pytest.mark.parametrize("tier", ["standard", "guarded"])
def test_where_the_home_is_not_private_it_is_refused_not_imitated(actor: Actor, state: str, tier: str) -> None:
    run = save(actor, "true", tier=tier)
    assert run.code == "copyback_unsupported" and "tier strict" in run.refused["text"], run.raw
    assert actor.host(state).read_text() == "before\n"


@requirement("end.copyback")
def test_a_killed_supervisor_leaves_the_hosts_file_and_no_other(actor: Actor, state: str) -> None:
    given = profile(actor)
    before = snapshot(actor.host(actor.home), (".local",))
    with LiveBox(actor, tier="strict", profile=[given]) as box:
        worked(box.ask([op("create", path=f"{actor.home}/x", keep=True)]))
        box.process.send_signal(signal.SIGKILL)
        box.process.wait(20)
    assert changes(before, snapshot(actor.host(actor.home), (".local",))) == {}


@requirement("end.copyback")
def test_the_plan_holds_the_place_and_never_the_content(actor: Actor, state: str) -> None:
    made = actor.plan(["true"], tier="strict", profile=[profile(actor)])
    assert made["plan"]["copyback"] == [{"source": state, "target": state}] and "before" not in json.dumps(made["plan"])


@requirement("end.copyback")
def test_a_conflict_is_said_on_a_terminal(actor: Actor, state: str) -> None:
    script = f"echo box > ~/{NAME}; echo saved; read answer"
    words = line("run", "--tier", "strict", "--profile", profile(actor), "sh", "-c", script)
    with Terminal.bare(actor, words, env=environment(actor, NO_COLOR="1")) as screen:
        screen.read_until("saved")
        actor.sh(f"echo host > {state}")
        screen.type(b"\n")
        said = screen.read_until("copyback/") + screen.read_until("\n")
    assert f"not copied back: ~/{NAME}: conflict, the box's version is " in said
    assert f"~/{NAME}: conflict" in stockade(actor, "show", "last").out
