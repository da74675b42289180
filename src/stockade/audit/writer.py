"""Many events of one process: they wait for the disk together, and nobody waits for it on an event loop.

Owns: the one thread that writes, the queue before it, and what is said of a log that could not be written. A call
returns when its event is in the kernel; a ``critical`` one when it is on the disk and under a head. Fails closed: a
queue that is full and a log that does not answer in time are ``audit_unavailable`` for the caller, who has the choice
to deny; the first record after that says how many are missing and why (``audit.gap``). Read next: ``log.py``.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque

from stockade.audit.events import made
from stockade.audit.lock import LOCK_TIMEOUT_S
from stockade.audit.log import Log
from stockade.errors import AuditUnavailable, Error
from stockade.frozen import dataclass
from stockade.ids import timestamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from stockade.audit.heads import Signer

QUEUE = 4096
GROUP = 256
SYNC_S = 1.0


@dataclass(slots=True, kw_only=True)
class _Asked:
    """One event and who waits for it: ``tell`` is called once, from the thread that writes."""

    event: dict[str, Any]
    critical: bool
    tell: Callable[[int | None, Error | None], None]


class Writer:
    """The log of a process that lives long. Any thread may use it; after a fork the child makes its own."""

    def __init__(self, audit: str, *, signer: Signer | None = None, queue: int = QUEUE,
                 timeout_s: float = LOCK_TIMEOUT_S) -> None:
        """Args: audit: as ``Log``; queue: events that may wait; timeout_s: how long a caller waits.

        Raises: Error(audit_unavailable).
        """
        self._log = Log(audit, signer=signer)
        self._limit, self._timeout_s = queue, timeout_s
        self._waiting: deque[_Asked] = deque()
        self._news = threading.Condition()
        self._closing = False
        self._missing, self._cause, self._since = 0, "", ""
        self._synced, self._unsynced = time.monotonic(), False
        self._thread = threading.Thread(target=self._serve, name="stockade-audit", daemon=True)
        self._thread.start()

    @property
    def degraded(self) -> str:
        """Why events are missing just now; empty where none is."""
        return self._cause or self._log.degraded

    def write(self, event: dict[str, Any], *, critical: bool = False) -> int:
        """Write one event and return its number in the chain. Raises: AuditUnavailable: it may not be in the log."""
        done = threading.Event()
        got: list[tuple[int | None, Error | None]] = []

        def tell(link: int | None, error: Error | None) -> None:
            got.append((link, error))
            done.set()

        asked = self._ask(event, tell, critical=critical)
        if not done.wait(self._timeout_s):
            raise self._too_late(asked)
        return _answer(*got[0])

    async def write_async(self, event: dict[str, Any], *, critical: bool = False) -> int:
        """Do what ``write`` does, beside the event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[int | None, Error | None]] = loop.create_future()

        def settle(link: int | None, error: Error | None) -> None:
            if not future.done():
                future.set_result((link, error))

        def tell(link: int | None, error: Error | None) -> None:
            try:
                loop.call_soon_threadsafe(settle, link, error)
            except RuntimeError:
                pass  # the loop has ended, and nobody waits

        asked = self._ask(event, tell, critical=critical)
        try:
            async with asyncio.timeout(self._timeout_s):
                return _answer(*await future)
        except TimeoutError:
            raise self._too_late(asked) from None

    def close(self) -> None:
        """Write what waits, then close the log. Raises: Error(audit_unavailable)."""
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join()
        self._log.close()

    def _ask(self, event: dict[str, Any], tell: Callable[[int | None, Error | None], None], *,
             critical: bool) -> _Asked:
        asked = _Asked(event=event, critical=critical, tell=tell)
        with self._news:
            if self._closing:
                raise AuditUnavailable("audit_unavailable", "audit log: got an event after the end, expected none")
            if len(self._waiting) >= self._limit:
                self._miss(1, f"queue: got {self._limit} events that wait, expected fewer")
                raise AuditUnavailable("audit_unavailable", f"audit log: {self._cause}")
            self._waiting.append(asked)
            self._news.notify()
        return asked

    def _too_late(self, asked: _Asked) -> AuditUnavailable:
        """An event that still waits is taken back; one that is being written may be in the log."""
        with self._news:
            if asked in self._waiting:
                self._waiting.remove(asked)
                self._miss(1, f"got no answer in {self._timeout_s:g} s")
        return AuditUnavailable("audit_unavailable", f"audit log: got no answer in {self._timeout_s:g} s, expected one")

    def _miss(self, count: int, cause: str) -> None:
        if not self._missing:
            self._since = timestamp()
        self._missing, self._cause = self._missing + count, cause

    def _serve(self) -> None:
        while (group := self._group()) is not None:
            if group:
                self._commit(group)
            if self._unsynced and (not group or time.monotonic() >= self._synced + SYNC_S):
                self._sync()

    def _group(self) -> list[_Asked] | None:
        """What waits, at most ``GROUP``; empty when nothing came in time; None at the end."""
        with self._news:
            until = self._synced + SYNC_S - time.monotonic() if self._unsynced else None
            if not self._waiting and not self._closing:
                self._news.wait(until if until is None else max(until, 0.0))
            if not self._waiting and self._closing:
                return None
            return [self._waiting.popleft() for _ in range(min(GROUP, len(self._waiting)))]

    def _commit(self, group: list[_Asked]) -> None:
        gap = self._gap()
        try:
            last = self._log.append([*gap, *(asked.event for asked in group)], timeout_s=self._timeout_s,
                                    critical=any(asked.critical for asked in group))
        except Error as err:
            return self._not_written(group, err)
        with self._news:
            self._missing -= sum(event["detail"]["missing"] for event in gap)
            self._cause = self._cause if self._missing else ""
        self._unsynced = True
        for behind, asked in enumerate(reversed(group)):
            asked.tell(last.seq - behind, None)

    def _not_written(self, group: list[_Asked], error: Error) -> None:
        """One event without a canonical spelling stops no other; a log that took nothing is told to all."""
        if error.code == "audit_invalid" and len(group) > 1:
            for asked in group:
                self._commit([asked])
            return
        if error.code != "audit_invalid":
            with self._news:
                self._miss(len(group), error.message)
        for asked in group:
            asked.tell(None, error)

    def _gap(self) -> list[dict[str, Any]]:
        with self._news:
            if not self._missing:
                return []
            detail = {"missing": self._missing, "since": self._since, "cause": self._cause}
        return [made("audit.gap", "failed", timestamp(), detail=detail)]

    def _sync(self) -> None:
        """What is in the kernel goes to the disk, with a head: at most once a second."""
        self._synced, self._unsynced = time.monotonic(), False
        try:
            self._log.sync()
        except Error as err:
            with self._news:
                self._cause = self._cause or err.message


def _answer(number: int | None, error: Error | None) -> int:
    if error is not None or number is None:
        raise error if error is not None and error.code == "audit_invalid" else AuditUnavailable(
            "audit_unavailable", error.message if error is not None else "audit log: got no number, expected one")
    return number
