"""fs.home: the home is empty but for what was granted, also for what nobody has heard of."""

from __future__ import annotations

from requirements import at_tiers, requirement
from support.actors import Actor
from support.boxes import failed_with, found_only, kept, op, worked
from support.live import LiveBox
from support.trees import changes, snapshot

UNHEARD = (".new-tool/token", "Documents/letter.txt", ".config/unknown/key", "notes.md", ".hidden")


@requirement("fs.home")
@at_tiers("fs.home")
def test_nothing_of_the_home_is_there(actor: Actor, tier: str) -> None:
    paths = [actor.put(f"{actor.home}/{name}", "home-needle-51\n") for name in UNHEARD]
    ops = [op("read", path=path) for path in paths] + [op("stat", path=path) for path in paths]
    ops += [op("list", path=f"{actor.home}/Documents"), op("list", path=actor.elsewhere)]
    worked(actor.bare(ops))
    witness = actor.put(f"{actor.workspace}/witness", "home-needle-51\n", 0o644)
    run = actor.box([*ops, op("list", "home", path=actor.home), op("find", "find", path=actor.home, needle="home-needle-51")], tier=tier)
    failed_with(run.answers, {"ENOENT"}, but={"home", "find"})
    actor.remove(witness)
    found_only(run, "find", [witness])
    seen = set(run.value("home"))
    assert seen & {".new-tool", "Documents", "notes.md", ".hidden", "elsewhere"} == set()
    assert "work" in seen, "the workspace is granted and must be there"
    kept(run, "fs.home", tier)


@requirement("fs.home")
@at_tiers("fs.home")
def test_files_created_later_do_not_appear(actor: Actor, tier: str) -> None:
    with LiveBox(actor, tier=tier) as box:
        path = f"{actor.home}/.appears-later/secret"
        actor.agent.do("write", path=path, text="late")
        ops = [op("read", path=path), op("stat", path=f"{actor.home}/.appears-later")]
        worked(actor.bare(ops))
        failed_with(box.ask(ops), {"ENOENT"})
        assert ".appears-later" not in box.ask([op("list", "home", path=actor.home)])["home"]["value"]
    actor.remove(f"{actor.home}/.appears-later")


@requirement("fs.home")
@at_tiers("fs.home")
def test_writes_to_the_private_home_never_reach_the_host(actor: Actor, tier: str) -> None:
    before = snapshot(actor.host(actor.home), (".local/state", ".cache/stockade"))
    ops = [op("create", path=f"{actor.home}/.bashrc-new", keep=True), op("mkdir", path=f"{actor.home}/.local-new", keep=True)]
    run = actor.box(ops, tier=tier)
    assert all(got["errno"] in {None, "EROFS"} for got in run.answers.values())
    assert changes(before, snapshot(actor.host(actor.home), (".local/state", ".cache/stockade"))) == {}


@requirement("fs.home")
@at_tiers("fs.home")
def test_granted_paths_are_there_and_only_those(actor: Actor, tier: str) -> None:
    shown = actor.put(f"{actor.home}/shown/file", "shown", 0o644)
    hidden = actor.put(f"{actor.home}/shown-not/file", "hidden", 0o644)
    run = actor.box([op("read", path=shown), op("read", path=hidden), op("create", path=f"{actor.home}/shown/new")], tier=tier, read=[f"{actor.home}/shown"])
    assert run.value(f"read {shown}") == "shown"
    assert run.answers[f"read {hidden}"]["errno"] == "ENOENT"
    assert run.answers[f"create {actor.home}/shown/new"]["errno"] == "EROFS"


@requirement("fs.home")
@at_tiers("fs.home")
def test_a_grant_that_is_written_through_a_link_is_there_under_that_name(actor: Actor, tier: str) -> None:
    """~/.config may be a link into a directory of dotfiles; what else lies there stays out."""
    granted = actor.put(f"{actor.home}/dotfiles/granted", "shown\n")
    other = actor.put(f"{actor.home}/dotfiles/other", "home-needle\n")
    actor.sh(f"ln -sfn dotfiles {actor.home}/spelled")
    asked = [f"{actor.home}/spelled/granted", f"{actor.home}/spelled/other"]
    ops = [op("read", path=path) for path in (*asked, granted, other)]
    worked(actor.bare(ops))
    run = actor.box(ops, tier=tier, read=[asked[0]])
    assert (run.value(f"read {asked[0]}"), run.value(f"read {granted}")) == ("shown\n", "shown\n")
    failed_with({name: run.answers[name] for name in (f"read {asked[1]}", f"read {other}")}, {"ENOENT", "EACCES"})
    for name in ("spelled", "dotfiles"):
        actor.remove(f"{actor.home}/{name}")


@requirement("fs.home")
@at_tiers("fs.home")
def test_the_home_of_another_account_is_not_there(root: Actor, user: Actor, tier: str) -> None:
    other = user.put(f"{user.home}/open-to-all", "other", 0o644)
    ops = [op("read", path=other), op("list", "home", path=user.home)]
    worked(root.bare(ops))
    run = root.box(ops, tier=tier)
    failed_with(run.answers, {"ENOENT"})
    assert user.host(other).read_text() == "other"


@requirement("fs.home", "fs.system")
@at_tiers("fs.home")
def test_the_whole_root_is_no_read_grant(actor: Actor, tier: str) -> None:
    """It would show the home, and no acceptance turns a root that is built from grants into the host's."""
    secret = actor.put(f"{actor.home}/.new-tool/token", "home-needle-51\n", 0o644)
    ask = ["cat", secret]
    assert actor.call(ask).stdout == b"home-needle-51\n"
    refused = actor.run(ask, tier=tier, read=["/"])
    assert refused.refused is not None and refused.code == "grant_voids_tier" and refused.refused["hint"], refused.raw
    assert "fs.home" in refused.refused["missing"], refused.refused
    every = ["fs.home", "fs.system", "fs.credentials", "fs.own_state", "fs.workspace_secrets", "ipc.sockets", "proc.no_control", "proc.invisible", "kernel.surface"]
    for spelled in ("/", "//", "/.", "/usr/.."):
        accepted = actor.run(ask, tier=tier, read=[spelled], accept=every)
        assert accepted.refused is not None and accepted.code != "internal" and accepted.refused["hint"], (spelled, accepted.raw)
    assert actor.run(ask, tier=tier, read=[secret]).stdout == "home-needle-51\n"


@requirement("fs.home")
def test_the_whole_root_as_a_grant_of_a_guarded_root_box_has_an_answer(root: Actor) -> None:
    every = ["fs.credentials", "proc.no_control", "proc.invisible", "kernel.surface"]
    run = root.run(["true"], tier="guarded", read=["/"], accept=every)
    assert run.code == "grant_unsupported" and run.refused is not None and run.refused["hint"], run.raw
