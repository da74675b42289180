"""The receipt: what the launcher proved before exec, and how the box ended.

Owns: reading the launcher's records from the report descriptor. Fails closed: a record that is
too long, of another schema, or out of order is ``receipt_invalid``, never a receipt; what the
child printed is never looked at. Read next: ``_exec.py``.
"""

from __future__ import annotations

import errno
import os
import stat

from stockade.errors import TOO_LONG, LaunchFailed, Refused, limit_of
from stockade.frozen import dataclass, field
from stockade.jsontext import loads
from stockade.light import Mapping, MappingProxyType
from stockade.rules.promises import effective_tier, required
from stockade.rules.tiers import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = "stockade.receipt.v1"
MAX_BYTES = 8 << 20  # 5,000 variables by name and 2,000 changed paths stay far below

# Where the error number knows better than the code what would help.
_HINTS = {
    ("chdir_denied", errno.EACCES): "the working directory, or one above it, may not be entered: give it the search "
                                    "permission (chmod u+x), or name another with --cwd",
    ("exec_failed", errno.E2BIG): TOO_LONG,
}

# Shortages that a limit of the caller may have made, whichever step of the launch met it first.
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})

# Refusals that mean our own two halves disagree, not that the host or the request is at fault.
BROKEN = frozenset({"usage", "plan_missing", "plan_unsealed", "plan_owner", "plan_digest",
                    "plan_invalid", "bind_invalid", "report_failed"})

Record = Mapping[str, "Any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseState:
    """One promise in a receipt: ``kept``, ``not_kept`` or ``waived``, and by what."""

    id: str
    state: str
    mechanism: tuple[str, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What was applied (``launch``) and how it ended (``end``; None while it runs or was lost)."""

    launch: Record = field(repr=False)
    end: Record | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        # Names of the environment and paths of the workspace stay out: a repr is logged.
        return f"<Receipt {self.run_id}: {self.summary()}>"

    def summary(self) -> str:
        """Return one line: ``strict · kept 19 of 19 · net none · exited with status 0``."""
        parts = [self.effective_tier, f"kept {self.kept} of {self.of}", f"net {self.net}"]
        if self.missing:
            parts.append(f"missing {' '.join(self.missing)}")
        if self.end is None:
            parts.append("no end yet")
        else:
            how = f"signal {self.end['signal']}" if self.end.get("signal") else f"status {self.end.get('exit_code')}"
            parts.append(f"{str(self.outcome).replace('_', ' ')} with {how}")
        return " · ".join(parts)

    @property
    def run_id(self) -> str:
        """ULID of this run."""
        return str(self.launch["run_id"])

    @property
    def plan(self) -> str | None:
        """Digest of the plan; None for a run without a box of its own."""
        value = self.launch.get("plan")
        return None if value is None else str(value)

    @property
    def backend(self) -> str:
        """``namespaces``, ``landlock``, or ``none`` for a run without a box of its own."""
        return str(self.launch["backend"])

    @property
    def requested_tier(self) -> str:
        """The tier the request resolved to."""
        return str(self.launch["requested_tier"])

    @property
    def effective_tier(self) -> str:
        """The highest tier all of whose required promises were kept, to the end if it is known."""
        told = parse(str(self.launch["effective_tier"]))
        if not self._lost():
            return str(told)
        kept = (row.id for row in self.promises if row.state == "kept")
        return str(min(told, effective_tier(kept, namespaces=self.backend == "namespaces")))

    @property
    def net(self) -> str:
        """``host`` or ``none``."""
        return str(self.launch.get("net", "host"))

    @property
    def kept(self) -> int:
        """Number of promises kept."""
        lost = self._lost()
        rows = self.launch.get("promises", ())
        gone = [row for row in rows if row["id"] in lost and row["state"] == "kept"]
        return int(self.launch.get("kept", 0)) - len(gone)

    @property
    def of(self) -> int:
        """Number of promises of the table."""
        return int(self.launch.get("of", 0))

    @property
    def missing(self) -> tuple[str, ...]:
        """Promises that the requested tier needs and that were not kept."""
        told = tuple(self.launch.get("missing", ()))
        needed = {promise.id for promise in required(parse(self.requested_tier))} if self._lost() else frozenset()
        return (*told, *sorted(self._lost() & needed - set(told)))

    @property
    def promises(self) -> tuple[PromiseState, ...]:
        """Every promise with its state and mechanism; one whose guard was lost was not kept."""
        lost = self._lost()
        return tuple(
            PromiseState(id=row["id"], state="not_kept", reason="guard_lost")
            if row["id"] in lost and row["state"] == "kept" else
            PromiseState(id=row["id"], state=row["state"], reason=row.get("reason"),
                         mechanism=tuple(row.get("mechanism") or ()))
            for row in self.launch.get("promises", ())
        )

    def _lost(self) -> frozenset[str]:
        """Promises that stopped being true while the box ran: the host took a guard away."""
        paths = () if self.end is None else self.end.get("guard_lost", ())
        return frozenset(_promise_of(str(path)) for path in paths)

    @property
    def outcome(self) -> str | None:
        """``exited``, ``signalled``, ``timed_out``, ``limit``, ``guard_lost``, ``persistence``, ``caller_gone`` or
        ``killed``.
        """
        return None if self.end is None else str(self.end["outcome"])

    @property
    def persistence(self) -> tuple[Mapping[str, Any], ...]:
        """Persistence points that appeared or changed while the box ran.

        Each with ``root``, ``path``, ``change``; ``restore``: the shell line that puts back what was
        moved into quarantine; ``left``: why it was not moved, where that was asked for.
        """
        return () if self.end is None else tuple(self.end.get("persistence", ()))

    @property
    def earlier(self) -> tuple[Mapping[str, Any], ...]:
        """Boxes on the same roots that were killed, with the ``persistence`` of each, as this one found them."""
        return () if self.end is None else tuple(self.end.get("earlier", ()))

    @property
    def discarded(self) -> Mapping[str, Any] | None:
        """What was written to the private home and is lost: ``files``, ``bytes``, ``names``, ``complete``.

        None: the end is not known yet, or there was no box.
        """
        return None if self.end is None else self.end.get("discarded")

    @property
    def copyback(self) -> tuple[Mapping[str, Any], ...]:
        """Files of the home that were to be copied back: ``path``, ``result``, ``kept`` (what could not go back)."""
        return () if self.end is None else tuple(self.end.get("copyback", ()))

    def to_json(self) -> dict[str, Any]:
        """Return both records as one plain table, and what they come to together."""
        return {"schema": SCHEMA, "launch": dict(self.launch),
                "end": None if self.end is None else dict(self.end),
                "effective_tier": self.effective_tier, "missing": list(self.missing), "kept": self.kept, "of": self.of}


def _promise_of(path: str) -> str:
    """Return the promise of a guard that was lost: a socket that came back, or a persistence point."""
    try:
        is_socket = stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        is_socket = False
    return "ipc.sockets" if is_socket else "fs.persistence"


class Reader:
    """Collects bytes of the report descriptor and turns whole lines into records."""

    __slots__ = ("_buffer", "_degraded", "_size", "launch", "end", "refused")

    def __init__(self, degraded: tuple[str, ...] = ()) -> None:
        self._degraded = degraded
        self._buffer = b""
        self._size = 0
        self.launch: Record | None = None
        self.end: Record | None = None
        self.refused: Record | None = None

    @property
    def decided(self) -> bool:
        """True once the launch is known to have succeeded or been refused."""
        return self.launch is not None or self.refused is not None

    def feed(self, data: bytes) -> None:
        """Take bytes as read. Raises: LaunchFailed(receipt_invalid)."""
        # (10) Collect the receipt: only the launcher's own descriptor counts as evidence.
        self._size += len(data)
        if self._size > MAX_BYTES:
            raise LaunchFailed("receipt_invalid", f"report: got more than {MAX_BYTES} bytes")
        self._buffer += data
        while b"\n" in self._buffer:
            line, self._buffer = self._buffer.split(b"\n", 1)
            if line:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            record = loads(line)
            schema, kind = record["schema"], record["record"]
        except (ValueError, TypeError, KeyError):
            raise LaunchFailed("receipt_invalid", "report: got a line that is no record") from None
        if schema != SCHEMA:
            raise LaunchFailed("receipt_invalid", f"report: got schema {schema!r}, expected {SCHEMA!r}")
        if kind == "launch" and not self.decided:
            self.launch = MappingProxyType(record)
        elif kind == "refused" and self.launch is None and self.refused is None:
            self.refused = MappingProxyType(record)
        elif kind in ("end", "refused") and self.launch is not None and self.end is None:
            if kind == "end":
                self.end = MappingProxyType({**record, "degraded": [*record.get("degraded", ()), *self._degraded]})
        else:
            raise LaunchFailed("receipt_invalid", f"report: got record {kind!r} out of order")

    def receipt(self) -> Receipt | None:
        """Return the receipt as far as it is known."""
        return None if self.launch is None else Receipt(launch=self.launch, end=self.end)


def refusal(record: Record, returncode: int | None) -> Refused | LaunchFailed:
    """Turn a ``refused`` record into the typed error."""
    code = str(record["code"])
    cause = {"code": code, "errno": record.get("errno_name"), **{key: record.get(key) for key in ("step", "object")}}
    message = str(record.get("message") or record.get("object") or code)
    hint = str(record["hint"]) if record.get("hint") else None
    if code in BROKEN:
        return LaunchFailed(code, message, hint=hint, record=record, returncode=returncode)
    transient = bool(record.get("transient", False))
    limit, raised = limit_of(record.get("errno") or 0)
    # A file that may not grow is a shortage where the caller has a limit, else an end of the file system.
    if (transient and record.get("errno") in _SHORT) or (record.get("errno") == errno.EFBIG and limit):
        transient = True
        code, message, hint = "resource", f"{message} ({limit})" if limit else message, raised
    elif (code, record.get("errno")) in _HINTS:
        hint = _HINTS[code, record["errno"]]
    # The object is stated in the message already when the launcher wrote one.
    step = f"launcher step {record.get('step')}"
    return Refused(code, message, hint=hint, reasons=(step, *_settled(record)),
                   missing=tuple(record.get("missing", ())), transient=transient, cause=cause)


def _settled(record: Record) -> tuple[str, ...]:
    """Return a line for each killed box whose files the launch moved before it was refused."""
    def line(run: Record) -> str:
        moved = sum(1 for change in run["persistence"] if change.get("restore"))
        listed = f", listed in {run['quarantine']}" if run.get("quarantine") else ""
        return f"run {run['run_id']} was killed: {len(run['persistence'])} changes, {moved} moved to quarantine{listed}"

    return tuple(line(run) for run in record.get("earlier") or ())
