"""Running a command with the launcher's tracer, and reading what it wrote.

Owns: the memory file that the tracer writes to. Fails closed: a line that is not one, or a trace
without its last line, is ``trace_invalid`` or not ``whole``: nothing is concluded from silence.
Read next: ``attend.py``, ``launcher/src/trace.rs``, ``stockade.plan.needs``.
"""

from __future__ import annotations

import json
import os

from stockade.errors import LaunchFailed
from stockade.frozen import dataclass
from stockade.light import Iterable, Iterator
from stockade.plan.needs import Use
from stockade.process import attend
from stockade.process._exec import above_streams
from stockade.process.prepare import Prepared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KINDS = ("path", "socket", "address")
_QUOTED = 80  # bytes of a line that an error shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """How it ended and what was used. ``cut``: uses beyond the tracer's bound; ``whole``: it wrote its last line."""

    ended: attend.Ended
    uses: tuple[Use, ...] = ()
    cut: int = 0
    whole: bool = False


def watch(prepared: Prepared, **popen: Any) -> Watched:
    """Run a prepared command to its end, as ``attend`` does, and watch it. Raises: LaunchFailed ``trace_invalid``."""
    descriptor = above_streams(os.memfd_create("stockade-trace", os.MFD_CLOEXEC))
    with os.fdopen(descriptor, "r+b") as stream:
        ended = attend.attend(prepared, trace_fd=descriptor, **popen)
        stream.seek(0)
        uses, cut, whole = read(stream)
    return Watched(ended=ended, uses=uses, cut=cut, whole=whole)


def read(lines: Iterable[bytes]) -> tuple[tuple[Use, ...], int, bool]:
    """Return the uses, how many were cut, and whether the last line is there."""
    last: dict[str, Any] = {}
    uses = tuple(_uses(lines, last))
    return uses, int(last.get("cut", 0)), bool(last)


def _uses(lines: Iterable[bytes], last: dict[str, Any]) -> Iterator[Use]:
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if row.get("end") is True and not last:
                last.update(row)
                continue
            kind = next(kind for kind in _KINDS if kind in row)
            use = Use(call=str(row["call"]), kind=kind, name=str(row[kind]), write=row["write"] is True,
                      result=str(row["result"]))
        except (ValueError, AttributeError, KeyError, StopIteration):
            if not line.endswith(b"\n") and not last:
                return  # the tracer was killed in the middle of a line
            raise LaunchFailed("trace_invalid",
                               f"trace line {number}: got {_start(line)}, expected a use or the end") from None
        yield use


def _start(line: bytes) -> str:
    return repr(line[:_QUOTED].decode("utf-8", "backslashreplace"))
