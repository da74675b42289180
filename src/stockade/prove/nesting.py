"""A box in a box, as a session sees it: one process with streams and a receipt.

Owns: the outer box at standard, which may write more than the inner one and has the host's network, so that
what is stopped is stopped by the inner box; and the way of the inner receipt out of it. Fails closed: an
inner box that the supervisor of the outer one did not build is ``prove_unsupported``.
Read next: ``within.py`` (what runs between the two), ``sessions.py``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping

from stockade.errors import LaunchFailed, Refused
from stockade.process import _exec
from stockade.process.receipt import Receipt
from stockade.prove import sessions
from stockade.prove.model import Shape
from stockade.prove.stage import HERE, Stage, python
from stockade.rules.tiers import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OUTER = Tier.standard
PACKAGE = os.path.dirname(HERE)


def box(tier: Tier, more: Mapping[str, Any]) -> sessions.Start:
    """Return what starts the attack program in a box of the tier inside one of standard."""
    def start(stage: Stage, shape: Shape, terminal: int) -> Any:
        return Nested(stage, sessions.options(stage, shape, terminal, tier, more), terminal)

    return start


class Nested:
    """The outer box as a process; ``receipt`` is that of the inner one."""

    def __init__(self, stage: Stage, inner: Mapping[str, Any], terminal: int) -> None:
        self._pending = b""
        self._receipt: Receipt | None = None
        job = {"lib": os.path.dirname(PACKAGE), "state": stage.state, "argv": sessions.line(), "options": inner}
        # Not as an argument: it holds the variables that are planted for the inner box.
        source = _exec.sealed_memfd("stockade-job", json.dumps(job).encode())
        self._told, told = os.pipe()
        try:
            self._outer = sessions.started([*python(), f"{HERE}/within.py", str(source), str(told)], stage.state, {
                **sessions.options(stage, Shape(name="outer", net="host"), terminal, OUTER, {}),
                "write": [stage.project, stage.granted, stage.outside], "read": [PACKAGE, *sessions.programs()],
                "pass_fds": (terminal, source, told)})
        except BaseException:
            os.close(self._told)
            raise
        finally:
            os.close(source)
            os.close(told)
        self.pid, self.stdin, self.stdout = self._outer.pid, self._outer.stdin, self._outer.stdout
        try:
            self._first()
        except BaseException:
            self.kill()
            self.__exit__(None, None, None)
            raise

    def _first(self) -> None:
        backend = self._outer.receipt.backend
        if backend != "namespaces":
            raise Refused("prove_unsupported", f"--nested: got an outer box of backend {backend}, expected namespaces: "
                          "no supervisor of another builds boxes inside it")
        said = self._line(sessions.WAIT_S)
        if said is None:
            raise LaunchFailed("prove_failed", "box in a box: got no word of its start, expected one")
        if "code" in said:
            raise Refused(said["code"], f"in the outer box: {said['message']}")
        self._receipt = Receipt(launch=said["launch"], end=None)
        row = said["launch"].get("row")
        if row != "D8":
            raise Refused("prove_unsupported", f"--nested: got a box by row {row} of the decision table, expected D8")

    def _line(self, wait_s: float) -> dict[str, Any] | None:
        """Return the next word of the program between; None at its end."""
        deadline = time.monotonic() + wait_s
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            data = os.read(self._told, 1 << 16) if left > 0 and _exec.select_readable(self._told, left) else b""
            if not data:
                return None
            self._pending += data
        text, _, self._pending = self._pending.partition(b"\n")
        return dict(json.loads(text))

    @property
    def receipt(self) -> Receipt | None:
        """What was proved of the inner box, with its end once that is over."""
        if self._outer.returncode is not None and self._receipt is not None and self._receipt.end is None \
                and self._told >= 0:
            said = self._line(sessions.DEATH_S)
            self._receipt = self._receipt if said is None else Receipt(launch=said["launch"], end=said.get("end"))
        return self._receipt

    def poll(self) -> int | None:
        """As of a subprocess."""
        status: int | None = self._outer.poll()
        return status

    def wait(self, timeout: float | None = None) -> int:
        """As of a subprocess. Raises: subprocess.TimeoutExpired."""
        return int(self._outer.wait(timeout=timeout))

    def kill(self) -> None:
        """End both boxes."""
        self._outer.kill()

    def __exit__(self, *_: object) -> None:
        self._outer.__exit__(None, None, None)
        if self._told >= 0:
            os.close(self._told)
            self._told = -1
