"""Requests: what a caller may write, and the typed answer to everything else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.errors import ConfigError, Error, Refused
from stockade.rules import units
from stockade.rules.request import PROCESS_OPTIONS, build_request


def code_of(args: Any, **options: Any) -> str:
    with pytest.raises(Error) as caught:
        build_request(args, **options)
    assert "\n" not in str(caught.value)
    return caught.value.code


def test_a_string_is_refused_and_the_error_names_the_shell_form() -> None:
    for args in ("ls -l", b"ls", Path("/bin/ls")):
        with pytest.raises(ConfigError) as caught:
            build_request(args)  # type: ignore[arg-type]
        assert caught.value.code == "argv_invalid" and '["sh", "-c", LINE]' in caught.value.hint


@pytest.mark.parametrize("args", [[], [""], ["a\0b"], ["ls", "x\0"], [1], None, 7, [None], ["ls", ["x"]]])
def test_an_argv_that_is_none_is_refused(args: Any) -> None:
    assert code_of(args) == "argv_invalid"


def test_argv_takes_text_bytes_and_paths_and_keeps_empty_arguments() -> None:
    request = build_request(["git", b"commit", "-m", "", Path("/x"), b"\xff"])
    assert request.argv == ("git", "commit", "-m", "", "/x", "\udcff")


@pytest.mark.parametrize(("option", "value"), [
    ("shell", True), ("executable", "/bin/sh"), ("preexec_fn", print), ("close_fds", False), ("user", 0),
    ("user", "nobody"), ("group", 0), ("extra_groups", []), ("startupinfo", object()), ("creationflags", 1),
])
def test_what_would_weaken_the_box_is_refused_with_the_reason(option: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        build_request(["ls"], **{option: value})
    assert caught.value.code == "option_refused"
    assert option in caught.value.message and len(caught.value.hint) > 10


def test_harmless_defaults_of_subprocess_are_accepted() -> None:
    build_request(["ls"], shell=False, executable=None, close_fds=True, preexec_fn=None, creationflags=0)
    build_request(["ls"], **dict.fromkeys(PROCESS_OPTIONS))


@pytest.mark.parametrize(("options", "code", "hint"), [
    ({"tiers": "strict"}, "unknown_option", "'tier'"),
    ({"tier": "stict"}, "unknown_tier", "'strict'"),
    ({"caller": "operater"}, "unknown_caller", "'operator'"),
    ({"accept": ["fs.homes"]}, "unknown_promise", "'fs.home'"),
    ({"sockets": ["ssh-agnt"]}, "unknown_grant", "'ssh-agent'"),
    ({"allow": ["git-confg"]}, "unknown_grant", "'git-config'"),
    ({"limits": {"proceses": 3}}, "unknown_list_key", "'processes'"),
    ({"net": "hosst"}, "value_invalid", "'host'"),
    ({"cache": "kep"}, "value_invalid", "'keep'"),
    ({"tmp": "ram"}, "value_invalid", "memory"),
    ({"tmp": "disk:1G"}, "value_invalid", "memory:SIZE"),
])
def test_an_unknown_name_is_an_error_with_the_nearest_known_one(options: dict[str, Any], code: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_request(["ls"], **options)
    assert caught.value.code == code and hint in caught.value.hint


def test_an_empty_network_list_is_none_and_a_list_of_hosts_is_refused_clearly() -> None:
    assert build_request(["ls"], net=[]).net == "none"
    assert build_request(["ls"], net=["host"]).net == "host"
    assert build_request(["ls"]).net is None
    for net in (["example.org"], "example.org:443,@npm", ["none", "host", "a.b"], ["10.0.0.1"]):
        with pytest.raises(Refused) as caught:
            build_request(["ls"], net=net)
        assert caught.value.code == "net_unsupported"
        assert "network lists are not available in this version" in caught.value.message


def test_later_features_are_refused_not_ignored() -> None:
    assert code_of(["ls"], publish=[80]) == "publish_unsupported"


def test_paths_are_absolute_against_cwd_and_links_keep_their_name(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    base = str(tmp_path.resolve())
    request = build_request(["ls"], cwd=tmp_path / "d", read=["../link", "x"], write="../link/..", hide=["/etc/../etc/passwd"])
    assert request.read == (f"{base}/link", f"{base}/d/x")
    assert request.write == (base,)  # the kernel's '..', not the text's
    assert request.hide == ("/etc/passwd",)
    assert request.cwd_named


def test_a_tilde_is_the_home_of_the_environment_source(tmp_path: Path) -> None:
    request = build_request(["ls"], env={"HOME": str(tmp_path)}, read=["~/x", "~"])
    assert request.read == (f"{tmp_path.resolve()}/x", str(tmp_path.resolve()))


@pytest.mark.parametrize("path", ["", "a\0b", b"\xff\xfe", 3, None])
def test_a_path_that_no_plan_can_hold_is_refused(path: Any) -> None:
    assert code_of(["ls"], read=[path]) == "path_invalid"


def test_a_working_directory_must_exist_and_be_one(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    assert code_of(["ls"], cwd=tmp_path / "f") == "path_invalid"
    assert code_of(["ls"], cwd=tmp_path / "gone") == "path_invalid"
    descriptor = os.open(tmp_path, os.O_RDONLY)
    assert build_request(["ls"], cwd=f"/dev/fd/{descriptor}").cwd == str(tmp_path.resolve())
    os.close(descriptor)


def test_a_deleted_working_directory_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError) as caught:
        build_request(["ls"])
    assert caught.value.code == "path_invalid" and "deleted" in caught.value.message
    assert code_of(["ls"], cwd="x") == "path_invalid"
    assert build_request(["ls"], cwd="/").cwd == "/"


@pytest.mark.parametrize("options", [
    {"set_env": {"A=B": "x"}}, {"set_env": {"": "x"}}, {"set_env": {"A": "s3cret\0"}}, {"set_env": {"A": 1}},
    {"set_env": "A=s3cret"}, {"pass_env": ["A=s3cret"]}, {"pass_env": ["AWS_*"]}, {"pass_env": [3]}, {"env": ["A"]},
])
def test_a_wrong_variable_is_refused_without_its_value(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        build_request(["ls"], **options)
    assert caught.value.code == "env_invalid"
    if "set_env" in options:
        assert "s3cret" not in str(caught.value)


def test_values_of_variables_are_not_in_the_repr() -> None:
    request = build_request(["ls"], env={"A": "s3cret"}, set_env={"B": "s3cret"})
    assert "s3cret" not in repr(request)
    assert request.environ() == {"A": "s3cret"}


def test_a_request_is_frozen_and_hashable() -> None:
    first, second = (build_request(["ls"], set_env={"B": "1", "A": "2"}, limits={"files": 9}) for _ in range(2))
    assert first == second and hash(first) == hash(second)
    with pytest.raises(AttributeError):
        first.tier = "off"  # type: ignore[misc]


def test_descriptors_are_numbers_and_the_three_standard_ones_are_no_grant() -> None:
    assert build_request(["ls"], pass_fds=[7, 3, 3, 1]).pass_fds == (3, 7)
    assert code_of(["ls"], pass_fds=[-1]) == code_of(["ls"], pass_fds=[True]) == "value_invalid"


def test_the_old_name_of_guarded_is_accepted_and_never_kept() -> None:
    request = build_request(["ls"], tier="cc", accept=["cc"])
    assert request.tier == "guarded" and request.accept == ("guarded",)


@pytest.mark.parametrize(("text", "value"), [
    ("2G", 2 << 30), ("512m", 512 << 20), ("1.5GiB", 3 << 29), ("10kb", 10240), ("7", 7), (4096, 4096), ("3 M", 3 << 20),
])
def test_sizes_are_powers_of_1024(text: Any, value: int) -> None:
    assert units.size("x", text) == value


@pytest.mark.parametrize(("text", "value"), [
    ("30s", 30_000), ("500ms", 500), ("1.5h", 5_400_000), ("2", 2000), (2, 2000), (0.25, 250), ("1d", 86_400_000),
])
def test_durations_are_milliseconds(text: Any, value: int) -> None:
    assert units.milliseconds("x", text) == value


@given(st.one_of(st.text(max_size=8), st.floats(), st.booleans(), st.none(), st.integers(max_value=0)))
def test_anything_else_is_value_invalid_or_a_positive_number(value: Any) -> None:
    for parse in (units.size, units.milliseconds, units.seconds, units.count):
        try:
            assert 0 < parse("x", value) < 1 << 63
        except ConfigError as error:
            assert error.code == "value_invalid"


def test_limits_are_the_plan_keys_in_their_units() -> None:
    limits = {"memory_bytes": "2G", "wall": "30s", "cpu_time_s": "1500ms", "processes": 64, "files": None}
    assert dict(build_request(["ls"], limits=limits).limits) == {
        "memory_bytes": 2 << 30, "wall_ms": 30_000, "cpu_time_s": 2, "processes": 64}


def test_tmp_carries_its_size() -> None:
    assert units.parse_tmp(str(units.tmp("memory:1G"))) == ("memory", 1 << 30)
    assert units.parse_tmp(str(units.tmp("memory"))) == ("memory", None)


def test_devices_are_below_dev() -> None:
    assert build_request(["ls"], devices=["kvm", "/dev/fuse"]).devices == ("/dev/kvm", "/dev/fuse")
    assert code_of(["ls"], devices=["../etc/passwd"]) == "path_invalid"
