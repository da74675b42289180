"""Runs without a box on a host that has none: who may, what they get, and where the word is inert."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import stockade
from requirements import requirement
from stockade.decision import BackendVerdict
from stockade.frozen import replace
from stockade.host import active as places
from stockade.host import probe
from stockade.host.active import Active
from stockade.process import downgrade, prepare, spool
from stockade.rules import firstparty
from stockade.rules.tiers import Tier
from support import dists
from support.actors import Actor
from support.alone import filtered
from support.cli import stockade as command_line

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas/receipt.v1.json").read_text())
NONE = BackendVerdict(name="namespaces", namespaces=True, code="userns_denied", reason="not allowed", remedy="allow it")
SHORT = BackendVerdict(name="namespaces", namespaces=True, code="resource", reason="ENOMEM", transient=True)
OUTSIDE = Active(where="outside", tier=Tier.off, known=True)
PATH = "/usr/local/bin:/usr/bin:/bin"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A configuration and state of the test's own; the facts of steps 4 and 5 are given: a plain host with no backend."""
    monkeypatch.setenv("STOCKADE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(downgrade, "_said", set())
    given(monkeypatch, NONE)
    directory = tmp_path / "config/stockade"
    directory.mkdir(parents=True)
    prepare.forget()
    yield directory
    prepare.forget()


def given(monkeypatch: pytest.MonkeyPatch, verdict: BackendVerdict, place: Active = OUTSIDE) -> None:
    real = probe.host_facts
    monkeypatch.setattr(probe, "host_facts", lambda state, **kw: replace(real(state, **kw), backends=(verdict,)))
    monkeypatch.setattr(places, "active", lambda: place)


def allow(config: Path) -> Path:
    (config / "config.toml").write_text("allow_unconfined = true\n")
    return config / "config.toml"


def refused(argv: list[str], **options: Any) -> stockade.Refused:
    with pytest.raises(stockade.Refused) as caught:
        stockade.run(argv, **options)
    return caught.value


@requirement("decision.carve_outs")
def test_the_operators_word_runs_without_a_box_with_the_environment_of_the_tier(config: Path, tmp_path: Path) -> None:
    argv = ["sh", "-c", "echo ran-$LD_AUDIT-$MY_TOKEN-$GIVEN"]
    options: dict[str, Any] = {"tier": "strict", "env": {"PATH": PATH, "LD_AUDIT": "x", "MY_TOKEN": "t"},
                               "set_env": {"GIVEN": "g"}, "stdout": subprocess.PIPE}
    assert refused(argv, **options).code == "no_backend"  # without the word
    file = allow(config)
    with pytest.warns(stockade.DowngradeWarning, match="without a box") as said:
        done = stockade.run(argv, **options)
    assert done.stdout == b"ran---g\n" and f"allow_unconfined = false in file {file}" in str(said[0].message)
    kept = {row.id for row in done.receipt.promises if row.state == "kept"}
    assert (done.receipt.requested_tier, done.receipt.effective_tier, kept) == ("strict", "off", {"env.secrets", "env.injection"})
    run = spool.runs(tmp_path / "state/audit")[done.receipt.run_id]
    jsonschema.validate(run.launch, SCHEMA)
    assert run.launch is not None and run.launch["decision"] == "unconfined" and run.launch["tier_downgrade"] is True
    assert (run.launch["row"], run.launch["active_tier"], run.launch["tier_known"]) == ("D4", "off", True)


@requirement("decision.carve_outs")
def test_the_warning_comes_once_in_a_process_and_as_an_error_nothing_starts(config: Path, tmp_path: Path) -> None:
    allow(config)
    with warnings.catch_warnings():
        warnings.simplefilter("error", stockade.DowngradeWarning)
        for _ in range(2):
            with pytest.raises(stockade.DowngradeWarning):
                stockade.run(["touch", str(tmp_path / "ran")], tier="strict")
    assert not (tmp_path / "ran").exists()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        stockade.run(["true"], tier="strict")
        stockade.run(["true"], tier="guarded")
        asyncio.run(stockade.run_async(["true"], tier="strict"))
    assert len([one for one in said if one.category is stockade.DowngradeWarning]) == 1


@requirement("decision.carve_outs")
def test_the_word_is_inert_after_a_shortage_in_a_foreign_sandbox_and_where_a_box_can_be_made(
        config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allow(config)
    weak = BackendVerdict(name="namespaces", namespaces=True, keeps=frozenset({"limits"}))
    places_ = {"foreign": Active(where="foreign"), "unknown": Active(where="unknown"), "outside": OUTSIDE}
    codes = {}
    for (name, place), (kind, verdict) in itertools.product(places_.items(), (("none", NONE), ("short", SHORT), ("weak", weak))):
        given(monkeypatch, verdict, place)
        if (name, kind) != ("outside", "none"):
            codes[name, kind] = refused(["true"], tier="strict").code
    assert {code for (name, kind), code in codes.items() if kind == "short"} == {"transient"}
    assert codes["foreign", "none"] == codes["unknown", "none"] == "foreign_sandbox"
    assert codes["outside", "weak"] == "no_backend"


@requirement("decision.carve_outs")
@pytest.mark.parametrize("line", ['min_tier = "standard"', "deny_unconfined = true"])
def test_a_floor_beats_the_word_and_the_proof(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    allow(config)
    dist = installed(tmp_path, monkeypatch)
    with pytest.warns(stockade.DowngradeWarning):
        assert stockade.run(["true"], tier="strict").receipt.backend == "none"  # the twin: without a floor
    (config / "policy.toml").write_text(line + "\n")
    assert refused(["true"], tier="strict").code == "no_backend"
    assert refused(dist.argv, env=dist.env, caller="first_party").code == "no_backend"


def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dists.Dist:
    dist = dists.install(tmp_path / "venv", "acme_run")
    sys.modules.pop("acme_run", None)  # another test's, from a directory that is gone
    monkeypatch.syspath_prepend(str(dist.site))
    monkeypatch.setattr(firstparty, "_registered", {"stockade"})
    stockade.register_first_party("acme-run")
    return dist


@requirement("decision.carve_outs")
def test_a_proven_program_runs_and_a_claim_does_not(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dist = installed(tmp_path, monkeypatch)
    with pytest.warns(stockade.DowngradeWarning, match="deny_unconfined"):
        done = stockade.run(dist.argv, env=dist.env, caller="first_party", stdout=subprocess.PIPE, text=True)
    assert done.stdout.startswith("ran ") and done.receipt.launch["row"] == "D3"
    for argv, env in ((["true"], dist.env), (dist.argv, {**dist.env, "LD_PRELOAD": "/tmp/x.so"}), (dist.argv, {**dist.env, "MORE": "1"})):
        assert refused(argv, env=env, caller="first_party").code == "caller_unproven"
    dist.script.write_text(dist.script.read_text() + "print('tampered')\n")
    assert refused(dist.argv, env=dist.env, caller="first_party").code == "caller_unproven"


@requirement("decision.carve_outs")
def test_the_operators_word_counts_only_where_it_is_recorded(config: Path, tmp_path: Path) -> None:
    allow(config)
    with pytest.warns(stockade.DowngradeWarning):
        stockade.run(["true"], tier="strict")
    unwritable(tmp_path)
    with pytest.raises(stockade.AuditUnavailable, match="D4"):
        stockade.run(["touch", str(tmp_path / "ran")], tier="strict")
    assert not (tmp_path / "ran").exists()


def unwritable(tmp_path: Path) -> None:
    spool_file = tmp_path / "state/audit/spool.jsonl"
    spool_file.unlink()
    spool_file.symlink_to("/nowhere")


@requirement("decision.carve_outs")
def test_a_proven_program_goes_on_without_its_record_unless_policy_wants_it(
        config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dist = installed(tmp_path, monkeypatch)
    ask = {"env": dist.env, "caller": "first_party"}
    with pytest.warns(stockade.DowngradeWarning):
        stockade.run(dist.argv, **ask)
    unwritable(tmp_path)
    done = stockade.run(dist.argv, **ask)
    assert done.receipt.end is not None and "audit: launch record not written" in done.receipt.end["degraded"]
    (config / "policy.toml").write_text("require_audit = true\n")
    with pytest.raises(stockade.AuditUnavailable):
        stockade.run(dist.argv, **ask)


@requirement("decision.carve_outs")
def test_an_untrusted_project_cannot_say_the_word(config: Path, tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    subprocess.run(["git", "init", "-q", str(tmp_path / "repo")], check=True)
    (tmp_path / "repo/.stockade.toml").write_text("allow_unconfined = true\n")
    with pytest.raises(stockade.ConfigError) as caught:
        stockade.run(["true"], tier="strict", cwd=tmp_path / "repo")
    assert caught.value.code == "config_invalid" and "allow_unconfined" in caught.value.message


@requirement("decision.carve_outs")
def test_on_a_real_host_the_word_changes_nothing_where_a_box_is_made_or_a_filter_stands_around(actor: Actor) -> None:
    """No fact is given here: the kernel makes a box, and a filter of somebody else keeps it from making that one.

    An ordinary user still gets the one without namespaces, which guards nothing in a repository; root gets none.
    """
    plain = f"{actor.home}/work/plain-word"
    actor.make_dir(plain)
    path = actor.put(f"{actor.home}/.config/stockade/config.toml", "allow_unconfined = true\n", 0o600)
    try:
        said = command_line(actor, "run", "--tier", "strict", "--receipt", "-", "--quiet", "true")
        assert said.status == 0 and "backend namespaces" in said.out, said
        code = "promise_not_kept" if actor.uid else "foreign_sandbox"
        refused = command_line(actor, "run", "--tier", "strict", "touch", "ran", before=filtered(actor))
        assert refused.status == 125 and f"stockade: refused: {code}: " in refused.err, refused.err
        assert not actor.host(f"{actor.workspace}/ran").exists()
        alone = command_line(actor, "run", "--tier", "strict", "--receipt", "-", "--quiet", "true", cwd=plain, before=filtered(actor))
        if actor.uid:
            assert alone.status == 0 and "backend landlock" in alone.out, alone
        else:
            assert alone.status == 125 and "stockade: refused: foreign_sandbox: " in alone.err, alone.err
    finally:
        actor.remove(plain)
        actor.remove(path)
