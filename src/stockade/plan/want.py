"""What one compilation needs to know, as plain values.

``compile.py`` fills this from the resolved request, the host facts and the decision; everything
below works on it alone, so a test can build one by hand. Paths are canonical host paths.
"""

from __future__ import annotations

from stockade.environment import EnvPolicy
from stockade.frozen import dataclass, field
from stockade.light import Mapping
from stockade.plan.mountinfo import Mount
from stockade.plan.witness import Witness
from stockade.rules.tiers import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    """Who the box is to the kernel. Shifted: box 0 is ``kernel_*``, which owns nothing."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    shifted: bool = False
    kernel_id: int = 0
    owner: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One cache of a profile: the user's own directory (None: there is none) and its place."""

    name: str
    path: str
    upper: str
    work: str
    lower: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """The request as the compiler sees it.

    ``cwd`` None: the private scratch. ``asked``: real paths of read grants and
    write roots that no profile made.
    ``spelled``: ("read" or "write", path) of grants that were named through a symbolic link.
    ``private``: directories inside write roots of which the box has an empty one of its own.
    ``sockets``: canonical paths to show. ``generated``: name below /run/config -> text.
    ``notes``: one line each for whoever started it.
    """

    tier: Tier
    caller: str
    net: str
    argv0: str
    cwd: str | None
    host_cwd: str
    ids: Ids
    home: str
    homes: tuple[str, ...]
    state_home: str
    config_home: str
    env: Mapping[str, str] = field(repr=False)
    policy: EnvPolicy
    witness: Witness = field(repr=False)
    mounts: tuple[Mount, ...] = field(default=(), repr=False)
    workspace: str | None = None
    profiles: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    asked: frozenset[str] = frozenset()
    read: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    spelled: tuple[tuple[str, str], ...] = ()
    sockets: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    allow: frozenset[str] = frozenset()
    caches: tuple[Cache, ...] = ()
    private: tuple[str, ...] = ()
    generated: tuple[tuple[str, str], ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    tmp_bytes: int | None = None
    tmp_disk: bool = False
    on_persistence: str = "report"
    fds: tuple[int, ...] = ()
    landlock_abi: int = 0
    ram_bytes: int = 4 << 30
    notes: tuple[str, ...] = ()

    @property
    def guarded(self) -> bool:
        """True where credentials are hidden and persistence points guarded."""
        return self.tier >= Tier.guarded

    @property
    def watched(self) -> bool:
        """True where persistence points are compared: where they are promised, or acted upon."""
        return self.guarded or self.on_persistence != "report"

    @property
    def strict(self) -> bool:
        """True where the root is built from grants."""
        return self.tier >= Tier.strict


def is_below(path: str, root: str) -> bool:
    """Tell whether ``path`` is ``root`` or inside it (canonical text)."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def below_any(path: str, roots: tuple[str, ...] | frozenset[str] | list[str]) -> bool:
    """Tell whether ``path`` is one of ``roots`` or inside one."""
    for root in roots:  # noqa: SIM110 - a start asks two thousand times, and a loop takes half the time
        if path == root or path.startswith(root.rstrip("/") + "/"):
            return True
    return False
