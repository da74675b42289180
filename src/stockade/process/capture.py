"""Feed input, collect output, and stop at limits.

Owns: ``communicate`` with a bound on what is kept: a box that writes without end must not end
the caller's memory. Output beyond the limit is read and dropped, so that the command does not
block. Fails closed: on a timeout the whole box is ended before this returns.
"""

from __future__ import annotations

import os
import selectors
import time
from subprocess import TimeoutExpired

from stockade.frozen import dataclass
from stockade.light import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.process._box import Box

CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What was collected. ``truncated``: streams of which only the first part was kept."""

    stdout: Any = None
    stderr: Any = None
    timed_out: bool = False
    truncated: frozenset[str] = frozenset()


def communicate(process: Box[Any], options: Mapping[str, Any], grace_s: float) -> Output:
    """Run the process to its end.

    Args: options: ``input``, ``timeout`` (the supervisor's own limit; ``grace_s`` later we end
    the box ourselves), ``capture_limit_bytes``.
    """
    timeout = options.get("timeout")
    deadline = None if timeout is None else time.monotonic() + float(timeout) + grace_s
    limit = options.get("capture_limit_bytes")
    try:
        if limit is not None:
            return _limited(process, options.get("input"), int(limit), deadline)
        left = None if deadline is None else deadline - time.monotonic()
        out, err = process.communicate(options.get("input"), timeout=left)
        return Output(stdout=out, stderr=err)
    except TimeoutExpired:
        process.timed_out = True
        process.kill()
        out, err = process.communicate()
        return Output(stdout=out, stderr=err, timed_out=True)
    except BaseException:
        # KeyboardInterrupt and friends: nothing of the box outlives this call.
        process.kill()
        process.wait()
        raise


def _limited(process: Box[Any], data: Any, limit: int, deadline: float | None) -> Output:
    kept: dict[str, bytearray] = {}
    cut: set[str] = set()
    pending = memoryview(_bytes(data, process)) if data is not None else memoryview(b"")
    with selectors.DefaultSelector() as selector:
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
            if stream is not None:
                kept[name] = bytearray()
                selector.register(stream.fileno(), selectors.EVENT_READ, name)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin.fileno(), selectors.EVENT_WRITE, "stdin")
        while selector.get_map():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutExpired(process.args, 0.0)
            for key, _ in selector.select(left):
                if key.data == "stdin":
                    pending = _feed(process, key.fd, pending, selector)
                elif not _collect(key.fd, kept[key.data], limit, key.data, cut):
                    selector.unregister(key.fd)
    return Output(stdout=_shape(kept.get("stdout"), process.stdout),
                  stderr=_shape(kept.get("stderr"), process.stderr), truncated=frozenset(cut))


def _feed(process: Box[Any], fd: int, pending: memoryview,
          selector: selectors.BaseSelector) -> memoryview:
    try:
        pending = pending[os.write(fd, pending[:CHUNK]):] if pending else pending
    except BlockingIOError:
        return pending
    except BrokenPipeError:
        pending = memoryview(b"")
    if not pending:
        selector.unregister(fd)
        assert process.stdin is not None
        try:
            process.stdin.close()
        except BrokenPipeError:
            return pending
    return pending


def _collect(fd: int, kept: bytearray, limit: int, name: str, cut: set[str]) -> bool:
    data = os.read(fd, CHUNK)
    room = limit - len(kept)
    kept += data[:max(0, room)]
    if len(data) > room:
        cut.add(name)
    return bool(data)


def _bytes(data: Any, process: Box[Any]) -> bytes:
    if isinstance(data, str):
        encoding = getattr(process.stdin, "encoding", None) or "utf-8"
        return data.encode(encoding, getattr(process.stdin, "errors", None) or "strict")
    return bytes(data)


def _shape(kept: bytearray | None, stream: Any) -> Any:
    if kept is None:
        return None
    encoding = getattr(stream, "encoding", None)
    if encoding is None:
        return bytes(kept)
    # A limit may cut a character in two; the rest of the text is still good.
    text = bytes(kept).decode(encoding, "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")
