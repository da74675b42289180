"""The grammar of the command line: options, commands, and the parser over them.

Owns: where the command to run starts (the first word that is no option, or what follows ``--``),
and typed errors with the nearest known name. Help and completion are made from the same records,
so they cannot differ from what is parsed. Fails closed: an unknown option, a missing value and an
option given twice are errors; nothing is abbreviated or guessed.
Why not argparse: its rule for where a command line ends has changed between Python versions, and
it costs 7 ms of the 45 that ``stockade run`` may take. Read next: ``commands.py``.
"""

from __future__ import annotations

from stockade.errors import ConfigError, closest, nearest
from stockade.frozen import dataclass
from stockade.light import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. ``metavar`` empty: a flag. ``complete``: what its value is, for completion."""

    name: str
    help: str
    metavar: str = ""
    short: str = ""
    repeat: bool = False
    complete: str = ""

    @property
    def key(self) -> str:
        """Name under which the value is found."""
        return self.name.lstrip("-").replace("-", "_")


HELP = Option(name="--help", short="-h", help="show this help")
JSON = Option(name="--json", help="one JSON document with a schema field")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command or subcommand.

    ``words``: its positional words for the usage line; ``at_least``/``at_most``: how many (None:
    any number); ``runs``: the first word starts a command line that is not ours to read.
    ``handler``: ``module:function`` below this package, loaded when it is called.
    ``text``, ``more``: paragraphs of the help, before and after the options.
    ``failure``: exit status when Stockade itself fails. ``complete``: what the words are.
    """

    name: str
    summary: str
    handler: str = ""
    text: str = ""
    more: tuple[str, ...] = ()
    words: str = ""
    at_least: int = 0
    at_most: int | None = 0
    runs: bool = False
    failure: int = 2
    complete: str = ""
    options: tuple[Option, ...] = ()
    examples: tuple[str, ...] = ()
    commands: tuple[Command, ...] = ()

    def find(self, name: str) -> Option | None:
        """Return the option of that spelling."""
        for option in (*self.options, HELP):
            if name in (option.name, option.short):
                return option
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A command with its values. ``values`` holds only what was given."""

    command: Command
    path: str
    values: dict[str, Any]
    words: tuple[str, ...]

    def flag(self, key: str) -> bool:
        """Tell whether a flag was given."""
        return bool(self.values.get(key))

    def text(self, key: str) -> str | None:
        """Return the value of an option, or None."""
        value: str | None = self.values.get(key)
        return value

    def all(self, key: str) -> tuple[str, ...]:
        """Return every value of a repeatable option."""
        return tuple(self.values.get(key, ()))


def usage(message: str, hint: str | None = None) -> ConfigError:
    """Return the error of a command line that cannot be understood."""
    return ConfigError("usage", message, hint=hint)


def parse(command: Command, words: Sequence[str], path: str) -> Parsed:
    """Parse the words after a command's name.

    Raises: ConfigError ``usage``, ``unknown_option``.
    """
    values: dict[str, Any] = {}
    found: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word == "--":
            found.extend(words[index:])
            break
        if not word.startswith("-") or word == "-":
            found.append(word)
            if command.runs:
                found.extend(words[index:])
                break
            continue
        index = _option(command, path, word, words, index, values)
    if not values.get("help"):
        _count(command, path, found, words)
    return Parsed(command=command, path=path, values=values, words=tuple(found))


def _option(command: Command, path: str, word: str, words: Sequence[str], index: int,
            values: dict[str, Any]) -> int:
    name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
    option = command.find(name)
    if option is None:
        close = closest(name, [item.name for item in (*command.options, HELP)])
        raise ConfigError("unknown_option", f"option {name!r}: not an option of {path}",
                          hint=f"did you mean {close!r}?" if close else f"see {path} --help")
    if not option.metavar:
        if equals:
            raise usage(f"option {name}: got a value, expected none", hint=f"see {path} --help")
        values[option.key] = True
        return index
    if not equals:
        # A missing value must not swallow the option behind it.
        if index >= len(words) or words[index].startswith("--"):
            raise usage(f"option {name}: got no value, expected {option.metavar}", hint=f"see {path} --help")
        value = words[index]
        index += 1
    if option.repeat:
        values.setdefault(option.key, []).append(value)
    elif option.key in values:
        # Two tiers on one line: taking either would be guessing.
        raise usage(f"option {name}: given twice", hint=f"see {path} --help")
    else:
        values[option.key] = value
    return index


def _count(command: Command, path: str, found: list[str], words: Sequence[str]) -> None:
    if len(found) < command.at_least:
        option = command.find(words[-2]) if len(words) > 1 else None
        taken = f"{option.name} took {words[-1]!r} as its {option.metavar}; " if option and option.metavar else ""
        raise usage(f"{path}: got no {command.words.split(' ')[0] or 'word'}", hint=f"{taken}see {path} --help")
    if command.at_most is not None and len(found) > command.at_most:
        raise usage(f"{path}: got {found[command.at_most]!r}, expected nothing more", hint=f"see {path} --help")


def choose(command: Command, name: str, later: Sequence[str], path: str) -> Command:
    """Return the subcommand of that name.

    Raises: ConfigError ``unknown_command``, with the nearest name, or saying that it is not in
    this version.
    """
    for inner in command.commands:
        if inner.name == name:
            return inner
    if name in later:
        raise ConfigError("unknown_command", f"command {name!r}: this version does not have it",
                          hint=f"{path} --help lists what it has")
    known = [inner.name for inner in command.commands]
    # `stockade version`: other tools have a word where this one has an option.
    close = closest(name, [*known, *(option.name for option in command.options)])
    raise ConfigError("unknown_command", f"command {name!r}: not a command of {path}",
                      hint=f"did you mean {close!r}?" if close else nearest(name, known))
