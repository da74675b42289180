"""git in a repository of unknown origin: what its own configuration names does not run, or gets nothing."""

from __future__ import annotations

from support.actors import Actor
from tools.support import Work, siege

BASE = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n[user]\n\tname = t\n\temail = t@example.invalid\n"
PROGRAMS = """[core]
\tfsmonitor = sh loot.sh
\thooksPath = hooks-of-it
\tpager = sh loot.sh
[diff]
\texternal = sh loot.sh
[credential]
\thelper = "!sh loot.sh"
[gpg]
\tprogram = ./loot.sh
[commit]
\tgpgSign = true
"""
FILTER = "[filter \"x\"]\n\tclean = \"sh loot.sh; cat\"\n"
LOOK = [["git", "status", "--short"], ["git", "diff", "HEAD"], ["git", "log", "--oneline"]]
GRANTS = {"profile": ["git-untrusted"]}


def test_programs_of_the_repository_do_not_run(actor: Actor) -> None:
    files = {".git/config": BASE + PROGRAMS, "hooks-of-it/post-checkout": "#!/bin/sh\nsh loot.sh\n", "README": "changed\n"}
    siege(actor, Work(files=files, commands=LOOK, shows="first", grants=GRANTS, started=False))


def test_a_filter_that_cannot_be_switched_off_gets_nothing(actor: Actor) -> None:
    files = {".git/config": BASE + FILTER, ".gitattributes": "README filter=x\n", "README": "changed\n"}
    siege(actor, Work(files=files, commands=LOOK, shows="first", grants=GRANTS))


def test_git_commits_as_the_user_and_signs_nothing(actor: Actor) -> None:
    files = {".git/config": BASE + PROGRAMS, "README": "changed\n"}
    commit = [["git", "commit", "-aq", "--allow-empty", "-m", "second"], ["git", "log", "--oneline"]]
    siege(actor, Work(files=files, bare=LOOK, commands=commit, warm=LOOK, shows="first", grants=GRANTS, started=False))
