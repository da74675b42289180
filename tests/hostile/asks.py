"""A program inside a box that asks for boxes in it: as the package does, and by raw bytes.

Owns the hostile half of tests/attacks/test_nested.py. It reads one JSON job from its standard
input and prints one JSON answer; ``lib`` is where the package lies.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any

SOCKET = "/run/stockade/box.sock"
MAGIC = b"stockade.nest.v1\n"
SEALS = 0xF


def sealed(data: bytes) -> int:
    """Return a memfd that nobody can change."""
    fd = os.memfd_create("asked", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd


def field(tag: bytes, value: bytes) -> bytes:
    """One field of a request."""
    return tag + struct.pack("<I", len(value)) + value


def send(message: bytes, fds: list[int]) -> tuple[socket.socket, str]:
    """Send one message with descriptors; return the link and the first word of the answer."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.settimeout(20)
    link.connect(SOCKET)
    link.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else [])
    return link, ""


def answer(link: socket.socket) -> str:
    """Return all that the supervisor says until the end: refusal codes, or ``end N``."""
    while True:
        try:
            said = link.recv(8192)
        except ConnectionResetError:
            return "closed"
        if not said:
            return "closed"
        if said[:1] == b"r":
            return str(json.loads(said[1:])["code"])
        if said[:1] == b"e":
            return f"end {struct.unpack('<i', said[1:])[0]}"


def raw(job: dict[str, Any]) -> str:
    """Ask with these bytes and descriptors."""
    request = MAGIC + b"".join(field(bytes([tag]), bytes.fromhex(value)) for tag, value in job["fields"])
    plan = sealed(json.dumps(job["plan"]).encode())
    asked = sealed(request) if job.get("sealed", True) else os.memfd_create("open")
    fds = [plan, asked, 0, 2, 2][:job.get("count", 5)]
    fds += [os.open(path, os.O_RDONLY) for path in job.get("more", ())]
    link, _ = send(job["message"].encode() if "message" in job else MAGIC, fds)
    return answer(link)


def told(job: dict[str, Any]) -> dict[str, Any]:
    """Ask as ``raw`` does, for a receipt as well; what came of it, and what the command printed."""
    report, say = os.pipe()
    out, put = os.pipe()
    request = MAGIC + b"".join(field(b"a", word.encode()) for word in job["argv"]) + field(b"e", b"PATH=/usr/bin:/bin") + field(b"r", b"")
    link, _ = send(MAGIC, [sealed(json.dumps(job["plan"]).encode()), sealed(request), 0, put, 2, say])
    os.close(say)
    os.close(put)
    with open(report, encoding="utf-8") as records, open(out, encoding="utf-8") as printed:
        return {"out": printed.read(), "records": [json.loads(line) for line in records], "end": answer(link)}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run one command through the package; what it printed, its receipt or the refusal."""
    import stockade

    options = dict(job["options"])
    try:
        done = stockade.run(job["argv"], capture_output=True, text=True, **options)
    except stockade.Error as err:
        return {"code": err.code, "message": str(err)}
    return {"status": done.returncode, "out": done.stdout, "err": done.stderr,
            "receipt": done.receipt.to_json(), "active": stockade.active().tier.name}


def plain(job: dict[str, Any]) -> dict[str, Any]:
    """Run a command without a further box."""
    done = subprocess.run(job["argv"], capture_output=True, text=True, check=False)
    return {"status": done.returncode, "out": done.stdout, "err": done.stderr}


def killed(job: dict[str, Any]) -> str:
    """Start a box that lives, kill its client, and read its output to the end."""
    import stockade

    with stockade.Popen(job["argv"], stdout=subprocess.PIPE, **job["options"]) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        os.kill(child.pid, 9)
        rest = child.stdout.read()  # ends when the last process that holds it is dead
    return (first + rest).decode()


def left(job: dict[str, Any]) -> str:
    """Start a box that lives and holds our standard output, and go."""
    import stockade

    child = stockade.Popen(job["argv"], stdout=sys.stderr, stdin=subprocess.PIPE, **job["options"])
    assert child.poll() is None
    os._exit(0) if job.get("go") else None
    return str(child.wait())


def flood(job: dict[str, Any]) -> list[str]:
    """Ask many times at once; what each got."""
    plan = sealed(json.dumps(job["plan"]).encode())
    asked = sealed(MAGIC + field(b"a", b"/bin/true"))
    links = [send(MAGIC, [plan, asked, 0, 2, 2])[0] for _ in range(job["times"])]
    return sorted({answer(link) for link in links})


CROWD: list[socket.socket] = []


def crowd(job: dict[str, Any]) -> int:
    """Open many connections, keep them, and ask for nothing; how many there are. Some say a little, again and again."""
    for _ in range(job["times"]):
        CROWD.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        CROWD[-1].connect(SOCKET)

    def chat() -> None:
        while True:
            for link in CROWD:
                with contextlib.suppress(OSError):
                    link.send(b"x", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            time.sleep(1)  # as much as a box may say in a second
    if job["talks"]:
        threading.Thread(target=chat, daemon=True).start()
    return len(CROWD)


def deep(rest: int, plan: str, launcher: str) -> int:
    """Ask for one box in another, as often as is said; the innermost counts what is around it."""
    if rest == 0:
        with open("/run/stockade/box.json", encoding="utf-8") as stream:
            print("around", len(json.load(stream)["chain"]))
        return 0
    fd = sealed(plan.encode())
    line = [launcher, "--nest", "--plan-fd", str(fd), "--", sys.executable, "-I", "-B", __file__, "deep", str(rest - 1), plan, launcher]
    return subprocess.run(line, pass_fds=[fd], check=False).returncode


def main() -> None:
    """Do the jobs in order."""
    if sys.argv[1:2] == ["deep"]:
        raise SystemExit(deep(int(sys.argv[2]), sys.argv[3], sys.argv[4]))
    jobs = json.load(sys.stdin)
    sys.path.insert(0, jobs["lib"])
    does = {"raw": raw, "told": told, "run": run, "plain": plain, "killed": killed, "left": left, "flood": flood, "crowd": crowd}
    print(json.dumps([does[job["do"]](job) for job in jobs["jobs"]]))


if __name__ == "__main__":
    main()
