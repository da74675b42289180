"""``resolve``: one request and its settings become values with origins.

Owns: the order of precedence, the caller class, the network rule, policy clamps, and the lists
that join. Fails closed: an untrusted project file counts only where it narrows; ``hide`` beats
every grant; policy beats everybody, and what it takes away is said.
Read next: ``stockade.decision`` (which reads the result), ``docs/decision.md``.
"""

from __future__ import annotations

import os

from stockade.errors import Refused
from stockade.light import Callable, Iterable, Iterator
from stockade.paths import git_top, is_below
from stockade.rules.denial import denies_path, denies_word
from stockade.rules.governance import Policy
from stockade.rules.grants import Grant, Places, expand, named_grant, unique, without_hidden
from stockade.rules.layer import Layer, PathRef, Sourced
from stockade.rules.load import load_list
from stockade.rules.names import TIER_NAMES
from stockade.rules.picking import picked
from stockade.rules.precedence import Base, Ranked, Slot, base_of
from stockade.rules.promises import by_id
from stockade.rules.request import Request
from stockade.rules.resolved import CacheSpec, ConfigSpec, Resolved, StateSpec
from stockade.rules.roots import Roots, find_roots
from stockade.rules.settings import PROJECT_FILE, Settings, load_settings
from stockade.rules.tiers import TIER_NET, Caller, Tier, parse
from stockade.rules.voiding import waived_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["CacheSpec", "ConfigSpec", "Resolved", "StateSpec", "resolve"]

_BUILT_IN = {"cache": "keep", "tmp": "memory", "on_persistence": "report"}
_PICKED = "argv[0]"


def resolve(request: Request, settings: Settings | None = None) -> Resolved:
    """Return every value of the request with its origin.

    Raises: ConfigError (files, unknown profile), Refused (``policy_denied``, ``write_root_refused``).
    """
    return _Resolver(request, settings or load_settings(request)).run()


class _Resolver:
    """The state of one resolution; ``run`` is a straight line."""

    def __init__(self, request: Request, settings: Settings) -> None:
        self.request = request
        self.settings = settings
        self.places: Places = settings.places
        self.policy: Policy = settings.policy
        self.notes: list[str] = []
        self.values: dict[str, Sourced] = {}
        self.unnarrowed: tuple[tuple[Grant, ...], tuple[Grant, ...]] | None = None

    def run(self) -> Resolved:
        ranked, named = self._profiles()
        self.every = tuple(item.profile for item in ranked)
        self.chain = tuple(item.profile for item in ranked if not item.denied)
        # (2): classify the caller.
        base = base_of(self.request.caller, ranked, self.settings, picked=named == _PICKED)
        caller = str(base.caller.value)
        self.values["caller"] = base.caller
        if caller == Caller.FIRST_PARTY:
            from stockade.rules import firstparty  # few requests claim it

            self.values["caller"] = Sourced(value=caller, origin=firstparty.prove(self.request))
        self.slots = self._slots(ranked, named, base)
        tier, net = self._tier_and_net(base)
        hide = unique(self._paths("hide"))
        read, devices = self._visible("read", hide), self._visible("devices", hide)
        roots = self._roots(caller, self._visible("write", hide), read, hide)
        sockets = self._sockets(tier, hide)
        allow = self._words("allow", self.request.allow)
        self._say_where_the_record_goes()
        self._say_which_file_is_not_read()
        passed = self._words("env", self.request.pass_env)
        literal, given, setters = self._set_env()
        simple: dict[str, Any] = self._simple(base)
        settings = self.settings
        return Resolved(
            request=self.request, tier=tier, asked=self.request.tier, caller=caller, net=net,
            profiles=tuple(dict.fromkeys(profile.name for profile in self.chain)),
            home=self.places.home, homes=self.places.homes, workspace=self.places.workspace,
            cwd=roots.cwd, write_roots=roots.write_roots, read=roots.read, hide=hide,
            devices=devices, sockets=sockets, allow=allow, accept=self._accept(),
            env_keep=self._env_keep(passed, (*sockets, *allow), given), set_env=given, profile_set_env=literal,
            limits=self._limits(), **self._specs(), **simple, cache_limit_bytes=settings.cache_limit_bytes,
            state_home=settings.state_home, config_home=self.places.config_home, policy=self.policy,
            notes=tuple(dict.fromkeys(self.notes)), values=self.values, variables=(*setters, *passed),
            unnarrowed=self.unnarrowed, allow_unconfined=settings.allow_unconfined)

    def _say_where_the_record_goes(self) -> None:
        state = self.settings.state_home
        named = [f"variable {name}" for name in ("STOCKADE_HOME", "XDG_STATE_HOME") if os.environ.get(name)]
        if self.policy.state_home is not None:
            named = [self.policy.origin("state_home")]
        self.values["state_home"] = Sourced(value=state.path, origin="fallback" if state.ephemeral else
                                            named[0] if named else "default")
        if state.ephemeral:
            self.notes.append(f"state home {state.wanted!r} cannot be written: plans and records go to "
                              f"{state.path!r}, which may not last")

    def _say_which_file_is_not_read(self) -> None:
        """A file that was meant to narrow and is not where it counts."""
        cwd = self.request.cwd
        path = f"{cwd.rstrip('/')}/{PROJECT_FILE}"
        if os.path.lexists(path) and git_top(cwd) != cwd:
            self.notes.append(f"{path!r} is not read: a project file counts at the top of a git repository")

    # -- layers ---------------------------------------------------------------------------------

    def _profiles(self) -> tuple[tuple[Ranked, ...], str]:
        """Return the merged chain, and who named it: ``argument``, a file's origin, or ``argv[0]``.

        What only forbidden names lead to is in the chain as well: it may still narrow.
        """
        names, origin = self.request.profiles, "argument"
        for file in self.settings.files:
            if names or not file.profiles:
                continue
            if file.narrow_only:
                self._untrusted(Slot(layer=file.layer, narrow_only=True), "profile")
            else:
                names, origin = file.profiles, file.layer.origin
        if not names:
            word = picked(self.request, self.settings, self.places.workspace)
            names, origin = ((word,), _PICKED) if word else ((), "none")
        denied = [name for name in names if self.policy.denies_profile(name)]
        if denied and origin == "argument":
            raise Refused("policy_denied", f"profile {denied[0]!r}: {self.policy.origin('allow_profiles')} "
                          "does not allow it")
        self.notes.extend(f"profile {name} counts only where it narrows: {self.policy.origin('allow_profiles')}"
                          for name in denied)
        store = self.settings.profiles
        used = {profile.source for profile in store.chain([name for name in names if name not in denied])}
        ranked = tuple(Ranked(profile=profile, denied=profile.source not in used) for profile in store.chain(names))
        self.values["profile"] = Sourced(value=[item.profile.name for item in ranked if not item.denied], origin=origin)
        return ranked, origin

    def _slots(self, ranked: tuple[Ranked, ...], named: str, base: Base) -> tuple[Slot, ...]:
        files = [Slot(layer=file.layer, narrow_only=file.narrow_only) for file in self.settings.files]
        keys = frozenset(("tier", "net") if base.net_is_said else ("tier",)) if named == _PICKED else frozenset[str]()
        # A later profile wins, so it stands first; one that nobody named stands below every file.
        profiles = [Slot(layer=item.profile.layer, narrow_only=item.denied, denied=item.denied, narrow_keys=keys)
                    for item in reversed(ranked)]
        at = len(files) if named == _PICKED else 0
        for index, slot in enumerate(files):
            if slot.layer.origin == named:
                at = index + 1
        return (Slot(layer=_argument_layer(self.request)), *files[:at], *profiles, *files[at:])

    def _untrusted(self, slot: Slot, key: str) -> None:
        if slot.narrow_only and not slot.denied:  # of a denied profile it was said as a whole
            self.notes.append(f"{slot.layer.origin}: {key} is not applied before stockade trust")

    def _pick(self, candidates: Iterator[tuple[Slot, Any]], key: str,
              narrower: Callable[[Any, Any], bool]) -> Sourced | None:
        """Return the first value; one that may only narrow counts where it narrows what follows."""
        for slot, value in candidates:
            found = Sourced(value=value, origin=slot.layer.origin)
            if not slot.narrows(key):
                return found
            rest = self._pick(candidates, key, narrower)
            if narrower(value, rest.value if rest else None):
                return found
            if rest is None or rest.value != value:
                self._untrusted(slot, key)
            return rest
        return None

    def _scalar(self, key: str, narrower: Callable[[Any, Any], bool]) -> Sourced | None:
        candidates = ((slot, slot.layer.scalars[key]) for slot in self.slots if key in slot.layer.scalars)
        return self._pick(candidates, key, narrower)

    # -- class, tier, network -------------------------------------------------------------------

    def _tier_and_net(self, base: Base) -> tuple[Tier, str]:
        named = self._scalar("tier", lambda value, rest: parse(value) >= (parse(rest) if rest else base.tier.value))
        tier = parse(named.value) if named else base.tier.value
        origin = named.origin if named else base.tier.origin
        # Before the floor: a second policy that has one must not turn the refusal of the first into a box.
        if tier == Tier.off and self.policy.deny_unconfined:
            raise Refused("policy_denied", f"tier 'off': {self.policy.origin('deny_unconfined')} forbids it")
        if tier < self.policy.min_tier:
            self.notes.append(f"tier {tier} was raised to {self.policy.min_tier}: {self.policy.origin('min_tier')}")
            tier, origin = self.policy.min_tier, self.policy.origin("min_tier")
        self.values["tier"] = Sourced(value=str(tier), origin=origin)
        net = self._scalar("net", lambda value, rest: value == "none") or self._net_of_tier(base)
        if self.policy.max_net == "none" and net.value != "none":
            self.notes.append(f"net host became none: {self.policy.origin('max_net')}")
            net = Sourced(value="none", origin=self.policy.origin("max_net"))
        ceiling = self.request.ceiling
        if ceiling is not None and ceiling.tier > tier:
            # Its own network does not come with it: that of the wider box may be narrower.
            tier, self.values["tier"] = ceiling.tier, Sourced(value=str(ceiling.tier), origin="narrow")
        if ceiling is not None and ceiling.net_none and net.value != "none":
            net = Sourced(value="none", origin="narrow")
        self.values["net"] = net
        return tier, str(net.value)

    def _net_of_tier(self, base: Base) -> Sourced:
        """Return the network when nobody named one: that of the tier that was named, else the row's."""
        net = base.net
        for slot in reversed(self.slots):
            tier = slot.layer.scalars.get("tier")
            if tier is not None and (TIER_NET[parse(tier)] == "none" or not slot.narrows("tier")):
                net = Sourced(value=TIER_NET[parse(tier)], origin=f"tier {tier}")
        return net

    # -- lists ----------------------------------------------------------------------------------

    def _paths(self, key: str) -> Iterator[Grant]:
        spelled = dict(self.request.spelled)
        for path in getattr(self.request, key):
            yield self._allowed_grant(named_grant(path, spelled.get(path, "")), key)
        for slot in self.slots:
            refs: tuple[PathRef, ...] = slot.layer.paths.get(key, ())
            if refs and slot.narrow_only and key != "hide":
                self._untrusted(slot, key)
                continue
            for ref in refs:
                grant = expand(ref, self.places, slot.layer.origin)
                if grant is not None and (key == "hide" or self._keep_from_file(grant)):
                    yield grant

    def _allowed_grant(self, grant: Grant, key: str) -> Grant:
        if key != "hide" and denies_path(self.policy, grant, self.places):
            raise Refused("policy_denied", f"{key} {grant.path!r}: {self.policy.origin('deny_grants')} forbids it")
        return grant

    def _keep_from_file(self, grant: Grant) -> bool:
        if not denies_path(self.policy, grant, self.places):
            return True
        self.notes.append(f"{grant.origin}: {grant.path!r} is not granted: {self.policy.origin('deny_grants')}")
        return False

    def _visible(self, key: str, hide: tuple[Grant, ...]) -> tuple[Grant, ...]:
        stay, gone = without_hidden(unique(self._paths(key)), hide)
        self.notes.extend(f"{key} {grant.path!r} ({grant.origin}) is hidden" for grant in gone if grant.named)
        return stay

    def _roots(self, caller: str, named: tuple[Grant, ...], read: tuple[Grant, ...],
               hide: tuple[Grant, ...]) -> Roots:
        roots = find_roots(self.request, caller, self.places, named, read)
        write_roots, _ = without_hidden(unique(roots.write_roots), hide)
        # Said aloud: a default root inside a denied path silently missing would look like a fault.
        write_roots = tuple(g for g in write_roots if g.named or self._keep_from_file(g))
        extra, _ = without_hidden(roots.read, hide)
        read = unique((*read, *(grant for grant in extra if self._keep_from_file(grant))))
        ceiling = self.request.ceiling
        if ceiling is not None and (ceiling.write is not None or ceiling.read is not None):
            from stockade.rules import narrow  # few requests are narrowed

            self.unnarrowed = write_roots, read
            left = narrow.paths(ceiling, write_roots, read)
            write_roots, read = without_hidden(left[0], hide)[0], without_hidden(left[1], hide)[0]
        cwd, origin = roots.cwd, roots.cwd_origin
        if cwd is not None and not any(is_below(cwd, g.real) for g in (*write_roots, *read)):
            self.notes.append(f"cwd {cwd!r} is hidden or denied: the command starts in an empty private directory")
            cwd, origin = None, "hidden or denied"
        self.notes.extend(roots.notes)
        self.values["cwd"] = Sourced(value=cwd, origin=origin)
        self.values["write_roots"] = Sourced(value=[g.path for g in write_roots],
                                             origin=", ".join(dict.fromkeys(g.origin for g in write_roots)) or "none")
        return Roots(write_roots=write_roots, cwd=cwd, cwd_origin=origin, read=read)

    def _words(self, key: str, named: Iterable[str]) -> tuple[Sourced, ...]:
        found = {word: Sourced(value=word, origin="argument") for word in named}
        for word in found:
            if key != "accept" and denies_word(self.policy, word, self.places):
                raise Refused("policy_denied", f"{key} {word!r}: {self.policy.origin('deny_grants')} forbids it")
        for slot in self.slots:
            words = slot.layer.words.get(key, ())
            if words and slot.narrow_only:
                self._untrusted(slot, key)
                continue
            for word in words:
                if key != "accept" and denies_word(self.policy, word, self.places):
                    self.notes.append(f"{slot.layer.origin}: {word} is not granted: "
                                      f"{self.policy.origin('deny_grants')}")
                    continue
                found.setdefault(word, Sourced(value=word, origin=slot.layer.origin))
        return tuple(found.values())

    def _sockets(self, tier: Tier, hide: tuple[Grant, ...]) -> tuple[Sourced, ...]:
        found = {item.value: item for item in self._words("sockets", self.request.sockets)}
        for entry in load_list("grants"):
            if entry.klass == "socket" and str(tier) in entry.tiers and entry.id not in found:
                if self.policy.denies_grant(entry.id):
                    self.notes.append(f"socket {entry.id} is not granted: {self.policy.origin('deny_grants')}")
                else:
                    found[entry.id] = Sourced(value=entry.id, origin=f"tier {tier}")
        paths = tuple(named_grant(name) for name in found if "/" in name)
        gone = {grant.path for grant in without_hidden(paths, hide)[1]}
        return tuple(item for name, item in found.items() if name not in gone)

    def _accept(self) -> tuple[Sourced, ...]:
        """Return what the caller accepts to lose, without what policy says must not be lost."""
        stay = []
        for item in self._words("accept", self.request.accept):
            why = None
            if self.policy.denies_accept(item.value):
                why = self.policy.origin("deny_accept")
            elif _below_floor(item.value, self.policy.min_tier):
                why = self.policy.origin("min_tier")
            if why:
                self.notes.append(f"accept {item.value} has no effect: {why}")
            else:
                stay.append(item)
        return tuple(stay)

    # -- environment and the rest ---------------------------------------------------------------

    def _env_keep(self, passed: Iterable[Sourced], grants: Iterable[Sourced],
                  given: Iterable[tuple[str, str]]) -> tuple[str, ...]:
        """Return the names that pass. A value that is set for a loader variable is a grant of it:

        it makes programs of the box run the code it names just as an inherited one does.
        """
        inner = [pair for profile in self.chain if profile.inner_sandbox for pair in profile.inner_sandbox.set_env]
        loaders = [name for name, _ in (*given, *inner) if waived_by("env", name, self.places.home)]
        names = [*loaders, *(item.value for item in passed)]
        granted = {item.value for item in grants}
        names += [variable for entry in load_list("grants") if entry.id in granted for variable in entry.env]
        return tuple(dict.fromkeys(names))

    def _set_env(self) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...], tuple[Sourced, ...]]:
        """Return literals for the plan, values for the descriptor, and who set which: the first that names one wins."""
        literal: dict[str, str] = {}
        given: dict[str, str] = {}
        setters: list[Sourced] = []
        for slot in self.slots:
            if slot.layer.set_env and slot.narrow_only:
                self._untrusted(slot, "set_env")
                continue
            for name, value in slot.layer.set_env:
                if name not in literal and name not in given:
                    (literal if slot.layer.literal else given)[name] = value
                    setters.append(Sourced(value=name, origin=slot.layer.origin))
        return tuple(sorted(literal.items())), tuple(sorted(given.items())), tuple(setters)

    def _limits(self) -> dict[str, int]:
        names = sorted({name for slot in self.slots for name, _ in slot.layer.limits})
        found: dict[str, int] = {}
        for name in names:
            candidates = ((slot, dict(slot.layer.limits)[name]) for slot in self.slots
                          if name in dict(slot.layer.limits))
            limit = self._pick(candidates, f"limits.{name}", lambda value, rest: rest is None or value <= rest)
            if limit is not None:
                found[name] = limit.value
                self.values[f"limits.{name}"] = limit
        for name, most in self.request.ceiling.limits if self.request.ceiling else ():
            if found.get(name, most + 1) > most:
                found[name], self.values[f"limits.{name}"] = most, Sourced(value=most, origin="narrow")
        return found

    def _simple(self, base: Base) -> dict[str, str]:
        order = ("off", "ephemeral", "keep")
        defaults = {key: Sourced(value=value, origin="built in") for key, value in _BUILT_IN.items()}
        if base.quarantined:
            defaults["on_persistence"] = Sourced(value="quarantine", origin=f"class {base.quarantined}")
        narrower = {"cache": lambda value, rest: order.index(value) <= order.index(rest or "keep"),
                    # `fail` leaves things where they are, so it is no narrower than quarantine.
                    "on_persistence": lambda value, rest: (rest or defaults["on_persistence"].value) == "report"}
        found = {}
        for key, default in defaults.items():
            value = self._scalar(key, narrower.get(key, lambda value, rest: False))
            self.values[key] = value or default
            found[key] = str(self.values[key].value)
        return found

    def _specs(self) -> dict[str, Any]:
        caches: dict[str, CacheSpec] = {}
        config: dict[str, ConfigSpec] = {}
        state: dict[str, StateSpec] = {}
        private: dict[str, Grant] = {}
        for cache in (*(cache for profile in self.chain for cache in profile.caches), *self.settings.tried):
            path = self._cache_path(None if cache.plain else cache.env, cache.path, cache.origin)
            if path is not None and self._keep_from_file(path):
                caches[cache.name] = CacheSpec(name=cache.name, path=path.path, env=cache.env, plain=cache.plain,
                                               origin=cache.origin)
        for profile in self.chain:
            origin = profile.layer.origin
            for made in profile.config:
                sources = (expand(ref, self.places, origin) for ref in made.sources)
                config[made.to] = ConfigSpec(filter=made.filter, to=made.to, env=made.env, sources=tuple(
                    grant.path for grant in sources if grant is not None and self._keep_from_file(grant)))
            for item in profile.state:
                where = expand(item.path, self.places, origin)
                directory = expand(item.dir, self.places, origin) if item.dir else None
                if where is not None and (item.mode == "env" or self._keep_from_file(where)):
                    state[where.path] = StateSpec(path=where.path, mode=item.mode, env=item.env,
                                                  dir=directory.path if directory else None)
        for profile in self.every:
            places = [expand(ref, self.places, profile.layer.origin) for ref in profile.private]
            private.update({place.path: place for place in places if place is not None})
        # `run --profile claude -- sh` starts a shell: the tool's own switches are not for it.
        name = os.path.basename(self.request.argv[0])
        inner = tuple(p.inner_sandbox for p in self.chain if p.inner_sandbox is not None and p.is_for(name))
        return {"caches": tuple(caches.values()), "config": tuple(config.values()),
                "state": tuple(state.values()), "private": tuple(private.values()), "inner_sandbox": inner}

    def _cache_path(self, env: str | None, ref: PathRef, origin: str) -> Grant | None:
        if env and self.places.variable(env).startswith("/"):
            return expand(PathRef(text=f"${env}"), self.places, origin)
        return expand(ref, self.places, origin)


def _argument_layer(request: Request) -> Layer:
    """Return the caller's own scalars, values and limits as the first layer; lists are read apart."""
    scalars = {"tier": None if request.tier == "auto" else request.tier, "net": request.net,
               "cache": request.cache, "tmp": request.tmp, "on_persistence": request.on_persistence}
    return Layer(origin="argument", scalars={key: value for key, value in scalars.items() if value is not None},
                 set_env=request.set_env, limits=request.limits)


def _below_floor(word: str, floor: Tier) -> bool:
    """Tell whether accepting ``word`` could end in a box below the floor."""
    if floor == Tier.off:
        return False
    return parse(word) < floor if word in TIER_NAMES else floor in by_id(word).tiers
