"""The log of real boxes: all of them, in one chain, and every change of it named."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from requirements import requirement
from support.actors import PYTHON, Actor
from support.cli import Said, environment, inside, line, stockade
from support.live import wait_until

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas/audit-event.v1.json").read_text())
CHECK = jsonschema.Draft202012Validator(SCHEMA)


@pytest.fixture
def state(actor: Actor) -> Iterator[str]:
    """A state home of the test's own."""
    path = f"{actor.home}/audit-state"
    actor.remove(path)
    yield path
    actor.remove(path)


def said(actor: Actor, state: str, *words: str) -> Said:
    """One command line with that state home."""
    return stockade(actor, *words, env=environment(actor, STOCKADE_HOME=state))


def logged(actor: Actor, state: str, *words: str) -> list[dict[str, Any]]:
    """The events of the log that fit; each is one of the schema."""
    found = [json.loads(line) for line in said(actor, state, "audit", "query", "--json", *words).out.splitlines()]
    for event in found:
        CHECK.validate(event)
        assert event["type"] not in ("audit.unknown", "audit.damaged"), event
    return found


@requirement("audit.complete")
def test_every_box_and_every_refusal_is_in_the_log_once(actor: Actor, state: str) -> None:
    for number in range(6):
        assert said(actor, state, "run", "--quiet", "--tier", ("standard", "strict")[number % 2], "sh", "-c", f"exit {number}").status == number
    assert said(actor, state, "run", "--quiet", "no-such-program").status == 127
    verdict = said(actor, state, "audit", "verify", "--json")
    assert (verdict.status, verdict.json()["whole"]) == (0, True), verdict
    started, finished = logged(actor, state, "--type", "spawn.started"), logged(actor, state, "--type", "spawn.finished")
    assert [event["tiers"]["effective_tier"] for event in started] == ["standard", "strict"] * 3
    assert [event["detail"]["exit_code"] for event in finished] == list(range(6))
    assert {event["run_id"] for event in started} == {event["run_id"] for event in finished}
    decided = logged(actor, state, "--type", "spawn.decided")
    assert [(event["outcome"], event["run_id"]) for event in decided] == [("wrapped", event["run_id"]) for event in started] + \
        [("wrapped", decided[-1]["run_id"]), ("refused", decided[-1]["run_id"])]
    assert len(logged(actor, state)) == verdict.json()["records"] == 1 + 3 * 6 + 2


@requirement("audit.complete")
@pytest.mark.parametrize(("words", "status", "outcome"), [(["true"], 0, "completed"), (["no-such-program"], 127, "refused")])
def test_a_run_without_a_box_is_in_the_log_as_such(actor: Actor, state: str, words: list[str], status: int, outcome: str) -> None:
    assert said(actor, state, "run", "--quiet", "--tier", "off", "--receipt", "/dev/null", *words).status == status
    first, last = logged(actor, state)[1:]
    assert (first["outcome"], first["backend"], first["tiers"]["effective_tier"], last["outcome"]) == ("unconfined", "none", "off", outcome)


REFUSED = {"a path": ["--write", "/usr"], "a socket": ["--allow-socket", "docker"]}


@requirement("audit.complete", "audit.refused")
@pytest.mark.parametrize("case", REFUSED)
def test_what_policy_refuses_is_in_the_log_with_who_asked_for_what(actor: Actor, state: str, case: str) -> None:
    policy = actor.put(f"{actor.home}/.config/stockade/policy.toml", 'deny_grants = ["docker", "/usr"]\n', 0o644)
    try:
        refused = said(actor, state, "run", "--quiet", "--as", "agent", *REFUSED[case], "sh", "-c", "echo ran")
        assert (refused.status, refused.out) == (125, ""), refused
        (event,) = logged(actor, state, "--outcome", "refused", "--since", "1h")
    finally:
        actor.remove(policy)
    assert (event["type"], event["reasons"], event["run_id"], event["origin"]) == ("spawn.decided", ["policy_denied"], None, "outside"), refused
    assert event["request"] == {"argv0": "sh", "argv": None, "cwd": actor.workspace, "tier": "auto"}
    assert event["actor"]["caller"] == "agent" and event["detail"]["message"] in refused.err


@requirement("audit.complete", "audit.refused")
def test_an_invalid_policy_is_a_refusal_in_the_log(actor: Actor, state: str) -> None:
    policy = actor.put(f"{actor.home}/.config/stockade/policy.toml", "min_tier = 7\n", 0o644)
    try:
        assert said(actor, state, "run", "--quiet", "true").status == 125
    finally:
        actor.remove(policy)
    assert [event["reasons"] for event in logged(actor, state)] == [[], ["policy_invalid"]]


@requirement("audit.complete")
def test_trust_is_in_the_log_before_it_counts(actor: Actor, state: str) -> None:
    path = actor.put(f"{actor.workspace}/.stockade.toml", 'read = ["~/elsewhere"]\n', 0o644)
    try:
        assert said(actor, state, "trust", "--yes").status == 0
        (given,) = logged(actor, state, "--type", "trust.granted")
        assert (given["detail"]["path"], given["detail"]["widens"], given["actor"]["caller"]) == (path, ["read: '~/elsewhere'"], "operator")
        assert given["detail"]["sha256"] == hashlib.sha256(actor.host(path).read_bytes()).hexdigest()
        heads = actor.host(f"{state}/audit/log/heads.jsonl").read_text().splitlines()
        assert json.loads(heads[0])["seq"] >= given["seq"]
        assert said(actor, state, "trust", "--revoke").status == 0
        assert len(logged(actor, state, "--type", "trust.revoked")) == 1
        # Where it cannot be recorded it does not count.
        actor.host(f"{state}/audit/log/heads.jsonl").unlink()
        actor.make_dir(f"{state}/audit/log/heads.jsonl")
        denied = said(actor, state, "trust", "--yes")
        assert denied.status == 2 and "audit_unavailable" in denied.err, denied
        grants = said(actor, state, "explain", "--json", "true").json()["grants"]
        assert not [row for row in grants if row["kind"] == "read" and row["value"] == actor.elsewhere]
    finally:
        actor.remove(path)


@requirement("audit.refused")
@pytest.mark.parametrize("words", [["explain"], ["why", "/usr", "--write"]])
def test_a_question_leaves_no_record(actor: Actor, state: str, words: list[str]) -> None:
    said(actor, state, *words, *(["--tier", "strict", "true"] if words == ["explain"] else []))
    assert logged(actor, state) == []


@requirement("audit.refused")
def test_what_a_box_refuses_itself_is_told_to_the_one_outside(actor: Actor, state: str) -> None:
    ask = inside(actor, "run", "--quiet", "--tier", "strict", "--on-persistence", "quarantine", "true")
    run = said(actor, state, "run", "--quiet", "--tier", "standard", "--read", str(actor.stage.lib), *ask)
    assert run.status == 125, run
    told = [json.loads(event["detail"]["data"])["stockade"] for event in logged(actor, state, "--type", "inside.record")]
    assert [(row["decision"], row["code"], row["argv0"], row["requested_tier"]) for row in told] == [("refuse", "nested_unsupported", "true", "strict")]


@requirement("audit.refused")
def test_a_refusal_stands_where_it_cannot_be_recorded(actor: Actor, state: str) -> None:
    actor.make_dir(f"{state}/audit/spool.jsonl")
    actor.host(state).chmod(0o700)
    policy = actor.put(f"{actor.home}/.config/stockade/policy.toml", 'deny_grants = ["/usr"]\n', 0o644)
    try:
        refused = said(actor, state, "run", "--quiet", "--write", "/usr", "true")
    finally:
        actor.remove(policy)
    assert refused.status == 125 and "was not recorded" in refused.err, refused


@requirement("audit.complete")
def test_no_command_runs_of_which_nothing_is_on_record(actor: Actor, state: str) -> None:
    """Whoever is killed as soon as the command does something has said before what was about to run."""
    ran = 0
    for number in range(12):
        mark = actor.host(f"{actor.workspace}/ran-{number}")
        child = actor.spawn(line("run", "--quiet", "--tier", "standard", "/bin/mkdir", mark.name), env=environment(actor, STOCKADE_HOME=state))
        while child.poll() is None and not mark.exists():
            pass
        child.kill()
        child.wait(20)
        ran += mark.exists()
        actor.remove(f"{actor.workspace}/ran-{number}")
    decided = [event for event in logged(actor, state, "--type", "spawn.decided") if event["request"]["argv0"] == "/bin/mkdir"]
    assert ran == 12 == len(decided) and {event["outcome"] for event in decided} == {"wrapped"}
    assert all(event["plan"] and event["tiers"]["requested_tier"] == "standard" and event["run_id"] for event in decided)


@requirement("audit.complete")
def test_a_box_that_was_killed_has_its_start_and_an_end(actor: Actor, state: str) -> None:
    child = actor.spawn(line("run", "--quiet", "sleep", "60"), env=environment(actor, STOCKADE_HOME=state))
    wait_until(lambda: bool(logged(actor, state, "--type", "spawn.started")), "the box lives")
    os.kill(logged(actor, state, "--type", "spawn.started")[0]["actor"]["pid"], signal.SIGKILL)
    child.wait(20)
    said(actor, state, "run", "--quiet", "true")
    started = logged(actor, state, "--type", "spawn.started")
    assert len(started) == 2 and said(actor, state, "audit", "verify").status == 0


@requirement("audit.damage")
def test_one_flipped_bit_is_an_error_with_its_number(actor: Actor, state: str) -> None:
    for _ in range(3):
        said(actor, state, "run", "--quiet", "true")
    assert said(actor, state, "audit", "verify").out.startswith("whole: 10 records")
    path = actor.host(f"{state}/audit/log/00000001.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[5] = lines[5].replace(b'"effective_tier":"guarded"', b'"effective_tier":"stricts"')
    path.write_bytes(b"".join(lines))
    found = said(actor, state, "audit", "verify")
    assert (found.status, found.out.splitlines()[0]) == \
        (1, "damaged: edited at record 6, segment 1, line 6; 5 records before it are whole"), found


@requirement("audit.damage")
def test_a_changed_end_stays_damage_whatever_runs_after_it(actor: Actor, state: str) -> None:
    for _ in range(2):
        said(actor, state, "run", "--quiet", "true")
    assert said(actor, state, "audit", "verify").status == 0
    log = actor.host(f"{state}/audit/log")
    path = log / "00000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"exit_code":0', b'"exit_code":1'))
    (log / "heads.jsonl").unlink()
    said(actor, state, "run", "--quiet", "true")
    found = said(actor, state, "audit", "verify")
    assert (found.status, found.out.partition(" at ")[0]) == (1, "damaged: edited"), found
    assert found.err.startswith("stockade: audit_damaged: segment 00000001.jsonl: "), found
    shown = said(actor, state, "audit", "query", "--json")
    assert shown.status == 0 and len(shown.out.splitlines()) == 7 and "audit_damaged" in shown.err, shown


@requirement("audit.damage")
@pytest.mark.known_gap("no_cryptography_for_accounts")
def test_a_copy_is_whole_by_its_key_and_cannot_be_told_without_its_heads(actor: Actor, state: str) -> None:
    said(actor, state, "run", "--quiet", "true")
    said(actor, state, "audit", "verify")
    key, log = f"{state}/keys/audit.pub", f"{state}/audit/log"
    assert said(actor, state, "audit", "verify", log, "--key", key).status == 0
    actor.put(f"{state}/other.pub", "ab" * 32)
    assert said(actor, state, "audit", "verify", log, "--key", f"{state}/other.pub").status == 2
    heads = actor.host(f"{log}/heads.jsonl")
    whole = heads.read_bytes()
    heads.write_bytes(whole.replace(b'"sig":"', b'"sig":"00', 1))
    assert said(actor, state, "audit", "verify", log, "--key", key).status == 1
    heads.unlink()
    found = said(actor, state, "audit", "verify", log, "--key", key)
    assert (found.status, found.out.partition(":")[0]) == (2, "cannot tell"), found


@requirement("audit.complete")
def test_old_files_of_the_spool_go_once_the_log_has_them(actor: Actor, state: str) -> None:
    said(actor, state, "run", "--quiet", "true")
    spool = actor.host(f"{state}/audit/spool.jsonl")
    old = spool.with_name("spool.jsonl.00000000000000000000000000")
    spool.rename(old)
    os.utime(old, (1, 1))
    said(actor, state, "run", "--quiet", "true")
    assert old.exists() and len(logged(actor, state, "--type", "spawn.started")) == 2
    assert len(logged(actor, state, "--type", "spawn.started")) == 2 and not old.exists() and spool.exists()


@requirement("audit.damage")
def test_a_log_that_was_cut_stays_damage_whatever_runs_after_it(actor: Actor, state: str) -> None:
    for _ in range(2):
        said(actor, state, "run", "--quiet", "true")
    assert said(actor, state, "audit", "verify").status == 0
    path = actor.host(f"{state}/audit/log/00000001.jsonl")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    for status in (0, 3, 4):
        found = said(actor, state, "audit", "verify")
        assert (found.status, found.out.partition(":")[0]) == (1, "damaged"), found
        said(actor, state, "run", "--quiet", "sh", "-c", f"exit {status}")
    shown = logged(actor, state, "--type", "spawn.finished")
    assert [event["detail"]["exit_code"] for event in shown][-2:] == [3, 4]


@requirement("audit.damage")
def test_what_is_no_log_is_not_called_whole(actor: Actor, state: str) -> None:
    empty, hollow = (actor.make_dir(f"{actor.home}/{name}") for name in ("empty", "hollow"))
    actor.put(f"{hollow}/00000001.jsonl", "")
    for where in (["/etc"], [empty], [hollow], []):
        found = said(actor, state, "audit", "verify", *where)
        assert (found.status, found.out.partition(" is in ")[0]) == (2, "cannot tell: no record of a log"), found
    assert said(actor, state, "audit", "verify", empty, "--json").json()["whole"] is False
    said(actor, state, "run", "--quiet", "true")
    assert said(actor, state, "audit", "verify").status == 0


def test_the_last_events_are_printed_in_their_order(actor: Actor, state: str) -> None:
    for number in range(3):
        said(actor, state, "run", "--quiet", "sh", "-c", f"exit {number}")
    lines = [json.loads(text) for text in said(actor, state, "audit", "tail", "-n", "4", "--json").out.splitlines()]
    assert [event["seq"] for event in lines] == [7, 8, 9, 10]
    for number in ("x", "-1", "9" * 20, "9" * 5000, "\u0663"):
        assert said(actor, state, "audit", "tail", "-n", number).status == 2
    for when in ("2026-13-77", "2026-11-30T12+99:00"):
        assert said(actor, state, "audit", "query", "--since", when).status == 2


@requirement("audit.unsigned")
def test_without_the_package_heads_are_unsigned_and_verify_says_so(actor: Actor, state: str) -> None:
    # An interpreter that looks for packages nowhere, so that none of the host's signs.
    def bare(*words: str) -> Said:
        argv = inside(actor, *words)
        done = actor.call([argv[0], "-S", *argv[1:]], env=environment(actor, STOCKADE_HOME=state))
        return Said(done.returncode, done.stdout.decode(), done.stderr.decode())

    assert bare("run", "--quiet", "true").status == 0
    found = bare("audit", "verify")
    assert found == Said(0, "whole: 4 records\n  no head is signed by a key that is known here: nobody else can check this log\n", ""), found
    heads = bare("audit", "verify", "--json").json()["heads"]
    assert heads["signed"] == 0 and heads["others"] >= 1, heads
    assert json.loads(bare("audit", "anchor").out)["sig"] is None
    assert not actor.host(f"{state}/keys/audit.key").exists()


SAYS = """
import json, socket, sys
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect("/run/stockade/box.sock")
link.send(json.dumps({"schema": "stockade.receipt.v1", "record": "launch", "origin": "outside", "run_id": "0" * 26,
                      "effective_tier": "strict", "forged": "by-a-box"}).encode())
"""


@requirement("audit.inside")
@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_what_a_box_says_is_of_the_inside_and_nothing_else_of_it_gets_there(actor: Actor, state: str, tier: str) -> None:
    assert said(actor, state, "run", "--quiet", "--tier", tier, PYTHON, "-c", SAYS).status == 0
    spoken = logged(actor, state, "by-a-box")
    assert [(event["type"], event["origin"]) for event in spoken] == [("inside.record", "inside")], spoken
    assert len(logged(actor, state, "--type", "spawn.started")) == 1


DRIVES = SAYS.replace("json.dumps(", 'json.dumps(ensure_ascii=False, obj=').replace("by-a-box", "by-a-box\\x9b31m\\u202e\\x7f\\x1b[2J\\x85")


@requirement("audit.inside")
def test_what_a_box_says_drives_no_terminal(actor: Actor, state: str) -> None:
    assert said(actor, state, "run", "--quiet", "--tier", "standard", PYTHON, "-c", DRIVES).status == 0
    (spoken,) = logged(actor, state, "by-a-box")
    assert all(mark in spoken["detail"]["data"] for mark in "\x9b\u202e\x7f"), spoken
    odd = f"{actor.home}/odd\x9b\x7f\u202e"
    said(actor, state, "run", "--quiet", "--tier", "standard", odd)
    for words in (["query"], ["query", "--json"], ["export"], ["export", "--format", "csv"], ["tail"], ["tail", "--json"]):
        found = said(actor, state, "audit", *words)
        assert found.status == 0 and len(found.out.splitlines()) >= 4, found
        assert not set("\x9b\x7f\u202e\x85\x1b") & set(found.out), words


@requirement("audit.inside")
@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_a_box_neither_reads_nor_writes_the_log(actor: Actor, state: str, tier: str) -> None:
    said(actor, state, "run", "--quiet", "true")
    assert said(actor, state, "audit", "verify").status == 0
    log = f"{state}/audit/log/00000001.jsonl"
    line = f"cat {log}; echo forged >> {log}; rm -f {log}; ls {state}; mv {state} {state}.away; true"
    assert actor.host(log).exists()
    run = said(actor, state, "run", "--tier", tier, "sh", "-c", line)
    assert run.status == 0 and run.out == "", run
    found = said(actor, state, "audit", "verify", "--json")
    assert found.json()["whole"] and "forged" not in actor.host(log).read_text(), found


@requirement("audit.inside")
def test_a_state_home_that_others_may_enter_is_closed_by_the_next_start(actor: Actor, state: str) -> None:
    said(actor, state, "run", "--quiet", "true")
    for path in (state, f"{state}/audit", f"{state}/keys"):
        actor.host(path).chmod(0o777)
    assert said(actor, state, "run", "--quiet", "--tier", "strict", "true").status == 0
    assert {actor.host(path).stat().st_mode & 0o7777 for path in (state, f"{state}/audit", f"{state}/keys")} == {0o700}


def test_no_secret_of_a_command_line_or_path_is_in_the_log(actor: Actor, state: str) -> None:
    token = "ghp_" + "a1B2c3D4e5" * 4
    said(actor, state, "run", "--quiet", "--net", "none", f"{actor.home}/{token}/tool", "--token", token)
    said(actor, state, "run", "--quiet", "--tier", "strict", PYTHON, "-c", SAYS.replace("by-a-box", token))
    text = said(actor, state, "audit", "export").out
    assert token not in text and "[redacted]" in text


def test_an_answer_without_the_newest_records_says_so(actor: Actor, state: str) -> None:
    said(actor, state, "run", "--quiet", "true")
    assert len(logged(actor, state)) == 4
    said(actor, state, "run", "--quiet", "true")
    held = os.open(actor.host(f"{state}/audit/log/ingest.lock"), os.O_RDWR)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        for words in (["verify", "--json"], ["tail", "--json"]):
            found = said(actor, state, "audit", *words)
            assert "the newest records are missing" in found.err, found
    finally:
        os.close(held)
    assert len(logged(actor, state)) == 7


@requirement("audit.damage")
def test_doctor_says_that_the_log_takes_no_more(actor: Actor, state: str) -> None:
    said(actor, state, "run", "--quiet", "true")
    said(actor, state, "audit", "verify")
    path = actor.host(f"{state}/audit/log/00000001.jsonl")
    whole = path.read_bytes()
    assert said(actor, state, "doctor", "--json").json()["faults"] == []
    path.write_bytes(whole.replace(b'"exit_code":0', b'"exit_code":1'))
    (fault,) = said(actor, state, "doctor", "--json").json()["faults"]
    assert fault["code"] == "audit_damaged" and "verify" in fault["hint"], fault


@pytest.mark.parametrize("words", [["--app", "\udcff"], ["\udcff"], ["--plan", "\udcff"], ["--run", "\udcff"]])
def test_a_question_that_no_record_can_answer_is_a_usage_error(actor: Actor, state: str, words: list[str]) -> None:
    found = said(actor, state, "audit", "query", *words)
    assert (found.status, found.err.partition(": ")[2].partition(":")[0]) == (2, "usage"), found
