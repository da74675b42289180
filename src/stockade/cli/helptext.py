"""``--help``, made from the records of the commands."""

from __future__ import annotations

import sys
import textwrap
from typing import TextIO

from stockade.cli.grammar import HELP, Command, Option
from stockade.cli.output import paint

_WIDTH = 100


def show(command: Command, path: str, *, stream: TextIO | None = None) -> int:
    """Print the help of a command; returns 0."""
    out = stream or sys.stdout
    out.write("\n".join(_lines(command, path, out)) + "\n")
    return 0


def _lines(command: Command, path: str, out: TextIO) -> list[str]:
    lines = [f"{path}: {command.summary}", "", f"usage: {_usage(command, path)}"]
    if command.text:
        lines += ["", *textwrap.wrap(command.text, _WIDTH)]
    if command.commands:
        lines += ["", paint("commands", "bold", out)]
        lines += _columns([(item.name, item.summary) for item in command.commands])
    lines += ["", paint("options", "bold", out)]
    lines += _columns([(_spelling(option), _meaning(option)) for option in (*command.options, HELP)])
    for paragraph in command.more:
        lines += ["", *textwrap.wrap(paragraph, _WIDTH)]
    if command.examples:
        lines += ["", paint("examples", "bold", out), *(f"  {example}" for example in command.examples)]
    return lines


def _usage(command: Command, path: str) -> str:
    if command.commands:
        return f"{path} COMMAND ..."
    dash = " [--]" if command.runs else ""
    return f"{path} [OPTION...]{dash} {command.words}".rstrip()


def _spelling(option: Option) -> str:
    names = f"{option.short}, {option.name}" if option.short else option.name
    return f"{names} {option.metavar}".rstrip()


def _meaning(option: Option) -> str:
    # "PATH..." would read as several values behind one option, and the second would be the command.
    return f"{option.help} (may be repeated)" if option.repeat else option.help


def _columns(rows: list[tuple[str, str]]) -> list[str]:
    width = min(34, max(len(left) for left, _ in rows))
    lines: list[str] = []
    for left, right in rows:
        wrapped = textwrap.wrap(right, _WIDTH - width - 4) or [""]
        if len(left) > width:
            lines += [f"  {left}", f"  {'':{width}}  {wrapped[0]}"]
        else:
            lines.append(f"  {left:{width}}  {wrapped[0]}")
        lines += [f"  {'':{width}}  {more}" for more in wrapped[1:]]
    return lines
