"""The shape of the reviewed lists and built-in profiles, and their compiler.

Owns: which keys each ``rules/<name>.toml`` and ``rules/profiles/<name>.toml`` may and must have.
Fails closed: an unknown key, a missing ``why`` or ``source``, a repeated id, a promise that does
not exist: each is an error that names file and entry, and nothing is compiled.
Read next: ``stockade.rules.load`` (reads the result), ``stockade.rules.profile`` (user profiles).
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from typing import Any

from stockade.errors import ConfigError, nearest
from stockade.frozen import dataclass
from stockade.light import Mapping, MappingProxyType
from stockade.rules.load import COMPILED_SCHEMA, DEFAULTS, TEXTS
from stockade.rules.match import is_pattern
from stockade.rules.promises import PROMISE_IDS
from stockade.rules.tiers import Caller, Tier

_COMMON = ("id", "why", "source")
_TYPES: Mapping[str, type] = MappingProxyType({
    "guard": bool, "nested": bool, "generated": bool, "min_len": int,
    "env": list, "keep": list, "examples": list, "report": list, "abstract": list, "tcp": list,
    "paths": list, "except": list, "waives": list, "tiers": list, "match": list, "bin": list,
})
_KINDS = frozenset({"file", "dir", "any", "glob", "var"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ListShape:
    """Keys of one list. ``key``: the field that serves as id when none is given."""

    key: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    klasses: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()


_SHAPES: Mapping[str, ListShape] = MappingProxyType({
    "credentials": ListShape(
        key="path", required=("path", "class"), optional=("kind", "env", "base", "keep", "examples"),
        klasses=frozenset({"cloud", "registry", "vcs", "container", "browser", "password-manager", "keys",
                           "history", "mail", "chat", "wallet", "agent", "database", "remote", "desktop"})),
    "persistence": ListShape(
        key="path", required=("path", "scope", "class", "guard"),
        optional=("kind", "nested", "report", "examples"),
        klasses=frozenset({"shell", "path", "desktop", "schedule", "login", "git", "vcs", "editor", "agent",
                           "instructions", "python", "node", "language", "build", "credential-helper",
                           "browser", "terminal"}),
        scopes=frozenset({"workspace", "home", "git"})),
    "sockets": ListShape(
        key="id", required=("id", "class", "power"), optional=("paths", "abstract", "tcp", "env", "examples"),
        klasses=frozenset({"container", "build", "system", "session", "desktop", "terminal", "editor",
                           "debugger", "agent", "keys", "database", "network", "wsl"})),
    "env-secrets": ListShape(key="pattern", required=("pattern",), optional=("examples",)),
    "env-injection": ListShape(
        key="pattern", required=("pattern", "class"), optional=("examples",),
        klasses=frozenset({"loader", "runtime", "shell", "git", "build", "config", "plugin", "control", "agent"})),
    "env-allow": ListShape(key="pattern", required=("pattern",)),
    "token-shapes": ListShape(key="name", required=("name", "prefix", "charset", "min_len"),
                              optional=("examples",)),
    "system": ListShape(
        key="path", required=("path", "class"), optional=("kind", "except", "generated", "scope", "bin"),
        klasses=frozenset({"os", "etc", "state", "sys"}), scopes=frozenset({"any", "net-host", "user"})),
    "voiding": ListShape(
        key="id", required=("id", "class", "match", "waives"),
        klasses=frozenset({"socket", "allow", "read", "write", "env", "device"})),
    "toolchains": ListShape(key="path", required=("path",),
                            optional=("env", "base", "bin", "except", "kind", "match")),
    "workspace-secrets": ListShape(key="pattern", required=("pattern",), optional=("except", "examples")),
    "grants": ListShape(
        key="id", required=("id", "class"), optional=("paths", "env", "tiers", "match"),
        klasses=frozenset({"socket", "allow"})),
})

_PROFILE_LISTS = ("extends", "match", "read", "write", "hide", "devices", "sockets", "allow", "env", "accept",
                  "private")
_PROFILE_TABLES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType({
    "caches": (("name", "path"), ("env", "plain")),
    "config": (("filter", "from", "to", "env"), ()),
    "state": (("path", "mode"), ("env", "dir")),
})
_PROFILE_KEYS = ("schema", "description", "class", "tier", "net", "set_env", "limits", "inner_sandbox",
                 *_PROFILE_LISTS, *_PROFILE_TABLES)
_PATH_START = re.compile(r"(~/|/|\./|\$[A-Z_][A-Z0-9_]*(/|$)|~$)")


def compile_rules(rules_dir: str) -> str:
    """Return the canonical text of ``compiled.json`` for the files under ``rules_dir``.

    Raises: ConfigError ``rules_invalid``, naming file and entry.
    """
    found = {name[:-5] for name in os.listdir(rules_dir) if name.endswith(".toml")}
    if found != set(_SHAPES):
        raise _bad(rules_dir, "", f"got the lists {sorted(found)}, expected {sorted(_SHAPES)}")
    lists = {name: _compile_list(os.path.join(rules_dir, f"{name}.toml"), shape)
             for name, shape in sorted(_SHAPES.items())}
    _merge_waives(lists)
    for row in lists["credentials"]:
        if row.get("kind") == "glob":
            row["usual"] = row.get("examples", [])
    profile_dir = os.path.join(rules_dir, "profiles")
    profiles = {name[:-5]: _compile_profile(os.path.join(profile_dir, name))
                for name in sorted(os.listdir(profile_dir)) if name.endswith(".toml")}
    members = [f'{{"schema":"{COMPILED_SCHEMA}",', _member("index", _index(lists, profiles))]
    members += [_member(f"list/{name}", _columns(rows)) for name, rows in lists.items()]
    members += [_member(f"text/{name}", {key: [row.get(key, []) for row in rows] for key in ("id", *TEXTS)})
                for name, rows in lists.items()]
    members += [_member(f"profile/{name}", profile) for name, profile in profiles.items()]
    return "\n".join([*members, '"end":null}', ""])


def _member(name: str, value: object) -> str:
    # One member a line: the loader finds a list without parsing the others.
    return f'"{name}":' + json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")) + ","


def _index(lists: Mapping[str, object], profiles: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    match: dict[str, str] = {}
    for name, profile in sorted(profiles.items()):
        for command in profile.get("match", (name,)):
            match.setdefault(command, name)
    return {"lists": sorted(lists), "profiles": sorted(profiles), "match": match}


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Turn rows into columns: the loader makes its tuples of whole columns, not key by key."""
    names = {key for row in rows for key in row if key not in TEXTS}
    return {name: [row.get(name, _blank(name)) for row in rows] for name in names}


def _blank(name: str) -> Any:
    default = DEFAULTS[name]
    return list(default) if isinstance(default, tuple) else default


def _merge_waives(lists: dict[str, list[dict[str, Any]]]) -> None:
    # One source: what a named grant gives away is said in voiding.toml, so that the same socket
    # granted by name and by path waives the same promises.
    for grant in lists["grants"]:
        grant["waives"] = [promise for rule in lists["voiding"]
                           if rule["klass"] == grant["klass"] and grant["id"] in rule["match"]
                           for promise in rule["waives"]]


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as stream:
            return tomllib.load(stream)
    except (OSError, ValueError, RecursionError) as err:
        raise _bad(path, "", str(err)) from err


def _bad(path: str, entry: str, text: str) -> ConfigError:
    where = f" entry {entry!r}" if entry else ""
    return ConfigError("rules_invalid", f"{os.path.basename(path)!r}{where}: {text}")


def _compile_list(path: str, shape: ListShape) -> list[dict[str, Any]]:
    data = _read(path)
    _known(path, "", data, ("entry", "sets"))
    sets = data.get("sets", {})
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    for raw in data.get("entry", ()):
        row = _compile_entry(path, raw, shape, sets)
        if row["id"] in seen:
            raise _bad(path, row["id"], "appears twice")
        seen.add(row["id"])
        rows.append(row)
    if not rows:
        raise _bad(path, "", "has no entry")
    return rows


def _compile_entry(path: str, raw: dict[str, Any], shape: ListShape,
                   sets: Mapping[str, list[str]]) -> dict[str, Any]:
    name = str(raw.get("id") or raw.get(shape.key) or "?")
    if shape.key == "path" and "id" not in raw and raw.get("scope") in ("git", "home"):
        name = f"{raw['scope']}:{name}"
    _known(path, name, raw, (*_COMMON, *shape.required, *shape.optional))
    for key in ("why", "source", *shape.required):
        if raw.get(key) in (None, "", []):
            raise _bad(path, name, f"{key}: missing or empty")
    row: dict[str, Any] = {"id": name}
    for key, value in raw.items():
        _check_type(path, name, key, value)
        row[_field(key)] = _expand(path, name, value, sets) if key == "waives" else value
    _check_values(path, name, row, shape)
    return row


def _field(key: str) -> str:
    return {"class": "klass", "except": "except_"}.get(key, key)


def _check_type(path: str, name: str, key: str, value: Any) -> None:
    expected = _TYPES.get(key, str)
    good = type(value) is expected
    if good and expected is list:
        inner = int if key == "tcp" else str
        good = all(type(item) is inner and item not in ("", 0) for item in value) and len(set(value)) == len(value)
    if good and expected is str and key not in ("base", "charset"):
        good = value == value.strip() and value != ""
    if not good:
        raise _bad(path, name, f"{key}: got {value!r}, expected a {expected.__name__} without blanks or repeats")


def _expand(path: str, name: str, value: list[str], sets: Mapping[str, list[str]]) -> list[str]:
    result: list[str] = []
    for item in value:
        if item.startswith("@") and item[1:] not in sets:
            raise _bad(path, name, f"waives: no set {item!r}")
        result += [x for x in (sets[item[1:]] if item.startswith("@") else [item]) if x not in result]
    return result


def _check_values(path: str, name: str, row: dict[str, Any], shape: ListShape) -> None:
    for field, allowed in (("klass", shape.klasses), ("scope", shape.scopes), ("kind", _KINDS)):
        if allowed and field in row and row[field] not in allowed:
            raise _bad(path, name, f"{field}: got {row[field]!r}, expected one of {sorted(allowed)}")
    listed = shape.key == "path" and "examples" in shape.optional  # what a start goes through by kind
    if listed and (row.get("kind") == "glob") != is_pattern(row["path"]):
        raise _bad(path, name, f"kind: got {row.get('kind')!r}, expected glob for a pattern, and only for one")
    for promise in row.get("waives", ()):
        if promise not in PROMISE_IDS:
            raise _bad(path, name, f"waives: no promise {promise!r} ({nearest(promise, PROMISE_IDS)})")
    for tier in row.get("tiers", ()):
        if tier not in Tier.__members__:
            raise _bad(path, name, f"tiers: no tier {tier!r}")
    for part in (row.get("path", ""), *row.get("examples", ())):
        if ".." in part.split("/"):
            raise _bad(path, name, "a path must not climb")


def _known(path: str, name: str, data: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in data:
        if key not in keys:
            raise _bad(path, name, f"unknown key {key!r} ({nearest(key, keys)})")


def _compile_profile(path: str) -> dict[str, Any]:
    data = _read(path)
    _known(path, "", data, _PROFILE_KEYS)
    if data.get("schema") != "profile.v1" or not data.get("description"):
        raise _bad(path, "", "expected schema = 'profile.v1' and a description")
    if data.get("class", "operator") not in list(Caller):
        raise _bad(path, "", f"class: got {data['class']!r}")
    if data.get("tier", "off") not in Tier.__members__ or data.get("net", "none") not in ("host", "none"):
        raise _bad(path, "", "tier or net: not a known value")
    for key in ("read", "write", "hide", "devices", "private"):
        for item in data.get(key, ()):
            _check_grant_path(path, key, item)
    for key, (required, optional) in _PROFILE_TABLES.items():
        for table in data.get(key, ()):
            _known(path, key, table, (*required, *optional))
            if any(not table.get(field) for field in required):
                raise _bad(path, key, f"expected the keys {', '.join(required)}")
    return data


def _check_grant_path(path: str, key: str, item: Any) -> None:
    text = item.get("path") if isinstance(item, dict) else item
    if isinstance(item, dict):
        _known(path, key, item, ("path", "optional"))
    if not isinstance(text, str) or not _PATH_START.match(text) or ".." in text.split("/"):
        raise _bad(path, key, f"got {text!r}, expected a path that starts with '~/', '/', './' or '$NAME/'")
