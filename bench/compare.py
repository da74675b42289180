"""The same handful of attacks in each sandbox that is installed: `make compare` prints docs/comparison.md's table.

Owns: the attacks, each one shell line whose success is judged from outside or by a planted secret,
and one command line of each tool with a policy that its own documents give for an agent: project
writable, the rest of the machine readable or less, no network. Fails closed: an attack that does
not work without a sandbox stops the run, because then nothing would be shown.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import others
from spawn import USER, publish

WAIT_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A home with secrets, a project, and a process and sockets of the same user outside."""

    base: Path
    home: Path
    project: Path
    victim: int
    port: int
    abstract: str

    @property
    def env(self) -> dict[str, str]:
        """The caller's environment."""
        return {"HOME": str(self.home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8",
                "CODEX_HOME": str(self.home / ".codex"), "AWS_SECRET_ACCESS_KEY": "planted-in-environment"}  # fmt: skip


def attacks(place: Place) -> dict[str, tuple[str, str]]:
    """Return name -> (shell line, promise): each prints `worked` when it worked."""
    connect = "python3 -c \"import socket; s = socket.socket({kind}); s.settimeout(3); s.connect({to}); print('worked')\""
    home, project = place.home, place.project
    return {
        "read ~/.ssh/id_ed25519": (f"grep -q planted {home}/.ssh/id_ed25519 && echo worked", "fs.credentials"),
        "read another file of the home": (f"grep -q planted {home}/notes.txt && echo worked", "fs.home"),
        "append to ~/.bashrc": (f"echo evil >> {home}/.bashrc && echo worked", "fs.write_roots"),
        "plant a git hook": (f"echo evil > {project}/.git/hooks/pre-push && echo worked", "fs.persistence"),
        "read .env of the project": (f"grep -q planted {project}/.env && echo worked", "fs.workspace_secrets"),
        "read a secret variable": ("test -n \"$AWS_SECRET_ACCESS_KEY\" && echo worked", "env.secrets"),
        "see a host process": (f"grep -q sleep /proc/{place.victim}/cmdline && echo worked", "proc.invisible"),
        "signal a host process": (f"kill -0 {place.victim} && echo worked", "proc.no_control"),
        "talk to an abstract socket": (connect.format(kind="socket.AF_UNIX", to=repr("\\0" + place.abstract).replace("\\\\", "\\")), "ipc.isolated"),
        "talk to a socket below the home": (connect.format(kind="socket.AF_UNIX", to=repr(f"{home}/run/engine.sock")), "ipc.sockets"),
        "talk to a server on loopback": (connect.format(kind="socket.AF_INET", to=("127.0.0.1", place.port)), "net.policy"),
        "make a user namespace": ("unshare -U true && echo worked", "kernel.surface"),
        "make a setuid file": ("touch s && chmod u+s s && test -u s && echo worked", "kernel.surface"),
        "leave a process behind": ("setsid sh -c 'sleep 2; echo evil > left' < /dev/null > /dev/null 2>&1 & echo worked", "proc.reaped"),
    }  # fmt: skip


def ways(place: Place) -> Iterator[tuple[str, Callable[[str], list[str]]]]:
    """Yield each sandbox and the command that runs a shell line in it."""
    tools, project = f"{place.base}/tools", str(place.project)
    ours = ["env", f"PYTHONPATH={place.base}/src", "/usr/bin/python3", "-B", "-m", "stockade", "run", "--quiet", "--net", "none", "--tier"]
    python = [f"{tools}/python-peers/bin/python", str(Path(__file__).resolve().parent / "peershell.py")]
    yield "no sandbox", lambda line: ["sh", "-c", line]
    yield "bubblewrap", lambda line: [
        "bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--bind", project, project,
        "--unshare-all", "--die-with-parent", "--new-session", "--chdir", project, "sh", "-c", line]  # fmt: skip
    yield "codex", lambda line: [f"{tools}/codex/node_modules/.bin/codex", "sandbox", "-c", "sandbox_mode=\"workspace-write\"", "--", "sh", "-c", line]
    yield "sandlock", lambda line: [*python, "sandlock", project, line]
    yield "nono", lambda line: [*python, "nono", project, line]
    yield "postern", lambda line: [*python, "postern", project, line]
    yield "stockade guarded", lambda line: [*ours, "guarded", "--", "sh", "-c", line]
    yield "stockade strict", lambda line: [*ours, "strict", "--", "sh", "-c", line]


def run(place: Place, argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run one command as the user, in the project."""
    return others.answer(argv, WAIT_S, env=place.env, cwd=place.project)


def worked(place: Place, name: str, done: subprocess.CompletedProcess[str]) -> bool:
    """Judge one attack; where it leaves a trace, by the trace."""
    if name == "append to ~/.bashrc":
        return "evil" in (place.home / ".bashrc").read_text()
    if name == "plant a git hook":
        return (place.project / ".git/hooks/pre-push").exists()
    if name == "leave a process behind":
        threading.Event().wait(3)
        return (place.project / "left").exists()
    return "worked" in done.stdout.split()


def column(place: Place, wrap: Callable[[str], list[str]]) -> dict[str, str]:
    """Run every attack in one sandbox, and first an allowed twin: writing into the project."""
    twin = run(place, wrap("echo twin > twin && cat twin"))
    if twin.stdout.split() != ["twin"] and not (place.project / "twin").exists():
        said = (twin.stderr.strip().splitlines() or ["nothing"])[-1]
        return {"": f"does not run here: {said[:120]}"}
    answers = {}
    for name, (line, _) in attacks(place).items():
        lay(place)
        done = run(place, wrap(line))
        # Whoever gave no answer has shown nothing, unless the attack left its trace.
        stopped = "no answer" if done.returncode == others.NO_ANSWER else "stopped"
        answers[name] = "**worked**" if worked(place, name, done) else stopped
    return answers


def lay(place: Place) -> None:
    """Plant what the attacks look for, and remove what they left."""
    for path in (place.home / ".ssh/id_ed25519", place.home / "notes.txt", place.project / ".env"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("planted")
    (place.home / ".bashrc").write_text("# mine\n")
    for name in ("twin", "s", "left", ".git/hooks/pre-push"):
        (place.project / name).unlink(missing_ok=True)


@contextlib.contextmanager
def made(base: Path) -> Iterator[Place]:
    """Make the place and what listens and lives outside."""
    home = Path(tempfile.mkdtemp(prefix="home-", dir=base / "worlds"))
    project = home / "project"
    for path in (project, home / "run", home / ".codex"):
        path.mkdir()
    victim = subprocess.Popen(["sleep", "3600"])
    abstract = f"compare-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as hidden:
        named.bind(str(home / "run/engine.sock"))
        hidden.bind(f"\0{abstract}")
        for server in (named, hidden):
            server.listen(64)
        place = Place(base=base, home=home, project=project, victim=victim.pid, port=tcp.getsockname()[1], abstract=abstract)
        subprocess.run(["git", "init", "-q", str(project)], env=place.env, check=True)
        lay(place)
        try:
            yield place
        finally:
            victim.kill()
            victim.wait()


def table(base: Path) -> int:
    """Run everything as the user of this process and print the table in Markdown."""
    with made(base) as place:
        columns = {}
        for name, wrap in ways(place):
            print(f"  {name}", file=sys.stderr, flush=True)
            columns[name] = column(place, wrap)
        ours = attacks(place)
    bare = columns.pop("no sandbox")
    if set(bare.values()) != {"**worked**"}:
        raise RuntimeError(f"compare_failed: attacks without a sandbox: got {bare}, expected all to work")
    broken = {name: column[""] for name, column in columns.items() if "" in column}
    shown = [name for name in columns if name not in broken]
    print("| attack | promise | " + " | ".join(shown) + " |\n|---|---|" + "---|" * len(shown))
    for name, (_, promise) in ours.items():
        print(f"| {name} | `{promise}` | " + " | ".join(columns[tool][name] for tool in shown) + " |")
    for name, reason in broken.items():
        print(f"\n{name}: {reason}")
    print(f"\nVersions: {', '.join(others.versions(base / 'tools'))}")
    return 0


def main() -> int:
    """Fetch, then become an ordinary user."""
    if sys.argv[1:]:
        return table(Path(sys.argv[1]))
    base = Path(tempfile.mkdtemp(prefix="stockade-bench-", dir="/var/tmp"))
    try:
        publish(base)
        for name in ("worlds", "tools"):
            (base / name).mkdir()
        (base / "worlds").chmod(0o1777)
        others.fetch(base / "tools")
        subprocess.run(["chmod", "-R", "a+rX", str(base / "tools")], check=True)
        who = []
        if os.geteuid() == 0:
            account = pwd.getpwnam(USER)
            who = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--"]
        argv = [*who, "/usr/bin/python3", "-B", str(base / "bench" / "compare.py"), str(base)]
        return subprocess.run(argv, cwd="/", env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}, check=False).returncode
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
