"""fs.credentials: no store of the list can be read, by any name, now or later."""

from __future__ import annotations

import os
import subprocess

import pytest

from requirements import at_tiers, requirement
from support.actors import Actor
from support.boxes import Op, failed_with, found_only, kept, op, worked
from support.lists import home_examples, without_parents
from support.live import LiveBox

NEEDLE = "credential-needle-7f3a"
GONE = {"ENOENT"}
LATE = (".ssh/id_late", ".aws/credentials", ".netrc", ".git-credentials", ".config/gh/hosts.yml")


def _stores() -> list[str]:
    return list(without_parents(home_examples("credentials")))


@pytest.fixture
def stores(actor: Actor) -> list[str]:
    """Every store of the list, filled with the needle."""
    return [actor.put(f"{actor.home}/{path}", f"{NEEDLE} {path}\n") for path in _stores()]


def _reads(paths: list[str]) -> list[Op]:
    return [op("read", path=path) for path in paths]


@requirement("fs.credentials")
@at_tiers("fs.credentials")
def test_no_store_of_the_list_can_be_read(actor: Actor, stores: list[str], tier: str) -> None:
    worked(actor.bare(_reads(stores)))
    witness = actor.put(f"{actor.workspace}/witness", NEEDLE, 0o644)
    run = actor.box([*_reads(stores), op("find", "find", path=actor.home, needle=NEEDLE)], tier=tier)
    actor.remove(witness)
    failed_with(run.answers, GONE, but={"find"})
    found_only(run, "find", [witness])
    kept(run, "fs.credentials", tier)
    assert NEEDLE not in repr([run.answers[f"read {path}"] for path in stores])


@requirement("fs.credentials")
@at_tiers("fs.credentials")
def test_existence_and_size_are_hidden_and_names_cannot_be_listed(actor: Actor, stores: list[str], tier: str) -> None:
    ops = [op("stat", path=path) for path in stores] + [op("list", path=f"{actor.home}/.ssh")]
    worked(actor.bare(ops))
    run = actor.box(ops, tier=tier)
    listing = f"list {actor.home}/.ssh"
    failed_with(run.answers, GONE, but={listing})
    hidden = {os.path.basename(path) for path in stores if "/.ssh/" in path}
    assert hidden & set(run.answers[listing]["value"] or []) == set()


@requirement("fs.credentials")
@pytest.mark.parametrize("tier", ["guarded"])
def test_what_is_no_credential_stays_readable(actor: Actor, stores: list[str], tier: str) -> None:
    plain = {".gitconfig": "[user]\n", ".ssh/known_hosts": "host key\n", ".ssh/config": "Host x\n", ".ssh/id_ed25519.pub": "public\n", "notes.txt": "n\n"}
    for path, text in plain.items():
        actor.put(f"{actor.home}/{path}", text, 0o644)
    run = actor.box(_reads([f"{actor.home}/{path}" for path in plain]), tier=tier)
    assert {path: run.value(f"read {actor.home}/{path}") for path in plain} == plain


@requirement("fs.credentials")
@at_tiers("fs.credentials")
def test_a_store_that_is_granted_can_be_read(actor: Actor, stores: list[str], tier: str) -> None:
    wanted = f"{actor.home}/.aws/credentials"
    run = actor.box(_reads([wanted, f"{actor.home}/.netrc"]), tier=tier, read=[wanted], accept=["fs.credentials"])
    assert NEEDLE in run.value(f"read {wanted}")
    assert run.answers[f"read {actor.home}/.netrc"]["errno"] == "ENOENT"


@requirement("fs.credentials", "B.secret_aliases")
@at_tiers("fs.credentials")
def test_symlinks_dots_and_proc_names_lead_nowhere(actor: Actor, stores: list[str], tier: str) -> None:
    secret = f"{actor.home}/.aws/credentials"
    workspace = actor.workspace
    for name, to in (("link", secret), ("dirlink", f"{actor.home}/.aws"), ("up", "../..")):
        actor.remove(f"{workspace}/{name}")
        actor.host(f"{workspace}/{name}").symlink_to(to)
    ops = [op("read", path=f"{workspace}/link"), op("read", path=f"{workspace}/dirlink/credentials"), op("read", path=f"{workspace}/up/.aws/credentials"),
           op("read", path=f"{workspace}/../../.aws/credentials"), op("read", path=f"/proc/self/root{secret}"),
           op("read", path="/proc/self/cwd/../../.aws/credentials"), op("memfd_exec", "memfd", path=secret)]
    worked(actor.bare(ops))
    assert actor.bare(ops[-1:])["memfd"]["value"] == 0
    run = actor.box(ops, tier=tier)
    failed_with(run.answers, GONE, but={"memfd"})
    # Code without a name, run from memory, sees what the box sees.
    assert run.answers["memfd"]["errno"] is not None or run.answers["memfd"]["value"] != 0


@requirement("fs.credentials", "B.secret_aliases")
@at_tiers("fs.credentials")
def test_a_hard_link_in_the_workspace_is_found_or_refused(actor: Actor, tier: str) -> None:
    secret = actor.put(f"{actor.home}/.aws/credentials", NEEDLE)
    alias = f"{actor.workspace}/deep/alias.txt"
    actor.make_dir(f"{actor.workspace}/deep")
    actor.remove(alias)
    actor.sh(f"ln {secret} {alias}")
    worked(actor.bare(_reads([alias])))
    run = actor.run(["cat", alias], tier=tier)
    actor.remove(alias)
    if run.code is not None:
        assert alias in str(run.refused), "a refusal names the alias"
    else:
        assert NEEDLE not in run.stdout


@requirement("fs.credentials", "B.secret_aliases")
@at_tiers("fs.credentials")
def test_a_bind_alias_is_hidden(root: Actor, user: Actor, tier: str) -> None:
    """The host shows the home a second time; mountinfo tells."""
    for actor in (user, root):
        secret = actor.put(f"{actor.home}/.aws/credentials", NEEDLE)
        alias = "/tmp/home-alias" if tier == "strict" else "/srv"
        enter = ["nsenter", "-m", "-t", str(actor.world.holder.pid), "--"]
        actor.host("/tmp/home-alias").mkdir(exist_ok=True)
        subprocess.run([*enter, "mount", "--bind", actor.home, alias], check=True)
        try:
            reads = _reads([f"{alias}/.aws/credentials"])
            worked(actor.bare(reads))
            run = actor.box([*reads, op("read", "true", path=secret)], tier=tier)
            failed_with(run.answers, GONE)
        finally:
            subprocess.run([*enter, "umount", alias], check=True)


@requirement("fs.credentials", "B.secret_aliases")
@pytest.mark.parametrize("grant", ["read", "write"])
@at_tiers("fs.credentials")
def test_a_bind_alias_in_a_private_place_is_hidden_where_a_grant_shows_it(root: Actor, user: Actor, tier: str, grant: str) -> None:
    for actor in (user, root):
        actor.put(f"{actor.home}/.aws/credentials", NEEDLE)
        place = actor.make_dir(f"/tmp/granted-{actor.name}")
        alias = actor.make_dir(f"{place}/alias")
        plain = actor.put(f"{place}/plain", "plain\n", 0o644)
        enter = ["nsenter", "-m", "-t", str(actor.world.holder.pid), "--"]
        subprocess.run([*enter, "mount", "--bind", f"{actor.home}/.aws", alias], check=True)
        try:
            reads = _reads([f"{alias}/credentials"])
            worked(actor.bare(reads))
            run = actor.box([*reads, op("read", "plain", path=plain)], tier=tier, **{grant: [place]})
            assert run.answers.pop("plain")["value"] == "plain\n"
            assert all(NEEDLE not in str(answer) for answer in run.answers.values()), run.answers
        finally:
            subprocess.run([*enter, "umount", alias], check=True)
            actor.remove(place)


@requirement("fs.credentials", "B.host_renames_over", "B.secret_aliases")
@at_tiers("fs.credentials")
def test_stores_that_the_host_creates_or_replaces_stay_hidden(actor: Actor, stores: list[str], tier: str) -> None:
    late = [f"{actor.home}/{path}" for path in LATE]
    plain = actor.put(f"{actor.workspace}/plain", "plain\n", 0o644)
    for path in late:
        actor.remove(path)
    with LiveBox(actor, tier=tier) as box:
        failed_with(box.ask(_reads(sorted({*late, *stores}))), GONE)
        assert box.ask(_reads([plain]))[f"read {plain}"]["value"] == "plain\n"
        for path in {*late, *stores}:
            actor.agent.do("replace", path=path, text=f"{NEEDLE} late\n")
        worked(actor.bare(_reads(late)))
        failed_with(box.ask(_reads(sorted({*late, *stores}))), GONE)
        for path in {*late, *stores}:
            actor.agent.do("replace", path=path, text=f"{NEEDLE} again\n")
        failed_with(box.ask(_reads(sorted({*late, *stores}))), GONE)


@requirement("fs.credentials", "B.host_renames_over")
@at_tiers("fs.credentials")
def test_a_parent_that_the_host_renames_and_makes_anew_stays_hidden(actor: Actor, stores: list[str], tier: str) -> None:
    plain = actor.put(f"{actor.workspace}/plain", "plain\n", 0o644)
    with LiveBox(actor, tier=tier) as box:
        actor.agent.do("rename", path=f"{actor.home}/.aws", to=f"{actor.home}/.aws-old")
        actor.agent.do("write", path=f"{actor.home}/.aws/credentials", text=NEEDLE)
        ops = _reads([f"{actor.home}/.aws/credentials"])
        worked(actor.bare(ops))
        failed_with(box.ask(ops), GONE)
        assert box.ask(_reads([plain]))[f"read {plain}"]["value"] == "plain\n"
    actor.remove(f"{actor.home}/.aws-old")


@requirement("fs.credentials", "B.hidden_and_read_only")
@at_tiers("fs.credentials")
def test_hide_wins_over_every_grant(actor: Actor, tier: str) -> None:
    secret = actor.put(f"{actor.workspace}/private/key", NEEDLE, 0o644)
    plain = actor.put(f"{actor.workspace}/public", "p", 0o644)
    run = actor.box(_reads([secret, plain]), tier=tier, read=[secret], write=[actor.workspace], hide=[f"{actor.workspace}/private"])
    assert NEEDLE not in repr(run.answers)
    assert run.answers[f"read {secret}"]["errno"] in {"ENOENT", "EACCES"}
    assert run.value(f"read {plain}") == "p"


@requirement("fs.credentials", "B.secret_aliases")
@pytest.mark.known_gap("no_root_caller")
@at_tiers("fs.credentials")
def test_a_part_of_a_store_that_is_bound_elsewhere_is_hidden(actor: Actor, tier: str) -> None:
    """One file, a directory inside, and a name with a space: the store itself is mounted nowhere."""
    secret = actor.put(f"{actor.home}/.ssh/id_rsa", f"{NEEDLE}\n")
    actor.put(f"{actor.home}/.aws/sso/cache/token.json", f"{NEEDLE}\n")
    made = {"/srv/stk-key": secret, "/srv/stk cache": f"{actor.home}/.aws/sso/cache", "/srv/stk sp ace": f"{actor.home}/.ssh"}
    enter = actor.world.enter(0, 0, "/")
    for place, source in made.items():
        make = f"touch '{place}'" if source == secret else f"mkdir -p '{place}'"
        subprocess.run([*enter, "sh", "-ec", f"{make}; mount --bind '{source}' '{place}'"], check=True)
    ops = _reads(["/srv/stk-key", "/srv/stk cache/token.json", "/srv/stk sp ace/id_rsa"])
    try:
        worked(actor.bare(ops))
        run = actor.box(ops, tier=tier)
        failed_with(run.answers, {"ENOENT", "EACCES"})
        kept(run, "fs.credentials", tier)
    finally:
        for place in made:
            subprocess.run([*enter, "sh", "-c", f"umount '{place}'; rmdir '{place}' 2>/dev/null || rm -f '{place}'"], check=True)


@requirement("fs.credentials")
@pytest.mark.known_gap("no_root_caller")
@at_tiers("fs.credentials")
def test_the_mail_spool_of_the_system_cannot_be_read(actor: Actor, tier: str) -> None:
    """By the name that programs use, by its older one, and also for mail that comes later."""
    name, needle = actor.env["USER"], "mail-needle-7f3b"
    enter = actor.world.enter(0, 0, "/")
    subprocess.run([*enter, "mount", "-t", "tmpfs", "-o", "mode=1777", "stk", "/var/mail"], check=True)
    try:
        actor.put(f"/var/mail/{name}", f"{needle}\n")
        ops = [op("read", path=f"/var/mail/{name}"), op("stat", path=f"/var/mail/{name}"), op("read", path=f"/var/spool/mail/{name}"),
               op("read", "proc root", path=f"/proc/self/root/var/mail/{name}"), op("create", path=f"/var/mail/{name}.lock"), op("list", path="/var/mail/")]
        worked(actor.bare(ops))
        # A witness: the search of /var does look where it is allowed to.
        witness = actor.put(f"{actor.workspace}/witness", f"{needle}\n", 0o644)
        find = [op("find", "mail", path="/var/", needle=needle), op("find", "workspace", path=actor.workspace, needle=needle)]
        assert actor.bare(find)["mail"]["value"] == [f"/var/mail/{name}"]
        with LiveBox(actor, tier=tier, env={**actor.env, "MAIL": f"/var/mail/{name}"}) as box:
            answers = box.ask([*ops, *find])
            failed_with(answers, {"ENOENT", "EACCES", "EROFS"}, but={"mail", "workspace"})
            assert (answers["mail"]["value"], answers["workspace"]["value"]) == ([], [witness])
            actor.agent.do("replace", path=f"/var/mail/{name}", text=f"{needle} late\n")
            actor.agent.do("write", path=f"/var/mail/{name}-late", text=f"{needle} late\n")
            late = [*_reads([f"/var/mail/{name}", f"/var/mail/{name}-late"]), op("list", path="/var/mail/")]
            worked(actor.bare(late))
            failed_with(box.ask(late), {"ENOENT", "EACCES"})
        actor.remove(witness)
    finally:
        subprocess.run([*enter, "umount", "/var/mail"], check=True)


@requirement("fs.credentials", "fs.own_state")
@at_tiers("fs.credentials")
@pytest.mark.parametrize("word", ["option", "project"])
def test_hiding_the_home_shows_nothing_that_the_tier_hides(actor: Actor, stores: list[str], fresh_repo: str, tier: str, word: str) -> None:
    """A hidden name that holds the others must not take their places; an untrusted project may say it, too."""
    key = actor.put(f"{actor.home}/.local/state/stockade/keys/test.key", NEEDLE)
    reads = _reads([*stores, key])
    worked(actor.bare(reads))
    option = {"hide": [actor.home], "write": [fresh_repo]} if word == "option" else {}
    if word == "project":
        actor.put(f"{fresh_repo}/.stockade.toml", 'hide = ["~/"]\n', 0o644)
    run = actor.box([*reads, op("list", "home", path=actor.home)], tier=tier, cwd=fresh_repo, read=[str(actor.stage.root)], **option)
    failed_with(run.answers, GONE, but={"home"})
    assert not {".ssh", ".aws", ".local"} & set(run.answers["home"]["value"] or []), run.answers["home"]
    actor.remove(key)
