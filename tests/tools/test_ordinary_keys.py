"""Keys that are used and not read: git over ssh with an agent, commits signed by a gpg-agent.

The server is an sshd of the caller's own on a free loopback port. The private keys lie where they
always lie; the box sees neither of them.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from requirements import requirement
from support.actors import Actor, make_repository
from support.live import wait_until
from tools.ordinary import Job, at_work, script
from tools.support import Tool

PUBLIC = {"strict": ["pubring.kbx", "trustdb.gpg"], "guarded": []}
AGENT = {"strict": ["ssh-agent"], "guarded": []}  # at guarded it is granted without being asked for


@dataclass(slots=True)
class Server:
    """One sshd and one agent of an account."""

    port: int
    origin: str
    auth_sock: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Of the repository that it serves."""
        return f"ssh://127.0.0.1:{self.port}{self.origin}"


@pytest.fixture
def server(actor: Actor, debian: Callable[..., Tool]) -> Iterator[Server]:
    """Keys, configuration, server and agent of the account."""
    debian("/usr/sbin/sshd", "openssh-server")
    made = Server(port=_free_port(), origin=f"{actor.home}/served/origin.git", auth_sock="/tmp/ssh-ordinary/agent.7")
    for path in (f"{actor.home}/.ssh", f"{actor.home}/served", "/tmp/ssh-ordinary"):
        actor.remove(path)
        actor.make_dir(path, 0o700)
    make_repository(actor, f"{actor.home}/served/tree")
    actor.sh("git clone -q --bare tree origin.git", cwd=f"{actor.home}/served")
    _lay_keys(actor, made)
    made.processes.append(actor.spawn(["/usr/sbin/sshd", "-D", "-e", "-f", f"{actor.home}/served/sshd_config"], stderr=subprocess.DEVNULL))
    made.processes.append(actor.spawn(["ssh-agent", "-D", "-a", made.auth_sock], stdout=subprocess.DEVNULL))
    try:
        wait_until(lambda: actor.call(["ssh", "127.0.0.1", "true"]).returncode == 0, "the server answers to the key of the home")
        wait_until(lambda: actor.call(["ssh-add", "-q", f"{actor.home}/.ssh/id_ed25519"], env=_with_agent(actor, made)).returncode == 0, "the agent has the key")
        yield made
    finally:
        for process in made.processes:
            process.terminate()
            process.wait(20)
        for path in (f"{actor.home}/.ssh", f"{actor.home}/served", "/tmp/ssh-ordinary"):
            actor.remove(path)


def _lay_keys(actor: Actor, server: Server) -> None:
    actor.sh("ssh-keygen -q -t ed25519 -N '' -f host_key && ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519 && cp ~/.ssh/id_ed25519.pub ~/.ssh/authorized_keys && "
             f"printf '[127.0.0.1]:{server.port} %s\\n' \"$(cat host_key.pub)\" > ~/.ssh/known_hosts", cwd=f"{actor.home}/served")
    actor.put(f"{actor.home}/.ssh/config", f"Host 127.0.0.1\n  Port {server.port}\n  BatchMode yes\n", 0o600)
    lines = [f"Port {server.port}", "ListenAddress 127.0.0.1", f"HostKey {actor.home}/served/host_key", "PidFile none", "UsePAM no", "StrictModes no",
             "PasswordAuthentication no", "PermitRootLogin prohibit-password", f"AuthorizedKeysFile {actor.home}/.ssh/authorized_keys"]
    actor.put(f"{actor.home}/served/sshd_config", "\n".join(lines) + "\n")
    actor.make_dir("/run/sshd")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _with_agent(actor: Actor, server: Server) -> dict[str, str]:
    return {**actor.env, "SSH_AUTH_SOCK": server.auth_sock}


# Readable without a box, and never in one.
SHUT = """if test -e /run/stockade/box.json; then ! cat {key} 2> /dev/null; else cat {key} > /dev/null; fi
"""
OVER_SSH = SHUT.format(key="~/.ssh/id_ed25519") + """
git clone -q URL clone && cd clone
echo more >> README && IDENTITY commit -qam "over ssh" && git push -q origin HEAD:master && git fetch -q
git log -1 --format=%s origin/master"""


@requirement("E.keys")
@pytest.mark.parametrize("tier", ["strict", "guarded"])
def test_git_clones_and_pushes_over_ssh_with_an_agent(actor: Actor, server: Server, tier: str) -> None:
    gap = {("root", tier): "root-ssh-agent"}
    text = OVER_SSH.replace("URL", server.url).replace("IDENTITY", "git -c user.name=t -c user.email=t@example.invalid")
    at_work(actor, Job(
        tool="git over ssh, agent", argv=script(text), shows="over ssh\n",
        env={"SSH_AUTH_SOCK": server.auth_sock}, tiers=[tier], net="host",
        grants={"sockets": AGENT[tier], "profile": ["git"]}, gaps=gap, says="Permission denied (publickey"))


@pytest.fixture
def signer(actor: Actor, debian: Callable[..., Tool]) -> Iterator[str]:
    """A key of the home's GnuPG and its agent; gives the address of the key."""
    debian("gpg", "gnupg")
    who = "signer@example.invalid"
    actor.remove(f"{actor.home}/.gnupg")
    actor.make_dir(f"{actor.home}/.gnupg", 0o700)
    actor.sh(f"gpg -q --batch --passphrase '' --quick-generate-key 'Signer <{who}>' ed25519 sign never && gpgconf --launch gpg-agent")
    yield who
    actor.sh("gpgconf --kill gpg-agent")
    actor.remove(f"{actor.home}/.gnupg")


SIGN = SHUT.format(key="~/.gnupg/private-keys-v1.d/*") + """
git commit -q -S --allow-empty -m signed
git log -1 --format='%G? %GS %s'"""


@requirement("E.keys")
@pytest.mark.parametrize("tier", ["strict", "guarded"])
def test_a_commit_is_signed_by_a_granted_agent(actor: Actor, signer: str, tier: str) -> None:
    at_work(actor, Job(
        tool="git commit -S, gpg-agent", argv=script(SIGN), shows="G Signer <signer@example.invalid> signed\n", tiers=[tier],
        lay=f"git config user.signingKey {signer}",
        grants={"sockets": ["gpg-agent"], "read": [f"{actor.home}/.gnupg/{name}" for name in PUBLIC[tier]], "profile": ["git"]}))
