"""``stockade run``: exit status, errors, environment, receipts, and what stays resident."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from requirements import requirement
from support.actors import PYTHON, WAIT_S, Actor
from support.cli import environment, line, start, stockade
from support.live import wait_until
from support.terminal import COUNT, Terminal, interrupt

ENDS = [("exit 0", 0), ("exit 3", 3), ("exit 125", 125), ("exit 255", 255), ("kill -TERM $$", -15),
        ("kill -KILL $$", -9), ("kill -SEGV $$", -11)]


@pytest.mark.parametrize(("script", "status"), ENDS)
@pytest.mark.parametrize("resident", [False, True], ids=["exec", "receipt"])
def test_run_ends_as_the_command_ended(actor: Actor, script: str, status: int, resident: bool) -> None:
    options = ["--receipt", "/dev/null"] if resident else []
    said = stockade(actor, "run", *options, "--", "sh", "-c", script)
    assert (said.status, said.out, said.err) == (status, "", "")


@pytest.mark.parametrize("resident", [False, True], ids=["exec", "receipt"])
def test_a_time_limit_is_124_and_a_missing_command_127_and_an_unfit_one_126(actor: Actor, resident: bool) -> None:
    options = ["--receipt", "/dev/null"] if resident else []
    unfit = actor.put(f"{actor.workspace}/unfit", "no program\n", 0o644)
    assert stockade(actor, "run", *options, "--timeout", "200ms", "sleep", "60").status == 124
    for status, command, code in ((127, "no-such-command", "not_found"), (126, unfit, "exec_failed")):
        said = stockade(actor, "run", *options, command)
        assert (said.status, said.out) == (status, "")
        assert said.err.startswith(f"stockade: refused: {code}: ") and said.err.count("\n") == 1, said.err


WRONG = [
    (["--tire", "strict", "true"], "unknown_option", "--tier"),
    (["--tier", "strikt", "true"], "unknown_tier", "strict"),
    (["--profile", "nmp", "true"], "unknown_profile", "npm"),
    (["--accept", "fs.hom", "true"], "unknown_promise", "fs.home"),
    (["--allow", "git-konfig", "true"], "unknown_grant", "git-config"),
    (["--allow-socket", "ssh-agnet", "true"], "unknown_grant", "ssh-agent"),
    (["--as", "operater", "true"], "unknown_caller", "operator"),
    (["--net", "example.com,@npm", "true"], "net_unsupported", "none or host"),
    (["--net", "on", "true"], "value_invalid", "expected none or host (hint: did you mean 'host'?)"),
    (["--net", "off", "true"], "value_invalid", "did you mean 'none'?"),
    (["--net", "hosts", "true"], "value_invalid", "did you mean 'host'?"),
    (["--publish", "8080", "true"], "publish_unsupported", "host"),
    (["--on-persistence", "quarantined", "true"], "value_invalid", "quarantine"),
    (["--timeout", "soon", "true"], "value_invalid", "--timeout"),
    (["--memory", "2X", "true"], "value_invalid", "--memory"),
    (["--pids", "0", "true"], "value_invalid", "--pids"),
    (["--env", "=x", "true"], "env_invalid", "empty"),
    (["--env-file", "/no/such/file", "true"], "env_invalid", "/no/such/file"),
    (["--receipt", "/no/such/dir/r.json", "true"], "value_invalid", "--receipt"),
    (["--receipt", "fd:77", "true"], "value_invalid", "fd:77"),
    (["--write", "~", "true"], "write_root_refused", "home"),
    (["--cwd", "/no/such/dir", "true"], "path_invalid", "/no/such/dir"),
    (["--tier", "strict", "--tier", "off", "true"], "usage", "given twice"),
    (["--tier", "--quiet", "true"], "usage", "TIER"),
    (["--quiet=1", "true"], "usage", "--quiet"),
    ([], "usage", "CMD"),
]


@requirement("F.unknown_names")
@pytest.mark.parametrize(("words", "code", "names"), WRONG, ids=[code + str(i) for i, (_, code, _) in enumerate(WRONG)])
def test_what_cannot_be_run_is_one_typed_line_and_125(user: Actor, words: list[str], code: str, names: str) -> None:
    said = stockade(user, "run", *words)
    assert (said.status, said.out) == (125, "")
    assert said.err.count("\n") == 1 and "Traceback" not in said.err
    assert said.err.removeprefix("stockade: ").removeprefix("refused: ").startswith(f"{code}: "), said.err
    assert names in said.err


def test_a_command_line_quoted_as_a_whole_is_answered_with_the_way_out(user: Actor) -> None:
    for options in ([], ["--quiet"], ["--receipt", "/dev/null"]):
        said = stockade(user, "run", *options, "echo two words")
        assert (said.status, said.out, said.err.count("\n")) == (127, "", 1)
        assert said.err.startswith("stockade: not_found: ") and "sh -c 'echo two words'" in said.err
    spaced = user.put(f"{user.workspace}/my tools/a tool", "#!/bin/sh\necho ran\n", 0o755)
    assert stockade(user, "run", "--quiet", spaced).out == "ran\n"
    user.remove(os.path.dirname(spaced))


def test_a_tool_that_gets_no_profile_because_of_its_path_is_named(user: Actor) -> None:
    tool = user.put(f"{user.workspace}/v/bin/claude", "#!/bin/sh\necho ran\n", 0o755)
    said = stockade(user, "run", tool)
    assert "guarded without profile claude" in said.err and said.err.count("--profile claude gives it") == 1, said
    assert stockade(user, "run", "--quiet", tool).err == ""
    for words in (("--profile", "pip", tool), ("/usr/bin/python3", "-m", "this"), ("true",)):
        assert "without profile" not in stockade(user, "run", "--verbose", *words).err
    user.remove(f"{user.workspace}/v")


def test_a_build_tool_of_the_project_has_the_box_of_that_tool(user: Actor) -> None:
    """Its build scripts are hostile input, however it was named."""
    secret = user.put(f"{user.home}/diary", "planted\n")
    tool = user.put(f"{user.workspace}/v/bin/pip", "#!/bin/sh\ncat ~/diary; echo ran\n", 0o755)
    assert user.call([tool], env=user.env).stdout == b"planted\nran\n"
    said = stockade(user, "run", tool)
    assert said.out == "ran\n" and "without profile" not in said.err, said
    user.remove(f"{user.workspace}/v")
    user.remove(secret)


def test_the_first_word_that_is_no_option_starts_the_command(user: Actor) -> None:
    assert stockade(user, "run", "--quiet", "echo", "--tier", "--", "x").out == "--tier -- x\n"
    assert stockade(user, "run", "--", "echo", "--quiet").out == "--quiet\n"
    assert stockade(user, "run", "--tier=standard", "--", "printf", "%s", "-v").out == "-v"


@requirement("F.forged_refusal")
def test_a_child_that_plays_the_launcher_is_not_believed(actor: Actor) -> None:
    receipt = f"{actor.workspace}/receipt.json"
    text = "stockade: refused: mount_denied: bind on /x: EACCES"
    said = stockade(actor, "run", "--receipt", receipt, "sh", "-c", f"echo '{text}' >&2; exit 125")
    end = json.loads(actor.host(receipt).read_text())["end"]
    assert (said.status, end["outcome"], end["exit_code"]) == (125, "exited", 125)


def test_variables_are_passed_by_name_set_by_value_and_read_from_a_file(user: Actor) -> None:
    path = user.put(f"{user.workspace}/vars", "# comment\n\nFROM_FILE=a b \"c\"\nPASSED_TOKEN\n", 0o600)
    env = environment(user, PASSED_TOKEN="p1", MY_SECRET_TOKEN="p2", OTHER_SECRET_TOKEN="p3")
    said = stockade(user, "run", "--tier", "strict", "--env-file", path, "--env", "MY_SECRET_TOKEN", "--env", "SET=x=y",
                    "env", env=env)
    found = dict(item.split("=", 1) for item in said.out.splitlines())
    assert (found["FROM_FILE"], found["PASSED_TOKEN"], found["MY_SECRET_TOKEN"], found["SET"]) == ('a b "c"', "p1", "p2", "x=y")
    assert "OTHER_SECRET_TOKEN" not in found


@pytest.fixture
def sleeper(actor: Actor) -> Iterator[subprocess.Popen[bytes]]:
    """A box that a command line started and that stays."""
    words = ("run", "--env", "SET=needle-value", "--", "sh", "-c", "echo ready; exec sleep 60")
    with start(actor, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        yield child
        child.kill()


def test_no_python_stays_and_no_value_is_in_an_argv(sleeper: subprocess.Popen[bytes]) -> None:
    proc = Path(f"/proc/{sleeper.pid}")
    assert os.readlink(proc / "exe").endswith("/stockade-launch")
    assert b"needle-value" not in (proc / "cmdline").read_bytes()


def test_the_command_gets_the_signals_that_python_had_taken(user: Actor) -> None:
    for options in ([], ["--receipt", "/dev/null"], ["--tier", "off"]):
        said = stockade(user, "run", *options, "--", "grep", "-E", "Sig(Ign|Blk)", "/proc/self/status")
        # Signals 32 and up belong to the C library and to whoever started the tests.
        assert [int(row.split()[1], 16) & 0x7FFFFFFF for row in said.out.splitlines()] == [0, 0], (options, said)


def test_a_signal_to_the_command_line_reaches_the_command(actor: Actor) -> None:
    script = "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    for options in ([], ["--receipt", "/dev/null"]):
        with start(actor, "run", *options, "--", "sh", "-c", script, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            child.send_signal(signal.SIGTERM)
            assert child.stdout.read() == b"got\n"
        assert child.returncode == 5


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_command_line_takes_its_box_along(actor: Actor, number: int) -> None:
    with start(actor, "run", "--receipt", "/dev/null", "--", "sh", "-c", "echo ready; exec sleep 61.25",
               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        child.send_signal(number)
        # End of file: no process of the box holds the pipe any more.
        assert child.stdout.read() == b""
    assert child.returncode == -number


@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_receipt_minus_lists_every_promise_of_the_tier_as_kept(actor: Actor, tier: str) -> None:
    said = stockade(actor, "run", "--tier", tier, "--receipt", "-", "echo", "output")
    lines = said.out.splitlines()
    rows = [row.split() for row in lines if "." in row.split()[0] or row.split()[0] == "limits"]
    count = {"standard": 14, "guarded": 16, "strict": 19}[tier]
    assert said.status == 0 and lines[0] == "output"
    assert lines[1].startswith(f"{tier} · kept {count} of ")
    assert [row[1] for row in rows] == ["kept"] * count
    assert "limit    core dumps off by RLIMIT_CORE" in said.out and "iB at most" in said.out


def test_a_receipt_goes_to_a_descriptor_as_one_document(actor: Actor) -> None:
    read_end, write_end = os.pipe()
    said = stockade(actor, "run", "--receipt", f"fd:{write_end}", "sh", "-c", "ls /proc/self/fd", pass_fds=[write_end])
    os.close(write_end)
    with os.fdopen(read_end) as stream:
        document = json.load(stream)
    assert document["schema"] == "stockade.receipt.v1"
    assert document["launch"]["effective_tier"] == "guarded" and document["end"]["exit_code"] == 0
    # The descriptor is ours, not the command's.
    assert str(write_end) not in said.out.split()


@requirement("launcher.refusal_runs_nothing")
def test_a_refused_launch_has_a_receipt_without_a_tier(actor: Actor) -> None:
    receipt = f"{actor.workspace}/refused.json"
    said = stockade(actor, "run", "--receipt", receipt, "no-such-command")
    document = json.loads(actor.host(receipt).read_text())
    assert said.status == 127 and said.err.count("\n") == 1
    assert document["launch"] is None and document["refused"]["code"] == "not_found"
    assert "effective_tier" not in json.dumps(document)
    assert stockade(actor, "run", "--receipt", "-", "no-such-command").out == ""


def test_a_box_cannot_move_the_receipt_to_another_place(actor: Actor) -> None:
    actor.make_dir(f"{actor.workspace}/out")
    script = f"mv out gone && ln -s {actor.elsewhere} out"
    said = stockade(actor, "run", "--receipt", "out/r.json", "sh", "-c", script)
    assert said.status == 0, said
    assert actor.host(f"{actor.workspace}/gone/r.json").is_file()
    assert not actor.host(f"{actor.elsewhere}/r.json").exists()
    actor.remove(f"{actor.workspace}/gone")
    actor.remove(f"{actor.workspace}/out")


def test_off_runs_unconfined_with_a_filtered_environment(user: Actor) -> None:
    env = environment(user, GITHUB_TOKEN="needle", LD_LIBRARY_PATH="/nowhere")
    for options in ([], ["--receipt", "/dev/null"]):
        said = stockade(user, "run", "--tier", "off", *options, "sh", "-c", "env; exit 4", env=env)
        assert said.status == 4 and "needle" not in said.out and "LD_LIBRARY_PATH" not in said.out
    assert stockade(user, "run", "--tier", "off", "--timeout", "200ms", "sleep", "60").status == 124
    assert stockade(user, "run", "--tier", "off", "no-such-command").status == 127


def test_a_working_directory_that_grants_nothing_is_said_in_one_line(user: Actor) -> None:
    said = stockade(user, "run", "pwd", cwd=user.home)
    assert said.status == 0 and said.out == "/tmp/scratch\n"
    assert said.err.count("\n") == 1 and "--cwd DIR" in said.err
    assert stockade(user, "run", "--quiet", "pwd", cwd=user.home).err == ""


def test_nothing_of_the_working_directory_is_imported(user: Actor) -> None:
    planted = [user.put(f"{user.workspace}/{name}", "raise SystemExit('planted code ran')\n", 0o644)
               for name in ("json.py", "shutil.py", "stockade.py", "signal.py", "typing.py")]
    # An installed script has its own directory first on the path; -m has the project's.
    script = user.put(f"{user.home}/bin/stockade", "import sys\nfrom stockade.cli import main\nsys.exit(main())\n", 0o755)
    done = user.call([PYTHON, "-B", script, "run", "echo", "fine"], env=environment(user))
    for path in planted:
        user.remove(path)
    assert (done.returncode, done.stdout) == (0, b"fine\n"), done.stderr


# -- on a terminal -------------------------------------------------------------------------------


def terminal(actor: Actor, *words: str) -> Terminal:
    """The command line on a terminal of its own."""
    return Terminal.bare(actor, line(*words), env=environment(actor, NO_COLOR="1"))


def test_the_first_line_on_a_terminal_says_what_is_kept(actor: Actor) -> None:
    with terminal(actor, "run", "--tier", "strict", "--profile", "npm", "true") as screen:
        assert screen.read_until("kept").endswith("stockade: strict · profile net-client npm · net host · 19 promises kept")
        assert screen.wait() == 0
    with terminal(actor, "run", "--quiet", "echo", "only this") as screen:
        assert screen.read_until("\n") == "only this\r\n"


def test_a_failed_command_gets_one_exact_hint(actor: Actor) -> None:
    with terminal(actor, "run", "sh", "-c", "exit 3") as screen:
        seen = screen.read_until("exit 3'")
        assert "hint: if something was missing in the box, this shows it: stockade learn -- sh -c 'exit 3'" in seen
        assert screen.wait() == 3
    with terminal(actor, "run", "sh", "-c", "echo x > .envrc; exit 3") as screen:
        seen = screen.read_until("stockade show ")
        assert ".envrc (created)" in seen and "hint" not in seen
        assert screen.wait() == 3
    actor.remove(f"{actor.workspace}/.envrc")


@requirement("C.terminal_as_without")
def test_one_ctrl_c_is_one_sigint_for_the_command(actor: Actor) -> None:
    with terminal(actor, "run", PYTHON, "-c", f"{COUNT}\nraise SystemExit(6)") as screen:
        assert interrupt(screen).endswith("count 1 .")
        assert screen.wait() == 6


@requirement("C.terminal_as_without")
def test_the_command_line_is_one_job_of_a_shell(actor: Actor) -> None:
    words = " ".join(line("run", "sh", "-c", "'echo sta\"\"rted; read x; echo g\"\"ot $x'"))
    with Terminal.bare(actor, ["/bin/bash", "--norc", "-i"], env=environment(actor, PS1="> ")) as shell:
        shell.type(f"{words}\n".encode())
        shell.read_until("started")
        wait_until(lambda: shell.foreground() != shell.process.pid, "the box has the terminal")
        shell.type(b"\x1a")
        shell.read_until("Stopped")
        shell.type(b"fg\n")
        shell.read_until("read x")
        shell.type(b"line\n")
        shell.read_until("got line")
        shell.type(b"echo status $? .\n")
        assert shell.read_until("status 0 .")


@requirement("C.terminal_as_without")
def test_an_unhandled_ctrl_c_ends_the_command_line_by_sigint(actor: Actor) -> None:
    with terminal(actor, "run", "sh", "-c", "echo ready; exec sleep 60") as screen:
        screen.read_until("ready")
        screen.type(b"\x03")
        assert screen.process.wait(WAIT_S) == -signal.SIGINT


# -- what is not silent --------------------------------------------------------------------------


def test_a_downgrade_is_said_where_nobody_watches(actor: Actor) -> None:
    key = actor.put(f"{actor.home}/.ssh/id_accepted", "key\n")
    words = ("--read", key, "--accept", "fs.credentials", "true")
    said = stockade(actor, "run", *words)
    assert said.status == 0 and said.err.count("\n") == 1
    assert said.err.startswith("stockade: accepted: less than guarded: waived fs.credentials"), said.err
    assert stockade(actor, "run", "--quiet", *words).err == ""
    assert stockade(actor, "run", "true").err == ""
    actor.remove(key)


def test_a_receipt_that_cannot_be_delivered_is_typed_and_125(actor: Actor) -> None:
    for target in ("/dev/full", "sub/r.json"):
        actor.make_dir(f"{actor.workspace}/sub")
        script = f"rm -r sub; ln -s {actor.elsewhere} sub; exit 3"
        said = stockade(actor, "run", "--receipt", target, "sh", "-c", script)
        assert said.status == 125 and said.err.count("\n") == 1, said
        assert said.err.startswith("stockade: report_failed: receipt of run ") and "stockade show " in said.err, said.err
        actor.remove(f"{actor.workspace}/sub")
    assert not actor.host(f"{actor.elsewhere}/r.json").exists()
    command = " ".join(line("run", "--receipt", "-", "true"))
    done = actor.call(["/bin/bash", "-c", f"set -o pipefail; {command} | (exec <&-; sleep 2); echo $?"], env=environment(actor))
    assert done.stdout.strip() == b"125" and b"report_failed" in done.stderr and b"internal" not in done.stderr, done
    done = actor.call(["/bin/sh", "-c", f"exec {command} > /dev/full"], env=environment(actor))
    assert done.returncode == 125 and done.stderr.count(b"\n") == 1 and b"report_failed" in done.stderr, done


def test_a_name_that_is_on_no_readable_part_of_the_path_is_not_found(user: Actor) -> None:
    """A directory of PATH that may not be searched, as after su, is no place to look."""
    shut = user.make_dir(f"{user.elsewhere}/shut", 0o000)
    for path in (f"/root/bin:{shut}:/usr/bin:/bin", f"/usr/bin:/bin:{shut}"):
        said = stockade(user, "run", "no-such-command", env=environment(user, PATH=path))
        assert said.status == 127 and "not_found" in said.err, said
        assert stockade(user, "run", "--quiet", "echo", "found", env=environment(user, PATH=path)).out == "found\n"
    unfit = user.put(f"{user.workspace}/tools/unfit-command", "no program\n", 0o644)
    said = stockade(user, "run", "unfit-command", env=environment(user, PATH=f"{os.path.dirname(unfit)}:/usr/bin:/bin"))
    assert said.status == 126 and "exec_failed" in said.err, said
    user.host(shut).chmod(0o755)


GIT_HINTS = [
    (["config", "user.name", "x"], 4, ".git/config is read-only"), (["remote", "add", "new", "x"], 128, ".git/config"),
    (["config", "--global", "user.name", "x"], 255, "run this outside"),
    (["branch", "--set-upstream-to=other"], 0, "the upstream was not recorded"),
    (["config", "--get", "no.such"], 1, None), (["branch", "--set-upstream-to=none"], 128, None), (["status"], 0, None),
]


@pytest.mark.parametrize(("words", "status", "hint"), GIT_HINTS, ids=[" ".join(words) for words, _, _ in GIT_HINTS])
def test_git_that_could_not_write_its_configuration_gets_a_hint_anywhere(
        actor: Actor, words: list[str], status: int, hint: str | None) -> None:
    actor.call(["git", "branch", "other"], cwd=actor.workspace)
    said = stockade(actor, "run", "git", *words)
    ours = [row for row in said.err.splitlines() if row.startswith("stockade: ")]
    assert said.status == status and len(ours) == (hint is not None), said
    assert hint is None or (ours[0].startswith("stockade: hint: ") and hint in ours[0])
    assert "stockade: " not in stockade(actor, "run", "--quiet", "git", *words).err


def test_the_grant_of_the_git_hint_works(actor: Actor) -> None:
    from stockade.cli.githints import GRANT

    said = stockade(actor, "run", "--quiet", *GRANT.split(), "git", "config", "hint.works", "yes")
    assert said.status == 0, said
    assert actor.call(["git", "config", "hint.works"], cwd=actor.workspace).stdout == b"yes\n"
    actor.call(["git", "config", "--remove-section", "hint"], cwd=actor.workspace)
