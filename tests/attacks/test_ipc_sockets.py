"""ipc.sockets: no control socket and no path socket of the host is reachable unless granted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from requirements import at_tiers, requirement
from stockade.rules.load import load_list
from support.actors import Actor
from support.boxes import Op, failed_with, kept, op, worked
from support.live import LiveBox, wait_until
from support.sockets import bind_sockets, expand, own_parents, unbind_sockets

OUT_OF_REACH = {"ENOENT", "ECONNREFUSED", "EACCES", "ENOTDIR"}


@pytest.fixture(autouse=True)
def _hang_up(actor: Actor) -> Iterator[None]:
    """No socket of one test meets the next one."""
    yield
    actor.agent.do("forget")


def _granted_by_default(actor: Actor, tier: str) -> set[str]:
    """Where an ssh-agent may listen: granted at standard and guarded, by whatever name it has."""
    entries = [entry for entry in load_list("grants") if entry.id == "ssh-agent" and tier in entry.tiers]
    return {expand(path, actor) for entry in entries for path in (*entry.paths, *entry.examples)}


def _sockets(actor: Actor) -> list[str]:
    found = set()
    for entry in load_list("sockets"):
        named = [*([entry.path] if entry.path else []), *entry.paths, *entry.examples]
        found.update(expand(path, actor) for path in named)
    return sorted(path for path in found if not any(other.startswith(path + "/") for other in found))


@requirement("ipc.sockets")
@at_tiers("ipc.sockets")
@pytest.mark.parametrize("net", ["host", "none"])
def test_no_socket_of_the_list_can_be_connected(actor: Actor, tier: str, net: str) -> None:
    paths = bind_sockets(actor, _sockets(actor))
    assert len(paths) >= 20
    ops = [op("connect", path=path) for path in paths]
    worked(actor.bare(ops))
    run = actor.box(ops, tier=tier, net=net)
    failed_with(run.answers, OUT_OF_REACH, but={f"connect {path}" for path in _granted_by_default(actor, tier)})
    kept(run, "ipc.sockets", tier)
    unbind_sockets(actor, paths)


@pytest.fixture
def system_places(actor: Actor) -> Iterator[tuple[str, ...]]:
    """Directories of the system that can be filled in the actor's world alone."""
    places = tuple(place for place in ("/mnt", "/usr/local", "/var/lib") if os.path.isdir(place))
    enter = actor.world.enter(0, 0, "/")
    for place in places:
        layer = f"/dev/shm/layer{place}"
        script = f"mkdir -p {layer}/upper {layer}/work && mount -t overlay -o lowerdir={place},upperdir={layer}/upper,workdir={layer}/work stk {place}"
        subprocess.run([*enter, "sh", "-ec", script], check=True, timeout=30)
    yield places
    for place in places:
        subprocess.run([*enter, "umount", "-l", place], check=True, timeout=30)
    subprocess.run([*enter, "rm", "-rf", "/dev/shm/layer"], check=True, timeout=30)


@requirement("ipc.sockets")
@at_tiers("ipc.sockets")
def test_listed_sockets_in_directories_of_the_system_cannot_be_connected(actor: Actor, system_places: tuple[str, ...], tier: str) -> None:
    """Container engines and databases listen below /var/lib and the like, not below /run."""
    paths = [path for path in _sockets(actor) if path.startswith(tuple(f"{place}/" for place in system_places))]
    assert len(paths) >= 6, paths
    for path in paths:
        place = actor.host(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.chown(place.parent, actor.uid, actor.gid)
        place.parent.chmod(0o755)
        actor.agent.do("listen", path=path)
    ops = [op("connect", path=path) for path in paths]
    worked(actor.bare(ops))
    run = actor.box(ops, tier=tier)
    failed_with(run.answers, OUT_OF_REACH)
    kept(run, "ipc.sockets", tier)


@requirement("ipc.sockets")
@at_tiers("ipc.sockets")
def test_sockets_nobody_has_heard_of_are_out_of_reach(actor: Actor, tier: str) -> None:
    paths = [f"{actor.home}/.unheard/ctl.sock", "/tmp/unheard.sock", f"/run/user/{actor.uid}/unheard", f"{actor.elsewhere}/service.sock"]
    bound = bind_sockets(actor, paths)
    ops = [op("connect", path=path) for path in bound]
    ops += [op("connect", "proc root", path=f"/proc/self/root{actor.home}/.unheard/ctl.sock"), op("connect", "dots", path=f"{actor.workspace}/../../.unheard/ctl.sock")]
    worked(actor.bare(ops))
    failed_with(actor.box(ops, tier=tier, net="host").answers, OUT_OF_REACH)
    granted = actor.box(ops[:1], tier=tier, net="host", sockets=bound[:1])
    assert granted.answers[f"connect {bound[0]}"]["errno"] is None, "the twin: one that was granted"


@requirement("ipc.sockets", "C.kernel_side_doors")
@at_tiers("ipc.sockets")
def test_a_datagram_pair_cannot_be_aimed_at_a_host_path(actor: Actor, tier: str) -> None:
    places = [f"{actor.home}/.unheard/dgram", "/tmp/dgram.sock", f"/run/user/{actor.uid}/dgram"]
    for path in places:
        own_parents(actor, path)
        actor.remove(path)
        actor.agent.do("listen", path=path, type="dgram")
    ops: list[Op] = [op("dgram_pair", path=path, text="box-datagram") for path in places]
    worked(actor.bare(ops))
    assert actor.agent.do("received") == ["box-datagram"] * len(places), "without a box they arrive"
    run = actor.box(ops, tier=tier, net="host")
    failed_with(run.answers, OUT_OF_REACH | {"EPERM"})
    assert actor.agent.do("received") == []


@requirement("ipc.sockets")
@at_tiers("ipc.sockets")
def test_a_socket_bound_while_the_box_lives_is_out_of_reach(actor: Actor, tier: str) -> None:
    with LiveBox(actor, tier=tier, net="host") as box:
        paths = bind_sockets(actor, ["/tmp/late.sock", f"/run/user/{actor.uid}/late.sock", "/run/late.sock", f"{actor.home}/.ssh/agent/late"])
        ops = [op("connect", path=path) for path in paths]
        worked(actor.bare(ops))
        failed_with(box.ask(ops), OUT_OF_REACH)
        [twin] = box.ask([op("create", path=f"{actor.workspace}/twin")]).values()
        assert twin["errno"] is None, "the box lives, and works"


@requirement("ipc.sockets")
@at_tiers("ipc.sockets")
def test_the_ssh_agent_is_there_at_standard_and_guarded_only(actor: Actor, tier: str) -> None:
    path = f"/tmp/ssh-{os.urandom(4).hex()}/agent.1"
    bind_sockets(actor, [path])
    env = {**actor.env, "SSH_AUTH_SOCK": path}
    script = "import os, socket; s = socket.socket(socket.AF_UNIX); s.connect(os.environ['SSH_AUTH_SOCK']); print('ok')"
    run = actor.run(["/usr/bin/python3", "-c", script], tier=tier, env=env, net="host")
    assert (run.returncode == 0) is (tier != "strict"), run.stderr
    granted = actor.run(["/usr/bin/python3", "-c", script], tier=tier, env=env, net="host", sockets=["ssh-agent"])
    assert granted.stdout == "ok\n", granted.stderr


@requirement("ipc.sockets")
@at_tiers("ipc.sockets")
def test_a_granted_socket_and_sockets_of_the_box_work(actor: Actor, tier: str) -> None:
    path = f"{actor.home}/.service/granted.sock"
    bind_sockets(actor, [path, f"{actor.home}/.service/other.sock"])
    script = ("import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('own.sock')\ns.listen(1)\nc = socket.socket(socket.AF_UNIX)\nc.connect('own.sock')\n"
              "import os\nos.unlink('own.sock')\nprint('ok')")
    run = actor.box([op("connect", "granted", path=path), op("connect", "other", path=f"{actor.home}/.service/other.sock"),
                     op("run", "own", argv=["/usr/bin/python3", "-c", script])], tier=tier, sockets=[path])
    assert run.answers["granted"]["errno"] is None
    assert run.answers["other"]["errno"] in OUT_OF_REACH
    assert run.value("own")["out"] == "ok\n"


@requirement("ipc.sockets")
@at_tiers("ipc.sockets")
def test_a_socket_of_the_host_inside_a_write_root_is_out_of_reach(actor: Actor, fresh_repo: str, tier: str) -> None:
    """A development server of the project: the write root is a grant of files, not of its services."""
    inside = bind_sockets(actor, [f"{fresh_repo}/app.sock", f"{fresh_repo}/tmp/deep/db.sock", f"{fresh_repo}/granted.sock"])
    ops = [op("connect", path=path) for path in inside]
    ops += [op("rename", path=inside[0], to=f"{fresh_repo}/moved.sock"), op("link", path=inside[0], to=f"{fresh_repo}/hard.sock")]
    worked(actor.bare(ops, cwd=fresh_repo))
    script = ("import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('own.sock')\ns.listen(1)\nc = socket.socket(socket.AF_UNIX)\nc.connect('own.sock')\n"
              "import os\nos.unlink('own.sock')\nprint('ok')")
    run = actor.box([*ops, op("run", "own", argv=["/usr/bin/python3", "-c", script])], tier=tier, cwd=fresh_repo, sockets=[inside[2]])
    granted = run.answers.pop(f"connect {inside[2]}")
    assert granted["errno"] is None, granted
    assert run.value("own")["out"] == "ok\n"
    failed_with(run.answers, OUT_OF_REACH | {"EBUSY", "EROFS", "EXDEV"}, but={"own"})
    kept(run, "ipc.sockets", tier)
    unbind_sockets(actor, inside)


@requirement("ipc.sockets", "B.host_renames_over")
@at_tiers("ipc.sockets")
def test_a_server_in_a_write_root_that_binds_anew_stays_out_of_reach(actor: Actor, fresh_repo: str, tier: str) -> None:
    """Its name is removed and bound again while the box lives: covered again, or the box ends."""
    path = f"{fresh_repo}/app.sock"
    bind_sockets(actor, [path])
    ops = [op("connect", path=path)]
    with LiveBox(actor, tier=tier, cwd=fresh_repo, net="host") as box:
        failed_with(box.ask(ops), OUT_OF_REACH)
        actor.agent.do("listen", path=f"{path}.new")
        actor.agent.do("rename", path=f"{path}.new", to=path)
        worked(actor.bare(ops, cwd=fresh_repo))
        if tier == "strict":
            end = box.records(until="end")["end"]
            box.process.wait(20)
            assert (end["outcome"], end["guard_lost"]) == ("guard_lost", [path])
            return
        wait_until(lambda: box.ask(ops)[ops[0]["id"]]["errno"] in OUT_OF_REACH, "the new socket is covered")
        failed_with(box.ask([op("connect", f"again {number}", path=path) for number in range(20)]), OUT_OF_REACH)
        box.finish()
        assert box.records(until="end")["end"]["guard_lost"] == [path]
    unbind_sockets(actor, [path])


@requirement("ipc.sockets")
@at_tiers("ipc.sockets")
def test_a_container_engine_is_a_voiding_grant(actor: Actor, tier: str) -> None:
    bind_sockets(actor, ["/run/docker.sock"])
    refused = actor.run(["true"], tier=tier, sockets=["docker"])
    assert refused.code == "grant_voids_tier"
    assert refused.refused is not None and refused.refused["missing"]
