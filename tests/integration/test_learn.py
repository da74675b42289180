"""``stockade learn``: what a real run lacked becomes the smallest profile, and with it the run works."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import skip_for_gap
from requirements import requirement
from support.actors import PYTHON, Actor
from support.cli import Said, environment, line, start, stockade
from support.terminal import COUNT, LINES, Terminal, interrupt, suspend_and_resume

TOOL = f"""#!/bin/sh
cat ~/.config/mytool/conf || exit 3
mkdir -p ~/.cache/mytool && echo again >>~/.cache/mytool/runs || exit 4
{PYTHON} -c 'import os, socket; socket.socket(socket.AF_UNIX).connect(os.path.expanduser("~/.mytool.sock"))' || exit 5
wc -l <~/.cache/mytool/runs
"""


@pytest.fixture
def tool(actor: Actor) -> Iterator[str]:
    """A script with its configuration in the home and a service on a socket, in the workspace."""
    actor.put(f"{actor.home}/.config/mytool/conf", "greeting\n")
    actor.put(f"{actor.home}/.config/mytool/other", "unused\n")
    actor.agent.do("listen", path=f"{actor.home}/.mytool.sock")
    yield actor.put(f"{actor.workspace}/mytool", TOOL, 0o755)
    actor.agent.do("forget", path=f"{actor.home}/.mytool.sock")
    for path in (".config/mytool", ".cache/mytool", ".mytool.sock", ".config/stockade"):
        actor.remove(f"{actor.home}/{path}")
    actor.remove(f"{actor.workspace}/mytool")


@pytest.fixture(autouse=True)
def no_profiles(actor: Actor) -> Iterator[None]:
    """No test sees a profile of another one."""
    yield
    actor.remove(f"{actor.home}/.config/stockade")


def _file(actor: Actor, name: str) -> str:
    return f"{actor.home}/.config/stockade/profiles/{name}.toml"


def _profile(actor: Actor, name: str) -> dict[str, Any]:
    return tomllib.loads(actor.host(_file(actor, name)).read_text(encoding="utf-8"))


def _learn(actor: Actor, *words: str, **more: Any) -> Said:
    return stockade(actor, "learn", "--tier", "strict", *words, **more)


@requirement("learn.profile_works")
def test_a_tool_of_the_home_is_learned_in_rounds_and_then_works(actor: Actor, tool: str) -> None:
    assert stockade(actor, "run", "--tier", "strict", tool).status == 3
    first = _learn(actor, "--save", "mine", tool)
    assert first.status == 3 and "stockade: learn: 1 grant would have been needed; profile saved as mine\n" in first.err
    assert _profile(actor, "mine") == {"schema": "profile.v1", "description": "learned from mytool", "tier": "strict",
                                       "read": ["~/.config/mytool/conf"]}
    second = _learn(actor, "--profile", "mine", "--save", "mine", tool)
    assert second.status == 5 and "2 grants would have been needed; added to profile mine" in second.err
    assert _profile(actor, "mine") == {
        "schema": "profile.v1", "description": "learned from mytool", "tier": "strict", "read": ["~/.config/mytool/conf"],
        "sockets": [f"{actor.home}/.mytool.sock"], "caches": [{"name": "mytool", "path": "~/.cache/mytool", "plain": True}]}
    for runs in (1, 2):
        done = stockade(actor, "run", "--profile", "mine", tool)
        assert (done.status, done.out) == (0, f"greeting\n{runs}\n"), done
    third = _learn(actor, "--profile", "mine", "--save", "mine", tool)
    assert third.status == 0 and "nothing was missing that a grant would give; profile mine says it already" in third.err
    mode = stat.S_IMODE(actor.host(_file(actor, "mine")).stat().st_mode)
    assert mode == 0o600 and not actor.host(f"{actor.home}/.cache/mytool").exists()


@requirement("learn.profile_works")
def test_a_git_remote_elsewhere_in_the_home_is_learned_until_a_push_works(actor: Actor, fresh_repo: str) -> None:
    actor.sh("git init -q --bare ~/mirrors/up.git && git remote add up ~/mirrors/up.git && git checkout -q -B topic", cwd=fresh_repo)
    push = ["git", "push", "-q", "up", "topic"]
    for _ in range(6):
        profile = ["--profile", "mirror"] if actor.host(_file(actor, "mirror")).exists() else []
        done = _learn(actor, *profile, "--save", "mirror", "--", *push, cwd=fresh_repo)
        if done.status == 0:
            break
    learned = _profile(actor, "mirror")
    assert learned["extends"] == ["git"] and learned["read"] == ["~/mirrors/up.git"]
    assert all(path.startswith("~/mirrors/up.git") for path in learned["write"])
    actor.sh("git commit -q --allow-empty -m more", cwd=fresh_repo)
    assert stockade(actor, "run", "--profile", "mirror", "--", *push, cwd=fresh_repo).status == 0
    assert actor.sh("git -C ~/mirrors/up.git log --format=%s -1 topic").strip() == "more"
    actor.remove(f"{actor.home}/mirrors")


@requirement("learn.profile_works")
def test_a_package_that_npm_installs_from_the_home_is_learned(actor: Actor) -> None:
    if not os.path.exists("/usr/bin/npm"):
        skip_for_gap("no_debian_tools")
    actor.put(f"{actor.home}/libs/mylib/package.json", '{"name": "mylib", "version": "1.0.0", "main": "m.js"}')
    actor.put(f"{actor.home}/libs/mylib/m.js", "module.exports = 6 * 7\n")
    app = f"{actor.home}/work/app"
    actor.put(f"{app}/package.json", '{"name": "app", "version": "1.0.0"}')
    install = ["npm", "install", "--offline", "--no-audit", "--no-fund", f"{actor.home}/libs/mylib"]
    assert _learn(actor, "--save", "lib", "--", *install, cwd=app).status != 0
    assert _learn(actor, "--profile", "lib", "--save", "lib", "--", *install, cwd=app).status == 0
    show = ["node", "-p", "require('mylib')"]
    _learn(actor, "--profile", "lib", "--save", "lib", "--", *show, cwd=app)
    assert stockade(actor, "run", "--profile", "lib", "--", *show, cwd=app).out == "42\n"
    learned = _profile(actor, "lib")
    assert "npm" in learned["extends"] and all(path.startswith("~/libs/mylib") for path in learned["read"]), learned
    for path in (app, f"{actor.home}/libs"):
        actor.remove(path)


@requirement("learn.never_proposed")
def test_listed_names_are_told_apart_and_never_granted(actor: Actor) -> None:
    for path in (".local/bin/mine", ".aws/credentials", ".ssh/id_ed25519", ".bashrc", ".config/app/a", ".config/app/b", ".config/app/c"):
        actor.put(f"{actor.home}/{path}", "x\n")
    actor.put(f"{actor.workspace}/.env", "TOKEN=1\n")
    control = f"{actor.env['XDG_RUNTIME_DIR']}/docker.sock"
    actor.agent.do("listen", path=control)
    script = (f"cat ~/.aws/credentials ~/.ssh/id_ed25519 .env ~/.config/app/a ~/.config/app/b ~/.config/app/c; echo y >>~/.bashrc; echo y >>~/.local/bin/mine; ls ~ ~/.config\n"
              f"{PYTHON} -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"{control}\")'")
    path = f"{actor.home}/.local/bin:{actor.env['PATH']}"
    done = _learn(actor, "--json", "--save", "careful", "--", "sh", "-c", script, env=environment(actor, PATH=path))
    report = done.json()
    told = {os.path.relpath(row["path"], actor.home): row for row in report["not_proposed"]}
    assert {".local/bin/mine", ".aws/credentials", ".ssh/id_ed25519", ".bashrc", "work/repo/.env", os.path.relpath(control, actor.home)} <= told.keys(), report
    # Three files of one directory are the directory.
    assert report["proposals"][0]["value"] == f"{actor.home}/.config/app" and len(report["proposals"]) == 1
    assert _profile(actor, "careful")["read"] == ["~/.config/app"]
    for name in (".aws/credentials", "work/repo/.env"):
        option = told[name]["option"]
        assert option[:2] == ["--read", f"{actor.home}/{name}"]
        opened = stockade(actor, "run", "--tier", "strict", *option, "--", "cat", f"{actor.home}/{name}")
        assert opened.status == 0, (option, opened)
    actor.agent.do("forget", path=control)
    for path in (".local/bin", ".aws", ".ssh/id_ed25519", ".bashrc", ".config/app", "work/repo/.env"):
        actor.remove(f"{actor.home}/{path}")


@requirement("learn.never_proposed")
@pytest.mark.parametrize("name", ["gnupg/S.gpg-agent", "own/service"])
def test_a_socket_behind_a_link_is_judged_and_proposed_by_what_it_is(actor: Actor, name: str) -> None:
    service = f"{actor.home}/.{name}"
    actor.make_dir(os.path.dirname(service))
    actor.agent.do("listen", path=service)
    actor.sh(f"ln -sfn {os.path.dirname(service)} d0")
    spelled = f"{actor.workspace}/d0/{os.path.basename(service)}"
    connect = [PYTHON, "-c", f"import socket; socket.socket(socket.AF_UNIX).connect({spelled!r})"]
    assert actor.call(connect).returncode == 0
    report = _learn(actor, "--json", "--", *connect).json()
    actor.agent.do("forget", path=service)
    actor.remove(f"{actor.workspace}/d0")
    actor.remove(os.path.dirname(service))
    proposed = [row["value"] for row in report["proposals"] if row["kind"] == "sockets"]
    told = {row["path"]: row["why"] for row in report["not_proposed"]}
    if name == "own/service":
        assert proposed == [service], report
    else:
        assert proposed == [] and told[service] == "control socket gpg-agent", report


LATER = (
    ".asdf/shims/node", ".ghcup/bin/ghc", ".juliaup/bin/julia", ".poetry/bin/poetry", ".fzf/bin/fzf", ".fzf/shell/key",
    ".local/pipx/venvs/x/bin/x", ".opam/opam-init/init.sh", ".zplug/init.zsh", ".config/broot/launcher/bash/br",
    ".git-templates/hooks/post-checkout", ".gdbinit.d/a",
    # On no list: known by what a directory is called, or by what the smallest grant would hold.
    ".newtool/bin/tool", ".newtool/sbin/deep/tool", ".other/shims/tool", "elsewhere/hooks/x",
)


@requirement("learn.never_proposed")
def test_what_others_run_later_is_no_grant_on_a_list_or_not(actor: Actor) -> None:
    for name in (*LATER, ".data/one"):
        actor.put(f"{actor.home}/{name}", "")
    words = ["--", "sh", "-c", 'for name; do echo x >>~/"$name"; echo x >~/"$name".new; done; echo x >~/.newtool/fresh', "sh", *LATER, ".data/one"]
    report = _learn(actor, "--json", "--save", "later", *words).json()
    assert {row["value"] for row in report["proposals"]} == {f"{actor.home}/.data"}, report
    told = {row["path"]: row["why"] for row in report["not_proposed"]}
    for name in (*LATER, ".newtool/fresh"):
        assert told[f"{actor.home}/{name}"].startswith("it can make code run later"), (name, told)
    stockade(actor, "run", "--profile", "later", *words)
    assert [name for name in LATER if actor.host(f"{actor.home}/{name}").read_text()] == []
    assert actor.host(f"{actor.home}/.data/one").read_text() == "x\n"
    assert actor.call(words[1:]).returncode == 0 and all(actor.host(f"{actor.home}/{name}").read_text() for name in LATER)
    for top in {name.split("/")[0] for name in (*LATER, ".data/one")} - {".config", ".local"}:
        actor.remove(f"{actor.home}/{top}")
    for name in (".config/broot", ".local/pipx"):
        actor.remove(f"{actor.home}/{name}")


@requirement("learn.profile_works")
@pytest.mark.parametrize(("kind", "each"), [
    ("cache", "mkdir -p ~/.cache/many$n/a && echo x >~/.cache/many$n/a/b"),
    ("write", "echo x >~/many/$n/a/b"), ("read", "cat ~/many/$n/a/in"),
], ids=["cache", "write", "read"])
def test_however_many_names_were_used_the_profile_stays_short(actor: Actor, kind: str, each: str) -> None:
    actor.make_dir(f"{actor.home}/.cache")
    actor.sh("for n in $(seq 120); do mkdir -p ~/many/$n/a && echo x >~/many/$n/a/in || exit 1; done")
    done = _learn(actor, "--json", "--save", "many", "--", "sh", "-c", f"for n in $(seq 120); do {each}; done")
    report = done.json()
    actor.remove(f"{actor.home}/many")
    assert [row["kind"] for row in report["proposals"]] == [kind] * 50, report
    assert [row["why"] for row in report["not_proposed"] if "69 more" in row["why"]], report
    learned = _profile(actor, "many")
    assert len(learned[{"cache": "caches"}.get(kind, kind)]) == 50


@requirement("learn.never_proposed")
def test_what_lies_around_the_workspace_is_no_grant(actor: Actor) -> None:
    beside = f"{actor.home}/work/beside"
    report = _learn(actor, "--json", "--", "sh", "-c", "echo x >../beside; echo y >../own/file; cat ../own/data").json()
    # There is no ../own: the host would refuse as well.
    assert report["proposals"] == [] and [row["path"] for row in report["not_proposed"]] == [beside]
    actor.put(f"{actor.home}/work/own/data", "x\n")
    report = _learn(actor, "--json", "--", "sh", "-c", "mkdir -p ../own; echo x >../beside; echo y >../own/file; cat ../own/data").json()
    assert [(row["kind"], row["value"]) for row in report["proposals"]] == [("write", f"{actor.home}/work/own")], report
    assert [row["path"] for row in report["not_proposed"]] == [beside]
    actor.remove(f"{actor.home}/work/own")


@requirement("learn.never_proposed")
def test_the_home_and_what_holds_a_listed_store_are_no_grant(actor: Actor) -> None:
    for name in ("a", "b", "c"):
        actor.put(f"{actor.home}/.config/{name}.conf", "x\n")
        actor.put(f"{actor.home}/.{name}rc", "x\n")
    done = _learn(actor, "--json", "--", "sh", "-c", "cat ~/.config/?.conf ~/.config/a.conf ~/.config/b.conf ~/.config/c.conf ~/.arc ~/.brc ~/.crc; ls ~/.config")
    values = sorted(row["value"] for row in done.json()["proposals"])
    assert values == sorted(f"{actor.home}/{path}" for path in (".arc", ".brc", ".crc", ".config/a.conf", ".config/b.conf", ".config/c.conf"))
    for name in ("a", "b", "c"):
        actor.remove(f"{actor.home}/.config/{name}.conf")
        actor.remove(f"{actor.home}/.{name}rc")


@requirement("learn.profile_works")
def test_the_network_and_a_grant_that_was_used_are_in_the_profile(actor: Actor) -> None:
    actor.put(f"{actor.home}/data/in", "x\n")
    port = actor.agent.do("listen_tcp")
    connect = f"import socket; open({actor.home + '/data/in'!r}).close(); socket.create_connection(('127.0.0.1', {port}), 5)"
    words = ["--read", f"{actor.home}/data", "--read", "/opt", "--", PYTHON, "-c", connect]
    done = _learn(actor, "--json", "--save", "net", *words)
    report = done.json()
    assert done.status == 1 and [row["kind"] for row in report["proposals"]] == ["net"]
    assert (report["kept"], report["unused"]) == ([{"kind": "read", "value": f"{actor.home}/data"}], [{"kind": "read", "value": "/opt"}])
    learned = _profile(actor, "net")
    assert (learned["net"], learned["read"]) == ("host", ["~/data"])
    assert stockade(actor, "run", "--profile", "net", "--", *words[words.index("--") + 1:]).status == 0
    actor.remove(f"{actor.home}/data")


@requirement("learn.profile_works")
def test_at_guarded_a_cache_is_learned_and_a_missing_base_directory_is_told(actor: Actor) -> None:
    write = ["--", "sh", "-c", "mkdir -p ~/.cache/mytool && echo x >>~/.cache/mytool/runs && wc -l <~/.cache/mytool/runs"]
    actor.remove(f"{actor.home}/.cache")
    told = stockade(actor, "learn", *write)
    assert told.status == 1 and f"not proposed: write {actor.home}/.cache: every program's directory" in told.err
    actor.make_dir(f"{actor.home}/.cache")
    assert stockade(actor, "learn", "--save", "cached", *write).status == 1
    for count in (1, 2):
        assert stockade(actor, "run", "--profile", "cached", *write).out == f"{count}\n"
    assert not actor.host(f"{actor.home}/.cache/mytool").exists()


@requirement("learn.profile_works")
def test_a_name_that_was_looked_up_without_a_network_is_told_with_the_option(user: Actor) -> None:
    look = f"{PYTHON} -c 'import socket; socket.getaddrinfo(\"example.org\", 80)' 2>/dev/null; {PYTHON} -c pass"
    report = _learn(user, "--json", "--", "sh", "-c", look).json()
    assert report["proposals"] == [] and [row["option"] for row in report["not_proposed"]] == [["--net", "host"]]
    assert _learn(user, "--json", "--", PYTHON, "-c", "pass").json()["not_proposed"] == []


@requirement("learn.profile_works")
def test_a_link_of_the_home_is_granted_as_it_is_spelled(actor: Actor) -> None:
    actor.put(f"{actor.home}/dotfiles/mytool/conf", "linked\n")
    actor.sh("mkdir -p ~/.config && ln -sfn ../dotfiles/mytool ~/.config/mytool")
    assert _learn(actor, "--save", "link", "--", "sh", "-c", "cat ~/.config/mytool/conf").status == 1
    assert _profile(actor, "link")["read"] == ["~/.config/mytool"]
    assert stockade(actor, "run", "--profile", "link", "--", "sh", "-c", "cat ~/.config/mytool/conf").out == "linked\n"
    actor.remove(f"{actor.home}/.config/mytool")
    actor.remove(f"{actor.home}/dotfiles")


MINE = '# my own words\nschema = "profile.v1"\ndescription = "mine"\nread = [  # two places\n  "~/x", "~/y",\n]\n\n[set_env]\n# stays\nA = "b"\n'


@requirement("learn.save_loses_nothing")
def test_an_existing_profile_is_joined_and_keeps_every_line(actor: Actor, tool: str) -> None:
    actor.put(f"{actor.home}/x", "x\n")
    actor.put(f"{actor.home}/y", "y\n")
    path = actor.put(_file(actor, "mine"), MINE)
    done = _learn(actor, "--save", "mine", tool)
    assert done.status == 3 and f"# new in {path}\n" in done.err
    text = actor.host(path).read_text(encoding="utf-8")
    for kept in MINE.splitlines():
        assert kept.removeprefix("read = [") in text
    assert tomllib.loads(text) == {**tomllib.loads(MINE), "tier": "strict", "read": ["~/.config/mytool/conf", "~/x", "~/y"]}
    assert stockade(actor, "profile", "check", "mine").status == 0
    for name in ("x", "y"):
        actor.remove(f"{actor.home}/{name}")


@requirement("learn.save_loses_nothing")
@pytest.mark.parametrize(("name", "text", "code"), [
    ("bad", "read = [\n", "profile_invalid"), ("other", 'schema = "profile.v1"\nraed = []\n', "profile_invalid"),
    ("npm", None, "value_invalid"), ("../x", None, "value_invalid"), (".hidden", None, "value_invalid"), ("a/b", None, "value_invalid")])
def test_a_place_that_cannot_be_saved_to_is_found_out_before_the_command_runs(actor: Actor, name: str, text: str | None, code: str) -> None:
    if text is not None:
        actor.put(_file(actor, name), text)
    done = _learn(actor, "--save", name, "--", "sh", "-c", "touch ran")
    assert (done.status, done.err.split(": ")[1], done.err.count("\n")) == (125, code, 1), done
    assert not actor.host(f"{actor.workspace}/ran").exists()
    if text is not None:
        assert actor.host(_file(actor, name)).read_text(encoding="utf-8") == text


@requirement("learn.ends_as_the_command")
@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 3", 3), ("exit 125", 125), ("kill -TERM $$", -15)])
def test_learn_ends_as_the_command_ended(actor: Actor, script: str, status: int) -> None:
    done = stockade(actor, "learn", "--", "sh", "-c", f"echo out; {script}")
    assert (done.status, done.out) == (status, "out\n")
    assert done.err == "stockade: learn: nothing was missing that a grant would give\n"


@requirement("learn.ends_as_the_command")
def test_failures_of_our_own_are_125_and_one_line(actor: Actor) -> None:
    for words, status, code in ((["--tier", "off", "true"], 125, "value_invalid"), ([], 125, "usage"), (["--read", "/no/such", "true"], 125, "source_missing"),
                                (["no-such-command"], 127, "not_found")):
        done = stockade(actor, "learn", *words)
        assert (done.status, done.out, done.err.count("\n")) == (status, "", 1), done
        assert f"{code}: " in done.err


@requirement("learn.ends_as_the_command")
def test_a_time_limit_and_a_temp_on_disk_work_under_learn(actor: Actor) -> None:
    done = stockade(actor, "learn", "--timeout", "4s", "--tmp", "disk", "--", "sh", "-c", "echo x >/tmp/x && cat /tmp/x; exec sleep 60")
    assert (done.status, done.out) == (124, "x\n") and "stockade: learn: nothing was missing" in done.err
    assert stockade(actor, "ps").out.count("sleep") == 0


@requirement("learn.ends_as_the_command")
def test_json_is_one_document_and_the_commands_output_goes_elsewhere(actor: Actor) -> None:
    done = stockade(actor, "learn", "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 4")
    report = done.json()
    assert (done.status, done.err) == (4, "out\nerr\n")
    assert (report["schema"], report["status"], report["whole"], report["proposals"]) == ("stockade.learn.v1", 4, True, [])


@requirement("learn.profile_works")
def test_a_cache_that_policy_takes_away_is_tried_and_not_proposed(actor: Actor) -> None:
    keep = ["--", "sh", "-c", "mkdir -p ~/.cache/one ~/.cache/two && echo x >~/.cache/one/a && echo x >~/.cache/two/a"]
    actor.put(f"{actor.home}/.config/stockade/policy.toml", f'deny_grants = ["{actor.home}/.cache/one"]\n')
    before = stockade(actor, "cache", "list", "--json").json()["caches"]
    report = _learn(actor, "--json", "--save", "cached", *keep).json()
    assert [(item["kind"], item["value"]) for item in report["proposals"]] == [("cache", f"{actor.home}/.cache/two")], report
    assert [table["path"] for table in _profile(actor, "cached")["caches"]] == ["~/.cache/two"]
    told = [row for row in report["not_proposed"] if row["path"].startswith(f"{actor.home}/.cache/one")]
    assert told and "no grant changes it" in told[0]["why"], report
    assert {one["id"] for one in stockade(actor, "cache", "list", "--json").json()["caches"]} == {one["id"] for one in before}, "trying makes no cache"
    actor.remove(f"{actor.home}/.config/stockade/policy.toml")
    again = _learn(actor, "--json", "--save", "cached", *keep).json()
    assert len(again["proposals"]) == 2, "the twin: without that policy both are caches"


@requirement("learn.profile_works")
def test_a_learned_cache_takes_no_name_of_a_cache_that_the_run_had(actor: Actor) -> None:
    actor.put(f"{actor.home}/.config/stockade/profiles/base.toml",
              'schema = "profile.v1"\n[[caches]]\nname = "tool"\npath = "~/.cache/first/tool"\nplain = true\n')
    both = ["--", "sh", "-c", "mkdir -p ~/.cache/first/tool ~/.cache/tool && echo x >>~/.cache/first/tool/n && echo x >>~/.cache/tool/n "
            "&& wc -l <~/.cache/first/tool/n && wc -l <~/.cache/tool/n"]
    assert _learn(actor, "--profile", "base", "--save", "more", *both).status == 0
    learned = _profile(actor, "more")
    assert learned["extends"] == ["base"] and [table["name"] for table in learned["caches"]] == ["tool-2"]
    for count in (1, 2):
        assert stockade(actor, "run", "--profile", "more", *both).out == f"{count}\n{count}\n"


@requirement("learn.never_proposed")
def test_beyond_twenty_tries_an_option_is_said_to_be_untried(actor: Actor) -> None:
    for number in range(25):
        actor.put(f"{actor.home}/.ssh/id_{number:02}", "x\n")
    script = ["--", "sh", "-c", "for n in ~/.local/share/none/*; do :; done; i=0; while [ $i -lt 25 ]; do cat ~/.ssh/id_$(printf %02d $i); i=$((i+1)); done"]
    rows = [row for row in _learn(actor, "--json", *script).json()["not_proposed"] if "/.ssh/id_" in row["path"]]
    assert len(rows) == 25 and all(row["option"][:2] == ["--read", row["path"]] for row in rows), rows
    assert [row["tried"] for row in rows].count(True) == 20
    assert all("--accept" in row["option"] for row in rows if row["tried"])
    actor.remove(f"{actor.home}/.ssh")


@requirement("learn.ends_as_the_command")
def test_a_profile_that_was_edited_during_the_run_stays_as_it_was_edited(actor: Actor, tool: str) -> None:
    assert _learn(actor, "--save", "mine", tool).status == 3
    before = actor.host(_file(actor, "mine")).read_text()
    script = "echo ready; read line; mkdir -p ~/.cache/mytool && echo x >~/.cache/mytool/runs"
    words = ["learn", "--tier", "strict", "--profile", "mine", "--save", "mine", "--", "sh", "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    for edited in (True, False):
        with start(actor, *words, **pipes) as child:
            assert child.stdin is not None and child.stdout is not None and child.stderr is not None
            assert child.stdout.readline() == b"ready\n"
            text = before + "# mine\n"
            if edited:
                actor.put(_file(actor, "mine"), text)
            child.stdin.write(b"\n")
            child.stdin.close()
            said = child.stderr.read().decode()
        saved = actor.host(_file(actor, "mine")).read_text()
        if edited:
            assert child.returncode == 125 and saved == text and "profile_unsaved" in said and "~/.cache/mytool" in said, said
        else:
            assert child.returncode == 0 and "added to profile mine" in said and "~/.cache/mytool" in saved, said


def _on_a_terminal(actor: Actor, *words: str) -> Terminal:
    return Terminal.bare(actor, line("learn", *words), env=environment(actor))


@requirement("learn.unnoticed")
def test_ctrl_c_under_learn_is_one_sigint_and_the_report_comes_all_the_same(actor: Actor) -> None:
    with _on_a_terminal(actor, "--", PYTHON, "-c", COUNT) as terminal:
        assert interrupt(terminal).endswith("count 1 .")
        terminal.read_until("stockade: learn: nothing was missing")
        assert terminal.wait() == 0


@requirement("learn.unnoticed")
def test_suspend_and_foreground_under_learn_work_from_a_shell(actor: Actor) -> None:
    suspend_and_resume(actor, line("learn", "--", PYTHON, "-c", LINES), environment(actor), then="stockade: learn:")


@requirement("learn.ends_as_the_command")
def test_a_failed_run_on_a_terminal_names_learn(actor: Actor) -> None:
    failing, hint = "cat '~/.no thing'; exit 1", b"stockade: hint: if something was missing in the box, this shows it: "
    quoted = "'cat '\"'\"'~/.no thing'\"'\"'; exit 1'"
    asked = ["--tier", "strict", "--profile", "npm", "--read", "/usr", "-v"]
    for words, again in (
            (["--", "sh", "-c", failing], f"stockade learn -- sh -c {quoted}"),
            # The line is for the same box, and can be pasted.
            ([*asked, "sh", "-c", failing], f"stockade learn --tier strict --profile npm --read /usr -- sh -c {quoted}"),
            (["--env", "KEY=value", "--", "false"], "the same line with learn in place of run"),
            (["--", "sh", "-c", "exit\n"], None), (["--", "sh", "-c", "exit 1\n"], "the same line with learn in place of run"),
            (["--", "true"], None), (["--quiet", "--", "false"], None)):
        with Terminal.bare(actor, line("run", *words), env=environment(actor)) as terminal:
            seen = b""
            while chunk := _read(terminal):
                seen += chunk
            assert (hint in seen) is (again is not None), seen
            assert again is None or seen.endswith(hint + again.encode() + b"\r\n"), seen
            terminal.wait()


def _read(terminal: Terminal) -> bytes:
    try:
        return os.read(terminal.master, 4096)
    except OSError:
        return b""


@requirement("learn.profile_works")
def test_what_was_seen_only_in_part_is_said(user: Actor) -> None:
    many = "import os\nfor n in range(200_010): os.access(f'/nope/{n}', 0)"
    done = stockade(user, "learn", "--json", "--", PYTHON, "-c", many)
    assert done.json()["cut"] >= 10 and json.loads(done.out)["whole"] is True


@requirement("learn.profile_works")
def test_a_base_that_the_home_lacks_is_not_told_apart_where_the_profile_works_without(actor: Actor) -> None:
    """In a private home the tool makes ~/.cache itself; where it could not, that is told."""
    actor.remove(f"{actor.home}/.cache")
    actor.remove(f"{actor.home}/.local/share")
    script = ["sh", "-c", "mkdir -p ~/.cache/lacking && echo run >>~/.cache/lacking/runs && cat ~/.cache/lacking/runs"]
    done = stockade(actor, "learn", "--json", "--tier", "strict", "--save", "lacking", "--", *script)
    report = done.json()
    assert [(item["kind"], item["value"]) for item in report["proposals"]] == [("cache", f"{actor.home}/.cache/lacking")], report
    assert report["not_proposed"] == [] and not actor.host(f"{actor.home}/.cache").exists()
    for count in (1, 2):
        assert stockade(actor, "run", "--quiet", "--profile", "lacking", "--", *script).out == "run\n" * count
    told = stockade(actor, "learn", "--json", "--tier", "guarded", "--", "mkdir", f"{actor.home}/.local/share").json()
    assert [item["path"] for item in told["not_proposed"]] == [f"{actor.home}/.local/share"], told
    assert "make it yourself" in told["not_proposed"][0]["why"]
