"""Step (3), policy: ceilings that nobody below can lift.

Owns: reading ``/etc/stockade/policy.toml``, ``policy.d/*.toml`` and the user's own policy, and
their intersection. Fails closed: an invalid or unreadable file refuses every request with file,
line and reason, never the defaults; a system file must belong to root.
Read next: ``stockade.rules.settings``, which applies the ceilings to one request.
"""

from __future__ import annotations

import errno
import os

from stockade.errors import ConfigError
from stockade.frozen import dataclass, replace
from stockade.light import Callable, Iterator, Mapping
from stockade.rules import names, units
from stockade.rules.files import Document, check_above, check_directory, read_toml
from stockade.rules.looked import Looked
from stockade.rules.tiers import Tier, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SYSTEM_DIR = "/etc/stockade"
_INVALID = "policy_invalid"
_NET_ORDER = ("none", "host")
ALL = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The effective ceilings. The default is: none.

    ``deny_grants`` and ``deny_accept`` hold names, or ``*`` for all of them; ``deny_grants`` also
    holds absolute paths (everything below them). ``allow_profiles`` None allows every profile,
    an empty one allows none. ``origins`` names the file of each ceiling.
    """

    min_tier: Tier = Tier.off
    max_net: str = "host"
    deny_grants: frozenset[str] = frozenset()
    deny_accept: frozenset[str] = frozenset()
    deny_unconfined: bool = False
    allow_profiles: frozenset[str] | None = None
    require_audit: bool = False
    state_home: str | None = None
    retention_s: int | None = None
    origins: tuple[tuple[str, str], ...] = ()

    def origin(self, key: str) -> str:
        """Return ``policy FILE`` for a ceiling, for messages and ``explain``."""
        return "policy " + ", ".join(path for name, path in self.origins if name == key)

    def denies_accept(self, word: str) -> bool:
        """Tell whether ``accept=word`` has no effect here."""
        return ALL in self.deny_accept or word in self.deny_accept

    def denies_grant(self, value: str) -> bool:
        """Tell whether a named grant, or a path at, below or above a denied path, is forbidden."""
        if ALL in self.deny_grants or value in self.deny_grants:
            return True
        if not value.startswith("/"):
            return False
        # Above too: granting /srv hands over the denied /srv/keys.
        return any(_related(value, denied) for denied in self.deny_grants if denied.startswith("/"))

    def denies_profile(self, name: str) -> bool:
        """Tell whether a profile is outside ``allow_profiles``."""
        return self.allow_profiles is not None and name not in self.allow_profiles


def _related(a: str, b: str) -> bool:
    first, second = a.rstrip("/") + "/", b.rstrip("/") + "/"
    return first.startswith(second) or second.startswith(first)


# (3): clamp to the floor; the ceilings are read once per request, here.
def load_policy(config_home: str, *, system_dir: str = SYSTEM_DIR, root_uid: int = 0,
                looked: Looked | None = None) -> Policy:
    """Read every policy file once and return the intersection.

    Args: config_home: the user's configuration directory, whose ``policy.toml`` is a habit, not a
    boundary; looked: learns what was read. Raises: ConfigError ``policy_invalid``.
    """
    policy = Policy()
    for document in policy_documents(config_home, system_dir=system_dir, root_uid=root_uid, looked=looked):
        policy = intersect(policy, parse_policy(document))
    return policy


def policy_documents(config_home: str, *, system_dir: str = SYSTEM_DIR, root_uid: int = 0,
                     looked: Looked | None = None) -> Iterator[Document]:
    """Yield the policy files that exist, the machine's first. Raises: ConfigError ``policy_invalid``."""
    for path in _system_files(system_dir, root_uid, looked):
        document = read_toml(path, _INVALID, owners=(root_uid,), strict_mode=True, looked=looked)
        if document is not None:
            # A file of root behind a link that others can turn elsewhere is whichever file of root they like.
            check_above(path, _INVALID, (0, root_uid))
            yield document
    if check_directory(config_home, _INVALID, looked=looked):
        own = read_toml(os.path.join(config_home, "policy.toml"), _INVALID, looked=looked)
        if own is not None:
            yield own


def _system_files(system_dir: str, root_uid: int, looked: Looked | None) -> Iterator[str]:
    """Yield the names of the policy files of root. A directory that cannot be listed is not an empty one."""
    if not check_directory(system_dir, _INVALID, owners=(root_uid,), strict_mode=True, looked=looked):
        return
    check_above(system_dir, _INVALID, (0, root_uid))
    yield os.path.join(system_dir, "policy.toml")
    drop_in = os.path.join(system_dir, "policy.d")
    if not check_directory(drop_in, _INVALID, owners=(root_uid,), strict_mode=True, looked=looked):
        return
    check_above(drop_in, _INVALID, (0, root_uid))
    try:
        found = sorted(name for name in os.listdir(drop_in) if name.endswith(".toml"))
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "EIO")
        raise ConfigError(_INVALID, f"directory {drop_in!r}: cannot be read ({code})", path=drop_in) from None
    yield from (os.path.join(drop_in, name) for name in found)


def parse_policy(document: Document) -> Policy:
    """Check one policy file. Raises: ConfigError ``policy_invalid`` with file, line and reason."""
    table = document.data
    document.check_keys(table, _CHECKS)
    found: dict[str, Any] = {}
    for key, value in table.items():
        name, check = _CHECKS[key]
        found[name] = check(document, key, value)
    return Policy(**found, origins=tuple((key, document.path) for key in table))


def intersect(first: Policy, second: Policy) -> Policy:
    """Return the tighter of both in every respect; the order does not matter for the ceilings."""
    profiles = first.allow_profiles
    if second.allow_profiles is not None:
        profiles = second.allow_profiles if profiles is None else profiles & second.allow_profiles
    return replace(
        first,
        min_tier=max(first.min_tier, second.min_tier),
        max_net=min(first.max_net, second.max_net, key=_NET_ORDER.index),
        deny_grants=first.deny_grants | second.deny_grants,
        deny_accept=first.deny_accept | second.deny_accept,
        deny_unconfined=first.deny_unconfined or second.deny_unconfined,
        allow_profiles=profiles,
        require_audit=first.require_audit or second.require_audit,
        state_home=_one_state_home(first, second),
        retention_s=_longest(first.retention_s, second.retention_s),
        origins=first.origins + second.origins,
    )


def _one_state_home(first: Policy, second: Policy) -> str | None:
    if first.state_home and second.state_home and first.state_home != second.state_home:
        # Two places cannot both hold the one log; choosing would break one of the policies.
        raise ConfigError(_INVALID, f"state_home: got {first.state_home!r} and {second.state_home!r} "
                          f"from {first.origin('state_home')} and {second.origin('state_home')}, expected one")
    return first.state_home or second.state_home


def _longest(first: int | None, second: int | None) -> int | None:
    return max((value for value in (first, second) if value is not None), default=None)


Check = Callable[[Document, str, "Any"], "Any"]


def _tier(document: Document, key: str, value: Any) -> Tier:
    tier = document.checked(key, names.check_tier, value)
    if tier == "auto":
        raise document.error(f"key {key!r}: got 'auto', expected a tier", key)
    return parse(tier)


def _net(document: Document, key: str, value: Any) -> Any:
    return document.checked(key, lambda item: units.choice(key, item, _NET_ORDER), value)


def _flag(document: Document, key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise document.error(f"key {key!r}: got a {type(value).__name__}, expected true or false", key)
    return value


def _words(check: Callable[[str], str]) -> Check:
    def checked(document: Document, key: str, value: Any) -> frozenset[str]:
        words = document.strings(key, {key: value})
        return frozenset(word if word == ALL else document.checked(key, check, word) for word in words)
    return checked


def _profiles(document: Document, key: str, value: Any) -> frozenset[str]:
    found = frozenset(document.strings(key, {key: value}))
    if ALL in found:
        # Intersected with a real list it would allow nothing, which is not what its writer meant.
        raise document.error(f"key {key!r}: got '*', expected profile names", key,
                             hint="leave the key out to allow every profile")
    return found


def _grant(word: str) -> str:
    return os.path.realpath(word) if word.startswith("/") else names.check_grant(word)


def _path(document: Document, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.startswith("/"):
        raise document.error(f"key {key!r}: got {value!r}, expected an absolute path", key)
    return os.path.normpath(value)


def _retention(document: Document, key: str, value: Any) -> Any:
    return document.checked(key, lambda item: units.seconds(key, item), value)


_CHECKS: Mapping[str, tuple[str, Check]] = {
    "min_tier": ("min_tier", _tier),
    "max_net": ("max_net", _net),
    "deny_grants": ("deny_grants", _words(_grant)),
    "deny_accept": ("deny_accept", _words(names.check_accept)),
    "deny_unconfined": ("deny_unconfined", _flag),
    "allow_profiles": ("allow_profiles", _profiles),
    "require_audit": ("require_audit", _flag),
    "state_home": ("state_home", _path),
    "retention": ("retention_s", _retention),
}
# Each key of a policy file, and the field of ``Policy`` that holds it.
KEYS: Mapping[str, str] = {key: field for key, (field, _) in _CHECKS.items()}
