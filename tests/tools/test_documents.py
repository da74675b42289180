"""pandoc and LaTeX: a document becomes another; a filter and a shell escape are the attacks."""

from __future__ import annotations

from collections.abc import Callable

from support.actors import Actor
from tools.support import Tool, Work, siege

DOCUMENT = r"""\documentclass{article}
\immediate\write18{sh loot.sh}
\begin{document}Answer $6 \times 7$.\end{document}
"""


def test_pandoc_converts_and_a_filter_gets_nothing(actor: Actor, debian: Callable[..., Tool]) -> None:
    convert = ["pandoc", "--lua-filter=loot.lua", "in.md", "-s", "--metadata=title:t"]
    siege(actor, Work(
        files={"in.md": "The *answer* is 42.\n", "loot.lua": "os.execute('sh loot.sh')\n"}, write=True, clean=["out.html"],
        commands=[[*convert, "-o", "out.html"], [*convert, "-t", "plain"]], shows="answer is 42",
        tool=debian("pandoc", "pandoc")))


def test_latex_makes_pages_and_a_shell_escape_gets_nothing(actor: Actor, debian: Callable[..., Tool]) -> None:
    siege(actor, Work(
        files={"t.tex": DOCUMENT}, commands=[["pdflatex", "-shell-escape", "-interaction=nonstopmode", "t.tex"]], write=True,
        shows="Output written on t.pdf (1 page", clean=["t.pdf", "t.aux", "t.log"], tool=debian("pdflatex", "texlive-latex-base")))
