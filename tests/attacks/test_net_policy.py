"""net.policy: none is none, host is the host's network, and the receipt says which."""

from __future__ import annotations

from requirements import at_tiers, requirement
from support.actors import Actor
from support.boxes import failed_with, kept, op, worked
from support.sockets import bind_sockets, unbind_sockets


@requirement("net.policy")
@at_tiers("net.policy")
def test_with_net_none_nothing_of_the_host_answers(actor: Actor, tier: str) -> None:
    port = actor.agent.do("listen_tcp")
    ops = [op("tcp", "loopback", host="127.0.0.1", port=port), op("interfaces", "interfaces")]
    bare = actor.bare(ops)
    worked(bare)
    run = actor.box([*ops, op("tcp", "outside", host="198.51.100.1", port=80), op("udp", "udp", host="198.51.100.1", port=53),
                     op("loopback", "own loopback")], tier=tier, net="none")
    failed_with({"loopback": run.answers["loopback"]}, {"ECONNREFUSED"})
    failed_with({name: run.answers[name] for name in ("outside", "udp")}, {"ENETUNREACH"})
    assert run.value("interfaces") == ["lo"]
    worked({"own loopback": run.answers["own loopback"]})
    assert run.receipt["net"] == "none"
    kept(run, "net.policy", tier)


@requirement("net.policy")
@at_tiers("net.policy")
def test_with_net_host_the_hosts_network_is_there(actor: Actor, tier: str) -> None:
    port = actor.agent.do("listen_tcp")
    ops = [op("tcp", "loopback", host="127.0.0.1", port=port), op("interfaces", "interfaces")]
    run = actor.box(ops, tier=tier, net="host")
    worked(run.answers)
    assert run.value("interfaces") == actor.bare(ops)["interfaces"]["value"]
    assert run.receipt["net"] == "host"
    kept(run, "net.policy", tier)


@requirement("net.policy")
@at_tiers("net.policy")
def test_no_name_service_of_the_host_answers_without_net(actor: Actor, tier: str) -> None:
    bound = bind_sockets(actor, ["/run/systemd/resolve/io.systemd.Resolve", "/run/nscd/socket", "/run/dbus/system_bus_socket"])
    ops = [op("connect", path=path) for path in bound]
    worked(actor.bare(ops))
    run = actor.box([*ops, op("read", "nss", path="/etc/nsswitch.conf"), op("run", "hosts", argv=["getent", "hosts", "localhost"])], tier=tier, net="none")
    failed_with({item["id"]: run.answers[item["id"]] for item in ops}, {"ENOENT", "ECONNREFUSED", "EACCES"})
    hosts = [line for line in run.value("nss").splitlines() if line.startswith("hosts:")]
    assert hosts and set(hosts[0].split()[1:]) <= {"files", "dns"}, hosts
    assert run.value("hosts")["status"] == 0
    unbind_sockets(actor, bound)


@requirement("net.policy")
@at_tiers("net.policy")
def test_a_network_list_is_refused_by_name(actor: Actor, tier: str) -> None:
    run = actor.run(["true"], tier=tier, net=["example.invalid:443"])
    assert run.code == "net_unsupported"


@requirement("net.policy")
@at_tiers("net.policy")
def test_the_network_configuration_cannot_be_changed(root: Actor, tier: str) -> None:
    """Without a box all three work: shown in a network namespace that is thrown away."""
    attempts = {"mtu": "ip link set lo mtu 1400", "address": "ip address add 192.0.2.77/32 dev lo", "forward": "echo 1 > /proc/sys/net/ipv4/ip_forward"}
    script = "command -v ip >/dev/null || echo no-ip; " + "; ".join(f"({text}) 2>/dev/null && echo {name}" for name, text in attempts.items()) + "; exit 0"
    look = ["/bin/sh", "-c", "cat /proc/sys/net/ipv4/ip_forward; ip -o address; cat /sys/class/net/lo/mtu"]
    bare = root.call(["unshare", "-n", "sh", "-c", script])
    assert bare.stdout.decode().split() == list(attempts), bare.stderr
    before = root.call(look).stdout
    assert b"127.0.0.1" in before and b"192.0.2.77" not in before
    for net in ("none", "host"):
        run = root.run(["sh", "-c", script], tier=tier, net=net)
        assert (run.returncode, run.stdout) == (0, ""), run.stdout
        assert root.call(look).stdout == before
