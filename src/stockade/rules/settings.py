"""Steps (1) and (3): what the caller left open, from files, class row and policy.

Owns: reading policy, configuration and trust once per request.
Fails closed: an invalid file stops the request; an untrusted project file can only narrow.
Read next: ``resolve.py`` (the order in which they count).
"""

from __future__ import annotations

import os

from stockade.errors import ConfigError
from stockade.frozen import dataclass, field, replace
from stockade.light import Mapping
from stockade.paths import StateHome, canonical, config_home, git_top, home_dir, homes, state_home
from stockade.rules import units
from stockade.rules.files import Document, read_toml
from stockade.rules.governance import SYSTEM_DIR, Policy, load_policy
from stockade.rules.grants import Places
from stockade.rules.layer import LAYER_KEYS, Layer, Sourced, parse_layer
from stockade.rules.looked import Looked
from stockade.rules.names import CALLER_NAMES, check_tier
from stockade.rules.profile import CacheRef, ProfileStore
from stockade.rules.request import Request, check_net
from stockade.rules.roots import workspace_of
from stockade.rules.tiers import CALLERS, Caller, ClassRow, parse
from stockade.rules.trust import is_trusted

PROJECT_FILE = ".stockade.toml"
_PROJECT_KEYS = LAYER_KEYS | {"profile", "cache", "tmp", "on_persistence"}
_CONFIG_KEYS = _PROJECT_KEYS | {"class", "cache_limit", "allow_unconfined"}
CACHE_LIMIT_BYTES = 10 << 30  # of all caches in the state home together


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """One configuration file. ``rows``: changed class rows; ``narrow_only``: not trusted.

    ``cache_limit_bytes``: None says nothing, 0 means no limit. ``allow_unconfined``: None says nothing.
    """

    layer: Layer
    profiles: tuple[str, ...] = ()
    rows: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    narrow_only: bool = False
    cache_limit_bytes: int | None = None
    allow_unconfined: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything outside the request that one request depends on, read once.

    ``tried``: caches that no profile has yet, to see what the box would be with them; ``looked``: which
    files that was, those included that were not there.
    """

    places: Places
    policy: Policy
    state_home: StateHome
    profiles: ProfileStore
    files: tuple[ConfigFile, ...] = ()
    tried: tuple[CacheRef, ...] = ()
    looked: Looked = field(default_factory=Looked)

    @property
    def cache_limit_bytes(self) -> int:
        """Return what all caches may take together: the user's word, the system's, the built-in."""
        given = (file.cache_limit_bytes for file in self.files)
        return next((limit for limit in given if limit is not None), CACHE_LIMIT_BYTES)

    @property
    def allow_unconfined(self) -> Sourced | None:
        """Return the operator's word that tiers may be lost where no backend is, with its file; None: no such word."""
        said = next((file for file in self.files if file.allow_unconfined is not None), None)
        return Sourced(value=True, origin=said.layer.origin) if said is not None and said.allow_unconfined else None

    def says(self, caller: str, key: str) -> bool:
        """Tell whether a file changed ``tier`` or ``net`` of a class row."""
        return any(key in file.rows.get(caller, {}) for file in self.files)

    def row(self, caller: str) -> tuple[ClassRow, dict[str, str]]:
        """Return the class row as configuration left it, and the origin of tier and net."""
        row = CALLERS[Caller(caller)]
        origins = {"tier": f"class {caller}", "net": f"class {caller}"}
        for file in reversed(self.files):  # system first, so that the user's file wins
            changed = file.rows.get(caller, {})
            row = ClassRow(tier=parse(changed["tier"]) if "tier" in changed else row.tier,
                           net=changed.get("net", row.net), why=row.why)
            origins.update(dict.fromkeys(changed, f"{file.layer.origin} class {caller}"))
        return row, origins


def load_settings(request: Request, *, system_dir: str = SYSTEM_DIR, root_uid: int = 0) -> Settings:
    """Read policy, configuration and trust for one request.

    Where they lie is this process's to say, never the request's ``env``.
    Args: system_dir, root_uid: where the machine's files are and who owns them (tests have their own).
    Raises: ConfigError ``policy_invalid``, ``config_invalid``, ``state_home_invalid``.
    """
    own_config = config_home(os.environ)
    looked = Looked()
    policy = load_policy(str(own_config), system_dir=system_dir, root_uid=root_uid, looked=looked)
    state = _state_home(policy)
    places = _places(request, state, looked)
    found = (
        load_project(request.cwd, state, looked),
        _config_file(os.path.join(own_config, "config.toml"), looked),
        _config_file(os.path.join(system_dir, "config.toml"), looked, owners=(root_uid,)),
    )
    store = ProfileStore(str(own_config), system_dir=system_dir, root_uid=root_uid, looked=looked)
    return Settings(places=places, policy=policy, state_home=state, profiles=store, looked=looked,
                    files=tuple(file for file in found if file is not None))


def bare_settings(request: Request, state: StateHome) -> Settings:
    """Return what a request stands under with neither policy nor configuration nor profiles of anybody.

    For questions about the host alone: what its owners want must not change the answer.
    """
    return Settings(places=_places(request, state), policy=Policy(), state_home=state, profiles=ProfileStore())


def ruled_settings(request: Request, state: StateHome) -> Settings:
    """Return what a request stands under with the policy alone, and with a state home of the caller's.

    For questions about what a tier gives: what configuration grants on top is no part of the answer, and
    what is asked must leave no record in the place that policy names.
    """
    policy = replace(load_policy(str(config_home(os.environ))), state_home=None)
    return Settings(places=_places(request, state), policy=policy, state_home=state, profiles=ProfileStore())


def _places(request: Request, state: StateHome, looked: Looked | None = None) -> Places:
    environ = request.environ()
    return Places(
        environ=environ, home=str(canonical(home_dir(env=environ))),
        homes=tuple(str(home) for home in homes(environ)), workspace=workspace_of(request.cwd),
        state_home=str(canonical(state.path)), config_home=str(canonical(config_home(os.environ))), looked=looked)


def state_of_policy() -> StateHome:
    """Return where records go by the policy of now; nothing is made. Raises: ConfigError."""
    return _state_home(load_policy(str(config_home(os.environ))))


def _state_home(policy: Policy) -> StateHome:
    if policy.state_home is None:
        return state_home(os.environ, create=False)
    # Falling back to another place would keep the record where the policy does not look.
    state = state_home({**os.environ, "STOCKADE_HOME": policy.state_home}, create=False)
    if state.ephemeral:
        raise ConfigError("state_home_invalid", f"state home {policy.state_home!r} of "
                          f"{policy.origin('state_home')}: cannot be written")
    return state


def project_document(cwd: str, looked: Looked | None = None) -> Document | None:
    """Return the project's ``.stockade.toml`` at the git top level above ``cwd``, or None."""
    top = git_top(cwd) if looked is None else looked.top_above(cwd)
    if top is None:
        return None
    # A root caller in somebody's checkout reads that person's file; trust is by digest anyway.
    owners = {0, os.geteuid(), os.stat(top).st_uid}
    return read_toml(os.path.join(top, PROJECT_FILE), "config_invalid", owners=owners, looked=looked)


def load_project(cwd: str, state: StateHome, looked: Looked | None = None) -> ConfigFile | None:
    """Read the project file; it may only narrow until a person trusted its content."""
    document = project_document(cwd, looked)
    if document is None:
        return None
    document.check_keys(document.data, _PROJECT_KEYS)
    profiles = _profiles(document)
    for name in profiles:
        if "/" in name:
            # The digest that was trusted covers this file, not another one that it points to.
            raise document.error(f"key 'profile': got the path {name!r}, expected a profile name", "profile")
    return ConfigFile(layer=parse_layer(document, f"project {document.path}"), profiles=profiles,
                      narrow_only=not is_trusted(state, document, looked))


def _profiles(document: Document) -> tuple[str, ...]:
    value = document.data.get("profile", [])
    return document.strings("profile", {"profile": [value] if isinstance(value, str) else value})


def _config_file(path: str, looked: Looked, *, owners: tuple[int, ...] | None = None) -> ConfigFile | None:
    document = read_toml(path, "config_invalid", owners=owners, looked=looked)
    if document is None:
        return None
    document.check_keys(document.data, _CONFIG_KEYS)
    return ConfigFile(layer=parse_layer(document, f"file {path}"), profiles=_profiles(document),
                      rows=_rows(document), cache_limit_bytes=_cache_limit(document),
                      allow_unconfined=_flag(document, "allow_unconfined"))


def _flag(document: Document, key: str) -> bool | None:
    value = document.data.get(key)
    if value is not None and not isinstance(value, bool):
        raise document.error(f"key {key!r}: got a {type(value).__name__}, expected true or false", key)
    return value


def _cache_limit(document: Document) -> int | None:
    value = document.data.get("cache_limit")
    if value in (None, "none"):
        return None if value is None else 0
    return int(document.checked("cache_limit", lambda item: units.size("cache_limit", item), value))


def _rows(document: Document) -> dict[str, dict[str, str]]:
    table = document.data.get("class", {})
    document.check_keys(table, CALLER_NAMES, "class")
    rows: dict[str, dict[str, str]] = {}
    for name, row in table.items():
        document.check_keys(row, ("tier", "net"), f"class.{name}")
        checks = {"tier": check_tier, "net": check_net}
        rows[name] = {key: document.checked(key, checks[key], value) for key, value in row.items()}
        if rows[name].get("tier") == "auto":
            raise document.error(f"key 'class.{name}.tier': got 'auto', expected a tier", name)
    return rows
