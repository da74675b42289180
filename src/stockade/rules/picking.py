"""Which built-in profile a command line picks when none is named.

Owns the rule about words that a repository may have chosen. A program called ``npm`` in a checkout, or
a module called ``pip`` beside the caller, must not get the tool's grants for its name, and must not get a
weaker box than the tool either: such a word picks a build tool's profile, and only where that takes more
away than what would be used without it. Read next: ``resolve.py``.
"""

from __future__ import annotations

import os
import re

from stockade.paths import is_below
from stockade.rules.names import AUTO_CALLER
from stockade.rules.profile import BUILT_IN
from stockade.rules.request import Request
from stockade.rules.settings import Settings
from stockade.rules.tiers import Caller

_PYTHON = re.compile(r"python(\d(\.\d+)?)?")


def picked(request: Request, settings: Settings, workspace: str) -> str | None:
    """Return the name of the profile; None where nothing is picked."""
    argv0 = request.argv[0]
    module = _module(request.argv)
    if module is None and ("/" not in argv0 or _outside(argv0, request.cwd, workspace)):
        return settings.profiles.pick(argv0)
    return _narrowing(module or argv0, request, settings)


def _module(argv: tuple[str, ...]) -> str | None:
    """``python -m NAME``: Python looks for NAME in the working directory first."""
    if len(argv) > 2 and argv[1] == "-m" and _PYTHON.fullmatch(os.path.basename(argv[0])):
        return argv[2]
    return None


def _outside(argv0: str, cwd: str, workspace: str) -> bool:
    return argv0.startswith("/") and not is_below(os.path.realpath(os.path.join(cwd, argv0)), workspace)


def _narrowing(word: str, request: Request, settings: Settings) -> str | None:
    """Only instead of the operator's own box with the host's network, and only for a build tool."""
    if request.caller != AUTO_CALLER or request.tier != "auto" or request.net is not None:
        return None
    if settings.row(Caller.OPERATOR.value)[0].net != "host":
        return None
    name = settings.profiles.pick(word)
    profile = settings.profiles.get(name) if name else None
    # A user's own profile of that name may hold a token.
    narrows = profile and profile.level == BUILT_IN and profile.caller == Caller.REPOSITORY.value
    return name if narrows else None
