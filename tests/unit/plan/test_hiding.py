"""Grants and hidden names: a grant shows what it names, and says so in the promises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stockade.errors import Refused
from stockade.plan import hiding, inputs, linux, mountinfo
from unit.compiling import compiled, promise, rows


@pytest.fixture
def home(place: Path) -> Path:
    (place / ".aws" / "config").write_text("region")
    (place / ".aws" / "cli").mkdir()
    return place


def test_a_grant_of_one_file_shows_that_file_and_not_the_store_around_it(home: Path) -> None:
    result = compiled(home / "work", tier="guarded", read=[home / ".aws" / "credentials"], accept=["fs.credentials"])
    table = rows(result)
    assert table[f"{home}/.aws"]["kind"] == "tmpfs"
    assert {target for target in table if target.startswith(f"{home}/.aws/")} == {f"{home}/.aws/credentials"}
    assert ".aws" in table[str(home)]["dirs"] and ".aws" not in table[str(home)]["hide"]


def test_a_grant_in_a_directory_that_keeps_some_names_is_added_to_them(home: Path) -> None:
    result = compiled(home / "work", tier="guarded", read=[home / ".ssh" / "id_ed25519"], accept=["fs.credentials"])
    assert {target for target in rows(result) if target.startswith(f"{home}/.ssh/")} == \
        {f"{home}/.ssh/config", f"{home}/.ssh/id_ed25519"}


def test_a_write_grant_in_a_store_is_a_mount_of_its_own(home: Path) -> None:
    result = compiled(home / "work", tier="guarded", write=[home / "work", home / ".aws" / "cli"],
                      accept=["fs.credentials", "fs.persistence"])
    assert "ro" not in rows(result)[f"{home}/.aws/cli"]["attrs"]
    assert f"{home}/.aws/config" not in rows(result)


@pytest.mark.parametrize("kind", ["read", "write"])
@pytest.mark.parametrize("name", [".aws", ".aws/credentials", ".config/gh/hosts.yml"])
def test_every_grant_that_opens_a_store_waives_the_promise_of_it(home: Path, kind: str, name: str) -> None:
    (home / ".config" / "gh").mkdir(parents=True)
    (home / ".config" / "gh" / "hosts.yml").write_text("token")
    grants = {"read": [], "write": [home / "work"]}
    grants[kind] = [*grants[kind], home / name]
    with pytest.raises(Refused) as caught:
        compiled(home / "work", tier="guarded", **grants)
    # Both stores also name programs that their tool runs.
    lost = ("fs.credentials",) if kind == "read" else ("fs.credentials", "fs.persistence")
    assert (caught.value.code, caught.value.missing) == ("grant_voids_tier", lost)
    result = compiled(home / "work", tier="guarded", **grants, accept=lost)
    assert promise(result, "fs.credentials") == "waived"


def test_a_grant_of_a_name_that_is_visible_anyway_waives_nothing(home: Path) -> None:
    result = compiled(home / "work", tier="guarded", read=[home / ".ssh" / "config", home / "other"][:1])
    assert promise(result, "fs.credentials") is None


def test_a_store_behind_a_link_is_the_same_store(home: Path) -> None:
    (home / "dotfiles").mkdir()
    os.rename(home / ".ssh", home / "dotfiles" / "ssh")
    (home / ".ssh").symlink_to("dotfiles/ssh")
    plain = rows(compiled(home / "work", tier="guarded"))
    for spelled in (f"{home}/.ssh", f"{home}/dotfiles/ssh"):
        assert plain[spelled]["kind"] == "tmpfs"
        assert plain[f"{spelled}/config"]["source"] == f"{home}/dotfiles/ssh/config"
        assert f"{spelled}/id_ed25519" not in plain
    key = home / ".ssh" / "id_ed25519"
    with pytest.raises(Refused):
        compiled(home / "work", tier="guarded", read=[key])
    opened = rows(compiled(home / "work", tier="guarded", read=[key], accept=["fs.credentials"]))
    assert {f"{home}/.ssh/id_ed25519", f"{home}/dotfiles/ssh/id_ed25519"} <= set(opened)


def test_a_hidden_name_inside_a_shown_one_stays_away(home: Path) -> None:
    (home / ".aws" / "cli" / "cache").mkdir()
    result = compiled(home / "work", tier="guarded", read=[home / ".aws" / "cli"], hide=[home / ".aws" / "cli" / "cache"],
                      accept=["fs.credentials"])
    row = rows(result)[f"{home}/.aws/cli"]
    assert (row["kind"], row["hide"]) == ("overlay", ["cache"])


def test_inside_a_write_root_everything_of_a_store_but_the_grant_is_masked(home: Path) -> None:
    gcloud = home / ".config" / "gcloud"
    gcloud.mkdir(parents=True)
    for name in ("access_tokens.db", "active_config"):
        (gcloud / name).write_text("x")
    table = rows(compiled(home / "work", tier="guarded", accept=["fs.credentials", "fs.persistence"],
                          write=[home / "work", home / ".config"], read=[gcloud / "active_config"]))
    assert table[f"{gcloud}/access_tokens.db"]["source"] == "/dev/null"
    assert f"{gcloud}/active_config" not in table and str(gcloud) not in table


@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_no_grant_reaches_into_the_state_home(home: Path, tier: str) -> None:
    keys = Path(os.environ["STOCKADE_HOME"]) / "keys"
    keys.mkdir(parents=True)
    with pytest.raises(Refused) as caught:
        compiled(home / "work", tier=tier, read=[keys])
    assert caught.value.code == "own_state"


def _mounted(monkeypatch: pytest.MonkeyPatch, home: Path, *binds: tuple[str, str]) -> None:
    """Give the compiler a mount table with binds of (what, where) on one file system."""
    monkeypatch.setattr(hiding, "COVERED", ("/proc/",))  # these tests live below /tmp
    monkeypatch.setattr(linux, "PRIVATE", ("/proc",) * 3)
    lines = ["20 1 254:0 / / rw - ext4 /dev/vda rw"]
    lines += [f"{30 + index} 20 254:0 {what} {where} rw - ext4 /dev/vda rw" for index, (what, where) in enumerate(binds)]
    monkeypatch.setattr(inputs, "_mounts", lambda witness: mountinfo.parse("\n".join(lines)))


def test_a_bind_of_one_file_of_a_store_is_hidden(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share = home.parent / "share"
    (share / "public").mkdir(parents=True)
    for name in ("key", "known", "public/k"):
        (share / name).write_text("")
    _mounted(monkeypatch, home, (f"{home}/.ssh/id_ed25519", f"{share}/key"), (f"{home}/.ssh/config", f"{share}/known"),
             (f"{home}/other", f"{share}/public/k"))
    overlays = rows(compiled(home / "work", tier="guarded"), "overlay")
    assert overlays[str(share)]["hide"] == ["key"]
    assert f"{share}/public" not in overlays


def test_a_second_home_inside_a_directory_with_a_hidden_name_stays_hidden(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The overlay around it shows the mount again; the row that hides the names must win."""
    share = home.parent / "share"
    (share / "home" / ".aws").mkdir(parents=True)
    (share / "key").write_text("")
    _mounted(monkeypatch, home, (f"{home}/.ssh/id_ed25519", f"{share}/key"), (str(home), f"{share}/home"))
    table = rows(compiled(home / "work", tier="guarded"))
    assert table[str(share)]["hide"] == ["key"]
    assert {".aws", ".netrc"} <= set(table[f"{share}/home"]["hide"])


def test_local_mail_is_masked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.parent / "mail").mkdir()
    monkeypatch.setattr(linux, "MAIL", (f"{home.parent}/mail", f"{home.parent}/none"))
    assert rows(compiled(home / "work", tier="guarded"))[f"{home.parent}/mail"]["mode"] == "0000"
    assert f"{home.parent}/mail" not in rows(compiled(home / "work", tier="standard"))


@pytest.mark.parametrize("tier", ["standard", "guarded"])
def test_the_state_of_every_home_is_out_of_reach(home: Path, monkeypatch: pytest.MonkeyPatch, tier: str) -> None:
    """Also where this caller keeps its own elsewhere (STOCKADE_HOME, as in these tests)."""
    state = home / ".local" / "state" / "stockade"
    (state / "keys").mkdir(parents=True)
    (home / ".config" / "stockade").mkdir(parents=True)
    moved = {**os.environ, "XDG_STATE_HOME": f"{home}/moved"}
    result = compiled(home / "work", tier=tier, env=moved)
    assert {".local/state/stockade", "moved"} <= set(rows(result, "overlay")[str(home)]["hide"])
    inside = compiled(home / "work", tier="standard", write=[home / "work", home / ".local" / "state"])
    assert rows(inside)[str(state)]["mode"] == "0000"
    assert {"path": str(state), "read_only": True} in inside.plan["guards"]
    for options in ({"write": [state / "keys"]}, {"read": [state / "keys"]}, {"write": [home / ".config" / "stockade"]}):
        with pytest.raises(Refused) as caught:
            compiled(home / "work", tier=tier, **options)
        assert caught.value.code in ("own_state", "own_install", "write_root_refused")
