"""Tiers, caller classes and the defaults of each class.

Owns: the order of the tiers, the spellings accepted on input, the table that ``tier="auto"``
reads. Fails closed: an unknown tier or class is an error, never a default.
Read next: ``stockade.rules.promises`` (what a tier promises), ``stockade.rules.settings``
(where configuration may change a row).
"""

from __future__ import annotations

from stockade.errors import ConfigError, nearest
from stockade.frozen import dataclass
from stockade.light import IntEnum, MappingProxyType, StrEnum

AUTO = "auto"


class Tier(IntEnum):
    """A named set of promises; a higher tier holds every promise of the lower ones."""

    off = 0
    standard = 1
    guarded = 2
    strict = 3

    def __str__(self) -> str:
        return self.name


ALL_TIERS = (Tier.standard, Tier.guarded, Tier.strict)

OLD_TIER_NAMES = MappingProxyType({"cc": "guarded"})  # accepted, never printed


def parse(text: str) -> Tier:
    """Return the tier of that name.

    Args: text: ``off``, ``standard``, ``guarded``, ``strict`` or the old name ``cc``.
    Raises: ConfigError ``unknown_tier``.
    """
    tier = Tier.__members__.get(OLD_TIER_NAMES.get(text, text))
    if tier is None:
        known = list(Tier.__members__)
        raise ConfigError("unknown_tier", f"tier {text!r}: expected one of {', '.join(known)}",
                          hint=nearest(text, [*known, AUTO]))
    return tier


class Caller(StrEnum):
    """Who chose the argv."""

    OPERATOR = "operator"
    FIRST_PARTY = "first_party"
    AGENT = "agent"
    APP = "app"
    MCP_SERVER = "mcp_server"
    REPOSITORY = "repository"
    GENERATED = "generated"
    DOCUMENT = "document"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """Defaults of one caller class, and why."""

    tier: Tier
    net: str
    why: str


_HOSTILE = "hostile input; a profile (npm, pip, cargo) adds what an install needs"

CALLERS = MappingProxyType({
    Caller.OPERATOR: ClassRow(
        tier=Tier.guarded, net="host",
        why="safe enough to type in front of anything, loose enough that nothing breaks"),
    Caller.AGENT: ClassRow(
        tier=Tier.guarded, net="host",
        why="works like the user over git and ssh-agent; credentials only by profile"),
    Caller.MCP_SERVER: ClassRow(
        tier=Tier.strict, net="host",
        why="somebody else's program; what it needs is in its profile or declared environment"),
    Caller.APP: ClassRow(
        tier=Tier.standard, net="host",
        why="the gateway's own apps; dangerous steps go through the broker"),
    Caller.REPOSITORY: ClassRow(tier=Tier.strict, net="none", why=_HOSTILE),
    Caller.GENERATED: ClassRow(tier=Tier.strict, net="none", why=_HOSTILE),
    Caller.DOCUMENT: ClassRow(tier=Tier.strict, net="none", why=_HOSTILE),
    Caller.FIRST_PARTY: ClassRow(tier=Tier.standard, net="host", why="our own argv"),
})

# The network of a tier that the caller named, when neither the request nor a profile said one.
TIER_NET = MappingProxyType({
    Tier.off: "host", Tier.standard: "host", Tier.guarded: "host", Tier.strict: "none",
})
