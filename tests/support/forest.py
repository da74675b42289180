"""Random trees, grants and paths for the comparison of ``Sandbox.check`` with the kernel.

Owns the generator: everything comes from one seed, which a failure prints. The tree lies in a
workspace of an actor and in places beside it; names, modes, owners, links, sockets and pipes are odd.
"""

from __future__ import annotations

import os
import random
import stat
from dataclasses import dataclass, field
from typing import Any

from support.actors import Actor

NAMES = ("a", "b", "c", "A", "d\u00e9", "sp ace", "\udcff\udcfe", ".x", "deep")
SPECIAL = (".env", ".envrc", ".ENV", ".env.example", ".vscode/tasks.json", ".idea/x", ".mcp.json", "CLAUDE.md", ".claude/settings.json",
           ".cursor/mcp.json", ".husky/pre-commit", "package.json", "Makefile")
IN_GIT = (".git", ".git/HEAD", ".git/config", ".git/hooks", ".git/hooks/pre-push", ".git/hooks/new", ".git/objects", ".git/index", ".git/info/exclude", ".git/refs/heads")
HOME = (".ssh", ".ssh/id_ed25519", ".ssh/known_hosts", ".ssh/id_ed25519.pub", ".aws/credentials", ".netrc", ".bashrc", ".config/gh/hosts.yml", ".config/app/x",
        ".npmrc", ".local/state/stockade", ".local/state/stockade/keys", ".gitconfig", "elsewhere", "elsewhere/plain", "work", ".cache/z", "not-there")
SYSTEM = ("/", "/etc", "/etc/passwd", "/etc/shadow", "/etc/hosts", "/etc/resolv.conf", "/etc/ssl/private", "/etc/ssl/certs", "/usr", "/usr/bin/true", "/bin/sh", "/bin",
          "/lib", "/usr/lib/os-release", "/etc/os-release", "/etc/mtab", "/tmp", "/tmp/x", "/tmp/scratch", "/var/tmp", "/var/tmp/x", "/run", "/run/x", "/run/user", "/run/lock",
          "/run/lock/x", "/run/stockade", "/run/stockade/box.json", "/run/stockade/x", "/dev", "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/x", "/dev/shm",
          "/dev/shm/x", "/dev/sda", "/dev/kmsg", "/proc", "/proc/x", "/sys", "/sys/kernel", "/sys/devices/system/cpu", "/home", "/root", "/root/x", "/opt", "/var", "/var/log",
          "/var/mail", "/nope", "/nope/x", "/usr/share", "/usr/local/bin", "/usr/bin/sudo", "/var/lib", "/boot", "/mnt", "/srv", "/..", "/.", "/usr/bin/../lib", "//etc//passwd")
FILE_MODES = (0o600, 0o644, 0o644, 0o664, 0o666, 0o444, 0o000, 0o755, 0o755, 0o711, 0o111, 0o222, 0o604, 0o060)
DIR_MODES = (0o755, 0o755, 0o755, 0o755, 0o755, 0o755, 0o755, 0o755, 0o700, 0o700, 0o777, 0o777, 0o555, 0o333, 0o000, 0o711, 0o1777, 0o2775, 0o500, 0o070)
MODES = ("read", "write", "create", "delete", "exec", "connect")


def program(nonce: int) -> bytes:
    """The smallest x86-64 program: exit(0), with a nonce behind it."""
    import struct

    code = bytes.fromhex("31ff6a3c580f05")
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0x400078, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    size = 120 + len(code)
    return head + struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, size, size, 4096) + code + b"nonce %d" % nonce


@dataclass(slots=True)
class Forest:
    """One tree and what was made in it."""

    actor: Actor
    seed: int
    random: random.Random
    base: str
    paths: list[str] = field(default_factory=list)
    dirs: list[str] = field(default_factory=list)
    late_modes: list[tuple[str, int]] = field(default_factory=list)
    listening: bool = False

    @property
    def workspace(self) -> str:
        """The directory that is granted."""
        return f"{self.base}/w"

    def remove(self) -> None:
        """Close the sockets and take the tree away."""
        if self.listening:
            self.actor.agent.do("forget")
        for path, _ in self.late_modes:
            place = self.actor.host(path)
            if place.is_dir() and not place.is_symlink():
                place.chmod(0o700)
        self.actor.remove(self.base)
        self.actor.remove(f"/tmp/forest-{self.seed}")


def grow(actor: Actor, seed: int) -> Forest:
    """Make the tree of a seed."""
    forest = Forest(actor, seed, random.Random(seed), f"{actor.home}/work/forest-{seed}")
    forest.remove()
    actor.make_dir(f"{forest.workspace}")
    actor.sh("git init -q . && mkdir -p .git/info && printf '#!/bin/sh\\n' > .git/hooks/pre-push", cwd=forest.workspace)
    roots = [forest.workspace, actor.make_dir(f"{forest.base}/beside"), actor.make_dir(f"/tmp/forest-{seed}")]
    forest.dirs += roots
    for _ in range(45):
        _add(forest, forest.random.choice(forest.dirs))
    for name in forest.random.sample(SPECIAL, 5):
        path = f"{forest.workspace}/{name}"
        if not os.path.lexists(actor.host(path)):
            actor.put(path, f"special {name}\n", 0o644)
            forest.paths.append(path)
    for name in (".ssh/id_ed25519", ".ssh/known_hosts", ".ssh/id_ed25519.pub", ".aws/credentials", ".netrc", ".config/gh/hosts.yml", ".config/app/x", "elsewhere/plain", ".bashrc"):
        actor.put(f"{actor.home}/{name}", f"home {name}\n", 0o644)
    for path, mode in forest.late_modes:
        if not os.path.islink(actor.host(path)):
            os.chmod(actor.host(path), mode)
    return forest


def _add(forest: Forest, directory: str) -> None:
    rand, actor = forest.random, forest.actor
    path = f"{directory}/{rand.choice(NAMES)}"
    place = actor.host(path)
    if os.path.lexists(place):
        return
    kind = rand.choices(("file", "program", "dir", "link", "hard", "fifo", "socket"), (9, 3, 6, 8, 3, 1, 2))[0]
    if kind == "dir":
        place.mkdir()
        forest.dirs.append(path)
        forest.late_modes.append((path, rand.choice(DIR_MODES)))
    elif kind == "link":
        os.symlink(_target(forest, path), place)
    elif kind == "hard":
        files = [each for each in forest.paths if stat.S_ISREG(os.lstat(actor.host(each)).st_mode)
                 and os.lstat(actor.host(each)).st_dev == os.lstat(place.parent).st_dev]
        if not files:
            return
        os.link(actor.host(rand.choice(files)), place)
    elif kind == "fifo":
        os.mkfifo(place)
        forest.late_modes.append((path, rand.choice(FILE_MODES)))
    elif kind == "socket":
        if len(os.fsencode(path)) > 100 or not _text(path):  # sun_path; a cover whose name is no text refuses the box
            return
        try:
            actor.agent.do("listen", path=path)
        except OSError:
            return  # in a directory of somebody else
        forest.listening = True
        forest.late_modes.append((path, rand.choice((0o666, 0o777, 0o600, 0o000))))
    else:
        place.write_bytes(program(rand.getrandbits(40)) if kind == "program" else b"nonce %d\n" % rand.getrandbits(40))
        forest.late_modes.append((path, 0o755 if kind == "program" and rand.random() < 0.7 else rand.choice(FILE_MODES)))
    _own(forest, place, kind)
    forest.paths.append(path)


def _own(forest: Forest, place: Any, kind: str) -> None:
    if os.geteuid() == 0 and kind != "hard":
        other = forest.random.random() < 0.15
        owner = (forest.random.choice((0, 65534, forest.actor.uid)), forest.random.choice((0, 65534, forest.actor.gid)))
        os.chown(place, *(owner if other else (forest.actor.uid, forest.actor.gid)), follow_symlinks=False)


def _target(forest: Forest, path: str) -> str:
    rand = forest.random
    known = [*forest.paths, *forest.dirs]
    choice = rand.randrange(8)
    if choice < 3:
        return rand.choice(known)
    if choice < 5:
        return os.path.relpath(rand.choice(known), os.path.dirname(path))
    if choice == 5:
        return rand.choice((*SYSTEM[:30], f"{forest.actor.home}/.ssh/id_ed25519", f"{forest.actor.home}/elsewhere"))
    if choice == 6:
        return rand.choice(("nowhere", f"{os.path.dirname(path)}/nowhere", "../nowhere/x", os.path.basename(path)))
    return rand.choice((rand.choice(known) + "/", "..", ".", "../..", "a/../b"))


def grants(forest: Forest, tier: str) -> dict[str, Any]:
    """Random grants: the workspace or parts of it, places beside it, hidden names."""
    rand = forest.random
    dirs = [path for path in forest.dirs if _text(path)]
    files = [path for path in forest.paths if _text(path) and not os.path.islink(forest.actor.host(path))]
    write = [forest.workspace] if rand.random() < 0.8 else []
    write += rand.sample(dirs, rand.randrange(0, min(3, len(dirs) + 1)))
    read = rand.sample([*dirs, *files], rand.randrange(0, 3))
    home = [f"{forest.actor.home}/{name}" for name in ("elsewhere", "elsewhere/plain", ".config/app", ".config", ".ssh/known_hosts", ".bashrc")]
    if rand.random() < 0.5:
        rand.choice((write, read)).append(rand.choice(home))
    hide = rand.sample([*dirs[1:], *files, *home[:3], "/usr/share", "/etc/hosts"], rand.randrange(0, 3))
    more = {"tmp": rand.choice(("disk", "memory:64M"))} if rand.random() < 0.3 else {}
    return {"tier": tier, "cwd_arg": forest.workspace, "write": write, "read": read, "hide": hide, **more}


def _text(path: str) -> bool:
    return not any("\udc80" <= char <= "\udcff" for char in path)


def pairs(forest: Forest, count: int) -> list[tuple[str, str]]:
    """Sample (path, mode); deletes last, since they may take a directory's identity."""
    rand, home, found = forest.random, forest.actor.home, {}
    while len(found) < count:
        kind = rand.random()
        if kind < 0.72:
            path = rand.choice([*forest.paths, *forest.dirs])
        elif kind < 0.79:
            path = f"{forest.workspace}/{rand.choice((*SPECIAL, *IN_GIT))}"
        elif kind < 0.86:
            path = f"{home}/{rand.choice(HOME)}"
        else:
            path = rand.choice(SYSTEM)
        path = _spelled(forest, path)
        mode = rand.choices(MODES, (5, 5, 3, 3, 3, 2))[0] if rand.random() < 0.4 else _fitting(forest, path)
        if not (mode == "exec" and path.startswith(("/usr/bin/sudo", "/bin/sh"))):
            found[path, mode] = True
    return sorted(found, key=lambda pair: pair[1] == "delete")


def _fitting(forest: Forest, path: str) -> str:
    """A mode that the object is made for: most others are denied by its type alone."""
    rand = forest.random
    try:
        mode = os.stat(forest.actor.host(os.path.join(forest.workspace, path))).st_mode
    except OSError:
        return rand.choice(("create", "create", "delete", "read"))
    if stat.S_ISSOCK(mode):
        return rand.choice(("connect", "delete"))
    if stat.S_ISREG(mode) and mode & 0o111:
        return rand.choice(("exec", "exec", "read", "write", "delete"))
    return rand.choice(("read", "read", "write", "write", "delete"))


def _spelled(forest: Forest, path: str) -> str:
    rand = forest.random
    choice = rand.randrange(25)
    if choice < 15 or path == "/":
        return path
    inner = rand.choice([*forest.paths, *forest.dirs, "/tmp"])
    return (f"{path}/", f"{path}/new", f"{path}/{rand.choice(NAMES)}", f"{os.path.dirname(path)}/new-name", f"{path}/.",
            f"{path}/..", f"{inner}/../{os.path.basename(path)}", f"{path}/../{rand.choice(NAMES)}", os.path.relpath(path, forest.workspace),
            path + "x" * rand.choice((1, 240, 260)) if rand.random() < 0.8 else path + "/." * 2100)[choice - 15]
