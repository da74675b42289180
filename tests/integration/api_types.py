"""How users call the interface, for the type checker alone: ``test_api_types.py`` has mypy read it.

A line with ``type: ignore`` must be an error: strict mode reports an ignore that is not needed.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, assert_type

import stockade


def runs(words: list[str], tier: str) -> None:
    assert_type(stockade.run(["true"], capture_output=True), stockade.Completed[bytes])
    assert_type(stockade.run(["true"], capture_output=True).stdout, bytes)
    assert_type(stockade.run(words, text=True, tier=tier, timeout=3), stockade.Completed[str])
    assert_type(stockade.run(words, encoding="latin-1"), stockade.Completed[str])
    assert_type(stockade.run(words, text=bool(tier)), stockade.Completed[Any])
    stockade.run(["x", Path("y")], cwd=Path("/"), read="~/a", write=[Path("b")], net=[], limits={"wall": "3s"},
                 accept=("fs.home",), caller="repository", profile="npm", stdin=subprocess.DEVNULL, pass_fds=(3,))
    stockade.run(["true"], tire="strict")  # type: ignore[call-overload]
    stockade.run(["true"], timeout="3s")  # type: ignore[call-overload]
    stockade.run(["true"], "strict")  # type: ignore[call-overload]
    stockade.run(["true"], shell=True)  # type: ignore[call-overload]


def starts(words: list[str]) -> None:
    assert_type(stockade.Popen(words, stdout=subprocess.PIPE), stockade.Popen[bytes])
    with stockade.Popen(words, text=True, tier="strict") as child:
        assert_type(child, stockade.Popen[str])
        assert_type(child.communicate(), tuple[str, str])
        assert_type(child.receipt, stockade.Receipt | None)
    stockade.Popen(words, timeout=3)  # type: ignore[call-overload]


async def loops(words: list[str]) -> None:
    assert_type(await stockade.run_async(words), stockade.Completed[bytes])
    assert_type(await stockade.run_async(words, text=True, check=True), stockade.Completed[str])
    async with stockade.spawn(words, net="none", stdout=subprocess.PIPE) as process:
        assert_type(await process.wait(), int)
    stockade.spawn(words, text=True)  # type: ignore[arg-type]


def sandboxes(words: list[str]) -> None:
    box = stockade.Sandbox(tier="strict", profile=["npm"], cwd=Path("/w"))
    assert_type(box.run(words), stockade.Completed[bytes])
    assert_type(box.run(words, text=True, cwd="sub"), stockade.Completed[str])
    assert_type(box.popen(words, text=True), stockade.Popen[str])
    assert_type(box.narrow(net="none", write=[], limits={"processes": 3}), stockade.Sandbox)
    assert_type(box.wrap(words).mcp(), dict[str, Any])
    box.run(words, write=["/"])  # type: ignore[call-overload]
    box.narrow(accept=["fs.home"])  # type: ignore[arg-type]
    stockade.Sandbox(teir="strict")  # type: ignore[arg-type]


def answers(words: list[str]) -> None:
    assert_type(stockade.decide(words, tier="strict"), stockade.Decision)
    assert_type(stockade.wrap(words, pin="mine").plan, str)
    stockade.wrap(words, stdin=3)  # type: ignore[arg-type]
    stockade.decide(words, teir="strict")  # type: ignore[arg-type]
