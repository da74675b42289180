"""Which built-in profile a command line picks when none is named.

Owns the rule about words that a repository may have chosen. A program called ``npm`` in a checkout, or
a module called ``pip`` beside the caller, must not get the tool's grants for its name, and must not get a
weaker box than the tool either: such a word picks a build tool's profile, and only where that takes more
away than what would be used without it. Read next: ``resolve.py``.
"""

from __future__ import annotations

import os

from stockade.paths import is_below
from stockade.rules.names import AUTO_CALLER
from stockade.rules.profile import BUILT_IN
from stockade.rules.request import Request
from stockade.rules.settings import Settings
from stockade.rules.tiers import Caller


def picked(request: Request, settings: Settings, workspace: str) -> str | None:
    """Return the name of the profile; None where nothing is picked."""
    word = _module(request.argv) or request.argv[0]
    name = settings.profiles.pick(word)
    if name is None:
        return None
    if word == request.argv[0] and _outside(word, request, workspace):
        return name
    return name if _narrows(name, request, settings) else None


def _module(argv: tuple[str, ...]) -> str | None:
    """``python -m NAME``: Python looks for NAME in the working directory first."""
    if len(argv) > 2 and argv[1] == "-m":
        import re

        if re.fullmatch(r"python(\d(\.\d+)?)?", os.path.basename(argv[0])):
            return argv[2]
    return None


def _outside(argv0: str, request: Request, workspace: str) -> bool:
    """Tell whether the program is none of the workspace's, neither by its place nor by what a link there leads to."""
    if "/" in argv0 and not argv0.startswith("/"):
        return False
    found = argv0 if "/" in argv0 else _on_path(argv0, request)
    if found is None:
        return True  # nothing will start, or what the box's own PATH has
    return not any(is_below(place, workspace) for place in (os.path.normpath(found), os.path.realpath(found)))


def _on_path(name: str, request: Request) -> str | None:
    """execvp(3): the first match counts; an empty or relative entry is one of the working directory."""
    for entry in request.environ().get("PATH", os.defpath).split(":"):
        place = os.path.join(request.cwd, entry, name)
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    return None


def _narrows(name: str, request: Request, settings: Settings) -> bool:
    """Only instead of the operator's own box with the host's network, and only for a build tool."""
    if request.caller != AUTO_CALLER or request.tier != "auto" or request.net is not None:
        return False
    if settings.row(Caller.OPERATOR.value)[0].net != "host":
        return False
    profile = settings.profiles.get(name)
    # A user's own profile of that name may hold a token.
    return profile.level == BUILT_IN and profile.caller == Caller.REPOSITORY.value
