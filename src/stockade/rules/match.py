"""Shell patterns without regular expressions.

Owns: ``*`` as the reviewed lists use it. A start looks at a hundred patterns once each, and
compiling them as expressions would cost more than everything else it does. Anything but ``*``
goes to ``fnmatch``, whose meaning this has. A directory that cannot be listed has no matches, as for
``glob``. Imports nothing of the package.
"""

from __future__ import annotations

import os


def is_pattern(text: str) -> bool:
    """Tell whether a name stands for others."""
    return "*" in text or "?" in text or "[" in text


def matches(name: str, pattern: str) -> bool:
    """Tell whether a name fits a pattern, as ``fnmatch.fnmatchcase`` does."""
    if "?" in pattern or "[" in pattern:
        from fnmatch import fnmatchcase

        return fnmatchcase(name, pattern)
    if "*" not in pattern:
        return name == pattern
    first, *middle, last = pattern.split("*")
    if not name.startswith(first) or not name.endswith(last) or len(name) < len(first) + len(last):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def expanded(place: str, *, base: str = "", hidden: bool = True) -> list[str]:
    """Return the paths that exist and fit, sorted. ``base`` is taken as it is, whatever its name has in it.

    Args: hidden: a ``*`` that begins a component stands for names with a dot in front, too.
    """
    found = [base.rstrip("/")]
    for part in place.strip("/").split("/"):
        if is_pattern(part):
            found = [f"{above}/{name}" for above in found for name in _listed(above or "/")
                     if matches(name, part) and (hidden or part[0] == "." or name[0] != ".")]
        else:
            found = [f"{above}/{part}" for above in found]
    return sorted(filter(os.path.lexists, found))


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
