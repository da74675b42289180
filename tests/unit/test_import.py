"""``import stockade`` stays light, starts nothing and offers exactly its public names."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import stockade

SRC = Path(stockade.__file__).parent.parent
PROGRAM = f"""
import __future__, json, sys, time
sys.path.insert(0, {str(SRC)!r})
before, start = set(sys.modules), time.perf_counter()
import stockade
spent = time.perf_counter() - start
print(json.dumps({{"spent_s": spent, "modules": sorted(set(sys.modules) - before)}}))
"""


def fresh_import() -> Any:
    done = subprocess.run([sys.executable, "-I", "-S", "-c", PROGRAM], capture_output=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_the_import_loads_no_module_but_itself_and_stays_in_its_budget() -> None:
    found = [fresh_import() for _ in range(5)]
    assert all(run["modules"] == ["stockade"] for run in found)
    assert min(run["spent_s"] for run in found) < 0.025


def test_no_public_name_is_the_name_of_a_subpackage() -> None:
    modules = {module.name for module in pkgutil.iter_modules(stockade.__path__)}
    assert not modules & (set(stockade.__all__) | set(stockade._HOME))


def test_the_table_of_names_and_the_public_names_agree() -> None:
    assert set(stockade.__all__) == {*stockade._HOME, "__version__"}
    assert set(stockade.__all__) <= set(dir(stockade))


def test_every_public_name_loads() -> None:
    for name in stockade.__all__:
        assert getattr(stockade, name) is not None, name


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(stockade, "runn")


HEAVY = {"typing", "pathlib", "subprocess", "threading", "hashlib", "inspect", "dataclasses", "tomllib", "shutil",
         "urllib.parse", "locale", "socket", "glob", "shlex", "enum", "functools", "collections", "types", "operator", "signal"}


def test_a_start_loads_no_module_that_it_does_not_need() -> None:
    """Each of these costs between one and seven milliseconds of every start."""
    program = f"import sys; sys.path.insert(0, {str(SRC)!r}); before = set(sys.modules)\n" \
        "import stockade.cli.run, stockade.process.prepare, stockade.host.probe, stockade.plan.compile, stockade.rules.resolve\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, check=True, timeout=60)
    assert not HEAVY & set(done.stdout.decode().split())
