"""What the command line prints: colour, tables, JSON documents, progress, escaped text.

Owns: the rule that text from outside (paths, file contents, argv) reaches a terminal only with
its control characters escaped. Fails closed: a stream that cannot be written is an error of the
command, never silence.
"""

from __future__ import annotations

import os
import sys
import time

from stockade.light import Iterable, Mapping, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
PROGRESS_AFTER_S = 2.0
_WIDTH = 24


# The numbers of the standard streams that the caller had closed.
closed: set[int] = set()


def open_closed() -> None:
    """Put /dev/null in the place of closed standard streams, for this process and what it becomes.

    What would be printed is dropped; else a file of ours would get the number, and the
    interpreter's missing stream would be a fault of every command that prints.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one
        if getattr(sys, name) is None:
            closed.add(number)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False))


def clean(text: object) -> str:
    """Return one line without control characters: a file name must not drive the terminal.

    Bidirectional marks are escaped too: they make a line read as something else.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode("ascii")
                   for c in str(text).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))


def coloured(stream: TextIO) -> bool:
    """Tell whether colour goes to a stream: NO_COLOR, then FORCE_COLOR, then a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    """Return the text in a colour, where the stream takes one."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if coloured(stream or sys.stdout) else text


def say(text: str = "") -> None:
    """Print one line of human output."""
    sys.stdout.write(text + "\n")


def tell(text: str) -> None:
    """Print one line about this run on standard error; nobody may be there to read it."""
    try:
        sys.stderr.write(f"stockade: {clean(text)}\n")
        sys.stderr.flush()
    except OSError:
        return


def emit(schema: str, document: Mapping[str, Any]) -> None:
    """Print one JSON document with its schema first."""
    import json

    text = json.dumps({"schema": schema, **document}, indent=1, ensure_ascii=False, default=str)
    # A path that is not UTF-8 has no JSON spelling; the document stays readable.
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode("utf-8") + "\n")


def table(rows: Iterable[Sequence[object]], *, head: Sequence[str] = (), indent: str = "") -> None:
    """Print aligned columns; the last one is not padded."""
    lines = [tuple(clean(cell) for cell in row) for row in rows]
    every = [tuple(head), *lines] if head else lines
    if not every:
        return
    widths = [max(len(line[column]) for line in every) for column in range(len(every[0]))]
    for number, line in enumerate(every):
        text = indent + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        say(paint(text, "dim") if head and number == 0 else text)


def size(number: float) -> str:
    """Return a size for people: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return ""


def age(seconds: float) -> str:
    """Return a duration for people in one unit: 3s, 12m, 5h, 9d."""
    for limit, unit, length in ((120, "s", 1), (7200, "m", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{max(0, int(seconds)) // length}{unit}"
    return f"{int(seconds) // 86_400}d"


class Progress:
    """A bar on standard error for what takes longer than two seconds; a terminal only.

    ``step`` may be called as often as one likes.
    """

    def __init__(self, what: str, total: float) -> None:
        self._what, self._total = what, max(total, 1e-9)
        self._started = time.monotonic()
        self._live = sys.stderr.isatty()
        self._drawn = False

    def step(self, done: float) -> None:
        """Say how much is done."""
        if not self._live or time.monotonic() - self._started < PROGRESS_AFTER_S:
            return
        part = min(1.0, done / self._total)
        filled = int(part * _WIDTH)
        bar = "#" * filled + "-" * (_WIDTH - filled)
        sys.stderr.write(f"\r{self._what} [{bar}] {part * 100:3.0f} %")
        sys.stderr.flush()
        self._drawn = True

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
