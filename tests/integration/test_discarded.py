"""What a command writes to the private home is lost, counted and named.

A home that looks writable and forgets is worse than one that refuses: whoever runs a tool at strict
has to hear of the login or history that is gone. The command chooses names, modes and depth, so
each is shown to neither hide a file from the count nor reach the terminal.
"""

from __future__ import annotations

import fcntl
import json
import shlex
import subprocess
from typing import Any

import pytest

from requirements import requirement
from support.actors import PYTHON, Actor
from support.cli import environment, inside, line, start, stockade
from support.terminal import Terminal

NOTHING = {"files": 0, "bytes": 0, "names": [], "complete": True}


def lost(actor: Actor, script: str, *, tier: str = "strict", **kwargs: Any) -> dict[str, Any]:
    """What the receipt says was thrown away by a shell script that must succeed."""
    run = actor.run(["/bin/sh", "-ec", script], tier=tier, **kwargs)
    assert run.returncode == 0, run.stderr
    return dict(run.raw["receipt"]["end"]["discarded"])


@requirement("end.discarded")
def test_files_in_the_private_home_are_counted_and_named(actor: Actor) -> None:
    actor.put(f"{actor.home}/.gitconfig", "[user]\n\tname = t\n", 0o644)
    got = lost(actor, "echo secret > ~/.foo; mkdir -p ~/.config/tool/deep; echo x > ~/.config/tool/deep/state; ln -s /etc ~/.link; mkfifo ~/.pipe")
    home = actor.home
    assert got["names"] == [f"{home}/.foo", f"{home}/.link", f"{home}/.pipe", f"{home}/.config/tool/deep/state"]
    assert (got["files"], got["complete"]) == (4, True) and got["bytes"] >= 8192
    assert not actor.host(f"{home}/.foo").exists()
    actor.remove(f"{home}/.gitconfig")


@requirement("end.discarded")
@pytest.mark.parametrize("script", ["true", "echo x > /tmp/x", "echo x > kept", "mkdir ~/.empty", "touch ~/.f; rm ~/.f", "cat ~/.gitconfig"])
def test_what_is_kept_or_is_no_file_is_not_counted(actor: Actor, script: str) -> None:
    """The twin: the plan's own entries of the home are there and are not the command's."""
    actor.put(f"{actor.home}/.gitconfig", "[user]\n\tname = t\n", 0o644)
    assert lost(actor, script, read=[f"{actor.home}/elsewhere"]) == NOTHING
    actor.remove(f"{actor.home}/.gitconfig")
    actor.remove(f"{actor.workspace}/kept")


@requirement("end.discarded")
@pytest.mark.parametrize("script", [
    # As many blocks and inodes as before: the counters of the file system do not tell.
    "rm -f ~/.gitconfig; echo x > ~/.foo", "cp ~/.gitconfig /tmp/c; chmod 600 ~/.gitconfig; tr t u < /tmp/c > ~/.gitconfig",
    "rm -f ~/.gitconfig; mkdir ~/.x; echo x > ~/.x/y"])
def test_a_write_that_leaves_the_counters_as_they_were_is_found(actor: Actor, script: str) -> None:
    actor.put(f"{actor.home}/.gitconfig", "[user]\n\tname = t\n", 0o644)
    assert lost(actor, script)["files"] == 1
    actor.remove(f"{actor.home}/.gitconfig")


@requirement("end.discarded")
def test_a_link_to_the_hosts_own_directory_does_not_pass_for_what_was_there(actor: Actor) -> None:
    """The supervisor has the host's namespace, where the real home lies below the box's name for its own."""
    actor.put(f"{actor.elsewhere}/app/x", "x\n", 0o644)
    actor.make_dir(f"{actor.home}/.config")
    actor.host(f"{actor.home}/.config/app").symlink_to(f"{actor.elsewhere}/app")
    # As many names as there were; on the host the same name is the same link. The granted file is not lost.
    script = "test -L ~/.config/app; rm -r ~/.config; ln -s ~/.config ~/.config; touch ~/.foo"
    got = lost(actor, script, read=[f"{actor.home}/.config/app/x"])
    assert got["names"] == [f"{actor.home}/.config", f"{actor.home}/.foo"] and got["complete"], got
    assert lost(actor, "test -L ~/.config/app", read=[f"{actor.home}/.config/app/x"]) == NOTHING
    actor.remove(f"{actor.home}/.config")
    actor.remove(f"{actor.elsewhere}/app")


@requirement("end.discarded")
def test_shut_directories_links_and_depth_hide_nothing(actor: Actor) -> None:
    script = ("mkdir ~/.shut ~/.real; echo x > ~/.shut/f; chmod 000 ~/.shut; ln -s . ~/.real/loop; ln -s / ~/.real/root; "
              "d=~/.deep; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do d=$d/$i; done; mkdir -p $d; echo x > $d/end")
    got = lost(actor, script)
    assert (got["files"], got["complete"]) == (4, True)
    assert f"{actor.home}/.shut/f" in got["names"] and got["names"][-1].endswith("/20/end")


@requirement("end.discarded")
def test_more_than_the_bounds_is_said_to_be_cut_and_ends_soon(actor: Actor) -> None:
    script = "import os\nh = os.path.expanduser('~')\nfor i in range(25000): os.close(os.open(f'{h}/{i:05}', os.O_CREAT))\n"
    run = actor.run([PYTHON, "-c", script], tier="strict")
    assert run.returncode == 0, run.stderr
    got = run.raw["receipt"]["end"]["discarded"]
    assert got["complete"] is False and 0 < got["files"] <= 20000 and len(got["names"]) == 10


@requirement("end.discarded")
def test_a_tree_deeper_than_any_path_is_cut_not_followed(actor: Actor) -> None:
    script = "import os\nos.chdir(os.path.expanduser('~'))\nfor i in range(3000):\n    os.mkdir('dd'); os.chdir('dd')\nopen('end', 'w')\n"
    run = actor.run([PYTHON, "-c", script], tier="strict")
    assert run.returncode == 0, run.stderr
    got = run.raw["receipt"]["end"]["discarded"]
    assert (got["files"], got["complete"]) == (0, False)


@requirement("end.discarded")
def test_at_guarded_a_directory_that_is_shown_empty_counts_and_the_read_only_home_refuses(actor: Actor) -> None:
    actor.put(f"{actor.home}/.docker/config.json", "{}\n")
    actor.put(f"{actor.home}/.docker/cli-plugins/tool", "x\n")
    run = actor.run(["/bin/sh", "-c", "echo x > ~/.foo; echo x > ~/.docker/config.json; true"], tier="guarded")
    names = [name.removeprefix(f"{actor.home}/") for name in run.raw["receipt"]["end"]["discarded"]["names"]]
    # Read-only, or private and counted: never kept on the host, never lost in silence.
    assert ".foo" not in names and "Read-only" in run.stderr
    assert (".docker/config.json" in names) == (".docker" not in run.stderr)
    assert actor.host(f"{actor.home}/.docker/config.json").read_text() == "{}\n"
    actor.remove(f"{actor.home}/.docker")


@requirement("end.discarded")
def test_a_box_that_is_killed_is_counted_too(actor: Actor) -> None:
    run = actor.run(["/bin/sh", "-c", "echo x > ~/.foo; exec sleep 60"], tier="strict", timeout=4)
    assert run.raw["receipt"]["end"]["outcome"] == "timed_out" and run.raw["receipt"]["end"]["discarded"]["names"] == [f"{actor.home}/.foo"]


@requirement("end.discarded")
def test_a_terminal_is_told_in_one_line_without_the_commands_own_bytes(actor: Actor) -> None:
    script = r'echo x > ~/.foo; echo x > ~/"$(printf "a\033[2Jb\nc")"; echo x > ~/.bar'
    with Terminal.bare(actor, line("run", "--tier", "strict", "sh", "-c", script), env=environment(actor, NO_COLOR="1")) as screen:
        seen = screen.read_until("thrown away: 3 files")
        seen += screen.read_until("\n")
    assert r"~/.bar, ~/.foo, ~/a\u{1b}[2Jb\nc" in seen and "\x1b" not in seen, seen
    with Terminal.bare(actor, line("run", "--tier", "strict", "sh", "-c", "echo x > ~/.foo; exit 3"), env=environment(actor, NO_COLOR="1")) as screen:
        assert "--write DIR" in screen.read_until("single file")
    shown = stockade(actor, "show", "last")
    assert "thrown away" in shown.out and "1 file (4.0 KiB): ~/.foo" in shown.out
    document = json.loads(stockade(actor, "show", "last", "--json").out)
    assert document["end"]["discarded"]["files"] == 1


@requirement("end.discarded")
def test_without_a_terminal_one_line_says_it_and_quiet_does_not(actor: Actor) -> None:
    """No Python stays beside such a box: the launcher says it, without the command's own names."""
    words = ("run", "--tier", "strict", "--", "sh", "-c")
    said = stockade(actor, *words, "echo x > ~/.foo; echo x > ~/.bar; echo mine >&2; exit 3")
    assert (said.status, said.err) == (3, "mine\nstockade: written to the private home and thrown away: 2 files; stockade show last\n")
    assert "2 files (8.0 KiB): ~/.bar, ~/.foo" in stockade(actor, "show", "last").out
    for options, script in (((), "echo x > kept"), (("--quiet",), "echo x > ~/.foo"), (("--quiet", "--receipt", "/dev/null"), "echo x > ~/.foo")):
        assert stockade(actor, "run", *options, *words[1:], script).err == ""
    actor.remove(f"{actor.workspace}/kept")


@requirement("end.discarded")
@pytest.mark.parametrize("more", [("--receipt", "/dev/null"), ("--tmp", "disk")])
def test_without_a_terminal_a_run_that_is_waited_for_says_it_once(actor: Actor, more: tuple[str, ...]) -> None:
    said = stockade(actor, "run", "--tier", "strict", *more, "--", "sh", "-c", "echo x > ~/.foo").err
    assert said == "stockade: written to the private home and thrown away: 1 file (4.0 KiB): ~/.foo\n"


@requirement("end.discarded")
def test_a_box_inside_a_box_says_it_to_whoever_asked(actor: Actor) -> None:
    for quiet in (False, True):
        words = ["run", *(["--quiet"] if quiet else []), "--tier", "strict", "--", "sh", "-c", "echo x > ~/.foo"]
        run = actor.run(inside(actor, *words), tier="guarded", read=[str(actor.stage.lib)])
        told = "stockade: written to the private home and thrown away: 1 file\n"
        assert (run.returncode, run.stderr) == (0, "" if quiet else told)


@requirement("end.discarded")
def test_a_launch_line_says_it_too_for_it_has_no_report(actor: Actor) -> None:
    made = shlex.split(stockade(actor, "explain", "--argv", "--tier", "strict", "--", "sh", "-c", "echo x > ~/.foo").out)
    for argv, told in ((made, "1 file; stockade show last\n"), ([made[0], "--quiet", *made[1:]], "")):
        done = actor.call(argv, env=environment(actor))
        assert done.returncode == 0 and done.stderr.decode().endswith(told) and bool(done.stderr) is bool(told), done


@requirement("end.discarded")
def test_a_standard_error_that_is_full_and_never_read_does_not_hold_the_run_up(actor: Actor) -> None:
    script = "echo x > ~/.foo; head -c 65536 /dev/zero >&2; exit 3"
    with start(actor, "run", "--tier", "strict", "--", "sh", "-c", script, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        assert child.stderr is not None and fcntl.fcntl(child.stderr, fcntl.F_GETPIPE_SZ) == 65536
        assert child.wait(timeout=60) == 3
        assert child.stderr.read() == bytes(65536)


@requirement("end.discarded")
def test_a_closed_standard_error_does_not_change_how_the_run_ends(actor: Actor) -> None:
    script = "exec 2>&-; exec \"$@\""
    said = stockade(actor, "run", "--tier", "strict", "--", "sh", "-c", "echo x > ~/.foo; exit 3", before=("sh", "-c", script, "sh"))
    assert said.status == 3


@requirement("end.discarded")
def test_at_off_nothing_is_private_so_nothing_is_measured(actor: Actor) -> None:
    run = actor.run(["true"], tier="off", accept=["off"], caller="operator")
    assert run.raw["receipt"]["end"]["discarded"] is None
