"""First party is proven, never claimed: each way to pass for it is tried beside the line that is it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from stockade.errors import ConfigError, Refused
from stockade.rules import firstparty
from stockade.rules.request import build_request
from support import dists


@pytest.fixture
def dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dists.Dist]:
    """An installed and registered distribution; the working directory is another place."""
    made = dists.install(tmp_path / "venv")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    # As `python -m` has it: what is planted in the working directory comes first.
    monkeypatch.setattr(sys, "path", [str(tmp_path / "work"), *sys.path, str(made.site)])
    monkeypatch.setattr(firstparty, "_registered", {"stockade"})
    firstparty.register_first_party("Acme.Gate")
    yield made
    sys.modules.pop("acme_gate", None)
    sys.path_importer_cache.clear()


def proved(argv: list[str], env: dict[str, str], **options: Any) -> str:
    return firstparty.prove(build_request(argv, env=env, caller="first_party", **options))


def why(argv: list[str], env: dict[str, str], **options: Any) -> str:
    with pytest.raises(Refused) as caught:
        proved(argv, env, **options)
    assert caught.value.code == "caller_unproven"
    return next(reason for reason in caught.value.reasons if reason.startswith("acme-gate"))


@requirement("decision.carve_outs")
def test_the_derived_line_of_an_installed_console_script_is_first_party(dist: dists.Dist) -> None:
    assert proved(dist.argv, dist.env) == "distribution acme-gate"
    split = {name: value for name, value in dist.env.items() if name != "LANG"}
    assert proved(dist.argv, split, set_env={"LANG": "C.UTF-8"}) == "distribution acme-gate"


@requirement("decision.carve_outs")
@pytest.mark.parametrize("name", ["LD_PRELOAD", "ld_preload", "PYTHONSTARTUP", "BASH_ENV", "NODE_OPTIONS"])
def test_a_loader_variable_disqualifies_wherever_it_is_given(dist: dists.Dist, name: str) -> None:
    assert name in why(dist.argv, {**dist.env, name: "/tmp/evil.so"})
    assert name in why(dist.argv, dist.env, set_env={name: "/tmp/evil.so"})
    assert proved(dist.argv, dist.env)


@requirement("decision.carve_outs")
def test_a_loader_variable_disqualifies_even_where_derive_returns_it(dist: dists.Dist) -> None:
    text = dist.module.read_text().replace('"LANG": "C.UTF-8"', '"LD_PRELOAD": "/tmp/evil.so"')
    dist.module.write_text(text)
    dists.record(dist)
    assert "LD_PRELOAD" in why(dist.argv, {"PATH": "/usr/bin:/bin", "LD_PRELOAD": "/tmp/evil.so"})


@requirement("decision.carve_outs")
def test_one_variable_more_less_or_other_disqualifies_and_its_value_is_not_told(dist: dists.Dist) -> None:
    for env in ({**dist.env, "EXTRA": "hush-hush"}, {"PATH": dist.env["PATH"]}, {**dist.env, "LANG": "hush-hush"}):
        said = why(dist.argv, env)
        assert "environment" in said and "hush" not in said


@requirement("decision.carve_outs")
@pytest.mark.parametrize("more", [[], ["serve", "--config", "/tmp/evil"], ["other"]])
def test_other_arguments_are_another_line(dist: dists.Dist, more: list[str]) -> None:
    assert "arguments" in why([str(dist.script), *more], dist.env)


@requirement("decision.carve_outs")
def test_the_interpreter_form_never_qualifies(dist: dists.Dist) -> None:
    for argv in ([sys.executable, "-m", "acme_gate", "serve"], [sys.executable, *dist.argv], ["acme_gate", "serve"]):
        why(argv, dist.env)


@requirement("decision.carve_outs")
def test_a_package_planted_in_the_working_directory_is_never_run(dist: dists.Dist, tmp_path: Path) -> None:
    planted = tmp_path / "work" / "acme_gate.py"
    planted.write_text(f"open({str(tmp_path / 'planted-ran')!r}, 'w')\n" + dists.MODULE.format(script="/bin/sh"))
    sys.path_importer_cache.clear()
    assert "not a file of the distribution" in why(dist.argv, dist.env)
    assert not (tmp_path / "planted-ran").exists()
    planted.unlink()
    sys.path_importer_cache.clear()
    assert proved(dist.argv, dist.env)  # the twin: without it


@requirement("decision.carve_outs")
def test_a_squatted_name_makes_both_unproven(dist: dists.Dist, tmp_path: Path) -> None:
    squat = dists.install(tmp_path / "squat")
    sys.path.append(str(squat.site))
    assert "2 distributions" in why(dist.argv, dist.env)
    assert "2 distributions" in why(squat.argv, squat.env)
    sys.path.remove(str(squat.site))
    assert "no console script" in why([str(squat.script), "serve"], dist.env)
    assert proved(dist.argv, dist.env)


@requirement("decision.carve_outs")
def test_a_distribution_planted_in_the_working_directory_is_none(dist: dists.Dist, tmp_path: Path) -> None:
    planted = tmp_path / "work" / dist.info.name
    dist.info.rename(planted)
    sys.path_importer_cache.clear()
    assert "working directory" in why(dist.argv, dist.env)


@requirement("decision.carve_outs")
def test_a_tampered_file_disqualifies(dist: dists.Dist) -> None:
    for path in (dist.script, dist.module, dist.info / "entry_points.txt"):
        before = path.read_text()
        path.write_text(before + "\n# more\n")
        assert "not as it was installed" in why(dist.argv, dist.env), path
        path.write_text(before)
        assert proved(dist.argv, dist.env)
    dist.module.unlink()
    why(dist.argv, dist.env)


@requirement("decision.carve_outs")
def test_a_program_that_is_not_in_record_or_has_no_digest_is_none(dist: dists.Dist) -> None:
    rows = (dist.info / "RECORD").read_text().splitlines(keepends=True)
    (dist.info / "RECORD").write_text("".join(row for row in rows if "bin/" not in row))
    assert "no console script" in why(dist.argv, dist.env)
    (dist.info / "RECORD").write_text("".join(rows).replace("sha256=", "md5="))
    assert "digest" in why(dist.argv, dist.env)
    (dist.info / "RECORD").unlink()
    assert "RECORD" in why(dist.argv, dist.env)


@requirement("decision.carve_outs")
def test_a_distribution_whose_derive_fails_vouches_for_nothing(dist: dists.Dist) -> None:
    dist.module.write_text("def derive():\n    raise ValueError('hush-hush')\n")
    dists.record(dist)
    said = why(dist.argv, dist.env)
    assert "ValueError" in said and "hush" not in said


@requirement("decision.carve_outs")
def test_a_distribution_nobody_registered_vouches_for_nothing(dist: dists.Dist, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firstparty, "_registered", {"stockade"})
    with pytest.raises(Refused):
        proved(dist.argv, dist.env)
    with pytest.raises(ConfigError) as caught:
        firstparty.register_first_party("no-such-distribution")
    assert caught.value.code == "first_party_unknown"
