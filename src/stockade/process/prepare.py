"""From the caller's words to a plan that can be started: steps 1 to 8, once or warm.

Owns: the straight line from request to compiled plan, and the memory of compiled plans. A warm
start compares what the plan depended on (a few dozen ``lstat``) instead of compiling again.
Fails closed: policy and configuration files are part of that comparison, so a new floor counts
at the next start. Read next: ``api.py``.
"""

from __future__ import annotations

import os
from _thread import allocate_lock  # threading.Lock, without the rest of that module
from time import time

from stockade.errors import ConfigError, Refused, shortage
from stockade.frozen import dataclass, field, replace, values
from stockade.light import Callable, Mapping
from stockade.paths import OUR_VARIABLES
from stockade.plan.witness import Witness
from stockade.process import _exec
from stockade.rules.request import Request

# The compiler and what decides are loaded by the first request, not by the import of `run`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.decision import Decision
    from stockade.host.facts import HostFacts
    from stockade.paths import StateHome
    from stockade.plan.compile import Compiled
    from stockade.rules.looked import Looked
    from stockade.rules.profile import CacheRef
    from stockade.rules.resolve import Resolved
    from stockade.rules.settings import Settings

MAX_REMEMBERED = 128
CARRIED_OUT = frozenset({"D1", "D2", "D3", "D4", "D7", "D8", "D9", "D11"})  # rows of the decision table
CACHE_LOOK_S = 3600  # a start with caches asks one stat() whether a look at their size is due


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request with its decision; ``compiled`` when it was decided ``wrap`` or ``tighten``."""

    request: Request
    resolved: Resolved
    decision: Decision
    compiled: Compiled | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """A plan of before, and the look whether everything that it rests on is as it was."""

    prepared: Prepared
    holds: Callable[[], bool]


Key = tuple[object, ...]
# The oldest goes first, whether used or not: each look-up compares a whole request.
_remembered: dict[Key, tuple[Prepared, Witness, Looked]] = {}
_lock = allocate_lock()
# A fork while another thread holds it would leave the child waiting for ever.
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


def prepare(request: Request, *, stored: bool = False) -> Prepared:
    """Return the decision and, for ``wrap`` and ``tighten``, the plan.

    Args: stored: the plan is for a launch line, whose set values come with its environment.
    Raises: Refused, ConfigError.
    """
    try:
        return _prepare(request, stored=stored)
    except (OSError, ConfigError) as err:
        # A file that could not be opened for want of descriptors is not an invalid file.
        cause = err if isinstance(err, OSError) else err.__context__
        short = shortage(cause, "preparation of the box") if isinstance(cause, OSError) else None
        if short is None:
            raise
        raise short from err


def _prepare(request: Request, *, stored: bool) -> Prepared:
    if not stored:
        warm = guess(request)
        if warm is not None and warm.holds():
            return warm.prepared
    from stockade.rules.settings import load_settings

    settings = load_settings(request)
    prepared = _compiled(request, settings, stored=stored)
    # What was written just now may change once more within the same tick of the clock.
    # And a program that was proven is proven at each start.
    lasting = not settings.looked.fresh and prepared.resolved.caller != "first_party"
    if not stored and prepared.compiled is not None and lasting:
        _remember(_key(request), prepared, settings.looked)
    return prepared


def decide_only(request: Request, host: HostFacts | None = None) -> Decision:
    """Return the decision with its reasons; starts nothing but, at most, the probe."""
    from stockade.decision import decide
    from stockade.host.active import active
    from stockade.host.probe import facts_at
    from stockade.host.standpoint import standpoint
    from stockade.rules.resolve import resolve

    resolved, place = resolve(request), active()
    return decide(standpoint(place, resolved), host or facts_at(place, resolved.state_home), resolved)


def tried(request: Request, caches: tuple[CacheRef, ...]) -> Prepared:
    """Compile a request as if a profile had these caches, too. No cache is made; the plan is not remembered.

    Raises: Refused, ConfigError.
    """
    from stockade.rules.settings import load_settings

    return _compiled(request, replace(load_settings(request), tried=caches), make=not caches)


def alone(request: Request, state: StateHome) -> Prepared:
    """Compile a request with neither policy nor configuration: what the host gives, whatever its owner wants.

    Raises: Refused, ConfigError.
    """
    from stockade.rules.settings import bare_settings

    return _compiled(request, bare_settings(request, state))


def ruled(request: Request, state: StateHome) -> Prepared:
    """Compile a request under the policy but without configuration: what a tier gives by itself.

    Raises: Refused, ConfigError.
    """
    from stockade.rules.settings import ruled_settings

    return _compiled(request, ruled_settings(request, state))


def _compiled(request: Request, settings: Settings, *, stored: bool = False, make: bool = True) -> Prepared:
    from stockade.decision import decide
    from stockade.host.active import active
    from stockade.host.probe import facts_at
    from stockade.host.standpoint import standpoint
    from stockade.plan.compile import compile_plan
    from stockade.plan.inputs import write_paths
    from stockade.rules.resolve import resolve

    resolved = resolve(request, settings)
    place = active()
    host = facts_at(place, resolved.state_home)
    decision = decide(standpoint(place, resolved), host, resolved)
    decision.raise_if_refused()
    if decision.row not in CARRIED_OUT:
        raise Refused("decision_unsupported", f"{decision.kind} by {decision.backend}: got row {decision.row}, "
                      "which this version cannot carry out", reasons=decision.reasons, missing=decision.missing)
    if decision.row == "D8":
        resolved = _inside(resolved, stored=stored)
        return Prepared(request=request, resolved=resolved, decision=decision,
                        compiled=compile_plan(resolved, host, decision, make=False))
    make_state_home(resolved)
    compiled = None
    if decision.kind in ("wrap", "tighten"):
        from stockade.process import reach

        reach.check_roots(write_paths(resolved, ()))
        keep = tuple(name for name, _ in resolved.set_env) if stored else ()
        compiled = compile_plan(resolved, host, decision, keep_env=keep, stored=stored, make=make)
    return Prepared(request=request, resolved=resolved, decision=decision, compiled=compiled)


def _inside(resolved: Resolved, *, stored: bool) -> Resolved:
    """Leave out what needs a state home: a box has none that it could write.

    Raises: Refused(nested_unsupported) for a launch line, which would lie there, and for what an argument named.
    """
    if stored:
        raise Refused("nested_unsupported", "launch line: got a process inside a box, expected one outside",
                      hint="start the command with run or Popen, which work inside a box")
    asked = resolved.request
    for name, value, kept in (("on_persistence", asked.on_persistence, "quarantine"), ("cache", asked.cache, "keep")):
        if value == kept:
            raise Refused("nested_unsupported", f"{name}: got {value!r} inside a box, expected another value",
                          hint="a box has no state home that it could write: leave it out, or start from outside")
    state = tuple(spec for spec in resolved.state if spec.mode != "copyback")
    left = [("changes are reported, not quarantined", resolved.on_persistence == "quarantine"),
            ("caches end with this box", resolved.cache == "keep" and bool(resolved.caches)),
            ("files to copy back stay in this box", len(state) < len(resolved.state))]
    notes = tuple(f"inside a box: {text}" for text, applies in left if applies)
    # The plan is handed over, records are written by the supervisor around: no word of a place for them.
    notes = (*(note for note in resolved.notes if not note.startswith("state home ")), *notes)
    return replace(resolved, notes=notes, state=state,
                   cache="ephemeral" if resolved.cache == "keep" else resolved.cache,
                   on_persistence="report" if resolved.on_persistence == "quarantine" else resolved.on_persistence)


def _mind_caches(resolved: Resolved) -> None:
    """Look after the size of the caches when it is time to; a fault of theirs stops no box."""
    caches = os.path.realpath(resolved.state_home.caches)
    try:
        if not _look_is_due(f"{caches}/.looked"):
            return
        from stockade.plan.inputs import identity_of
        from stockade.process import stores

        stores.look(caches, resolved.cache_limit_bytes, spare=identity_of(resolved))
    except OSError:
        return


def _look_is_due(path: str) -> bool:
    try:
        return time() - os.stat(path).st_mtime >= CACHE_LOOK_S
    except FileNotFoundError:
        return True


def make_state_home(resolved: Resolved) -> None:
    """Make the directories of the state home, and close them for others; resolving only looked for its place."""
    path = resolved.state_home.path
    if not os.path.isdir(resolved.state_home.audit) or not os.path.isdir(resolved.state_home.plans) \
            or os.stat(path).st_mode & 0o077:
        from stockade.paths import state_home

        state_home({**os.environ, "STOCKADE_HOME": path}, create=True)


def _key(request: Request) -> Key:
    """Two commands of one program share a plan: what picks a profile, the switches and where our files are matter."""
    argv = request.argv[:3 if request.argv[1:2] == ("-m",) else 1]
    return argv, values(request, but="argv"), tuple(map(os.environ.get, OUR_VARIABLES))


def _with_argv(warm: Prepared, request: Request) -> Prepared:
    if warm.request.argv == request.argv or warm.compiled is None:
        return warm
    from stockade.plan.compile import command_line

    compiled = replace(warm.compiled, argv=command_line(warm.resolved, request.argv))
    return replace(warm, request=request, compiled=compiled)


def guess(request: Request) -> Guess | None:
    """Return what an equal request was given before; nothing may start from it before ``holds`` said so."""
    with _lock:
        entry = _remembered.get(_key(request))
    if entry is None:
        return None
    prepared, witness, looked = entry
    env = os.environ if request.env_source is None else dict(request.env_source)
    return Guess(prepared=_with_argv(prepared, request),
                 holds=lambda: looked.still_true(env) and witness.still_true(env) and _still_best(prepared))


def _still_best(prepared: Prepared) -> bool:
    """Tell whether no stronger backend has been found since; where the strongest was there, nobody looks."""
    if prepared.decision.backend != "landlock":
        return True
    from stockade.host.probe import host_facts

    return bool(host_facts(prepared.resolved.state_home).backends[0].code)


def _remember(key: Key, prepared: Prepared, looked: Looked) -> None:
    from stockade.plan import own

    assert prepared.compiled is not None
    witness = prepared.compiled.witness
    witness.saw(own.PACKAGE, os.path.join(own.PACKAGE, "_bin", "stockade-launch"))
    with _lock:
        _remembered[key] = (prepared, witness, looked)
        while len(_remembered) > MAX_REMEMBERED:
            _remembered.pop(next(iter(_remembered)))


def forget() -> None:
    """Drop every remembered plan (tests, and after a change that no file shows)."""
    with _lock:
        _remembered.clear()


def launch_of(prepared: Prepared, options: Mapping[str, Any], tmp: str | None = None) -> _exec.Launch:
    """Return what the launcher is told for a prepared request.

    ``_start_in`` (a sandbox's per-call cwd) only moves the start: the plan stays the same, and a
    directory that the box does not have is the launcher's ``chdir_denied``.
    """
    compiled, resolved = prepared.compiled, prepared.resolved
    assert compiled is not None
    if resolved.caches and resolved.cache == "keep":
        _mind_caches(resolved)
    timeout = options.get("timeout")
    binds = dict(compiled.binds)
    if tmp is not None:
        binds["tmp"] = tmp
    nested = prepared.decision.row == "D8"
    given = compiled.set_env
    if tmp is not None and compiled.plan["backend"] == "landlock" and "TMPDIR" not in dict(given):
        given = (*given, ("TMPDIR", tmp))  # no mount puts it anywhere else
    return _exec.Launch(
        nested=nested, argv=compiled.argv, plan=compiled.canonical, binds=tuple(sorted(binds.items())),
        cwd=options.get("_start_in") or compiled.cwd, set_env=given, pass_fds=prepared.request.pass_fds,
        timeout_ms=None if timeout is None else max(1, int(float(timeout) * 1000)),
        # Inside, the supervisor around writes the records.
        spool=None if nested else f"{prepared.resolved.state_home.audit}/spool.jsonl",
        state_home=None if nested else prepared.resolved.state_home.path,
        degraded=() if nested else audit_note(prepared.resolved),
    )


def audit_note(resolved: Resolved) -> tuple[str, ...]:
    """Return what is to be said of the log in every end record: it may not last."""
    state = resolved.state_home
    return (f"audit: ephemeral, in {state.path}",) if state.ephemeral else ()
