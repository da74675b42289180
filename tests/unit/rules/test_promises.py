"""The table of promises: 19 ids, tiers that only grow, facts and lists that exist."""

from __future__ import annotations

import pytest

from stockade.errors import ConfigError
from stockade.rules.load import list_names
from stockade.rules.promises import FACTS, PROMISE_IDS, PROMISES, by_id, effective_tier, required
from stockade.rules.tiers import ALL_TIERS, Tier

ALL = {Tier.standard, Tier.guarded, Tier.strict}
TABLE = {
    "env.secrets": ALL, "env.injection": ALL, "fs.own_state": ALL, "fs.write_roots": ALL, "fs.metadata": ALL,
    "fs.credentials": {Tier.guarded, Tier.strict}, "fs.persistence": {Tier.guarded, Tier.strict},
    "fs.home": {Tier.strict}, "fs.system": {Tier.strict}, "fs.workspace_secrets": {Tier.strict},
    "proc.no_control": ALL, "proc.invisible": ALL, "proc.reaped": ALL, "ipc.isolated": ALL, "ipc.sockets": ALL,
    "kernel.surface": ALL, "tty.injection": ALL, "net.policy": ALL, "limits": ALL,
}


def test_the_table_holds_exactly_the_promised_rows() -> None:
    assert {p.id: set(p.tiers) for p in PROMISES} == TABLE
    assert len(PROMISES) == len(set(PROMISE_IDS)) == 19


def test_only_two_rows_count_under_namespaces_alone() -> None:
    assert {p.id for p in PROMISES if p.needs_namespaces} == {"fs.metadata", "proc.invisible"}
    assert all(p.ns in (frozenset(), p.tiers) for p in PROMISES)


def test_a_higher_tier_requires_everything_the_lower_requires() -> None:
    ids = [{p.id for p in required(tier)} for tier in ALL_TIERS]
    assert ids[0] < ids[1] < ids[2]
    assert required(Tier.off) == ()


def test_every_promise_needs_facts_that_a_launch_can_prove() -> None:
    for promise in PROMISES:
        for net in ("host", "none"):
            alternatives = promise.needs_for(net)
            assert alternatives and all(alternatives), promise.id
            assert {fact for way in alternatives for fact in way} <= FACTS, promise.id
            assert len(set(alternatives)) == len(alternatives), promise.id


def test_the_first_alternative_is_never_weaker_than_a_later_one() -> None:
    # The launcher takes the first that holds: a short one in front would hide the second mechanism.
    for promise in PROMISES:
        for way, later in zip(promise.needs, promise.needs[1:], strict=False):
            assert not set(way) < set(later), promise.id


def test_no_network_is_kept_only_by_a_network_namespace_or_where_no_socket_can_be_made() -> None:
    assert all("netns" in way or "net_refused" in way for way in by_id("net.policy").needs_for("none"))
    assert all("netns" not in way for way in by_id("net.policy").needs_for("host"))


def test_no_way_to_keep_a_promise_mixes_the_facts_of_two_backends() -> None:
    """`landlock_fs` is a fact of both, and says that the rules are whole only beside `domain`."""
    spaces = {"userns", "mntns", "pidns", "ipcns", "netns", "mounts", "guards", "proc_fresh", "dev_private", "sockets_covered"}
    refused = {"ipc_refused", "unix_refused", "net_refused", "keyring_refused"}
    for promise in PROMISES:
        for net in ("host", "none"):
            for way in map(set, promise.needs_for(net)):
                assert not ("domain" in way and way & spaces), (promise.id, way)
                assert not way & refused or "domain" in way, (promise.id, way)


def test_every_list_named_by_a_promise_exists_and_every_list_is_named() -> None:
    named = {name for p in PROMISES for name in p.lists}
    assert named == set(list_names())


def test_the_effective_tier_is_the_highest_whose_rows_are_all_kept() -> None:
    everything = set(PROMISE_IDS)
    assert effective_tier(everything) is Tier.strict
    assert effective_tier(everything - {"fs.home"}) is Tier.guarded
    assert effective_tier(everything - {"fs.credentials"}) is Tier.standard
    for promise in required(Tier.standard):
        assert effective_tier(everything - {promise.id}) is Tier.off, promise.id


def test_namespace_rows_do_not_count_without_namespaces() -> None:
    kept = set(PROMISE_IDS) - {"fs.metadata", "proc.invisible"}
    assert effective_tier(kept, namespaces=False) is Tier.strict
    assert effective_tier(kept, namespaces=True) is Tier.off


def test_an_unknown_promise_names_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        by_id("fs.credential")
    assert caught.value.code == "unknown_promise"
    assert "fs.credentials" in caught.value.hint
