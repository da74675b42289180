"""``run``, ``Popen``, ``wrap`` and ``decide``: the blocking half of the Python interface.

Owns: the options of the process (streams, text, timeout, check), in the words of ``subprocess``.
Everything after ``args`` is by keyword. Fails closed: a launch that did not happen is a typed
error, never a result; a tier is only ever reported from a receipt.
Read next: ``prepare.py`` (request to plan), ``_exec.py`` (the process), ``aio.py``.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from stockade.errors import CommandFailed, ConfigError, TimedOut
from stockade.frozen import dataclass, field, replace
from stockade.process import _exec, capture, tmpdisk
from stockade.process.prepare import Prepared, decide_only, launch_of, prepare
from stockade.process.receipt import Receipt
from stockade.rules.request import PROCESS_OPTIONS, Request, build_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.decision import Decision
    from stockade.host.facts import HostFacts

    _CompletedProcess = subprocess.CompletedProcess[Any]
else:
    _CompletedProcess = subprocess.CompletedProcess

Args = Sequence[str | bytes | os.PathLike[str]]

# How long the supervisor may need beyond its own wall-clock limit before we end it ourselves.
GRACE_S = 10.0
# What a sandbox adds to the options of one call.
_OWN = frozenset({"_ceiling", "_start_in"})
_POPEN = ("stdin", "stdout", "stderr", "bufsize", "pipesize", "umask", "restore_signals",
          "start_new_session", "process_group", "encoding", "errors")


class Completed(_CompletedProcess):
    """A finished command: ``subprocess.CompletedProcess`` with its receipt.

    ``truncated``: names of the streams that were longer than ``capture_limit_bytes``.
    """

    def __init__(self, args: Any, returncode: int, stdout: Any = None, stderr: Any = None, *,
                 receipt: Receipt, truncated: frozenset[str] = frozenset()) -> None:
        super().__init__(args, returncode, stdout, stderr)
        self.receipt = receipt
        self.truncated = truncated

    def check_returncode(self) -> None:
        """Raise: CommandFailed if the command did not end with status 0."""
        if self.returncode:
            raise CommandFailed(self.returncode, self.args, output=self.stdout, stderr=self.stderr,
                                receipt=self.receipt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapped:
    """A launch line that can be started any number of times by the same user.

    ``argv`` and ``env`` are complete; ``plan`` is the digest in the plan store.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    plan: str
    decision: Decision

    def mcp(self) -> dict[str, Any]:
        """Return ``{"command", "args", "env"}`` as MCP clients and SDKs take it.

        ``env`` holds only values that the request set itself: clients store this.
        """
        return {"command": self.argv[0], "args": list(self.argv[1:]), "env": dict(self._own)}

    _own: Mapping[str, str] = field(default_factory=dict, repr=False)


def popen_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments for ``subprocess.Popen`` from those of the interface."""
    found = {name: options[name] for name in _POPEN if options.get(name) is not None}
    if options.get("text") and not found.get("encoding"):
        # The locale of a service is often C; a tool's output is UTF-8 all the same.
        found["encoding"] = "utf-8"
    if found.get("errors") and not found.get("encoding"):
        found["encoding"] = "utf-8"
    if options.get("env") is not None:
        found["env"] = dict(options["env"])
    return found


def request_of(args: Args, options: Mapping[str, Any]) -> Request:
    """Return the checked request; names with an underscore are our own, not the caller's."""
    request = build_request(args, **{name: value for name, value in options.items() if name not in _OWN})
    ceiling = options.get("_ceiling")
    return request if ceiling is None else replace(request, ceiling=ceiling)


class Popen(_exec.Box):
    """A boxed command as a ``subprocess.Popen``.

    The constructor returns once the command runs inside the box and raises the typed refusal
    otherwise. ``kill()`` ends every process of the box; ``receipt`` is what was proved.
    """

    decision: Decision

    def __init__(self, args: Args, **options: Any) -> None:
        check_process_options(options, capturing=False)
        # (7) The launcher's `started` line, spooled before exec, is the record of this decision.
        prepared = prepare(request_of(args, options))
        if prepared.compiled is None:
            raise ConfigError("value_invalid", "tier 'off': Popen returns a box, and off has none",
                              hint="use subprocess.Popen for an unconfined process, or stockade.run")
        self.decision = prepared.decision
        self._tmp = tmpdisk.make(prepared)
        try:
            super().__init__(launch_of(prepared, options, self._tmp), **popen_options(options))
        except BaseException:
            tmpdisk.remove(self._tmp)
            raise

    def _settle(self, status: int | None) -> int | None:
        settled = super()._settle(status)
        if settled is not None:
            tmp, self._tmp = getattr(self, "_tmp", None), None
            tmpdisk.remove(tmp)
        return settled


def run(args: Args, **options: Any) -> Completed:
    """Run a command in a box and wait for it.

    Args: args: list of strings; options: see docs (tier, caller, profile, cwd, read, write,
    hide, sockets, devices, allow, net, env, set_env, pass_env, limits, accept, cache, tmp,
    on_persistence, pass_fds, and those of ``subprocess.run``).
    Returns: Completed with its receipt.
    Raises: Refused, ConfigError, LaunchFailed, TimedOut, CommandFailed (``check``).
    """
    check_process_options(options, capturing=True)
    streams = _capturing(options)
    prepared = prepare(request_of(args, options))
    if prepared.compiled is None:
        from stockade.process import off

        done = off.run(prepared, streams, popen_options(streams))
    else:
        done = _run_boxed(prepared, streams)
    if options.get("check"):
        done.check_returncode()
    return done


def _run_boxed(prepared: Prepared, options: Mapping[str, Any]) -> Completed:
    tmp = tmpdisk.make(prepared)
    try:
        box = _exec.Box(launch_of(prepared, options, tmp), **popen_options(options))
        with box:
            out = capture.communicate(box, options, GRACE_S)
            status = box.wait()
    finally:
        tmpdisk.remove(tmp)
    receipt = box.receipt
    assert receipt is not None  # the constructor raised otherwise
    args = list(prepared.request.argv)
    if out.timed_out or receipt.outcome == "timed_out":
        raise TimedOut(args, timeout_of(prepared, options), output=out.stdout, stderr=out.stderr, receipt=receipt)
    return Completed(args, status, out.stdout, out.stderr, receipt=receipt, truncated=out.truncated)


def timeout_of(prepared: Prepared, options: Mapping[str, Any]) -> float:
    """Return the wall-clock limit that was in force, in seconds."""
    if options.get("timeout") is not None:
        return float(options["timeout"])
    return prepared.resolved.limits.get("wall_ms", 0) / 1000


def wrap(args: Args, *, pin: str | None = None, **options: Any) -> Wrapped:
    """Return a launch line that starts the command in its box, any number of times.

    The plan goes into the plan store; nothing is left to delete. ``pin`` keeps it from being
    collected. Raises: as ``run``; ConfigError(wrap_impossible) for descriptors of this process.
    """
    foreign = sorted(name for name in options if name in PROCESS_OPTIONS)
    if foreign or options.get("pass_fds"):
        name = foreign[0] if foreign else "pass_fds"
        raise ConfigError("wrap_impossible", f"option {name!r}: belongs to the one who starts the line")
    prepared = prepare(request_of(args, options), stored=True)
    compiled = prepared.compiled
    if compiled is None or compiled.tmp_points is not None:
        what = "tier 'off'" if compiled is None else "tmp 'disk'"
        raise ConfigError("wrap_impossible", f"{what}: has no launch line")
    from stockade.plan import store

    state = prepared.resolved.state_home
    digest = store.put(state.plans, compiled.canonical, pin=pin)
    launch = _exec.Launch(argv=compiled.argv, plan=b"", binds=tuple(sorted(compiled.binds.items())),
                          cwd=compiled.cwd, spool=f"{state.audit}/spool.jsonl")
    line = _exec.command_line(launch, source=["--plan", digest, "--plan-store", state.plans])
    own = dict(compiled.set_env)
    return Wrapped(argv=tuple(line), env={**prepared.request.environ(), **own}, plan=digest,
                   decision=prepared.decision, _own=own)


def decide(args: Args, *, host: HostFacts | None = None, **options: Any) -> Decision:
    """Return the decision for a request with its reasons; starts nothing.

    Args: host: facts to decide for, default this host's.
    """
    return decide_only(build_request(args, **options), host)


def check_process_options(options: Mapping[str, Any], *, capturing: bool) -> None:
    """Refuse combinations that ``subprocess`` refuses, with our own type."""
    if not capturing:
        for name in ("input", "capture_output", "capture_limit_bytes", "timeout", "check"):
            if options.get(name):
                raise ConfigError("unknown_option", f"option {name!r}: belongs to run, not to Popen",
                                  hint=f"use stockade.run(..., {name}=...)")
        return
    if options.get("input") is not None and options.get("stdin") is not None:
        raise ConfigError("value_invalid", "options 'input' and 'stdin': got both, expected one")
    if options.get("capture_output") and (options.get("stdout") is not None or options.get("stderr") is not None):
        raise ConfigError("value_invalid", "option 'capture_output': got stdout or stderr as well")
    timeout = options.get("timeout")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout <= 0):
        raise ConfigError("value_invalid", f"option 'timeout': got {timeout!r}, expected seconds above 0")


def _capturing(options: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(options)
    if found.get("capture_output") or found.get("capture_limit_bytes") is not None:
        found["stdout"] = found.get("stdout") or subprocess.PIPE
        found["stderr"] = found.get("stderr") or subprocess.PIPE
    if found.get("input") is not None:
        found["stdin"] = subprocess.PIPE
    return found
