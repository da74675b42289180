"""The decision table, over every combination of its axes."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.decision import KINDS, BackendVerdict, decide
from stockade.errors import CODES, Refused
from stockade.rules.governance import Policy
from stockade.rules.layer import Sourced
from stockade.rules.promises import PROMISES, effective_tier, required
from stockade.rules.tiers import CALLERS, Tier

ALL = frozenset(p.id for p in PROMISES)
NS = frozenset(p.id for p in PROMISES if p.ns)


@dataclass(frozen=True)
class Place:
    where: str
    tier: Tier | None = None
    known: bool = True


def host(*backends: BackendVerdict) -> Any:
    return SimpleNamespace(backends=backends)


def request(tier: Tier, *accept: str, caller: str = "generated", floor: Tier = Tier.off, net: str = "none") -> Any:
    return SimpleNamespace(tier=tier, caller=caller, policy=Policy(min_tier=floor), values={}, net=net,
                           accept=tuple(Sourced(value=word, origin="argument") for word in accept))


FULL = BackendVerdict(name="namespaces", keeps=ALL, namespaces=True)
NO_META = BackendVerdict(name="namespaces", keeps=ALL - {"fs.metadata"}, namespaces=True)
LANDLOCK = BackendVerdict(name="landlock", keeps=ALL - NS)
GUARDED = BackendVerdict(name="namespaces", keeps=ALL - {"fs.home"}, namespaces=True)
NO_SCOPES = BackendVerdict(name="namespaces", keeps=ALL, namespaces=True, open_net=frozenset({"ipc.isolated"}),
                           reason="abstract sockets stay in reach", remedy="take --net none")
BROKEN = BackendVerdict(name="namespaces", namespaces=True, code="userns_denied",
                        reason="user namespaces are restricted", remedy="allow them for this program")
SHORT = BackendVerdict(name="namespaces", namespaces=True, code="resource", reason="ENOMEM", transient=True)
HOSTS = {"full": [FULL], "no_meta": [NO_META], "landlock": [LANDLOCK], "guarded": [GUARDED], "broken": [BROKEN],
         "transient": [SHORT], "none": [], "broken_landlock": [BROKEN, LANDLOCK], "both": [FULL, LANDLOCK],
         "broken_transient": [BROKEN, SHORT]}
PLACES = [Place("outside"), Place("foreign"), Place("unknown", None, False), Place("box", Tier.strict),
          Place("box", Tier.standard), Place("box", None, False)]
ACCEPTS = [(), ("fs.metadata",), ("fs.home",), ("guarded",), ("standard",)]
AXES = list(itertools.product(PLACES, HOSTS, Tier, CALLERS, ACCEPTS, (Tier.off, Tier.guarded)))


def test_every_combination_gets_the_promised_tier_or_a_typed_refusal() -> None:
    for place, name, tier, caller, accept, floor in AXES:
        got = decide(place, host(*HOSTS[name]), request(tier, *accept, caller=str(caller), floor=floor))
        context = (place, name, tier, caller, accept, floor, got)
        assert got.kind in KINDS and got.reasons, context
        assert got.requested_tier == str(tier), context
        if got.kind == "wrap":
            backend = next(b for b in HOSTS[name] if b.name == got.backend and not b.code)
            lost = {p.id for p in required(tier, namespaces=backend.namespaces)} - backend.keeps
            assert got.row == "D2" and place.where != "box" and tier > Tier.off, context
            assert set(got.missing) == lost and (not lost or accept), context
            assert got.tier_downgrade == (got.effective_tier != str(tier)), context
            assert bool(lost) == got.tier_downgrade, context
        elif got.kind == "unconfined":
            assert got.row == "D1" and tier == Tier.off == floor, context
            assert place.where in ("outside", "foreign") and got.env_tier == Tier.standard, context
            assert got.effective_tier == "off", context
        else:
            assert (got.kind == "refuse" and got.code in CODES and got.remedy is not None) or got.code == "policy_denied"
            assert got.effective_tier is None and got.backend is None, context
            with pytest.raises(Refused) as caught:
                got.raise_if_refused()
            assert caught.value.code == got.code and caught.value.missing == got.missing


def test_no_class_starts_weaker_because_the_host_cannot() -> None:
    for caller, tier in itertools.product(CALLERS, (Tier.standard, Tier.guarded, Tier.strict)):
        got = decide(Place("outside"), host(BROKEN), request(tier, caller=str(caller)))
        assert (got.kind, got.row, got.code) == ("refuse", "D6", "no_backend")
        assert set(got.missing) == {p.id for p in required(tier)}
        assert got.remedy == BROKEN.remedy


def test_inside_a_box_everything_is_refused_with_a_remedy() -> None:
    inside = [place for place in PLACES if place.where == "box"]
    assert inside
    for place, tier in itertools.product(inside, Tier):
        got = decide(place, host(FULL), request(tier))
        assert (got.kind, got.row, got.code) == ("refuse", "D12", "nested_unsupported")
        assert got.active_tier == (None if place.tier is None else str(place.tier))
        assert got.tier_known == place.known


def test_the_strongest_backend_is_taken() -> None:
    assert decide(Place("outside"), host(FULL, LANDLOCK), request(Tier.strict)).backend == "namespaces"
    assert decide(Place("outside"), host(BROKEN, LANDLOCK), request(Tier.strict)).backend == "landlock"
    assert decide(Place("outside"), host(NO_META, LANDLOCK), request(Tier.standard)).backend == "landlock"


def test_a_lost_promise_needs_a_word_and_is_recorded() -> None:
    refused = decide(Place("outside"), host(GUARDED), request(Tier.strict))
    assert refused.code == "no_backend" and refused.missing == ("fs.home",)
    accepted = decide(Place("outside"), host(GUARDED), request(Tier.strict, "fs.home"))
    assert accepted.kind == "wrap" and accepted.tier_downgrade and accepted.effective_tier == "guarded"
    assert decide(Place("outside"), host(GUARDED), request(Tier.strict, "guarded")).kind == "wrap"
    assert decide(Place("outside"), host(NO_META), request(Tier.strict, "guarded")).kind == "refuse"


@pytest.mark.parametrize("tier", [Tier.standard, Tier.guarded, Tier.strict])
def test_what_the_hosts_network_gives_away_is_refused_with_it_alone(tier: Tier) -> None:
    assert decide(Place("outside"), host(NO_SCOPES), request(tier)).kind == "wrap"
    refused = decide(Place("outside"), host(NO_SCOPES), request(tier, net="host"))
    assert (refused.kind, refused.code, refused.missing) == ("refuse", "no_backend", ("ipc.isolated",))
    assert refused.reasons == (f"tier {tier}: with the host's network abstract sockets stay in reach",)
    assert refused.remedy == "take --net none, or accept ipc.isolated"
    accepted = decide(Place("outside"), host(NO_SCOPES), request(tier, "ipc.isolated", net="host"))
    assert (accepted.kind, accepted.missing, accepted.effective_tier) == ("wrap", ("ipc.isolated",), "off")


def test_a_passing_shortage_and_a_foreign_sandbox_have_their_own_codes() -> None:
    short = decide(Place("outside"), host(SHORT), request(Tier.strict))
    assert (short.code, short.transient) == ("transient", True)
    assert decide(Place("foreign"), host(BROKEN), request(Tier.strict)).code == "foreign_sandbox"
    assert decide(Place("unknown", None, False), host(BROKEN), request(Tier.strict)).code == "foreign_sandbox"


@given(keeps=st.frozensets(st.sampled_from(sorted(ALL))), tier=st.sampled_from(list(Tier)[1:]),
       accept=st.lists(st.sampled_from(sorted(ALL)), max_size=5))
def test_a_box_is_never_weaker_than_its_request_without_accept(keeps: frozenset[str], tier: Tier,
                                                              accept: list[str]) -> None:
    got = decide(Place("outside"), host(BackendVerdict(name="namespaces", keeps=keeps, namespaces=True)),
                 request(tier, *accept))
    lost = {p.id for p in required(tier)} - keeps
    assert (got.kind == "wrap") == (lost <= set(accept))
    if got.kind == "wrap" and not got.tier_downgrade:
        assert effective_tier(keeps) >= tier


def test_a_decision_is_plain_data_with_origins() -> None:
    asked = request(Tier.strict)
    asked.values = {"tier": Sourced(value="strict", origin="argument")}
    data = json.loads(json.dumps(decide(Place("outside"), host(FULL), asked).to_json()))
    assert data["values"]["tier"] == {"value": "strict", "origin": "argument"}
    assert data["kind"] == "wrap" and data["tier_known"] is True and data["active_tier"] == "off"
