"""fs.own_state: keys cannot be read, state, configuration and package cannot be changed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from requirements import at_tiers, requirement
from support.actors import PYTHON, Actor
from support.boxes import failed_with, kept, op, worked
from support.trees import changes, snapshot

HIDDEN = {"ENOENT"}
READ_ONLY = {"EROFS", "ENOENT", "EBUSY", "EACCES"}


@pytest.fixture
def state(actor: Actor) -> Iterator[str]:
    """A state home with a key, an app secret, a plan and a log."""
    actor.box([op("environ")], tier="standard")
    state = f"{actor.home}/.local/state/stockade"
    files = [f"{state}/{name}" for name in ("keys/signing.key", "apps/chat/secret", "audit/probe.log", "plans/probe.json", "run/probe", "trust.json")]
    for path in files:
        actor.put(path, "own-state-secret\n")
    files.append(actor.put(f"{actor.home}/.config/stockade/config.toml", ""))
    yield state
    for path in files:
        actor.remove(path)


@requirement("fs.own_state")
@at_tiers("fs.own_state")
def test_keys_and_app_secrets_do_not_exist_inside(actor: Actor, state: str, tier: str) -> None:
    ops = [op("read", path=f"{state}/keys/signing.key"), op("list", path=f"{state}/keys/"), op("read", path=f"{state}/apps/chat/secret"),
           op("stat", path=f"{state}/keys/signing.key"),
           op("read", "dots", path=f"{state}/plans/../keys/signing.key"),
           op("read", "proc root", path=f"/proc/self/root{state}/keys/signing.key")]
    worked(actor.bare(ops))
    witness = actor.put(f"{actor.workspace}/witness", "own-state-secret\n", 0o644)
    run = actor.box([*ops, op("find", "find", path=actor.home, needle="own-state-secret")], tier=tier)
    actor.remove(witness)
    failed_with(run.answers, HIDDEN, but={"find", f"list {state}/keys/"})
    # A hidden directory may also be there and empty; what counts is that no name of it shows.
    listed = run.answers[f"list {state}/keys/"]
    assert listed["errno"] == "ENOENT" or listed["value"] == []
    assert witness in run.value("find"), "the search looked nowhere"
    assert [path for path in run.value("find") if "/keys/" in path or "/apps/" in path] == []
    kept(run, "fs.own_state", tier)


@requirement("fs.own_state")
@at_tiers("fs.own_state")
def test_state_and_configuration_cannot_be_changed(actor: Actor, state: str, tier: str) -> None:
    config = f"{actor.home}/.config/stockade"
    ops = [op("rewrite", path=f"{state}/audit/probe.log"), op("create", path=f"{state}/plans/{'0' * 64}.json"),
           op("create", path=f"{state}/run/new"), op("rewrite", path=f"{state}/trust.json"), op("rewrite", path=f"{config}/config.toml"),
           op("create", path=f"{config}/profiles.toml"), op("rename", path=state, to=f"{state}.away"),
           op("rename", path=config, to=f"{config}.away"), op("chmod", path=f"{state}/plans/probe.json")]
    worked(actor.bare(ops))
    before = snapshot(actor.host(state), ("audit/spool", "plans", "run", "probe-cache"))
    run = actor.box(ops, tier=tier)
    if tier != "strict":
        failed_with(run.answers, READ_ONLY)
    # At strict the private home may take a write; it must not be the host's file.
    assert changes(before, snapshot(actor.host(state), ("audit/spool", "plans", "run", "probe-cache"))) == {}
    assert actor.host(f"{config}/config.toml").read_text() == ""
    assert not actor.host(f"{config}/profiles.toml").exists()


@requirement("fs.own_state")
@at_tiers("fs.own_state")
def test_a_write_root_above_the_state_home_is_refused(actor: Actor, state: str, tier: str) -> None:
    for named in (actor.home, f"{actor.home}/.local", f"{actor.home}/.local/state", state):
        run = actor.run(["true"], tier=tier, write=[named])
        assert run.code is not None, f"write root {named} was granted"


@requirement("fs.own_state")
@at_tiers("fs.own_state")
def test_the_package_and_launcher_cannot_be_changed(actor: Actor, tier: str) -> None:
    """A package that the caller owns: without the box each change works, for both callers."""
    lib = actor.make_dir(f"{actor.home}/own-lib")
    shutil.copytree(actor.stage.lib / "stockade", actor.host(f"{lib}/stockade"), dirs_exist_ok=True)
    subprocess.run(["chown", "-R", f"{actor.uid}:{actor.gid}", str(actor.host(lib))], check=True)
    ops = [op("write_open", path=f"{lib}/stockade/_bin/stockade-launch"), op("write_open", path=f"{lib}/stockade/errors.py"), op("create", path=f"{lib}/sitecustomize.py"),
           op("rename", path=f"{lib}/stockade", to=f"{lib}/gone"), op("unlink", path=f"{lib}/stockade/errors.py")]
    worked(actor.bare(ops))
    before = snapshot(actor.host(lib), ("__pycache__",))
    run = actor.box([*ops, op("create", "twin", path=f"{actor.workspace}/twin")], tier=tier, lib=lib)
    # The running launcher is busy before it is read-only; at strict the directory around the package is the private home's.
    private = {f"create {lib}/sitecustomize.py"} if tier == "strict" else set()
    failed_with(run.answers, READ_ONLY | {"ETXTBSY"}, but={"twin", *private})
    worked({"twin": run.answers["twin"]})
    assert changes(before, snapshot(actor.host(lib), ("__pycache__",))) == {}
    actor.remove(lib)


@requirement("fs.own_state")
@at_tiers("fs.own_state")
def test_the_record_of_the_box_cannot_be_changed_or_covered(actor: Actor, tier: str) -> None:
    """A later start asks this record where it is: inside it must be the launcher's word only."""
    ops = [op("rewrite", path="/run/stockade/box.json"), op("create", path="/run/stockade/new"), op("rename", path="/run/stockade", to="/run/moved"),
           op("rename", "record", path="/run/stockade/box.json", to="/run/stockade/old"), op("chmod", path="/run/stockade/box.json")]
    run = actor.box([*ops, op("read", "twin", path="/run/stockade/box.json")], tier=tier)
    failed_with(run.answers, {"EROFS", "EBUSY", "EACCES", "EPERM"}, but={"twin"})
    assert json.loads(run.value("twin"))["tier"] == tier


@pytest.fixture
def venv(actor: Actor) -> Iterator[str]:
    """The package as part of a .venv inside the write root, owned by the caller."""
    venv = f"{actor.workspace}/.venv"
    site = f"{venv}/lib/python3.11/site-packages"
    actor.make_dir(site)
    shutil.copytree(actor.stage.lib / "stockade", actor.host(f"{site}/stockade"))
    subprocess.run(["chown", "-R", f"{actor.uid}:{actor.gid}", str(actor.host(venv))], check=True)
    actor.put(f"{venv}/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n", 0o644)
    actor.make_dir(f"{venv}/bin")
    actor.host(f"{venv}/bin/python3").symlink_to(PYTHON)
    yield site
    actor.remove(venv)


@requirement("fs.own_state")
@at_tiers("fs.own_state")
def test_an_install_inside_the_write_root_is_read_only(actor: Actor, venv: str, tier: str) -> None:
    ops = [op("rewrite", path=f"{venv}/stockade/errors.py"), op("create", path=f"{venv}/sitecustomize.py"),
           op("create", path=f"{venv}/evil.pth"), op("rewrite", path=f"{venv}/stockade/_bin/stockade-launch"),
           op("rename", path=f"{venv}/stockade", to=f"{venv}/gone"),
           op("rename", path=f"{actor.workspace}/.venv", to=f"{actor.workspace}/.venv-away"),
           op("rename", path=f"{actor.workspace}/.venv/lib", to=f"{actor.workspace}/.venv/lib-away")]
    worked(actor.bare(ops))
    run = actor.box([*ops, op("create", "twin", path=f"{actor.workspace}/twin")], tier=tier, lib=venv, python=f"{actor.workspace}/.venv/bin/python3")
    failed_with(run.answers, {"EROFS", "EBUSY", "EACCES"}, but={"twin"})
    worked({"twin": run.answers["twin"]})
    assert not actor.host(f"{venv}/evil.pth").exists() and actor.host(f"{venv}/stockade").is_dir()


@requirement("fs.own_state")
@at_tiers("fs.own_state")
def test_a_request_that_must_write_its_own_install_is_refused(actor: Actor, venv: str, tier: str) -> None:
    """The environment, the directory on the import path, the package itself."""
    for named in (f"{actor.workspace}/.venv", venv, f"{venv}/stockade", f"{venv}/stockade/_bin"):
        run = actor.run(["true"], tier=tier, write=[named], lib=venv, python=f"{actor.workspace}/.venv/bin/python3")
        assert run.code == "own_install", f"write root {named} was granted"


@requirement("fs.own_state")
@at_tiers("fs.own_state")
def test_a_write_root_on_the_import_path_is_refused_or_read_only(actor: Actor, tier: str) -> None:
    """No venv here: the package lies in a plain directory of the import path."""
    site = actor.make_dir(f"{actor.home}/pylib")
    shutil.copytree(actor.stage.lib / "stockade", actor.host(f"{site}/stockade"), dirs_exist_ok=True)
    subprocess.run(["chown", "-R", f"{actor.uid}:{actor.gid}", str(actor.host(site))], check=True)
    ops = [op("create", path=f"{site}/sitecustomize.py"), op("create", path=f"{site}/evil.pth"), op("rename", path=f"{site}/stockade", to=f"{site}/gone")]
    worked(actor.bare(ops))
    run = actor.run([PYTHON, str(actor.stage.bin / "probe.py")], tier=tier, stdin=json.dumps(ops), write=[site], lib=site)
    if run.code is None:
        failed_with(run.with_answers(ops).answers, {"EROFS", "EBUSY"})
    else:
        assert run.code == "own_install"
    actor.remove(site)


@requirement("fs.own_state")
@at_tiers("fs.own_state")
def test_the_usual_state_home_is_protected_also_when_another_one_is_in_use(actor: Actor, state: str, tier: str) -> None:
    """A service sets STOCKADE_HOME; the person's own state lies where it always does."""
    env = {**actor.env, "STOCKADE_HOME": f"{actor.home}/other-state"}
    secrets = [op("read", path=f"{state}/keys/signing.key"), op("read", path=f"{state}/apps/chat/secret")]
    writes = [op("rewrite", path=f"{state}/audit/probe.log"), op("create", path=f"{state}/plans/{'0' * 64}.json"), op("rename", path=state, to=f"{state}.away"),
              op("rewrite", path=f"{actor.home}/.config/stockade/config.toml")]
    worked(actor.bare([*secrets, *writes]))
    before = snapshot(actor.host(state))
    failed_with(actor.box([*secrets, *writes], tier=tier, env=env).answers, READ_ONLY)
    # The write root that holds it may be refused; if it is given, the state in it is not.
    wide = actor.run([PYTHON, str(actor.stage.bin / "probe.py")], tier=tier, env=env, stdin=json.dumps([*secrets, *writes]), write=[f"{actor.home}/.local"])
    if wide.code is None:
        failed_with(wide.with_answers([*secrets, *writes]).answers, READ_ONLY)
    else:
        assert wide.code in ("own_state", "write_root_refused", "grant_voids_tier"), wide.raw
    assert changes(before, snapshot(actor.host(state))) == {}
    actor.remove(f"{actor.home}/other-state")


@requirement("fs.own_state", "C.no_planted_code")
@at_tiers("fs.own_state")
def test_a_lying_home_does_not_open_the_state_of_the_account(actor: Actor, state: str, tier: str) -> None:
    false_home = actor.make_dir(f"{actor.home}/false-home")
    ops = [op("read", path=f"{state}/keys/signing.key"), op("read", path=f"{state}/apps/chat/secret"), op("rewrite", path=f"{state}/audit/probe.log")]
    worked(actor.bare(ops))
    before = actor.host(f"{state}/audit/probe.log").read_bytes()
    run = actor.box([*ops, op("create", "twin", path=f"{actor.workspace}/twin")], tier=tier, env={**actor.env, "HOME": false_home})
    failed_with(run.answers, READ_ONLY, but={"twin"})
    worked({"twin": run.answers["twin"]})
    assert actor.host(f"{state}/audit/probe.log").read_bytes() == before
    actor.remove(false_home)


@requirement("fs.own_state", "fs.write_roots")
@at_tiers("fs.own_state")
def test_what_a_box_says_to_the_record_is_bounded(actor: Actor, state: str, tier: str) -> None:
    """Connect, talk, hang up, again: the budget is the box's and not the connection's."""
    flood = ("import socket, time\nend = time.monotonic() + 1.5\nsent = 0\nwhile time.monotonic() < end:\n    try:\n        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
             "        s.connect('/run/stockade/box.sock')\n        for _ in range(100):\n            s.send(b'x' * 8000)\n            sent += 1\n        s.close()\n    except OSError:\n        pass\nprint(sent)\n")

    def size() -> int:
        return sum(path.stat().st_size for path in actor.host(f"{state}/audit").rglob("*"))

    before = size()
    run = actor.run([PYTHON, "-c", flood], tier=tier)
    assert run.code is None and int(run.stdout) > 0, run.raw
    assert 0 < size() - before < 1 << 20
    # What was dropped is said; the box's words are marked as its own.
    assert run.receipt["end"]["inside"] > 0 and run.receipt["end"]["degraded"], run.receipt["end"]
