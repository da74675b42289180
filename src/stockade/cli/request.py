"""From options of the command line to the keyword arguments of ``stockade.run``.

Owns: the spellings that only the command line has (``--env NAME=VALUE``, ``--env-file``,
``--pids``). Fails closed: a value is taken whole or refused; errors name a variable, never its
value. Values of variables travel by descriptor, never in an argv of ours.
"""

from __future__ import annotations

import os

from stockade.cli.grammar import Parsed
from stockade.errors import ConfigError
from stockade.paths import StateHome
from stockade.rules import units
from stockade.rules.request import NET_WORDS, Request, build_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.rules.settings import Settings

# option -> keyword, where only the name differs
_NAMES = {"tier": "tier", "cwd": "cwd", "net": "net", "tmp": "tmp", "cache": "cache",
          "on_persistence": "on_persistence"}
_LISTS = {"profile": "profile", "read": "read", "write": "write", "hide": "hide", "allow_socket": "sockets",
          "allow": "allow", "device": "devices", "accept": "accept", "publish": "publish"}

MAX_ENV_FILE = 1 << 20
_NETS = ("none", "host")


def options(parsed: Parsed, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the keyword arguments that the given options stand for."""
    found: dict[str, Any] = {"caller": parsed.text("as") or "auto"}
    for option, name in _NAMES.items():
        if parsed.text(option) is not None:
            found[name] = parsed.text(option)
    for option, name in _LISTS.items():
        if option not in without and parsed.all(option):
            found[name] = list(parsed.all(option))
    check_net(parsed.text("net"))
    passed, given = _environment(parsed)
    if passed:
        found["pass_env"] = passed
    if given:
        found["set_env"] = given
    limits = _limits(parsed)
    if limits:
        found["limits"] = limits
    return found


def check_net(text: str | None) -> None:
    """Answer a word that means a network and is not the name of one.

    Raises: ConfigError ``value_invalid``.
    """
    meant = NET_WORDS.get((text or "").strip().lower())
    if meant is not None:
        raise ConfigError("value_invalid", f"--net {text!r}: expected {' or '.join(_NETS)}",
                          hint=f"did you mean {meant!r}?")


def _limits(parsed: Parsed) -> dict[str, Any]:
    """Checked here, so that an error names the option as it was written."""
    rows = (("timeout", "wall", lambda name, text: units.milliseconds(name, text) / 1000),
            ("memory", "memory_bytes", units.size), ("pids", "processes", units.count),
            ("cpu_time", "cpu_time_s", units.seconds), ("files", "files", units.count))
    return {key: check(f"--{option.replace('_', '-')}", parsed.text(option)) for option, key, check in rows
            if parsed.text(option) is not None}


def _environment(parsed: Parsed) -> tuple[list[str], dict[str, str]]:
    passed: list[str] = []
    given: dict[str, str] = {}
    lines = [line for path in parsed.all("env_file") for line in _env_file(path)]
    for item in (*lines, *parsed.all("env")):
        name, equals, value = item.partition("=")
        if equals:
            given[name] = value
        else:
            passed.append(name)
    return passed, given


def _env_file(path: str) -> list[str]:
    """Return the items of a file: no quoting, no expansion, as the container engines read it."""
    try:
        with open(os.path.expanduser(path), "rb") as stream:
            data = stream.read(MAX_ENV_FILE + 1)
    except OSError as error:
        raise ConfigError("env_invalid", f"--env-file {path!r}: cannot be read ({error.strerror})") from None
    if len(data) > MAX_ENV_FILE:
        raise ConfigError("env_invalid", f"--env-file {path!r}: got more than {MAX_ENV_FILE} bytes")
    lines = (line.rstrip("\r") for line in os.fsdecode(data).split("\n"))
    return [line.lstrip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def request(parsed: Parsed, argv: tuple[str, ...], **more: Any) -> Request:
    """Return the checked request of a command line."""
    from stockade.process.reach import check_named

    asked = {**options(parsed), **more}
    check_named(asked)
    return build_request(list(argv), **asked)


def state_home() -> StateHome:
    """Return the state home that policy and environment choose, for commands about the past."""
    from stockade.rules.settings import state_of_policy

    return state_of_policy()


def cache_limit() -> int:
    """Return what all caches may take together in bytes, 0 for no limit."""
    return _settings().cache_limit_bytes


def retention_s() -> int | None:
    """Return how long policy keeps records, in seconds; None where it says nothing."""
    return _settings().policy.retention_s


def _settings() -> Settings:
    from stockade.rules.settings import load_settings

    return load_settings(build_request(["true"], cwd="/"))
