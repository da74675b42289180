"""``stockade prove``: nothing is broken here, a weakened box is found out, and nothing stays."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from requirements import requirement
from support.actors import PYTHON, Actor
from support.alone import HOSTS, filtered
from support.cli import environment, line, stockade
from support.live import wait_until

TIERS = ("standard", "guarded", "strict")
SCHEMA = json.loads((Path(__file__).parents[2] / "schemas/prove.v1.json").read_text(encoding="utf-8"))
# The kernel may let nobody type into a terminal (dev.tty.legacy_tiocsti=0); then nothing is shown.
MAY_BE_IDLE = {"tty.injection"}
PLACES = ("/var/tmp", "/tmp", "/dev/shm")


def programs(actor: Actor) -> list[int]:
    """Processes of the attack program and of its victim, from this stage's copy."""
    found = []
    for name in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes() if name.isdigit() else b""
        except OSError:
            continue
        if f"{actor.stage.lib}/stockade/prove/".encode() in words:
            found.append(int(name))
    return found


def traces(actor: Actor) -> list[str]:
    """Everything of a proof that is still there: files, processes, System V objects of the account."""
    left = [str(path) for place in PLACES for path in actor.host(place).glob("stockade-prove-*")]
    left += [f"process {pid}" for pid in programs(actor)]
    for kind in ("shm", "sem", "msg") if not actor.is_root else ():
        rows = [line.split() for line in Path(f"/proc/sysvipc/{kind}").read_text(encoding="ascii").splitlines()]
        owner = rows[0].index("cuid")
        left += [f"{kind} {row[1]}" for row in rows[1:] if int(row[owner]) == actor.uid]
    return left


def states(document: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {trial["name"]: {row["id"]: row["state"] for row in trial["promises"]} for trial in document["tiers"]}


@requirement("prove.nothing_broken", "prove.leaves_nothing")
def test_every_promise_holds_here_and_nothing_stays(actor: Actor) -> None:
    before = sorted(str(path) for path in actor.host(actor.home).iterdir())
    said = stockade(actor, "prove", "--json")
    document = said.json()
    jsonschema.validate(document, SCHEMA)
    assert (said.status, document["answer"]) == (0, "nothing_broken"), said.err
    found = states(document)
    assert set(found) == set(TIERS) and len(found["strict"]) == 19
    idle = {promise for rows in found.values() for promise, state in rows.items() if state == "not_tried"}
    assert idle <= MAY_BE_IDLE and {state for rows in found.values() for state in rows.values()} <= {"kept", "not_tried"}
    assert {trial["effective_tier"] for trial in document["tiers"]} == set(TIERS)
    wait_until(lambda: traces(actor) == [], "everything is cleared away")
    assert sorted(str(path) for path in actor.host(actor.home).iterdir()) == before


@requirement("prove.nothing_broken")
def test_numbers_of_processes_that_a_box_has_too_confuse_nothing(user: Actor) -> None:
    """In a container numbers begin anew, and the attacked process has that of a process in the box."""
    container = ["bwrap", "--dev-bind", "/", "/", "--proc", "/proc", "--unshare-user", "--unshare-pid"]
    said = stockade(user, "prove", "--tier", "standard", "--json", before=container)
    assert said.status == 0, said.err or said.out
    assert {states(said.json())["standard"][name] for name in ("proc.no_control", "proc.invisible")} == {"kept"}


@requirement("prove.bare_first")
def test_what_does_not_work_without_a_box_is_never_called_kept(user: Actor) -> None:
    document = stockade(user, "prove", "--json", "--tier", "standard").json()
    idle = {row["name"] for row in document["without_a_box"] if row["state"] == "not_tried"}
    assert "have a capability" in idle, "an ordinary account has none"
    rows = {row["name"]: row for promise in document["tiers"][0]["promises"] for row in promise["attacks"]}
    assert {rows[name]["state"] for name in idle & set(rows)} == {"not_tried"}
    assert all(row["evidence"].startswith("does not work without a box") for name, row in rows.items() if name in idle)
    worked = [row for row in document["without_a_box"] if row["state"] == "worked"]
    assert len(worked) > 100 and all(row["evidence"] for row in worked)


# What Landlock cannot keep, of itself or inside a write root that holds such files, as the project does.
LOST = {"standard": {"fs.metadata", "proc.invisible"}, "guarded": {"fs.metadata", "proc.invisible", "fs.persistence"},
        "strict": {"fs.metadata", "proc.invisible", "fs.persistence", "fs.workspace_secrets"}}


@requirement("prove.without_namespaces", "prove.nothing_broken")
@pytest.mark.parametrize("how", HOSTS)
def test_where_there_are_no_namespaces_the_boxes_of_the_other_backend_are_attacked(user: Actor, how: str) -> None:
    said = stockade(user, "prove", "--json", before=HOSTS[how](user))
    document = said.json()
    jsonschema.validate(document, SCHEMA)
    assert (said.status, document["answer"]) == (0, "nothing_broken"), said
    assert [(trial["name"], trial["backend"]) for trial in document["tiers"]] == [(tier, "landlock") for tier in TIERS]
    for tier, found in states(document).items():
        assert {promise for promise, state in found.items() if state == "not_kept"} == LOST[tier]
        assert {promise for promise, state in found.items() if state not in ("kept", "not_kept")} <= MAY_BE_IDLE
    wait_until(lambda: traces(user) == [], "everything is cleared away")


@requirement("prove.without_namespaces", "prove.finds_broken")
def test_a_box_without_namespaces_that_lets_something_through_is_called_broken(user: Actor) -> None:
    found = weakened(user, "strict", before=filtered(user), read=["~/notes.txt"])
    assert (found["status"], found["rows"]["fs.home"][0]) == (1, "broken") and "planted" in found["rows"]["fs.home"][1]


@requirement("prove.without_namespaces", "prove.cannot_tell")
def test_root_has_no_box_without_namespaces_to_be_attacked(root: Actor) -> None:
    said = stockade(root, "prove", "--tier", "guarded", "--json", before=filtered(root))
    document = said.json()
    jsonschema.validate(document, SCHEMA)
    trial = document["tiers"][0]
    assert (said.status, document["answer"], trial["promises"], trial["backend"]) == (2, "cannot_tell", [], None), said
    assert trial["code"] in ("no_backend", "foreign_sandbox") and "root" in trial["reason"], trial
    wait_until(lambda: traces(root) == [], "everything is cleared away")


def weakened(actor: Actor, tier: str, *, before: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """Prove one tier with options that weaken each box; returns its states, reasons and the exit status."""
    script = ("import json, sys\nfrom stockade.prove.run import prove\nfrom stockade.rules.tiers import parse\n"
              "job = json.loads(sys.argv[1])\nproof = prove((parse(job['tier']),), more=job['more'])\n"
              "rows = {item.promise: (item.state, item.reason) for item in proof.trials[0].findings}\n"
              "print(json.dumps({'status': proof.status, 'rows': rows, 'code': proof.trials[0].code}))\n")
    job = json.dumps({"tier": tier, "more": more})
    done = actor.call([*before, PYTHON, "-B", "-c", script, job], env=environment(actor), cwd="/")
    assert done.returncode == 0, done.stderr.decode()
    return dict(json.loads(done.stdout))


def governed(actor: Actor, tier: str, policy: str, config: str = "") -> tuple[dict[str, Any], str]:
    """Prove one tier where the machine has these files; returns the document and what people see."""
    etc = f"{actor.home}/machine"
    for name, text in (("policy.toml", policy), ("config.toml", config)):
        actor.put(f"{etc}/{name}", text, 0o644)
    actor.host(etc).chmod(0o755)
    script = ("import json, os, sys\nfrom stockade.cli import prove as shown\nfrom stockade.prove.run import prove\n"
              "from stockade.rules import governance, settings, tiers\n"
              "for place in (governance.load_policy, settings.load_settings):\n"
              "    place.__kwdefaults__.update(system_dir=sys.argv[1], root_uid=os.geteuid())\n"
              "proof = prove((tiers.parse(sys.argv[2]),))\n"
              "print(json.dumps(shown.document(proof)))\nshown._print(proof)\n")
    done = actor.call([PYTHON, "-B", "-c", script, etc, tier], env=environment(actor), cwd="/")
    actor.remove(etc)
    assert done.returncode == 0, done.stderr.decode()
    document, _, shown = done.stdout.decode().partition("\n")
    return json.loads(document), shown


@requirement("prove.nothing_broken")
def test_what_configuration_grants_is_not_held_against_the_tier(actor: Actor) -> None:
    document, shown = governed(actor, "strict", 'min_tier = "guarded"\n', 'env = ["AWS_*"]\nread = ["~/notes.txt"]\n')
    assert document["answer"] == "nothing_broken", shown
    assert [(trial["name"], trial["raised"], trial["effective_tier"]) for trial in document["tiers"]] == [("strict", [], "strict")]


@requirement("prove.nothing_broken")
def test_a_tier_that_policy_raises_is_not_said_to_have_been_tried(user: Actor) -> None:
    document, shown = governed(user, "standard", 'min_tier = "strict"\n')
    trial = document["tiers"][0]
    policy = f"policy {user.home}/machine/policy.toml"
    assert (trial["name"], trial["raised"], trial["raised_by"]) == ("strict", ["standard"], policy)
    jsonschema.validate({"schema": "stockade.prove.v1", **document}, SCHEMA)
    assert {row["id"] for row in trial["promises"]} > {"fs.home"} and trial["effective_tier"] == "strict"
    assert shown.splitlines()[1].split() == ["PROMISE", "STRICT"] and ": strict: " in shown.splitlines()[0]
    assert f"standard: raised by {policy}: what was tried is strict\n" in shown


@requirement("prove.leaves_nothing")
def test_the_state_home_that_policy_names_sees_nothing_of_a_proof(user: Actor) -> None:
    named = f"{user.home}/named-by-policy"
    document, _ = governed(user, "standard", f'state_home = "{named}"\n')
    assert document["answer"] == "nothing_broken" and not user.host(named).exists()
    wait_until(lambda: traces(user) == [], "everything is cleared away")


@requirement("prove.nothing_broken")
@pytest.mark.parametrize("mask", ["0", "777"])
def test_the_mask_of_the_caller_is_no_matter(user: Actor, mask: str) -> None:
    said = stockade(user, "prove", "--tier", "standard", before=["/bin/sh", "-c", f'umask {mask}; exec "$@"', "sh"])
    assert said.status == 0 and said.out.startswith(("kept: standard", "nothing broken: standard")), said
    wait_until(lambda: traces(user) == [], "everything is cleared away")


@requirement("prove.cannot_tell", "prove.leaves_nothing")
@pytest.mark.parametrize("limit", ["--fsize=0", "--fsize=4096", "--nofile=24"])
def test_where_the_fixtures_cannot_be_made_the_shortage_is_named_and_nothing_stays(user: Actor, limit: str) -> None:
    said = stockade(user, "prove", "--tier", "standard", before=["/usr/bin/prlimit", limit, "--"])
    assert said.status == 2 and "internal" not in said.err, said
    assert "RLIMIT_FSIZE is" in said.out + said.err or "fsize" not in limit, said
    wait_until(lambda: traces(user) == [], "everything is cleared away")


@requirement("prove.finds_broken")
def test_a_variable_that_gets_through_is_called_broken(actor: Actor) -> None:
    found = weakened(actor, "guarded", pass_env=["AWS_SECRET_ACCESS_KEY"])
    state, reason = found["rows"].pop("env.secrets")
    assert (found["status"], state) == (1, "broken") and "AWS_SECRET_ACCESS_KEY" in reason
    assert "broken" not in {state for state, _ in found["rows"].values()}


@requirement("prove.finds_broken")
def test_a_file_of_the_home_that_can_be_read_is_called_broken(actor: Actor) -> None:
    found = weakened(actor, "strict", read=["~/notes.txt"])
    assert (found["status"], found["rows"]["fs.home"][0]) == (1, "broken") and "planted" in found["rows"]["fs.home"][1]


@requirement("prove.finds_broken")
def test_a_granted_credential_is_called_waived(actor: Actor) -> None:
    found = weakened(actor, "guarded", read=["~/.ssh/id_ed25519"])
    assert found["rows"]["fs.credentials"][0] == "waived" and "id_ed25519" in found["rows"]["fs.credentials"][1]
    assert found["status"] == 0, "what a receipt does not call kept is not broken"


@requirement("prove.finds_broken")
def test_a_granted_container_engine_waives_what_it_can_reach(actor: Actor) -> None:
    found = weakened(actor, "guarded", sockets=["docker"])
    assert {found["rows"][name][0] for name in ("ipc.sockets", "fs.credentials", "proc.no_control")} == {"waived"}


def _interrupted(actor: Actor, number: int, ready: Callable[[], bool]) -> int:
    child = actor.spawn(line("prove", "--json"), env=environment(actor), stdin=-3, stdout=-3, stderr=-3)
    try:
        wait_until(lambda: child.poll() is not None or ready(), "the proof is under way")
        assert child.poll() is None, "it ended before it could be interrupted"
        child.send_signal(number)
        return child.wait(60)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


@requirement("prove.leaves_nothing")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_an_interrupted_proof_leaves_nothing(user: Actor, number: signal.Signals) -> None:
    """The process that is attacked clears away when the one who started it is gone."""
    # Both programs run: the fixtures stand, and the first attacks are made.
    status = _interrupted(user, number, lambda: len(programs(user)) >= 2)
    assert status == -number
    wait_until(lambda: traces(user) == [], "everything is cleared away")


@requirement("prove.against")
def test_another_sandbox_is_attacked_beside_the_tier(user: Actor) -> None:
    said = stockade(user, "prove", "--tier", "strict", "--against", "bwrap")
    assert said.status == 0, said.err
    first, head, *rows = said.out.splitlines()
    assert first.startswith(("kept: strict:", "nothing broken: strict:"))
    assert head.split() == ["PROMISE", "STRICT", "BWRAP"]
    shown = {row.split()[0]: row for row in rows if row.startswith("  ")}
    assert len(shown) == 19 and "kept 27/27" in shown["fs.credentials"] and "27 of 27 worked" in shown["fs.credentials"]
    assert "\x1b" not in said.out and said.err == ""


@pytest.mark.parametrize(("words", "code"), [
    (("--nested",), "prove_unsupported"), (("--against", "srtt"), "prove_unsupported"), (("--tier", "off"), "value_invalid"),
    (("--tier", "auto"), "value_invalid"), (("--tier", "stict"), "unknown_tier"),
])
@requirement("prove.against")
def test_what_this_version_cannot_prove_is_refused_in_one_line(user: Actor, words: tuple[str, ...], code: str) -> None:
    said = stockade(user, "prove", *words)
    assert (said.status, said.out, said.err.count("\n")) == (2, "", 1) and f"{code}: " in said.err, said.err


@requirement("prove.against")
def test_a_sandbox_that_is_not_installed_is_said_before_anything_is_made(user: Actor) -> None:
    said = stockade(user, "prove", "--against", "bwrap", before=["/usr/bin/env", "PATH=/nonexistent"])
    assert (said.status, said.out) == (2, "") and said.err.startswith("stockade: peer_missing: "), said.err


@requirement("prove.cannot_tell")
def test_in_a_box_nothing_can_be_told(actor: Actor) -> None:
    script = f"PYTHONPATH={actor.stage.lib} exec {PYTHON} -B -m stockade prove --json"
    run = actor.run(["/bin/sh", "-c", script], tier="guarded", read=[str(actor.stage.lib)])
    assert run.returncode == 2 and run.stdout == "" and "nested_unsupported: " in run.stderr, run.stderr
