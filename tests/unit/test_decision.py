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

from stockade.decision import BackendVerdict, decide
from stockade.rules.case import Case
from stockade.rules.governance import Policy
from stockade.rules.layer import Sourced
from stockade.rules.promises import PROMISES, effective_tier, required
from stockade.rules.tiers import CALLERS, Caller, Tier

ALL = frozenset(p.id for p in PROMISES)
NS = frozenset(p.id for p in PROMISES if p.ns)


@dataclass(frozen=True)
class Place:
    where: str
    tier: Tier | None = None
    known: bool = True
    nests: bool = False
    wider: tuple[tuple[str, str], ...] | None = None
    lacks: tuple[str, ...] = ()


def host(*backends: BackendVerdict) -> Any:
    return SimpleNamespace(backends=backends, layer=None, inner=None, broker=None)


def request(tier: Tier, *accept: str, caller: str = "generated", floor: Tier = Tier.off, net: str = "none") -> Any:
    return SimpleNamespace(tier=tier, caller=caller, policy=Policy(min_tier=floor), values={}, net=net,
                           hide=(), read=(), write_roots=(), allow_unconfined=None,
                           request=SimpleNamespace(pass_fds=()), accept=tuple(Sourced(value=word, origin="argument") for word in accept))


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
def test_no_class_starts_weaker_because_the_host_cannot() -> None:
    # A proven first_party alone does (D3).
    for caller, tier in itertools.product(set(CALLERS) - {Caller.FIRST_PARTY}, (Tier.standard, Tier.guarded, Tier.strict)):
        got = decide(Place("outside"), host(BROKEN), request(tier, caller=str(caller)))
        assert (got.kind, got.row, got.code) == ("refuse", "D6", "no_backend")
        assert set(got.missing) == {p.id for p in required(tier)}
        assert got.remedy == BROKEN.remedy


def test_where_both_backends_are_missing_either_remedy_is_named() -> None:
    old = BackendVerdict(name="landlock", code="no_backend", reason="Landlock alone needs ABI 6 (Linux 6.12): got ABI 5", remedy="use Linux 6.12 or later")
    got = decide(Place("outside"), host(BROKEN, old), request(Tier.strict))
    assert (got.kind, got.row, got.code) == ("refuse", "D6", "no_backend")
    assert BROKEN.reason in got.reasons[0] and got.reasons[1:] == (old.reason,)
    assert got.remedy == f"{BROKEN.remedy}; or {old.remedy}"
    short = decide(Place("outside"), host(SHORT, old), request(Tier.strict))
    assert (short.code, short.remedy, len(short.reasons)) == ("transient", "try again", 1)


def test_what_the_box_around_has_is_passed_through_and_the_rest_says_why_not() -> None:
    strict = Place("box", Tier.strict, wider=())
    got = decide(strict, host(FULL), request(Tier.guarded))
    assert (got.kind, got.row, got.effective_tier, got.tier_downgrade) == ("passthrough", "D7", "strict", False)
    assert dict(got.passed_over)["D2"] == "this process is in a box"
    silent = decide(Place("box", Tier.strict), host(FULL), request(Tier.guarded))
    assert (silent.row, silent.code) == ("D12", "tier_unreachable")
    assert silent.reasons == ("tier guarded: the record of the box does not say what it allows",)
    wide = decide(Place("box", Tier.strict, wider=(("net.policy", "net host"),)), host(FULL), request(Tier.guarded))
    assert wide.code == "tier_unreachable" and "net host" in wide.reasons[0] and wide.missing == ("net.policy",)
    poor = decide(Place("box", Tier.strict, wider=(), lacks=("path /srv/x",)), host(FULL), request(Tier.guarded))
    assert (poor.row, poor.code) == ("D13", "grant_unreachable") and "path /srv/x" in poor.reasons[0]


def test_a_lower_box_needs_a_word_for_what_it_lacks_and_none_goes_below_a_floor() -> None:
    inside = Place("box", Tier.standard, wider=(("net.policy", "net host"),))
    refused = decide(inside, host(FULL), request(Tier.strict))
    assert refused.code == "tier_unreachable" and {"fs.home", "net.policy"} <= set(refused.missing)
    got = decide(inside, host(FULL), request(Tier.strict, "standard"))
    assert (got.kind, got.row, got.effective_tier, got.tier_downgrade) == ("passthrough", "D11", "standard", True)
    assert any("net host" in reason for reason in got.reasons) and set(got.missing) == set(refused.missing)
    assert got.reasons[0].startswith("this standard box keeps what standard promises but env.secrets, net.policy, and nothing that strict adds (fs.credentials, ")
    assert all(name in got.reasons[0] for name in got.missing)
    floor = decide(inside, host(FULL), request(Tier.strict, "standard", floor=Tier.guarded))
    assert floor.code == "tier_unreachable"
    assert dict(floor.passed_over)["D11"] == "policy sets a floor above the box"


def test_inside_a_box_whose_supervisor_answers_every_tier_that_it_does_not_keep_is_a_box_inside() -> None:
    for around, tier in itertools.product((Tier.standard, Tier.guarded, Tier.strict), Tier):
        for wider in ((), (("net.policy", "net host"),)):
            got = decide(Place("box", around, nests=True, wider=wider), host(), request(tier, "standard"))
            if tier == Tier.off or (tier <= around and not wider):
                assert (got.kind, got.row) == ("passthrough", "D7")
                continue
            assert (got.kind, got.row, got.effective_tier, got.missing) == ("tighten", "D8", str(tier), ())
            assert (got.requested_tier, got.active_tier, got.tier_known) == (str(tier), str(around), True)
    assert decide(Place("box", None, known=False, nests=True), host(), request(Tier.strict)).kind == "refuse"
    poor = decide(Place("box", Tier.standard, nests=True, wider=(), lacks=("path /srv/x",)), host(), request(Tier.strict))
    assert (poor.row, poor.code) == ("D13", "grant_unreachable")


def test_off_inside_a_box_stays_in_it() -> None:
    for tier, known in ((Tier.strict, True), (None, False)):
        got = decide(Place("box", tier, known), host(FULL), request(Tier.off))
        assert (got.kind, got.row, got.env_tier, got.tier_known) == ("passthrough", "D7", Tier.standard, known)
        assert got.effective_tier == got.active_tier == (str(tier) if known else None)


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


def test_the_facts_of_a_question_do_not_change_while_rows_are_asked() -> None:
    case = Case(place=Place("outside"), host=host(FULL), request=request(Tier.strict))
    for name in ("place", "host", "request", "best"):
        with pytest.raises(AttributeError):
            setattr(case, name, None)
