"""Secrets do not reach a record; what only looks like one does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.audit.redact import MARK, clipped, redacted
from stockade.rules.load import load_list

RANDOM = "q9XvT2mLw8RzKd4PfBn7"
GITHUB = "ghp_" + "a1B2c3D4e5" * 4

HIDDEN = [
    f"curl -H 'Authorization: Basic {RANDOM}' x", f"authorization: bearer {RANDOM}", f"https://me:{RANDOM}@example.org/x",
    f"https://{RANDOM}@example.org/x.git", f"GITHUB_TOKEN={RANDOM}", f'{{"api_key": "{RANDOM}"}}', f"clientSecret: {RANDOM}",
    f"--password={RANDOM}", f"?access_token={RANDOM}&page=2", f"the token is {RANDOM}", f"postgresql://app:{RANDOM}@db/app",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{RANDOM}\n-----END OPENSSH PRIVATE KEY-----", f"-----BEGIN RSA PRIVATE KEY-----\n{RANDOM}",
    f"AWS_SECRET_ACCESS_KEY={RANDOM}", f"npm config set //host/:_authToken={RANDOM}", f"DB_PASSWORD='{RANDOM}'", f"x-api-key: {RANDOM}",
]  # fmt: skip

# Each with the reason why somebody would be misled if it were taken out.
SHOWN = [
    "git commit --author=Name -m message", "--max-tokens=4096", "pip install tokenizers==0.15.2", "--token-file /run/x", "--keyboard us",
    "docker login --password-stdin host", "https://example.org/path?page=2", "ssh://git@example.org/x.git", "monkey=banana",
    "--auth-type=basic", "AUTH_ENABLED=true", "PASSWORD_MIN_LENGTH=12", "GIT_AUTHOR_NAME=Somebody", "python -m pytest tests/test_tokens.py",
    "sha256:" + "0123456789abcdef" * 4, "0123456789abcdef0123456789abcdef01234567", "node_modules/.bin/eslint --cache",
    "/home/u/.local/share/uv/tools/ruff/bin/ruff", "compass=north", "secretary=Mary", "-k 'token and not slow'", "author: somebody",
    "01ARZ3NDEKTSV4RRFFQ69G5FAV", "550e8400-e29b-41d4-a716-446655440000", "--env-file .env", "passenger: two",
]  # fmt: skip


@pytest.mark.parametrize("text", HIDDEN)
def test_what_is_a_secret_is_taken_out(text: str) -> None:
    assert RANDOM not in redacted(text) and MARK in redacted(text)


@pytest.mark.parametrize("text", SHOWN)
def test_what_only_looks_like_one_is_left(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize("entry", load_list("token-shapes"), ids=lambda entry: entry.name or entry.id)
def test_every_reviewed_shape_is_taken_out(entry: object) -> None:
    import re

    letters = [c for c in map(chr, range(33, 127)) if re.fullmatch(f"[{entry.charset}]", c)]  # type: ignore[attr-defined]
    token = entry.prefix + "".join(letters[at * 7 % len(letters)] for at in range(entry.min_len + 4))  # type: ignore[attr-defined]
    assert token not in redacted(f"ran with {token} there")


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=200))
def test_what_is_redacted_is_redacted_for_good(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once


def test_clipping_comes_last() -> None:
    text = f"x {GITHUB}"
    assert clipped(redacted(text), 12) == "x [redacted]"
    assert clipped("y" * 20, 12) == "y" * 12 + "[8 more]"


@pytest.mark.parametrize("text", ["a=" * 50_000, "-" * 100_000, "://" * 30_000, "-----BEGIN A-----" * 5_000, "token " * 20_000, "A" * 200_000])
def test_a_long_text_is_done_in_time(text: str) -> None:
    import time

    begun = time.monotonic()
    redacted(text)
    assert time.monotonic() - begun < 3
