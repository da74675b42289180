"""The catalogue of attacks and the table of promises agree, both ways."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest

from stockade.prove import catalogue, samples
from stockade.prove.model import Attack
from stockade.prove.sessions import SHAPES
from stockade.prove.stage import Stage
from stockade.rules.load import load_list
from stockade.rules.match import matches
from stockade.rules.promises import PROMISE_IDS, PROMISES
from stockade.rules.tiers import ALL_TIERS

PACKAGE = Path(catalogue.__file__).parent
PROGRAMS = ("attack.py", "victim.py")


@pytest.fixture
def attacks(tmp_path: Path) -> tuple[Attack, ...]:
    """Every attack on a stage whose victim could make everything."""
    stage = Stage(str(tmp_path))
    sockets = [f"{stage.runtime}/{name}" for name in samples.RUNTIME_SOCKETS]
    sockets += [stage.path(name) for name in samples.HOME_SOCKETS]
    stage.victim = {"pid": os.getpid(), "address": 4096, "descriptor": 3, "port": 1, "sockets": sockets,
                    "made": ["shm", "sem", "msg", "queue", "file"]}
    return catalogue.attacks(stage)


def test_every_promise_is_attacked_and_no_attack_names_another(attacks: tuple[Attack, ...]) -> None:
    assert {attack.promise for attack in attacks} == set(PROMISE_IDS)


@pytest.mark.parametrize("tier", ALL_TIERS, ids=str)
def test_every_promise_of_a_tier_is_attacked_at_that_tier(attacks: tuple[Attack, ...], tier: object) -> None:
    attacked = {attack.promise for attack in attacks if attack.tiers is None or tier in attack.tiers}
    assert {promise.id for promise in PROMISES if tier in promise.tiers} <= attacked


def test_no_two_attacks_have_one_name_and_each_has_a_box(attacks: tuple[Attack, ...]) -> None:
    keys = [attack.key for attack in attacks]
    assert len(keys) == len(set(keys))
    assert {attack.shape for attack in attacks} == {shape.name for shape in SHAPES}


def test_every_operation_is_one_of_the_attack_program_and_none_is_idle(attacks: tuple[Attack, ...]) -> None:
    tree = ast.parse((PACKAGE / "attack.py").read_text(encoding="utf-8"))
    takes = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)
             and [argument.arg for argument in node.args.args] == ["op"]} - {"attempt", "answer"}
    assert {attack.op["op"] for attack in attacks} == takes


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_need_the_standard_library_alone(name: str) -> None:
    tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
    imported = {alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= set(sys.stdlib_module_names)


def test_every_list_of_what_is_attacked_gives_samples() -> None:
    assert len(samples.credentials()) == samples.MANY + 1
    for found in (samples.persistence(), samples.workspace_secrets(), samples.tokens()):
        assert len(found) == samples.FEW == len(set(found))


def test_the_planted_loaders_are_entries_of_the_list() -> None:
    patterns = [name for entry in load_list("env-injection") for name in (entry.pattern, *entry.examples) if name]
    assert [name for name in samples.LOADERS if not any(matches(name, pattern) for pattern in patterns)] == []


def test_the_planted_sockets_are_entries_of_the_list_but_two() -> None:
    listed = {path for entry in load_list("sockets") for path in entry.paths}
    every = [f"$XDG_RUNTIME_DIR/{name}" for name in samples.RUNTIME_SOCKETS] + [f"~/{name}" for name in samples.HOME_SOCKETS]
    assert [name for name in every if name not in listed] == ["$XDG_RUNTIME_DIR/tool/own.sock", "~/tool/own.sock"]


def test_only_prove_starts_a_program_without_a_request() -> None:
    users = [path.relative_to(PACKAGE.parent).parts[0] for path in PACKAGE.parent.rglob("*.py")
             if "own_program(" in path.read_text(encoding="utf-8") and path.name != "_exec.py"]
    assert set(users) == {"prove"}
