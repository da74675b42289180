"""Tiers, their spellings, and the defaults of each caller class."""

from __future__ import annotations

import pytest

from stockade.errors import ConfigError
from stockade.rules.tiers import CALLERS, TIER_NET, Caller, Tier, parse


def test_tiers_are_ordered() -> None:
    assert Tier.off < Tier.standard < Tier.guarded < Tier.strict
    assert [str(t) for t in Tier] == ["off", "standard", "guarded", "strict"]


def test_the_old_name_of_guarded_is_accepted_and_never_printed() -> None:
    assert parse("cc") is Tier.guarded
    assert str(parse("cc")) == "guarded"


@pytest.mark.parametrize("text", ["", "Strict", "stric", "auto", "5", "strict ", "none"])
def test_an_unknown_tier_is_an_error_and_not_a_default(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.code == "unknown_tier"


def test_every_class_has_a_row_as_documented() -> None:
    rows = {str(c): (str(r.tier), r.net) for c, r in CALLERS.items()}
    assert rows == {
        "operator": ("guarded", "host"), "agent": ("guarded", "host"), "mcp_server": ("strict", "host"),
        "app": ("standard", "host"), "repository": ("strict", "none"), "generated": ("strict", "none"),
        "document": ("strict", "none"), "first_party": ("standard", "host"),
    }
    assert set(CALLERS) == set(Caller)
    assert all(r.why for r in CALLERS.values())


def test_only_strict_closes_the_network_by_itself() -> None:
    assert {t for t, net in TIER_NET.items() if net == "none"} == {Tier.strict}
