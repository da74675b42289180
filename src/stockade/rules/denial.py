"""What policy denies, by every name of it.

Owns: the match of a grant against ``deny_grants``. Fails closed: a socket granted by its path is the socket
that the lists name, a path counts by what it leads to as well, and a path grant of a listed socket gives it
as the named grant does. Read next: ``governance.py``.
"""

from __future__ import annotations

import os

from stockade.light import Mapping
from stockade.rules.governance import Policy
from stockade.rules.grants import Grant, Places
from stockade.rules.load import load_list
from stockade.rules.voiding import path_matches, socket_names


def denies_word(policy: Policy, word: str, places: Places) -> bool:
    """Tell whether a named grant, or a socket given by its path, is forbidden."""
    if "/" in word:
        return denies_place(policy, word, places.home, places.environ)
    return policy.denies_grant(word)


def denies_path(policy: Policy, grant: Grant, places: Places) -> bool:
    """Tell whether a path grant is forbidden, by its own name, by what it leads to, or as the socket it is."""
    return denies_place(policy, grant.path, places.home, places.environ, real=grant.real)


def denies_place(policy: Policy, path: str, home: str, environ: Mapping[str, str], *, real: str | None = None) -> bool:
    """Tell whether what lies at a path is forbidden under any of its names."""
    if not policy.deny_grants:
        return False
    for place in dict.fromkeys((path, os.path.realpath(path) if real is None else real)):
        if any(map(policy.denies_grant, (place, *socket_names(place, home, environ)))):
            return True
        # The lists of sockets and of grants know some of them under different places.
        named = (entry for entry in load_list("grants") if entry.klass == "socket" and policy.denies_grant(entry.id))
        if any(path_matches(pattern, place, home, environ) for entry in named for pattern in entry.paths):
            return True
    return False
