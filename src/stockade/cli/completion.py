"""``stockade completion``: scripts for bash, zsh and fish, made from the records of the commands.

Owns: what can be completed. The scripts hold every word themselves: completing starts no Python,
and a tier that is offered is one that the parser takes.
"""

from __future__ import annotations

from stockade.cli.commands import ROOT
from stockade.cli.grammar import HELP, Command, Option, Parsed
from stockade.cli.output import say
from stockade.errors import ConfigError, nearest
from stockade.light import Iterator
from stockade.rules.load import profile_names
from stockade.rules.names import CALLER_NAMES, PROMISE_IDS, TIER_NAMES, grant_names

SHELLS = ("bash", "fish", "zsh")


def completion(parsed: Parsed) -> int:
    """Print the completion script of a shell."""
    shell = parsed.words[0]
    if shell not in SHELLS:
        raise ConfigError("usage", f"shell {shell!r}: not known", hint=nearest(shell, SHELLS))
    say({"bash": bash, "zsh": zsh, "fish": fish}[shell]())
    return 0


def values(kind: str) -> tuple[str, ...]:
    """Return the words that complete a value of this kind."""
    words = {
        "tier": (*TIER_NAMES, "auto"), "class": CALLER_NAMES, "profile": profile_names(), "net": ("none", "host"),
        "socket": sorted(grant_names("sockets")), "allow": sorted(grant_names("allow")), "tmp": ("memory", "disk"),
        "cache": ("keep", "ephemeral", "off"), "persistence": ("report", "quarantine", "fail"),
        "shell": SHELLS, "run": ("last",),
        "accept": (*TIER_NAMES, *sorted(PROMISE_IDS)), "subcommand": [inner.name for inner in ROOT.commands],
    }
    return tuple(words.get(kind, ()))


def leaves(command: Command = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Yield every command with the words that lead to it."""
    yield path, command
    for inner in command.commands:
        yield from leaves(inner, (*path, inner.name))


def _names(option: Option) -> list[str]:
    return [option.name, option.short] if option.short else [option.name]


def bash() -> str:
    """Return the script for bash."""
    cases = "\n".join(f'    "{" ".join(path)}") words="{_words(command)}" taking="{_taking(command)}" '
                      f'runs={int(command.runs)} kind={command.complete or "-"} ;;' for path, command in leaves())
    kinds = "\n".join(f'    {"|".join(sorted(group))}) _stockade_among "{" ".join(words)}"; return ;;'
                      for group, words in _option_values())
    own = "\n".join(f'    {kind}) _stockade_among "$words {" ".join(values(kind))}"; return ;;'
                    for kind in sorted({c.complete for _, c in leaves() if values(c.complete)}))
    return f"""# bash completion of stockade; source it, or put it into bash-completion's directory.
_stockade_describe() {{
  case "$1" in
{cases}
    *) return 1 ;;
  esac
}}
_stockade_among() {{
  COMPREPLY=($(compgen -W "$1" -- "$cur"))
}}
_stockade() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} path="" words taking runs kind i word
  COMPREPLY=()
  _stockade_describe ""
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${{COMP_WORDS[i]}}
    if [[ " $taking " == *" $word "* ]]; then ((i++)); continue; fi
    if [[ $word == -- || ( $runs == 1 && $word != -* ) ]]; then
      [[ $word == -- ]] && ((i++))
      declare -F _command_offset >/dev/null && _command_offset "$i"
      return
    fi
    [[ $word == -* ]] && continue
    if _stockade_describe "${{path:+$path }}$word"; then path="${{path:+$path }}$word"
    else _stockade_describe "$path"; fi
  done
  case "$prev" in
{kinds}
  esac
  if [[ " $taking " == *" $prev "* ]]; then COMPREPLY=($(compgen -f -- "$cur")); return; fi
  if [[ $cur == -* ]]; then _stockade_among "$words"; return; fi
  case "$kind" in
{own}
    file|dir|profile) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    command) COMPREPLY=($(compgen -c -- "$cur")); return ;;
  esac
  _stockade_among "$words"
}}
complete -o filenames -F _stockade stockade"""


def _words(command: Command) -> str:
    words = [inner.name for inner in command.commands]
    return " ".join([*words, *(name for option in (*command.options, HELP) for name in _names(option))])


def _taking(command: Command) -> str:
    return " ".join(name for option in command.options if option.metavar for name in _names(option))


def _option_values() -> list[tuple[set[str], tuple[str, ...]]]:
    """Group options that take one of a few words by those words."""
    found: dict[tuple[str, ...], set[str]] = {}
    for _, command in leaves():
        for option in command.options:
            words = values(option.complete)
            if option.metavar and words:
                found.setdefault(words, set()).add(option.name)
    return [(names, words) for words, names in found.items()]


def zsh() -> str:
    """Return the script for zsh, which runs bash completion by its own emulation."""
    return ("#compdef stockade\n# zsh completion of stockade; put it on $fpath as _stockade, or source it.\n"
            "autoload -U +X bashcompinit && bashcompinit\n" + bash())


def fish() -> str:
    """Return the script for fish."""
    lines = ["# fish completion of stockade", "complete -c stockade -f"]
    for path, command in leaves():
        condition = _seen(path, command)
        lines += [f"complete -c stockade -n '{condition}' -a {inner.name} -d '{_quote(inner.summary)}'"
                  for inner in command.commands]
        lines += [f"complete -c stockade -n '{condition}' {_fish_option(option)}"
                  for option in (*command.options, HELP)]
        if command.complete in ("file", "dir", "command"):
            lines.append(f"complete -c stockade -n '{condition}' -F")
        elif values(command.complete):
            lines.append(f"complete -c stockade -n '{condition}' -a '{' '.join(values(command.complete))}'")
    return "\n".join(lines)


def _seen(path: tuple[str, ...], command: Command) -> str:
    if not path:
        return "__fish_use_subcommand"
    tests = [f"__fish_seen_subcommand_from {word}" for word in path]
    if command.commands:
        tests.append(f"not __fish_seen_subcommand_from {' '.join(inner.name for inner in command.commands)}")
    return "; and ".join(tests)


def _fish_option(option: Option) -> str:
    short = f" -s {option.short.lstrip('-')}" if option.short else ""
    takes = ""
    if option.metavar:
        words = values(option.complete)
        takes = f" -x -a '{' '.join(words)}'" if words else " -r -F" if option.complete in ("file", "dir") else " -x"
    return f"-l {option.name.lstrip('-')}{short}{takes} -d '{_quote(option.help)}'"


def _quote(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
