"""A list with a mistake is refused with file and entry, never compiled without the row."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from stockade.errors import ConfigError
from stockade.rules import load, schema

ROW = '{path = "x", class = "cloud", why = "w", source = "s"}'


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    for name in os.listdir(load.RULES_DIR):
        source = Path(load.RULES_DIR, name)
        if name.endswith(".toml"):
            shutil.copy(source, tmp_path)
        elif name == "profiles":
            shutil.copytree(source, tmp_path / name)
    return tmp_path


def refused(rules: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        schema.compile_rules(str(rules))
    assert caught.value.code == "rules_invalid"
    return str(caught.value)


@pytest.mark.parametrize(("row", "words"), [
    ('{path = "x", class = "cloud", source = "s"}', ("why",)),
    ('{path = "x", class = "cloud", why = "", source = "s"}', ("why",)),
    ('{path = "x", class = "cloud", why = "w"}', ("source",)),
    ('{path = "x", why = "w", source = "s"}', ("class",)),
    ('{path = "x", class = "clod", why = "w", source = "s"}', ("klass", "clod")),
    ('{path = "x", class = "cloud", whi = "w", why = "w", source = "s"}', ("whi", "did you mean 'why'")),
    ('{path = "x", class = "cloud", env = "A", why = "w", source = "s"}', ("env",)),
    ('{path = "x", class = "cloud", env = ["A", "A"], why = "w", source = "s"}', ("env",)),
    ('{path = "../x", class = "cloud", why = "w", source = "s"}', ("climb",)),
    ('{path = "x", kind = "folder", class = "cloud", why = "w", source = "s"}', ("kind",)),
    (f"{ROW}, {ROW}", ("twice",)),
])
def test_a_wrong_row_is_named(rules: Path, row: str, words: tuple[str, ...]) -> None:
    (rules / "credentials.toml").write_text(f"entry = [{row}]\n")
    text = refused(rules)
    assert "credentials.toml" in text and ("'x'" in text or "'../x'" in text)
    for word in words:
        assert word in text


def test_an_empty_list_is_refused(rules: Path) -> None:
    (rules / "sockets.toml").write_text("entry = []\n")
    assert "sockets.toml" in refused(rules)


def test_a_missing_or_extra_list_is_refused(rules: Path) -> None:
    (rules / "sockets.toml").rename(rules / "socket.toml")
    assert "socket" in refused(rules)


def test_broken_toml_is_refused(rules: Path) -> None:
    (rules / "sockets.toml").write_text("entry = [\n")
    assert "sockets.toml" in refused(rules)


def test_a_waived_promise_must_exist(rules: Path) -> None:
    (rules / "voiding.toml").write_text(
        '[[entry]]\nid="a"\nclass="socket"\nmatch=["docker"]\nwaives=["fs.hom"]\nwhy="w"\nsource="s"\n')
    assert "fs.hom" in refused(rules)


def test_a_set_must_exist(rules: Path) -> None:
    (rules / "voiding.toml").write_text(
        '[[entry]]\nid="a"\nclass="socket"\nmatch=["docker"]\nwaives=["@all"]\nwhy="w"\nsource="s"\n')
    assert "@all" in refused(rules)


@pytest.mark.parametrize("body", [
    'description = "d"\n', 'schema = "profile.v2"\ndescription = "d"\n', 'schema = "profile.v1"\n',
    'schema = "profile.v1"\ndescription = "d"\nreed = ["~/x"]\n',
    'schema = "profile.v1"\ndescription = "d"\nread = ["x"]\n',
    'schema = "profile.v1"\ndescription = "d"\nread = ["~/../x"]\n',
    'schema = "profile.v1"\ndescription = "d"\nread = [{path = "~/x", optinal = true}]\n',
    'schema = "profile.v1"\ndescription = "d"\nclass = "robot"\n',
    'schema = "profile.v1"\ndescription = "d"\nnet = "some"\n',
    'schema = "profile.v1"\ndescription = "d"\n[[caches]]\nname = "a"\n',
])
def test_a_wrong_profile_is_refused(rules: Path, body: str) -> None:
    (rules / "profiles" / "bad.toml").write_text(body)
    assert "bad.toml" in refused(rules)


def test_compiling_twice_gives_the_same_bytes(rules: Path) -> None:
    assert schema.compile_rules(str(rules)) == schema.compile_rules(str(rules))
