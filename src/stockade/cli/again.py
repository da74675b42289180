"""The line that runs a failed command again under ``stockade learn``.

Owns: its words, with every option of the box that was given. Fails closed: it is empty where ``learn``
would be refused; a value of a variable, and what a terminal cannot show as it is, is not repeated.
Read next: ``run.py``, ``learn.py``.
"""

from __future__ import annotations

import shlex

from stockade.cli.commands import BOX
from stockade.cli.grammar import Parsed
from stockade.light import Iterator
from stockade.process.prepare import Prepared

_OTHERWISE = "the same line with learn in place of run"


def learn_line(parsed: Parsed, prepared: Prepared) -> str:
    """Return ``stockade learn --tier strict -- npm ci``, or words for it; empty where nothing could be watched."""
    compiled = prepared.compiled
    if compiled is None or prepared.decision.kind != "wrap" or compiled.plan["backend"] == "landlock":
        return ""
    if any("=" in item for item in parsed.all("env")):
        return _OTHERWISE
    line = shlex.join(["stockade", "learn", *_options(parsed), "--", *parsed.words])
    return line if line.isprintable() else _OTHERWISE


def _options(parsed: Parsed) -> Iterator[str]:
    for option in BOX:
        value = parsed.values.get(option.key)
        for item in value if isinstance(value, list) else () if value is None else (value,):
            yield from (option.name, item)
