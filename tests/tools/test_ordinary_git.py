"""git as it is used every day, by command line: what works, and what the hint says of the rest.

``GIT``: what writes no configuration does all of its work. ``SAID``: what does write it fails, or
loses a part, and one line names what was lost and how to get it. The same commands with the grant of
that line do all of their work.
"""

from __future__ import annotations

import pytest

from requirements import requirement
from support.actors import Actor, make_repository
from support.cli import Said, stockade
from tools.table import BARE, measured

TIERS = ("strict", "guarded")
GRANT = ("--allow", "git-config", "--accept", "fs.persistence")
WORKS = [
    ["checkout", "-b", "topic"], ["commit", "--allow-empty", "-m", "second"], ["rebase", "other"], ["stash", "push", "-m", "kept"],
    ["worktree", "add", "inner-tree"], ["worktree", "add", "-b", "next", "next-tree", "master"], ["fetch", "origin"],
    ["push", "origin", "other:pushed"], ["clone", "../origin.git", "inner-clone"], ["branch", "-d", "other"], ["tag", "-a", "v1", "-m", "one"],
    ["bisect", "start"], ["notes", "add", "-m", "noted"], ["gc", "-q"], ["merge", "other"], ["cherry-pick", "other"], ["reset", "--hard", "other"],
    ["clean", "-fdx"], ["submodule", "status"], ["remote", "update"], ["pull", "origin", "master"], ["fsck"], ["repack", "-adq"],
]
FILES = ("-c", "protocol.file.allow=always")  # submodules of the same disk
# What it says of what was lost; the sign that the work itself was done, and that the rest was.
LOST, OURS = "the upstream was not recorded", ".git/config is read-only in a box"
SAID = {
    ("push", "-u", "origin", "other"): (0, LOST, "", "git config branch.other.merge"),
    ("pull", "--set-upstream", "origin", "master"): (0, LOST, "", "git config branch.master.merge"),
    ("checkout", "-b", "t", "origin/far"): (0, LOST, "git show-ref --verify refs/heads/t", "git config branch.t.merge"),
    ("checkout", "far"): (0, LOST, "git show-ref --verify refs/heads/far", "git config branch.far.merge"),
    ("switch", "far"): (0, LOST, "git show-ref --verify refs/heads/far", "git config branch.far.merge"),
    ("worktree", "add", "-b", "t", "tree", "origin/far"): (0, LOST, "test -f tree/README", "git config branch.t.merge"),
    ("branch", "-m", "other", "renamed"): (128, "its section of the configuration was not written", "git show-ref --verify refs/heads/renamed",
                                           "git config branch.renamed.description"),
    ("branch", "-M", "renamed"): (128, "its section of the configuration was not written", "git show-ref --verify refs/heads/renamed",
                                  "git rev-parse --verify renamed"),
    ("branch", "-D", "other"): (0, "its section of the configuration stays", "! git rev-parse --verify other", "! git config branch.other.description"),
    ("remote", "add", "second", "../origin.git"): (128, OURS, "", "git config remote.second.url"),
    ("remote", "set-url", "origin", "../moved.git"): (128, OURS, "", "git config remote.origin.url | grep moved"),
    ("branch", "--unset-upstream", "followed"): (128, OURS, "", "! git config branch.followed.merge"),
    ("sparse-checkout", "set", "nothing"): (1, OURS, "", "git config core.sparseCheckout"),
    ("init",): (128, OURS, "", "git status"),
    (*FILES, "submodule", "add", "../origin.git", "module"): (0, "its address was not recorded", "test -f module/README", "git config submodule.module.url"),
    (*FILES, "submodule", "update", "--init"): (128, OURS, "", "test -f listed/README"),
}
QUIET = [["checkout", "other"], ["checkout", "no-such"], ["branch", "-m", "no-such", "x"], ["branch", "-m", "other", "far/../x"], ["branch", "-D", "plain"],
         ["worktree", "remove", "no-such"], ["submodule", "sync"], ["checkout", "README"], ["branch", "--unset-upstream"], ["sparse-checkout", "list"],
         ["fetch", "-u", "origin", "master"], ["fetch", "--set-upstream", "origin"], ["checkout", "."], ["switch", "-"]]


def _lay(actor: Actor, *, module: bool = False) -> str:
    """A project with a remote, branches on both sides and, if asked, a submodule that nobody has fetched."""
    tree, origin = f"{actor.home}/work/ordinary", f"{actor.home}/work/origin.git"
    for path in (tree, origin, f"{actor.home}/work/ordinary.git"):
        actor.remove(path)
    make_repository(actor, tree)
    actor.put(f"{actor.home}/.gitconfig", '[user]\n\tname = t\n\temail = t@example.invalid\n[protocol "file"]\n\tallow = always\n', 0o644)
    actor.sh("git branch other && git branch plain && git branch far && git clone -q --bare . ../origin.git && git branch -D -q far && "
             "git remote add origin ../origin.git && git fetch -q && git config push.default current && git config branch.other.description told && "
             "git config protocol.file.allow always && git branch -q --track followed origin/master && git pack-refs --all && echo more >> README", cwd=tree)
    if module:
        actor.sh("git checkout -q README && git submodule --quiet add ../origin.git listed && git commit -qm listed && git submodule --quiet deinit -f listed && rm -rf .git/modules && "
                 "(git config --remove-section submodule.listed || :)", cwd=tree)
    return tree


def _run(actor: Actor, tier: str, tree: str, *words: str) -> Said:
    return stockade(actor, "run", "--tier", tier, "--net", "none", "--write", f"{actor.home}/work/origin.git", *words, cwd=tree)


@requirement("E.git")
@pytest.mark.parametrize("words", WORKS, ids=" ".join)
def test_git_does_all_of_its_work(actor: Actor, words: list[str]) -> None:
    tool = f"git {' '.join(words[:2])}"
    before = "git checkout -q README; git commit -q --allow-empty -m mine; git checkout -q other; echo theirs > theirs; git add theirs; git commit -q -m theirs; git checkout -q master"
    for tier in (BARE, *TIERS):
        tree = _lay(actor)
        if words[0] not in ("stash", "clean", "reset"):
            actor.sh(before, cwd=tree)
        if words[0] == "branch":
            actor.sh("git merge -q other; git config --remove-section branch.other", cwd=tree)
        with measured(tool, actor.name, tier):
            if tier == BARE:
                done = actor.call(["git", *words], cwd=tree)
                assert done.returncode == 0, done
                continue
            said = _run(actor, tier, tree, "git", *words)
            assert said.status == 0 and "hint: " not in said.err.replace("\nhint: ", ""), said
            assert actor.call(["git", "fsck"], cwd=tree).returncode == 0


@requirement("E.git")
@pytest.mark.parametrize("words", SAID, ids=" ".join)
def test_git_says_what_it_lost_and_the_grant_brings_it_back(actor: Actor, words: tuple[str, ...]) -> None:
    status, hint, partly, wholly = SAID[words]
    tool, module = f"git {' '.join([word for word in words if word not in FILES][:2])}", "update" in words
    tree = _lay(actor, module=module)
    with measured(tool, actor.name, BARE):
        actor.sh(f"git {' '.join(words)} && {wholly}", cwd=tree)
    for tier in TIERS:
        tree = _lay(actor, module=module)
        with measured(tool, actor.name, f"{tier}, hint"):
            said = _run(actor, tier, tree, "git", *words)
            ours = [line for line in said.err.splitlines() if line.startswith("stockade: ")]
            assert said.status == status and len(ours) == 1 and hint in ours[0] and " ".join(GRANT) in ours[0], said
            assert actor.call(["/bin/sh", "-ec", partly or ":"], cwd=tree).returncode == 0
        tree = _lay(actor, module=module)
        with measured(tool, actor.name, f"{tier}, granted"):
            said = _run(actor, tier, tree, *GRANT, "git", *words)
            assert said.status == 0 and "not recorded" not in said.err, said
            actor.sh(wholly, cwd=tree)


@requirement("E.git")
@pytest.mark.parametrize("words", QUIET, ids=" ".join)
def test_git_that_lost_nothing_to_the_box_gets_no_hint(actor: Actor, words: list[str]) -> None:
    bare = actor.call(["git", *words], cwd=_lay(actor))
    said = _run(actor, "guarded", _lay(actor), "git", *words)
    assert said.status == bare.returncode and "stockade: hint" not in said.err, (bare, said)
