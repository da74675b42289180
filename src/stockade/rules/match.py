"""Shell patterns without regular expressions.

Owns: ``*`` as the reviewed lists use it. A start looks at a hundred patterns once each, and
compiling them as expressions would cost more than everything else it does. Anything but ``*``
goes to ``fnmatch``, whose meaning this has. Imports nothing of the package.
"""

from __future__ import annotations

import fnmatch


def is_pattern(text: str) -> bool:
    """Tell whether a name stands for others."""
    return "*" in text or "?" in text or "[" in text


def matches(name: str, pattern: str) -> bool:
    """Tell whether a name fits a pattern, as ``fnmatch.fnmatchcase`` does."""
    if "?" in pattern or "[" in pattern:
        return fnmatch.fnmatchcase(name, pattern)
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
