"""Receipts on the command line: where they go, how they read, and what is said after the end.

Owns: delivery to a file, a descriptor or standard output, and the lines after a run. Fails closed:
the place is opened before the start and written through that descriptor, because the box may
rename the directory it lies in meanwhile. Lines after a run name facts of the receipt alone; what
the command printed is never read. Read next: ``stockade.process.receipt``.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import sys
from functools import partial

from stockade.cli.output import clean, closed, paint, say, size, table
from stockade.errors import ConfigError, Error, LaunchFailed
from stockade.light import Callable, Iterator, Mapping, Sequence
from stockade.process.receipt import SCHEMA, Receipt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STATES = {"kept": "green", "not_kept": "red", "waived": "yellow"}
_SHOWN = 5
# The person at the terminal ended it; that needs no explanation.
_ASKED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE})


class Sink:
    """Where one receipt goes: ``send`` takes the document; None prints a table instead.

    Both methods raise LaunchFailed ``report_failed``: a caller that asked for a receipt must not
    take the command's own status for the whole answer when there is none.
    """

    def __init__(self, send: Callable[[bytes], None] | None) -> None:
        self._send = send

    def write(self, receipt: Receipt) -> None:
        """Deliver the receipt of a run that started."""
        try:
            if self._send is not None:
                self._send(_encode(receipt.to_json()))
                return
            sys.stdout.flush()
            show(receipt)
            sys.stdout.flush()
        except OSError as error:
            raise _lost(error, f"receipt of run {receipt.run_id}", f"stockade show {receipt.run_id}") from None

    def refused(self, error: Error) -> None:
        """Deliver that nothing was started: a document without a tier, never a table."""
        if self._send is not None:
            record = error.record if isinstance(error, LaunchFailed) else None
            document = {"schema": SCHEMA, "launch": None, "end": None, "refused": record or error.to_json()}
            try:
                self._send(_encode(document))
            except OSError as failure:
                raise _lost(failure, "receipt of a refusal", None) from None


def _lost(error: OSError, what: str, hint: str | None) -> LaunchFailed:
    import errno

    from stockade.cli import unwritten

    name = errno.errorcode.get(error.errno or 0, str(error))
    unwritten()  # said here, so that nobody says it again
    return LaunchFailed("report_failed", f"{what}: cannot be written ({name})", hint=hint)


def _encode(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view):]


def _replace(directory: int, name: str, data: bytes) -> None:
    """Replace a file whole, through the descriptor of its directory."""
    temporary = f".{name}.{os.urandom(6).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        _write_all(descriptor, data)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(temporary, dir_fd=directory)
        raise
    finally:
        os.close(descriptor)


def open_sink(target: str) -> Sink:
    """Return the sink of ``--receipt``; it is known to be writable.

    Raises: ConfigError ``value_invalid``.
    """
    if target == "-":
        if 1 in closed:
            raise ConfigError("value_invalid", "--receipt '-': standard output is closed")
        return Sink(None)
    if target.startswith("fd:"):
        return Sink(partial(_write_all, _descriptor(target)))
    path = os.path.abspath(os.path.expanduser(target))
    try:
        if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            return Sink(partial(_write_all, os.open(path, os.O_WRONLY | os.O_CLOEXEC)))
        directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError("value_invalid", f"--receipt {target!r}: cannot be written ({error.strerror})") from None
    if not os.access(os.path.dirname(path), os.W_OK | os.X_OK) or os.path.isdir(path):
        raise ConfigError("value_invalid", f"--receipt {target!r}: cannot be written")
    return Sink(partial(_replace, directory, os.path.basename(path)))


def _descriptor(target: str) -> int:
    digits = target.removeprefix("fd:")
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 7 else -1
    try:
        flags = fcntl.fcntl(number, fcntl.F_GETFL) if number >= 0 and number not in closed else os.O_RDONLY
    except OSError:
        flags = os.O_RDONLY
    if flags & os.O_ACCMODE == os.O_RDONLY:
        raise ConfigError("value_invalid", f"--receipt {target!r}: got no descriptor open for writing")
    return number


def show(receipt: Receipt) -> None:
    """Print a receipt: the answer in one line, then every promise of the requested tier."""
    launch, end = receipt.launch, receipt.end
    # A promise that only a higher tier makes is no loss of this one.
    rows = [row for row in receipt.promises if row.state != "not_kept" or row.id in receipt.missing]
    kept, of = receipt.kept, receipt.of
    through = launch.get("decision") == "passthrough" and not launch.get("tier_downgrade")
    if through:
        # Counted are the promises of the tier that was asked for; listed is what the stronger box around keeps.
        kept, of = sum(row.state == "kept" for row in rows), len(rows)
    say(f"{paint(receipt.effective_tier, 'bold')} · kept {kept} of {of} · net {clean(receipt.net)} · "
        f"backend {clean(receipt.backend)} · run {clean(receipt.run_id)}")
    if receipt.missing:
        say(f"asked for {clean(receipt.requested_tier)}, missing {clean(' '.join(receipt.missing))}")
    if through:
        say(f"asked for {clean(receipt.requested_tier)}: passed through, "
            f"the {clean(receipt.effective_tier)} box around keeps it")
    width = max((len(row.id) for row in rows), default=0)
    for row in rows:
        how = " ".join(row.mechanism) or row.reason or ""
        say(f"  {clean(row.id).ljust(width)}  {paint(row.state.ljust(8), _STATES.get(row.state, 'dim'))}  {clean(how)}")
    table([*_facts(receipt, launch), *(_end(receipt, end, through=through) if end is not None else ())], indent="  ")


def _facts(receipt: Receipt, launch: Any) -> Iterator[tuple[str, str]]:
    yield "command", str(launch.get("argv0", ""))
    yield "cwd", str(launch.get("cwd", ""))
    if launch.get("profiles"):
        yield "profile", " ".join(launch["profiles"])
    yield "env", f"{len(launch.get('env_kept', ()))} kept, {len(launch.get('env_dropped', ()))} dropped"
    for limit in launch.get("limits", ()):
        yield "limit", _limit(limit)
    if receipt.plan:
        yield "plan", receipt.plan


def _limit(limit: Any) -> str:
    exact = "" if limit.get("exact") else ", not exact"
    by = f"by {limit.get('mechanism')}{exact}"
    if limit.get("name") == "core_bytes":
        return f"core dumps off {by} (1 byte: at 0 a piped handler would still start)"
    return f"{limit.get('name')} {limit.get('value')} {by}"


def _end(receipt: Receipt, end: Any, *, through: bool) -> Iterator[tuple[str, str]]:
    how = f"signal {end['signal']}" if end.get("signal") else f"status {end.get('exit_code')}"
    yield "end", f"{receipt.outcome}, {how}"
    used = [f"{end[key]} {unit}" for key, unit in (("wall_ms", "ms wall"), ("cpu_ms", "ms cpu"))
            if end.get(key) is not None]
    peak = end.get("max_rss_bytes")
    yield "used", ", ".join([*used, *([f"{size(peak)} at most"] if peak is not None else [])])
    for item in receipt.persistence:
        yield "persistence", f"{item['change']} {os.path.join(item['root'], item['path'])}{_fate(item)}"
    for item in receipt.persistence:
        if item.get("restore"):
            yield "restore", item["restore"]
    if end.get("quarantine"):
        yield "quarantine", f"all that was moved, with the line that puts each back: {end['quarantine']}"
    for run in receipt.earlier:
        yield "earlier", f"run {run['run_id']} was killed, and left {len(run['persistence'])} changes{_listed(run)}"
    for item in receipt.copyback:
        yield "copyback", _copied(item)
    if _lost_files(receipt):
        yield "thrown away", _thrown_away(receipt, shown=len(receipt.discarded["names"]) if receipt.discarded else 0)
    for word in (*end.get("guard_lost", ()), *end.get("degraded", ())):
        if not through or word != "passthrough":
            yield "degraded", str(word)


def after(receipt: Receipt, *, hints: bool, again: str) -> Iterator[str]:
    """Yield what a person should know after a run: facts the supervisor has, or one hint.

    Args: again: how to watch such a run; nothing that is known tells whether the box was why it failed.
    """
    end = receipt.end
    if end is None:
        yield f"the end record is missing; stockade show {receipt.run_id}"
        return
    known = False
    for run in receipt.earlier:
        yield f"run {run['run_id']} was killed: {_persistence(run['persistence'], run['run_id'])}"
    if receipt.persistence:
        known = True
        yield _persistence(receipt.persistence, receipt.run_id)
    if end.get("guard_lost"):
        known = True
        yield f"guards were replaced from outside and put back: {' '.join(end['guard_lost'][:_SHOWN])}"
    if end.get("limit_hit"):
        known = True
    if end.get("limit_hit") not in (None, "wall"):  # the launcher itself says that the time was up
        yield f"ended by the {str(end['limit_hit']).replace('_', ' ')} limit"
    for item in receipt.copyback:
        if item["result"] not in ("unchanged", "written"):
            known = True
            yield f"not copied back: {_copied(item)}"
    yield from lost(receipt)
    failed = bool(end.get("exit_code")) or (end.get("signal") and end["signal"] not in _ASKED)
    if failed and hints and _lost_files(receipt):
        known = True
        yield "hint: --write DIR keeps what is written below DIR; a profile's [[state]] keeps a single file"
    if failed and hints and again and not known:
        yield f"hint: if something was missing in the box, this shows it: {again}"


def lost(receipt: Receipt) -> Iterator[str]:
    """Yield the line about files that are gone with the private home; where no Python stays the launcher has one."""
    if _lost_files(receipt):
        yield f"written to the private home and thrown away: {_thrown_away(receipt, shown=_SHOWN)}"


def _copied(item: Mapping[str, Any]) -> str:
    """Return ``~/.x: conflict, the box's version is /state/copyback/RUN/0``."""
    kept = f", the box's version is {item['kept']}" if item.get("kept") else ""
    return f"{_short(item['path'])}: {str(item['result']).replace('_', ' ')}{kept}"


def _short(path: str) -> str:
    home = os.path.expanduser("~").rstrip("/") + "/"
    return "~/" + path[len(home):] if path.startswith(home) else path


def _lost_files(receipt: Receipt) -> int:
    return 0 if receipt.discarded is None else int(receipt.discarded["files"])


def _thrown_away(receipt: Receipt, *, shown: int) -> str:
    """Return ``2 files (1.5 KiB): ~/.foo, ~/.bar``; names are the command's, escaped by who prints them."""
    lost = receipt.discarded
    assert lost is not None
    names = [_short(name) for name in lost["names"][:shown]]
    files, least = lost["files"], "" if lost["complete"] else "at least "
    more = f" and {files - len(names)} more" if files > len(names) else ""
    return f"{least}{files} file{'s' * (files != 1)} ({size(lost['bytes'])}): {', '.join(names)}{more}"


def _fate(item: Mapping[str, Any]) -> str:
    """Return what became of a change where it was to be moved away."""
    if item.get("restore"):
        return ", moved to quarantine"
    left = item.get("left")
    # That a change of what was there is not moved needs no word.
    return f", left: {str(left).replace('_', ' ')}" if left and left != "not_new" else ""


def _listed(run: Mapping[str, Any]) -> str:
    return f", what was moved: {run['quarantine']}" if run.get("quarantine") else ""


def _persistence(items: Sequence[Mapping[str, Any]], run_id: str) -> str:
    def word(item: Mapping[str, Any]) -> str:
        return "moved to quarantine" if item.get("restore") else str(item["change"])

    shown = ", ".join(f"{item['path']} ({word(item)})" for item in items[:_SHOWN])
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return f"places that run code later changed: {shown}{more}; stockade show {run_id}"
