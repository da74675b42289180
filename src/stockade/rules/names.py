"""Names that a caller, a profile or a policy may use: tiers, classes, promises, grants.

Owns: the spelling checks. Fails closed: an unknown name is an error with the nearest known one;
a misspelt promise in ``accept`` or a misspelt grant in ``deny_grants`` must never mean "nothing".
Read next: ``stockade.rules.tiers``, ``stockade.rules.promises``.
"""

from __future__ import annotations

from stockade.errors import ConfigError, nearest
from stockade.rules.load import load_list
from stockade.rules.promises import PROMISES
from stockade.rules.tiers import CALLERS, OLD_TIER_NAMES, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TIER_NAMES = tuple(tier.name for tier in Tier)
PROMISE_IDS = frozenset(promise.id for promise in PROMISES)
CALLER_NAMES = tuple(str(getattr(caller, "value", caller)) for caller in CALLERS)
AUTO_CALLER = "auto"  # operator, unless the profile carries a class (the command line's default)


def check_tier(value: Any) -> str:
    """Return the canonical tier name, ``auto`` when left open; ``cc`` is an old name of guarded."""
    if value is None:
        return "auto"
    if isinstance(value, Tier):
        return value.name
    text = _text("tier", value).lower()
    text = OLD_TIER_NAMES.get(text, text)
    if text != "auto" and text not in TIER_NAMES:
        raise ConfigError("unknown_tier", f"tier {value!r}: not known", hint=nearest(text, (*TIER_NAMES, "auto")))
    return text


def check_caller(value: Any) -> str:
    """Return the caller class; ``generated``, the most hostile one, when left open.

    Raises: ConfigError ``unknown_caller``.
    """
    if value is None:
        return "generated"
    text = str(getattr(value, "value", value))
    if text != AUTO_CALLER and text not in CALLER_NAMES:
        raise ConfigError("unknown_caller", f"caller class {text!r}: not known", hint=nearest(text, CALLER_NAMES))
    return text  # first_party is only a claim here: ``stockade.rules.firstparty`` proves it


def check_accept(value: Any) -> str:
    """Return the tier name or promise id of one ``accept`` word."""
    text = _text("accept", value)
    text = OLD_TIER_NAMES.get(text, text)
    if text not in TIER_NAMES and text not in PROMISE_IDS:
        raise ConfigError("unknown_promise", f"accept {text!r}: no tier or promise of that name",
                          hint=nearest(text, (*TIER_NAMES, *PROMISE_IDS)))
    return text


def grant_names(kind: str | None = None) -> frozenset[str]:
    """Return the named grants: kind ``sockets``, ``allow``, or all."""
    wanted = {"sockets": "socket", "allow": "allow"}.get(kind or "")
    return frozenset(entry.id for entry in load_list("grants") if wanted is None or entry.klass == wanted)


def check_grant(value: Any, kind: str | None = None) -> str:
    """Return the name of a grant of ``rules/grants.toml``, or raise ``unknown_grant``."""
    text = _text(kind or "grant", value)
    known = grant_names(kind)
    if text not in known:
        raise ConfigError("unknown_grant", f"{kind or 'grant'} {text!r}: no grant of that name",
                          hint=nearest(text, known))
    return text


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError("value_invalid", f"{name}: got a {type(value).__name__}, expected a name")
    return value


def refuse_pattern(pattern: str) -> None:
    """Raise for a variable pattern that would match nearly everything."""
    raise ConfigError("value_invalid", f"env pattern {pattern!r}: got fewer than 3 characters besides '*'",
                      hint="name the variables")
