"""Policy: ceilings intersect, and an invalid file refuses every request."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from stockade.errors import ConfigError
from stockade.rules.files import parse_toml
from stockade.rules.governance import Policy, intersect, load_policy, parse_policy
from stockade.rules.tiers import Tier

UID = os.geteuid()


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "etc/policy.d").mkdir(parents=True)
    (tmp_path / "conf").mkdir()
    return tmp_path / "etc"


def read(etc: Path) -> Policy:
    return load_policy(str(etc.parent / "conf"), system_dir=str(etc), root_uid=UID)


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)


def test_no_file_is_no_ceiling(etc: Path, tmp_path: Path) -> None:
    assert read(etc) == Policy()
    assert load_policy(str(tmp_path / "none"), system_dir=str(tmp_path / "none")) == Policy()


def test_every_file_can_only_tighten(etc: Path) -> None:
    write(etc / "policy.toml", 'min_tier = "guarded"\ndeny_accept = ["fs.home"]\nallow_profiles = ["npm", "pip"]\n')
    write(etc / "policy.d/10.toml", 'min_tier = "standard"\nmax_net = "none"\ndeny_grants = ["/srv/keys"]\n')
    write(etc / "policy.d/ignored.txt", "not toml [")
    write(etc.parent / "conf/policy.toml", 'min_tier = "off"\nmax_net = "host"\nallow_profiles = ["npm", "git"]\n'
          'deny_unconfined = true\nrequire_audit = true\nretention = "30d"\n')
    policy = read(etc)
    assert policy.min_tier == Tier.guarded and policy.max_net == "none"
    assert policy.allow_profiles == {"npm"} and policy.deny_accept == {"fs.home"}
    assert policy.deny_unconfined and policy.require_audit and policy.retention_s == 30 * 86400
    assert policy.origin("max_net") == f"policy {etc}/policy.d/10.toml, {etc.parent}/conf/policy.toml"


def test_the_order_of_files_does_not_matter() -> None:
    parts = [Policy(min_tier=Tier.strict), Policy(max_net="none", allow_profiles=frozenset({"a", "b"})),
             Policy(deny_grants=frozenset({"*"}), allow_profiles=frozenset({"b", "c"}), retention_s=5)]
    found = {repr(intersect(intersect(a, b), c)) for a, b, c in itertools.permutations(parts)}
    assert len(found) == 1


def test_an_empty_allow_list_allows_no_profile(etc: Path) -> None:
    write(etc / "policy.toml", "allow_profiles = []\n")
    assert read(etc).denies_profile("npm") and not Policy().denies_profile("npm")


@pytest.mark.parametrize(("text", "line"), [
    ("min_teir = 'strict'", 1), ("\nmin_tier = 'srict'", 2), ("min_tier = 'auto'", 1), ("max_net = 'some'", 1),
    ("deny_unconfined = 'yes'", 1), ("deny_accept = ['fs.hme']", 1), ("deny_grants = ['dokcer']", 1),
    ("allow_profiles = ['*']", 1), ("state_home = 'x'", 1), ("retention = 'soon'", 1), ("x = [", None),
])
def test_an_invalid_policy_refuses_with_file_line_and_reason(etc: Path, text: str, line: int | None) -> None:
    write(etc / "policy.d/20.toml", text + "\n")
    with pytest.raises(ConfigError) as caught:
        read(etc)
    assert caught.value.code == "policy_invalid"
    assert f"{etc}/policy.d/20.toml" in caught.value.message
    if line is not None:
        assert f"line {line}" in caught.value.message


@pytest.mark.parametrize("fault", ["writable", "group_writable", "directory", "dangling", "fifo", "not_utf8", "huge"])
def test_a_policy_that_cannot_be_trusted_or_read_is_never_the_defaults(etc: Path, fault: str) -> None:
    path = etc / "policy.toml"
    if fault == "directory":
        path.mkdir()
    elif fault == "dangling":
        path.symlink_to("nothing")
    elif fault == "fifo":
        os.mkfifo(path, 0o644)
    else:
        path.write_bytes({"not_utf8": b"\xff", "huge": b"#" * (2 << 20)}.get(fault, b""))
        path.chmod({"writable": 0o646, "group_writable": 0o664}.get(fault, 0o644))
    with pytest.raises(ConfigError) as caught:
        read(etc)
    assert caught.value.code == "policy_invalid" and str(path) in caught.value.message


def test_a_system_policy_must_belong_to_root(etc: Path) -> None:
    write(etc / "policy.toml", "")
    with pytest.raises(ConfigError) as caught:
        load_policy(str(etc.parent / "conf"), system_dir=str(etc), root_uid=UID + 1)
    assert "owner" in caught.value.message


def test_two_state_homes_are_a_contradiction(etc: Path) -> None:
    write(etc / "policy.toml", 'state_home = "/var/lib/a"\n')
    write(etc / "policy.d/1.toml", 'state_home = "/var/lib/b"\n')
    with pytest.raises(ConfigError) as caught:
        read(etc)
    assert caught.value.code == "policy_invalid"


def test_a_denied_path_covers_what_is_below_and_above_it() -> None:
    policy = Policy(deny_grants=frozenset({"/srv/keys", "docker"}))
    assert policy.denies_grant("/srv/keys") and policy.denies_grant("/srv/keys/a") and policy.denies_grant("/srv")
    assert not policy.denies_grant("/srv/keys2") and policy.denies_grant("docker") and not policy.denies_grant("gpg")


def test_a_value_comes_from_the_files_that_set_it_and_not_from_those_that_ask_for_less() -> None:
    from stockade.cli import policy as printed

    texts = {"/a": 'min_tier = "strict"\ndeny_grants = ["docker"]\nallow_profiles = ["npm", "pip"]\nretention = "1d"\n',
             "/b": '\nmin_tier = "standard"\ndeny_grants = ["docker", "podman"]\nallow_profiles = ["git"]\nretention = "2d"\n'}
    documents = [parse_toml(path, "policy_invalid", text.encode()) for path, text in texts.items()]
    parts = [printed.Part(document=document, policy=parse_policy(document)) for document in documents]
    whole = intersect(parts[0].policy, parts[1].policy)
    assert printed._sources("min_tier", whole.min_tier, parts) == [("/a", 1)]
    assert printed._sources("retention", whole.retention_s, parts) == [("/b", 5)]
    assert printed._sources("deny_grants", "docker", parts) == [("/a", 2), ("/b", 3)]
    assert printed._sources("deny_grants", "podman", parts) == [("/b", 3)]
    assert whole.allow_profiles == frozenset() and printed._sources("allow_profiles", None, parts) == [("/a", 3), ("/b", 4)]
