"""What of our own no box may change: package, launcher, configuration, import path.

Also where it lies inside a write root, as a ``.venv`` in a project does: mounted read-only
there. Fails closed: a write root that lies inside one of these paths is refused
(``own_install``), because writing there would rewrite the product that confines the box.
"""

from __future__ import annotations

import os
import sys

from stockade.errors import Refused
from stockade.plan.want import Want, is_below

PACKAGE = os.path.realpath(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def protected(want: Want) -> tuple[str, ...]:
    """Return our own paths, canonical, outermost first."""
    found = [PACKAGE, os.path.realpath(want.config_home), want.state_home]
    if sys.prefix != sys.base_prefix:
        found.append(os.path.realpath(sys.prefix))
    found += _import_path()
    return tuple(sorted(dict.fromkeys(found), key=lambda path: (path.count("/"), path)))


def check_write_roots(want: Want) -> None:
    """Refuse a write root that lies inside the installed package, its environment or a site directory.

    Raises: Refused(own_install).
    """
    # The directory that holds the package is on the import path: a sitecustomize.py there is ours.
    firm = [os.path.dirname(PACKAGE), PACKAGE, want.state_home, os.path.realpath(want.config_home)]
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
    for path in (*want.read, *want.sockets):
        if is_below(path, want.state_home):
            raise Refused("own_state", f"grant {path!r}: lies in the state home {want.state_home!r}, "
                          "which no box may read")


def inside_write_roots(want: Want) -> tuple[str, ...]:
    """Return our own paths strictly inside a write root: they are guarded read-only."""
    found: list[str] = []
    for path in protected(want):
        inside = any(path != root and is_below(path, root) for root in want.write)
        if inside and os.path.lexists(path) and not any(is_below(path, seen) for seen in found):
            found.append(path)
    return tuple(found)
