"""Draws docs/bench.svg from the figures of `make bench`: what one start costs, side by side.

Owns: the picture in the README. Standard library only; colours for light and dark pages are in the
file itself. A figure that is missing stops it: a chart of old numbers would be worse than none.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
GROUPS = (("strict, net none", "strict, no network"), ("standard, net host", "standard, the host's network"))
BARS = (
    ("bare", "no box"),
    ("minimal", "minimal helper"),
    ("stockade", "Stockade"),
    ("bubblewrap", "bubblewrap, same mounts"),
)
WIDTH, LEFT, RIGHT, BAR, GAP, HEAD = 760, 200, 80, 18, 8, 34
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f } .head { font-weight: 600 } .note { fill: #57606a; font-size: 12px }
  .bar { fill: #8c959f } .ours { fill: #0969da } .own { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .note { fill: #9198a1 } .bar { fill: #656c76 } .ours { fill: #4493f8 }
  }
"""


def figures(document: dict) -> dict[str, dict[str, float]]:
    """Return the medians in milliseconds of each group, of the ordinary user's run."""
    found = {}
    for row in document["results"]["user"]:
        for start, _ in GROUPS:
            if row["what"] == f"{start}: no-op over bubblewrap":
                found[start] = row["values"]
    missing = [start for start, _ in GROUPS if start not in found]
    if missing:
        raise SystemExit(f"chart: figures: got none for {missing}, expected a whole run (hint: make bench)")
    return found


def bars(values: dict[str, float], top: int, scale: float) -> list[str]:
    """Draw one group."""
    lines = []
    for number, (name, label) in enumerate(BARS):
        y = top + number * (BAR + GAP)
        ours, own = (" ours", "own") if name == "stockade" else ("", "")
        width = max(1.0, values[name] * scale)
        lines += [
            f'<text class="{own}" x="{LEFT - 10}" y="{y + 14}" text-anchor="end">{escape(label)}</text>',
            f'<rect class="bar{ours}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>',
            f'<text class="{own}" x="{LEFT + width + 6:.1f}" y="{y + 14}">{values[name]:.1f} ms</text>',
        ]
    return lines


def svg(document: dict) -> str:
    """Return the picture."""
    found = figures(document)
    scale = (WIDTH - LEFT - RIGHT) / max(max(values[name] for name, _ in BARS) for values in found.values())
    block = HEAD + len(BARS) * (BAR + GAP) + 10
    height = 16 + block * len(GROUPS) + 42
    said = "; ".join(f"{label}: " + ", ".join(f"{name} {found[start][name]:.2f} ms" for name, _ in BARS) for start, label in GROUPS)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        "<title>Starting a no-op in a box</title>", f"<desc>{escape(said)}</desc>", f"<style>{STYLE}</style>",
    ]  # fmt: skip
    for number, (start, label) in enumerate(GROUPS):
        top = 16 + number * block
        lines.append(f'<text class="head" x="{LEFT}" y="{top + 14}">{escape(label)}</text>')
        lines += bars(found[start], top + HEAD - 8, scale)
    machine = f"Medians of {document['runs']} interleaved starts, {document['cpus']} cores, kernel {document['kernel'].split('-')[0]}, {document['peer']}"
    adds = "Only Stockade also applies Landlock and seccomp, watches its guards and writes a receipt."
    lines += [f'<text class="note" x="16" y="{height - 10 - 18 * above}">{escape(text)}</text>' for above, text in ((1, adds), (0, machine))]
    lines.append("</svg>")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Read the figures, write the picture."""
    parser = argparse.ArgumentParser(description="Draw what a start costs.")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "spawn.json", help="figures of make bench")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "bench.svg", help="the picture")
    options = parser.parse_args()
    if not options.json.exists():
        raise SystemExit(f"chart: figures {str(options.json)!r}: got no file, expected those of a run (hint: make bench)")
    options.out.write_text(svg(json.loads(options.json.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
