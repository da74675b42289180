"""Path grants: from the spelling in a request or file to a path on this host.

Owns: expansion of ``~``, ``./`` and ``$NAME``, and the two names of a granted path.
Fails closed: a variable may move a grant but never widen it to a home or above; a path at or
below a hidden one is dropped, whoever granted it.
Read next: ``stockade.rules.roots`` (write roots), ``stockade.plan.compile``.
"""

from __future__ import annotations

import os

from stockade.errors import ConfigError
from stockade.frozen import dataclass
from stockade.light import Iterable, Mapping
from stockade.paths import is_below
from stockade.rules.layer import PathRef
from stockade.rules.looked import Looked
from stockade.rules.request import absolute, joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One path. ``path``: as its user knows it, parent canonical; ``real``: fully resolved.

    Where both differ, ``path`` is a link that the box should show. ``named``: an argument named
    it, so its absence is an error of the caller. ``spelled``: how it was written, where that leads through
    symbolic links before its last name.
    """

    path: str
    real: str
    origin: str
    optional: bool = False
    named: bool = False
    spelled: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The directories that grants are measured against; all canonical.

    ``looked`` learns which variables name places.
    """

    environ: Mapping[str, str]
    home: str
    homes: tuple[str, ...]
    workspace: str
    state_home: str
    config_home: str
    looked: Looked | None = None

    def variable(self, name: str) -> str:
        """Return the value of a variable that names a place, empty when it is not set."""
        if self.looked is not None:
            self.looked.variable(self.environ, name)
        return self.environ.get(name, "")

    def too_wide(self, path: str) -> str | None:
        """Return why ``path`` may never be written as a whole, or None."""
        if path == "/":
            return "the root directory"
        for home in self.homes:
            if is_below(home, path):
                return "the home" if home == path else "above the home"
        for name, own in (("state home", self.state_home), ("configuration", self.config_home)):
            # ~/.config may be a write root (our part of it is mounted read-only); our state may not.
            if is_below(path, own):
                return f"inside the {name}"
        return "above the state home" if is_below(self.state_home, path) else None


def named_grant(path: str, spelled: str = "") -> Grant:
    """Return the grant of a path that an argument named; it is absolute already."""
    return Grant(path=path, real=os.path.realpath(path), origin="argument", named=True, spelled=spelled)


def expand(ref: PathRef, places: Places, origin: str) -> Grant | None:
    """Return the grant of a path from a file, or None when its variable is not set."""
    text, optional = ref.text, ref.optional
    if text.startswith("$"):
        name, _, rest = text[1:].partition("/")
        value = places.variable(name)
        if not value.startswith("/"):
            return None
        text = os.path.join(value, rest) if rest else value
    path = absolute(origin, text, places.workspace, places.home)
    if ref.text.startswith("$"):
        # The environment may be written by the very project that is confined (direnv, editors):
        # it may say where a cache is, not that the home is one.
        why = places.too_wide(os.path.realpath(path))
        if why:
            raise ConfigError("path_invalid", f"{origin} path {ref.text!r}: the variable names {why}",
                              hint=f"unset it, or point it to a directory of its own: {ref.text.split('/')[0]}")
    written = joined(origin, text, places.workspace, places.home)
    return Grant(path=path, real=os.path.realpath(path), origin=origin, optional=optional,
                 spelled="" if path == os.path.normpath(written) else written)


def unique(grants: Iterable[Grant]) -> tuple[Grant, ...]:
    """Return the grants without repeats; the first origin stays, and what is named or needed wins."""
    found: dict[str, Grant] = {}
    for grant in grants:
        known = found.get(grant.path)
        if known is None or (known.optional and not grant.optional):
            found[grant.path] = grant
    return tuple(found.values())


def without_hidden(grants: Iterable[Grant], hide: tuple[Grant, ...]) -> tuple[tuple[Grant, ...], tuple[Grant, ...]]:
    """Split into grants that stay and grants at or below a hidden path, by either name of both."""
    hidden = {name for item in hide for name in (item.path, item.real)}
    stay: list[Grant] = []
    gone: list[Grant] = []
    for grant in grants:
        covered = any(is_below(name, secret) for secret in hidden for name in (grant.path, grant.real))
        (gone if covered else stay).append(grant)
    return tuple(stay), tuple(gone)
