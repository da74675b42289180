"""What this host can keep, by trying it: the real launcher with a real plan around a no-op.

Owns: the verdict of each backend with its typed reason, and when an earlier one may be given again.
Probe and run cannot differ because they are the same program with the same compiler.
Fails closed: a probe that could not be made keeps nothing; where no backend is there it is asked for anew each time.
Read next: ``answers.py``, ``facts.py``, ``stockade.process._exec``.
"""

from __future__ import annotations

import os
from _signal import SIGSYS  # type: ignore[import-not-found]  # ``signal`` without its enumerations
from _thread import allocate_lock  # threading.Lock, without the rest of that module
from time import time

from stockade.errors import Error, LaunchFailed, Refused
from stockade.frozen import replace
from stockade.host import answers, facts
from stockade.host.facts import HostFacts
from stockade.host.standing import Standing, standing
from stockade.jsontext import loads
from stockade.light import Iterable, Mapping
from stockade.paths import StateHome
from stockade.rules.answer import Decision
from stockade.rules.circumstances import BackendVerdict
from stockade.rules.promises import PROMISE_IDS, PROMISES, required
from stockade.rules.tiers import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.host.active import Active
    from stockade.host.obstacles import Cause, Obstacle
    from stockade.process import _exec
    from stockade.rules.request import Request

# strict without a network and guarded with the host's: together they use every mechanism.
PROBES = (("strict", "none"), ("guarded", "host"))
TIMEOUT_MS = 20_000
# One path of this caller stood in the way: no fact about the host, and gone when the path is.
OF_A_PATH = frozenset({"source_missing", "source_type", "source_symlink", "source_denied", "mount_point_missing",
                       "path_invalid"})
NAMESPACES, LANDLOCK = "namespaces", "landlock"
# Package and launcher do not fit, or the disk failed us: that says nothing about the host.
BROKEN = frozenset({"usage", "plan_missing", "plan_unsealed", "plan_owner", "plan_digest", "plan_invalid",
                    "bind_invalid", "report_failed", "launcher_missing", "receipt_invalid"})

# With when the host was asked, and the version of what is on disk.
_memory: dict[str, tuple[HostFacts, float, Any]] = {}
_lock = allocate_lock()
# A fork while another thread holds it would leave the child waiting for ever.
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


def host_facts(state: StateHome, *, fresh: bool = False) -> HostFacts:
    """Return the facts of this host with the verdict of each backend, for a caller confined as this one is.

    Args: state: where an earlier answer may be; fresh: try again, whatever is kept.
    """
    from stockade.process import _exec

    path = _exec.launcher_path()
    info = os.stat(path)
    # A process may give itself a filter, a namespace or another root at any time, and each of its threads.
    place = standing()
    quick = f"{state.path}:{info.st_ino}:{info.st_size}:{info.st_mtime_ns}:{place.key()}"
    with _lock:
        known, asked_s, version = _memory.pop(quick, (None, 0.0, None))
        # What others have found or dropped since counts here, too.
        if known is None or fresh or version != answers.version(state) or not answers.holds(known.backends, asked_s):
            known, asked_s, version = _find(state, path, place, fresh=fresh)
        if _lasting(known):
            _memory[quick] = known, asked_s, version
            while len(_memory) > answers.MAX_KEPT:
                _memory.pop(next(iter(_memory)))
        return known


def forget() -> None:
    """Drop what this process remembers: a start was refused that was made with it."""
    _memory.clear()  # one step, and without the lock: the refused start may be one of the probe's own


def facts_at(place: Active, state: StateHome) -> HostFacts:
    """Return the facts that count where this process is."""
    return inside_facts() if place.where == "box" else host_facts(state)


def inside_facts() -> HostFacts:
    """Return the facts of this host for a caller inside a box: no backend of the host is asked there."""
    from stockade.process import _exec

    return replace(facts.gather(0, _exec.launcher_path(), standing()), landlock_abi=_landlock_abi())


def _lasting(found: HostFacts) -> bool:
    """Tell whether the answer may be given again. Without any backend it is not: what stood in the way may be gone."""
    return found.standing.certain and any(not verdict.code for verdict in found.backends) \
        and all(verdict.settled and not verdict.transient for verdict in found.backends)


def _find(state: StateHome, launcher: str, place: Standing, *, fresh: bool) -> tuple[HostFacts, float, Any]:
    """Return the facts, when the host was asked for them, and the version of what is on disk."""
    base = facts.gather(0, launcher, place)
    version = answers.version(state)
    kept = None if fresh or not place.certain else answers.find(state, base.key())
    if kept is not None:
        return _told(base, kept.landlock_abi, kept.backends), kept.asked_s, version
    base, asked_s = replace(base, landlock_abi=_landlock_abi()), time()
    # (5) Ask the host what it can keep, through the real launcher.
    first = probe(base, state)
    # Only where namespaces fail, or somebody wants to know everything: a strong host pays for one probe.
    # A shortage passes; until then the weaker backend is no answer.
    second = not first.transient and (bool(first.code) or fresh)
    backends = (first, probe(base, state, LANDLOCK)) if second else (first,)
    found = _told(base, base.landlock_abi, backends)
    if _lasting(found):
        answers.keep(state, found.key(), found.landlock_abi, found.backends)
    return found, asked_s, answers.version(state)


def _told(base: HostFacts, abi: int, backends: tuple[BackendVerdict, ...]) -> HostFacts:
    """Add the answers: what Landlock keeps alone, it keeps as a further layer in another sandbox, too."""
    alone = next((verdict for verdict in backends if verdict.name == LANDLOCK), None)
    return replace(base, landlock_abi=abi, backends=backends, layer=alone)


def _landlock_abi() -> int:
    from stockade.process import _exec

    try:
        return max(0, int(loads(_exec.launcher_facts()).get("landlock_abi") or 0))
    except (ValueError, TypeError, AttributeError):
        raise LaunchFailed("receipt_invalid", "launcher --version: got no JSON, expected its facts") from None


def probe(host: HostFacts, state: StateHome, backend: str = NAMESPACES) -> BackendVerdict:
    """Run a no-op at each probe's tier and return what the backend keeps here."""
    from stockade.host import obstacles  # a kept answer needs none of them

    known = obstacles.before_trying(host, backend)
    if known is not None:
        code = "userns_denied" if host.uid == 0 and backend == NAMESPACES else "no_backend"
        return _broken(obstacles.Cause(code=code), known, backend)
    kept: dict[str, set[str]] = {}
    in_the_way: list[Error] = []
    for tier, net in PROBES:
        try:
            kept[net] = _kept(host, state, tier, net, backend) | _higher_than(tier)
        except (LaunchFailed, Refused) as err:
            if err.code in BROKEN:
                raise
            if err.code not in OF_A_PATH:
                return _from_refusal(err, host, backend)
            in_the_way.append(err)
    if len(in_the_way) == len(PROBES):
        # Nothing was tried at all; what stands in the way is the answer, not "no backend".
        raise in_the_way[0]
    if backend == LANDLOCK:
        both = set.intersection(*kept.values())
        return BackendVerdict(name=LANDLOCK, keeps=frozenset(both), settled=not in_the_way)
    return _verdict(host, kept, settled=not in_the_way)


def _verdict(host: HostFacts, kept: Mapping[str, set[str]], *, settled: bool) -> BackendVerdict:
    """Return what is kept whatever the network is, and what of it the host's network takes away.

    Without scopes of Landlock nothing stands between a box in the host's network namespace and
    the abstract sockets of that namespace; a namespace of its own keeps them away by itself.
    """
    by_net = frozenset(p.id for p in PROMISES if p.net_needs or any("netns" in names for names in p.needs))
    alone = kept.get("none", kept.get("host", set()))
    shared = kept.get("host", alone)
    open_net = frozenset(alone - shared) & by_net
    reason = remedy = ""
    if open_net:
        reason = (f"{' and '.join(sorted(open_net))} needs Landlock with scopes (ABI 6, Linux 6.12): got ABI "
                  f"{host.landlock_abi}, so abstract sockets of the host stay in reach")
        remedy = "ask for no network (--net none), use Linux 6.12 or later"
    return BackendVerdict(name="namespaces", keeps=frozenset(alone & (shared | by_net)), open_net=open_net,
                          namespaces=True, reason=reason, remedy=remedy, settled=settled)


def _higher_than(tier: str) -> set[str]:
    """Promises that a box of this tier does not make say nothing about the host."""
    made = {promise.id for promise in required(Tier[tier])}
    return set(PROMISE_IDS) - made


def _kept(host: HostFacts, state: StateHome, tier: str, net: str, backend: str) -> set[str]:
    """Start the launcher's own --version in a box and return the promises it kept.

    Policy and configuration stay out of it: what their owners deny says nothing about the host.
    """
    from stockade.plan.compile import compile_plan
    from stockade.process import _exec
    from stockade.rules.resolve import resolve
    from stockade.rules.settings import bare_settings

    # What is lost is read from the receipt: a promise that nobody accepts would refuse the whole box.
    request = noop(tier, net, accept=PROMISE_IDS)
    compiled = compile_plan(resolve(request, bare_settings(request, state)), host, _asked(Tier[tier], backend),
                            stored=backend == LANDLOCK)
    launch = _exec.Launch(argv=compiled.argv, plan=compiled.canonical, cwd=compiled.cwd,
                          binds=tuple(sorted(compiled.binds.items())), timeout_ms=TIMEOUT_MS)
    status, receipt = ended(launch, TIMEOUT_MS / 1000)
    if receipt is None or status != 0:
        raise LaunchFailed("launch_failed", f"probe at {tier}: got status {status}, expected 0", returncode=status)
    return {promise.id for promise in receipt.promises if promise.state == "kept"}


def noop(tier: str, net: str, *, accept: Iterable[str] = ()) -> Request:
    """Return the request of a box around the launcher's own --version, of nobody's configuration."""
    from stockade.process import _exec
    from stockade.rules.request import build_request

    launcher = _exec.launcher_path()
    return build_request([launcher, "--version", "--json"], tier=tier, net=net, cwd="/", caller="document",
                         cache="off", read=[os.path.dirname(launcher)], accept=list(accept))


def ended(launch: _exec.Launch, limit_s: float) -> tuple[int, Any]:
    """Run a launch to its end and return status and receipt. Raises: Refused, LaunchFailed."""
    from subprocess import TimeoutExpired

    from stockade.process import _exec

    with _exec.Box(launch, stdin=_exec.DEVNULL, stdout=_exec.DEVNULL, stderr=_exec.DEVNULL) as box:
        try:
            # A start has ten seconds beyond the command's limit, and its end two more (launcher/src/clock.rs).
            return box.wait(timeout=limit_s + 15), box.receipt
        except TimeoutExpired:
            raise Refused("start_timed_out", "no-op: got no end, expected one in time", transient=True) from None


def _asked(tier: Tier, backend: str) -> Decision:
    """The decision that a probe stands for: wrap, to see whether it can be done."""
    return Decision(kind="wrap", row="D2", tier=tier, requested_tier=str(tier), active_tier=None,
                    tier_known=False, effective_tier=str(tier), env_tier=tier, backend=backend)


def _broken(cause: Cause, obstacle: Obstacle, backend: str) -> BackendVerdict:
    return BackendVerdict(name=backend, namespaces=backend == NAMESPACES, code=cause.code, reason=obstacle.reason,
                          remedy=obstacle.remedy, obstacle=obstacle.name, step=cause.step, object=cause.object,
                          errno=cause.errno, commands=obstacle.commands, sysctl=obstacle.sysctl)


def _from_refusal(err: Error, host: HostFacts, backend: str) -> BackendVerdict:
    """Give a refusal of the kernel the reason and remedy of this host."""
    from stockade.host import obstacles
    from stockade.process import _exec

    said = getattr(err, "cause", None) or {}
    cause = obstacles.Cause(
        code=str(said.get("code") or err.code), step=said.get("step"), object=str(said.get("object") or ""),
        errno=str(said.get("errno") or ""), message=err.message, hint=err.hint)
    obstacle = obstacles.explain(cause, host, _exec.launcher_path())
    # A limit that is reached passes; one that a sandbox around us has set does not. A launcher that ended without a
    # word (killed for want of memory, say) is no word of the host's that it has no backend, but where a filter did it.
    killed = isinstance(err, LaunchFailed) and err.returncode != -SIGSYS
    if killed or (isinstance(err, Refused) and err.transient and obstacle.name == "unexplained"):
        return BackendVerdict(name=backend, namespaces=backend == NAMESPACES, code="transient", reason=err.message,
                              remedy=err.hint or "try again", transient=True, step=cause.step, object=cause.object,
                              errno=cause.errno)
    return replace(_broken(cause, obstacle, backend), settled=not isinstance(err, LaunchFailed))
