"""``stockade profile``: what the defaults and grants of tools are, and whether a file is valid.

Owns: the printing. Read next: ``stockade.rules.profile``.
"""

from __future__ import annotations

import os
from typing import Any

from stockade.cli.grammar import Parsed
from stockade.cli.output import clean, emit, paint, say, table
from stockade.errors import ConfigError
from stockade.paths import config_home
from stockade.rules.profile import Profile, ProfileStore

_LEVELS = ("built in", "system", "user", "file")
_LIST = "stockade.profiles.v1"
_SHOW = "stockade.profile-show.v1"
_CHECK = "stockade.profile-check.v1"


def _store() -> ProfileStore:
    return ProfileStore(str(config_home(os.environ)))


def _name(word: str) -> str:
    """A word with a slash or ``.toml`` is a file, as for ``run``."""
    return os.path.abspath(os.path.expanduser(word)) if "/" in word or word.endswith(".toml") else word


def listing(parsed: Parsed) -> int:
    """List every profile; one that cannot be read is listed with its error."""
    store = _store()
    rows: list[dict[str, Any]] = []
    for name in store.names():
        try:
            profile = store.get(name)
            rows.append({"name": name, "level": _LEVELS[profile.level], "source": profile.source,
                         "description": profile.description, "match": list(profile.match), "error": None})
        except ConfigError as error:
            rows.append({"name": name, "level": None, "source": None, "description": "", "match": [],
                         "error": error.to_json()})
    if parsed.flag("json"):
        emit(_LIST, {"profiles": rows})
        return 0
    say(f"{len(rows)} profiles")
    table([(row["name"], row["level"] or "invalid", " ".join(row["match"]) or "-",
            row["error"]["message"] if row["error"] else row["description"]) for row in rows],
          head=("NAME", "PLACE", "PICKED FOR", "WHAT"))
    return 0


def show(parsed: Parsed) -> int:
    """Print a profile and everything it extends, what is extended first."""
    chain = _store().chain([_name(parsed.words[0])])
    if parsed.flag("json"):
        emit(_SHOW, {"name": chain[-1].name, "chain": [plain(profile) for profile in chain]})
        return 0
    for profile in chain:
        title = paint(clean(profile.name), "bold")
        say(f"{title} ({_LEVELS[profile.level]}): {clean(profile.description)}")
        rows = plain(profile)
        table([(key, _text(value)) for key, value in rows.items()
               if value and key not in ("name", "description", "level")], indent="  ")
    return 0


def plain(profile: Profile) -> dict[str, Any]:
    """Return what a profile says as plain data; values of variables are its own reviewed literals."""
    layer = profile.layer
    return {
        "name": profile.name, "level": _LEVELS[profile.level], "source": profile.source,
        "description": profile.description, "extends": list(profile.extends), "class": profile.caller,
        "match": list(profile.match), **dict(layer.scalars),
        **{key: [ref.text + (" (optional)" if ref.optional else "") for ref in refs]
           for key, refs in layer.paths.items()},
        **{key: list(words) for key, words in layer.words.items()},
        "set_env": [f"{name}={value}" for name, value in layer.set_env],
        "limits": [f"{name}={value}" for name, value in layer.limits],
        "caches": [f"{cache.name}: {cache.path.text}" for cache in profile.caches],
        "config": [f"{made.env}: {made.filter} of {' '.join(ref.text for ref in made.sources)}"
                   for made in profile.config],
        "state": [f"{item.path.text}: {item.mode}" for item in profile.state],
        "private": [ref.text for ref in profile.private],
        "inner_sandbox": profile.inner_sandbox.mode if profile.inner_sandbox else None,
    }


def _text(value: Any) -> str:
    return "  ".join(value) if isinstance(value, list) else str(value)


def check(parsed: Parsed) -> int:
    """Tell whether a profile and all that it extends are valid."""
    name = _name(parsed.words[0])
    try:
        chain = _store().chain([name])
        fault = None
    except ConfigError as error:
        if error.code == "unknown_profile" and "/" not in name:
            raise  # no profile of that name: there is nothing to tell about
        chain, fault = (), error
    if parsed.flag("json"):
        emit(_CHECK, {"name": name, "valid": fault is None, "error": fault.to_json() if fault else None,
                      "chain": [profile.name for profile in chain]})
    elif fault is None:
        say(f"{paint('valid', 'green')}: {clean(name)} ({' > '.join(clean(p.name) for p in chain)})")
    else:
        say(f"{paint('invalid', 'red')}: {clean(str(fault))}")
    return 0 if fault is None else 1
