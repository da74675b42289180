"""fs.persistence over every way a repository can lie in a write root, and how git itself reads it.

Read next: ``test_fs_persistence.py`` for one plain repository, ``test_hostile_trees.py`` for trees
that lie about themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from requirements import at_tiers, requirement
from support.actors import Actor, make_repository
from support.boxes import Op, failed_with, kept, op, worked
from support.trees import changes, snapshot

# Unreadable secrets and links that lead out of the box come first at strict.
BLOCKED = {"EROFS", "EBUSY", "EXDEV", "EACCES"}


@pytest.fixture
def clones(actor: Actor) -> Iterator[str]:
    """A plain directory that holds repositories, as ~/src does."""
    path = f"{actor.home}/work/clones"
    actor.remove(path)
    yield actor.make_dir(path)
    actor.remove(path)


def _attacks(repo: str) -> list[Op]:
    git = f"{repo}/.git"
    return [op("create", path=f"{git}/hooks/post-commit"), op("rewrite", path=f"{git}/hooks/pre-push"), op("rewrite", path=f"{git}/config"),
            op("rename", path=f"{git}/config", to=f"{git}/config.away"), op("rename", path=f"{git}/hooks", to=f"{git}/hooks.away"), op("rename", path=git, to=f"{repo}/away")]


def _refused(actor: Actor, ops: list[Op], root: str, tier: str) -> None:
    """Bare they work; inside none does, nothing changes, and a write beside them works."""
    worked(actor.bare(ops, cwd=root))
    before = snapshot(actor.host(root))
    run = actor.box([*ops, op("create", "twin", path=f"{root}/twin")], tier=tier, cwd=root)
    failed_with(run.answers, BLOCKED, but={"twin"})
    run.value("twin")
    assert changes(before, snapshot(actor.host(root))) == {}
    kept(run, "fs.persistence", tier)


@requirement("fs.persistence", "B.git_layouts")
@at_tiers("fs.persistence")
@pytest.mark.parametrize("place", ["r1", "sub/lib", "a/b/c/d", "node_modules/p", "target/debug/x", ".hidden/r"])
def test_a_repository_below_a_plain_write_root_is_guarded(actor: Actor, clones: str, tier: str, place: str) -> None:
    _refused(actor, _attacks(make_repository(actor, f"{clones}/{place}")), clones, tier)


@requirement("fs.persistence", "B.git_layouts")
@at_tiers("fs.persistence")
@pytest.mark.parametrize("place", ["vendor/lib", "node_modules/p"])
def test_a_repository_inside_a_repository_is_guarded(actor: Actor, fresh_repo: str, tier: str, place: str) -> None:
    _refused(actor, _attacks(make_repository(actor, f"{fresh_repo}/{place}")), fresh_repo, tier)


@requirement("fs.persistence", "B.git_layouts")
@at_tiers("fs.persistence")
def test_git_works_in_a_repository_below_a_plain_write_root(actor: Actor, clones: str, tier: str) -> None:
    """The twin of the guards: daily work, in two of them."""
    for name in ("one", "two"):
        make_repository(actor, f"{clones}/{name}")
    script = "for r in one two; do (cd $r && echo x >> README && git add README && git commit -q -m box && git checkout -q -b topic && git log --oneline | wc -l); done"
    run = actor.run(["sh", "-ec", script], tier=tier, cwd=clones)
    assert (run.code, run.stdout.split()) == (None, ["2", "2"]), run.raw


LINKED = {
    "hooks": (".git/hooks", "hk", "mkdir -p hk; mv .git/hooks/* hk/; rm -r .git/hooks; ln -s ../hk .git/hooks", "hk/pre-push"),
    "config": (".git/config", "cfg", "mv .git/config cfg; ln -s ../cfg .git/config", "cfg"),
    "git": (".git", "store", "mv .git store; ln -s store .git", "store/hooks/pre-push"),
    "envrc": (".envrc", "env/rc", "mkdir env; echo : > env/rc; ln -s env/rc .envrc", "env/rc"),
    "vscode": (".vscode", "vs", "mkdir vs; echo {} > vs/tasks.json; ln -s vs .vscode", "vs/tasks.json"),
}


@requirement("fs.persistence", "B.move_into_guard")
@at_tiers("fs.persistence")
@pytest.mark.parametrize("name", LINKED)
def test_a_point_that_is_a_link_can_neither_be_swapped_nor_written_through(actor: Actor, fresh_repo: str, tier: str, name: str) -> None:
    link, target, script, file = LINKED[name]
    actor.sh(script, cwd=fresh_repo)
    actor.put(f"{fresh_repo}/planted", "evil\n", 0o644)
    ops = [op("rename", path=f"{fresh_repo}/{link}", to=f"{fresh_repo}/away"), op("unlink", path=f"{fresh_repo}/{link}"),
           op("exchange", path=f"{fresh_repo}/planted", to=f"{fresh_repo}/{link}"), op("rewrite", path=f"{fresh_repo}/{file}"),
           op("rename", "target", path=f"{fresh_repo}/{target}", to=f"{fresh_repo}/target-away")]
    _refused(actor, ops, fresh_repo, tier)


@requirement("fs.persistence", "B.git_layouts")
@at_tiers("fs.persistence")
def test_a_git_directory_of_another_name_in_the_tree_is_guarded(actor: Actor, clones: str, tier: str) -> None:
    """``git init --separate-git-dir``: the directory does not point back, guards need no proof."""
    actor.sh("mkdir tree; cd tree; git init -q --separate-git-dir=$PWD/store .; printf '#!/bin/sh\\n' > store/hooks/pre-push", cwd=clones)
    tree, store = f"{clones}/tree", f"{clones}/tree/store"
    ops = [op("create", path=f"{store}/hooks/post-commit"), op("rewrite", path=f"{store}/hooks/pre-push"), op("rewrite", path=f"{store}/config"),
           op("rename", path=store, to=f"{tree}/s2"), op("rewrite", path=f"{tree}/.git"), op("rename", "pointer", path=f"{tree}/.git", to=f"{tree}/g2")]
    _refused(actor, ops, tree, tier)


@requirement("fs.persistence", "B.git_without_hooks")
@at_tiers("fs.persistence")
def test_paths_that_the_config_names_are_read_as_git_reads_them(actor: Actor, fresh_repo: str, tier: str) -> None:
    """A space, quotes, an include and what the included file names in turn."""
    for name in ("h k/q/pre-commit", "inc/fsm", "inc/ssh.sh", "inc/clean.sh", "inc/deep.sh"):
        actor.put(f"{fresh_repo}/{name}", "#!/bin/sh\n", 0o755)
    actor.put(f"{fresh_repo}/inc/two", "[diff \"x\"]\n\tcommand = ./inc/deep.sh\n", 0o644)
    actor.put(f"{fresh_repo}/inc/one", "[core]\n\tfsmonitor = ./inc/fsm\n\tsshCommand = ./inc/ssh.sh\n[filter \"x\"]\n\tclean = sh inc/clean.sh\n[include]\n\tpath = two\n", 0o644)
    actor.sh("git config core.hooksPath 'h k/q'; git config include.path ../inc/one", cwd=fresh_repo)
    files = ("h k/q/pre-commit", "inc/one", "inc/two", "inc/fsm", "inc/ssh.sh", "inc/clean.sh", "inc/deep.sh")
    ops = [op("rewrite", path=f"{fresh_repo}/{name}") for name in files]
    ops += [op("rename", path=f"{fresh_repo}/{name}", to=f"{fresh_repo}/{name}.away") for name in ("h k", "h k/q", "inc/one")]
    _refused(actor, ops, fresh_repo, tier)
