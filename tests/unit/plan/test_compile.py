"""A compiled plan: equal for equal requests, complete, and closed where it must be."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stockade.decision import Decision
from stockade.errors import Refused
from stockade.frozen import replace
from stockade.host import facts
from stockade.plan.compile import compile_plan
from stockade.plan.own import PACKAGE
from stockade.rules.profile import ProfileStore
from stockade.rules.request import build_request
from stockade.rules.resolve import resolve
from stockade.rules.tiers import Tier
from unit.compiling import compiled, promise, rows

SHIPPED = ProfileStore("/nowhere")


@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_the_same_request_gives_the_same_digest(place: Path, tier: str) -> None:
    first, second = compiled(place / "work", tier=tier), compiled(place / "work", tier=tier)
    assert first.digest == second.digest
    assert json.loads(first.canonical) == first.plan


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(["PATH", "HOME", "STOCKADE_HOME", "LANG", "X1", "X2"]))
def test_the_order_of_the_environment_does_not_change_the_digest(place: Path, order: list[str]) -> None:
    values = {"PATH": "/usr/bin:/bin", "HOME": str(place), "STOCKADE_HOME": os.environ["STOCKADE_HOME"]}
    one = compiled(place / "work", env={name: values.get(name, "v") for name in order})
    two = compiled(place / "work", env={name: values.get(name, "v") for name in reversed(order)})
    assert one.digest == two.digest


def test_values_of_variables_are_not_in_a_plan(place: Path) -> None:
    result = compiled(place / "work", env={**os.environ, "SOME_TOKEN": "needle-1"}, set_env={"A_KEY": "needle-2"})
    assert b"needle" not in result.canonical
    assert result.set_env == (("A_KEY", "needle-2"),)


def test_the_workspace_is_a_parameter(place: Path) -> None:
    (place / "other").mkdir()
    one, two = compiled(place / "work"), compiled(place / "other")
    assert one.digest == two.digest
    assert one.binds == {"ws": str(place / "work")}
    assert str(place / "work").encode() not in one.canonical


def test_strict_shows_nothing_of_the_home_but_grants(place: Path) -> None:
    result = compiled(place / "work", read=[place / ".ssh" / "config"])
    below = {target for target in rows(result) if target.startswith(str(place) + "/")}
    assert below == {f"{place}/.ssh", f"{place}/.ssh/config"}
    assert rows(result)[str(place)]["kind"] == "tmpfs"
    assert rows(result, "tmpfs")["/"]["mode"] == "0755"
    assert result.plan["guard_lost"] == "end"


def test_guarded_hides_credentials_that_exist_and_that_do_not(place: Path) -> None:
    overlay = rows(compiled(place / "work", tier="guarded"), "overlay")[str(place)]
    assert {".aws", ".netrc", ".git-credentials"} <= set(overlay["hide"])
    kept = {target for target in rows(compiled(place / "work", tier="guarded")) if target.startswith(f"{place}/.ssh/")}
    assert kept == {f"{place}/.ssh/config"}


def test_a_second_home_behind_a_link_is_the_same_home(place: Path, tmp_path: Path) -> None:
    (tmp_path / "spelled").symlink_to(place)
    plain = compiled(place / "work", tier="guarded")
    linked = compiled(tmp_path / "spelled" / "work", tier="guarded", env={**os.environ, "HOME": str(tmp_path / "spelled")})
    assert rows(plain, "overlay")[str(place)]["hide"] == rows(linked, "overlay")[str(place)]["hide"]


def test_existing_persistence_points_are_guarded_and_their_parents_pinned(place: Path) -> None:
    work = place / "work"
    (work / ".vscode").mkdir()
    (work / "deep").mkdir()
    (work / "deep" / ".envrc").write_text("x")
    (work / ".git" / "hooks").mkdir(parents=True)
    (work / ".git" / "config").write_text("")
    (work / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    guards = {row["path"]: row["read_only"] for row in compiled(work, tier="guarded").plan["guards"]}
    assert guards == {"@ws/.git": False, "@ws/deep": False, "@ws/.vscode": True, "@ws/.git/config": True,
                      "@ws/.git/hooks": True, "@ws/deep/.envrc": True}
    assert compiled(work, tier="standard").plan["guards"] == []


def test_secrets_of_the_workspace_and_hidden_paths_are_masked_and_guarded(place: Path) -> None:
    work = place / "work"
    (work / ".env").write_text("A=1")
    (work / ".env.example").write_text("A=")
    (work / "private").mkdir()
    result = compiled(work, hide=[work / "private"])
    assert rows(result)["@ws/.env"]["source"] == "/dev/null"
    assert rows(result)["@ws/private"]["mode"] == "0000"
    assert "@ws/.env.example" not in rows(result)
    assert {row["path"] for row in result.plan["guards"]} == {"@ws/.env", "@ws/private"}
    assert "@ws/.env" not in rows(compiled(work, read=[work / ".env"]))


def test_another_name_of_a_credential_is_masked(place: Path) -> None:
    os.link(place / ".aws" / "credentials", place / "work" / "notes")
    result = compiled(place / "work", tier="guarded")
    assert rows(result)["@ws/notes"]["source"] == "/dev/null"
    assert any("another name" in note for note in result.notes)


def test_a_write_root_inside_the_package_is_refused(place: Path) -> None:
    with pytest.raises(Refused) as caught:
        compiled(place / "work", write=[os.path.join(PACKAGE, "plan")])
    assert caught.value.code == "own_install"


def test_a_box_does_not_promise_what_its_tier_does_not(place: Path) -> None:
    states = {row["id"]: row["state"] for row in compiled(place / "work", tier="guarded").plan["promises"]}
    assert states["fs.home"] == "not_kept"
    assert states["fs.credentials"] is None
    assert len(states) == 19


def test_a_voiding_grant_needs_the_callers_word(place: Path) -> None:
    options = {"tier": "guarded", "allow": ["git-config"]}
    with pytest.raises(Refused) as caught:
        compiled(place / "work", **options)
    assert caught.value.code == "grant_voids_tier"
    result = compiled(place / "work", **options, accept=["fs.persistence"])
    row = next(row for row in result.plan["promises"] if row["id"] == "fs.persistence")
    assert row["state"] == "waived"


@pytest.mark.parametrize("mode", ["0700", "0755"])
def test_the_directory_of_a_granted_socket_is_as_private_as_on_the_host(place: Path, mode: str) -> None:
    """gpg does not use an agent in a directory that others could write names into."""
    import socket

    (place / "agents").mkdir()
    (place / "agents").chmod(int(mode, 8))
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(place / "agents")
        listener.bind("s")
        made = rows(compiled(place / "work", tier="strict", sockets=[str(place / "agents" / "s")]), "dir")
    assert made[f"{place}/agents"]["mode"] == mode


def test_the_network_decides_namespace_and_resolver(place: Path) -> None:
    none, host = compiled(place / "work", net="none"), compiled(place / "work", net="host")
    assert "net" in none.plan["namespaces"] and "net" not in host.plan["namespaces"]
    assert "nameserver" not in rows(none, "file")["/etc/resolv.conf"]["content"]
    assert "hosts: files dns" in rows(host, "file")["/etc/nsswitch.conf"]["content"]


@pytest.mark.parametrize("tier", ["guarded", "strict"])
def test_landlock_says_the_same_as_the_mounts(place: Path, tier: str) -> None:
    result = compiled(place / "work", tier=tier)
    rules = {(rule["path"], rule["access"]) for rule in result.plan["landlock"]["rules"]}
    assert ("@ws", "write") in rules
    assert not any(access == "write" and path in ("/", "/usr", "/etc") for path, access in rules)
    assert (("/", "read") in rules) is (tier == "guarded")


def test_too_little_landlock_is_left_out_whole(place: Path) -> None:
    resolved = resolve(build_request(["/bin/true"], tier="strict", caller="repository", cwd=place / "work"))
    host = replace(facts.gather(2, sys.executable), has_sys_admin=False)
    decision = Decision(kind="wrap", row="D2", tier=Tier.strict, requested_tier="strict", active_tier=None,
                        tier_known=True, effective_tier="strict", env_tier=Tier.strict)
    assert compile_plan(resolved, host, decision).plan["landlock"] is None


@pytest.mark.known_gap("no_root_caller")
def test_a_root_caller_is_an_id_that_owns_nothing(place: Path) -> None:
    os.chown(place / "work", 12345, 12345)
    result = compiled(place / "work", as_user=False)
    ids = result.plan["ids"]
    assert ids["mode"] == "shifted"
    assert ids["kernel_uid"] >= 1 << 30
    assert (ids["owner_uid"], ids["owner_gid"]) == (12345, 12345)
    assert rows(result)["@ws"]["idmap"] is True
    assert rows(result)["/usr"]["idmap"] is False
    assert result.plan["seccomp"] == {"filter": "default-root"}


def test_only_what_others_could_open_of_proc_is_covered(place: Path) -> None:
    covers = rows(compiled(place / "work"), "proc")["/proc"]["covers"]
    assert covers[:8] == ["sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "pressure"]
    for name in covers[8:]:
        mode = os.stat(f"/proc/{name}").st_mode
        assert mode & (stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IWOTH)
    assert "kcore" not in covers


def test_message_queues_of_the_box_may_be_made(place: Path) -> None:
    rules = compiled(place / "work").plan["landlock"]["rules"]
    assert {"path": "/dev/mqueue", "access": "write"} in rules


CLAUDE = {"profile": ["claude"], "tier": "guarded", "caller": "agent"}


def test_switches_of_an_inner_sandbox_are_for_the_tool_of_the_profile_alone(place: Path) -> None:
    (place / ".claude").mkdir()
    shell = compiled(place / "work", args=["sh", "-c", "true"], **CLAUDE)
    assert shell.argv == ("sh", "-c", "true")
    assert not any("inner sandbox" in note for note in shell.notes)
    tool = compiled(place / "work", args=["/opt/bin/claude", "-p", "hi"], **CLAUDE)
    assert tool.argv[:2] == ("/opt/bin/claude", "--settings") and tool.argv[3:] == ("-p", "hi")
    assert any("inner sandbox off" in note for note in tool.notes)


def test_a_switch_of_the_callers_own_stands_and_that_is_said(place: Path) -> None:
    (place / ".claude").mkdir()
    tool = compiled(place / "work", args=["claude", "--settings", "mine.json"], **CLAUDE)
    assert tool.argv == ("claude", "--settings", "mine.json")
    assert any("caller's own" in note for note in tool.notes)


@pytest.mark.parametrize("words", [["--sandbox=read-only"], ["-s", "read-only"], ["exec", "--yolo"]])
def test_every_spelling_of_the_callers_own_choice_stands(place: Path, words: list[str]) -> None:
    (place / ".codex").mkdir()
    tool = compiled(place / "work", args=["codex", *words], profile=["codex"], tier="guarded", caller="agent")
    assert tool.argv == ("codex", *words)
    assert any(words[-1].split("=")[0] in note or "-s" in note for note in tool.notes)
    plain = compiled(place / "work", args=["codex", "exec"], profile=["codex"], tier="guarded", caller="agent")
    assert plain.argv == ("codex", "-s", "danger-full-access", "exec")


def test_what_live_sessions_run_is_empty_in_the_box_and_only_where_it_exists(place: Path) -> None:
    (place / ".claude" / "shell-snapshots").mkdir(parents=True)
    (place / ".claude" / "hooks").mkdir()
    result = compiled(place / "work", args=["claude"], **CLAUDE)
    assert rows(result, "tmpfs")[f"{place}/.claude/shell-snapshots"]["create"] is False
    assert f"{place}/.claude/sessions" not in rows(result)
    guarded = {guard["path"] for guard in result.plan["guards"] if guard["read_only"]}
    assert f"{place}/.claude/hooks" in guarded and f"{place}/.claude/shell-snapshots" not in guarded
    other = compiled(place / "work", tier="guarded", write=[place / "work", place / ".claude"])
    assert {"path": f"{place}/.claude/shell-snapshots", "read_only": True} in other.plan["guards"]


@pytest.mark.parametrize("kind", ["read", "cwd"])
def test_secrets_at_the_top_of_a_read_root_are_masked_and_guarded(place: Path, kind: str) -> None:
    work = place / "work"
    (work / ".env").write_text("A=1")
    (work / "sub").mkdir()
    (work / "sub" / ".env").write_text("A=1")
    options = {"caller": "generated"} if kind == "cwd" else {"cwd": place, "read": [work]}
    result = compiled(options.pop("cwd", work), **options)
    assert rows(result)[str(work)]["attrs"] == ["nodev", "nosuid", "ro"]
    assert rows(result)[f"{work}/.env"]["source"] == "/dev/null"
    assert {"path": f"{work}/.env", "read_only": True} in result.plan["guards"]
    assert f"{work}/sub/.env" not in rows(result)
    assert f"{work}/.env" not in rows(compiled(place, read=[work, work / ".env"])) or \
        rows(compiled(place, read=[work, work / ".env"]))[f"{work}/.env"]["source"] != "/dev/null"
    assert f"{work}/.env" not in rows(compiled(place, read=[work], tier="guarded"))


def test_other_names_of_a_workspace_secret_are_masked(place: Path) -> None:
    work = place / "work"
    (work / "deep").mkdir()
    (work / ".env").write_text("A=1")
    (work / ".ENV").write_text("A=1")
    os.link(work / ".env", work / "deep" / "notes")
    masked = {target for target, row in rows(compiled(work)).items() if row.get("source") == "/dev/null"}
    assert {"@ws/.env", "@ws/.ENV", "@ws/deep/notes"} <= masked


@pytest.mark.parametrize("tier", ["guarded", "strict"])
@pytest.mark.parametrize("name", [".emacs.d", ".vim/plugin", ".docker/cli-plugins", ".local/share/applications", "bin"])
def test_a_write_root_that_is_a_persistence_point_costs_the_promise(place: Path, tier: str, name: str) -> None:
    (place / name).mkdir(parents=True)
    with pytest.raises(Refused) as caught:
        compiled(place / name, tier=tier)
    assert caught.value.code == "grant_voids_tier" and "fs.persistence" in caught.value.missing
    accepted = compiled(place / name, tier=tier, accept=list(caught.value.missing))
    assert promise(accepted, "fs.persistence") == "waived"
    assert promise(compiled(place / "work", tier=tier), "fs.persistence") is None


@pytest.mark.parametrize("tier", ["guarded", "strict"])
@pytest.mark.parametrize("name", [name for name in SHIPPED.names() if SHIPPED.get(name).caller == "agent"])
def test_an_agents_profile_costs_no_promise_when_all_that_it_names_is_there(place: Path, tier: str, name: str) -> None:
    for ref in (ref for key in ("write", "read") for ref in SHIPPED.get(name).layer.paths[key]):
        path = Path(ref.text.replace("~", str(place), 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text("x") if path.suffix in (".json", ".jsonl", ".toml", ".yaml") else path.mkdir()
    states = {row["state"] for row in compiled(place / "work", tier=tier, profile=name).plan["promises"]}
    assert "waived" not in states


def test_no_file_system_in_memory_is_larger_than_the_memory_of_the_box(place: Path) -> None:
    limit = 100 << 20
    result = compiled(place / "work", limits={"memory_bytes": limit})
    sizes = [row[key] for row in result.plan["mounts"] for key in ("size_bytes", "shm_size_bytes") if key in row]
    assert sizes and max(sizes) <= limit
    free = compiled(place / "work").plan["mounts"]
    assert max(row.get("size_bytes", 0) for row in free) > limit


def test_the_root_directory_as_a_read_grant_is_a_voiding_one(place: Path) -> None:
    with pytest.raises(Refused) as caught:
        compiled(place / "work", read=["/"])
    assert caught.value.code == "grant_voids_tier"
    with pytest.raises(Refused) as caught:
        compiled(place / "work", read=["/"], accept=["off"])
    assert caught.value.code == "grant_unsupported"
    with pytest.raises(Refused, match="without it"):
        compiled(place / "work", read=["/"], accept=["off"], tier="guarded")


def test_the_real_etc_replaces_the_one_made_for_the_box(place: Path) -> None:
    def made(table: dict[str, dict[str, object]]) -> list[str]:
        return [name for name, row in table.items() if name.startswith("/etc/") and row["kind"] in ("file", "symlink", "dir")]

    assert "/etc/passwd" in made(rows(compiled(place / "work")))
    table = rows(compiled(place / "work", read=["/etc"], accept=["off"]))
    assert table["/etc"]["kind"] == "bind" and made(table) == []


def test_a_stored_plan_names_what_does_not_exist_yet(place: Path) -> None:
    work = place / "work"
    (work / ".envrc").write_text("")
    (work / "cfg").mkdir()
    (work / ".config").symlink_to("cfg")
    now, later = compiled(work), compiled(work, stored=True)
    (row,) = later.plan["appearing"]
    assert row["root"] == "@ws" and {".envrc", ".vscode", ".git/config", ".git/hooks", "*.code-workspace"} <= set(row["guard"])
    assert ".git" not in row["guard"] and row["shown"] == []
    assert {".env", ".env.*", "*.tfvars"} <= {mask["pattern"] for mask in row["mask"]}
    assert "*.example" in next(mask["except"] for mask in row["mask"] if mask["pattern"] == ".env.*")
    assert now.plan["appearing"] == [] and compiled(work, stored=True, tier="standard").plan["appearing"] == []
    (guarded,) = compiled(work, stored=True, tier="guarded").plan["appearing"]
    assert guarded["guard"] == row["guard"] and guarded["mask"] == []


def test_a_stored_plan_shows_the_secret_that_was_granted(place: Path) -> None:
    work = place / "work"
    (work / ".env").write_text("")
    (row,) = compiled(work, stored=True, read=[str(work / ".env")]).plan["appearing"]
    assert row["shown"] == [".env"]
