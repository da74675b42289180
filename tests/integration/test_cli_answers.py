"""What a newcomer asks first, and the words of the answer: explain, why, doctor, show, a command that is not there."""

from __future__ import annotations

import os
import re

from stockade.rules.promises import PROMISE_IDS
from support.actors import Actor
from support.cli import environment, inside, stockade


def test_explain_says_in_words_why_a_variable_is_dropped(user: Actor) -> None:
    env = environment(user, DATABASE_URL="needle", NODE_OPTIONS="needle", INNOCENT="ghp_" + "a" * 36)
    said = stockade(user, "explain", "true", env=env).out
    for name, why in (("DATABASE_URL", "named like a secret"), ("NODE_OPTIONS", "makes a program run foreign code"),
                      ("INNOCENT", r"its value looks like a secret \(.*\)")):
        assert re.search(rf"^  dropped +{name} +{why}$", said, re.MULTILINE), said


def test_explain_says_who_brought_a_variable(user: Actor) -> None:
    project = user.put(f"{user.workspace}/.stockade.toml", 'env = ["DATABASE_URL"]\n[set_env]\nMODE = "needle"\n', 0o644)
    env = environment(user, DATABASE_URL="needle")
    asked = ("explain", "--tier", "strict", "--env", "MINE=needle", "--json", "true")
    before = {row["value"]: row["origin"] for row in stockade(user, *asked, env=env).json()["grants"] if row["kind"] == "env"}
    assert before == {"MINE": "argument"}
    assert stockade(user, "trust", "--yes", env=env).status == 0
    said = stockade(user, *asked, env=env)
    after = {row["value"]: row["origin"] for row in said.json()["grants"] if row["kind"] == "env"}
    assert after["MINE"] == "argument" and project in after["MODE"] and after["MODE"] == after["DATABASE_URL"], after
    assert "needle" not in said.out
    user.remove(project)


def test_why_says_that_there_is_no_such_file_and_where_to_ask_about_a_variable(user: Actor) -> None:
    env = environment(user, DATABASE_URL="needle")
    said = stockade(user, "why", "DATABASE_URL", env=env)
    assert said.status == 0 and said.out.startswith(f"would be allowed: read {user.workspace}/DATABASE_URL: ")
    first, *rest = said.out.splitlines()
    assert first.endswith("; there is no such file") and "  env     DATABASE_URL is a variable: stockade explain -- CMD says whether a box gets it" in rest
    assert "needle" not in said.out and stockade(user, "why", "--json", "DATABASE_URL", env=env).json()["exists"] is False
    missing = stockade(user, "why", "missing-file", env=env).out
    assert "; there is no such file" in missing and "variable" not in missing
    there = user.put(f"{user.workspace}/DATABASE_URL", "x", 0o644)
    said = stockade(user, "why", "DATABASE_URL", env=env)
    assert said.out.startswith(f"allowed: read {there}: ") and "no such file" not in said.out and "variable" not in said.out
    user.remove(there)


def test_a_command_that_the_host_does_not_have_is_not_installed_and_one_that_the_box_lacks_is_not_found(actor: Actor) -> None:
    said = stockade(actor, "run", "no-such-command")
    assert said.status == 127 and said.err.startswith("stockade: refused: not_found: no-such-command: not installed on this host (ENOENT)"), said
    assert "install it" in said.err and "stockade why" not in said.err
    there = actor.put(f"{actor.elsewhere}/tools/only-here", "#!/bin/sh\n", 0o755)
    tools = os.path.dirname(there)
    env = environment(actor, PATH=f"{tools}:/usr/bin:/bin")
    said = stockade(actor, "run", "--tier", "strict", "--hide", tools, "only-here", env=env)
    assert said.status == 127 and "not_found: only-here: ENOENT" in said.err and "stockade why" in said.err, said
    assert "only-here is not on the PATH of the box" in stockade(actor, "explain", "--tier", "strict", "--hide", tools, "only-here", env=env).out
    assert stockade(actor, "run", "--tier", "strict", "only-here", env=env).status == 0
    actor.remove(tools)


def test_doctor_in_a_box_says_in_words_that_the_box_has_no_network(actor: Actor) -> None:
    run = actor.run(inside(actor, "doctor"), tier="strict", net="none", read=[str(actor.stage.lib)])
    assert "does not have the host's network (it runs with net none)" in run.stdout and "host any" not in run.stdout, run.stdout


def test_doctor_notes_a_backend_that_is_not_needed_and_has_no_remedy_for_it(root: Actor) -> None:
    """Root has no box without namespaces, and needs none where namespaces work."""
    said = stockade(root, "doctor").out
    assert said.startswith("good: ") and "remedy" not in said and "obstacle" not in said, said
    assert "note: backend landlock is not needed here, a stronger one works: a root caller has no box without namespaces" in said
    assert stockade(root, "doctor", "--json").json()["fixes"] == []
    assert "nothing to fix" in stockade(root, "doctor", "--fix", "--dry-run").out


def test_a_weaker_run_in_a_stronger_box_has_one_count_in_head_and_rows(actor: Actor) -> None:
    """What is kept is what the box around keeps; that it was passed through is no fault."""
    words = inside(actor, "run", "--tier", "standard", "--receipt", "-", "--", "true")
    said = actor.run(words, tier="strict", net="none", read=[str(actor.stage.lib)]).stdout
    head, second, *rest = said.splitlines()
    rows = [row for row in rest if row.split()[0] in PROMISE_IDS]
    assert head.startswith(f"strict · kept {len(rows)} of {len(rows)} · ") and len(rows) == 19, said
    assert second == "asked for standard: passed through, the strict box around keeps it" and "degraded" not in said, said
