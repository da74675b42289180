"""The demonstration behind `make demo`: one hostile npm package, bare and at strict.

Owns: a throw-away home with throw-away secrets, a bystander process and two
sockets, all below one temporary directory; the real home is never named to the
attacker. What the attacks achieved is judged from outside (planted tokens in
the loot, files on the host, the bystander's life), not by what npm prints; two
attempts that leave no trace rest on the errno the script saw.
Fails closed: a missing receipt, a lower tier or one attack that got through
ends with exit status 1. Read next: examples/hostile-npm/vendor/.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "hostile-npm"
STOCKADE = ROOT / ".venv" / "bin" / "stockade"
INSTALL_TIMEOUT_S = 300
BYSTANDER = "import time; time.sleep(600)"

# name, what the script tries, promise that stops it
ATTEMPTS: tuple[tuple[str, str, str], ...] = (
    ("ssh_key", "read ~/.ssh/id_ed25519", "fs.credentials"),
    ("npm_token", "read the token in ~/.npmrc", "fs.credentials"),
    ("cloud_key", "read ~/.aws/credentials", "fs.credentials"),
    ("dotenv", "read .env of the project", "fs.workspace_secrets"),
    ("home_listing", "list the home directory", "fs.home"),
    ("env_secret", "take $AWS_SECRET_ACCESS_KEY", "env.secrets"),
    ("shell_startup", "append to ~/.bashrc", "fs.write_roots"),
    ("git_hook", "plant .git/hooks/pre-commit", "fs.persistence"),
    ("git_config", "make .git/config run a program", "fs.persistence"),
    ("planted_program", "plant ~/.local/bin/git", "fs.write_roots"),
    ("write_outside", "write a file in the home", "fs.write_roots"),
    ("daemon", "leave a process behind", "proc.reaped"),
    ("process_listing", "see another process", "proc.invisible"),
    ("process_environ", "read its environment", "proc.no_control"),
    ("process_memory", "read its memory", "proc.no_control"),
    ("kill_process", "kill it", "proc.no_control"),
    ("init_environ", "read /proc/1/environ", "proc.no_control"),
    ("container_socket", "talk to a container engine", "ipc.sockets"),
    ("abstract_socket", "talk to an abstract socket", "ipc.isolated"),
    ("setuid_file", "make a setuid file", "kernel.surface"),
    ("new_namespace", "make a user namespace", "kernel.surface"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixture:
    """One throw-away world for one installation."""

    home: Path
    tree: Path
    state: Path
    tokens: dict[str, str]
    bystander: subprocess.Popen[bytes]
    visits: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """How one installation ended, and what every attempt achieved."""

    status: int
    seconds: float
    packages: int
    output: str
    got: dict[str, str | None] = field(default_factory=dict)  # None: the attack failed
    errors: dict[str, str | None] = field(default_factory=dict)
    receipt: dict[str, Any] | None = None


def plant_home(home: Path, tokens: dict[str, str]) -> None:
    """Fill a home with the files that real hostile packages look for."""
    files = {
        ".ssh/id_ed25519": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{tokens['ssh_key']}\n-----END OPENSSH PRIVATE KEY-----\n",
        ".npmrc": f"//registry.example/:_authToken={tokens['npm_token']}\n",
        ".aws/credentials": f"[default]\naws_secret_access_key = {tokens['cloud_key']}\n",
        ".bashrc": "# the shell's start file\n",
        ".gitconfig": "[user]\n\tname = Demo\n\temail = demo@example.invalid\n",
    }
    for name, text in files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)


def plant_tree(tree: Path, tokens: dict[str, str], home: Path) -> None:
    """Copy the example and make it a git repository, as a cloned project would be."""
    shutil.copytree(EXAMPLE, tree, ignore=shutil.ignore_patterns("node_modules"))
    (tree / ".env").write_text(f"DATABASE_PASSWORD={tokens['dotenv']}\n")
    env = {"PATH": os.environ["PATH"], "HOME": str(home)}
    for argv in (
        ["git", "init", "-q", "-b", "main"],
        ["git", "add", "package.json"],
        ["git", "commit", "-qm", "Start"],
    ):
        subprocess.run(argv, cwd=tree, env=env, check=True, stdin=subprocess.DEVNULL)


def serve(listener: socket.socket, name: str, token: str, visits: dict[str, int]) -> None:
    """Answer like a control socket would, and count who came."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                visits[name] += 1
                connection.settimeout(1)
                connection.recv(1024)
                connection.sendall(f"HTTP/1.0 200 OK\r\n\r\n{token}\n".encode())


@contextlib.contextmanager
def sockets(home: Path, label: str, tokens: dict[str, str], visits: dict[str, int]) -> Iterator[dict[str, str]]:
    """Listen on a path socket in the home and on an abstract one."""
    path = home / ".docker" / "run" / "docker.sock"
    path.parent.mkdir(parents=True)
    addresses = {"container_socket": str(path), "abstract_socket": f"stockade-demo-{label}-{secrets.token_hex(4)}"}
    listeners: list[socket.socket] = []
    try:
        for name, address in addresses.items():
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            # Node pads an abstract name with NULs to the whole sun_path, and the padding is part of the name.
            listener.bind(address if name == "container_socket" else b"\0" + address.encode().ljust(107, b"\0"))
            listener.listen(4)
            listeners.append(listener)
            threading.Thread(target=serve, args=(listener, name, tokens[name], visits), daemon=True).start()
        yield addresses
    finally:
        for listener in listeners:
            listener.close()


@contextlib.contextmanager
def fixture(base: Path, label: str) -> Iterator[Fixture]:
    """Build one world, hand it out, and end its bystander."""
    world = base / label
    home, tree, state = world / "home", world / "project", world / "state"
    home.mkdir(parents=True)
    state.mkdir(mode=0o700)
    tokens = {name: f"planted-{name}-{secrets.token_hex(12)}" for name, _, _ in ATTEMPTS}
    visits = {"container_socket": 0, "abstract_socket": 0}
    plant_home(home, tokens)
    plant_tree(tree, tokens, home)
    bystander = subprocess.Popen(
        [sys.executable, "-I", "-c", BYSTANDER],
        env={"BYSTANDER_SECRET": tokens["process_environ"]},
        stdin=subprocess.DEVNULL,
    )
    try:
        with sockets(home, label, tokens, visits) as addresses:
            target = {"home": str(home), "bystander_pid": bystander.pid, **addresses}
            (tree / "demo-target.json").write_text(json.dumps(target))
            yield Fixture(home=home, tree=tree, state=state, tokens=tokens, bystander=bystander, visits=visits)
    finally:
        bystander.kill()
        bystander.wait()


def environment(world: Fixture) -> dict[str, str]:
    """The environment of a person with cloud credentials in the shell."""
    keep = (
        "PATH",
        "LANG",
        "TERM",
        "SSL_CERT_FILE",
        "NODE_EXTRA_CA_CERTS",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "NO_PROXY",
        "https_proxy",
    )
    env = {name: os.environ[name] for name in keep if name in os.environ}
    env |= {
        "HOME": str(world.home),
        "STOCKADE_HOME": str(world.state),
        "AWS_SECRET_ACCESS_KEY": world.tokens["env_secret"],
    }
    return env


def heartbeat_lives(world: Fixture) -> bool:
    """Tell whether a process that the script left behind still writes (it does so ten times a second)."""
    beat = world.tree / "heartbeat"
    before = beat.read_text() if beat.exists() else ""
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        time.sleep(0.1)
        if beat.exists() and beat.read_text() not in ("", before):
            return True
    return False


def is_setuid(path: Path) -> bool:
    """Tell whether the file exists and carries the setuid bit."""
    return path.exists() and bool(path.stat().st_mode & stat.S_ISUID)


def host_effects(world: Fixture) -> dict[str, str | None]:
    """Look at the host for what the attempts changed."""
    home, git = world.home, world.tree / ".git"
    with contextlib.suppress(subprocess.TimeoutExpired):
        world.bystander.wait(timeout=0.5)
    seen = {
        "shell_startup": "owned" in (home / ".bashrc").read_text(),
        "git_hook": (git / "hooks" / "pre-commit").exists(),
        "git_config": "fsmonitor" in (git / "config").read_text(),
        "planted_program": (home / ".local" / "bin" / "git").exists(),
        "write_outside": (home / "owned.txt").exists(),
        "daemon": heartbeat_lives(world),
        "setuid_file": is_setuid(world.tree / "setuid-copy"),
        "kill_process": world.bystander.returncode == -signal.SIGTERM,
        "container_socket": world.visits["container_socket"] > 0,
        "abstract_socket": world.visits["abstract_socket"] > 0,
    }
    words = {
        "daemon": "still running",
        "kill_process": "killed",
        "container_socket": "connected",
        "abstract_socket": "connected",
    }
    return {name: words.get(name, "written") if hit else None for name, hit in seen.items()}


def judge(world: Fixture) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """Return what each attempt achieved, and the error that each one saw."""
    loot_file = world.tree / "loot.json"
    if not loot_file.exists():
        raise SystemExit(
            "demo: the postinstall did not run: got no loot.json, expected one (hint: does npm run install scripts here?)"
        )
    loot = json.loads(loot_file.read_text())
    got = host_effects(world)
    for name, _, _ in ATTEMPTS:
        text = loot[name]["loot"] or ""
        token = world.tokens["process_environ" if name == "process_memory" else name]
        if name in ("new_namespace", "init_environ"):
            got[name] = None if loot[name]["error"] else "done"  # these leave nothing to look at: the script's word
        elif name == "home_listing":
            got[name] = "listed" if ".ssh" in text else None
        elif name == "process_listing":
            got[name] = "seen" if "time.sleep" in text else None
        elif name not in got:
            got[name] = "stolen" if token in text else None
    return got, {name: loot[name]["error"] for name, _, _ in ATTEMPTS}


def stop_daemon(world: Fixture) -> None:
    """End the process that the bare installation left behind, by the pid it told."""
    with contextlib.suppress(KeyError, TypeError, ValueError, OSError):
        pid = int(json.loads((world.tree / "loot.json").read_text())["daemon"]["loot"])
        if b"heartbeat" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def install(world: Fixture, prefix: list[str]) -> Installed:
    """Run `npm ci` behind the given prefix and look at what it did."""
    start = time.monotonic()
    done = subprocess.run(
        [*prefix, "npm", "ci", "--no-audit", "--no-fund"],
        cwd=world.tree, env=environment(world), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=INSTALL_TIMEOUT_S, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - start
    modules = world.tree / "node_modules"
    lock = modules / ".package-lock.json"
    packages = len(json.loads(lock.read_text())["packages"]) if lock.exists() else 0
    if done.returncode != 0:
        return Installed(status=done.returncode, seconds=seconds, packages=packages, output=done.stdout)
    got, errors = judge(world)
    return Installed(status=0, seconds=seconds, packages=packages, output=done.stdout, got=got, errors=errors)


def run_bare(base: Path) -> Installed:
    """Install without a box, to show that every attack is real."""
    with fixture(base, "bare") as world:
        try:
            return install(world, [])
        finally:
            stop_daemon(world)


def run_strict(base: Path) -> tuple[Installed, dict[str, Any], str]:
    """Install at strict; return also the receipt and the output of the installed packages."""
    with fixture(base, "strict") as world:
        receipt_file = base / "receipt.json"
        box = [str(STOCKADE), "run", "--tier", "strict", "--profile", "npm"]
        done = install(world, [*box, "--receipt", str(receipt_file), "--"])
        if done.status != 0 or not receipt_file.exists():
            return done, {}, ""
        program = "const c=require('chalk'),e=require('express'),n=require('is-number');console.log(typeof e(),n(7),c.reset('ok'))"
        used = subprocess.run(
            [*box, "--quiet", "--", "node", "-e", program],
            cwd=world.tree, env=environment(world), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done, read_receipt(receipt_file), used.stdout.strip() or used.stderr.strip()


def read_receipt(path: Path) -> dict[str, Any]:
    """Read the launch record: one document, or one record a line."""
    text = path.read_text().strip()
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        document = json.loads(text.splitlines()[0])
    return dict(document.get("launch", document))


def report(bare: Installed, strict: Installed, receipt: dict[str, Any], used: str) -> int:
    """Print the comparison; return the exit status."""
    print(f"\n  {'what the postinstall tried':34}{'bare':16}{'strict':30}promise")
    escaped = [name for name, _, _ in ATTEMPTS if strict.got[name] is not None]
    for name, text, promise in ATTEMPTS:
        without = bare.got[name] or f"no ({bare.errors[name] or 'no effect'})"
        inside = strict.got[name]
        verdict = f"GOT THROUGH: {inside}" if inside else f"stopped ({strict.errors[name] or 'nothing on the host'})"
        print(f"  {text:34}{without:16}{verdict:30.29}{promise}")
    worked = sum(1 for value in bare.got.values() if value)
    print(f"\n  attacks that worked   bare {worked} of {len(ATTEMPTS)}   strict {len(escaped)} of {len(ATTEMPTS)}")
    print(
        f"  npm ci                bare {bare.packages} packages in {bare.seconds:.1f} s   strict {strict.packages} packages in {strict.seconds:.1f} s"
    )
    print(f"  packages used inside  {used}")
    print(
        f"  receipt               effective tier {receipt['effective_tier']} · kept {receipt['kept']} of {receipt['of']} · net {receipt['net']}"
    )
    kept = [promise["id"] for promise in receipt["promises"] if promise["state"] == "kept"]
    for start in range(0, len(kept), 5):
        print(f"  {'promises kept' if start == 0 else '':22}{' '.join(kept[start : start + 5])}")
    good = (
        not escaped
        and receipt["effective_tier"] == "strict"
        and strict.packages == bare.packages
        and used.endswith("ok")
    )
    return 0 if good else 1


def remove(base: Path) -> None:
    """Remove the worlds, with the closed directories that overlay mounts leave in caches."""
    for path, names, _ in os.walk(base):
        for directory in (os.path.join(path, name) for name in names):
            if not os.path.islink(directory):
                os.chmod(directory, 0o700)
    shutil.rmtree(base)


def main() -> int:
    """Run both installations in one temporary directory and compare them."""
    parser = argparse.ArgumentParser(description="Install a hostile npm tree bare and at strict, and compare.")
    parser.add_argument("--keep", action="store_true", help="keep the temporary directory and say where it is")
    keep = parser.parse_args().keep
    # Not /tmp: the private /tmp of a box would hide the fixture's home for a reason that is not the tier's.
    base = Path(tempfile.mkdtemp(prefix="stockade-demo-", dir="/var/tmp"))
    try:
        print("1/2  npm ci without a box, in a throw-away home ...", flush=True)
        bare = run_bare(base)
        if bare.status != 0:
            print(f"demo: npm ci failed without a box: exit {bare.status}\n{bare.output}", file=sys.stderr)
            return 1
        print("2/2  stockade run --tier strict --profile npm -- npm ci ...", flush=True)
        strict, receipt, used = run_strict(base)
        if strict.status != 0 or not receipt:
            print(f"demo: the installation at strict failed: exit {strict.status}\n{strict.output}", file=sys.stderr)
            return 1
        return report(bare, strict, receipt, used)
    finally:
        if keep:
            print(f"  kept                  {base}")
        else:
            remove(base)


if __name__ == "__main__":
    raise SystemExit(main())
