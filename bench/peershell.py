"""Runs one shell line through a Python interface, for bench/compare.py: name, project, line."""

from __future__ import annotations

import sys

from peerloop import SYSTEM


def sandlock(project: str, line: str) -> None:
    """Landlock, seccomp and user notification."""
    from sandlock import Sandbox

    done = Sandbox(fs_readable=[*SYSTEM, "/proc", "/dev"], fs_writable=[project, "/dev/null"], cwd=project).run(["sh", "-c", line])
    show(done.stdout, done.stderr)


def nono(project: str, line: str) -> None:
    """Landlock and seccomp."""
    import nono_py as nono

    caps = nono.CapabilitySet()
    for path in (*SYSTEM, "/proc", "/dev"):
        caps.allow_path(path, nono.AccessMode.READ)
    for path in (project, "/dev/null"):
        (caps.allow_file if path == "/dev/null" else caps.allow_path)(path, nono.AccessMode.READ_WRITE)
    caps.block_network()
    done = nono.sandboxed_exec(caps, ["sh", "-c", line], cwd=project)
    show(done.stdout, done.stderr)


def postern(project: str, line: str) -> None:
    """bubblewrap with a seccomp list; its only writable place is a workspace of its own."""
    from postern import Sandbox, SandboxProfile

    done = Sandbox(SandboxProfile()).run_bash(line)
    show(done.stdout, done.stderr)


def show(out: object, err: object) -> None:
    """Print what the line printed."""
    for stream, text in ((sys.stdout, out), (sys.stderr, err)):
        stream.write(text.decode(errors="replace") if isinstance(text, bytes) else str(text or ""))


if __name__ == "__main__":
    {"sandlock": sandlock, "nono": nono, "postern": postern}[sys.argv[1]](sys.argv[2], sys.argv[3])
