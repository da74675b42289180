"""Accounts and their worlds: who calls the product, with which home, /tmp and /run.

Owns ``World`` (a private mount namespace whose home, /tmp, /run and /var/tmp are fixtures, so
that no file of a real user is ever touched) and ``Actor`` (runs the same operations without and
with a box, as that account). Read next: ``boxes.py`` for the results, ``driver.py`` for what
runs as the account.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.boxes import BoxRun, Op, parse_answers
from support.builders import Stage

PYTHON = "/usr/bin/python3"
WAIT_S = 60
# Mounted over in the private namespace only. The directories must exist on the host.
FIXTURE_MOUNTS = (("/tmp", "1777"), ("/var/tmp", "1777"), ("/run", "0755"), ("/dev/shm", "1777"))


@dataclass(slots=True)
class World:
    """A mount namespace with fixture directories, alive as long as its holder."""

    holder: subprocess.Popen[bytes]
    as_root: bool

    def path(self, inside: str | Path) -> Path:
        """The same file, named from the namespace of the test run."""
        # In a world that has ended no file exists, and every "is not there" would hold.
        assert self.holder.poll() is None, "the fixture namespace has ended"
        return Path(f"/proc/{self.holder.pid}/root") / str(inside).lstrip("/")

    def enter(self, uid: int, gid: int, cwd: str | Path) -> list[str]:
        """Command prefix that runs a program in this world as the given account."""
        where = ["-m", "-t", str(self.holder.pid), f"--wdns={cwd}"]
        if self.as_root:
            return ["nsenter", *where, "-S", str(uid), "-G", str(gid), "--"]
        return ["nsenter", "-U", "--preserve-credentials", *where, "--"]

    def close(self) -> None:
        """End the holder: the kernel takes the mounts away with it."""
        assert self.holder.stdin is not None
        self.holder.stdin.close()
        self.holder.wait(WAIT_S)
        if self.holder.stdout is not None:
            self.holder.stdout.close()


def open_world(stage: Stage, home: str, *, mount_home: bool) -> World:
    """Make the namespace and wait until its mounts stand; the stage stays visible in it."""
    lines = [f"exec 9<{stage.root}"] + [f"mount -t tmpfs -o mode={mode} stk {path}" for path, mode in FIXTURE_MOUNTS]
    if mount_home:
        lines.append(f"mount -t tmpfs -o mode=0700 stk {home}")
    lines += [f"mkdir -p {stage.root}", f"mount --no-canonicalize --bind /proc/self/fd/9 {stage.root}", "exec 9<&-"]
    # `cat` keeps the holder alive until the test run closes the pipe or dies.
    script = "set -e\n" + "\n".join(lines) + "\nmkdir -p /run/user /run/lock\necho ready\nexec cat >/dev/null"
    as_root = os.geteuid() == 0
    who = [] if as_root else ["-U", f"--map-user={os.getuid()}", f"--map-group={os.getgid()}", "--keep-caps"]
    argv = ["unshare", *who, "-m", "--propagation", "private", "--", "sh", "-c", script]
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    if holder.stdout.readline() != b"ready\n":
        raise RuntimeError("the fixture namespace could not be made")
    return World(holder=holder, as_root=as_root)


class HostAgent:
    """The victim process of the same user, and its command line."""

    def __init__(self, actor: Actor) -> None:
        """Start it in the actor's world."""
        argv = [*actor.world.enter(actor.uid, actor.gid, "/"), PYTHON, str(actor.stage.bin / "host_agent.py")]
        env = {**actor.env, "HOST_AGENT_SECRET": "host-environment-secret"}
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        assert self._process.stdout is not None
        self.pid = int(json.loads(self._process.stdout.readline())["pid"])

    def do(self, command: str, **job: Any) -> Any:
        """Send one command; raise what it could not do."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": command, **job}).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise OSError(answer["error"])
        return answer["value"]

    def alive(self) -> bool:
        """Tell whether the victim still runs (not stopped, not dead)."""
        if self._process.poll() is not None:
            return False
        state = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]
        return state not in "TZX"

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(WAIT_S)
        self._process.stdout.close()


@dataclass(slots=True)
class Actor:
    """One caller of the product: an account, its world and a git workspace in its home."""

    name: str
    uid: int
    gid: int
    home: str
    stage: Stage
    world: World
    env: dict[str, str] = field(default_factory=dict)
    _agent: HostAgent | None = None

    @property
    def workspace(self) -> str:
        """The default git workspace, below the home."""
        return f"{self.home}/work/repo"

    @property
    def elsewhere(self) -> str:
        """A directory of the caller in no write root."""
        return f"{self.home}/elsewhere"

    @property
    def is_root(self) -> bool:
        """Tell whether the kernel sees uid 0 here."""
        return self.uid == 0

    @property
    def agent(self) -> HostAgent:
        """The host process of the same user; started at first use."""
        if self._agent is None or not self._agent.alive():
            self._agent = HostAgent(self)
        return self._agent

    def host(self, path: str | Path) -> Path:
        """Name a file of the actor's world from the test process."""
        return self.world.path(path)

    def put(self, path: str, text: str = "secret\n", mode: int = 0o600) -> str:
        """Create a file owned by the actor, with its directories."""
        target = self.host(path)
        self._make_parents(target.parent)
        target.write_text(text, encoding="utf-8")
        target.chmod(mode)
        os.chown(target, self.uid, self.gid)
        return path

    def make_dir(self, path: str, mode: int = 0o755) -> str:
        """Create a directory owned by the actor."""
        self._make_parents(self.host(path))
        self.host(path).chmod(mode)
        return path

    def _make_parents(self, directory: Path) -> None:
        missing = []
        while not directory.exists():
            missing.append(directory)
            directory = directory.parent
        for entry in reversed(missing):
            entry.mkdir(mode=0o755)
            os.chown(entry, self.uid, self.gid)

    def remove(self, path: str) -> None:
        """Remove a fixture, file or tree, if it is there."""
        target = self.host(path)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        elif os.path.lexists(target):
            target.unlink()

    def spawn(self, argv: Sequence[str], *, cwd: str | None = None, env: dict[str, str] | None = None,
              pass_fds: Sequence[int] = (), **popen: Any) -> subprocess.Popen[bytes]:
        """Start a program as the actor, without a box."""
        prefix = self.world.enter(self.uid, self.gid, cwd or self.workspace)
        return subprocess.Popen([*prefix, *argv], env=self.env if env is None else env, pass_fds=pass_fds, **popen)

    def call(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = WAIT_S, **kw: Any) -> subprocess.CompletedProcess[bytes]:
        """Run a program as the actor without a box and collect what it wrote."""
        with self.spawn(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw) as child:
            try:
                out, err = child.communicate(stdin, timeout=timeout_s)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
                raise
        return subprocess.CompletedProcess(argv, child.returncode, out, err)

    def sh(self, script: str, **kw: Any) -> str:
        """Run a shell script as the actor; it must succeed."""
        done = self.call(["/bin/sh", "-ec", script], **kw)
        assert done.returncode == 0, (script, done.stderr.decode("utf-8", "replace"))
        return done.stdout.decode("utf-8", "replace")

    def bare(self, ops: Sequence[Op], **kw: Any) -> dict[str, Any]:
        """Run the operations without a box: shows that the attack works."""
        done = self.call([PYTHON, str(self.stage.bin / "probe.py")], stdin=json.dumps(ops).encode(), **kw)
        return parse_answers(done.stdout, done.stderr, ops)

    def drive(self, job: dict[str, Any], *, cwd: str | None = None, pass_fds: Sequence[int] = (),
              env: dict[str, str] | None = None, before: Sequence[str] = (), lib: str | None = None,
              python: str = PYTHON, **popen: Any) -> subprocess.Popen[bytes]:
        """Start the driver with a job as the actor; ``lib`` and ``python`` name another install."""
        descriptor = os.memfd_create("job", 0)
        try:
            os.write(descriptor, json.dumps(job).encode())
            os.lseek(descriptor, 0, os.SEEK_SET)
            argv = [*before, python, "-I", "-B", str(self.stage.bin / "driver.py"), lib or str(self.stage.lib), str(descriptor)]
            return self.spawn(argv, cwd=cwd, env=env, pass_fds=[descriptor, *pass_fds], **popen)
        finally:
            os.close(descriptor)

    def answer(self, job: dict[str, Any], *, timeout_s: float = WAIT_S, **kw: Any) -> dict[str, Any]:
        """Run the driver to its end and parse its answer."""
        with self.drive(job, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw) as child:
            out, err = child.communicate(timeout=timeout_s)
        assert child.returncode == 0, err.decode("utf-8", "replace")[-4000:]
        return dict(json.loads(out))

    def run(self, argv: Sequence[str], *, tier: str, stdin: str = "", cwd: str | None = None,
            env: dict[str, str] | None = None, source: dict[str, str] | None = None, before: Sequence[str] = (),
            lib: str | None = None, python: str = PYTHON, **kwargs: Any) -> BoxRun:
        """Run one command in a box through the public API; ``source`` is the request's ``env``."""
        kwargs = self._grants(tier, cwd, kwargs)
        if source is not None:
            kwargs["env"] = source
        job = {"mode": "run", "argv": list(argv), "input": stdin, "kwargs": kwargs}
        return BoxRun(self.answer(job, cwd=cwd, env=env, before=before, lib=lib, python=python))

    def trace(self, argv: Sequence[str], *, tier: str, cwd: str | None = None, env: dict[str, str] | None = None, **kwargs: Any) -> dict[str, Any]:
        """Run one command in a watched box: the answer of ``run`` with the tracer's lines."""
        return self.answer({"mode": "trace", "argv": list(argv), "kwargs": self._grants(tier, cwd, kwargs)}, cwd=cwd, env=env)

    def box(self, ops: Sequence[Op], *, tier: str, **kwargs: Any) -> BoxRun:
        """Run the operations in a box of the tier and parse the answers."""
        done = self.run([PYTHON, str(self.stage.bin / "probe.py")], tier=tier, stdin=json.dumps(ops), **kwargs)
        return done.with_answers(ops)

    def plan(self, argv: Sequence[str], *, tier: str, cwd: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """The compiled plan, launcher line and environment of a request."""
        return self.answer({"mode": "plan", "argv": list(argv), "kwargs": self._grants(tier, cwd, kwargs)}, cwd=cwd)

    def live(self, argv: Sequence[str], *, tier: str, cwd: str | None = None, pass_fds: Sequence[int] = (),
             report_fd: int | None = None, env: dict[str, str] | None = None, kwargs: dict[str, Any] | None = None,
             **popen: Any) -> subprocess.Popen[bytes]:
        """Start a box that goes on while the host acts; the child is the launcher itself."""
        job: dict[str, Any] = {"mode": "exec", "argv": list(argv), "kwargs": self._grants(tier, cwd, kwargs or {})}
        if report_fd is not None:
            job["report_fd"] = report_fd
            pass_fds = [*pass_fds, report_fd]
        return self.drive(job, cwd=cwd, env=env, pass_fds=pass_fds, **popen)

    def _grants(self, tier: str, cwd: str | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        """What every box of the suite needs: the probe readable, the workspace writable."""
        made: dict[str, Any] = {"tier": tier, "caller": "operator", "net": "none", "cwd": cwd or self.workspace, **kwargs}
        made["cwd"] = made.pop("cwd_arg", made["cwd"])  # a cwd of the request that differs from the caller's own
        made["read"] = [str(self.stage.bin), *made.get("read", [])]
        return made


def make_user(stage: Stage) -> Actor:
    """An ordinary account of the test run (root), or the account that runs it."""
    if os.geteuid() == 0:
        name = f"stk{os.getpid()}"
        home = f"/home/{name}"
        subprocess.run(["useradd", "--no-create-home", "--home-dir", home, "--shell", "/bin/sh", name], check=True)
        entry = pwd.getpwnam(name)
        Path(home).mkdir(mode=0o755)
        os.chown(home, entry.pw_uid, entry.pw_gid)
        return _furnish("user", entry, stage, open_world(stage, home, mount_home=False))
    entry = pwd.getpwuid(os.getuid())
    return _furnish("user", entry, stage, open_world(stage, entry.pw_dir, mount_home=True))


def make_root(stage: Stage) -> Actor:
    """Root with a fixture over its home."""
    entry = pwd.getpwuid(0)
    return _furnish("root", entry, stage, open_world(stage, entry.pw_dir, mount_home=True))


def _furnish(name: str, entry: pwd.struct_passwd, stage: Stage, world: World) -> Actor:
    home = entry.pw_dir
    runtime = f"/run/user/{entry.pw_uid}"
    actor = Actor(name=name, uid=entry.pw_uid, gid=entry.pw_gid, home=home, stage=stage, world=world)
    actor.env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": home, "USER": entry.pw_name, "LOGNAME": entry.pw_name,
                 "SHELL": "/bin/sh", "LANG": "C.UTF-8", "TERM": "dumb", "XDG_RUNTIME_DIR": runtime}
    actor.make_dir(runtime, 0o700)
    actor.make_dir(actor.elsewhere)
    make_repository(actor, actor.workspace)
    return actor


def make_repository(actor: Actor, path: str) -> str:
    """A git repository of the actor with one commit and one hook."""
    actor.make_dir(path)
    actor.sh("git init -q . && git config user.name t && git config user.email t@example.invalid && "
             "echo hello > README && git add README && git commit -q -m first && "
             "printf '#!/bin/sh\\nexit 0\\n' > .git/hooks/pre-push && chmod 755 .git/hooks/pre-push", cwd=path)
    return path


def drop_actor(actor: Actor) -> None:
    """End the world and remove the account that was made for it."""
    if actor._agent is not None:
        actor._agent.close()
    actor.world.close()
    if actor.name == "user" and os.geteuid() == 0:
        name = actor.env["USER"]
        subprocess.run(["userdel", name], check=True, capture_output=True)
        shutil.rmtree(actor.home)


def remove_dead_accounts() -> None:
    """Accounts of test runs that died without cleaning up."""
    if os.geteuid() != 0:
        return
    for entry in pwd.getpwall():
        pid = entry.pw_name.removeprefix("stk")
        if entry.pw_name.startswith("stk") and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            subprocess.run(["userdel", entry.pw_name], check=False, capture_output=True)
            if entry.pw_dir == f"/home/{entry.pw_name}":
                shutil.rmtree(entry.pw_dir, ignore_errors=True)


def scratch_dir(stage: Stage) -> Path:
    """A fresh directory of the test process on the stage."""
    return Path(tempfile.mkdtemp(prefix="scratch-", dir=stage.root))
