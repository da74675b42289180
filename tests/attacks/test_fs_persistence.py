"""fs.persistence: what would run code later is not changed, swapped or silently created."""

from __future__ import annotations

import json
import time

import pytest

from requirements import at_tiers, requirement
from stockade.rules.load import load_list
from support.actors import PYTHON, Actor
from support.boxes import Op, failed_with, kept, op, worked
from support.lists import entry_paths, without_parents
from support.live import LiveBox
from support.trees import changes, snapshot

BLOCKED = {"EROFS", "EBUSY", "EXDEV"}
# At strict some of them are unreadable as well (workspace secrets): the first right that lacks decides.
HIDDEN_TOO = {"EACCES", "ENOENT"}


def _points(scope: str) -> list[str]:
    base = ".git/" if scope == "git" else ""
    found: list[str] = []
    for entry in load_list("persistence"):
        # `.git` as a file is the linked worktree; it has tests of its own.
        if entry.scope == scope and (entry.guard or scope == "home") and entry.path != ".git":
            found += [path if path.startswith(".git") else base + path for path in entry_paths(entry)]
    return list(without_parents(found))


def _ready(actor: Actor, root: str, scope: str) -> list[str]:
    """Create the points that do not exist yet; return their full paths."""
    made = []
    if scope == "git":
        _git_directories(actor, root)
    for point in _points(scope):
        path = f"{root}/{point}"
        target = actor.host(path)
        if target.is_dir():
            path = f"{path}/sample"
            target = actor.host(path)
        if not target.exists():
            actor.put(path, _content(root, point), 0o644)
        made.append(path)
    return made


def _git_directories(actor: Actor, root: str) -> None:
    """A submodule and a linked worktree, as git lays them out."""
    for name in ("modules/a", "modules/a/modules/inner", "modules/deps/b"):
        actor.put(f"{root}/.git/{name}/HEAD", "ref: refs/heads/main\n", 0o644)
        for inner in ("objects", "refs", "hooks", "info"):
            actor.make_dir(f"{root}/.git/{name}/{inner}")
    actor.put(f"{root}/.git/worktrees/a/HEAD", "ref: refs/heads/other\n", 0o644)


def _content(root: str, point: str) -> str:
    """Git reads some of these: what they say has to be true of the repository."""
    name = point.rsplit("/", 1)[-1]
    if name == "commondir":
        return "../..\n" if "/worktrees/" in point else ".\n"
    if name == "gitdir":
        return f"{root}/.git\n"
    if name in ("config", "config.worktree"):
        return "[core]\n\trepositoryformatversion = 0\n"
    return "{}\n" if name.endswith(".json") else "# before\n"


def _attacks(paths: list[str], workspace: str) -> list[Op]:
    ops = []
    for path in paths:
        parent = path.rsplit("/", 1)[0]
        ops += [op("rewrite", path=path), op("unlink", path=path), op("rename", path=path, to=f"{path}.away"),
                op("rename", f"onto {path}", path=f"{workspace}/planted", to=path), op("chmod", path=path),
                op("exchange", f"exchange {path}", path=f"{workspace}/planted", to=path)]
        if parent != workspace:
            ops.append(op("rename", f"parent {path}", path=parent, to=f"{parent}.away"))
    return ops


@requirement("fs.persistence", "B.move_into_guard")
@at_tiers("fs.persistence")
@pytest.mark.parametrize("scope", ["workspace", "git"])
def test_no_existing_point_inside_the_write_root_changes(actor: Actor, fresh_repo: str, tier: str, scope: str) -> None:
    paths = _ready(actor, fresh_repo, scope)
    actor.put(f"{fresh_repo}/planted", "# planted\n", 0o644)
    bare = _attacks(paths, fresh_repo)
    worked(actor.bare([item for item in bare if not item["id"].startswith("onto")], cwd=fresh_repo))
    before = snapshot(actor.host(fresh_repo))
    run = actor.box([*bare, op("rewrite", "twin", path=f"{fresh_repo}/README")], tier=tier, cwd=fresh_repo)
    failed_with(run.answers, BLOCKED | (HIDDEN_TOO if tier == "strict" else set()), but={"twin"})
    run.value("twin")
    changed = {name for name in changes(before, snapshot(actor.host(fresh_repo))) if name != "README"}
    assert changed == set()
    kept(run, "fs.persistence", tier)


@requirement("fs.persistence", "B.git_layouts")
@at_tiers("fs.persistence")
def test_submodules_at_any_depth_and_name_are_guarded(actor: Actor, fresh_repo: str, tier: str) -> None:
    """A submodule's name may hold slashes, and a submodule may have submodules."""
    _git_directories(actor, fresh_repo)
    ops = []
    for name in ("modules/a", "modules/a/modules/inner", "modules/deps/b"):
        config = actor.put(f"{fresh_repo}/.git/{name}/config", "[core]\n", 0o644)
        hook = actor.put(f"{fresh_repo}/.git/{name}/hooks/post-checkout", "#!/bin/sh\n", 0o755)
        ops += [op("rewrite", path=config), op("rewrite", path=hook), op("create", f"new hook {name}", path=f"{fresh_repo}/.git/{name}/hooks/post-commit")]
    worked(actor.bare(ops, cwd=fresh_repo))
    failed_with(actor.box(ops, tier=tier, cwd=fresh_repo).answers, BLOCKED)


@requirement("fs.persistence")
@at_tiers("fs.persistence")
def test_no_point_of_the_home_changes(actor: Actor, tier: str) -> None:
    paths = _ready(actor, actor.home, "home")
    assert len(paths) > 20, paths
    ops = [op(kind, path=path, keep=True) for path in paths for kind in ("rewrite", "remove")]
    before = snapshot(actor.host(actor.home), (".local/state", ".cache"))
    run = actor.box(ops, tier=tier)
    if tier == "guarded":
        failed_with(run.answers, {"EROFS", "ENOENT", "EBUSY"})
    assert changes(before, snapshot(actor.host(actor.home), (".local/state", ".cache"))) == {}


@requirement("fs.persistence")
@at_tiers("fs.persistence")
def test_new_points_are_reported_when_the_box_ends(actor: Actor, fresh_repo: str, tier: str) -> None:
    names = [".envrc", ".mcp.json", ".vscode/tasks.json", ".husky/pre-commit"]
    script = "".join(f"mkdir -p $(dirname {name}); echo x > {name};" for name in names)
    run = actor.run(["sh", "-c", script], tier=tier, cwd=fresh_repo)
    assert run.returncode == 0, run.stderr
    reported = {row["path"]: row["change"] for row in run.receipt["end"]["persistence"]}
    missing = [name for name in names if not any(path == name or name.startswith(path + "/") or path.endswith(name) for path in reported)]
    assert missing == [], reported
    assert set(reported.values()) == {"created"}


@requirement("fs.persistence")
@at_tiers("fs.persistence")
def test_git_works_and_hooks_do_not_move(actor: Actor, fresh_repo: str, tier: str) -> None:
    script = """set -e
    echo more >> README; git add README; git commit -q -m second
    git checkout -q -b topic; echo t > t; git add t; git commit -q -m topic
    git checkout -q -; git rebase -q topic; echo s >> README; git stash -q; git stash pop -q
    git worktree add -q ../worktree-box topic 2>/dev/null || git branch other
    git clone -q . /tmp/clone; git -C /tmp/clone log --oneline | wc -l
    """
    run = actor.run(["sh", "-c", script], tier=tier, cwd=fresh_repo)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "3"
    hook = actor.run(["sh", "-c", "echo evil > .git/hooks/post-commit || git config core.hooksPath /tmp/h"], tier=tier, cwd=fresh_repo)
    assert hook.returncode != 0
    assert "hooksPath" not in actor.host(f"{fresh_repo}/.git/config").read_text()


@requirement("fs.persistence", "B.git_without_hooks")
@at_tiers("fs.persistence")
def test_hook_directories_and_helpers_that_the_config_names_are_guarded(actor: Actor, fresh_repo: str, tier: str) -> None:
    for name in ("githooks/pre-commit", "tools/fsmonitor.sh", "extra.gitconfig", "tools/clean.sh"):
        actor.put(f"{fresh_repo}/{name}", "#!/bin/sh\n", 0o755)
    actor.sh("git config core.hooksPath githooks; git config core.fsmonitor tools/fsmonitor.sh; git config include.path ../extra.gitconfig; "
             "git config filter.x.clean tools/clean.sh", cwd=fresh_repo)
    paths = [f"{fresh_repo}/{name}" for name in ("githooks/pre-commit", "tools/fsmonitor.sh", "extra.gitconfig", "tools/clean.sh")]
    ops = [op(kind, path=path) for path in paths for kind in ("rewrite", "unlink")]
    ops += [op("rename", "swap hooks", path=f"{fresh_repo}/githooks", to=f"{fresh_repo}/githooks2")]
    worked(actor.bare(ops, cwd=fresh_repo))
    before = {path: actor.host(path).read_bytes() for path in paths}
    run = actor.box([*ops, op("create", "twin", path=f"{fresh_repo}/tools/other.sh")], tier=tier, cwd=fresh_repo)
    failed_with(run.answers, BLOCKED, but={"twin"})
    worked({"twin": run.answers["twin"]})
    assert {path: actor.host(path).read_bytes() for path in paths} == before


@requirement("fs.persistence", "B.git_without_hooks", "B.move_into_guard")
@at_tiers("fs.persistence")
def test_the_repository_cannot_be_moved_away_and_copied_back(actor: Actor, fresh_repo: str, tier: str) -> None:
    script = "mv .git x && cp -r x .git && echo evil > .git/hooks/post-commit"
    run = actor.run(["sh", "-c", script], tier=tier, cwd=fresh_repo)
    assert run.returncode != 0
    parent = fresh_repo.rsplit("/", 1)[0]
    inner = actor.box([op("rename", path=fresh_repo, to=f"{fresh_repo}-2"), op("rename", "git", path=f"{fresh_repo}/.git", to=f"{fresh_repo}/x")],
                      tier=tier, cwd=fresh_repo, write=[parent])
    failed_with(inner.answers, {"EBUSY", "EROFS", "EXDEV"})
    assert actor.host(f"{fresh_repo}/.git/HEAD").exists() and not actor.host(f"{fresh_repo}/x").exists()


@requirement("fs.persistence", "B.git_without_hooks")
@at_tiers("fs.persistence")
def test_git_layouts_that_run_code_without_hooks_are_refused_or_reported(actor: Actor, fresh_repo: str, tier: str) -> None:
    script = """printf '/tmp/evil\\n' > .git/commondir && echo commondir
    mkdir -p objects refs && cp .git/HEAD HEAD && printf '[core]\\nbare = true\\nfsmonitor = evil\\n' > config && echo bare
    mkdir -p nested && git init -q nested && printf 'x' > nested/.git/hooks/post-commit && echo nested
    """
    assert actor.sh(script, cwd=fresh_repo).split() == ["commondir", "bare", "nested"], "without a box all three can be made"
    actor.remove(fresh_repo)
    remake(actor, fresh_repo)
    run = actor.run(["sh", "-c", script], tier=tier, cwd=fresh_repo)
    done = set(run.stdout.split())
    # A new repository inside the tree is reported and not prevented.
    assert "nested" in done, run.stderr
    reported = json.dumps(run.receipt["end"]["persistence"])
    signs = {"commondir": "commondir", "bare": '"HEAD"', "nested": "nested"}
    unsaid = [name for name in done if signs[name] not in reported]
    actor.remove(f"{fresh_repo}/.git/commondir")
    assert unsaid == [], reported


@requirement("fs.persistence")
@at_tiers("fs.persistence")
def test_racing_renames_never_get_through(actor: Actor, fresh_repo: str, tier: str) -> None:
    racer = [str(actor.stage.bin / "race"), fresh_repo, "0.4"]
    bare = json.loads(actor.call(racer, cwd=fresh_repo).stdout)
    assert bare["ok_rename"] > 0 and bare["swap_git"] > 0
    actor.remove(fresh_repo)
    remake(actor, fresh_repo)
    before = snapshot(actor.host(f"{fresh_repo}/.git"))
    boxed = json.loads(actor.run(racer, tier=tier, cwd=fresh_repo).stdout)
    assert boxed.pop("ok_rename") > 0
    assert set(boxed.values()) == {0}, boxed
    assert changes(before, snapshot(actor.host(f"{fresh_repo}/.git"))) == {}


@requirement("fs.persistence", "B.host_renames_over")
@pytest.mark.parametrize("tier", ["guarded"])
def test_a_guard_that_the_host_renames_over_is_put_back(actor: Actor, fresh_repo: str, tier: str) -> None:
    config = f"{fresh_repo}/.git/config"
    ops = [op("rewrite", path=config), op("rename", path=config, to=f"{config}.away"), op("rename", "onto", path=f"{fresh_repo}/planted", to=config)]
    actor.put(f"{fresh_repo}/planted", "[core]\n", 0o644)
    with LiveBox(actor, tier=tier, cwd=fresh_repo) as box:
        failed_with(box.ask(ops), BLOCKED)
        actor.sh("git config user.email new@example.invalid", cwd=fresh_repo)
        # The watch is told by the kernel; one look at a guard that is back is the condition.
        wait_for_guard(box, config)
        failed_with(box.ask(ops), BLOCKED)
        box.finish()
        end = box.records(until="end")["end"]
    assert config in json.dumps(end["guard_lost"])
    assert "new@example.invalid" in actor.host(config).read_text()


@requirement("fs.persistence", "B.host_renames_over")
def test_at_strict_a_lost_guard_ends_the_box(actor: Actor, fresh_repo: str) -> None:
    with LiveBox(actor, tier="strict", cwd=fresh_repo) as box:
        box.ask([op("environ")])
        actor.sh("git config user.email new@example.invalid", cwd=fresh_repo)
        end = box.records(until="end")["end"]
        box.process.wait(20)
    assert end["outcome"] == "guard_lost"
    assert ".git/config" in json.dumps(end["guard_lost"])


@requirement("fs.persistence")
@at_tiers("fs.persistence")
def test_git_config_can_be_granted(actor: Actor, fresh_repo: str, tier: str) -> None:
    run = actor.run(["git", "config", "user.name", "granted"], tier=tier, cwd=fresh_repo, allow=["git-config"], accept=["fs.persistence"])
    assert run.returncode == 0, run.stderr
    assert run.state("fs.persistence") == "waived"


def wait_for_guard(box: LiveBox, path: str) -> None:
    """Ask until the guard stands again, bounded by the number of questions."""
    for _ in range(400):
        if box.ask([op("write_open", "look", path=path)])["look"]["errno"] == "EROFS":
            return
    raise AssertionError(f"the guard on {path} was not put back")


def remake(actor: Actor, path: str) -> None:
    """The repository of the ``fresh_repo`` fixture, again."""
    from support.actors import make_repository

    make_repository(actor, path)


@requirement("fs.persistence")
@at_tiers("fs.persistence")
@pytest.mark.parametrize("place", [".emacs.d", ".vim", ".docker/cli-plugins", ".vscode/extensions", ".nvm", ".oh-my-zsh", ".local/share/applications", ".ipython/profile_default"])
def test_a_write_root_that_is_itself_a_persistence_point_is_not_given_in_silence(actor: Actor, tier: str, place: str) -> None:
    """The working directory is the default write root, and everything in this one runs code later."""
    path = actor.make_dir(f"{actor.home}/{place}")
    existing = actor.put(f"{path}/init.el", "; before\n", 0o644)
    run = actor.run(["sh", "-c", f"echo evil > {existing}; true"], tier=tier, cwd=path)
    if run.code is None:
        assert actor.host(existing).read_text() == "; before\n", run.receipt["missing"]
    else:
        assert run.code in ("grant_voids_tier", "write_root_refused"), run.raw
    accepted = actor.run(["true"], tier=tier, cwd=path, accept=["fs.persistence"])
    assert accepted.code is not None or accepted.state("fs.persistence") in ("waived", "kept"), accepted.raw
    actor.remove(existing)


# The line that matters is the last one, behind more than anybody writes by hand.
LARGE = {"10,000 lines": "[alias]\n" + "".join(f"\ta{number} = status\n" for number in range(10_000)),
         "a megabyte": "[x]\n" + f"\tk = {'v' * 1000}\n" * 1000, "one long line": f"[x]\n\tk = {'v' * 1_000_000}\n",
         "10,000 includes": "[include]\n" + "".join(f"\tpath = /nonexistent/{number}\n" for number in range(10_000)), "small": ""}


@requirement("fs.persistence", "B.git_without_hooks")
@pytest.mark.parametrize(("tier", "size"), [("guarded", "small"), *(("strict", size) for size in LARGE)])
def test_a_large_git_configuration_of_the_home_hides_no_hook(actor: Actor, fresh_repo: str, tier: str, size: str) -> None:
    """The hook that it names at its end is guarded, or the promise is not claimed; nothing takes long."""
    hook = actor.put(f"{fresh_repo}/tools/hooks/pre-commit", "#!/bin/sh\n", 0o755)
    config = actor.put(f"{actor.home}/.gitconfig", f"{LARGE[size]}[core]\n\thooksPath = tools/hooks\n", 0o644)
    assert actor.sh("git config core.hooksPath", cwd=fresh_repo) == "tools/hooks\n"
    attack = [op("rewrite", path=hook)]
    worked(actor.bare(attack, cwd=fresh_repo))
    started = time.monotonic()
    run = actor.run([PYTHON, str(actor.stage.bin / "probe.py")], tier=tier, cwd=fresh_repo, stdin=json.dumps(attack))
    took = time.monotonic() - started
    actor.remove(config)
    assert took < 10
    if run.refused is not None:
        assert size != "small" and run.code == "promise_not_kept" and "fs.persistence" in run.refused["text"], run.raw
    elif run.state("fs.persistence") == "kept":
        failed_with(run.with_answers(attack).answers, BLOCKED)


TOO_MANY = "[alias]\n" + "".join(f"\ta{number} = status\n" for number in range(2001))


@requirement("fs.persistence")
@pytest.mark.parametrize("tier", ["guarded", "strict"])
@pytest.mark.parametrize("where", ["repository", "home"])
def test_a_hook_that_a_large_git_configuration_names_at_its_end_is_guarded_or_not_claimed(actor: Actor, fresh_repo: str, tier: str, where: str) -> None:
    hook = actor.put(f"{fresh_repo}/tools/hooks/pre-commit", "#!/bin/sh\n", 0o755)
    config = f"{fresh_repo}/.git/config" if where == "repository" else actor.put(f"{actor.home}/.gitconfig", "")
    with actor.host(config).open("a") as stream:
        stream.write(f"{TOO_MANY}[core]\n\thooksPath = tools/hooks\n")
    attack = [op("rewrite", path=hook)]
    worked(actor.bare(attack, cwd=fresh_repo))
    run = actor.run([PYTHON, str(actor.stage.bin / "probe.py")], tier=tier, cwd=fresh_repo, stdin=json.dumps(attack))
    if where == "home":
        actor.remove(config)
    if run.refused is not None:
        assert run.refused["missing"] == ["fs.persistence"] and "git" in run.refused["text"], run.raw
    elif run.state("fs.persistence") == "kept":
        failed_with(run.with_answers(attack).answers, {"EROFS", "EBUSY", "EXDEV"})
