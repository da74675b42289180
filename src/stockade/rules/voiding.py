"""Which promises a grant gives away.

Owns: matching a grant against ``rules/voiding.toml``. Fails closed: a path counts under every
spelling the rules know (name of the socket, its path, a directory above a start file).
Read next: ``rules/voiding.toml``, ``stockade.plan.compile`` (marks the promises ``waived``).
"""

from __future__ import annotations

import os

from stockade.light import Iterable, Iterator, Mapping
from stockade.rules.load import Entry, load_list
from stockade.rules.match import matches

KINDS = frozenset({"socket", "allow", "read", "write", "env", "device"})


def waived_by(kind: str, value: str, home: str, environ: Mapping[str, str] | None = None) -> tuple[Entry, ...]:
    """Return the voiding rules that a grant falls under; empty when it gives nothing away.

    Args: kind: one of ``KINDS``; value: name of a grant, a variable, or an absolute path;
    home: absolute; environ: resolves ``$XDG_RUNTIME_DIR`` and the like in socket paths.
    """
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}: expected one of {sorted(KINDS)}")
    names = socket_names(value, home, environ or {}) if kind == "socket" else (value,)
    return tuple(rule for rule in load_list("voiding") if rule.klass == kind
                 and any(_hit(kind, pattern, name, home) for pattern in rule.match for name in names))


def socket_names(value: str, home: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the control sockets that ``value`` (a name or an absolute path) is.

    A path grant of a known socket must cost what the named grant costs.
    """
    if not value.startswith("/"):
        return (value,)
    plain = os.path.normpath(value)
    spellings = {plain, plain.replace("/var/run/", "/run/", 1) if plain.startswith("/var/run/") else plain}
    return tuple(e.id for e in load_list("sockets")
                 if any(path_matches(p, s, home, environ) for p in e.paths for s in spellings)
                 or not spellings.isdisjoint(_called(e.env, environ)))


def _called(names: Iterable[str], environ: Mapping[str, str]) -> Iterator[str]:
    """Yield where variables say that a socket is: those of the request, and of the caller, which it may leave out."""
    for value in {source.get(name, "") for name in names for source in (environ, os.environ)}:
        place = address(value)
        if place.startswith("/"):
            yield from (os.path.normpath(place), os.path.realpath(place))


def address(value: str) -> str:
    """Return the path in a variable that names a socket: ``unix:///p``, ``unix:path=/p,guid=…`` or the path itself."""
    return value.removeprefix("unix://").removeprefix("unix:path=").removeprefix("unix:").split(",")[0]


def path_matches(pattern: str, path: str, home: str, environ: Mapping[str, str]) -> bool:
    """True when an absolute ``path`` is named by a pattern of the lists.

    ``*`` stays inside one component; ``$NAME`` not set falls back to its usual place.
    """
    expanded = expand(pattern, home, environ)
    return expanded is not None and _components_match(expanded, path)


def expand(pattern: str, home: str, environ: Mapping[str, str]) -> str | None:
    """Return ``pattern`` with ``~`` and a leading ``$NAME`` resolved, None when NAME has no place."""
    if pattern == "~" or pattern.startswith("~/"):
        return home + pattern[1:]
    if not pattern.startswith("$"):
        return pattern
    name, _, rest = pattern[1:].partition("/")
    usual = {"XDG_RUNTIME_DIR": "/run/user/*", "TMPDIR": "/tmp", "XDG_STATE_HOME": f"{home}/.local/state",
             "XDG_DATA_HOME": f"{home}/.local/share", "XDG_CONFIG_HOME": f"{home}/.config",
             "XDG_CACHE_HOME": f"{home}/.cache"}
    base = environ.get(name) or usual.get(name)
    if base is None or not base.startswith("/"):
        return None
    return f"{base.rstrip('/')}/{rest}" if rest else base


def _components_match(pattern: str, path: str) -> bool:
    """``*`` stays inside one component: else /tmp/*/d.sock would match half of the host."""
    deep = pattern.endswith("/**")
    wanted, found = (pattern[:-3] if deep else pattern).split("/"), path.split("/")
    fits = len(found) >= len(wanted) if deep else len(found) == len(wanted)
    return fits and all(matches(part, rule) for part, rule in zip(found, wanted, strict=False))


def _hit(kind: str, pattern: str, value: str, home: str) -> bool:
    if kind in ("socket", "allow"):
        return pattern == value
    if kind == "env":
        return matches(value.upper(), pattern.upper())
    if path_matches(pattern, value, home, {}):
        return True
    return kind in ("write", "read") and _contains(value, pattern, home)


def _contains(directory: str, pattern: str, home: str) -> bool:
    # A grant of a directory above a listed place hands that place over too.
    target = (expand(pattern, home, {}) or "").removesuffix("/**")
    return target != directory and target.startswith(directory.rstrip("/") + "/")
