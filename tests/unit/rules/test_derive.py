"""Configuration goes into a box, its secrets do not."""

from __future__ import annotations

import configparser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.errors import ConfigError
from stockade.rules.derive import derive

TOKEN = "npm_" + "a1B2" * 9

NPMRC = f"""
; comment
registry=https://mirror.example.test/npm/
@corp:registry = https://corp.example.test/npm/
//mirror.example.test/npm/:_authToken={TOKEN}
//corp.example.test/:_password=c2VjcmV0
_auth=dXNlcjpwYXNz
always-auth=true
email=me@example.test
cafile=/etc/ssl/certs/ca-certificates.crt
key="-----BEGIN"
script-shell=/tmp/evil
node-options=--require=/tmp/evil.js
git=/tmp/evil
prefix=/home/u/.npm-global
proxy=http://user:hunter2@proxy.example.test:3128
https-proxy=http://proxy.example.test:3128
noproxy=${{SECRET}}
omit[]=dev
omit[]=optional
"""


def test_npmrc_keeps_the_mirror_and_drops_every_login_and_program() -> None:
    text = derive("npmrc", [NPMRC])
    assert text.splitlines() == [
        "registry=https://mirror.example.test/npm/", "@corp:registry=https://corp.example.test/npm/",
        "cafile=/etc/ssl/certs/ca-certificates.crt", "https-proxy=http://proxy.example.test:3128",
        "omit[]=dev", "omit[]=optional"]


def test_the_users_npmrc_beats_the_global_one() -> None:
    assert derive("npmrc", ["registry=https://a.test/\nfund=false\n", "registry=https://b.test/\n"]) == (
        "registry=https://b.test/\nfund=false\n")


def test_an_address_with_a_login_or_a_token_is_dropped() -> None:
    assert derive("npmrc", ["registry=https://u:p@a.test/\n"]) == ""
    assert derive("npmrc", ["registry=https://tok@a.test/\n"]) == ""
    assert derive("npmrc", [f"registry=https://a.test/{TOKEN}/\n"]) == ""
    assert derive("pipconf", [f"[global]\nindex-url=https://a.test/{TOKEN}/simple\n"]) == ""


PIPCONF = """
[global]
index_url = https://mirror.example.test/simple
extra-index-url =
    https://one.example.test/simple
    https://u:p@two.example.test/simple
timeout: 60
keyring-provider = subprocess
client-cert = /home/u/key.pem
python = /tmp/evil
[install]
find-links = /opt/wheels
user = yes
"""


def test_pip_conf_keeps_the_index_and_drops_logins_keys_and_programs() -> None:
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.read_string(derive("pipconf", [PIPCONF]))
    assert {s: dict(parsed[s]) for s in parsed.sections()} == {
        "global": {"index-url": "https://mirror.example.test/simple", "timeout": "60"},
        "install": {"find-links": "/opt/wheels"}}


def test_a_list_of_indexes_without_logins_is_kept_whole() -> None:
    text = derive("pipconf", ["[global]\nextra-index-url =\n  https://a.test/s\n  https://b.test/s\n"])
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.read_string(text)
    assert parsed["global"]["extra-index-url"].split() == ["https://a.test/s", "https://b.test/s"]


GITCONFIG = """
[user]
\tname = A "B" C
\temail = a@example.test
\tsigningkey = ~/.ssh/id.pub
[core]
\tautocrlf = input
\tpager = evil
\tsshCommand = evil
\thooksPath = /tmp/evil
\tfsmonitor = evil
[alias]
\tx = !evil
[credential]
\thelper = store
[credential "https://a.test"]
\tusername = u
[url "ext::evil"]
\tinsteadOf = https://
[filter "lfs"]
\tprocess = git-lfs filter-process
[include]
\tpath = /tmp/evil
[safe]
\tdirectory = /w/one
\tdirectory = /w/two
[init] defaultBranch = main
[merge "evil"]
\tff = only
"""


def test_gitconfig_keeps_identity_and_nothing_that_runs_a_program() -> None:
    text = derive("gitconfig", [GITCONFIG])
    for kept in ('name = A "B" C', "email = a@example.test", "autocrlf = input", "directory = /w/one",
                 "directory = /w/two", "defaultBranch = main"):
        assert kept in text
    for gone in ("evil", "helper", "signingkey", "insteadOf", "process", "username"):
        assert gone not in text


def test_a_continued_line_cannot_smuggle_a_section() -> None:
    text = derive("gitconfig", ["[user]\n\tname = a \\\n[core]\n\tpager = evil\n"])
    assert "pager" not in text


def test_nothing_harmless_gives_no_file() -> None:
    assert derive("npmrc", []) == derive("pipconf", ["[global]\nclient-cert=/k"]) == derive("gitconfig", [""]) == ""


def test_an_unknown_filter_is_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        derive("npm", [])
    assert caught.value.code == "profile_invalid" and "npmrc" in caught.value.hint


@given(st.text(max_size=200), st.sampled_from(["npmrc", "pipconf", "gitconfig"]))
def test_no_login_survives_any_text_around_it(noise: str, name: str) -> None:
    secret = "hunter2hunter2"
    lines = [f"registry=https://u:{secret}@a.test/", f"//a.test/:_authToken={secret}", "[global]",
             f"index-url=https://u:{secret}@a.test/", "[user]", f"name=https://u:{secret}@a.test/"]
    assert secret not in derive(name, [noise + "\n" + "\n".join(lines), "\n".join(lines) + "\n" + noise])
