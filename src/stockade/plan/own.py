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
    for entry in sys.path:
        # '' and '.' mean the working directory: that is the workspace, granted on its own terms.
        if entry.startswith("/") and os.path.exists(entry):
            found.append(os.path.realpath(entry))
    return tuple(sorted(dict.fromkeys(found), key=lambda path: (path.count("/"), path)))


def check_write_roots(want: Want) -> None:
    """Refuse a write root that lies inside the installed package or its environment.

    Raises: Refused(own_install).
    """
    # The directory that holds the package is on the import path: a sitecustomize.py there is ours.
    firm = [os.path.dirname(PACKAGE), PACKAGE, want.state_home, os.path.realpath(want.config_home)]
    if sys.prefix != sys.base_prefix:
        firm.append(os.path.realpath(sys.prefix))
    for root in want.write:
        for path in firm:
            if is_below(root, path):
                raise Refused("own_install", f"write root {root!r}: lies inside {path!r}, which no box may change")


def inside_write_roots(want: Want) -> tuple[str, ...]:
    """Return our own paths strictly inside a write root: they are guarded read-only."""
    found: list[str] = []
    for path in protected(want):
        inside = any(path != root and is_below(path, root) for root in want.write)
        if inside and os.path.lexists(path) and not any(is_below(path, seen) for seen in found):
            found.append(path)
    return tuple(found)
