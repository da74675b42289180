"""The values of one request after profiles, configuration, class row and policy.

Owns: the frozen type that the decision, the environment filter and the plan compiler read.
Fails closed: it has no defaults; ``stockade.rules.resolve`` fills every field or raises.
Read next: ``stockade.rules.resolve``.
"""

from __future__ import annotations

from stockade.frozen import dataclass, field
from stockade.light import Mapping
from stockade.paths import StateHome
from stockade.rules.governance import Policy
from stockade.rules.grants import Grant
from stockade.rules.layer import Sourced
from stockade.rules.profile import InnerSandbox
from stockade.rules.request import Request
from stockade.rules.tiers import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """A cache directory of the host, absolute, that the box gets below an upper of its own."""

    name: str
    path: str
    env: str | None
    plain: bool
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSpec:
    """A configuration file to make for the box from safe keys of ``sources``."""

    filter: str
    sources: tuple[str, ...]
    to: str
    env: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """A file that its tool saves by rename; see ``stockade.rules.profile.StateRef``."""

    path: str
    mode: str
    env: str | None
    dir: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Request, profiles, configuration, class row and policy in one. ``cwd`` None: private scratch.

    ``set_env`` goes to the launcher by descriptor; ``profile_set_env`` are reviewed literals that
    may stand in a plan. ``values`` explains where each value came from, ``variables`` who granted or set each variable,
    by name alone. ``unnarrowed``: write roots
    and read grants as they were before ``Sandbox.narrow``: what is protected in them stays so.
    ``allow_unconfined``: the operator's word for hosts without a backend. ``caller`` first_party is proven.
    """

    request: Request
    tier: Tier
    asked: str
    caller: str
    net: str
    profiles: tuple[str, ...]
    home: str
    homes: tuple[str, ...]
    workspace: str
    cwd: str | None
    write_roots: tuple[Grant, ...]
    read: tuple[Grant, ...]
    hide: tuple[Grant, ...]
    devices: tuple[Grant, ...]
    sockets: tuple[Sourced, ...]
    allow: tuple[Sourced, ...]
    accept: tuple[Sourced, ...]
    env_keep: tuple[str, ...]
    set_env: tuple[tuple[str, str], ...] = field(repr=False)
    profile_set_env: tuple[tuple[str, str], ...]
    limits: Mapping[str, int]
    caches: tuple[CacheSpec, ...]
    config: tuple[ConfigSpec, ...]
    state: tuple[StateSpec, ...]
    private: tuple[Grant, ...]
    inner_sandbox: tuple[InnerSandbox, ...]
    cache: str
    cache_limit_bytes: int
    tmp: str
    on_persistence: str
    state_home: StateHome
    config_home: str
    policy: Policy
    notes: tuple[str, ...]
    values: Mapping[str, Sourced]
    variables: tuple[Sourced, ...]
    unnarrowed: tuple[tuple[Grant, ...], tuple[Grant, ...]] | None = None
    allow_unconfined: Sourced | None = None
