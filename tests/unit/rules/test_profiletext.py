"""Learned profiles as text: what is written can be read, and joining loses nothing."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.errors import ConfigError
from stockade.rules.files import Document, parse_toml
from stockade.rules.profile import USER, parse_profile
from stockade.rules.profiletext import Learned, cache_name, join, news, quoted, render, tilde

PATHS = st.builds("~/{}".format, st.text(st.characters(codec="utf-8", exclude_characters="\0/", exclude_categories=("Cs",)), min_size=1, max_size=12)
                  .filter(lambda text: text != ".."))
LISTS = st.fixed_dictionaries({key: st.lists(PATHS, unique=True, max_size=4).map(tuple) for key in ("read", "write", "hide")})
CACHES = st.lists(PATHS, unique=True, max_size=3)
LEARNED = st.builds(
    lambda lists, caches, net: Learned(
        description="learned from x", lists={k: v for k, v in lists.items() if v}, scalars={"net": net} if net else {},
        caches=tuple((f"c{number}", path, number == 1) for number, path in enumerate(caches))),
    LISTS, CACHES, st.sampled_from(("", "none", "host")))


def _document(text: str) -> Document:
    return parse_toml("mine.toml", "profile_invalid", text.encode("utf-8"))


@given(LEARNED)
def test_a_written_profile_says_what_was_learned(learned: Learned) -> None:
    document = _document(render(learned))
    parse_profile(document, "mine", USER)
    assert {key: tuple(document.data.get(key, ())) for key in learned.lists} == dict(learned.lists)
    assert [(t["name"], t["path"], t.get("plain", False)) for t in document.data.get("caches", ())] == list(learned.caches)


@given(LEARNED, LEARNED, st.sampled_from(("", "# words of mine\n", "\n\n[set_env]\n# stays\nA = \"read = [\"\n", "\n[limits]\nfiles = 9\n")))
def test_joining_keeps_everything_of_both(first: Learned, second: Learned, rest: str) -> None:
    mine = render(first)
    mine = mine.replace("\n[[caches]]", f"{rest}\n[[caches]]", 1) if first.caches else mine + rest
    document = _document(mine)
    new = news(document, second)
    text = join(document, new)
    joined = tomllib.loads(text)
    parse_profile(_document(text), "mine", USER)
    for key in ("read", "write", "hide"):
        assert set(joined.get(key, ())) == {*first.lists.get(key, ()), *second.lists.get(key, ())}
        assert len(joined.get(key, ())) == len(set(joined.get(key, ())))
    assert {t["path"] for t in joined.get("caches", ())} == {row[1] for row in (*first.caches, *second.caches)}
    assert joined.get("net") == second.scalars.get("net", first.scalars.get("net"))
    assert [line for line in rest.splitlines() if line not in text] == []
    # A second time there is nothing to say.
    assert news(_document(text), second) == Learned(description=second.description)


def test_a_list_that_is_written_in_several_lines_with_comments_grows_in_front() -> None:
    document = _document('schema = "profile.v1"\nread = [ # mine\n  "~/a", # first\n]\n')
    text = join(document, news(document, Learned(description="", lists={"read": ("~/b", "~/a")})))
    assert tomllib.loads(text)["read"] == ["~/b", "~/a"] and "# mine" in text and "# first" in text


@pytest.mark.parametrize("text", [
    'schema = "profile.v1"\n"read" = ["~/a"]\n',  # a spelling of the key that is not found
    'schema = "profile.v1"\nlimits.files = 3\nread = [\n[1],\n]\n',
])
def test_a_file_that_cannot_be_joined_is_left_alone(text: str) -> None:
    document = _document(text)
    with pytest.raises(ConfigError) as caught:
        join(document, Learned(description="", lists={"read": ("~/b",)}))
    assert caught.value.code == "profile_invalid"


def test_names_and_spellings() -> None:
    assert [cache_name(path, ["tool"]) for path in ("/h/.cache/tool", "/h/.My Tool", "/h/...")] == ["tool-2", "My-Tool", "data"]
    assert tilde("/home/u/x", ("/home/u", "/data/u")) == "~/x" == tilde("/data/u/x", ("/home/u", "/data/u"))
    assert (tilde("/home/u2/x", ("/home/u",)), tilde("/home/u", ("/home/u",))) == ("/home/u2/x", "/home/u")
    for text in ('a"b', "a\\b", "a\nb", "\x01", "é", "\U0001f600"):
        assert tomllib.loads(f"x = {quoted(text)}")["x"] == text
