"""Where an entry of the lists lies on this machine, its variables taken into account.

Owns: the meaning of ``path``, ``env`` and ``base``. Fails closed: a variable adds a place, it never
removes the usual one; a store in both places is hidden in both.
Read next: ``rules/credentials.toml``, ``stockade.plan.hiding``.
"""

from __future__ import annotations

import os

from stockade.light import Mapping
from stockade.rules.load import Entry

# The base directories of the XDG specification and the part of the home each replaces.
XDG = (("XDG_CONFIG_HOME", ".config"), ("XDG_CACHE_HOME", ".cache"),
       ("XDG_DATA_HOME", ".local/share"), ("XDG_STATE_HOME", ".local/state"))


def locations(entry: Entry, home: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return every absolute place of ``entry``, the usual one first; ``*`` is left in.

    Args: home: absolute; environ: the caller's own environment, before it is filtered.
    """
    usual = entry.path if entry.path.startswith("/") else f"{home}/{entry.path.removeprefix('~/')}"
    places = [usual, *_by_xdg(entry.path, environ)]
    for name in entry.env:
        # KUBECONFIG and its like hold a list; a colon in one plain path only adds places that do not exist.
        for value in environ.get(name, "").split(":"):
            if value.startswith("~/"):
                value = f"{home}/{value[2:]}"
            if value.startswith("/"):
                places.append(os.path.normpath(os.path.join(value, entry.base) if entry.base else value))
    return tuple(dict.fromkeys(p for p in places if _safe(p, home)))


def _by_xdg(path: str, environ: Mapping[str, str]) -> list[str]:
    found = []
    for name, prefix in XDG:
        value = environ.get(name, "")
        if value.startswith("/") and path.startswith(prefix + "/"):
            found.append(os.path.normpath(f"{value}/{path[len(prefix) + 1:]}"))
    return found


def _safe(place: str, home: str) -> bool:
    # GNUPGHOME=/ or DOCKER_CONFIG=$HOME must not hide the whole system or home.
    return place not in ("/", home) and not home.startswith(place.rstrip("/") + "/")
