#!/usr/bin/python3
"""A hostile program: tries a list of operations and tells what the kernel answered.

Reads one JSON list from standard input, ``[{"id", "op", ...}]``, and writes one JSON object,
``id -> {"errno": null | "ENOENT", "value": ...}``; with ``serve`` one list a line. Operations undo what they did, so that the
same list can first run without a box. Every answer is a system call's, never a guess.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys

LIBC = ctypes.CDLL(None, use_errno=True)


def slurp(path):
    with open(path, "rb") as handle:
        return handle.read()


def read(op):
    descriptor = os.open(op["path"], os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(descriptor, op.get("limit", 4096)).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def listing(op):
    return sorted(os.listdir(op["path"]))


def stat_of(op):
    info = os.lstat(op["path"])
    return {"mode": info.st_mode, "uid": info.st_uid, "gid": info.st_gid, "size": info.st_size}


def readlink(op):
    return os.readlink(op["path"])


def getxattr(op):
    return os.getxattr(op["path"], op["name"]).decode("latin-1")


def write_open(op):
    os.close(os.open(op["path"], os.O_WRONLY))


def rewrite(op):
    with open(op["path"], "rb") as handle:
        before = handle.read()
    with open(op["path"], "wb") as handle:
        handle.write(op.get("text", "owned\n").encode())
    if not op.get("keep"):
        with open(op["path"], "wb") as handle:
            handle.write(before)


def create(op):
    descriptor = os.open(op["path"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, op.get("mode", 0o600))
    os.write(descriptor, op.get("text", "owned\n").encode())
    os.close(descriptor)
    if not op.get("keep"):
        os.unlink(op["path"])


def mkdir(op):
    os.mkdir(op["path"])
    if not op.get("keep"):
        os.rmdir(op["path"])


def unlink(op):
    """Remove and put back by a hard link kept beside it (same directory, same rights)."""
    keep = op["path"] + ".kept"
    os.link(op["path"], keep, follow_symlinks=False)
    try:
        os.unlink(op["path"])
    except OSError:
        os.unlink(keep)
        raise
    os.rename(keep, op["path"])


def remove(op):
    os.unlink(op["path"])


def rename(op):
    os.rename(op["path"], op["to"])
    if not op.get("keep"):
        os.rename(op["to"], op["path"])


def exchange(op):
    if LIBC.renameat2(-100, op["path"].encode(), -100, op["to"].encode(), 2):
        raise OSError(ctypes.get_errno(), "renameat2")
    LIBC.renameat2(-100, op["path"].encode(), -100, op["to"].encode(), 2)


def link(op):
    os.link(op["path"], op["to"], follow_symlinks=False)
    if not op.get("keep"):
        os.unlink(op["to"])


def symlink(op):
    os.symlink(op["to"], op["path"])
    if not op.get("keep"):
        os.unlink(op["path"])


def truncate(op):
    os.truncate(op["path"], os.stat(op["path"]).st_size)


def chmod(op):
    before = stat.S_IMODE(os.stat(op["path"]).st_mode)
    os.chmod(op["path"], op.get("mode", before ^ 0o001))
    os.chmod(op["path"], before)


def chown(op):
    info = os.stat(op["path"])
    os.chown(op["path"], info.st_uid, info.st_gid)


def utime(op):
    info = os.stat(op["path"])
    os.utime(op["path"], ns=(info.st_atime_ns, info.st_mtime_ns))


def setxattr(op):
    os.setxattr(op["path"], "user.owned", b"1")
    os.removexattr(op["path"], "user.owned")


def mkfifo(op):
    os.mkfifo(op["path"])
    os.unlink(op["path"])


def connect(op):
    kind = socket.SOCK_DGRAM if op.get("type") == "dgram" else socket.SOCK_STREAM
    with socket.socket(socket.AF_UNIX, kind) as end:
        end.settimeout(5)
        end.connect(op["path"])


def connect_abstract(op):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.settimeout(5)
        end.connect("\0" + op["name"])


def dgram_pair(op):
    """A datagram pair can be aimed at any path afterwards: connect, then send without address."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with left, right:
        left.connect(op["path"])
        left.send(op.get("text", "owned").encode())


def tcp(op):
    with socket.create_connection((op["host"], op["port"]), timeout=5):
        pass


def udp(op):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.connect((op["host"], op["port"]))
        end.send(b"owned")


def loopback(op):
    """A server and a client of the box itself."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=5):
        pass


def interfaces(op):
    return sorted(name for _, name in socket.if_nameindex())


def kill(op):
    os.kill(op["pid"], op.get("signal", 0))


def ptrace_seize(op):
    pid = op["pid"]
    if LIBC.ptrace(0x4206, pid, 0, 0):
        raise OSError(ctypes.get_errno(), "ptrace")
    LIBC.ptrace(0x4207, pid, 0, 0)
    os.waitpid(pid, 0x40000000)
    LIBC.ptrace(17, pid, 0, 0)


def vm_read(op):
    """process_vm_readv of one byte at an address that exists or not: only the right is probed."""
    buffer = ctypes.create_string_buffer(8)

    class Vec(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("len", ctypes.c_size_t))

    local = Vec(ctypes.addressof(buffer), 8)
    remote = Vec(op.get("address", 4096), 8)
    if LIBC.process_vm_readv(op["pid"], ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) < 0:
        raise OSError(ctypes.get_errno(), "process_vm_readv")


def pidfd_open(op):
    os.close(os.pidfd_open(op["pid"]))


def setpriority(op):
    before = os.getpriority(os.PRIO_PROCESS, op["pid"])
    os.setpriority(os.PRIO_PROCESS, op["pid"], before)
    return before


def nice_all(op):
    """Lower every process of the user, or of a group, init among them."""
    os.setpriority(op["which"], op.get("who", 0), 19)


def sched_idle(op):
    os.sched_setscheduler(op["pid"], os.SCHED_IDLE, os.sched_param(0))


def sched_setaffinity(op):
    os.sched_setaffinity(op["pid"], os.sched_getaffinity(op["pid"]))


def prlimit(op):
    import resource

    resource.prlimit(op["pid"], resource.RLIMIT_NOFILE, resource.prlimit(op["pid"], resource.RLIMIT_NOFILE))


def getpgid(op):
    return os.getpgid(op["pid"])


def pids(op):
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def environ(op):
    return dict(os.environ)


def proc_environ(op):
    return sorted(item.decode("utf-8", "replace") for item in slurp(op["path"]).split(b"\0") if item)


def all_environ(op):
    """What any process of the box shows of its environment."""
    found = []
    for pid in pids(op):
        try:
            found += proc_environ({"path": f"/proc/{pid}/environ"})
        except OSError:
            continue
    return sorted(set(found))


def all_cmdlines(op):
    found = {}
    for pid in pids(op):
        try:
            found[str(pid)] = slurp(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
    return found


def fchmod(op):
    """Change the mode through a descriptor that was opened for reading."""
    descriptor = os.open(op["path"], os.O_RDONLY)
    try:
        before = stat.S_IMODE(os.fstat(descriptor).st_mode)
        os.fchmod(descriptor, before ^ 0o001)
        os.fchmod(descriptor, before)
    finally:
        os.close(descriptor)


def find(op):
    """Every readable file below a directory whose content holds the needle."""
    found = []
    for directory, _, names in os.walk(op["path"]):
        for name in names:
            path = os.path.join(directory, name)
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 65536 and op["needle"].encode() in slurp(path):
                    found.append(path)
            except OSError:
                continue
    return sorted(found)


def sleep(op):
    import time

    time.sleep(op["seconds"])


def memory(op):
    """Touch so many bytes."""
    block = bytearray(op["bytes"])
    for offset in range(0, len(block), 4096):
        block[offset] = 1
    return len(block)


def open_many(op):
    """Open descriptors until the kernel says no; return how many it gave."""
    held = []
    try:
        for _ in range(op["count"]):
            held.append(os.open("/dev/null", os.O_RDONLY))
    finally:
        for descriptor in held:
            os.close(descriptor)
    return len(held)


def fork_many(op):
    """Have so many children alive at once."""
    children, failure = [], None
    try:
        for _ in range(op["count"]):
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(0)
            children.append(child)
    except OSError as error:
        failure = error
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if failure:
        raise failure
    return len(children)


def set_rlimit(op):
    import resource

    try:
        resource.setrlimit(getattr(resource, op["name"]), tuple(op["value"]))
    except ValueError as error:  # the module turns EPERM into ValueError
        raise PermissionError(errno.EPERM, str(error)) from None


def descriptors(op):
    """Every descriptor besides the standard ones and the one used to look."""
    found = {}
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        if int(name) > 2:
            try:
                found[name] = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue
    return {name: target for name, target in found.items() if not target.startswith("/proc/")}


def read_fd(op):
    return os.read(op["fd"], 100).decode("utf-8", "replace")


def status(op):
    fields = {}
    for line in slurp(op.get("path", "/proc/self/status")).decode().splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.strip()
    return fields


def rlimit(op):
    import resource

    return list(resource.getrlimit(getattr(resource, op["name"])))


def run(op):
    """Run a program; a status other than 0 counts as a failure with its text as value."""
    done = subprocess.run(op["argv"], capture_output=True, text=True, timeout=60, cwd=op.get("cwd"),
                          stdin=subprocess.DEVNULL, errors="replace")
    return {"status": done.returncode, "out": done.stdout[-4000:], "err": done.stderr[-4000:]}


def who(op):
    return {"uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(), "pid": os.getpid(),
            "ppid": os.getppid(), "sid": os.getsid(0), "pgid": os.getpgid(0), "cwd": os.getcwd(),
            "host": os.uname().nodename}


def sysv_get(op):
    """Look a SysV object of the host up by its key, without creating one."""
    call = {"shm": lambda: LIBC.shmget(op["key"], 0, 0), "sem": lambda: LIBC.semget(op["key"], 0, 0),
            "msg": lambda: LIBC.msgget(op["key"], 0)}[op["kind"]]
    if call() < 0:
        raise OSError(ctypes.get_errno(), "sysv")


def sysv_own(op):
    """Create, use and remove one of each kind: IPC inside the box works."""
    shm = LIBC.shmget(0, 4096, 0o600 | 0o1000)
    msg = LIBC.msgget(0, 0o600 | 0o1000)
    sem = LIBC.semget(0, 1, 0o600 | 0o1000)
    if min(shm, msg, sem) < 0:
        raise OSError(ctypes.get_errno(), "sysv create")
    LIBC.shmctl(shm, 0, 0)
    LIBC.msgctl(msg, 0, 0)
    LIBC.semctl(sem, 0, 0)


def mq_open(op):
    rt = ctypes.CDLL("librt.so.1", use_errno=True)
    descriptor = rt.mq_open(op["name"].encode(), os.O_RDWR | (os.O_CREAT if op.get("create") else 0), 0o600, None)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "mq_open")
    rt.mq_close(descriptor)
    if op.get("create") and not op.get("keep"):
        rt.mq_unlink(op["name"].encode())


def memfd_exec(op):
    """Code that never had a path still runs with the box's rights only."""
    descriptor = os.memfd_create("code", 0)
    with open("/proc/self/exe", "rb") as source:
        os.write(descriptor, source.read())
    child = os.fork()
    if child == 0:
        os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
        os.execve(f"/proc/self/fd/{descriptor}", ["python3", "-c", f"open({op['path']!r}).read()"], dict(os.environ))
    _, code = os.waitpid(child, 0)
    os.close(descriptor)
    return os.waitstatus_to_exitcode(code)


OPS = {name: value for name, value in list(globals().items()) if callable(value) and getattr(value, "__module__", "") == __name__}
OPS.update({"list": listing, "stat": stat_of})


def answer(op):
    """Do one operation; a signal that was meant for others must not end the probe."""
    try:
        return {"errno": None, "value": OPS[op["op"]](op)}
    except TimeoutError:
        return {"errno": "ETIMEDOUT", "value": None}
    except OSError as error:
        return {"errno": errno.errorcode.get(error.errno, str(error)), "value": None}


def serve():
    """Answer one list of operations a line until the host closes the pipe."""
    for line in sys.stdin:
        print(json.dumps({op["id"]: answer(op) for op in json.loads(line)}), flush=True)


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if sys.argv[1:] == ["serve"]:
        serve()
        return
    ops = json.loads(slurp(sys.argv[1]) if len(sys.argv) > 1 else sys.stdin.buffer.read())
    json.dump({op["id"]: answer(op) for op in ops}, sys.stdout)


if __name__ == "__main__":
    main()
