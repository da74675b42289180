"""What one watched run teaches: the grants that would have been needed, each tried before it is named.

Owns: trying proposals on the real compiler, and what of the command line's own grants was used.
Fails closed: a proposal that the compiler refuses, or that does not change the answer, is told and
not proposed. Read next: ``stockade.plan.proposals``, ``learn.py``.
"""

from __future__ import annotations

import os
from typing import Any

from stockade.errors import ConfigError, Refused
from stockade.frozen import dataclass, replace
from stockade.host.probe import host_facts
from stockade.light import Iterable, Iterator
from stockade.plan.listed import Listed
from stockade.plan.needs import Need, Needs, Use
from stockade.plan.proposals import Apart, Proposal, Proposer
from stockade.plan.verdict import Judge, accepted_with
from stockade.plan.want import is_below
from stockade.process.prepare import Prepared, prepare, tried
from stockade.rules.layer import PathRef
from stockade.rules.profile import CacheRef, ProfileStore
from stockade.rules.profiletext import Learned, cache_name, tilde
from stockade.rules.request import build_request

# Enough names of one proposal to see that it helps.
_SAMPLE = 5
# Options that are only told are tried too; a try compiles the request again.
_TOLD = 20
_KEYWORDS = {"--read": "read", "--write": "write", "--allow-socket": "sockets", "--device": "devices",
             "--allow": "allow", "--net": "net"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """``kept``: (option, value) of the command line that was used; ``unused``: that was not."""

    proposals: tuple[Proposal, ...]
    apart: tuple[Apart, ...]
    kept: tuple[tuple[str, str], ...]
    unused: tuple[tuple[str, str], ...]
    learned: Learned


class Trial:
    """The request with grants added, compiled again."""

    def __init__(self, prepared: Prepared, options: dict[str, Any]) -> None:
        self._prepared, self._options = prepared, options

    def judge(self, proposals: Iterable[Proposal]) -> tuple[Judge, str]:
        """Return the judge of the box with these grants, and its network. Raises: Refused, ConfigError."""
        proposals = tuple(proposals)
        grants = [(item.kind, item.value) for item in proposals if item.kind != "cache"]
        return self._judge(grants, caches_of(self._prepared, proposals))

    def option(self, need: Need, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the option that grants a need, with what has to be accepted for it; empty when it does not."""
        grants = [(_KEYWORDS[name], value) for name, value in zip(words[::2], words[1::2], strict=True)
                  if name in _KEYWORDS]
        accepted = [value for name, value in zip(words[::2], words[1::2], strict=True) if name == "--accept"]
        try:
            judge, net = self._judge([*grants, *(("accept", value) for value in accepted)])
            if need.kind == "net":
                return words if net == "host" else ()
            return words if judge.judge(need.path, write=need.kind == "write").allowed else ()
        except Refused as error:
            more = accepted_with(error).get("accept", ())
            return () if accepted or not more else \
                self.option(need, (*words, *(word for item in more for word in ("--accept", item))))
        except ConfigError:
            return ()

    def _judge(self, grants: Iterable[tuple[str, str]], caches: tuple[CacheRef, ...] = ()) -> tuple[Judge, str]:
        options = dict(self._options)
        for kind, value in grants:
            options[kind] = value if kind == "net" else [*options.get(kind, ()), value]
        if caches:
            options.pop("cache", None)  # no profile holds the word of one command line
        request = build_request(list(self._prepared.request.argv), **options)
        prepared = tried(request, caches) if caches else prepare(request)
        return judge_of(prepared), prepared.resolved.net

    def sift(self, proposals: tuple[Proposal, ...]) -> tuple[tuple[Proposal, ...], list[Apart]]:
        """Return the proposals that hold, and why the others do not."""
        stay, apart = self._accepted(proposals)
        judge, net = self.judge(stay)
        good: list[Proposal] = []
        for item in stay:
            failed = next((need for need in item.needs[:_SAMPLE] if not _met(need, item, judge, net)), None)
            if failed is None:
                good.append(item)
            else:
                apart.append(Apart(need=failed, why=f"no grant changes it: {failed.rule}"))
        return tuple(good), apart

    def _accepted(self, proposals: tuple[Proposal, ...]) -> tuple[tuple[Proposal, ...], list[Apart]]:
        try:
            self.judge(proposals)
        except (Refused, ConfigError):
            pass
        else:
            return proposals, []
        stay: list[Proposal] = []
        apart: list[Apart] = []
        for item in proposals:
            try:
                self.judge((*stay, item))
            except (Refused, ConfigError) as error:
                apart.append(Apart(need=item.needs[0], why=f"refused with it: {error.message}"))
            else:
                stay.append(item)
        return tuple(stay), apart


def judge_of(prepared: Prepared) -> Judge:
    """Return the judge of a compiled request."""
    assert prepared.compiled is not None
    return Judge(prepared.resolved, host_facts(prepared.resolved.state_home), prepared.compiled)


def _met(need: Need, item: Proposal, judge: Judge, net: str) -> bool:
    if item.kind == "net":
        return net == item.value
    return judge.judge(need.path, write=item.kind in ("write", "cache")).allowed


def conclude(prepared: Prepared, options: dict[str, Any], uses: tuple[Use, ...]) -> Lesson:
    """Return what the uses of one run teach. Args: options: the keyword arguments of its request."""
    judge = judge_of(prepared)
    listed = Listed(judge.want)
    proposer = Proposer(listed, prepared.resolved.homes, prepared.resolved.workspace)
    proposals = proposer.make(Needs(judge, listed, prepared.resolved.net).of(uses))
    writable = tuple(item for item in proposals if _spelled(item.value))
    odd = [Apart(need=item.needs[0], why="a name that a profile cannot hold") for item in proposals
           if not _spelled(item.value)]
    trial = Trial(prepared, options)
    good, refused = trial.sift(writable)
    told = _with_options(trial, proposer.apart)
    kept, unused = _own_grants(prepared, uses)
    return Lesson(proposals=good, apart=(*told, *odd, *refused), kept=kept, unused=unused,
                  learned=_learned(prepared, options, good, kept))


def _with_options(trial: Trial, apart: Iterable[Apart]) -> Iterator[Apart]:
    """Yield what is only told, its option tried where there is one; beyond the bound it is said to be untried."""
    tries = 0
    for item in apart:
        tries += bool(item.option)
        if item.option and tries <= _TOLD:
            yield replace(item, option=trial.option(item.need, item.option))
        else:
            yield replace(item, tried=not item.option)


def caches_of(prepared: Prepared, proposals: Iterable[Proposal]) -> tuple[CacheRef, ...]:
    """Return the proposed caches, each with a name that no other one of its profiles has."""
    found: list[CacheRef] = []
    for item in proposals:
        if item.kind == "cache":
            taken = [*(spec.name for spec in prepared.resolved.caches), *(ref.name for ref in found)]
            name = cache_name(item.value, taken)
            found.append(CacheRef(name=name, path=PathRef(text=item.value), plain=item.plain, origin="learned"))
    return tuple(found)


def _spelled(text: str) -> bool:
    return text.isprintable() and "\ufffd" not in text and "$" not in text.split("/")[0]


def _own_grants(prepared: Prepared, uses: tuple[Use, ...]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Return the grants of the command line that something went through, and the others."""
    request = prepared.request
    worked = [use for use in uses if use.result in ("ok", "EINPROGRESS")]
    names = {use.name for use in worked if use.kind != "address"}
    rows = [(kind, path) for kind in ("read", "write", "sockets") for path in getattr(request, kind)]
    kept: list[tuple[str, str]] = []
    unused: list[tuple[str, str]] = []
    for kind, path in rows:
        real = os.path.realpath(path)
        used = "/" not in path or any(is_below(name, path) or is_below(name, real) for name in names)
        (kept if used else unused).append((kind, path))
    if request.net == "host":
        (kept if any(use.kind == "address" for use in worked) else unused).append(("net", "host"))
    return tuple(kept), tuple(unused)


def _learned(prepared: Prepared, options: dict[str, Any], proposals: Iterable[Proposal],
             kept: Iterable[tuple[str, str]]) -> Learned:
    request, homes = prepared.request, prepared.resolved.homes
    lists: dict[str, list[str]] = {"extends": _named(prepared)}
    scalars = {key: options[name] for key, name in (("class", "caller"), ("tier", "tier"))
               if options.get(name) not in (None, "auto")}
    proposals = tuple(proposals)
    for kind, value in (*kept, *((item.kind, item.value) for item in proposals if item.kind != "cache")):
        if kind == "net":
            scalars["net"] = value
        else:
            lists.setdefault(kind, []).append(tilde(value, homes) if kind != "sockets" else value)
    caches = tuple((ref.name, tilde(ref.path.text, homes), ref.plain) for ref in caches_of(prepared, proposals))
    # What cannot be seen in names stays as it was asked for.
    for key, values in (("hide", request.hide), ("devices", request.devices), ("allow", request.allow),
                        ("env", request.pass_env), ("accept", request.accept)):
        lists.setdefault(key, []).extend(tilde(value, homes) if key == "hide" else value for value in values)
    name = os.path.basename(request.argv[0])
    return Learned(description=f"learned from {name}", scalars=scalars, caches=caches,
                   lists={key: tuple(dict.fromkeys(values)) for key, values in lists.items() if values})


def _named(prepared: Prepared) -> list[str]:
    """Return the profiles of the run without those that another one extends anyway."""
    store = ProfileStore(prepared.resolved.config_home)
    inherited = {name for profile in store.chain(prepared.resolved.profiles) for name in profile.extends}
    return [name for name in prepared.resolved.profiles if name not in inherited]


def without(learned: Learned, name: str) -> Learned:
    """Return it without extending itself: what is saved under a name already holds what that name says."""
    extends = tuple(item for item in learned.lists.get("extends", ()) if item != name)
    return replace(learned, lists={**{k: v for k, v in learned.lists.items() if k != "extends"},
                                   **({"extends": extends} if extends else {})})

