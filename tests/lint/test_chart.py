"""The chart of the README: drawn from figures, readable on both backgrounds, not older than the table."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "bench" / "chart.py"
VALUES = {"bare": 0.5, "minimal": 2.0, "stockade": 3.25, "bubblewrap": 10.0}


def draw(tmp_path: Path, starts: list[str]) -> tuple[subprocess.CompletedProcess[str], Path]:
    rows = [{"what": f"{start}: no-op over bubblewrap", "values": VALUES} for start in starts]
    document = {"runs": 7, "cpus": 2, "kernel": "6.18.1-x", "peer": "bubblewrap 0.8.0", "results": {"user": rows}}
    (tmp_path / "in.json").write_text(json.dumps(document))
    argv = [sys.executable, str(CHART), "--json", str(tmp_path / "in.json"), "--out", str(tmp_path / "out.svg")]
    return subprocess.run(argv, capture_output=True, text=True, check=False), tmp_path / "out.svg"


def test_bars_are_as_long_as_their_figures(tmp_path: Path) -> None:
    done, path = draw(tmp_path, ["strict, net none", "standard, net host"])
    assert done.returncode == 0, done.stderr
    root = ElementTree.parse(path).getroot()
    widths = [float(rect.attrib["width"]) for rect in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(widths) == 8 and [round(width / widths[3], 2) for width in widths[:4]] == [0.05, 0.2, 0.33, 1.0]
    assert "prefers-color-scheme: dark" in path.read_text() and "3.2 ms" in path.read_text()
    assert max(widths) + 200 < float(root.attrib["width"])


def test_a_figure_that_is_missing_stops_it(tmp_path: Path) -> None:
    done, path = draw(tmp_path, ["strict, net none"])
    assert done.returncode == 1 and "chart: figures: got none for ['standard, net host']" in done.stderr and not path.exists()


def test_the_chart_shows_the_figures_of_the_table() -> None:
    drawn = re.findall(r">([0-9.]+ ms)<", (ROOT / "docs" / "bench.svg").read_text(encoding="utf-8"))
    table = (ROOT / "README.md").read_text(encoding="utf-8")
    for start, (ours, peer) in {"strict, `net none`": (2, 3), "standard, `net host`": (6, 7)}.items():
        row = next(line for line in table.splitlines() if line.startswith(f"| {start}"))
        assert f"| {drawn[ours]}," in row and f"bubblewrap ({drawn[peer]})" in row, "make bench, then make chart"
