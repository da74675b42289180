"""The process outside: what the attacks are aimed at, and who clears everything away.

Owns: one process of the caller with a secret in its environment and in its memory, System V and
POSIX objects, sockets that say a secret to everybody who reaches them; started as a file, standard
library only. It answers on standard output what happened to it. At the end of its standard input,
also when the one who started it was killed, it removes its objects and the whole fixture directory.
Fails closed: what it could not make is left out of its first answer, and then nobody attacks it.
Read next: ``stage.py`` (who starts it), ``attack.py``.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Job = dict[str, Any]

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.shmat.restype = ctypes.c_void_p
RT = LIBC if hasattr(LIBC, "mq_open") else ctypes.CDLL("librt.so.1", use_errno=True)
IPC_CREAT_EXCL = 0o3000
PR_SET_PTRACER, ANYBODY = 0x59616D61, ctypes.c_ulong(-1)
CLEAR_S = 5.0
KEPT: list[socket.socket] = []
HELD: list[Any] = []  # the memory that is attacked


def serve(end: socket.socket, text: bytes) -> None:
    """Say the text to everybody who connects, and hang up."""
    KEPT.append(end)

    def loop() -> None:
        while True:
            try:
                caller = end.accept()[0]
            except OSError:
                return
            try:
                caller.sendall(text)
            except OSError:
                pass
            caller.close()

    end.listen(64)
    threading.Thread(target=loop, daemon=True).start()


def bound(address: str) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    end.bind(address)
    return end


def make_shared(job: Job, made: dict[str, int]) -> None:
    """Make the shared objects; those that could be made are in ``made``, also when the rest fails."""
    key, text = job["key"], job["secret"].encode() + b"\0"
    shm = LIBC.shmget(key, 4096, 0o600 | IPC_CREAT_EXCL)
    if shm >= 0:
        made["shm"] = shm
        ctypes.memmove(LIBC.shmat(shm, None, 0), text, len(text))
    for name, number in (("sem", LIBC.semget(key, 1, 0o600 | IPC_CREAT_EXCL)),
                         ("msg", LIBC.msgget(key, 0o600 | IPC_CREAT_EXCL))):
        if number >= 0:
            made[name] = number
    queue = RT.mq_open(job["queue"].encode(), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600, None)
    if queue >= 0:
        made["queue"] = queue
    try:
        descriptor = os.open(job["shm_file"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        made["file"] = 0  # it is there from now on, also when nothing can be written to it
        with open(descriptor, "wb") as stream:
            stream.write(text)
    except OSError:
        pass


def drop_shared(made: dict[str, int], job: Job) -> None:
    """Remove exactly what was made."""
    if "shm" in made:
        LIBC.shmctl(made["shm"], 0, None)
    if "sem" in made:
        LIBC.semctl(made["sem"], 0, 0)
    if "msg" in made:
        LIBC.msgctl(made["msg"], 0, None)
    if "queue" in made:
        RT.mq_unlink(job["queue"].encode())
    if "file" in made:
        os.unlink(job["shm_file"])


def listen(job: Job) -> tuple[int, list[str]]:
    """Open the sockets; returns the port on the loopback and the paths that could be bound."""
    text, paths = job["secret"].encode(), list[str]()
    for path in job["sockets"]:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    serve(bound("\0" + job["abstract"]), text)
    for path in job["sockets"]:
        try:
            serve(bound(path), text)
            paths.append(path)
        except OSError:
            continue
    server = socket.create_server(("127.0.0.1", 0))
    serve(server, text)
    return server.getsockname()[1], paths


def new_directory(places: list[str]) -> str:
    """Make the fixture directory; returns nothing when no place takes it."""
    for place in places:
        try:
            return os.path.realpath(tempfile.mkdtemp(prefix="stockade-prove-", dir=place))
        except OSError:
            continue
    return ""


def tell(answer: Job) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def clear(base: str) -> None:
    """Remove the fixtures; a supervisor that ends just now may still write its record."""
    deadline = time.monotonic() + CLEAR_S
    while base and os.path.lexists(base) and time.monotonic() < deadline:
        for directory, _, _ in os.walk(base):
            try:
                os.chmod(directory, 0o700)
            except OSError:
                continue
        shutil.rmtree(base, ignore_errors=True)


def make(job: Job, made: dict[str, int]) -> Job:
    """Make everything that is attacked; returns what the one who attacks needs to know of it."""
    secret = ctypes.create_string_buffer(job["secret"].encode())
    make_shared(job, made)
    port, paths = listen(job)
    descriptor = os.memfd_create("prove")
    os.write(descriptor, job["secret"].encode())
    HELD.append(secret)
    return {"pid": os.getpid(), "address": ctypes.addressof(secret), "descriptor": descriptor, "port": port,
            "sockets": paths, "made": sorted(made)}


def main() -> None:
    os.umask(0o077)
    # Ctrl-C is for the one who started us; we end when our input does, and never leave things behind.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Blocked and never handled: what is pending was sent, and nothing is lost between two looks.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    LIBC.prctl(PR_SET_PTRACER, ANYBODY, 0, 0, 0)
    # Made here and not by the one who asks, who may be killed at any moment: whoever makes it removes it.
    base = new_directory(sys.argv[2:])
    job: Job = {}
    made: dict[str, int] = {}
    try:
        tell({"base": base})
        job = json.loads(sys.stdin.readline() or "{}")
        if not job:
            return
        try:
            told = make(job, made)
        except OSError as error:
            told = {"failed": error.errno}
        tell(told)
        for _ in sys.stdin:
            tell({"signalled": bool(signal.sigtimedwait({signal.SIGUSR1}, 0))})
    finally:
        for end in KEPT:
            end.close()  # where few descriptors are allowed, removing takes those
        try:
            drop_shared(made, job)
        finally:
            clear(base)


if __name__ == "__main__":
    main()
