"""What the audit log costs, beside a plain log file and SQLite: `python bench/audit.py`.

Owns: events per second of one writer and of eight processes, records per second of ``verify``, and a query of a
million events. Each event is that of a start at strict, 0.8 kB. The peers write the same bytes: ``logging`` with a
file handler, and SQLite with a write-ahead log, one transaction for each event as for each of ours.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from stockade.audit.events import made
from stockade.audit.log import Log
from stockade.audit.query import Filter, events
from stockade.audit.segments import numbers
from stockade.audit.verify import verify
from stockade.ids import timestamp

BATCH, PROCESSES, MILLION = 100, 8, 1_000_000
FORK = multiprocessing.get_context("fork")


def event() -> dict[str, Any]:
    """One start at strict."""
    promises = ["env.secrets", "env.injection", "fs.own_state", "fs.write_roots", "fs.home", "kernel.surface", "net.policy"]
    return made("spawn.started", "wrapped", timestamp(), run_id="01M8PYFJ1C606T8N6Y7Z69VT1M", plan="a" * 64, backend="namespaces",
                actor={"caller": "agent", "app": None, "session": None, "uid": 1000, "pid": 4242, "site": None},
                request={"argv0": "/usr/bin/python3", "argv": None, "cwd": "/home/u/project", "tier": "strict"},
                tiers={"requested_tier": "strict", "active_tier": "off", "tier_known": True, "effective_tier": "strict",
                       "tier_downgrade": False, "kept": promises, "missing": [], "waived": []})


def per_second(count: int, call: Callable[[], object]) -> float:
    """How many of ``count`` a call does in a second."""
    begun = time.perf_counter()
    call()
    return count / (time.perf_counter() - begun)


def alone(log: Log, count: int) -> None:
    """One event at a time."""
    one = event()
    for _ in range(count):
        log.append([one])


def together(where: str, count: int) -> None:
    """Eight processes, one event at a time each."""
    writers = [FORK.Process(target=lambda: alone(Log(where), count // PROCESSES)) for _ in range(PROCESSES)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()


def plain(path: Path, count: int) -> None:
    """``logging`` with a file handler."""
    logger, handler, line = logging.getLogger("bench"), logging.FileHandler(path), json.dumps(event())
    logger.addHandler(handler)
    for _ in range(count):
        logger.warning(line)
    logger.removeHandler(handler)
    handler.close()


def rows(path: Path, count: int) -> None:
    """SQLite, a write-ahead log, no fsync for each transaction."""
    base, line = sqlite3.connect(path, isolation_level=None), json.dumps(event())
    base.executescript("pragma journal_mode=wal; pragma synchronous=normal; create table log (line text)")
    for _ in range(count):
        base.execute("insert into log values (?)", (line,))
    base.close()


def measured(where: Path, count: int) -> Iterator[tuple[str, str, bool | None]]:
    """Yield what was measured, the figure, and whether it is within budget."""
    log = Log(str(where / "audit"))
    alone(log, 100)
    rate = per_second(count, lambda: alone(log, count))
    yield "events per second, one process (budget 20,000)", f"{rate:,.0f}", rate >= 20_000
    yield "the same through logging.FileHandler", f"{per_second(count, lambda: plain(where / 'plain', count)):,.0f}", None
    yield "the same into SQLite, write-ahead log", f"{per_second(count, lambda: rows(where / 'rows', count)):,.0f}", None
    yield "events per second, eight processes", f"{per_second(count, lambda: together(str(where / 'audit'), count)):,.0f}", None
    directory = os.open(where / "audit" / "log", os.O_RDONLY)
    verdict = verify(directory)
    rate = per_second(verdict.records, lambda: verify(directory))
    yield "records per second, verify (budget 100,000)", f"{rate:,.0f}", rate >= 100_000
    lost = verdict.records - (100 + count + count // PROCESSES * PROCESSES + len(numbers(directory)))
    yield "lost or forked by eight processes (budget 0)", str(lost), lost == 0 and verdict.damage is None
    for _ in range((MILLION - verdict.records) // BATCH):
        log.append([event()] * BATCH)
    begun = time.perf_counter()
    found = sum(1 for _ in events(directory, Filter(downgrade=True)))
    seconds = time.perf_counter() - begun
    yield f"query of a million events for downgrades, {found} found (budget 10 s)", f"{seconds:.1f} s", seconds <= 10
    begun = time.perf_counter()
    found = sum(1 for _ in events(directory, Filter(outcome="refused", since="2020")))
    seconds = time.perf_counter() - begun
    yield f"the same for refusals since a time, {found} found (budget 10 s)", f"{seconds:.1f} s", seconds <= 10


def main() -> int:
    """Print the table; status 1 where a budget is missed."""
    parser = argparse.ArgumentParser(description="Measure the audit log beside a plain log file and SQLite.")
    parser.add_argument("--count", type=int, default=20_000, help="events for each row (default 20000)")
    where = Path(tempfile.mkdtemp(prefix="stockade-audit-"))
    good = True
    try:
        for what, figure, within in measured(where, parser.parse_args().count):
            good = good and within is not False
            print(f"{what:<75} {figure:>12} {'' if within is None else 'ok' if within else 'FAIL'}".rstrip(), flush=True)
    finally:
        shutil.rmtree(where)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
