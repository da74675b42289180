"""Appending to the log: any number of processes, one chain.

Owns: the lock under which a record gets its number, and the repair of what a killed writer left. A batch is one
write(2) below the lock, so that no line of one writer stands inside another's; it is in the kernel when
``append`` returns, and on the disk when it was ``critical``. Fails closed: a batch that could not be written
whole is an error (``audit_unavailable``) for all of it, and the next writer says what was left of it. Behind a record
that was changed nothing is written (``audit_damaged``): a chain that goes on from the one before would hide it.
Read next: ``chain.py``, ``verify.py``.
"""

from __future__ import annotations

import fcntl
import os
import time
from hashlib import sha256

from stockade.audit import heads
from stockade.audit.chain import Link, sealed
from stockade.audit.events import made
from stockade.audit.lock import LOCK_TIMEOUT_S, no_lock, take_lock
from stockade.audit.segments import (
    MAX_BATCH_BYTES,
    TORN,
    damaged,
    is_packed,
    link_before,
    name_of,
    numbers,
    open_segment,
    tail_of,
    unavailable,
)
from stockade.errors import Error
from stockade.frozen import dataclass
from stockade.ids import timestamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.audit.heads import Signer
    from stockade.audit.segments import Tail
    from stockade.light import Iterator, Sequence

DIRECTORY, LOCK = "log", "lock"
SEGMENT_BYTES = 64 << 20


@dataclass(slots=True, kw_only=True)
class _Open:
    """The open segment as this process saw it last: where nobody has written since, nothing is read."""

    number: int
    descriptor: int
    size: int
    link: Link
    torn_bytes: int = 0
    unended: bool = False


class Log:
    """One log, held open. Threads of a process must not share one without a lock of their own."""

    def __init__(self, audit: str, *, signer: Signer | None = None, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Args: audit: the ``audit`` directory of the state home; signer: of heads, which have no signature without.

        Raises: Error(audit_unavailable).
        """
        self._signer = signer
        self._segment_bytes = segment_bytes
        self._noted = -heads.EVERY_S
        # Why the last head could not be written; empty where it was.
        self.degraded = ""
        self._open: _Open | None = None
        path = f"{audit}/{DIRECTORY}"
        try:
            os.makedirs(path, 0o700, exist_ok=True)
            self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as err:
            raise unavailable(f"directory {path!r}", err) from err
        try:
            self._open_lock()
        except Error:
            os.close(self._directory)
            raise

    def _open_lock(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._lock = os.open(LOCK, flags, 0o600, dir_fd=self._directory)
        except OSError as err:
            raise unavailable("lock", err) from err
        self._pid = os.getpid()

    def append(self, events: Sequence[dict[str, Any]], *, critical: bool = False,
               timeout_s: float = LOCK_TIMEOUT_S) -> Link:
        """Write events in order; return the link of the last one.

        Raises: Error(audit_unavailable): nobody got the lock in time, or the host did not take the bytes;
        Error(audit_damaged): the last record was changed; Error(audit_invalid): an event has no canonical spelling.
        Nothing of a batch is in the chain then, but where it was ``critical`` and is written, and only the disk or its
        head could not be had: the error says so.
        """
        self._take(timeout_s)
        try:
            place = self._place()
            link = self._write(place, [*self._first(place), *events])
            self._note(link, at_once=critical)
            return link
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def sync(self) -> None:
        """Bring what is written to the disk. Raises: Error(audit_unavailable)."""
        if self._open is None:
            return
        try:
            os.fdatasync(self._open.descriptor)
        except OSError as err:
            raise unavailable(f"segment {name_of(self._open.number)}", err) from err

    def forget_heads(self, last_seq: int) -> None:
        """Remove the heads of records up to a number, which were pruned. Raises: Error(audit_unavailable)."""
        self._take(LOCK_TIMEOUT_S)
        try:
            heads.drop(self._directory, last_seq)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the files, with a head of what this process wrote last. Raises: as ``append``."""
        try:
            if self._open is not None:
                self._last_head(self._open)
        finally:
            self._forget()
            os.close(self._lock)
            os.close(self._directory)

    def _last_head(self, place: _Open) -> None:
        self._take(LOCK_TIMEOUT_S)
        try:
            # Whoever has written behind it may have a head there, too.
            is_last = os.fstat(place.descriptor).st_size == place.size and not self._exists(place.number + 1)
            self.sync()
            heads.note(self._directory, place.link, self._signer, at_once=True, is_last=is_last)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _note(self, link: Link, *, at_once: bool) -> None:
        """A head, where it is time for one: what this process knows of that spares a look at the file."""
        if not at_once and time.monotonic() < self._noted + heads.EVERY_S:
            return
        self._noted = time.monotonic()
        try:
            self.sync()  # a head that is on the disk without its record would make the log look cut
            heads.note(self._directory, link, self._signer, at_once=at_once)
            self.degraded = ""
        except Error as err:
            # The records are in the chain; the next head stands for them, too.
            self.degraded = err.message
            if at_once:
                raise Error(err.code, f"{err.message}; the records are written, and may not be kept") from err

    def _take(self, timeout_s: float) -> None:
        if self._pid != os.getpid():
            # flock(2): a lock belongs to the open file, which a fork shares. Both would have it at once.
            os.close(self._lock)
            self._open_lock()
        if not take_lock(self._lock, timeout_s):
            raise no_lock(timeout_s)

    def _place(self) -> _Open:
        """The segment to write to, as it is now."""
        place = self._open
        info = os.fstat(place.descriptor) if place is not None else None
        if place is None or info is None or info.st_nlink == 0 or self._exists(place.number + 1):
            place = self._begin(self._newest())
            info = os.fstat(place.descriptor)
        if info.st_size != place.size:
            tail = self._tail(place)
            place.link = tail.link or link_before(self._directory, place.number)
            place.size, place.torn_bytes, place.unended = info.st_size, tail.torn_bytes, tail.unended
        if place.size < self._segment_bytes or place.torn_bytes or place.unended:
            return place
        self.sync()  # nobody comes back to it
        link, following = place.link, self._begin(place.number + 1)
        following.link, following.size = link, 0
        return following

    def _tail(self, place: _Open) -> Tail:
        tail = tail_of(place.descriptor)
        if not tail.damaged:
            return tail
        self._forget()
        raise damaged(place.number)

    def _newest(self) -> int:
        """The segment that is written to; where it went, not the one before that is closed and packed."""
        number = (numbers(self._directory) or [1])[-1]
        return number + is_packed(self._directory, number)

    def _exists(self, number: int) -> bool:
        try:
            os.stat(name_of(number), dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as err:
            raise unavailable(f"segment {name_of(number)}", err) from err
        return True

    def _begin(self, number: int) -> _Open:
        self._forget()
        there = self._exists(number)
        descriptor = open_segment(self._directory, number, make=True)
        if not there:
            self._sync_names()
        self._open = _Open(number=number, descriptor=descriptor, size=-1, link=Link())
        return self._open

    def _sync_names(self) -> None:
        """A file that was made is on the disk with its name only when its directory is."""
        try:
            os.fsync(self._directory)
        except OSError as err:
            raise unavailable("directory", err) from err

    def _first(self, place: _Open) -> Iterator[dict[str, Any]]:
        """What has to be said before the events: of a new segment, or of what a killed writer left."""
        if place.torn_bytes:
            left = os.pread(place.descriptor, place.torn_bytes, place.size - place.torn_bytes)
            detail = {"segment": place.number, "bytes": len(left), "sha256": sha256(left).hexdigest()}
            yield made("audit.torn", "failed", timestamp(), detail=detail)
        elif place.size == 0:
            detail = {"segment": place.number, "records_before": place.link.seq}
            yield made("audit.segment", "completed", timestamp(), detail=detail)

    def _write(self, place: _Open, events: Sequence[dict[str, Any]]) -> Link:
        link, lines = place.link, [TORN + b"\n"] if place.torn_bytes else [b"\n"] if place.unended else []
        for one in events:
            line, link = sealed(one, link)
            lines.append(line)
        data = b"".join(lines)
        if len(data) > MAX_BATCH_BYTES:
            raise Error("audit_invalid",
                        f"audit events: got {len(data)} bytes at once, expected {MAX_BATCH_BYTES} at most")
        try:
            wrote = os.write(place.descriptor, data)
            if wrote < len(data):
                os.ftruncate(place.descriptor, place.size)
                raise Error("audit_unavailable",
                            f"audit log: got {wrote} of {len(data)} bytes written; the disk is full")
        except OSError as err:
            self._forget()
            raise unavailable(f"segment {name_of(place.number)}", err) from err
        place.link, place.size, place.torn_bytes, place.unended = link, place.size + wrote, 0, False
        return link

    def _forget(self) -> None:
        held, self._open = self._open, None
        if held is not None:
            os.close(held.descriptor)
