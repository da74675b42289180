"""Profiles: named TOML files of defaults and grants (schema ``profile.v1``).

Owns: the search order, ``extends``, the merge, the pick by argv[0].
Fails closed: an unknown profile, key or a cycle is an error; ``hide`` is never dropped by a merge.
Read next: ``stockade.rules.settings``, which applies the merged profile to a request.
"""

from __future__ import annotations

import os

from stockade.errors import ConfigError, Refused, nearest
from stockade.frozen import dataclass
from stockade.light import Mapping, Sequence
from stockade.rules.files import Document, check_directory, read_toml
from stockade.rules.governance import SYSTEM_DIR
from stockade.rules.layer import LAYER_KEYS, Layer, PathRef, parse_layer, path_ref
from stockade.rules.load import profile_data, profile_for, profile_names
from stockade.rules.looked import Looked
from stockade.rules.names import check_caller
from stockade.rules.units import choice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OWN_KEYS = frozenset({"schema", "description", "extends", "class", "match", "caches", "config", "state", "private",
                       "inner_sandbox"})
_KEYS = LAYER_KEYS | _OWN_KEYS


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRef:
    """A cache of a tool; ``env`` is the variable that moves it on the host, and names it in the box.

    ``plain``: a directory of the box alone, without the user's own below, for tools whose directory
    there also holds secrets, or which make hard links and rename directories in it.
    """

    name: str
    path: PathRef
    env: str | None = None
    plain: bool = False
    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRef:
    """A configuration file made for the box from the safe keys of the host's files."""

    filter: str
    sources: tuple[PathRef, ...]
    to: str
    env: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRef:
    """A file that its tool saves by rename.

    Mode ``env``: the variable moves it into ``dir``. Mode ``copyback``: it is copied into the private
    home, and back when the box ends.
    """

    path: PathRef
    mode: str
    env: str | None = None
    dir: PathRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerSandbox:
    """How the tool's own sandbox is switched inside a box.

    ``own``: words by which a caller chooses it; one of them, or the first of ``args``, and nothing is added.
    """

    mode: str
    args: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    set_env: tuple[tuple[str, str], ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One profile file as it is written, before ``extends`` is followed.

    ``private``: directories inside the state it grants from which live sessions run code.
    """

    name: str
    layer: Layer
    source: str
    level: int
    description: str = ""
    extends: tuple[str, ...] = ()
    caller: str | None = None
    match: tuple[str, ...] = ()
    caches: tuple[CacheRef, ...] = ()
    config: tuple[ConfigRef, ...] = ()
    state: tuple[StateRef, ...] = ()
    private: tuple[PathRef, ...] = ()
    inner_sandbox: InnerSandbox | None = None

    def is_for(self, command: str) -> bool:
        """Tell whether a command of that name is the tool of this profile."""
        return command in (self.match or (self.name,))


BUILT_IN, SYSTEM, USER, BY_PATH = range(4)
MAX_EXTENDS = 32
_INVALID = "profile_invalid"


class ProfileStore:
    """Where profiles are found: built in, then system, then user; a later place wins.

    Without a configuration home: the built-in ones alone. ``looked`` learns what was read.
    """

    def __init__(self, config_home: str | None = None, *, system_dir: str = SYSTEM_DIR, root_uid: int = 0,
                 looked: Looked | None = None) -> None:
        self._looked, self._root_uid = looked, root_uid
        self._found: dict[tuple[str, int], Profile] = {}
        self._dirs = () if config_home is None else (
            (SYSTEM, os.path.join(system_dir, "profiles")), (USER, os.path.join(config_home, "profiles")))

    def names(self) -> tuple[str, ...]:
        """Return every profile name, sorted."""
        found = set(profile_names())
        for _, directory in self._dirs:
            try:
                found.update(name[:-5] for name in os.listdir(directory) if name.endswith(".toml"))
            except OSError:
                continue  # what is there and cannot be read is an error of the profile that is asked for
        return tuple(sorted(found))

    def get(self, name: str, *, below: int = BY_PATH) -> Profile:
        """Return one profile, unmerged; a store reads each once. ``below``: only places of a lower level count.

        Raises: ConfigError ``unknown_profile``, ``profile_invalid``.
        """
        found = self._found.get((name, below))
        if found is None:
            found = self._found[name, below] = self._read(name, below)
        return found

    def _read(self, name: str, below: int) -> Profile:
        if "\0" in name or ("/" not in name and name.startswith(".")):
            raise ConfigError("unknown_profile", f"profile {name!r}: not a name")
        if "/" in name:
            document = read_toml(name, _INVALID, looked=self._looked)
            if document is None:
                raise ConfigError("unknown_profile", f"profile {name!r}: no such file (ENOENT)")
            return parse_profile(document, os.path.basename(name).removesuffix(".toml"), BY_PATH)
        for level, directory in reversed(self._dirs):
            # A directory that is none must not leave the built-in profile in the place of the user's own.
            if level < below and check_directory(directory, _INVALID, looked=self._looked):
                owners = (self._root_uid,) if level == SYSTEM else None
                document = read_toml(os.path.join(directory, f"{name}.toml"), _INVALID, owners=owners,
                                     looked=self._looked)
                if document is not None:
                    return parse_profile(document, name, level)
        if below > BUILT_IN and name in profile_names():
            return _built_in(name)
        raise ConfigError("unknown_profile", f"profile {name!r}: no profile of that name",
                          hint=nearest(name, self.names()))

    def chain(self, names: Sequence[str]) -> tuple[Profile, ...]:
        """Return the profiles to merge, in order: what is extended comes before what extends it."""
        ordered: dict[str, Profile] = {}
        for name in names:
            self._visit(name, BY_PATH, (), ordered)
        return tuple(ordered.values())

    def _visit(self, name: str, below: int, path: tuple[str, ...], ordered: dict[str, Profile]) -> None:
        profile = self.get(name, below=below)
        if len(path) >= MAX_EXTENDS:
            raise ConfigError(_INVALID, f"profile {name!r}: got more than {MAX_EXTENDS} that extend each other")
        if profile.source in path:
            raise ConfigError(_INVALID, f"profile {name!r}: extends itself through "
                              + " > ".join((*path, profile.source)), hint="remove one extends")
        if profile.source in ordered:
            return
        for parent in profile.extends:
            # A user's npm.toml may extend "npm": that means the one it replaces.
            limit = profile.level if parent == profile.name else BY_PATH
            self._visit(parent, limit, (*path, profile.source), ordered)
        ordered[profile.source] = profile

    def pick(self, argv0: str) -> str | None:
        """Return the built-in profile that a bare command name stands for, or None."""
        return profile_for(os.path.basename(argv0))


def _built_in(name: str) -> Profile:
    document = Document(path=f"built-in profile {name}", code="profile_invalid", data=profile_data(name))
    return parse_profile(document, name, BUILT_IN)


def _carried(value: str) -> str:
    """Return the class that a profile may carry: first_party is proven for one argv, never for a tool."""
    caller = check_caller(value)
    if caller == "first_party":
        raise Refused("caller_unproven", "class 'first_party': got a claim, expected a registered distribution")
    return caller


def parse_profile(document: Document, name: str, level: int) -> Profile:
    """Check one profile. Raises: ConfigError ``profile_invalid`` with file, line and nearest key."""
    document.check_keys(document.data, _KEYS)
    if document.data.get("schema") != "profile.v1":
        raise document.error(f"key 'schema': got {document.data.get('schema')!r}, expected 'profile.v1'", "schema")
    caller = document.string("class", document.data)
    layer = parse_layer(document, f"profile {name}", literal=level == BUILT_IN)
    return Profile(
        name=name, layer=layer, source=document.path, level=level,
        description=document.string("description", document.data) or "",
        extends=document.strings("extends", document.data), match=document.strings("match", document.data),
        caller=None if caller is None else document.checked("class", _carried, caller),
        caches=tuple(_cache(document, table, layer.origin) for table in _tables(document, "caches")),
        config=tuple(_config(document, table) for table in _tables(document, "config")),
        state=tuple(_state(document, table) for table in _tables(document, "state")),
        private=tuple(path_ref(document, "private", item) for item in document.strings("private", document.data)),
        inner_sandbox=_inner(document),
    )


def _tables(document: Document, key: str) -> list[Mapping[str, Any]]:
    value = document.data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise document.error(f"key {key!r}: expected a list of tables", key)
    return value


def _needed(document: Document, table: Mapping[str, Any], where: str, key: str) -> str:
    value = document.string(key, table)
    if not value:
        raise document.error(f"key '{where}.{key}': missing", where)
    return value


def _file_name(document: Document, table: Mapping[str, Any], where: str, key: str) -> str:
    value = _needed(document, table, where, key)
    if not value.replace("-", "").replace("_", "").replace(".", "").isalnum() or value.startswith("."):
        # It becomes the name of a directory or file; a slash would place it somewhere else.
        raise document.error(f"key '{where}.{key}': got {value!r}, expected a plain name", where)
    return value


def _cache(document: Document, table: Mapping[str, Any], origin: str) -> CacheRef:
    document.check_keys(table, ("name", "path", "env", "plain"), "caches")
    plain = table.get("plain", False)
    if not isinstance(plain, bool):
        raise document.error("key 'caches.plain': expected true or false", "caches")
    return CacheRef(name=_file_name(document, table, "caches", "name"), origin=origin, plain=plain,
                    path=path_ref(document, "caches", table.get("path")), env=document.string("env", table))


def _config(document: Document, table: Mapping[str, Any]) -> ConfigRef:
    document.check_keys(table, ("filter", "from", "to", "env"), "config")
    sources = tuple(path_ref(document, "config", item) for item in document.strings("from", table))
    return ConfigRef(filter=_needed(document, table, "config", "filter"), sources=sources,
                     to=_file_name(document, table, "config", "to"), env=_needed(document, table, "config", "env"))


def _state(document: Document, table: Mapping[str, Any]) -> StateRef:
    document.check_keys(table, ("path", "mode", "env", "dir"), "state")
    mode = document.checked("state", lambda value: choice("mode", value, ("env", "copyback")),
                            _needed(document, table, "state", "mode"))
    if mode == "copyback":
        document.check_keys(table, ("path", "mode"), "state")
        return StateRef(path=path_ref(document, "state", table.get("path")), mode=mode)
    directory = path_ref(document, "state", table["dir"]) if "dir" in table else None
    if directory is None or not table.get("env"):
        raise document.error("key 'state': mode env needs the keys env and dir", "state")
    return StateRef(path=path_ref(document, "state", table.get("path")), mode=mode,
                    env=document.string("env", table), dir=directory)


def _inner(document: Document) -> InnerSandbox | None:
    table = document.data.get("inner_sandbox")
    if table is None:
        return None
    document.check_keys(table, ("mode", "args", "own", "set_env", "note"), "inner_sandbox")
    mode = document.checked("inner_sandbox", lambda value: choice("mode", value, ("off", "weak", "needs_userns")),
                            _needed(document, table, "inner_sandbox", "mode"))
    values = table.get("set_env", {})
    if not isinstance(values, Mapping) or not all(isinstance(item, str) for item in values.values()):
        raise document.error("key 'inner_sandbox.set_env': expected a table of strings", "inner_sandbox")
    return InnerSandbox(mode=mode, args=document.strings("args", table), own=document.strings("own", table),
                        set_env=tuple(sorted(values.items())), note=document.string("note", table) or "")
