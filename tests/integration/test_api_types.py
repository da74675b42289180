"""The signatures of the interface: what help and a type checker see is what is accepted."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stockade
from stockade.rules.request import PROCESS_OPTIONS, REQUEST_OPTIONS

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BOX = REQUEST_OPTIONS - {"publish"}  # known to be refused, so nobody is offered it
WAIT = {"input", "capture_output", "capture_limit_bytes", "timeout", "check"}
TEXT = {"text", "encoding", "errors", "bufsize"}


def keywords(function: Any) -> dict[str, Any]:
    found = inspect.signature(function).parameters.values()
    return {item.name: item.default for item in found if item.kind is inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(("function", "names"), [
    (stockade.run, BOX | PROCESS_OPTIONS), (stockade.run_async, BOX | PROCESS_OPTIONS),
    (stockade.Popen, (BOX | PROCESS_OPTIONS) - WAIT), (stockade.spawn, (BOX | PROCESS_OPTIONS) - WAIT - TEXT),
    (stockade.wrap, (BOX - {"pass_fds"}) | {"pin"}), (stockade.decide, (BOX - {"pass_fds"}) | {"host"}),
    (stockade.Sandbox, BOX),
])
def test_every_option_is_in_the_signature_and_after_args_by_keyword_alone(function: Any, names: set[str]) -> None:
    assert keywords(function).keys() == names
    positional = [item.name for item in inspect.signature(function).parameters.values()
                  if item.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert positional == ([] if function is stockade.Sandbox else ["args"])


def test_the_same_option_has_the_same_default_everywhere() -> None:
    every = keywords(stockade.run)
    for function in (stockade.run_async, stockade.Popen, stockade.spawn, stockade.wrap, stockade.decide,
                     stockade.Sandbox):
        assert {name: value for name, value in keywords(function).items() if name not in ("pin", "host")}.items() \
            <= every.items()


def test_defaults_of_the_process_are_those_of_subprocess() -> None:
    theirs = inspect.signature(subprocess.Popen).parameters
    shared = {name: value for name, value in keywords(stockade.Popen).items() if name in theirs and name not in BOX}
    assert {"stdin", "stdout", "stderr", "text"} <= set(shared)
    assert shared == {name: theirs[name].default for name in shared}


@pytest.mark.parametrize("name", ["wrap", "decide", "spawn", "run_async", "Popen", "run", "Sandbox"])
def test_a_name_that_nobody_knows_is_a_typed_error_with_the_nearest(name: str) -> None:
    args = [] if name == "Sandbox" else [["true"]]
    with pytest.raises(stockade.ConfigError) as caught:
        made = getattr(stockade, name)(*args, tire="strict")
        if hasattr(made, "__await__"):
            made.__await__().send(None)
    assert caught.value.code == "unknown_option" and "'tier'" in caught.value.hint


def test_the_type_checker_finds_what_is_wrong_and_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--follow-imports", "silent",
         str(HERE / "api_types.py")], cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
