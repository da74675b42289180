"""What this host can keep, and what to do when it cannot.

Owns: the examination behind ``stockade doctor``: the probe of each backend, one real box for each
tier and network, and the remedies. Fails closed: a tier counts as kept only when a box of it was
started here and its receipt says so; nothing is repaired that root would not have to undo.
Read next: ``stockade.host.probe``, ``docs/debugging.md``.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from stockade.audit.health import fault as audit_fault
from stockade.codes import CODES
from stockade.errors import Error, LaunchFailed, Refused
from stockade.frozen import dataclass
from stockade.host.active import Active, active
from stockade.host.facts import HostFacts
from stockade.host.probe import ended, host_facts, noop
from stockade.light import Callable
from stockade.paths import StateHome
from stockade.process import _exec, tmpdisk
from stockade.process.prepare import alone, launch_of
from stockade.process.receipt import Receipt
from stockade.rules.circumstances import BackendVerdict
from stockade.rules.promises import required
from stockade.rules.request import build_request
from stockade.rules.settings import load_settings
from stockade.rules.tiers import ALL_TIERS, Tier

NETS = ("none", "host")
TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One box that was tried. ``lost``: required promises that its receipt does not call kept."""

    tier: Tier
    net: str
    lost: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    code: str = ""
    reason: str = ""
    transient: bool = False

    @property
    def good(self) -> bool:
        """True when the box started and kept every promise of its tier."""
        return not self.code and not self.lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One remedy. ``sysctl``: a setting that root can change and take back; else only words."""

    why: str
    commands: tuple[str, ...]
    sysctl: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Everything that was found. ``state`` None: there is none that can be used (see ``faults``)."""

    place: Active
    host: HostFacts | None
    state: StateHome | None
    trials: tuple[Trial, ...]
    faults: tuple[Error, ...]
    fixes: tuple[Fix, ...]

    @property
    def spare(self) -> tuple[BackendVerdict, ...]:
        """Backends that are not to be had where a stronger one works: nothing has to be done about them."""
        return () if self.host is None else _spare(self.host)

    @property
    def best(self) -> Tier:
        """The highest tier that was kept with every network."""
        return min(self.best_with(net) for net in NETS)

    def reach(self, wanted: Tier) -> bool | None:
        """Tell whether the tier was kept with every network; None where only a passing shortage says no."""
        lost = [t for t in self.trials if t.tier <= wanted and not t.good] if self.best < wanted else []
        return None if not self.trials or (lost and all(t.transient for t in lost)) else not lost

    def best_with(self, net: str) -> Tier:
        """Return the highest tier that was kept with this network."""
        return max((t.tier for t in self.trials if t.net == net and t.good), default=Tier.off)


def examine(progress: Callable[[float], None] = lambda part: None) -> Health:
    """Examine this host. Starts real boxes; changes nothing."""
    faults: list[Error] = []
    place = active()
    state, host = None, None
    try:
        state = load_settings(build_request(["true"], cwd="/")).state_home
        host = host_facts(state, fresh=True)
    except Error as error:
        faults.append(error)
    # In a box nobody writes to it but the supervisor, through its own socket.
    log = audit_fault(state.audit) if state is not None and place.where != "box" else None
    if log is not None:
        faults.append(log)
    trials: list[Trial] = []
    pairs = [(tier, net) for tier in reversed(ALL_TIERS) for net in NETS]
    for number, (tier, net) in enumerate(pairs):
        if state is not None and host is not None:
            progress(number / len(pairs))
            trials.append(_trial(state, tier, net))
    return Health(place=place, host=host, state=state, trials=tuple(trials), faults=tuple(faults),
                  fixes=tuple(_fixes(host)))


def _trial(state: StateHome, tier: Tier, net: str) -> Trial:
    """Start the launcher's own --version in a box of the tier. What policy forbids is no gap of the host."""
    tmp = None
    try:
        prepared = alone(noop(str(tier), net), state)
        if prepared.compiled is None:
            # D7: the box around is attested to keep the tier.
            return Trial(tier=tier, net=net, kept=tuple(promise.id for promise in required(tier)))
        tmp = tmpdisk.make(prepared)  # a box without namespaces has no other
        status, receipt = ended(launch_of(prepared, {"timeout": TIMEOUT_S}, tmp), TIMEOUT_S)
    except Error as error:
        return Trial(tier=tier, net=net, code=error.code, reason=error.message,
                     transient=isinstance(error, Refused) and error.transient)
    finally:
        tmpdisk.remove(tmp)
    if status != 0 or receipt is None:
        why = f"no-op: got status {status}, expected 0"
        return Trial(tier=tier, net=net, code="launch_failed", reason=why)
    return _judged(tier, net, receipt)


def _judged(tier: Tier, net: str, receipt: Receipt) -> Trial:
    kept = {promise.id for promise in receipt.promises if promise.state == "kept"}
    names = [promise.id for promise in required(tier)]
    return Trial(tier=tier, net=net, kept=tuple(name for name in names if name in kept),
                 lost=tuple(name for name in names if name not in kept))


def _fixes(host: HostFacts | None) -> list[Fix]:
    if host is None:
        return []
    spare = _spare(host)
    broken = [verdict for verdict in host.backends if (verdict.code or verdict.remedy) and verdict not in spare]
    return [fix for verdict in broken for fix in _fix(verdict)]


def _spare(host: HostFacts) -> tuple[BackendVerdict, ...]:
    works = next((at for at, verdict in enumerate(host.backends) if not verdict.code), len(host.backends))
    return tuple(verdict for verdict in host.backends[works:] if verdict.code)


def _fix(verdict: BackendVerdict) -> list[Fix]:
    # A remedy in words is better than none; it is never run.
    commands = verdict.commands or (f"# {verdict.remedy or CODES['no_backend'].hint}",)
    return [Fix(why=verdict.reason, commands=commands, sysctl=verdict.sysctl)]


def apply_fix(fix: Fix) -> bool:
    """Apply a remedy that root can take back; tell whether it was applied.

    Raises: Refused(policy_denied) for a caller that is not root.
    """
    if fix.sysctl is None:
        return False
    if os.geteuid() != 0:
        raise Refused("policy_denied", f"setting {fix.sysctl[0]}: got uid {os.geteuid()}, expected root",
                      hint="run the printed commands as root")
    name, value = fix.sysctl
    path = "/proc/sys/" + name.replace(".", "/")
    try:
        with open(path, "w", encoding="ascii") as stream:
            stream.write(value)
    except OSError as error:
        raise LaunchFailed("launch_failed", f"setting {name}: cannot be written ({error.strerror})") from None
    return True


def launcher_report() -> dict[str, Any]:
    """Return what the launcher says about itself, or the error in its place."""
    import json

    try:
        report: dict[str, Any] = json.loads(_exec.launcher_facts())
    except Error as error:
        return {"error": error.to_json()}
    except ValueError:
        return {"error": {"code": "receipt_invalid", "message": "launcher --version: got no JSON"}}
    return {**report, "path": _exec.launcher_path(), "python": sys.executable}
