"""Identity and places: ids, path relations, state home, git top level, atomic files."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade import ids, paths
from stockade.errors import ConfigError

ULID = re.compile("[0-7][0-9A-HJKMNP-TV-Z]{25}")  # safe as a file name
NAMES = st.text(alphabet="ab.~- é", min_size=1, max_size=6).filter(lambda n: n not in (".", ".."))


def test_run_ids_sort_by_time_and_never_repeat() -> None:
    first = ids.ulid()
    time.sleep(0.002)
    assert ids.ulid() > first
    made = {ids.ulid() for _ in range(2000)}
    assert len(made) == 2000 and all(ULID.fullmatch(item) for item in made)


def test_digest_is_sha256_and_its_form_is_checked() -> None:
    assert ids.digest(b"").startswith("e3b0c44298fc1c14")
    assert ids.is_digest(ids.digest(b"x")) and not ids.is_digest("A" * 64) and not ids.is_digest("../" + "a" * 61)


@given(root=st.lists(NAMES, max_size=4), tail=st.lists(NAMES, max_size=3))
def test_below_is_by_component(root: list[str], tail: list[str]) -> None:
    base = "/" + "/".join(root)
    inner = "/" + "/".join(root + tail)
    assert paths.is_below(inner, base)
    assert paths.is_below(base, inner) == (not tail)
    if root:
        assert not paths.is_below(base + "x", base)


def test_home_is_that_of_the_environment_else_the_account() -> None:
    assert paths.home_dir(env={"HOME": "/h/u/"}) == "/h/u"
    account = paths.home_dir()
    assert paths.home_dir(env={"HOME": "relative"}) == account == paths.home_dir(env={})


def test_all_homes_are_protected_when_they_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the request, that of this process and that of the account."""
    account = paths.canonical(paths.home_dir())
    monkeypatch.setenv("HOME", str(tmp_path / "mine"))
    assert paths.homes({"HOME": str(tmp_path)}) == (str(tmp_path.resolve()), str(tmp_path.resolve() / "mine"), account)
    monkeypatch.delenv("HOME")
    assert paths.homes({}) == (account,)


def test_a_home_behind_a_link_is_named_by_its_real_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert paths.homes({"HOME": str(tmp_path / "link")})[0] == str(tmp_path.resolve() / "real")


def test_relative_base_directories_are_ignored(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": "conf", "XDG_STATE_HOME": "state"}
    assert paths.config_home(env) == f"{tmp_path}/.config/stockade"
    assert paths.state_home(env, create=False).path == f"{tmp_path}/.local/state/stockade"


def test_state_home_is_made_private_with_its_directories(tmp_path: Path) -> None:
    home = paths.state_home({"STOCKADE_HOME": str(tmp_path / "a/b")})
    assert not home.ephemeral
    for directory in (home.path, home.plans, home.audit, home.run, home.keys, home.caches, home.apps):
        assert os.stat(directory).st_mode & 0o7777 == 0o700


def test_looking_for_the_state_home_creates_nothing(tmp_path: Path) -> None:
    paths.state_home({"HOME": str(tmp_path)}, create=False)
    assert list(tmp_path.iterdir()) == []


def test_an_open_state_home_is_closed(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o777)
    (tmp_path / "s").chmod(0o777)
    paths.state_home({"STOCKADE_HOME": str(tmp_path / "s")})
    assert (tmp_path / "s").stat().st_mode & 0o7777 == 0o700


def test_a_link_planted_as_state_home_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "s").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError) as caught:
        paths.state_home({"STOCKADE_HOME": str(tmp_path / "s")})
    assert caught.value.code == "state_home_invalid"


def test_a_state_home_of_somebody_else_is_refused(tmp_path: Path) -> None:
    theirs, places = Path("/usr"), [Path("/usr")]
    if os.geteuid() == 0:
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        os.chown(theirs, 12345, 12345)
        places = [theirs, theirs / "below"]
    for place in places:
        with pytest.raises(ConfigError) as caught:
            paths.state_home({"STOCKADE_HOME": str(place)})
        assert caught.value.code == "state_home_invalid"


def test_a_relative_state_home_is_refused() -> None:
    with pytest.raises(ConfigError):
        paths.state_home({"STOCKADE_HOME": "state"})


def test_a_place_that_cannot_be_written_falls_back_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    home = paths.state_home({"STOCKADE_HOME": str(tmp_path / "file/x"), "XDG_RUNTIME_DIR": str(tmp_path / "run")})
    assert home.ephemeral and home.path == f"{tmp_path}/run/stockade"


def _fallback(tmp_path: Path, **env: str) -> paths.StateHome:
    return paths.state_home({"XDG_RUNTIME_DIR": str(tmp_path / "run"), **env}, create=False)


@pytest.mark.parametrize("home", ["/", "/etc", "/usr/local", "/opt", "/home", "/var/lib", "//", "/nonexistent/h", "/etc/nobody"])
def test_a_home_that_is_no_home_gets_no_state_home(tmp_path: Path, home: str) -> None:
    found = _fallback(tmp_path, HOME=home)
    assert found.ephemeral and found.path == f"{tmp_path}/run/stockade"
    assert found.wanted == f"{'' if home in ('/', '//') else home}/.local/state/stockade"


def test_a_home_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    found = paths.state_home({"HOME": str(tmp_path / "none/h"), "XDG_RUNTIME_DIR": str(tmp_path / "run")})
    assert found.ephemeral and not (tmp_path / "none").exists()
    (tmp_path / "none/h").mkdir(parents=True)
    assert not paths.state_home({"HOME": str(tmp_path / "none/h")}).ephemeral


def test_a_link_to_a_system_directory_is_no_home(tmp_path: Path) -> None:
    (tmp_path / "h").symlink_to("/etc")
    assert _fallback(tmp_path, HOME=str(tmp_path / "h")).ephemeral


def test_nothing_is_made_below_a_directory_of_somebody_else(tmp_path: Path) -> None:
    theirs = Path("/usr")
    if os.geteuid() == 0:
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        os.chown(theirs, 12345, 12345)
    for name in ("HOME", "XDG_STATE_HOME"):
        found = _fallback(tmp_path, **{"HOME": str(tmp_path), name: str(theirs)})
        assert found.ephemeral and found.path == f"{tmp_path}/run/stockade", name
    last = paths.state_home({"HOME": str(theirs), "XDG_RUNTIME_DIR": str(theirs / "run"), "STATE_DIRECTORY": str(theirs / "state")}, create=False)
    assert last.path == f"/var/tmp/stockade-{os.geteuid()}"


def test_the_state_directory_of_a_service_comes_before_the_runtime_directory(tmp_path: Path) -> None:
    (tmp_path / "service").mkdir()
    assert _fallback(tmp_path, HOME="/nonexistent", STATE_DIRECTORY=f"{tmp_path}/service:/other").path == f"{tmp_path}/service"


def test_a_place_named_outright_is_made_with_its_parents(tmp_path: Path) -> None:
    found = paths.state_home({"HOME": "/", "STOCKADE_HOME": str(tmp_path / "a/b/c")})
    assert not found.ephemeral and (tmp_path / "a/b/c/audit").is_dir()


def test_a_state_home_that_exists_stays_in_use(tmp_path: Path) -> None:
    """Its trust, keys and log would otherwise be lost to who once used it."""
    (tmp_path / "x/stockade").mkdir(parents=True)
    assert not _fallback(tmp_path, HOME="/", XDG_STATE_HOME=str(tmp_path / "x")).ephemeral


def _repo(path: Path) -> Path:
    (path / ".git").mkdir(parents=True)
    (path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    return path


def test_git_top_is_found_above_and_through_links(tmp_path: Path) -> None:
    top = _repo(tmp_path / "r")
    (top / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(top / "a/b")
    assert paths.git_top(top / "a/b") == paths.git_top(tmp_path / "link") == str(top.resolve())


def test_a_linked_worktree_has_a_file_as_dot_git(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w/.git").write_text("gitdir: /r/.git/worktrees/w\n")
    assert paths.git_top(tmp_path / "w") == str((tmp_path / "w").resolve())


@pytest.mark.parametrize("plant", ["empty_dir", "text", "fifo", "link"])
def test_what_only_looks_like_a_repository_is_none(tmp_path: Path, plant: str) -> None:
    base = tmp_path / "w"
    (base / "in").mkdir(parents=True)
    dot = base / ".git"
    if plant == "empty_dir":
        dot.mkdir()
    elif plant == "text":
        dot.write_text("hello\n")
    elif plant == "fifo":
        os.mkfifo(dot)
    else:
        dot.symlink_to(_repo(tmp_path / "other") / ".git")
    assert paths.git_top(base / "in") is None


def test_a_repository_in_a_directory_that_others_write_never_counts(tmp_path: Path) -> None:
    top = _repo(tmp_path / "shared")
    top.chmod(0o1777)
    (top / "mine").mkdir()
    assert paths.git_top(top / "mine") is None


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "f"
    paths.atomic_write(target, b"one", 0o400)
    paths.atomic_write(target, b"two", 0o600)
    assert target.read_bytes() == b"two" and target.stat().st_mode & 0o777 == 0o600
    (tmp_path / "d").mkdir()
    with pytest.raises(OSError):
        paths.atomic_write(tmp_path / "d", b"x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d", "f"]
