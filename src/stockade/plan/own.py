"""What of our own no box may change: package, launcher, configuration, import path.

Also where it lies inside a write root, as a ``.venv`` in a project does: mounted read-only
there. Fails closed: a write root that lies inside one of these paths is refused
(``own_install``), because writing there would rewrite the product that confines the box.
"""

from __future__ import annotations

import os
import sys

from stockade.errors import Refused
from stockade.light import Iterable, Mapping, memo
from stockade.plan.want import Want, is_below

PACKAGE = os.path.realpath(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def state_homes(homes: Iterable[str], env: Mapping[str, str], used: str) -> tuple[str, ...]:
    """Return every usual state home of this user, the one in use first.

    A box whose own state lies elsewhere (STOCKADE_HOME, a service with another HOME) must not
    reach the keys and the log of the others.
    """
    return _usual(used, homes, env.get("XDG_STATE_HOME", ""), ".local/state")


def config_homes(homes: Iterable[str], env: Mapping[str, str], used: str) -> tuple[str, ...]:
    """Return every usual directory of our configuration, the one in use first."""
    return _usual(used, homes, env.get("XDG_CONFIG_HOME", ""), ".config")


def _usual(used: str, homes: Iterable[str], moved: str, inside: str) -> tuple[str, ...]:
    bases = [*([moved] if moved.startswith("/") else []), *(f"{home}/{inside}" for home in homes)]
    return tuple(dict.fromkeys(map(os.path.realpath, (used, *(f"{base}/stockade" for base in bases)))))


def places(homes: Iterable[str], env: Mapping[str, str], state_home: str, config_home: str) -> tuple[str, ...]:
    """Return our own paths, canonical, outermost first."""
    found = [PACKAGE, *config_homes(homes, env, config_home), *state_homes(homes, env, state_home)]
    if sys.prefix != sys.base_prefix:
        found.append(os.path.realpath(sys.prefix))
    found += _import_path()
    return tuple(sorted(dict.fromkeys(found), key=lambda path: (path.count("/"), path)))


def protected(want: Want) -> tuple[str, ...]:
    """Return our own paths as this request sees them."""
    return places(want.homes, want.env, want.state_home, want.config_home)


@memo(maxsize=1)
def shown() -> tuple[str, ...]:
    """Return what a request from inside a box needs to be answered: package, launcher, and how Python finds them.

    A strict box shows them read-only; without them our own command ends in a traceback there.
    """
    found = [PACKAGE]
    if sys.prefix != sys.base_prefix:
        found.append(os.path.join(os.path.realpath(sys.prefix), "pyvenv.cfg"))
    for site in _import_path():
        if os.path.basename(site) in _SITE:
            found += [os.path.join(site, name) for name in sorted(os.listdir(site)) if _leads_to_us(site, name)]
    return tuple(found)


def _leads_to_us(site: str, name: str) -> bool:
    """A path file of an editable installation."""
    if not name.endswith(".pth"):
        return False
    try:
        with open(os.path.join(site, name), encoding="utf-8", errors="surrogateescape") as stream:
            return os.path.dirname(PACKAGE) in (line.strip() for line in stream)
    except OSError:
        return False


def check_write_roots(want: Want) -> None:
    """Refuse a write root that lies inside the installed package, its environment or a site directory.

    Raises: Refused(own_install).
    """
    # The directory that holds the package is on the import path: a sitecustomize.py there is ours.
    firm = [os.path.dirname(PACKAGE), PACKAGE, *state_homes(want.homes, want.env, want.state_home),
            *config_homes(want.homes, want.env, want.config_home)]
    if sys.prefix != sys.base_prefix:
        firm.append(os.path.realpath(sys.prefix))
    firm += [path for path in _import_path() if os.path.basename(path) in _SITE or path == _LIBRARY]
    for root in want.write:
        for path in firm:
            if is_below(root, path):
                raise Refused("own_install", f"write root {root!r}: lies inside {path!r}, which no box may change")


_SITE = frozenset({"site-packages", "dist-packages"})
_LIBRARY = os.path.realpath(os.path.dirname(os.__file__))


def _import_path() -> list[str]:
    # '' and '.' mean the working directory: that is the workspace, granted on its own terms.
    return [os.path.realpath(entry) for entry in sys.path if entry.startswith("/") and os.path.exists(entry)]


def imported_from(want: Want) -> str | None:
    """Return a write root that the calling interpreter imports from, but for its workspace.

    A script's own directory is such an entry. What the box writes there, the caller may load.
    """
    terms = {want.host_cwd, want.workspace, os.path.realpath(os.curdir)}
    entries = [entry for entry in _import_path() if entry not in terms]
    return next((root for root in want.write if any(_imports(entry, root) for entry in entries)), None)


def _imports(entry: str, root: str) -> bool:
    """The root is an entry of the import path, or lies in a package that was loaded from one."""
    if not is_below(root, entry):
        return False
    return root == entry or root[len(entry.rstrip("/")) + 1:].split("/")[0] in sys.modules


def check_reads(want: Want) -> None:
    """Refuse a grant of our own state: whoever reads the keys can forge the record.

    Raises: Refused(own_state).
    """
    for state in state_homes(want.homes, want.env, want.state_home):
        for path in (*want.read, *want.sockets):
            if is_below(path, state):
                raise Refused("own_state", f"grant {path!r}: lies in the state home {state!r}, which no box may read")


def inside_write_roots(want: Want) -> tuple[str, ...]:
    """Return our own paths strictly inside a write root: they are guarded read-only."""
    found: list[str] = []
    for path in protected(want):
        inside = any(path != root and is_below(path, root) for root in want.write)
        if inside and os.path.lexists(path) and not any(is_below(path, seen) for seen in found):
            found.append(path)
    return tuple(found)
