#!/usr/bin/python3
"""A process of the same user outside every box: the victim, and the hand of the host.

Obeys one JSON command a line and answers one JSON line: binds sockets, holds IPC objects,
replaces files while a box lives. Lives in the same mount namespace as the caller under test, so
that the names it binds are the names that the kernel reports.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import sys
import threading

LIBC = ctypes.CDLL(None, use_errno=True)
KEPT: list[socket.socket] = []
QUEUES: dict[str, int] = {}
SHM_KEY, MSG_KEY, SEM_KEY = 0x53544B31, 0x53544B32, 0x53544B33


def listen(job):
    """Bind a stream (or datagram) socket at a path, creating its directory."""
    os.makedirs(os.path.dirname(job["path"]), exist_ok=True)
    kind = socket.SOCK_DGRAM if job.get("type") == "dgram" else socket.SOCK_STREAM
    end = socket.socket(socket.AF_UNIX, kind)
    # sun_path holds 107 bytes: bind through the directory when the whole path is longer.
    if len(job["path"]) > 100:
        os.chdir(os.path.dirname(job["path"]))
        end.bind(os.path.basename(job["path"]))
        os.chdir("/")
    else:
        end.bind(job["path"])
    if kind == socket.SOCK_STREAM:
        end.listen(64)
        threading.Thread(target=hang_up, args=(end,), daemon=True).start()
    KEPT.append(end)


def hang_up(end):
    """Take every caller and hang up: a service that never answers would stop the host's own programs."""
    while True:
        try:
            end.accept()[0].close()
        except OSError:
            return


def forget(job):
    """Close every path socket bound so far."""
    for end in [end for end in KEPT if end.family == socket.AF_UNIX]:
        KEPT.remove(end)
        try:
            end.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        except OSError:
            pass
        end.close()


def received(job):
    """Every datagram that reached a socket bound here."""
    watch = select.poll()
    ends = {end.fileno(): end for end in KEPT if end.type == socket.SOCK_DGRAM}
    for number in ends:
        watch.register(number, select.POLLIN)
    return [ends[number].recv(4096).decode("utf-8", "replace") for number, _ in watch.poll(0)]


def listen_abstract(job):
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.bind("\0" + job["name"])
    end.listen(8)
    KEPT.append(end)


def listen_tcp(job):
    server = socket.create_server(("127.0.0.1", 0))
    KEPT.append(server)
    return server.getsockname()[1]


def hold_ipc(job):
    """SysV objects, a POSIX queue and a /dev/shm file that any process of the user may open."""
    rt = ctypes.CDLL("librt.so.1", use_errno=True)
    base = job["base"]
    shm = LIBC.shmget(base + 1, 4096, 0o666 | 0o1000)
    msg = LIBC.msgget(base + 2, 0o666 | 0o1000)
    sem = LIBC.semget(base + 3, 1, 0o666 | 0o1000)
    queue = rt.mq_open(job["queue"].encode(), os.O_RDWR | os.O_CREAT, 0o666, None)
    if min(shm, msg, sem, queue) < 0:
        raise OSError(ctypes.get_errno(), "ipc set-up")
    QUEUES[job["queue"]] = queue
    with open(job["shm_file"], "w", encoding="utf-8") as handle:
        handle.write("host shared memory")
    return [shm, msg, sem]


def drop_ipc(job):
    rt = ctypes.CDLL("librt.so.1", use_errno=True)
    shm, msg, sem = job["ids"]
    LIBC.shmctl(shm, 0, 0)
    LIBC.msgctl(msg, 0, 0)
    LIBC.semctl(sem, 0, 0)
    # An open queue counts against the account's limit even when its name is gone.
    rt.mq_close(QUEUES.pop(job["queue"]))
    rt.mq_unlink(job["queue"].encode())
    os.unlink(job["shm_file"])


def write(job):
    os.makedirs(os.path.dirname(job["path"]), exist_ok=True)
    with open(job["path"], "w", encoding="utf-8") as handle:
        handle.write(job["text"])
    os.chmod(job["path"], job.get("mode", 0o600))


def replace(job):
    """Save by rename, as editors, ``npm login`` and ``git config`` do."""
    temporary = job["path"] + ".new"
    write({"path": temporary, "text": job["text"]})
    os.rename(temporary, job["path"])


def rename(job):
    os.rename(job["path"], job["to"])


def read(job):
    with open(job["path"], encoding="utf-8", errors="replace") as handle:
        return handle.read()


def reap(job):
    """Tell which children ended (none are expected to)."""
    return os.getpid()


COMMANDS = {name: value for name, value in list(globals().items()) if callable(value) and getattr(value, "__module__", "") == __name__}


def main():
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            print(json.dumps({"value": COMMANDS[job["do"]](job)}), flush=True)
        except OSError as error:
            print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
