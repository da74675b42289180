"""The whole decision table against an oracle that was written from the design's table alone.

Owns: every combination of the axes. The oracle knows sets and the order of the rows; it shares no
code with ``stockade.decision``. The property that no weaker tier comes back silently is asked of the
answer itself, whatever the oracle says.
"""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from stockade.codes import CODES
from stockade.decision import ROWS, BackendVerdict, Decision, decide
from stockade.rules.governance import Policy
from stockade.rules.layer import Sourced
from stockade.rules.promises import PROMISES, required
from stockade.rules.tiers import Tier

ALL = frozenset(p.id for p in PROMISES)
NS = frozenset({"fs.metadata", "proc.invisible"})  # docs/tiers.md, "ns"
PERSISTENCE = "fs.persistence"

FULL = BackendVerdict(name="namespaces", keeps=ALL, namespaces=True)
PLAIN = BackendVerdict(name="landlock", keeps=ALL - NS - {PERSISTENCE})
BROKEN = BackendVerdict(name="namespaces", namespaces=True, code="userns_denied", reason="not allowed", remedy="allow it")
SHORT = BackendVerdict(name="namespaces", namespaces=True, code="resource", reason="ENOMEM", transient=True)
UNSETTLED = BackendVerdict(name="namespaces", namespaces=True, code="no_backend", reason="not tried", settled=False)
LAYER = BackendVerdict(name="landlock", keeps=ALL - NS)
THIN = BackendVerdict(name="landlock", keeps=ALL - NS - {PERSISTENCE})
INNER = BackendVerdict(name="internal", keeps=ALL - NS)
NET_WIDER = (("net.policy", "net host"),)

PLACES = [("outside", None, True), ("foreign", None, False), ("unknown", None, False), ("box", None, False),
          ("box", Tier.off, True), ("box", Tier.standard, True), ("box", Tier.guarded, True), ("box", Tier.strict, True)]
HOSTS = {"none": (), "full": (FULL,), "plain": (BROKEN, PLAIN), "broken": (BROKEN,), "short": (SHORT,),
         "unsettled": (UNSETTLED,)}
ACCEPTS = ((), (PERSISTENCE,), ("standard",), ("guarded",), tuple(sorted(ALL)))
POLICIES = (Policy(), Policy(min_tier=Tier.standard), Policy(min_tier=Tier.guarded), Policy(deny_unconfined=True))
CALLERS = ("generated", "first_party", "agent")
LAYERS = (None, LAYER, THIN)
WIDER: tuple[Any, ...] = ((), NET_WIDER, None)

Facts = dict[str, Any]


def outside_axes() -> Any:
    """Places that are no box: what a box would have does not come into question."""
    agents = ((None, False), (INNER, False), (INNER, True))
    for place, host, tier, accept, policy, caller, opted, layer, (inner, named) in itertools.product(
            PLACES[:3], HOSTS, Tier, ACCEPTS, POLICIES, CALLERS, (False, True), LAYERS, agents):
        yield {"place": place, "host": host, "tier": tier, "accept": accept, "policy": policy, "caller": caller,
               "opted": opted, "layer": layer, "inner": inner, "named": named, "nest": False, "wider": None,
               "lacks": (), "broker": None, "fds": ()}


def inside_axes() -> Any:
    """Places that are a box; a host that could make one outside must not matter."""
    outer = (("full", "generated"), ("broken", "first_party"), ("broken", "agent"))
    for place, (host, caller), tier, accept, policy, layer, nest, wider, lacks, broker in itertools.product(
            PLACES[3:], outer, Tier, ACCEPTS, POLICIES, LAYERS, (False, True), WIDER,
            ((), ("path /x",)), ((None, ()), ("build", ()), ("build", (7,)))):
        yield {"place": place, "host": host, "tier": tier, "accept": accept, "policy": policy, "caller": caller,
               "opted": caller == "agent", "layer": layer, "inner": None, "named": False, "nest": nest, "wider": wider,
               "lacks": lacks, "broker": broker[0], "fds": broker[1]}


def asked(facts: Facts) -> Decision:
    where, tier, known = facts["place"]
    grant = SimpleNamespace(named=True)
    place = SimpleNamespace(where=where, tier=tier, known=known, nests=facts["nest"], wider=facts["wider"],
                            lacks=facts["lacks"])
    host = SimpleNamespace(backends=HOSTS[facts["host"]], layer=facts["layer"], inner=facts["inner"],
                           broker=facts["broker"])
    request = SimpleNamespace(
        tier=facts["tier"], caller=facts["caller"], policy=facts["policy"], net="none", values={}, hide=(),
        read=(grant,) if facts["named"] else (), write_roots=(), request=SimpleNamespace(pass_fds=facts["fds"]),
        accept=tuple(Sourced(value=word, origin="argument") for word in facts["accept"]),
        allow_unconfined=Sourced(value=True, origin="file /etc/stockade/config.toml") if facts["opted"] else None)
    return decide(place, host, request)  # type: ignore[arg-type]


# -- the oracle: design, "From request to process", the table of decisions -------------------------

ORDER = {Tier.off: 0, Tier.standard: 1, Tier.guarded: 2, Tier.strict: 3}
NEEDS = {tier: frozenset(p.id for p in PROMISES if tier in p.tiers) for tier in Tier}


def reached(keeps: frozenset[str], *, namespaces: bool) -> int:
    """The highest tier all of whose promises are kept; ``ns`` rows count only under namespaces."""
    reach = 0
    for tier in (Tier.standard, Tier.guarded, Tier.strict):
        if NEEDS[tier] - (frozenset() if namespaces else NS) <= keeps:
            reach = ORDER[tier]
    return reach


def covered(lost: frozenset[str], accept: tuple[str, ...], reach: int) -> bool:
    by_tier = any(word in Tier.__members__ and 0 < ORDER[Tier[word]] <= reach for word in accept)
    return by_tier or lost <= set(accept)


def fits(verdict: BackendVerdict, facts: Facts) -> bool:
    needs = NEEDS[facts["tier"]] - (frozenset() if verdict.namespaces else NS)
    return not verdict.code and covered(needs - verdict.keeps, facts["accept"],
                                        reached(verdict.keeps, namespaces=verdict.namespaces))


def expected(facts: Facts) -> tuple[str, str, str | None]:
    """Row, kind and code, by the table read from the top."""
    return expected_inside(facts) if facts["place"][0] == "box" else expected_outside(facts)


def expected_outside(facts: Facts) -> tuple[str, str, str | None]:
    where, tier, policy = facts["place"][0], facts["tier"], facts["policy"]
    floor = policy.min_tier != Tier.off or policy.deny_unconfined
    verdicts = HOSTS[facts["host"]]
    if tier == Tier.off:
        if where != "unknown" and not floor:
            return "D1", "unconfined", None
        return "D6", "refuse", "foreign_sandbox" if where == "unknown" else "policy_denied"
    if any(fits(verdict, facts) for verdict in verdicts):
        return "D2", "wrap", None
    no_backend = where == "outside" and facts["host"] in ("none", "broken")
    if no_backend and not floor and facts["caller"] == "first_party":
        return "D3", "unconfined", None
    if no_backend and not floor and facts["opted"]:
        return "D4", "unconfined", None
    if where == "outside" and facts["caller"] == "agent" and not facts["named"] and facts["inner"] is not None \
            and fits(facts["inner"], facts):
        return "D5", "delegate", None
    if where == "foreign" and facts["layer"] is not None and fits(facts["layer"], facts):
        return "D9", "tighten", None
    code = "transient" if facts["host"] == "short" else "no_backend" if where == "outside" else "foreign_sandbox"
    return "D6", "refuse", code


def expected_inside(facts: Facts) -> tuple[str, str, str | None]:
    _, active, known = facts["place"]
    tier, wider, lacks, layer = facts["tier"], facts["wider"], facts["lacks"], facts["layer"]
    level = ORDER[active] if known else -1
    reaches = tier == Tier.off or level >= ORDER[tier]
    if not lacks:
        if tier == Tier.off or (reaches and wider == ()):
            return "D7", "passthrough", None
        if known and facts["nest"]:
            return "D8", "tighten", None
        if not reaches:
            has = NEEDS[active] if known else frozenset()
            adds = NEEDS[tier] - has
            keeps = frozenset() if layer is None else layer.keeps
            if layer is not None and covered(adds - keeps, facts["accept"], reached(keeps | has, namespaces=True)):
                return "D9", "tighten", None
            if facts["broker"] and not facts["fds"]:
                return "D10", "delegate", None
            if known and wider is not None and ORDER[facts["policy"].min_tier] <= level \
                    and covered(lost_inside(facts), facts["accept"], level):
                return "D11", "passthrough", None
    if lacks and (reaches or (known and facts["nest"])):
        return "D13", "refuse", "grant_unreachable"
    return "D12", "refuse", "tier_unreachable"


def lost_inside(facts: Facts) -> frozenset[str]:
    """What a request above the box loses in it; the caller's own variables can be read there."""
    return NEEDS[facts["tier"]] - NEEDS[facts["place"][1]] | {"env.secrets"} | {promise for promise, _ in facts["wider"] or ()}


def weaker_only_by_a_word(facts: Facts, got: Decision) -> bool:
    """No answer that starts something is below the request without a word for it, and each says what is lost."""
    if got.kind == "refuse":
        return got.effective_tier is None and got.code in CODES and bool(got.remedy)
    effective = Tier[got.effective_tier] if got.effective_tier else None
    if not got.tier_downgrade:
        return facts["tier"] == Tier.off or (effective is not None and effective >= facts["tier"])
    words = got.row in ("D3", "D4") or bool(facts["accept"])
    if got.row == "D11" and frozenset(got.missing) != lost_inside(facts):
        return False
    floor = facts["policy"].min_tier
    # A word never goes below a floor but by promises that policy lets one accept.
    kept_floor = got.kind != "unconfined" or (floor == Tier.off and not facts["policy"].deny_unconfined)
    return words and bool(got.missing) and kept_floor


@pytest.mark.parametrize("axes", [outside_axes, inside_axes])
def test_every_combination_has_the_answer_of_the_table_and_none_is_silently_weaker(axes: Any) -> None:
    rows: Counter[str] = Counter()
    for facts in axes():
        got = asked(facts)
        assert (got.row, got.kind, got.code) == expected(facts), (facts, got)
        assert weaker_only_by_a_word(facts, got), (facts, got)
        above = [row.id for row in ROWS if ROWS.index(row) < int(got.row[1:]) - 1]
        assert [row for row, _ in got.passed_over] == above and all(why for _, why in got.passed_over), (facts, got)
        rows[got.row] += 1
    wanted = {"D1", "D2", "D3", "D4", "D5", "D6", "D9"} if axes is outside_axes else \
        {"D7", "D8", "D9", "D10", "D11", "D12", "D13"}
    assert set(rows) == wanted


def test_the_rows_are_d1_to_d13_in_order() -> None:
    assert [row.id for row in ROWS] == [f"D{number}" for number in range(1, 14)]
    assert frozenset(p.id for p in PROMISES if p.ns) == NS
    assert all(frozenset(p.id for p in required(tier)) == NEEDS[tier] for tier in Tier)
