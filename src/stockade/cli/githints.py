"""The hint after a git command that could not write its configuration.

Owns: which git commands write ``.git/config``, and by which exit status it shows that they could
not. Known from the argv, the plan and the status alone: what git prints is never read. Fails
closed: where the three do not agree there is no hint. Why it is said without a terminal too: some
of these commands end with status 0 and have lost a part of their work, and git's own words
("Device or resource busy") lead nobody to the grant. Read next: ``run.py``, ``docs/limitations.md``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from stockade.frozen import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.plan.compile import Compiled

GRANT = "--allow git-config --accept fs.persistence"
_OWN = f".git/config is read-only in a box, because it can make git run programs: run this outside, or add {GRANT}"
_FAR = "git's configuration of the home and the system is read-only in a box: run this outside"
_LOST = f"the upstream was not recorded: {_OWN}"
# Options of git itself that take the next word (git(1)).
_TAKING = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env"})
# git-config(1): 4 cannot be written; 255 cannot be locked.
_CONFIG = frozenset({4, 255})
# What 2.39 answers: 1 section of a remote, 128 a key of it; 2 and 3 are about the remote's name.
_REMOTE = frozenset({1, 128})
_DONE = frozenset({0})
_REMOTE_WORDS = frozenset({"add", "remove", "rm", "rename", "set-url", "set-branches"})
_UPSTREAM = ("-u", "--set-upstream-to", "--set-upstream", "--unset-upstream")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A hint for when the command ends with one of ``statuses``."""

    hint: str
    statuses: frozenset[int]

    def after(self, status: int) -> str:
        """Return the line for this end, or nothing."""
        return f"hint: {self.hint}" if status in self.statuses else ""


def advice(argv: Sequence[str], compiled: Compiled) -> Advice | None:
    """Return what to say should this command fail to write a configuration that is guarded."""
    if os.path.basename(argv[0]) != "git":
        return None
    words = _without_options(argv[1:])
    if not words:
        return None
    name, rest = words[0], words[1:]
    if name == "config" and any(word in ("--global", "--system") for word in rest):
        return Advice(hint=_FAR, statuses=_CONFIG)
    config = _guarded_config(compiled)
    return _local(name, rest, os.path.dirname(config)) if config else None


def _local(name: str, rest: Sequence[str], directory: str) -> Advice | None:
    if name == "config":
        return None if _other_file(rest) else Advice(hint=_OWN, statuses=_CONFIG)
    if name == "remote" and _first(rest) in _REMOTE_WORDS:
        return Advice(hint=_OWN, statuses=_REMOTE)
    if name in ("push", "branch") and any(word.startswith(_UPSTREAM) for word in rest):
        return Advice(hint=_LOST, statuses=_DONE)
    if name in ("checkout", "switch") and _tracks(rest, directory):
        return Advice(hint=_LOST, statuses=_DONE)
    return None


def _without_options(words: Sequence[str]) -> Sequence[str]:
    """Return the words from git's subcommand on."""
    index = 0
    while index < len(words) and words[index].startswith("-"):
        index += 2 if words[index] in _TAKING else 1
    return words[index:]


def _first(words: Sequence[str]) -> str:
    return next((word for word in words if not word.startswith("-")), "")


def _other_file(words: Sequence[str]) -> bool:
    return any(word == "-f" or word.startswith("--file") or word == "--blob" for word in words)


def _tracks(words: Sequence[str], directory: str) -> bool:
    """Tell whether a new branch would follow a branch of a remote."""
    if any(word in ("-t", "--track") or word.startswith("--track=") for word in words):
        return True
    made = [index for index, word in enumerate(words) if word in ("-b", "-B", "-c", "-C", "--create")]
    start = _first(words[made[0] + 2:]) if made else ""
    remote, slash, _ = start.partition("/")
    return bool(slash and remote) and os.path.isdir(os.path.join(directory, "refs", "remotes", remote))


def _guarded_config(compiled: Compiled) -> str:
    """Return the repository's configuration that a guard of the plan holds, or nothing."""
    for row in compiled.plan["guards"]:
        path = str(row["path"])
        if row["read_only"] and path.endswith("/.git/config"):
            name, _, rest = path.removeprefix("@").partition("/")
            return os.path.join(compiled.binds[name], rest) if path.startswith("@") else path
    return ""
