"""Poetry: a locked project with a dependency of the index and a build script that compiles."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

from requirements import requirement
from support.actors import Actor
from tools.support import TOKEN, Tool, Work, siege

PROJECT = """[project]
name = "t"
version = "1.0.0"
requires-python = ">=3.11"
dependencies = ["docopt-ng==0.9.0"]
[tool.poetry]
packages = [{include = "t"}]
[tool.poetry.build]
script = "build.py"
[[tool.poetry.source]]
name = "index"
url = "@INDEX@"
priority = "primary"
[build-system]
requires = ["poetry-core"]
build-backend = "poetry.core.masonry.api"
"""
BUILD = """import subprocess
subprocess.run(["sh", "loot.sh"])
subprocess.run(["gcc", "-shared", "-o", "t/native.so", "native.c"], check=True)
"""
FILES = {"pyproject.toml": PROJECT, "build.py": BUILD, "t/__init__.py": "", "native.c": "int answer(void) { return 42; }\n"}
SHOW = ["poetry", "run", "python", "-c", "import ctypes, docopt; print('answer', ctypes.CDLL('t/native.so').answer())"]


@requirement("E.packages")
def test_poetry_installs_and_builds_and_a_build_script_gets_nothing(actor: Actor, python_tool: Callable[..., Tool]) -> None:
    tool = python_tool("poetry")
    # The file index that pip asks, too: a mirror may not have the descriptions that Poetry prefers.
    index = os.environ.get("PIP_INDEX_URL") or subprocess.run(
        [f"{tool.path[0]}/python", "-c", "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"],
        capture_output=True, text=True, check=True).stdout.strip()
    files = {**FILES, "pyproject.toml": PROJECT.replace("@INDEX@", index)}
    install = ["poetry", "install", "--no-interaction"]
    siege(actor, Work(
        files=files, commands=[install, SHOW], shows="answer 42", clean=["build"], locks=["poetry.lock", "t/native.so"],
        warm=[[*install, "--no-root"], SHOW], caches=[".cache/pypoetry", ".cache/virtualenv"],
        tokens=[".config/pypoetry/auth.toml"], token_text=f"[http-basic.a]\nusername = \"a\"\npassword = \"{TOKEN}\"\n",
        tool=tool))
