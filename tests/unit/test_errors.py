"""Errors: one line, stable codes, pickle-safe, also what subprocess callers expect."""

from __future__ import annotations

import ast
import errno
import pickle
import resource
import subprocess
from pathlib import Path

import pytest

from stockade import errors
from stockade.codes import CODES

SRC = Path(errors.__file__).parent
SAMPLES = [
    errors.Error("usage", "x"),
    errors.ConfigError("config_invalid", "file '/x': bad", hint="repair it"),
    errors.Refused("no_backend", "x", reasons=["r"], missing=["fs.home"], remedy="do this"),
    errors.LaunchFailed("launch_failed", "x", record={"code": "y"}, returncode=125),
    errors.AuditUnavailable("audit_unavailable", "x"),
    errors.Denied("denied", "read '/x'", rule="fs.home", grant="--read /x", path="/x"),
    errors.TimedOut(["sleep", "5"], 1.5, output=b"o", stderr=b"e"),
    errors.CommandFailed(3, ["false"], output="o"),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda e: type(e).__name__)
def test_an_error_survives_pickling_whole(error: errors.Error) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - bytes that this line made
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


@pytest.mark.parametrize("error", SAMPLES, ids=lambda e: type(e).__name__)
def test_an_error_is_one_line_with_code_and_hint(error: errors.Error) -> None:
    assert "\n" not in str(error)
    assert str(error) == f"{error.code}: {error.message} (hint: {error.hint})"


def test_a_file_name_cannot_write_a_second_line_or_a_terminal_code() -> None:
    text = str(errors.ConfigError("path_invalid", "path a\nstockade: strict\x1b[2J\u2028b"))
    assert text.splitlines() == [text]
    assert "\x1b" not in text


def test_every_code_has_meaning_hint_and_an_exit_status() -> None:
    for name, code in CODES.items():
        assert name == name.lower() and name.replace("_", "").isalnum()
        assert code.meaning and code.hint, name
        assert code.exit in (1, 124, 125, 126, 127)


def test_a_code_that_nobody_listed_still_fails_the_run() -> None:
    assert errors.Error("from_a_newer_launcher", "x").exit_status == 125


def test_every_code_used_in_the_package_is_listed() -> None:
    kinds = {"Error", "ConfigError", "Refused", "LaunchFailed", "AuditUnavailable", "Denied"}
    used = set()
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in kinds:
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    used.add(first.value)
                    assert first.value in CODES, f"{path}:{node.lineno}: {first.value}"
    assert {"grant_voids_tier", "path_invalid"} <= used


def test_errors_are_what_callers_of_subprocess_catch() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        raise errors.TimedOut(["x"], 1.0)
    with pytest.raises(subprocess.CalledProcessError) as caught:
        raise errors.CommandFailed(-9, ["x"], output=b"out")
    assert caught.value.returncode == -9 and caught.value.stdout == b"out"
    with pytest.raises(PermissionError) as denied:
        raise errors.Denied("denied", "x", rule="fs.home", path="/x")
    assert denied.value.filename == "/x" and denied.value.errno == 13


def test_an_argument_never_appears_in_an_error() -> None:
    secret = "--token=hunter2"
    assert secret not in str(errors.CommandFailed(1, ["curl", secret]))
    assert secret not in str(errors.TimedOut(["curl", secret], 1))


@pytest.mark.parametrize(("number", "limit"), [(errno.EFBIG, "RLIMIT_FSIZE"), (errno.EMFILE, "RLIMIT_NOFILE"), (errno.EAGAIN, "RLIMIT_NPROC"),
                                               (errno.ENOMEM, "RLIMIT_AS"), (errno.ENOSPC, ""), (errno.ENFILE, "")])
def test_a_shortage_is_transient_and_names_its_limit(number: int, limit: str) -> None:
    short = errors.shortage(OSError(number, "x"), "start")
    assert short is not None and (short.code, short.transient) == ("resource", True) and errno.errorcode[number] in str(short)
    soft = resource.getrlimit(getattr(resource, limit))[0] if limit else -1
    assert (f"{limit} is {soft}" in str(short)) == (soft >= 0) and "doctor" not in str(short)
    assert ("ulimit" in short.hint) == (soft >= 0) and short.hint


def test_no_other_error_is_called_a_shortage() -> None:
    assert all(errors.shortage(OSError(number, "x"), "start") is None for number in (errno.EACCES, errno.ENOENT, errno.EPERM, errno.EIO, errno.E2BIG))
    assert errors.shortage(OSError("no number"), "start") is None


def test_nearest_names_the_closest_or_the_known_ones() -> None:
    assert errors.nearest("stict", ["strict", "standard"]) == "did you mean 'strict'?"
    assert errors.nearest("zzz", ["npm", "pip"]) == "known: npm, pip"
    assert errors.nearest("x", []) == "none is known"
