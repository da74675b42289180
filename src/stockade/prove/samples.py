"""Which entries of the reviewed lists are planted.

Owns: an even choice of each list, so that every part of it is touched and the number stays
bounded. Fails closed: an entry that has no concrete name is not chosen; a list that gives nothing
is an error of a test, not a promise that looks kept. Read next: ``stage.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stockade.frozen import dataclass, field
from stockade.rules.load import Entry, load_list
from stockade.rules.tiers import Tier

MANY, FEW = 24, 8
GUARDED_UP = frozenset({Tier.guarded, Tier.strict})
STRICT = frozenset({Tier.strict})

# One file for each way of changing a file, so that none undoes what another is judged by.
TARGETS = ("append", "truncate", "unlink", "rename", "replace", "link", "through", "chmod", "fchmod", "utime",
           "setxattr")
# Names of the reviewed list of sockets, and two that nobody has listed.
RUNTIME_SOCKETS = ("bus", "podman/podman.sock", "tool/own.sock")
HOME_SOCKETS = (".docker/run/docker.sock", "tool/own.sock")
# Variables that load code; the interpreter of the attack program heeds none of them (-I).
LOADERS = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONSTARTUP", "PYTHONPATH", "NODE_OPTIONS", "BASH_ENV", "ENV",
           "PERL5OPT", "RUBYOPT", "JAVA_TOOL_OPTIONS", "GIT_SSH_COMMAND", "GIT_ASKPASS")
# Stores that appear or are replaced while the box lives; planted by the attack itself.
LATER_STORE, REPLACED_STORE = ".netrc", ".ssh/id_ed25519"
# A point that does not exist at the start and has to be reported.
NEW_POINT = ".envrc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A planted variable. ``tiers``: where it has to be absent, None for everywhere."""

    promise: str
    name: str
    value: str = field(repr=False)
    tiers: frozenset[Tier] | None = None


def chosen(items: Iterable[str], count: int) -> tuple[str, ...]:
    """Return so many of the different items, evenly spread."""
    every = tuple(dict.fromkeys(items))
    return every if len(every) <= count else tuple(every[number * len(every) // count] for number in range(count))


def names_of(entry: Entry) -> Iterator[str]:
    """Yield concrete names of an entry: its examples, else its path or pattern."""
    yield from entry.examples[:1] or ([entry.path or entry.pattern] if entry.kind != "dir" else [])


def _plain(names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if name and not set(name) & set("*?$~") and not name.startswith("/"))


def credentials() -> tuple[str, ...]:
    """Return credential files below the home."""
    every = _plain(name for entry in load_list("credentials") for name in names_of(entry))
    return (*chosen((name for name in every if name not in (LATER_STORE, REPLACED_STORE)), MANY), REPLACED_STORE)


def persistence() -> tuple[str, ...]:
    """Return guarded places at the top of a project."""
    every = (name for entry in load_list("persistence") if entry.scope == "workspace" and entry.guard
             for name in names_of(entry) if not name.startswith(".git"))
    return chosen((name for name in _plain(every) if name != NEW_POINT), FEW)


def workspace_secrets() -> tuple[str, ...]:
    """Return secret files at the top of a project."""
    return chosen(_plain(name for entry in load_list("workspace-secrets") for name in names_of(entry)), FEW)


def tokens() -> tuple[str, ...]:
    """Return values that have the shape of a token."""
    entries = load_list("token-shapes")
    made = (f"{entry.prefix}{_letter(entry.charset) * (entry.min_len + 2)}" for entry in entries)
    return chosen(made, FEW)


def _letter(charset: str) -> str:
    """Return a character of a set such as ``A-Za-z0-9_``."""
    first = charset[:1]
    return "a" if "a-z" in charset else "A" if "A-Z" in charset else "0" if "0-9" in charset else first


def variables(secret: str) -> tuple[Variable, ...]:
    """Return the planted variables; each value says which one it is."""
    listed = chosen(_plain(name for entry in load_list("env-secrets") for name in names_of(entry)), MANY // 2)
    found = [Variable(promise="env.secrets", name=name, value=f"{secret}-{name}") for name in listed]
    found += [Variable(promise="env.injection", name=name, value=f"{secret}-{name}") for name in LOADERS]
    found += [Variable(promise="env.secrets", name=f"PLANTED_{number}", value=value, tiers=GUARDED_UP)
              for number, value in enumerate(tokens())]
    return (*found, Variable(promise="env.secrets", name="PLANTED_PLAIN", value=f"{secret}-plain", tiers=STRICT))
