"""The other commands: answers, exit status, and one JSON document each."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from requirements import requirement
from support.actors import Actor
from support.cli import environment, line, start, stockade
from support.live import wait_until
from support.terminal import Terminal

LATER = ("mcp", "lint", "gateway", "app")


@pytest.mark.parametrize("word", LATER)
def test_a_command_of_a_later_version_says_so_in_one_line(user: Actor, word: str) -> None:
    said = stockade(user, word, "anything", "--json")
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith(f"stockade: unknown_command: command '{word}': this version does not have it")
    assert word not in stockade(user, "--help").out.split()


@requirement("F.unknown_names")
@pytest.mark.parametrize(("words", "code", "nearest"), [
    (["rnu"], "unknown_command", "'run'"), (["plan", "lst"], "unknown_command", "'list'"),
    (["ps", "--jsn"], "unknown_option", "'--json'"), (["doctor", "--require", "stict"], "unknown_tier", "'strict'"),
    (["profile", "show", "nmp"], "unknown_profile", "'npm'"), (["show", "nothing-ran"], "unknown_run", "hint"),
    (["plan", "show", "abcdefgh"], "unknown_plan", "hint"), (["completion", "basch"], "usage", "'bash'"),
    (["doctor", "--dry-run"], "usage", "--fix"), (["ps", "--bogus"], "unknown_option", "see stockade ps --help"),
    (["stop"], "usage", "RUN"), (["ps", "extra"], "usage", "'extra'"), (["cache", "clear"], "usage", "--all"),
    (["explain", "--tier", "strct", "true"], "unknown_tier", "'strict'"), (["why"], "usage", "PATH"),
])
def test_what_is_not_understood_is_one_typed_line_and_2(user: Actor, words: list[str], code: str, nearest: str) -> None:
    said = stockade(user, *words)
    assert (said.status, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith(f"stockade: {code}: ") and nearest in said.err, said.err


def test_no_command_prints_the_help_and_a_wrong_answer(user: Actor) -> None:
    for words in ([], ["plan"]):
        said = stockade(user, *words)
        assert said.status == 2 and said.out == "" and said.err.startswith("stockade")
    assert stockade(user, "--version").out.startswith("stockade 0.")


DOCUMENTS = [
    (["explain", "--json", "true"], "stockade.explain.v1"), (["why", "--json", "/etc/hostname"], "stockade.why.v1"),
    (["doctor", "--json"], "stockade.doctor.v1"), (["ps", "--json"], "stockade.ps.v1"),
    (["show", "--json", "last"], "stockade.receipt.v1"), (["plan", "list", "--json"], "stockade.plans.v1"),
    (["plan", "gc", "--json", "--dry-run"], "stockade.plan-gc.v1"), (["cache", "list", "--json"], "stockade.caches.v1"),
    (["cache", "clear", "--json", "--all", "--dry-run"], "stockade.cache-clear.v1"),
    (["profile", "list", "--json"], "stockade.profiles.v1"), (["profile", "show", "--json", "npm"], "stockade.profile-show.v1"),
    (["profile", "check", "--json", "npm"], "stockade.profile-check.v1"),
    (["policy", "show", "--json"], "stockade.policy-show.v1"), (["policy", "check", "--json"], "stockade.policy-check.v1"),
    (["audit", "verify", "--json"], "stockade.audit-verify.v1"), (["audit", "stats", "--json"], "stockade.audit-stats.v1"),
]


@pytest.mark.parametrize(("words", "schema"), DOCUMENTS, ids=[schema for _, schema in DOCUMENTS])
def test_json_is_one_document_with_a_schema(actor: Actor, words: list[str], schema: str) -> None:
    stockade(actor, "run", "--quiet", "true")
    said = stockade(actor, *words)
    assert (said.status, said.err) == (0, "")
    assert next(iter(said.json())) == "schema" and said.json()["schema"] == schema


def test_a_fault_of_the_state_home_is_one_line(user: Actor) -> None:
    said = stockade(user, "ps", env=environment(user, STOCKADE_HOME="relative"))
    assert (said.status, said.err.count("\n")) == (2, 1) and "state_home_invalid" in said.err
    said = stockade(user, "run", "true", env=environment(user, STOCKADE_HOME="relative"))
    assert said.status == 125


def test_a_reader_that_goes_away_ends_a_listing_quietly(user: Actor) -> None:
    command = shlex.join(["/usr/bin/python3", "-B", "-m", "stockade", "profile", "show", "npm"])
    done = user.call(["/bin/bash", "-c", f"set -o pipefail; {command} | true; echo $?"], env=environment(user))
    assert done.stderr == b"" and done.stdout.strip() in (b"0", b"141")


def test_colour_is_for_terminals_and_for_those_who_force_it(user: Actor) -> None:
    assert "\x1b[" not in stockade(user, "explain", "true").out
    assert "\x1b[" in stockade(user, "explain", "true", env=environment(user, FORCE_COLOR="1")).out
    assert "\x1b[" not in stockade(user, "explain", "true", env=environment(user, FORCE_COLOR="1", NO_COLOR="1")).out


# -- boxes ---------------------------------------------------------------------------------------


@pytest.fixture
def sleeper(actor: Actor) -> Iterator[subprocess.Popen[bytes]]:
    """A box that lives until it is stopped."""
    with start(actor, "run", "--", "sh", "-c", "echo ready; exec sleep 60", stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        yield child
        child.kill()


def boxes(actor: Actor) -> dict[int, dict[str, Any]]:
    """The boxes of ``ps`` by the pid of their supervisor."""
    return {row["pid"]: row for row in stockade(actor, "ps", "--json").json()["boxes"]}


def test_a_live_box_is_listed_shown_and_stopped(actor: Actor, sleeper: subprocess.Popen[bytes]) -> None:
    row = boxes(actor)[sleeper.pid]
    assert (row["tier"], row["net"], row["command"], row["cwd"]) == ("guarded", "host", "sh", actor.workspace)
    shown = stockade(actor, "show", "--json", row["run_id"]).json()
    assert shown["launch"]["run_id"] == row["run_id"] and shown["end"] is None and shown["alive"]
    assert stockade(actor, "stop", row["run_id"]).status == 0
    assert sleeper.wait(20) == -signal.SIGTERM
    assert sleeper.pid not in boxes(actor)
    assert stockade(actor, "show", "--json", row["run_id"]).json()["end"]["signal"] == signal.SIGTERM
    again = stockade(actor, "stop", row["run_id"])
    assert again.status == 1 and "does not live" in again.out


def test_a_box_that_ignores_sigterm_is_killed_after_the_grace_time(actor: Actor) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    with start(actor, "run", "--", "sh", "-c", script, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        said = stockade(actor, "stop", "--grace", "300ms", "--json", boxes(actor)[child.pid]["run_id"])
    assert (said.status, said.json()["result"], child.returncode) == (0, "killed", -signal.SIGKILL)


def test_a_supervisor_that_was_killed_is_not_called_alive(actor: Actor, sleeper: subprocess.Popen[bytes]) -> None:
    run_id = boxes(actor)[sleeper.pid]["run_id"]
    sleeper.kill()
    sleeper.wait(20)
    assert all(row["run_id"] != run_id for row in boxes(actor).values())
    assert "no end record" in stockade(actor, "show", run_id).out


def test_damaged_and_forged_records_are_left_out(user: Actor) -> None:
    stockade(user, "run", "--quiet", "true")
    spool = user.host(f"{user.home}/.local/state/stockade/audit/spool.jsonl")
    before = stockade(user, "show", "--json", "last").json()["launch"]["run_id"]
    fake = json.dumps({"schema": "stockade.receipt.v1", "record": "launch", "run_id": "7" + "Z" * 25, "origin": "outside"})
    inside = '{"len":%06d,' + fake[1:].replace('"outside"', '"inside"')
    lines = ["{\"len\":000010,\"schema\":\"x\"}", "{broken", fake, inside % (len(inside) + 2), '{"len":000999,' + fake[1:]]
    with open(spool, "a", encoding="utf-8") as stream:
        stream.write("\n" + "\n".join(lines) + "\n")
    assert stockade(user, "show", "--json", "last").json()["launch"]["run_id"] == before


# -- explain, plans, why -------------------------------------------------------------------------


def test_explain_says_where_every_value_comes_from(actor: Actor) -> None:
    found = stockade(actor, "explain", "--json", "--tier", "strict", "--profile", "npm", "--write", ".", "true",
                     ).json()
    values = {name: (item["value"], item["origin"]) for name, item in found["decision"]["values"].items()}
    assert values["tier"] == ("strict", "argument") and values["net"][0] == "host" and "npm" in values["net"][1]
    assert {"kind": "write", "value": actor.workspace, "origin": "argument"} in found["grants"]
    assert [row["state"] for row in found["promises"]] == ["kept"] * 19
    assert found["answer"] == "wrap" and len(found["plan"]) == 64


def test_explain_says_in_words_what_its_numbers_mean(actor: Actor) -> None:
    said = stockade(actor, "explain", "--tier", "strict", "true")
    head = said.out.splitlines()[0]
    assert "row D2 of the decision table: namespaces keeps what strict promises" in head
    numbers = set(re.findall(r"steps? (\d)(?: (?:to|and) (\d))?\)", said.out))
    assert numbers == {("1", "3"), ("4", "5"), ("6", ""), ("8", "")}
    assert "1 request, 2 caller class, 3 policy, 4 where this process is" in said.out


def test_explain_lists_toolchains_and_says_when_there_is_no_such_command(user: Actor) -> None:
    tools = user.put(f"{user.home}/tools/bin/tool", "#!/bin/sh\n", 0o755)
    env = environment(user, PATH=f"{os.path.dirname(tools)}:/usr/bin:/bin")
    found = stockade(user, "explain", "--json", "--tier", "strict", "tool", env=env).json()
    shown = {row["value"] for row in found["grants"] if row["kind"] == "toolchain"}
    # The package itself is shown, too; whatever toolchain the home has besides is one.
    assert {os.path.dirname(tools), f"{user.stage.lib}/stockade"} <= shown and f"{user.home}/.ssh" not in shown
    assert found["notes"] == []
    said = stockade(user, "explain", "no-such-command", env=env)
    assert "note: no-such-command is not installed on this host" in said.out
    user.remove(f"{user.home}/tools")


def test_explain_shows_the_environment_without_a_value(user: Actor) -> None:
    env = environment(user, GITHUB_TOKEN="needle-one", INNOCENT="ghp_" + "a" * 36, PLAIN="needle-two")
    said = stockade(user, "explain", "--json", "true", env=env)
    dropped = {row["name"]: row["rule"] for row in said.json()["environment"]["dropped"]}
    assert dropped["GITHUB_TOKEN"] == "name" and dropped["INNOCENT"].startswith("value: ")
    assert "PLAIN" in said.json()["environment"]["kept"]
    assert "needle" not in said.out and "ghp_" not in said.out


def test_a_launch_line_that_is_refused_is_1_and_nothing_for_a_shell_to_run(user: Actor) -> None:
    """``eval "$(stockade explain --argv ...)"`` must not run an answer in words."""
    said = stockade(user, "explain", "--argv", "--net", "example.com", "true")
    assert (said.status, said.out, said.err.count("\n")) == (1, "", 1) and said.err.startswith("stockade: refused: net_unsupported: ")


@pytest.mark.parametrize(("words", "code"), [
    (["--net", "example.com", "true"], "net_unsupported"), (["--read", "/no/such/place", "true"], "source_missing"),
    (["--allow", "userns", "true"], "grant_unsupported"), (["--read", "~/.ssh/id_k", "true"], "grant_voids_tier"),
])
def test_explain_of_a_refusal_is_1_and_names_the_code(user: Actor, words: list[str], code: str) -> None:
    user.put(f"{user.home}/.ssh/id_k", "needle")
    said = stockade(user, "explain", "--json", *words)
    assert said.status == 1 and said.json()["answer"] == "refuse" and said.json()["refused"]["code"] == code
    said = stockade(user, "explain", *words)
    assert said.status == 1 and said.out.startswith(f"refuse: {code}: ")


def test_a_launch_line_works_any_number_of_times_and_its_plan_is_in_the_store(actor: Actor) -> None:
    said = stockade(actor, "explain", "--argv", "--tier", "strict", "--", "sh", "-c", "echo 'a b'; exit 9")
    assert said.status == 0 and said.out.count("\n") == 1
    for _ in range(2):
        done = actor.call(["/bin/sh", "-c", said.out])
        assert (done.returncode, done.stdout) == (9, b"a b\n")
    words = shlex.split(said.out)
    digest = words[words.index("--plan") + 1]
    assert digest in [row["digest"] for row in stockade(actor, "plan", "list", "--json").json()["plans"]]
    plan = stockade(actor, "plan", "show", digest[:12]).json()
    assert plan["schema"] == "stockade.plan.v1" and plan["requested_tier"] == "strict"
    assert digest not in stockade(actor, "plan", "gc", "--json").json()["removed"]
    assert digest in stockade(actor, "plan", "gc", "--json", "--older-than", "1ms").json()["removed"]
    assert actor.call(["/bin/sh", "-c", said.out]).returncode == 125


def why(actor: Actor, *words: str) -> dict[str, Any]:
    """The answer of ``why``; its status agrees with it."""
    said = stockade(actor, "why", "--json", *words)
    assert said.out, said
    assert said.status == (0 if said.json()["allowed"] else 1), said
    return said.json()


def test_why_names_the_promise_the_entry_and_a_grant_that_works(actor: Actor) -> None:
    key = actor.put(f"{actor.home}/.ssh/id_ed25519", "needle")
    found = why(actor, key)
    assert (found["allowed"], found["promise"], found["entry"]["list"]) == (False, "fs.credentials", "credentials")
    # The grant is exact: with it, and only with it, the file can be read.
    assert stockade(actor, "run", "cat", key).status != 0
    assert stockade(actor, "run", *found["grant"], "cat", key).out == "needle"
    assert found["grant"][0] == "--read", found
    assert why(actor, *found["grant"], key)["allowed"]
    actor.remove(key)


CASES = [
    (["/etc/hostname"], True, None), (["--write", "."], True, None), (["--write", "README"], True, None),
    (["--write", "/etc/hostname"], False, "fs.write_roots"), (["--write", ".git/hooks/pre-push"], False, "fs.persistence"),
    (["--write", ".git/config"], False, "fs.persistence"), (["--tier", "strict", "~/notes"], False, "fs.home"),
    (["--tier", "strict", "/opt/nothing"], False, "fs.system"), (["--tier", "strict", "/usr/bin/env"], True, None),
    (["--tier", "strict", ".env"], False, "fs.workspace_secrets"), ([".env"], True, None),
    (["~/.local/state/stockade/keys"], False, "fs.own_state"), (["--hide", "README", "README"], False, None),
    (["example.com"], True, "net.policy"), (["--tier", "strict", "example.com:443"], False, "net.policy"),
    (["/proc/1/environ"], False, "proc.invisible"), (["--tier", "off", "~/.ssh"], True, None),
]


@pytest.mark.parametrize(("words", "allowed", "promise"), CASES, ids=[" ".join(words) for words, _, _ in CASES])
def test_why_answers_as_the_box_would(actor: Actor, words: list[str], allowed: bool, promise: str | None) -> None:
    for path in (f"{actor.home}/notes", f"{actor.workspace}/.env"):
        actor.put(path, "text", 0o644)
    found = why(actor, *words)
    assert (found["allowed"], found["promise"]) == (allowed, promise), found
    if found["grant"]:
        flag = ["--write"] if "--write" in words and words[-2:-1] == ["--write"] else []
        tier = words[:2] if words[0] == "--tier" else []
        # A path that a grant opens for writing is asked for with the grant in place of the flag.
        if "--write" not in found["grant"]:
            assert why(actor, *tier, *found["grant"], *flag, words[-1])["allowed"]


def test_why_of_a_guarded_file_names_the_allow_grant(actor: Actor) -> None:
    assert why(actor, "--write", ".git/config")["grant"] == ["--allow", "git-config", "--accept", "fs.persistence"]


def test_why_of_a_name_that_does_not_exist_says_that_no_grant_can_be_tried(actor: Actor) -> None:
    said = stockade(actor, "why", "~/.ssh/id_of_nobody")
    assert said.status == 1 and "grant   none for a name that does not exist" in said.out, said


# -- caches, profiles, trust ---------------------------------------------------------------------


def test_a_cache_that_a_live_box_uses_stays(actor: Actor) -> None:
    script = "mkdir -p ~/.npm && echo x > ~/.npm/needle && echo ready && exec sleep 60"
    with start(actor, "run", "--profile", "npm", "--", "sh", "-c", script, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        mine = [row for row in stockade(actor, "cache", "list", "--json").json()["caches"] if "npm" in row["caches"]]
        # Other boxes of the account may have left one, too.
        identity = next(row["id"] for row in mine if row["size_bytes"] > 0 and row["in_use"])
        said = stockade(actor, "cache", "clear", identity)
        assert said.status == 1 and "a live box uses it" in said.out
        child.kill()
    wait_until(lambda: stockade(actor, "cache", "clear", identity).status == 0, "the cache is free")
    assert all(row["id"] != identity for row in stockade(actor, "cache", "list", "--json").json()["caches"])


def test_an_answer_does_not_send_back_to_the_same_command(user: Actor) -> None:
    bad = user.put(f"{user.home}/worse.toml", "this is no toml\n", 0o644)
    assert "stockade profile check" not in stockade(user, "profile", "check", bad).out
    stockade(user, "run", "--quiet", "true")
    assert len(stockade(user, "show", "nothing-ran").err) < 200
    for words in (["--net", "example.com"], ["--publish", "80"]):
        said = stockade(user, "run", *words, "true").err
        hint = said.split("(hint: ")[1].rstrip(")\n")
        assert said.count(hint) == 1, said


def test_a_profile_file_is_checked_with_file_and_line(user: Actor) -> None:
    good = user.put(f"{user.home}/good.toml", 'schema = "profile.v1"\ndescription = "x"\nextends = ["npm"]\n', 0o644)
    bad = user.put(f"{user.home}/bad.toml", 'schema = "profile.v1"\ndescription = "x"\nreed = ["/x"]\n', 0o644)
    assert stockade(user, "profile", "check", good).status == 0
    said = stockade(user, "profile", "check", bad)
    assert said.status == 1 and "bad.toml' line 3" in said.out and "'read'" in said.out


def test_trust_shows_what_widens_and_ends_with_an_edit(user: Actor, tmp_path: Any) -> None:
    path = f"{user.workspace}/.stockade.toml"
    user.put(path, 'tier = "standard"\nread = ["~/elsewhere"]\nhide = ["./README"]\n', 0o644)
    tier = ("explain", "--json", "true")

    def read_grants() -> list[str]:
        return [row["value"] for row in stockade(user, *tier).json()["grants"] if row["kind"] == "read"]

    try:
        assert read_grants() == []
        asked = stockade(user, "trust")
        assert asked.status == 1 and "read: '~/elsewhere'" in asked.out and "--yes" in asked.out
        assert stockade(user, "trust", "--yes").status == 0 and read_grants() == [user.elsewhere]
        user.put(path, 'tier = "standard"\nread = ["~/elsewhere", "~/more"]\n', 0o644)
        assert read_grants() == []
        assert '+read = ["~/elsewhere", "~/more"]' in stockade(user, "trust").out
        assert stockade(user, "trust", "--yes", "--json").json()["result"] == "trusted"
        assert stockade(user, "trust", "--revoke").status == 0 and read_grants() == []
    finally:
        user.remove(path)


def test_a_project_file_cannot_write_to_the_terminal_of_the_one_who_reads_it(user: Actor) -> None:
    path = f"{user.workspace}/.stockade.toml"
    user.put(path, '# \x1b[2J\x1b[1A\u202e hidden\nread = ["~/\\u001b[8mx"]\n'.replace("\x1b", "\u2066"), 0o644)
    said = stockade(user, "trust")
    user.remove(path)
    assert "\u2066" not in said.out and "\u202e" not in said.out and "\x1b" not in said.out
    assert "\\u202e" in said.out


def test_a_person_is_asked_and_no_is_the_default(user: Actor) -> None:
    path = user.put(f"{user.workspace}/.stockade.toml", 'read = ["~/elsewhere"]\n', 0o644)
    words = ["/usr/bin/python3", "-B", "-m", "stockade", "trust"]
    for answer, status in ((b"\n", 1), (b"y\n", 0)):
        with Terminal.bare(user, words, env=environment(user, NO_COLOR="1")) as screen:
            screen.read_until("[y/N] ")
            screen.type(answer)
            assert screen.wait() == status
    stockade(user, "trust", "--revoke")
    user.remove(path)


def test_trust_calls_nothing_that_only_narrows_a_widening(user: Actor) -> None:
    path = f"{user.workspace}/.stockade.toml"
    user.put(path, 'tier = "strict"\nnet = "none"\nhide = ["./README"]\n', 0o644)
    said = stockade(user, "trust")
    assert "asks for nothing that could widen a box" in said.out.splitlines()[0], said
    user.put(path, 'tier = "guarded"\nnet = "none"\n', 0o644)
    said = stockade(user, "trust")
    assert "asks for 1 setting that may widen a box" in said.out and "  tier = 'guarded'" in said.out
    user.remove(path)


# -- doctor --------------------------------------------------------------------------------------


def test_doctor_answers_with_real_boxes(actor: Actor) -> None:
    found = stockade(actor, "doctor", "--json").json()
    assert found["best_tier"] == "strict" and len(found["trials"]) == 6
    assert all(row["good"] and not row["lost"] for row in found["trials"])
    assert found["applied"] == [] and found["dry_run"] is False
    assert stockade(actor, "doctor", "--fix", "--dry-run", "--json").json()["dry_run"] is True
    said = stockade(actor, "doctor", "--require", "guarded")
    assert said.status == 0 and said.out.startswith("good: ")


def test_doctor_in_a_box_sends_its_reader_outside(actor: Actor) -> None:
    line = f"PYTHONPATH={actor.stage.lib} exec /usr/bin/python3 -B -m stockade doctor --json"
    said = stockade(actor, "run", "--quiet", "sh", "-c", line)
    found = said.json()
    assert said.status == 0 and found["place"] == {"where": "box", "tier": "guarded"}
    assert [fix["commands"] for fix in found["fixes"]] == [["# on the host, outside the box: stockade doctor"]]
    assert "inside a guarded box, run " in found["fixes"][0]["why"]
    assert all(trial["good"] for trial in found["trials"]), "boxes start inside the box"
    said = stockade(actor, "run", "--quiet", "sh", "-c", line.replace("doctor --json", "ps"))
    assert said.out == "no box can be seen from inside a box\n"


@requirement("F.missing_sandbox_is_named")
def test_doctor_names_what_the_kernel_refuses_and_a_remedy(user: Actor) -> None:
    """The kernel answers a user namespace with EPERM, as a locked host does."""
    refused = ("clone:EPERM:0:0x10000000:0x10000000", "unshare:EPERM:0:0x10000000:0x10000000")
    locked = [str(user.stage.bin / "fault_loader"), *refused, "--"]
    env = environment(user, STOCKADE_HOME=f"{user.home}/doctor-state")
    said = stockade(user, "doctor", "--fix", before=locked, env=env)
    user.remove(f"{user.home}/doctor-state")
    assert said.status == 1 and said.out.startswith("strict is not kept here"), said
    assert "userns_denied" in said.out and "remedy: " in said.out and said.err == ""


def test_an_invalid_policy_is_named_by_doctor_and_cannot_tell(user: Actor) -> None:
    path = user.put(f"{user.home}/.config/stockade/policy.toml", "min_tier = 'paranoid'\n", 0o644)
    said = stockade(user, "doctor")
    user.remove(path)
    assert said.status == 2 and said.out.startswith("cannot tell") and "policy_invalid" in said.out


# -- help and completion -------------------------------------------------------------------------


def test_completion_loads_in_bash_and_offers_what_the_parser_takes(user: Actor) -> None:
    script = stockade(user, "completion", "bash").out
    probe = """
offer() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _stockade; echo "${COMPREPLY[*]}"; }
offer stockade ru
offer stockade run --ti
offer stockade run --tier st
offer stockade plan ''
offer stockade run --allow-socket ssh
offer stockade completion f
"""
    done = user.call(["/bin/bash", "--norc", "-euc", script + probe])
    assert done.stderr == b""
    lines = done.stdout.decode().splitlines()
    assert lines[:3] == ["run", "--timeout --tier", "standard strict"] or lines[:3] == ["run", "--tier --timeout", "standard strict"]
    assert "list show gc" in lines[3] and lines[4:] == ["ssh-agent", "fish"]
    for shell, mark in (("zsh", "#compdef stockade"), ("fish", "complete -c stockade")):
        assert mark in stockade(user, "completion", shell).out


def test_the_state_home_is_made_private(user: Actor) -> None:
    state = f"{user.home}/fresh-state"
    stockade(user, "run", "--quiet", "true", env=environment(user, STOCKADE_HOME=state))
    assert os.stat(user.host(state)).st_mode & 0o777 == 0o700
    user.remove(state)


@pytest.mark.parametrize(("words", "status"), [
    (("--version",), 2), (("--help",), 2), (("doctor",), 2), (("doctor", "--json"), 2), (("policy", "show"), 2), (("ps", "--json"), 2),
    (("explain", "true"), 2), (("prove", "--help"), 2), (("run", "--help"), 125), (("policy", "nonsense"), 2),
])
def test_an_answer_that_nobody_takes_is_one_line_and_no_status_of_an_answer(actor: Actor, words: tuple[str, ...], status: int) -> None:
    full = actor.call(["/bin/sh", "-c", 'exec "$@" > /dev/full', "sh", *line(*words)], env=environment(actor))
    said = full.stderr.decode()
    assert (full.returncode, said.count("\n")) == (status, 1), said
    assert said.startswith("stockade: unknown_command: " if "nonsense" in words else "stockade: output_failed: standard output: "), said
    # The twin: to somebody who takes it.
    assert stockade(actor, *words).status in ((2,) if "nonsense" in words else (0, 1))


def test_a_reader_that_is_gone_gets_no_traceback(actor: Actor) -> None:
    """The pipe has no reader before anything is written; help is printed before SIGPIPE ends anybody."""
    script = 'exec 3<> "$0"; exec 4> "$0"; exec 3>&-; exec "$@" >&4'
    pipe = f"{actor.workspace}/nobody-reads"
    assert actor.call(["mkfifo", pipe]).returncode == 0
    done = actor.call(["/bin/sh", "-c", script, pipe, *line("--version")], env=environment(actor))
    actor.remove(pipe)
    assert done.returncode == 2 and done.stderr == b"stockade: output_failed: standard output: cannot be written (EPIPE)" \
        b" (hint: make room where standard output goes, or keep its reader alive)\n", done
