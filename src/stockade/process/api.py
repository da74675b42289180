"""``run``, ``Popen``, ``wrap`` and ``decide``: the blocking half of the Python interface.

Owns: the options of the process (streams, text, timeout, check), in the words of ``subprocess``.
Everything after ``args`` is by keyword. Fails closed: a launch that did not happen is a typed
error, never a result; a tier is only ever reported from a receipt; a keyword that is not known is
refused. Read next: ``options.py`` (their types), ``prepare.py`` (request to plan), ``_exec.py``.
"""

from __future__ import annotations

import subprocess

from stockade.decision import Decision
from stockade.errors import CommandFailed, ConfigError, TimedOut, shortage
from stockade.frozen import dataclass, field, replace
from stockade.host.facts import HostFacts
from stockade.light import Mapping
from stockade.plan import store
from stockade.process import _exec, capture, downgrade, reach, tmpdisk
from stockade.process.options import Args, collected
from stockade.process.prepare import Prepared, decide_only, guess, launch_of
from stockade.process.receipt import Receipt
from stockade.process.refusals import prepare_to_start
from stockade.rules.request import PROCESS_OPTIONS, Request, build_request, check_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, AnyStr, Literal, Never, Unpack, overload

    from stockade.process.options import (
        Class,
        Env,
        Path,
        Paths,
        PopenOptions,
        RunOptions,
        Stream,
        Text,
        TierName,
        Words,
    )
else:
    AnyStr = None  # importing ``typing`` for it costs 3 ms

# How long the supervisor may need beyond its own wall-clock limit before we end it ourselves.
GRACE_S = 10.0
# What a sandbox, or a proof, adds to the options of one call.
_OWN = frozenset({"_ceiling", "_prepare", "_start_in"})
_POPEN = ("stdin", "stdout", "stderr", "bufsize", "pipesize", "umask", "restore_signals",
          "start_new_session", "process_group", "encoding", "errors")


class Completed(subprocess.CompletedProcess[AnyStr]):
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
    """Return the checked request."""
    reach.check_named(options)
    request = build_request(args, **_of_caller(options))
    ceiling = options.get("_ceiling")
    return request if ceiling is None else replace(request, ceiling=ceiling)


def check_names(options: Mapping[str, Any]) -> None:
    """Refuse options that nobody knows; looks at no file. Raises: ConfigError."""
    check_options(_of_caller(options))


def _of_caller(options: Mapping[str, Any]) -> dict[str, Any]:
    """Names with an underscore are our own, not the caller's."""
    return {name: value for name, value in options.items() if name not in _OWN}


class Popen(_exec.Box[AnyStr]):
    """A boxed command as a ``subprocess.Popen``.

    The constructor returns once the command runs inside the box and raises the typed refusal
    otherwise. ``kill()`` ends every process of the box; ``receipt`` is what was proved.
    """

    decision: Decision

    if TYPE_CHECKING:
        @overload
        def __init__(self: Popen[str], args: Args, *, text: Literal[True], encoding: str | None = None,
                     errors: str | None = None, **options: Unpack[PopenOptions]) -> None: ...
        @overload
        def __init__(self: Popen[str], args: Args, *, text: bool | None = None, encoding: str,
                     errors: str | None = None, **options: Unpack[PopenOptions]) -> None: ...
        @overload
        def __init__(self: Popen[bytes], args: Args, *, text: Literal[False] | None = None, encoding: None = None,
                     errors: None = None, **options: Unpack[PopenOptions]) -> None: ...
        @overload
        def __init__(self: Popen[Any], args: Args, *, text: bool | None = None, encoding: str | None = None,
                     errors: str | None = None, **options: Unpack[PopenOptions]) -> None: ...

    def __init__(
        self, args: Args, *, tier: TierName = "auto", caller: Class = "generated", profile: Paths = (),
        cwd: Path | None = None, read: Paths = (), write: Paths = (), hide: Paths = (), sockets: Paths = (),
        devices: Paths = (), allow: Words = (), net: Words | None = None, env: Env | None = None,
        set_env: Env | None = None, pass_env: Text | Iterable[Text] = (),
        limits: Mapping[str, int | float | str | None] | None = None, accept: Words = (), cache: str | None = None,
        tmp: str | None = None, on_persistence: str | None = None, stdin: Stream = None, stdout: Stream = None,
        stderr: Stream = None, text: bool | None = None, encoding: str | None = None, errors: str | None = None,
        bufsize: int = -1, pipesize: int = -1, pass_fds: Iterable[int] = (), umask: int = -1,
        restore_signals: bool = True, start_new_session: bool = False, process_group: int | None = None,
        **refused: Any,
    ) -> None:
        self._begin(args, collected(locals()))

    def _begin(self, args: Args, options: Mapping[str, Any]) -> None:
        check_process_options(options, capturing=False)
        # (7) The launcher's `decided` record, spooled before the command runs, is that of this decision.
        prepared = options.get("_prepare", prepare_to_start)(request_of(args, options))
        downgrade.tell(prepared, stacklevel=4)
        self.decision = prepared.decision
        self._tmp = tmpdisk.make(prepared)
        try:
            super().__init__(start_of(prepared, options, self._tmp), **popen_options(options))
        except BaseException:
            tmpdisk.remove(self._tmp)
            raise

    @classmethod
    def _of(cls, args: Args, options: Mapping[str, Any]) -> Popen[Any]:
        """Start with the options of a sandbox, or of a proof."""
        made = cls.__new__(cls)
        made._begin(args, options)
        return made

    def _settle(self, status: int | None) -> int | None:
        settled = super()._settle(status)
        if settled is not None:
            tmp, self._tmp = getattr(self, "_tmp", None), None
            tmpdisk.remove(tmp)
        return settled


if TYPE_CHECKING:
    @overload
    def run(args: Args, *, text: Literal[True], encoding: str | None = None, errors: str | None = None,
            **options: Unpack[RunOptions]) -> Completed[str]: ...
    @overload
    def run(args: Args, *, text: bool | None = None, encoding: str, errors: str | None = None,
            **options: Unpack[RunOptions]) -> Completed[str]: ...
    @overload
    def run(args: Args, *, text: Literal[False] | None = None, encoding: None = None, errors: None = None,
            **options: Unpack[RunOptions]) -> Completed[bytes]: ...
    @overload
    def run(args: Args, *, text: bool | None = None, encoding: str | None = None, errors: str | None = None,
            **options: Unpack[RunOptions]) -> Completed[Any]: ...


def run(
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
    """Run a command in a box and wait for it.

    Args: args: list of strings; tier to on_persistence: what the box is and may reach (``env`` is
    the source of values and grants nothing, ``set_env`` passes values, ``pass_env`` names);
    input to process_group: as ``subprocess.run``; capture_limit_bytes: per stream, more is read
    and dropped; timeout: seconds.
    Returns: Completed with its receipt.
    Raises: Refused, ConfigError, LaunchFailed, AuditUnavailable, TimedOut, CommandFailed (``check``).
    """
    return run_with(args, collected(locals()))


def run_with(args: Args, options: Mapping[str, Any], *, stacklevel: int = 4) -> Completed[Any]:
    """Do what ``run`` does, with the options as a table (a sandbox's have two more)."""
    check_process_options(options, capturing=True)
    request = request_of(args, options)
    done = _run_guessed(request, options)
    if done is None:
        prepared = prepare_to_start(request)
        downgrade.tell(prepared, stacklevel=stacklevel)
        done = run_prepared(prepared, capturing(options))
    if options.get("check"):
        done.check_returncode()
    return done


class _Changed(Exception):
    """What a plan of before rests on is not as it was."""


def _run_guessed(request: Request, options: Mapping[str, Any]) -> Completed[Any] | None:
    """Do it with the plan of an equal request before this; None when there is none that still holds.

    Whether it holds is found out while the launcher reads the plan: that takes it longer, and until
    it is let go it has made nothing.
    """
    warm = guess(request)
    compiled = None if warm is None else warm.prepared.compiled
    if warm is None or compiled is None or compiled.tmp_disk or downgrade.lost(warm.prepared):
        return None
    try:
        return run_prepared(warm.prepared, capturing(options), holds=warm.holds)
    except _Changed:
        return None


def run_prepared(prepared: Prepared, options: Mapping[str, Any], *,
                 holds: Callable[[], bool] | None = None) -> Completed[Any]:
    """Start what was prepared, feed and read it, and wait for its end.

    Args: holds: asked before anything starts. Raises: _Changed when it says no.
    """
    limit_s = timeout_of(prepared, options)
    tmp = tmpdisk.make(prepared)
    try:
        start = start_of(prepared, options, tmp)
        if holds is not None:
            start = replace(start, gated=True)
        with _exec.Box(start, defer=holds is not None, **popen_options(options)) as box:
            if holds is not None:
                if not holds():
                    raise _Changed
                box.release()
                box.wait_started()
            out = capture.communicate(box, {**options, "timeout": limit_s}, grace_of(prepared))
            status = box.wait()
    finally:
        tmpdisk.remove(tmp)
    receipt = box.receipt
    assert receipt is not None  # the constructor raised otherwise
    args = list(prepared.request.argv)
    if out.timed_out or receipt.outcome == "timed_out":
        raise TimedOut(args, limit_s or 0.0, output=out.stdout, stderr=out.stderr, receipt=receipt)
    return Completed(args, status, out.stdout, out.stderr, receipt=receipt, truncated=out.truncated)


def start_of(prepared: Prepared, options: Mapping[str, Any], tmp: str | None) -> _exec.Launch | _exec.Bare:
    """Return what to start: the launcher, or where no box is made the command itself."""
    if prepared.compiled is not None:
        return launch_of(prepared, options, tmp)
    from stockade.process import off

    return off.bare(prepared)


def grace_of(prepared: Prepared) -> float:
    """Return how long a supervisor may be late; a command without one is ended at once."""
    return 0.0 if prepared.compiled is None else GRACE_S


def timeout_of(prepared: Prepared, options: Mapping[str, Any]) -> float | None:
    """Return the wall-clock limit that is in force, in seconds."""
    wall_ms = prepared.resolved.limits.get("wall_ms")
    found = [options.get("timeout"), None if wall_ms is None else wall_ms / 1000]
    return min((float(value) for value in found if value is not None), default=None)


def wrap(
    args: Args, *, pin: str | None = None, tier: TierName = "auto", caller: Class = "generated",
    profile: Paths = (), cwd: Path | None = None, read: Paths = (), write: Paths = (), hide: Paths = (),
    sockets: Paths = (), devices: Paths = (), allow: Words = (), net: Words | None = None, env: Env | None = None,
    set_env: Env | None = None, pass_env: Text | Iterable[Text] = (),
    limits: Mapping[str, int | float | str | None] | None = None, accept: Words = (), cache: str | None = None,
    tmp: str | None = None, on_persistence: str | None = None, **refused: Never,
) -> Wrapped:
    """Return a launch line that starts the command in its box, any number of times.

    The plan goes into the plan store; nothing is left to delete. ``pin`` keeps it from being
    collected. Raises: as ``run``; ConfigError(wrap_impossible) for descriptors of this process.
    """
    return wrap_with(args, collected(locals()), pin=pin)


def wrap_with(args: Args, options: Mapping[str, Any], *, pin: str | None) -> Wrapped:
    """Do what ``wrap`` does, with the options as a table."""
    foreign = sorted(name for name in options if name in PROCESS_OPTIONS)
    if foreign or options.get("pass_fds"):
        name = foreign[0] if foreign else "pass_fds"
        raise ConfigError("wrap_impossible", f"option {name!r}: belongs to the one who starts the line")
    prepared = prepare_to_start(request_of(args, options), stored=True)
    compiled = prepared.compiled
    if compiled is None or compiled.tmp_points is not None:
        what = "tmp 'disk'" if compiled is not None else "tier 'off'" if prepared.decision.row == "D1" else \
            f"a run without a box of its own ({prepared.decision.kind})"
        raise ConfigError("wrap_impossible", f"{what}: has no launch line")
    downgrade.tell(prepared, stacklevel=4)
    state = prepared.resolved.state_home
    try:
        digest = store.put(state.plans, compiled.canonical, pin=pin)
    except OSError as err:
        short = shortage(err, f"plan store {state.plans!r}")
        if short is None:
            raise
        raise short from err
    launch = _exec.Launch(argv=compiled.argv, plan=b"", binds=tuple(sorted(compiled.binds.items())),
                          cwd=compiled.cwd, spool=f"{state.audit}/spool.jsonl", state_home=state.path)
    line = _exec.command_line(launch, source=["--plan", digest, "--plan-store", state.plans])
    own = dict(compiled.set_env)
    return Wrapped(argv=tuple(line), env={**prepared.request.environ(), **own}, plan=digest,
                   decision=prepared.decision, _own=own)


def decide(
    args: Args, *, host: HostFacts | None = None, tier: TierName = "auto", caller: Class = "generated",
    profile: Paths = (), cwd: Path | None = None, read: Paths = (), write: Paths = (), hide: Paths = (),
    sockets: Paths = (), devices: Paths = (), allow: Words = (), net: Words | None = None, env: Env | None = None,
    set_env: Env | None = None, pass_env: Text | Iterable[Text] = (),
    limits: Mapping[str, int | float | str | None] | None = None, accept: Words = (), cache: str | None = None,
    tmp: str | None = None, on_persistence: str | None = None, **refused: Never,
) -> Decision:
    """Return the decision for a request with its reasons; starts nothing.

    Args: host: facts to decide for, default this host's.
    """
    return decide_only(request_of(args, collected(locals())), host)


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


def capturing(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with the pipes that ``input`` and ``capture_output`` stand for."""
    found = dict(options)
    if found.get("capture_output") or found.get("capture_limit_bytes") is not None:
        found["stdout"] = found.get("stdout") or subprocess.PIPE
        found["stderr"] = found.get("stderr") or subprocess.PIPE
    if found.get("input") is not None:
        found["stdin"] = subprocess.PIPE
    return found
