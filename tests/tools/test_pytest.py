"""pytest: a compiled module, a loopback server, worker processes; conftest.py is the attack."""

from __future__ import annotations

from collections.abc import Callable

from requirements import requirement
from support.actors import Actor
from tools.support import Tool, Work, siege

CONFTEST = "import subprocess\nsubprocess.run(['sh', 'loot.sh'])\n"
TESTS = """import ctypes, multiprocessing, socket, subprocess, threading

def test_native(tmp_path):
    source = tmp_path / "a.c"
    source.write_text("int answer(void) { return 42; }")
    subprocess.run(["gcc", "-shared", "-o", str(tmp_path / "a.so"), str(source)], check=True)
    assert ctypes.CDLL(str(tmp_path / "a.so")).answer() == 42

def test_loopback():
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: server.accept()[0].sendall(b"x")).start()
    assert socket.create_connection(server.getsockname()).recv(1) == b"x"

def test_workers():
    with multiprocessing.Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
"""


@requirement("E.builds")
def test_pytest_runs_tests_and_a_conftest_gets_nothing(actor: Actor, python_tool: Callable[..., Tool]) -> None:
    siege(actor, Work(
        files={"conftest.py": CONFTEST, "test_t.py": TESTS}, commands=[["pytest", "-q"]], shows="3 passed",
        clean=[".pytest_cache", "__pycache__"], tool=python_tool("pytest")))
