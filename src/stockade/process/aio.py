"""``run_async`` and ``spawn``: the asyncio half of the Python interface.

Owns: streams, the wait for launch and end, cancellation. No thread waits for a child: the report
pipe and a pidfd are watched by the event loop. Fails closed: a cancelled call has ended its whole
box before ``CancelledError`` leaves it. Read next: ``api.py``, ``_exec.py``.
"""

from __future__ import annotations

import asyncio
import errno
import os

from stockade.errors import ConfigError, Refused, TimedOut, limit_of, shortage
from stockade.light import Generator, Mapping
from stockade.process import _exec, downgrade, tmpdisk
from stockade.process.api import (
    Completed,
    capturing,
    check_names,
    check_process_options,
    grace_of,
    popen_options,
    request_of,
    start_of,
    timeout_of,
)
from stockade.process.capture import CHUNK
from stockade.process.options import Args, collected
from stockade.process.prepare import Prepared
from stockade.process.receipt import Receipt
from stockade.process.refusals import prepare_to_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Literal, Never, Unpack, overload

    from stockade.process.options import Class, Env, Path, Paths, RunOptions, Stream, Text, TierName, Words

STREAM_LIMIT = 1 << 16


class Process:
    """A running box, in the words of ``asyncio.subprocess.Process``."""

    def __init__(self, box: _exec.Box[bytes], tmp: str | None) -> None:
        self._box = box
        self._tmp = tmp
        self._end = asyncio.get_running_loop().create_future()
        self._pidfd: int | None = None
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        return self._box.pid

    @property
    def returncode(self) -> int | None:
        """Status of the command, or None while the box lives."""
        return self._box.returncode

    @property
    def receipt(self) -> Receipt | None:
        """What is known so far."""
        return self._box.receipt

    async def wait(self) -> int:
        """Wait for the end of the box and return the command's status."""
        status: int = await asyncio.shield(self._end)
        return status

    def send_signal(self, signal: int) -> None:
        """Send a signal to the command; SIGKILL ends the whole box."""
        self._box.send_signal(signal)

    def terminate(self) -> None:
        """Send SIGTERM to the command."""
        self._box.terminate()

    def kill(self) -> None:
        """End every process of the box."""
        self._box.kill()

    async def communicate(self, input: bytes | None = None) -> tuple[bytes | None, bytes | None]:
        """Send input, read both streams to their end, wait; returns (stdout, stderr)."""
        _, out, err = await asyncio.gather(self._feed(input), _read_all(self.stdout), _read_all(self.stderr))
        await self.wait()
        return out, err

    async def _feed(self, data: bytes | None) -> None:
        if self.stdin is None:
            return
        try:
            if data:
                self.stdin.write(data)
                await self.stdin.drain()
            self.stdin.close()
            await self.stdin.wait_closed()
        except (BrokenPipeError, ConnectionResetError):
            return

    # -- start and end ---------------------------------------------------------------------

    async def _start(self) -> None:
        await self._connect()
        await self._started()
        loop = asyncio.get_running_loop()
        self._pidfd = _exec.above_streams(os.pidfd_open(self._box.pid))
        loop.add_reader(self._pidfd, self._ended)
        if self._box.report_fd is not None:
            loop.add_reader(self._box.report_fd, self._report)

    async def _started(self) -> None:
        """Wait for the launch record without blocking the loop."""
        loop = asyncio.get_running_loop()
        while not self._box.decided and self._box.report_fd is not None:
            ready = loop.create_future()
            fd = self._box.report_fd
            loop.add_reader(fd, _wake, ready)
            try:
                await ready
            finally:
                loop.remove_reader(fd)
            self._box.read_report()
        self._box.check_started()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        box = self._box
        if box.stdout is not None:
            self.stdout = await _reader(loop, box.stdout)
        if box.stderr is not None:
            self.stderr = await _reader(loop, box.stderr)
        if box.stdin is not None:
            # This protocol knows when the transport is closed; the pipe never gives it data.
            transport, protocol = await loop.connect_write_pipe(
                lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), loop=loop), box.stdin)
            self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)

    def _report(self) -> None:
        fd = self._box.report_fd
        if fd is None:
            return
        # The descriptor is closed inside at its end: it leaves the loop first.
        asyncio.get_running_loop().remove_reader(fd)
        if not self._box.read_report() and self._box.report_fd is not None:
            asyncio.get_running_loop().add_reader(self._box.report_fd, self._report)

    def _ended(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._pidfd is not None
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = None
        if self._box.report_fd is not None:
            loop.remove_reader(self._box.report_fd)
        status = self._box.wait()
        tmpdisk.remove(self._tmp)
        self._tmp = None
        if not self._end.done():
            self._end.set_result(status)

    async def _abandon(self) -> None:
        """End the box and wait for it, whatever else is going on."""
        if self._box.returncode is None:
            self._box.kill()
        if self._pidfd is not None:
            await asyncio.shield(self._end)
        else:
            self._box.wait()
            tmpdisk.remove(self._tmp)
        self._close()

    def _close(self) -> None:
        if self.stdin is not None:
            self.stdin.close()


async def _reader(loop: asyncio.AbstractEventLoop, pipe: Any) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=STREAM_LIMIT, loop=loop)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader, loop=loop), pipe)
    return reader


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _read_all(reader: asyncio.StreamReader | None, limit: int | None = None) -> bytes | None:
    if reader is None:
        return None
    kept = bytearray()
    while data := await reader.read(CHUNK):
        kept += data if limit is None else data[:max(0, limit + 1 - len(kept))]
    return bytes(kept)


class Spawn:
    """What ``spawn`` returns: ``async with`` ends the box, plain ``await`` leaves it to you."""

    def __init__(self, args: Args, options: Mapping[str, Any]) -> None:
        self._args = args
        self._options = options
        self._process: Process | None = None

    def __await__(self) -> Generator[Any, None, Process]:
        return _spawn(self._args, self._options).__await__()

    async def __aenter__(self) -> Process:
        self._process = await _spawn(self._args, self._options)
        return self._process

    async def __aexit__(self, *exc: Any) -> None:
        assert self._process is not None
        await asyncio.shield(asyncio.ensure_future(self._process._abandon()))


def spawn(
    args: Args, *, tier: TierName = "auto", caller: Class = "generated", profile: Paths = (),
    cwd: Path | None = None, read: Paths = (), write: Paths = (), hide: Paths = (), sockets: Paths = (),
    devices: Paths = (), allow: Words = (), net: Words | None = None, env: Env | None = None,
    set_env: Env | None = None, pass_env: Text | Iterable[Text] = (),
    limits: Mapping[str, int | float | str | None] | None = None, accept: Words = (), cache: str | None = None,
    tmp: str | None = None, on_persistence: str | None = None, stdin: Stream = None, stdout: Stream = None,
    stderr: Stream = None, pipesize: int = -1, pass_fds: Iterable[int] = (), umask: int = -1,
    restore_signals: bool = True, start_new_session: bool = False, process_group: int | None = None,
    **refused: Never,
) -> Spawn:
    """Start a command in a box under asyncio.

    Use ``async with`` (the box is ended when the block is left) or plain ``await``. Streams are
    bytes. Raises (when awaited): Refused, ConfigError, LaunchFailed, AuditUnavailable.
    """
    return Spawn(args, collected(locals()))


async def _spawn(args: Args, options: Mapping[str, Any]) -> Process:
    check_process_options(options, capturing=False)
    for name in ("text", "encoding", "errors", "bufsize", "universal_newlines"):
        if options.get(name):
            raise ConfigError("option_refused", f"option {name!r}: asyncio streams are bytes")
    prepared = await _prepared(args, options)
    downgrade.tell(prepared)
    return await _start(prepared, options)


async def _prepared(args: Args, options: Mapping[str, Any]) -> Prepared:
    """Check and prepare beside the loop: both look at files. Raises: as ``prepare_to_start``; Refused(resource)."""
    check_names(options)
    try:
        return await asyncio.to_thread(lambda: prepare_to_start(request_of(args, options)))
    except OSError as err:  # the executor's modules are loaded by the first call
        short = shortage(err, "preparation of the box")
        if short is None:
            raise
        raise short from err
    except RuntimeError as err:
        if "start new thread" not in str(err):
            raise
        limit, hint = limit_of(errno.EAGAIN)
        raise Refused("resource", f"preparation of the box: no thread could be made (EAGAIN{limit and f'; {limit}'})",
                      hint=hint) from err


async def _start(prepared: Prepared, options: Mapping[str, Any]) -> Process:
    tmp = tmpdisk.make(prepared)
    popen = {**popen_options(options), "bufsize": 0}
    try:
        box: _exec.Box[bytes] = _exec.Box(start_of(prepared, options, tmp), defer=True, **popen)
    except BaseException:
        tmpdisk.remove(tmp)
        raise
    process = Process(box, tmp)
    try:
        await process._start()
    except BaseException:
        await asyncio.shield(asyncio.ensure_future(process._abandon()))
        raise
    return process


if TYPE_CHECKING:
    @overload
    async def run_async(args: Args, *, text: Literal[True], encoding: str | None = None, errors: str | None = None,
                        **options: Unpack[RunOptions]) -> Completed[str]: ...
    @overload
    async def run_async(args: Args, *, text: bool | None = None, encoding: str, errors: str | None = None,
                        **options: Unpack[RunOptions]) -> Completed[str]: ...
    @overload
    async def run_async(args: Args, *, text: Literal[False] | None = None, encoding: None = None,
                        errors: None = None, **options: Unpack[RunOptions]) -> Completed[bytes]: ...
    @overload
    async def run_async(args: Args, *, text: bool | None = None, encoding: str | None = None,
                        errors: str | None = None, **options: Unpack[RunOptions]) -> Completed[Any]: ...


async def run_async(
    args: Args, *, tier: TierName = "auto", caller: Class = "generated", profile: Paths = (),
    cwd: Path | None = None, read: Paths = (), write: Paths = (), hide: Paths = (), sockets: Paths = (),
    devices: Paths = (), allow: Words = (), net: Words | None = None, env: Env | None = None,
    set_env: Env | None = None, pass_env: Text | Iterable[Text] = (),
    limits: Mapping[str, int | float | str | None] | None = None, accept: Words = (), cache: str | None = None,
    tmp: str | None = None, on_persistence: str | None = None, input: Text | None = None, stdin: Stream = None,
    stdout: Stream = None, stderr: Stream = None, capture_output: bool = False,
    capture_limit_bytes: int | None = None, text: bool | None = None, encoding: str | None = None,
    errors: str | None = None, bufsize: int = -1, pipesize: int = -1, timeout: float | None = None,
    check: bool = False, pass_fds: Iterable[int] = (), umask: int = -1, restore_signals: bool = True,
    start_new_session: bool = False, process_group: int | None = None, **refused: Any,
) -> Completed[Any]:
    """Run a command in a box under asyncio; arguments and result as ``run``.

    Cancelling ends the whole box (at tier off: the command) before ``CancelledError`` leaves.
    """
    return await run_async_with(args, collected(locals()))


async def run_async_with(args: Args, options: Mapping[str, Any]) -> Completed[Any]:
    """Do what ``run_async`` does, with the options as a table."""
    check_process_options(options, capturing=True)
    prepared = await _prepared(args, options)
    downgrade.tell(prepared)
    process = await _start(prepared, _streams(options))
    try:
        done = await _collect(process, prepared, options, _encoding(options))
    except BaseException:
        await asyncio.shield(asyncio.ensure_future(process._abandon()))
        raise
    if options.get("check"):
        done.check_returncode()
    return done


def _streams(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with byte pipes: what the caller wants of them is done after the end."""
    return {name: value for name, value in capturing(options).items()
            if name not in ("text", "encoding", "errors", "bufsize", "input")}


def _encoding(options: Mapping[str, Any]) -> str | None:
    wants_text = options.get("text") or options.get("encoding") or options.get("errors")
    return str(options.get("encoding") or "utf-8") if wants_text else None


async def _collect(process: Process, prepared: Prepared, options: Mapping[str, Any],
                   encoding: str | None) -> Completed[Any]:
    data = options.get("input")
    if isinstance(data, str):
        data = data.encode(encoding or "utf-8")
    limit = options.get("capture_limit_bytes")
    work = asyncio.gather(process._feed(data), _read_all(process.stdout, limit), _read_all(process.stderr, limit),
                          process.wait())
    timeout = timeout_of(prepared, options)
    timed_out = False
    try:
        _, out, err, status = await asyncio.wait_for(
            asyncio.shield(work), None if timeout is None else timeout + grace_of(prepared))
    except TimeoutError:
        timed_out = process._box.timed_out = True
        process.kill()
        _, out, err, status = await work
    except BaseException:
        work.cancel()
        raise
    receipt = process.receipt
    assert receipt is not None
    args = list(prepared.request.argv)
    cut = frozenset(name for name, value in (("stdout", out), ("stderr", err))
                    if limit is not None and value is not None and len(value) > limit)
    out, err = (_decode(value, limit, encoding, options.get("errors")) for value in (out, err))
    if timed_out or receipt.outcome == "timed_out":
        raise TimedOut(args, timeout or 0.0, output=out, stderr=err, receipt=receipt)
    return Completed(args, status, out, err, receipt=receipt, truncated=cut)


def _decode(data: bytes | None, limit: int | None, encoding: str | None, errors: str | None) -> Any:
    if data is None:
        return None
    data = data if limit is None else data[:limit]
    if encoding is None:
        return data
    text = data.decode(encoding, errors or ("strict" if limit is None else "replace"))
    return text.replace("\r\n", "\n").replace("\r", "\n")
