"""What a tree says about itself widens nothing: a write root may come out of an archive.

Every fixture here is made of files inside the tree alone. The request must run (a tree may not
refuse its own box either) and reach nothing that was not granted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from requirements import at_tiers, requirement
from support.actors import PYTHON, Actor, make_repository
from support.boxes import Op, failed_with, found_only, kept, op, worked
from support.trees import changes, snapshot

UNREACHABLE = {"ENOENT", "EACCES", "EROFS"}


@pytest.fixture
def tree(actor: Actor) -> Iterator[str]:
    """An unpacked archive: a directory of the caller that is no repository yet."""
    path = f"{actor.home}/work/unpacked"
    actor.remove(path)
    yield actor.make_dir(path)
    actor.remove(path)


@pytest.fixture
def private(actor: Actor) -> Iterator[str]:
    """A directory of the caller that nothing lists as a credential store, shaped to be believed."""
    path = f"{actor.home}/private"
    actor.put(f"{path}/notes.txt", "tree-needle\n")
    for name in ("bin/python3", "lib/python3.11/os.py", "objects/aa/bb"):
        actor.put(f"{path}/{name}", "tree-needle\n", 0o755)
    yield path
    actor.remove(path)


def _changes_in(path: str) -> list[Op]:
    return [op("rewrite", path=f"{path}/notes.txt"), op("create", path=f"{path}/new"), op("rename", path=f"{path}/notes.txt", to=f"{path}/moved"), op("chmod", path=f"{path}/notes.txt")]


# A linked worktree as git lays it out, except that both ends were written by the tree.
FORGED = {
    "commondir": "mkdir fake; echo 'gitdir: fake' >.git; echo ../.git >fake/gitdir; echo {victim} >fake/commondir; echo 'ref: refs/heads/main' >fake/HEAD",
    "commondir, absolute": "mkdir fake; echo \"gitdir: $PWD/fake\" >.git; echo \"$PWD/.git\" >fake/gitdir; echo {victim} >fake/commondir; echo 'ref: refs/heads/main' >fake/HEAD",
    "gitdir": "echo 'gitdir: {victim}' >.git",
    "commondir of a real .git": "git init -q .; echo {victim} >.git/commondir",
    "link": "ln -s {victim} .git",
    "linked fake": "ln -s {victim} fake; echo 'gitdir: fake' >.git",
    "worktree in config": "git init -q .; git config core.worktree {victim}",
    "submodule": "git init -q .; mkdir -p m .git/modules/m; echo 'gitdir: ../.git/modules/m' >m/.git; echo {victim} >.git/modules/m/commondir; echo 'ref: refs/heads/main' >.git/modules/m/HEAD",
}


@requirement("fs.write_roots", "B.git_layouts")
@at_tiers("fs.write_roots")
@pytest.mark.parametrize("layout", FORGED)
def test_no_directory_becomes_writable_because_a_tree_calls_it_its_repository(actor: Actor, tree: str, private: str, tier: str, layout: str) -> None:
    for name in ("HEAD", "config", "refs/heads/main"):
        actor.put(f"{private}/{name}", "ref: refs/heads/main\n" if name == "HEAD" else "")
    actor.sh(FORGED[layout].format(victim=private), cwd=tree)
    ops = _changes_in(private)
    worked(actor.bare(ops, cwd=tree))
    before = snapshot(actor.host(private))
    run = actor.box([*ops, op("create", "twin", path=f"{tree}/made")], tier=tier, cwd=tree, caller="repository")
    failed_with(run.answers, UNREACHABLE, but={"twin"})
    run.value("twin")
    assert changes(before, snapshot(actor.host(private))) == {}
    kept(run, "fs.write_roots", tier)


@requirement("fs.write_roots", "B.git_layouts")
@at_tiers("fs.write_roots")
def test_another_repository_of_the_user_does_not_become_writable(actor: Actor, tree: str, tier: str) -> None:
    """The directory is a repository, but it does not know the tree."""
    other = make_repository(actor, f"{actor.home}/work/other")
    actor.sh(FORGED["commondir"].format(victim=f"{other}/.git"), cwd=tree)
    ops = [op("rewrite", path=f"{other}/.git/HEAD"), op("create", path=f"{other}/.git/refs/heads/new"), op("create", path=f"{other}/.git/hooks/post-commit")]
    worked(actor.bare(ops, cwd=tree))
    before = snapshot(actor.host(other))
    run = actor.box([*ops, op("create", "twin", path=f"{tree}/made")], tier=tier, cwd=tree)
    failed_with(run.answers, UNREACHABLE, but={"twin"})
    assert run.answers["twin"]["errno"] is None, "the tree itself can be written"
    assert changes(before, snapshot(actor.host(other))) == {}
    actor.remove(other)


# Git data that names paths: git may read them outside a box, the box may not because of them.
NAMING = {
    "hooks path": "git config core.hooksPath {victim}",
    "alias": "git config alias.x '!{victim}/notes.txt'",
    "alternates": "echo {victim} >.git/objects/info/alternates",
    "alternates, objects": "echo {victim}/objects >.git/objects/info/alternates",
    "include": "git config include.path {victim}/notes.txt",
    "conditional include": "git config includeIf.gitdir:/.path {victim}/notes.txt",
    "attributes": "git config core.attributesFile {victim}/notes.txt",
    "excludes": "git config core.excludesFile {victim}/notes.txt",
    "fsmonitor": "git config core.fsmonitor {victim}/notes.txt",
    "ssh command": "git config core.sshCommand {victim}/notes.txt",
    "filter": "git config filter.x.clean {victim}/notes.txt",
    "template": "git config init.templateDir {victim}",
}


@requirement("fs.home", "B.git_layouts")
@at_tiers("fs.home")
@pytest.mark.parametrize("how", NAMING)
def test_git_data_of_the_tree_grants_no_path_of_the_home(actor: Actor, tree: str, private: str, tier: str, how: str) -> None:
    actor.sh("git init -q .; " + NAMING[how].format(victim=private), cwd=tree)
    ops = [op("read", path=f"{private}/notes.txt"), op("read", path=f"{private}/objects/aa/bb"), op("list", path=private)]
    worked(actor.bare(ops, cwd=tree))
    witness = actor.put(f"{tree}/witness", "tree-needle\n", 0o644)
    run = actor.box([*ops, op("find", "find", path=actor.home, needle="tree-needle")], tier=tier, cwd=tree, caller="repository")
    found_only(run, "find", [witness])
    run.answers.pop("find")
    names = [name for name in run.answers if name.startswith("list")]
    # An empty directory on the way to something else may stand there; nothing of the host in it.
    assert all(run.answers.pop(name)["value"] in (None, [], ["objects"], ["notes.txt"]) for name in names)
    failed_with(run.answers, UNREACHABLE)
    kept(run, "fs.home", tier)


@requirement("fs.home", "fs.own_state", "fs.credentials")
@at_tiers("fs.home")
@pytest.mark.parametrize("victim", ["", "/.ssh", "/.local/state/stockade", "/.config/stockade"])
def test_a_tree_cannot_refuse_its_own_box(actor: Actor, tree: str, tier: str, victim: str) -> None:
    """A path that the tree names is no grant the user made: it is not refused as one either."""
    actor.put(f"{actor.home}/.ssh/id_rsa", "tree-needle\n")
    script = f"git init -q .; echo {actor.home}{victim} >.git/objects/info/alternates; git config core.hooksPath {actor.home}{victim}; git config include.path {actor.home}{victim}/x"
    actor.sh(script, cwd=tree)
    ops = [op("read", path=f"{actor.home}/.ssh/id_rsa")]
    worked(actor.bare(ops, cwd=tree))
    run = actor.box([*ops, op("create", "twin", path=f"{tree}/made")], tier=tier, cwd=tree)
    assert run.returncode == 0 and run.answers["twin"]["errno"] is None, "the box starts and works"
    failed_with(run.answers, UNREACHABLE, but={"twin"})


VENVS = {"itself": "home = {victim}\n", "its bin": "home = {victim}/bin\n", "with a version": "home = {victim}/bin\nversion = 3.11.2\nexecutable = {victim}/bin/python3\n"}


@requirement("fs.home", "fs.system")
@at_tiers("fs.home")
@pytest.mark.parametrize("layout", VENVS)
def test_a_virtual_environment_of_the_tree_grants_no_path_of_the_home(actor: Actor, tree: str, private: str, tier: str, layout: str) -> None:
    """``pyvenv.cfg`` names where the interpreter comes from; here it was packed with the tree."""
    actor.put(f"{tree}/.venv/pyvenv.cfg", VENVS[layout].format(victim=private), 0o644)
    actor.make_dir(f"{tree}/.venv/bin")
    actor.host(f"{tree}/.venv/bin/python").symlink_to("/usr/bin/env")
    ops = [op("read", path=f"{private}/{name}") for name in ("notes.txt", "lib/python3.11/os.py", "bin/python3")]
    worked(actor.bare(ops))
    script = f"{actor.stage.bin}/probe.py"
    job = actor.put(f"{tree}/ops.json", json.dumps(ops), 0o644)
    run = actor.run([f"{tree}/.venv/bin/python", PYTHON, script, job], tier=tier, cwd=tree, caller="repository")
    failed_with(run.with_answers(ops).answers, UNREACHABLE)
    assert run.returncode == 0 and run.receipt["effective_tier"] == tier, run.raw


@requirement("fs.home")
@at_tiers("fs.home")
def test_a_real_virtual_environment_works(actor: Actor, tree: str, tier: str) -> None:
    """The twin: its interpreter belongs to the system."""
    actor.sh(f"{PYTHON} -m venv --without-pip .venv", cwd=tree)
    run = actor.run([f"{tree}/.venv/bin/python", "-c", "import sys; print(sys.prefix)"], tier=tier, cwd=tree)
    assert (run.code, run.stdout) == (None, f"{tree}/.venv\n"), run.raw
