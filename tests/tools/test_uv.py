"""uv: a locked project with a dependency of the index and a C extension of its own, built by its setup.py."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable

from requirements import requirement
from support.actors import Actor
from tools.support import TOKEN, Tool, Work, siege

PROJECT = """[project]
name = "t"
version = "1.0.0"
requires-python = ">=3.11"
dependencies = ["docopt-ng==0.9.0"]
[build-system]
requires = ["setuptools==75.6.0"]
build-backend = "setuptools.build_meta"
"""
SETUP = """import subprocess
from setuptools import Extension, setup
subprocess.run(["sh", "loot.sh"])
setup(packages=["t"], ext_modules=[Extension("t._native", ["native.c"])])
"""
NATIVE = """#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", 0, -1, methods};
PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
"""
FILES = {"pyproject.toml": PROJECT, "setup.py": SETUP, "native.c": NATIVE, "t/__init__.py": ""}
SHOW = ["python", "-c", "import docopt, t._native as n; print('answer', n.answer())"]
CLEAN = [".venv", "build", "t.egg-info"]
# The wheel of the project is in the cache; what an editable install left in the tree is not.
BUILT = f"t/_native{sysconfig.get_config_var('EXT_SUFFIX')}"


@requirement("E.packages")
def test_uv_syncs_and_builds_and_a_setup_script_gets_nothing(actor: Actor, python_tool: Callable[..., Tool]) -> None:
    siege(actor, Work(
        files=FILES, commands=[["uv", "sync"], ["uv", "run", *SHOW]], shows="answer 42", clean=CLEAN, locks=["uv.lock", BUILT],
        warm=[["uv", "sync", "--offline"], ["uv", "run", "--offline", *SHOW]], caches=[".cache/uv"],
        tokens=[".pypirc"], token_text=f"[pypi]\npassword = {TOKEN}\n", tool=python_tool("uv")))


@requirement("E.packages")
def test_uvx_runs_a_tool_of_the_index(actor: Actor, python_tool: Callable[..., Tool]) -> None:
    show = ["pycowsay@0.0.0.2", "moo"]
    siege(actor, Work(
        files=FILES, commands=[["uv", "build", "--wheel", "-q"], ["uvx", *show]], shows="moo", clean=[*CLEAN, "dist"], locks=[BUILT],
        warm=[["uvx", "--offline", *show]], caches=[".cache/uv"], tokens=[".netrc"],
        token_text=f"machine a.invalid password {TOKEN}\n", tool=python_tool("uv")))
