"""Faults that comparable tools had in the field, as kinds: paths, environment, answers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from requirements import at_tiers, requirement
from support.actors import PYTHON, Actor, make_repository
from support.boxes import failed_with, op, worked
from support.trees import changes, snapshot

TIERS = ("standard", "guarded", "strict")


@requirement("B.hide_through_symlink")
@pytest.mark.parametrize("tier", TIERS)
def test_a_hidden_path_spelled_through_a_link_hides_the_target_and_stops_nothing(actor: Actor, tier: str) -> None:
    secret = actor.put(f"{actor.workspace}/real/secret", "field-needle", 0o644)
    link = f"{actor.workspace}/linked"
    actor.remove(link)
    actor.host(link).symlink_to("real")
    ops = [op("read", path=secret), op("read", path=f"{link}/secret")]
    worked(actor.bare(ops))
    run = actor.box([*ops, op("read", "twin", path=f"{actor.workspace}/README")], tier=tier, hide=[f"{link}/secret"])
    failed_with({item["id"]: run.answers[item["id"]] for item in ops}, {"ENOENT", "EACCES"})
    run.value("twin")
    # A path that does not exist may be hidden too.
    assert actor.run(["true"], tier=tier, hide=[f"{actor.workspace}/no/such"]).returncode == 0


@pytest.fixture
def linked_home(actor: Actor) -> Iterator[dict[str, str]]:
    """HOME names a symbolic link to the home."""
    link = "/var/tmp/linked-home"
    actor.host(link).symlink_to(actor.home)
    yield {**actor.env, "HOME": link}
    actor.remove(link)


@requirement("B.hide_through_symlink")
@pytest.mark.parametrize("tier", TIERS)
def test_a_home_behind_a_link_is_protected_in_both_spellings(actor: Actor, linked_home: dict[str, str], tier: str) -> None:
    actor.put(f"{actor.home}/.aws/credentials", "field-needle")
    state = actor.put(f"{actor.home}/.local/state/stockade/keys/k", "field-needle")
    homes = (actor.home, linked_home["HOME"])
    ops = [op("read", path=state.replace(actor.home, home)) for home in homes]
    if tier != "standard":
        ops += [op("read", path=f"{home}/.aws/credentials") for home in homes]
    worked(actor.bare(ops))
    run = actor.box(ops, tier=tier, env=linked_home)
    failed_with(run.answers, {"ENOENT"})


@requirement("B.odd_cwd")
@pytest.mark.parametrize("tier", TIERS)
def test_the_home_as_cwd_grants_nothing_and_says_so(actor: Actor, tier: str) -> None:
    plain = actor.put(f"{actor.home}/plain.txt", "before", 0o644)
    for cwd in (actor.home, "/"):
        run = actor.run(["sh", "-c", f"echo x > {plain} 2>/dev/null; echo x > scratch-file; pwd"], tier=tier, cwd=cwd)
        assert run.returncode == 0, run.stderr
        assert run.stdout.strip() not in (actor.home, "/"), "cwd becomes the private scratch"
        assert not actor.host(f"{cwd}/scratch-file").exists()
    assert actor.host(plain).read_text() == "before"


@requirement("B.odd_cwd")
@pytest.mark.parametrize("tier", TIERS)
def test_odd_working_directories_are_resolved_or_refused(actor: Actor, fresh_repo: str, tier: str) -> None:
    sub = actor.make_dir(f"{fresh_repo}/sub")
    up = actor.run(["pwd"], tier=tier, cwd=fresh_repo, **{"cwd_arg": f"{sub}/.."})
    assert up.stdout.strip() == fresh_repo
    for bad in (f"{fresh_repo}/README", f"{fresh_repo}/no-such-dir"):
        run = actor.run(["pwd"], tier=tier, cwd=fresh_repo, **{"cwd_arg": bad})
        assert run.code is not None and run.refused is not None and run.refused["hint"], bad
    script = ("import os, sys\nsys.path.insert(0, sys.argv[1])\nimport stockade\nos.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
              "try:\n    print('ran', stockade.run(['pwd'], tier=sys.argv[2], caller='operator', capture_output=True).returncode)\n"
              "except stockade.Error as e:\n    print('typed', e.code)\n")
    done = actor.call([PYTHON, "-B", "-c", script, str(actor.stage.lib), tier], cwd=fresh_repo)
    assert done.stdout.startswith(b"typed "), (done.stdout, done.stderr)


@requirement("B.git_layouts")
@pytest.mark.parametrize("tier", ["guarded", "strict"])
def test_linked_worktrees_and_submodules_work_and_are_guarded(actor: Actor, fresh_repo: str, tier: str) -> None:
    tree, inner = f"{actor.home}/work/linked-{tier}", f"{actor.home}/work/inner-{tier}"
    for path in (tree, inner):
        actor.remove(path)
    make_repository(actor, inner)
    actor.sh(f"git config extensions.worktreeConfig true; git worktree add -q {tree}; git -c protocol.file.allow=always submodule --quiet add {inner} module; git commit -q -m module",
             cwd=fresh_repo)
    run = actor.run(["sh", "-ec", "echo x >> README; git add README; git commit -q -m from-worktree; git status --short; git log -1 --format=%s"], tier=tier, cwd=tree)
    assert (run.returncode, run.stdout.strip()) == (0, "from-worktree"), run.stderr
    ops = [op("rewrite", path=f"{tree}/.git"), op("rename", path=f"{tree}/.git", to=f"{tree}/x"), op("rewrite", path=f"{fresh_repo}/.git/config"),
           op("create", "hook", path=f"{fresh_repo}/.git/hooks/post-commit")]
    worked(actor.bare(ops, cwd=tree))
    failed_with(actor.box(ops, tier=tier, cwd=tree).answers, {"EROFS", "EBUSY", "ENOENT"})
    module = [op("rewrite", path=f"{fresh_repo}/.git/modules/module/config"), op("create", "hook", path=f"{fresh_repo}/.git/modules/module/hooks/post-commit"),
              op("rename", path=f"{fresh_repo}/.git/modules", to=f"{fresh_repo}/.git/m2")]
    worked(actor.bare(module, cwd=fresh_repo))
    failed_with(actor.box(module, tier=tier, cwd=fresh_repo).answers, {"EROFS", "EBUSY"})
    for path in (tree, inner):
        actor.remove(path)


@requirement("B.git_layouts")
@pytest.mark.parametrize("tier", ["guarded", "strict"])
def test_bare_repositories_and_plain_directories_work(actor: Actor, tier: str) -> None:
    bare, plain = f"{actor.home}/work/bare-{tier}.git", actor.make_dir(f"{actor.home}/work/plain-{tier}")
    actor.make_dir(bare)
    actor.sh("git init -q --bare .", cwd=bare)
    ops = [op("rewrite", path=f"{bare}/config"), op("create", "hook", path=f"{bare}/hooks/post-receive")]
    worked(actor.bare(ops, cwd=bare))
    failed_with(actor.box(ops, tier=tier, cwd=bare).answers, {"EROFS"})
    worked(actor.box([op("create", path=f"{plain}/x"), op("rewrite", "file", path=actor.put(f"{plain}/f", "x", 0o644))], tier=tier, cwd=plain).answers)


@requirement("B.git_layouts")
def test_a_directory_the_user_does_not_own_has_an_answer(root: Actor, user: Actor) -> None:
    foreign = "/tmp/foreign"
    user.host(foreign).mkdir(mode=0o755, exist_ok=True)
    (user.host(foreign) / "file").write_text("readable")
    run = user.run(["sh", "-c", "cat file; touch new 2>/dev/null && echo wrote || echo no"], tier="guarded", cwd=foreign)
    assert (run.code, run.stdout) == (None, "readableno\n"), run.raw
    user.remove(foreign)


@requirement("B.right_on_file")
@pytest.mark.parametrize("tier", TIERS)
def test_rights_on_files_and_renames_across_directories_work(actor: Actor, fresh_repo: str, tier: str) -> None:
    file = actor.put(f"{actor.elsewhere}/one-file", "content", 0o644)
    actor.make_dir(f"{fresh_repo}/a")
    actor.make_dir(f"{fresh_repo}/b")
    actor.put(f"{fresh_repo}/a/f", "x", 0o644)
    run = actor.box([op("read", path=file), op("rename", path=f"{fresh_repo}/a/f", to=f"{fresh_repo}/b/f"), op("link", path=f"{fresh_repo}/a/f", to=f"{fresh_repo}/b/l"),
                     op("rename", "dir", path=f"{fresh_repo}/a", to=f"{fresh_repo}/b/a")], tier=tier, cwd=fresh_repo, read=[file])
    worked(run.answers)


@requirement("B.hard_link_backups")
@pytest.mark.parametrize("tier", TIERS)
def test_hard_link_backups_of_ordinary_files_stop_nothing(actor: Actor, fresh_repo: str, tier: str) -> None:
    backup = f"{actor.home}/backup"
    actor.remove(backup)
    actor.sh(f"mkdir d; for n in $(seq 300); do echo $n > d/$n; done; cp -al {fresh_repo} {backup}", cwd=fresh_repo)
    run = actor.run(["sh", "-c", "echo y > d/1 && cat d/1"], tier=tier, cwd=fresh_repo)
    actor.remove(backup)
    assert run.code is None and run.stdout == "y\n", run.raw


@requirement("C.no_planted_code")
@pytest.mark.parametrize("tier", TIERS)
def test_planted_modules_and_programs_run_nothing_outside(actor: Actor, fresh_repo: str, tier: str) -> None:
    """The command line of the product itself is started in the hostile directory."""
    marker = f"{actor.home}/planted-ran"
    actor.remove(marker)
    code = f"open({marker!r}, 'w').write('x')\n"
    for name in ("struct.py", "sitecustomize.py", "usercustomize.py", "json.py", "subprocess.py", "stockade.py", "evil.pth"):
        actor.put(f"{fresh_repo}/{name}", code if name.endswith(".py") else f"import os; {code}", 0o644)
    for name in ("gcc", "git", "python3", "mount", "stockade-launch", "ldd"):
        actor.put(f"{fresh_repo}/bin/{name}", f"#!/bin/sh\necho x > {marker}\n", 0o755)
    site = f"{actor.home}/.local/lib/python3.11/site-packages"
    actor.put(f"{site}/evil.pth", f"import os; {code}", 0o644)
    env = {**actor.env, "PATH": f"{fresh_repo}/bin:{actor.env['PATH']}", "PYTHONPATH": fresh_repo, "PYTHONSTARTUP": f"{fresh_repo}/struct.py"}
    for planted in ([PYTHON, "-c", "import struct"], ["git"]):
        actor.call(planted, cwd=fresh_repo, env=env)
        assert actor.host(marker).exists(), f"without a box {planted} runs what was planted"
        actor.remove(marker)
    # The driver starts isolated, as an installed console script does: no user site, no cwd.
    run = actor.run(["/bin/sh", "-c", "echo inside"], tier=tier, cwd=fresh_repo, env=env)
    assert run.stdout == "inside\n", run.raw
    shutil.rmtree(actor.host(f"{actor.home}/.local/lib"))
    assert not actor.host(marker).exists()


@requirement("C.big_environment")
@pytest.mark.parametrize("tier", TIERS)
def test_large_and_odd_environments_pass_or_are_refused_by_name(actor: Actor, tier: str) -> None:
    env = {**actor.env, **{f"V{n}": "x" * 20 for n in range(5000)}, "LONG": "y" * 100_000, "ODD_VALUE": "\udcff\udcfe", "name with space": "v", "\udcffNAME": "v"}
    run = actor.run([PYTHON, "-c", "import os; print(len(os.environ), len(os.environ.get('LONG', '')), os.environb.get(b'ODD_VALUE'))"], tier=tier, env=env,
                    pass_env=["LONG", "ODD_VALUE"])
    assert run.code is None, run.raw
    count, long, odd = run.stdout.split(" ", 2)
    assert int(long) == 100_000 and odd.strip() == repr(b"\xff\xfe")
    assert int(count) > 5000 if tier != "strict" else int(count) < 100
    bad = actor.run(["true"], tier=tier, set_env={"A=B": "x"})
    assert bad.code is not None and bad.refused != "x", bad.raw


@requirement("F.marker_does_not_disable")
@pytest.mark.parametrize("tier", TIERS)
def test_forged_markers_change_nothing(actor: Actor, tier: str) -> None:
    names = ("STOCKADE_ACTIVE", "STOCKADE_TIER", "STOCKADE_BOX", "STOCKADE_RUN_ID", "STOCKADE_INSIDE", "STOCKADE_DISABLE", "IN_SANDBOX", "SANDBOX_RUNTIME", "container", "CODEX_SANDBOX")
    env = {**actor.env, **dict.fromkeys(names, "strict")}
    actor.put(f"{actor.elsewhere}/file", "x", 0o644)
    run = actor.box([op("rewrite", path=f"{actor.elsewhere}/file"), op("status", "status")], tier=tier, env=env, read=[actor.elsewhere])
    assert run.answers[f"rewrite {actor.elsewhere}/file"]["errno"] == "EROFS"
    assert run.value("status")["Seccomp"] == "2" and run.receipt["effective_tier"] == tier


@requirement("F.never_silently_weaker")
@pytest.mark.parametrize("tier", TIERS)
def test_a_host_without_namespaces_gets_a_typed_refusal(actor: Actor, tier: str) -> None:
    """No user namespace may be made here: all of the tier in another way, or the command never runs."""
    marker = f"{actor.workspace}/weaker-ran"
    loader = [str(actor.stage.bin / "fault_loader"), "clone:EPERM:0:0x10000000:0x10000000", "unshare:EPERM:0:0x10000000:0x10000000", "--"]
    run = actor.run(["touch", marker], tier=tier, before=loader, env={**actor.env, "STOCKADE_HOME": f"{actor.home}/other-state"})
    actor.remove(f"{actor.home}/other-state")
    if actor.uid and tier == "standard":  # nothing of that tier needs namespaces or guards
        assert (run.receipt["backend"], run.receipt["effective_tier"]) == ("landlock", tier), run.raw
        actor.remove(marker)
        return
    codes = ("no_backend", "userns_denied", "transient", "foreign_sandbox", "promise_not_kept")
    assert run.refused is not None and run.code in codes, run.raw
    assert run.refused["remedy"] or run.refused["hint"]
    if run.code in ("no_backend", "promise_not_kept"):
        assert run.refused["missing"]
    assert not actor.host(marker).exists()


@requirement("F.probe_agrees")
@pytest.mark.parametrize("tier", TIERS)
def test_decision_probe_and_run_agree_also_from_another_process(actor: Actor, tier: str) -> None:
    script = ("import sys\nsys.path.insert(0, sys.argv[1])\nimport stockade\n"
              "d = stockade.decide(['true'], tier=sys.argv[2], caller='operator', net='none')\nprint(getattr(d.kind, 'value', d.kind), d.row)\n")
    first, second = (actor.call([PYTHON, "-B", "-c", script, str(actor.stage.lib), tier]).stdout for _ in range(2))
    assert first == second == b"wrap D2\n"
    assert actor.run(["true"], tier=tier).receipt["effective_tier"] == tier
    loader = [str(actor.stage.bin / "fault_loader"), "pivot_root:EPERM", "--"]
    env = {**actor.env, "STOCKADE_HOME": f"{actor.home}/probe-state"}
    blocked = actor.call([*loader, PYTHON, "-B", "-c", script, str(actor.stage.lib), tier], env=env)
    refused = actor.run(["true"], tier=tier, before=loader, env=env)
    actor.remove(f"{actor.home}/probe-state")
    if actor.uid == 0:
        assert blocked.stdout.startswith(b"refuse D6"), (blocked.stdout, blocked.stderr)
        assert refused.code is not None
        return
    # The other backend; what it loses in a repository is found when the plan is made.
    assert blocked.stdout == b"wrap D2\n", (blocked.stdout, blocked.stderr)
    assert refused.code == "promise_not_kept" if tier != "standard" else refused.receipt["backend"] == "landlock", refused.raw


@requirement("F.missing_sandbox_is_named")
def test_a_missing_launcher_is_named_and_is_no_missing_command(actor: Actor) -> None:
    lib = actor.stage.root / f"lib-without-{actor.name}"
    shutil.copytree(actor.stage.lib, lib)
    (lib / "stockade" / "_bin" / "stockade-launch").unlink()
    env = {**actor.env, "STOCKADE_HOME": f"{actor.home}/missing-state"}
    run = actor.run(["true"], tier="strict", lib=str(lib), env=env)
    shutil.rmtree(lib)
    actor.remove(f"{actor.home}/missing-state")
    assert run.code is not None and run.code not in ("not_found", "exec_failed"), run.raw
    assert "launcher" in run.refused["text"] or "stockade-launch" in run.refused["text"], run.refused


@requirement("F.policy_fails_closed")
@pytest.mark.parametrize("text", ["min_tier = 'paranoid'\n", "this is not toml", "unknown_key = 1\n", "min_tier = 3\n"])
def test_an_invalid_policy_refuses_every_request(actor: Actor, text: str) -> None:
    path = actor.put(f"{actor.home}/.config/stockade/policy.toml", text, 0o644)
    try:
        for tier in ("off", "standard", "strict"):
            run = actor.run(["true"], tier=tier)
            assert run.code == "policy_invalid" and "policy.toml" in run.refused["text"], run.raw
    finally:
        actor.remove(path)
    assert actor.run(["true"], tier="standard").code is None


@requirement("F.policy_fails_closed")
def test_a_floor_beats_every_opt_in(actor: Actor) -> None:
    path = actor.put(f"{actor.home}/.config/stockade/policy.toml", 'min_tier = "guarded"\nmax_net = "none"\ndeny_accept = ["fs.credentials"]\n', 0o644)
    try:
        for tier in ("off", "standard", "guarded"):
            raised = actor.run(["true"], tier=tier, net="none", accept=["standard"])
            assert (raised.code, raised.receipt["effective_tier"], raised.receipt["net"]) == (None, "guarded", "none"), raised.raw
        clamped = actor.run(["true"], tier="strict", net="host")
        assert clamped.code == "policy_denied" or clamped.receipt["net"] == "none", clamped.raw
        accepted = actor.run(["true"], tier="guarded", net="none", read=[actor.put(f"{actor.home}/.aws/credentials")], accept=["fs.credentials"])
        assert accepted.code == "grant_voids_tier", accepted.raw
        assert actor.run(["true"], tier="strict", net="none").receipt["effective_tier"] == "strict"
    finally:
        actor.remove(path)


@requirement("F.unknown_names")
def test_unknown_names_are_errors_that_name_the_nearest(actor: Actor) -> None:
    cases = [({"tier": "strickt"}, "strict"), ({"profile": ["nmp"]}, "npm"), ({"accept": ["fs.hoem"]}, "fs.home"), ({"sockets": ["ssh-agnet"]}, "ssh-agent"),
             ({"allow": ["git-confg"]}, "git-config"), ({"limits": {"procesess": 3}}, "processes"), ({"caller": "operater"}, "operator"), ({"net": "hsot"}, "host")]
    for kwargs, nearest in cases:
        tier = kwargs.pop("tier", "standard")
        run = actor.run(["true"], tier=tier, **kwargs)
        assert run.refused is not None, kwargs
        assert nearest in run.refused["text"] + str(run.refused["hint"]), run.refused


@requirement("F.forged_refusal")
@pytest.mark.parametrize("tier", TIERS)
def test_a_child_that_plays_the_launcher_is_not_believed(actor: Actor, tier: str) -> None:
    script = "echo 'stockade: refused: mount_denied: x: EACCES (hint: y)' >&2; echo '{\"record\":\"refused\",\"code\":\"mount_denied\"}'; for f in 3 4 5 6 7 8 9; do echo '{\"record\":\"refused\"}' >&$f; done 2>/dev/null; exit 125"
    run = actor.run(["/bin/bash", "-c", script], tier=tier)
    assert run.code is None and run.returncode == 125
    assert run.receipt["end"]["exit_code"] == 125 and run.receipt["effective_tier"] == tier


@requirement("names.alternatives")
@pytest.mark.parametrize("tier", TIERS)
def test_a_workspace_under_tmp_is_there_and_the_rest_of_tmp_is_private(actor: Actor, tier: str) -> None:
    other = actor.put("/tmp/other-file", "host tmp", 0o644)
    workspace = make_repository(actor, f"/tmp/ws-{tier}")
    ops = [op("read", path=f"{workspace}/README"), op("create", path=f"{workspace}/new", keep=True), op("read", path=other), op("create", path="/tmp/private", keep=True)]
    run = actor.box(ops, tier=tier, cwd=workspace)
    assert run.answers[f"read {other}"]["errno"] == "ENOENT"
    worked(run.answers, but={f"read {other}"})
    assert actor.host(f"{workspace}/new").exists() and not actor.host("/tmp/private").exists()
    if tier != "standard":
        failed_with(actor.box([op("create", path=f"{workspace}/.git/hooks/post-commit"), op("rename", path=f"{workspace}/.git", to=f"{workspace}/x")], tier=tier, cwd=workspace).answers,
                    {"EROFS", "EBUSY"})
    actor.remove(workspace)


@requirement("names.alternatives")
@pytest.mark.parametrize("tier", TIERS)
def test_root_with_a_checkout_of_another_user(root: Actor, tier: str) -> None:
    """Files that root's box makes belong to the checkout's owner; root's own files do not open."""
    workspace = f"/tmp/checkout-{tier}"
    make_repository(root, workspace)
    owner = 54321
    for directory, names, files in os.walk(root.host(workspace)):
        for name in [".", *names, *files]:
            os.chown(Path(directory) / name, owner, owner, follow_symlinks=False)
    private = root.put(f"{root.elsewhere}/root-only", "root", 0o600)
    run = root.box([op("create", path=f"{workspace}/new", keep=True), op("rewrite", path=f"{workspace}/README", keep=True), op("read", path=private),
                    op("run", "git", argv=["git", "status", "--short"]), op("who", "who")], tier=tier, cwd=workspace, read=[root.elsewhere])
    made = root.host(f"{workspace}/new").stat()
    assert (made.st_uid, made.st_gid) == (owner, owner)
    assert root.host(f"{workspace}/README").stat().st_uid == owner
    assert run.value("who")["uid"] == 0
    git = run.value("git")
    assert git["status"] == 0 and "README" in git["out"], git
    root.remove(workspace)


@requirement("mechanism.without_landlock")
@at_tiers("fs.write_roots")
def test_mounts_and_namespaces_hold_with_landlock_switched_off(actor: Actor, tier: str) -> None:
    """The compiled plan, run with its Landlock part removed: what mounts claim must hold alone."""
    import json

    from support.plans import launch

    secret = actor.put(f"{actor.home}/.aws/credentials", "needle")
    state = actor.put(f"{actor.home}/.local/state/stockade/keys/k", "needle")
    actor.put(f"{actor.elsewhere}/file", "elsewhere", 0o644)
    victim = actor.agent.pid
    ops = [op("rewrite", path=f"{actor.elsewhere}/file"), op("chmod", path=f"{actor.elsewhere}/file"), op("create", path=f"{actor.elsewhere}/new"), op("read", path=state),
           op("kill", pid=victim, signal=0), op("read", path=f"/proc/{victim}/environ"), op("write_open", path="/proc/1/mem")]
    if tier != "standard":
        ops += [op("read", path=secret), op("create", "hook", path=f"{actor.workspace}/.git/hooks/post-commit"), op("rename", path=f"{actor.workspace}/.git", to=f"{actor.workspace}/x")]
    job = actor.put(f"{actor.workspace}/ops.json", json.dumps(ops), 0o644)
    argv = [PYTHON, str(actor.stage.bin / "probe.py"), job]
    made = actor.plan(argv, tier=tier, read=[actor.elsewhere])
    assert made["plan"]["landlock"] is not None, "Landlock is the second mechanism on this host"
    line = made["argv"]
    options = [item for at, word in enumerate(line) if word in ("--bind", "--cwd") for item in (word, line[at + 1])]
    before = snapshot(actor.host(actor.elsewhere))
    for landlock in (made["plan"]["landlock"], None):
        ended = launch(actor, made["plan"] | {"landlock": landlock}, argv, options=options)
        assert ended.status == 0, (ended.err, ended.records)
        answers = json.loads(ended.out)
        failed_with(answers, {"EROFS", "ENOENT", "ESRCH", "EACCES", "EPERM", "EBUSY"})
        assert ended.records["launch"]["effective_tier"] == tier, ended.records["launch"]["missing"]
    assert changes(before, snapshot(actor.host(actor.elsewhere))) == {}
