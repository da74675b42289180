"""What a box around this process means for one request: what it allows beyond it, and what it lacks.

Owns: the comparison of the record of the box with a request, and the look at what is there. The
record is believed where ``active`` attested a box, and for narrowing only. Fails closed: a record
that does not say what it allows is ``None``, never "nothing"; a word that is not known counts as more.
Read next: ``active.py``, ``stockade.decision`` (D7 to D13).
"""

from __future__ import annotations

import os
import stat

from stockade.environment import apply, compile_env, secret_names
from stockade.frozen import replace
from stockade.light import Iterable, Iterator, Mapping
from stockade.paths import is_below
from stockade.rules.circumstances import Wider
from stockade.rules.tiers import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.rules.resolved import Resolved

LISTS = ("env", "read", "write", "sockets", "devices", "allow", "limits")


def tells(record: Mapping[str, Any]) -> bool:
    """Tell whether the record of a box says all that it allows."""
    return record.get("net") in ("none", "host") and all(_strings(record.get(name)) for name in LISTS)


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def wider(record: Mapping[str, Any], resolved: Resolved) -> Iterator[Wider]:
    """Yield what the box allows and the request does not: the promise that it touches, and what it is."""
    caches = resolved.caches if resolved.cache == "keep" else ()  # others must not see what one leaves in them
    write = _real(resolved.write_roots) | {item.path for item in caches} | {
        item.path for item in resolved.state if item.mode == "copyback"}
    if record["net"] == "host" and resolved.net != "host":
        yield "net.policy", "net host"
    yield from (("fs.write_roots", f"write {path}") for path in _beyond(record["write"], write))
    if resolved.tier > Tier.standard:  # standard reads what the user can read
        reads = write | _real(resolved.read)
        yield from (("fs.home", f"read {path}") for path in _beyond(record["read"], reads))
    yield from (("ipc.sockets", f"socket {name}") for name in _more(record["sockets"], resolved.sockets))
    yield from (("kernel.surface", f"allow {name}") for name in _more(record["allow"], resolved.allow))
    devices = _real(resolved.devices) | {grant.path for grant in resolved.devices}
    yield from (("kernel.surface", f"device {path}") for path in record["devices"] if path not in devices)
    # What is hidden does not exist here; what does exist was not hidden by the box around.
    yield from (("fs.credentials", f"read {grant.path}") for grant in resolved.hide if os.path.lexists(grant.path))
    yield from (("env.secrets", f"variable {name}") for name in _other_variables(record["env"], resolved))
    yield from (("env.secrets", f"own variable {name}") for name in _own_secrets(resolved))
    yield from _looser_limits(record["limits"], resolved.limits)


def _other_variables(given: Iterable[str], resolved: Resolved) -> list[str]:
    """Variables that were granted to the box and would not pass here: any process of the box may hold them."""
    environ, own = resolved.request.environ(), dict(resolved.set_env)
    asked = {name: environ.get(name, "") for name in given if name not in own}
    return apply(compile_env(resolved), asked, ()).dropped


def _own_secrets(resolved: Resolved) -> list[str]:
    """Secrets that the asking process holds: whoever runs beside it in the box reads them in /proc."""
    policy = compile_env(resolved, tier=min(resolved.tier, Tier.guarded))
    found = apply(replace(policy, drop=secret_names()), dict(os.environ), resolved.set_env)
    return [name for name in found.dropped if found.reasons[name] != "duplicate"]


def _looser_limits(limits: Iterable[str], wanted: Mapping[str, int]) -> Iterator[Wider]:
    has = {name: int(value) for name, _, value in (item.partition("=") for item in limits) if value.isdigit()}
    for name, most in wanted.items():
        # The wall limit is kept by whoever waits for the command.
        if name != "wall_ms" and (name not in has or has[name] > most):
            yield "limits", f"more than {name} {most}"


def lacks(record: Mapping[str, Any], resolved: Resolved) -> Iterator[str]:
    """Yield what an argument named and the box around this process does not have."""
    yield from (f"path {grant.path}" for grant in resolved.read if grant.named and not os.access(grant.real, os.R_OK))
    # EROFS here, in whatever way the box keeps it from being written.
    yield from (f"write access to path {grant.path}" for grant in resolved.write_roots
                if grant.named and not os.access(grant.real, os.W_OK))
    yield from (f"device {grant.path}" for grant in resolved.devices if grant.named and not os.path.exists(grant.real))
    for item in resolved.sockets:
        if item.origin == "argument" and item.value not in record.get("sockets", ()) and not _is_socket(item.value):
            yield f"socket {item.value}"
    if resolved.request.net == "host" and record.get("net") != "host":
        yield "the host's network (it runs with net none)"
    given = {*resolved.request.environ(), *(name for name, _ in (*resolved.set_env, *resolved.profile_set_env))}
    yield from (f"variable {name}" for name in resolved.request.pass_env if name not in given)


def _real(grants: Iterable[Any]) -> set[str]:
    return {grant.real for grant in grants}


def _beyond(has: Iterable[str], wanted: set[str]) -> list[str]:
    return [path for path in has if not any(is_below(path, root) for root in wanted)]


def _more(has: Iterable[str], wanted: Iterable[Any]) -> list[str]:
    names = {item.value for item in wanted}
    return [name for name in has if name not in names]


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
