"""The hint after a git command that could not write its configuration.

Owns: which git commands write ``.git/config``, and by which exit status it shows that they could
not. Known from the argv, the plan, the status and the branch that is there since: what git prints is
never read. Fails closed: where they do not agree there is no hint. Why it is said without a terminal
too: some of these commands end with status 0 and have lost a part of their work, and git's own words
("Device or resource busy") lead nobody to the grant. Read next: ``run.py``, ``docs/limitations.md``.
"""

from __future__ import annotations

import os
import stat

from stockade.frozen import dataclass
from stockade.light import Sequence
from stockade.plan.files import small_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.plan.compile import Compiled

GRANT = "--allow git-config --accept fs.persistence"
_OWN = f".git/config is read-only in a box, because it can make git run programs: run this outside, or add {GRANT}"
_FAR = "git's configuration of the home and the system is read-only in a box: run this outside"
_LOST = f"the upstream was not recorded: {_OWN}"
_MOVED = f"the branch is there, its section of the configuration was not written: {_OWN}"
_STAYS = f"the branch is gone, its section of the configuration stays: {_OWN}"
_INACTIVE = f"the submodule is there, its address was not recorded: {_OWN}"
_WORKTREE = "the directories of a work tree that exists at start are guarded in a box: run this outside"
# Options of git itself that take the next word (git(1)).
_TAKING = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env"})
# git-config(1): 4 cannot be written; 255 cannot be locked.
_CONFIG = frozenset({4, 255})
# What 2.39 answers: 1 section of a remote, 128 a key of it; 2 and 3 are about the remote's name.
_REMOTE = frozenset({1, 128})
_DONE = frozenset({0})
_REMOTE_WORDS = frozenset({"add", "remove", "rm", "rename", "set-url", "set-branches"})
_UPSTREAM = ("-u", "--set-upstream-to", "--set-upstream")
_MOVES = frozenset({"-m", "-M", "--move", "-c", "-C", "--copy"})
_DELETES = frozenset({"-d", "-D", "--delete"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A hint for when the command ends with one of ``statuses``."""

    hint: str
    statuses: frozenset[int]
    made: str = ""  # a file that the command made before it failed, or it failed for another reason
    before: tuple[int, int] | None = None

    def after(self, status: int) -> str:
        """Return the line for this end, or nothing."""
        if status not in self.statuses or (self.made and _identity(self.made) in (None, self.before)):
            return ""
        return f"hint: {self.hint}"


def _making(directory: str, branch: str, hint: str, statuses: frozenset[int]) -> Advice:
    """Advice for a command that has written this branch when its configuration fails."""
    made = os.path.join(directory, "refs", "heads", branch)
    return Advice(hint=hint, statuses=statuses, made=made, before=_identity(made))


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return None
    return (found.st_ino, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


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
    if _records_upstream(name, rest):
        return Advice(hint=_LOST, statuses=_DONE)
    if name in ("checkout", "switch"):
        return _checkout(rest, directory)
    if name == "sparse-checkout" and _first(rest) in ("init", "set", "add", "disable"):
        return Advice(hint=_OWN, statuses=frozenset({1}))
    if name == "init" and not rest:
        return Advice(hint=_OWN, statuses=frozenset({128}))
    more = {"branch": _branch, "worktree": _worktree, "submodule": _submodule}.get(name)
    return more(rest, directory) if more is not None else None


def _records_upstream(name: str, rest: Sequence[str]) -> bool:
    if name in ("push", "branch"):
        return any(word.startswith(_UPSTREAM) for word in rest)
    # Of a remote alone nothing is recorded, and -u is another option (git-fetch(1)).
    plain = [word for word in rest if not word.startswith("-")]
    return name in ("pull", "fetch") and "--set-upstream" in rest and len(plain) > 1


def _branch(rest: Sequence[str], directory: str) -> Advice | None:
    names = [word for word in rest if not word.startswith("-")]
    if names and _MOVES.intersection(rest):
        return _making(directory, names[-1], _MOVED, frozenset({128}))
    if names and _DELETES.intersection(rest) and any(_has_section(directory, name) for name in names):
        return Advice(hint=_STAYS, statuses=_DONE)
    if "--unset-upstream" in rest and _has_section(directory, _first(rest) or _current(directory)):
        return Advice(hint=_OWN, statuses=frozenset({128}))
    return None


def _checkout(rest: Sequence[str], directory: str) -> Advice | None:
    if _tracks(rest, directory):
        return Advice(hint=_LOST, statuses=_DONE)
    if len(rest) == 1 and '[remote "' in small_text(os.path.join(directory, "config")):
        # A name that only a remote has makes a branch that follows it (git-checkout(1), --guess).
        return _making(directory, rest[0], _LOST, _DONE)
    return None


def _worktree(rest: Sequence[str], directory: str) -> Advice | None:
    if _first(rest) == "remove":
        return Advice(hint=_WORKTREE, statuses=frozenset({255}))
    if _first(rest) == "add" and _tracks(rest[1:], directory, before_start=1):
        return Advice(hint=_LOST, statuses=_DONE)
    return None


def _submodule(rest: Sequence[str], directory: str) -> Advice | None:
    if _first(rest) == "add":
        return Advice(hint=_INACTIVE, statuses=_DONE)
    listed = _modules(os.path.join(os.path.dirname(directory), ".gitmodules"))
    known = _modules(os.path.join(directory, "config"))
    if (_first(rest) == "init" or "--init" in rest) and listed - known:
        return Advice(hint=_OWN, statuses=frozenset({128}))
    return Advice(hint=_OWN, statuses=frozenset({128})) if _first(rest) == "sync" and known else None


def _modules(path: str) -> set[str]:
    """Return the sections of submodules in a configuration."""
    return {line.strip() for line in small_text(path).splitlines() if line.strip().startswith('[submodule "')}


def _has_section(directory: str, name: str, kind: str = "branch") -> bool:
    return f'[{kind} "{name}"]' in small_text(os.path.join(directory, "config"))


def _current(directory: str) -> str:
    return small_text(os.path.join(directory, "HEAD")).strip().removeprefix("ref: refs/heads/")


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


def _tracks(words: Sequence[str], directory: str, before_start: int = 0) -> bool:
    """Tell whether a new branch would follow a branch of a remote; ``before_start``: words before its start."""
    if any(word in ("-t", "--track") or word.startswith("--track=") for word in words):
        return True
    named = [index + 1 for index, word in enumerate(words) if word in ("-b", "-B", "-c", "-C", "--create")]
    plain = [word for index, word in enumerate(words) if not word.startswith("-") and index not in named]
    start = plain[before_start] if named and len(plain) > before_start else ""
    remote, slash, _ = start.partition("/")
    return bool(slash) and _has_section(directory, remote, kind="remote")


def _guarded_config(compiled: Compiled) -> str:
    """Return the repository's configuration that a guard of the plan holds, or nothing."""
    for row in compiled.plan["guards"]:
        path = str(row["path"])
        if row["read_only"] and path.endswith("/.git/config"):
            name, _, rest = path.removeprefix("@").partition("/")
            return os.path.join(compiled.binds[name], rest) if path.startswith("@") else path
    return ""
