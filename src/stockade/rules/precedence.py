"""Whose word counts: the places of layers, and what the caller's class gives to begin with.

Owns: ``Slot``, a layer in its place, and ``Base``, the rows of the classes that a request stands under.
Fails closed: a profile that policy forbids and a project file that nobody trusts count where they
narrow, so that taking them away never leaves a wider box; of several classes the narrowest counts
in each respect. Read next: ``stockade.rules.resolve``.
"""

from __future__ import annotations

from stockade.frozen import dataclass
from stockade.light import Iterable
from stockade.rules.layer import Layer, Sourced
from stockade.rules.names import AUTO_CALLER
from stockade.rules.profile import Profile
from stockade.rules.roots import PROJECT
from stockade.rules.settings import Settings
from stockade.rules.tiers import Caller

# What they run is chosen by somebody else: what it leaves for later is moved away, not only reported.
QUARANTINED = frozenset({Caller.REPOSITORY, Caller.GENERATED, Caller.DOCUMENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One layer in its place.

    ``narrow_only``: an untrusted project file, or a profile that policy forbids (``denied``);
    ``narrow_keys``: scalars of a picked profile that count only where they narrow.
    """

    layer: Layer
    narrow_only: bool = False
    denied: bool = False
    narrow_keys: frozenset[str] = frozenset()

    def narrows(self, key: str) -> bool:
        """Tell whether a scalar of this layer counts only where it narrows what follows."""
        return self.narrow_only or key in self.narrow_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A profile of the chain; ``denied``: policy does not allow what named it."""

    profile: Profile
    denied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The classes of a request, the one it is recorded under, and tier and network of their rows.

    ``net_is_said``: a file said of a class that it has no network, which no picked profile lifts.
    """

    caller: Sourced
    classes: tuple[str, ...]
    tier: Sourced
    net: Sourced
    net_is_said: bool = False

    @property
    def quarantined(self) -> str | None:
        """Return the class for which new persistence points are moved away, or None."""
        return next((name for name in self.classes if name in QUARANTINED), None)


def base_of(asked: str, chain: Iterable[Ranked], settings: Settings, *, picked: bool) -> Base:
    """Return what the classes give.

    Args: asked: the caller class of the request; picked: nobody named the profiles of the chain.
    """
    own = Caller.OPERATOR.value if asked == AUTO_CALLER else asked
    origins = _classes(asked, own, chain, settings)
    counted = [(name, key) for name in origins for key in ("tier", "net")]
    if picked and own not in origins:
        # A row that a file changed is a word of that file, and a picked profile stands below every file.
        counted += [(own, key) for key in ("tier", "net") if settings.says(own, key)
                    and not any(settings.says(name, key) for name in origins)]
    rows = {name: settings.row(name) for name, _ in counted}
    tiers = [Sourced(value=rows[name][0].tier, origin=rows[name][1]["tier"]) for name, key in counted if key == "tier"]
    nets = [(name, Sourced(value=rows[name][0].net, origin=rows[name][1]["net"])) for name, key in counted
            if key == "net"]
    caller = max(origins, key=lambda name: (name not in PROJECT, name in QUARANTINED, rows[name][0].tier,
                                            rows[name][0].net == "none"))
    return Base(
        caller=Sourced(value=caller, origin=origins[caller]), classes=tuple(origins),
        tier=max(tiers, key=lambda found: int(found.value)),
        net=next((found for _, found in nets if found.value == "none"), nets[0][1]),
        net_is_said=any(found.value == "none" and settings.says(name, "net") for name, found in nets))


def _classes(asked: str, own: str, chain: Iterable[Ranked], settings: Settings) -> dict[str, str]:
    """Return the classes that count, with their origins; the last profile with a class wins.

    That of a forbidden profile joins the others: whatever each of them takes away stays away.
    """
    start = {own: "default" if asked == AUTO_CALLER else "argument"}
    if asked not in (AUTO_CALLER, Caller.GENERATED):
        return start
    found = start
    for item in chain:
        carried = item.profile.caller
        if carried:
            fits = asked == AUTO_CALLER or _not_looser(carried, own, settings)
            new = {carried: f"profile {item.profile.name}"} if fits else start
            found = {**found, **new} if item.denied else new
    return found


def _not_looser(carried: str, own: str, settings: Settings) -> bool:
    """Tell whether a profile's class keeps at least the tier and network of the class asked for."""
    new, old = settings.row(carried)[0], settings.row(own)[0]
    return new.tier >= old.tier and (new.net == "none" or old.net == "host")
