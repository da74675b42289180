"""``--help`` of every command, and every example in it, typed into a shell."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stockade.cli.commands import ROOT
from stockade.cli.grammar import Command
from support.actors import PYTHON, Actor, make_repository
from support.cli import environment, stockade
from support.trees import changes, snapshot


def commands(command: Command = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Every command with the words that lead to it."""
    yield path, command
    for inner in command.commands:
        yield from commands(inner, (*path, inner.name))


EVERY = list(commands())
EXAMPLES = [(path, example) for path, command in EVERY for example in command.examples]


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[" ".join(path) or "stockade" for path, _ in EVERY])
def test_help_of_every_command_has_usage_options_and_examples(user: Actor, path: tuple[str, ...], command: Command) -> None:
    said = stockade(user, *path, "--help")
    assert (said.status, said.err) == (0, "")
    assert f"usage: {' '.join(('stockade', *path))}" in said.out
    assert all(option.name in said.out for option in command.options)
    assert command.examples and "examples" in said.out and all(example in said.out for example in command.examples)
    assert max(len(row) for row in said.out.splitlines()) <= 120


def test_help_is_also_a_word(user: Actor) -> None:
    for path in ((), ("run",), ("plan", "gc")):
        assert stockade(user, "help", *path) == stockade(user, *path, "--help")
    for words, hint in ((("help", "rnu"), "'run'"), (("help", "ps", "x"), "'stockade ps'"), (("version",), "'--version'")):
        said = stockade(user, *words)
        assert (said.status, said.out, said.err.count("\n")) == (2, "", 1) and hint in said.err, said


@pytest.fixture(scope="module")
def shell(user: Actor) -> Iterator[tuple[Actor, str]]:
    """A repository, and a directory with ``stockade`` in it."""
    place = make_repository(user, f"{user.home}/work/examples")
    user.put(f"{user.home}/bin/stockade", f'#!/bin/sh\nexec {PYTHON} -B -m stockade "$@"\n', 0o755)
    user.put(f"{place}/.stockade.toml", 'tier = "strict"\n', 0o644)
    yield user, place
    user.remove(place)
    user.remove(f"{user.home}/bin")


@pytest.mark.parametrize(("path", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_every_example_works_as_it_stands_and_leaves_home_and_project_alone(shell: tuple[Actor, str], path: tuple[str, ...], example: str) -> None:
    actor, place = shell
    env = environment(actor)
    env["PATH"] = f"{actor.home}/bin:{env['PATH']}"
    before = snapshot(actor.host(actor.home), (".local",))  # our own state is there
    done = actor.call(["/bin/sh", "-c", example], cwd=place, env=env)
    assert done.returncode == 0, (example, done.stdout, done.stderr)
    assert b"Traceback" not in done.stderr
    assert changes(before, snapshot(actor.host(actor.home), (".local",))) == {}
