"""Turns each entry of the reviewed lists into something concrete to attack.

Owns the choice of a name for a pattern. Fails closed: an entry from which nothing concrete can
be made is an error, so that no entry of a list goes untested.
"""

from __future__ import annotations

from collections.abc import Iterator

from stockade.rules.load import Entry, load_list

SOCKET_VARIABLE = "SSH_AUTH_SOCK"


def variable_names(list_name: str) -> list[str]:
    """One variable for each pattern of a list of environment names."""
    names: list[str] = []
    for entry in load_list(list_name):
        concrete_names = [*entry.examples, *([concrete(entry.pattern)] if entry.pattern else []), *map(concrete, entry.env)]
        if not concrete_names:
            raise ValueError(f"{list_name}: entry without a name: {entry}")
        names += concrete_names
    return sorted(set(names))


def concrete(pattern: str) -> str:
    """A name that the pattern matches."""
    return pattern.replace("*", "SAMPLE").replace("?", "x")


def token_samples() -> dict[str, str]:
    """One value for each token shape, hidden in a longer text."""
    found = {}
    for entry in load_list("token-shapes"):
        letter = next(c for c in "aA0b1" if _in_charset(c, entry.charset))
        found[entry.id] = f"prefix={entry.prefix}{letter * (entry.min_len + 2)}"
    return found


def _in_charset(letter: str, charset: str) -> bool:
    position = 0
    while position < len(charset):
        if position + 2 < len(charset) and charset[position + 1] == "-":
            if charset[position] <= letter <= charset[position + 2]:
                return True
            position += 3
        else:
            if charset[position] == letter:
                return True
            position += 1
    return False


def home_examples(list_name: str) -> list[str]:
    """Concrete paths below the home, one or more for each entry of a list."""
    found: list[str] = []
    for entry in load_list(list_name):
        found += entry_paths(entry)
    return sorted(set(found))


def entry_paths(entry: Entry) -> list[str]:
    """Concrete relative paths of one entry: its examples, else its path with stars filled in."""
    if entry.examples:
        return list(entry.examples)
    named = [*([entry.path] if entry.path else []), *([entry.pattern] if entry.pattern else []), *entry.paths]
    if not named:
        raise ValueError(f"entry without a path or example: {entry}")
    made = [path.replace("**", "sample/deep").replace("*", "sample") for path in named]
    return [f"{path}/sample" if entry.kind == "dir" else path for path in made]


def without_parents(paths: list[str]) -> Iterator[str]:
    """Leave out a path that another one needs as its directory."""
    for path in sorted(set(paths)):
        if not any(other.startswith(path + "/") for other in paths):
            yield path
