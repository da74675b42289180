"""The facts that a decision is made from, as types: what a backend keeps, the place, the host.

Owns: their names and their meaning; nothing here reads anything. Fails closed: every fact that
nobody gave says no. Read next: ``stockade.decision``, ``stockade.host`` (who finds them).
"""

from __future__ import annotations

from stockade.frozen import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from stockade.rules.tiers import Tier
else:
    Protocol = object

# One thing that the surrounding box allows and the request does not: the promise it touches, and what it is.
Wider = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendVerdict:
    """What one backend can keep on this host, found by the probe.

    Args: keeps: promise ids; open_net: those of them that it does not keep for a box with the host's
    network; code: why it cannot be used at all (``""`` when it can): a key of ``CODES`` such as
    ``userns_denied``; reason, remedy: for people; transient: worth a retry.
    settled: False when a part of the probe could not be made, so that the next request tries again.
    obstacle: its class (``stockade.host.obstacles``); step, object, errno: what the launcher was refused;
    commands: the remedy, to paste; sysctl: the setting that is the whole of it.
    """

    name: str
    keeps: frozenset[str] = frozenset()
    open_net: frozenset[str] = frozenset()
    namespaces: bool = False
    code: str = ""
    reason: str = ""
    remedy: str = ""
    transient: bool = False
    settled: bool = True
    obstacle: str = ""
    step: int | None = None
    object: str = ""
    errno: str = ""
    commands: tuple[str, ...] = ()
    sysctl: tuple[str, str] | None = None

    def kept(self, net: str) -> frozenset[str]:
        """Return the promises that it keeps for a box with network ``net``."""
        if self.code:
            return frozenset()
        return self.keeps if net == "none" else self.keeps - self.open_net


class Place(Protocol):
    """Where the calling process is, attested by the kernel (``stockade.host.standpoint``)."""

    @property
    def where(self) -> str:
        """``outside``, ``box``, ``foreign`` or ``unknown``."""

    @property
    def tier(self) -> Tier | None:
        """Tier of the surrounding box, if there is one and it is known."""

    @property
    def known(self) -> bool:
        """Whether ``tier`` is attested."""

    @property
    def nests(self) -> bool:
        """Whether the supervisor of the box answers and builds narrower boxes in it."""

    @property
    def wider(self) -> tuple[Wider, ...] | None:
        """What the box allows beyond the request; None when its record does not tell."""

    @property
    def lacks(self) -> tuple[str, ...]:
        """Paths, sockets, hosts and variables that the request names and the box does not have."""


class Host(Protocol):
    """What the host can keep, strongest backend first (``stockade.host.facts``)."""

    @property
    def backends(self) -> Sequence[BackendVerdict]:
        """Verdicts of all backends that exist here."""

    @property
    def layer(self) -> BackendVerdict | None:
        """What Landlock and seccomp keep as a further layer around one process; None: not to be had."""

    @property
    def inner(self) -> BackendVerdict | None:
        """The agent's own sandbox, verified to be on, where no other can be put around it."""

    @property
    def broker(self) -> str | None:
        """The one pinned shape that this very call matches, at a gateway that answers."""
