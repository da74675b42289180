"""``stockade policy``, and what policy must not change: the answers about the host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.actors import Actor
from support.cli import stockade


@pytest.fixture
def own_policy(actor: Actor) -> Iterator[str]:
    """Where the actor's own policy is."""
    path = f"{actor.home}/.config/stockade/policy.toml"
    yield path
    actor.remove(path)


def test_no_policy_is_no_ceiling_and_valid(actor: Actor) -> None:
    assert stockade(actor, "policy", "show").out == "no ceiling: there is no policy file\n"
    assert stockade(actor, "policy", "show", "--json").json() == {"schema": "stockade.policy-show.v1", "files": [], "ceilings": []}
    said = stockade(actor, "policy", "check")
    assert said.status == 0 and said.out.startswith("valid: there is no policy file")


def test_each_ceiling_is_shown_with_the_file_and_line_that_set_it(actor: Actor, own_policy: str) -> None:
    actor.put(own_policy, 'min_tier = "guarded"\n# why\ndeny_grants = ["docker", "/srv/keys"]\nallow_profiles = []\nretention = "30d"\n', 0o644)
    said = stockade(actor, "policy", "show")
    rows = [row.split() for row in said.out.splitlines()]
    assert said.status == 0 and rows[0] == ["4", "ceilings", "from", "1", "file"]
    assert ["min_tier", "guarded", own_policy, "line", "1"] in rows and ["docker", own_policy, "line", "3"] in rows
    assert ["allow_profiles", "(none)", own_policy, "line", "4"] in rows and ["retention", "2592000s", own_policy, "line", "5"] in rows
    found = stockade(actor, "policy", "show", "--json").json()
    assert found["files"] == [{"path": own_policy, "boundary": False}]
    assert {"key": "min_tier", "value": "guarded", "sources": [{"value": "guarded", "path": own_policy, "line": 1}]} in found["ceilings"]
    # The twin: what is shown is what holds.
    assert stockade(actor, "explain", "--json", "--tier", "standard", "true").json()["decision"]["tier"] == "guarded"


@pytest.mark.parametrize(("text", "line"), [("\nmin_teir = 'strict'\n", 2), ("min_tier = 'paranoid'\n", 1), ("x = 1\ny = [\n", 2), ("x = " + "9" * 5000, None)])
def test_an_invalid_policy_is_checked_with_file_line_and_reason(actor: Actor, own_policy: str, text: str, line: int | None) -> None:
    actor.put(own_policy, text, 0o644)
    for words in (["policy", "check"], ["policy", "check", own_policy]):
        said = stockade(actor, *words)
        assert (said.status, said.err) == (1, "") and said.out.startswith(f"invalid: policy_invalid: file '{own_policy}'")
        error = stockade(actor, *words, "--json").json()["error"]
        assert (error["code"], error["path"]) == ("policy_invalid", own_policy) and error["line"] == line
    shown = stockade(actor, "policy", "show")
    assert (shown.status, shown.out, shown.err.count("\n")) == (2, "", 1) and "policy_invalid" in shown.err


def test_a_draft_is_checked_where_it_lies_and_none_cannot_be_told(actor: Actor) -> None:
    path = actor.put(f"{actor.home}/draft.toml", 'min_tier = "strict"\n', 0o644)
    assert stockade(actor, "policy", "check", "draft.toml", cwd=actor.home).out == f"valid: {path}\n"
    actor.host(path).chmod(0o646)
    said = stockade(actor, "policy", "check", path)
    assert said.status == 1 and "0646" in said.out
    actor.remove(path)
    said = stockade(actor, "policy", "check", path)
    assert (said.status, said.out) == (2, "") and "ENOENT" in said.err


@pytest.mark.parametrize(("name", "text"), [("policy.toml", 'deny_grants = ["*"]\ndeny_accept = ["*"]\nmax_net = "none"\n'),
                                            ("config.toml", 'read = ["/nowhere"]\n')])
def test_what_its_owner_forbids_is_no_gap_of_the_host(actor: Actor, name: str, text: str) -> None:
    path = actor.put(f"{actor.home}/.config/stockade/{name}", text, 0o644)
    found = stockade(actor, "doctor", "--json").json()
    refused = stockade(actor, "run", "--tier", "strict", "--read", actor.workspace, "--", "/bin/true")
    actor.remove(path)
    # The twin: the same words do count for a run.
    assert refused.status == 125
    assert found["host"]["backends"][0]["code"] in ("", None) and len(found["trials"]) == 6 and all(not t["code"] and not t["lost"] for t in found["trials"])
