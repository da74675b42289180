"""The program that attacks: runs without a box, then in each box, and tells what the kernel answered.

Owns: one operation for each way in, by its system calls; standard library only, started as a file
and never imported by the package. One JSON object a line on standard input, one answer a line:
``{"errno": null | "ENOENT", "value": ...}``. Each operation runs in a child of its own, so that none
changes what the next one finds. Fails closed: an operation that does not answer within its time is
ended and answered with ETIMEDOUT. It is hostile code by purpose and touches only what it is told.
Read next: ``catalogue.py`` (which operation attacks which promise), ``victim.py``.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Op = dict[str, Any]

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.restype = ctypes.c_long
LIBC.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
LIBC.shmat.restype = ctypes.c_void_p
LIBC.syscall.restype = ctypes.c_long
ANSWER_S = 8.0
MAX_VALUE = 4000
MAX_PROCESSES = 2000
PARENT = os.getppid()

# Source: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h.
CALLS = {
    "x86_64": {"bpf": 321, "perf_event_open": 298, "io_uring_setup": 425, "userfaultfd": 323, "add_key": 248,
               "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304},
    "aarch64": {"bpf": 280, "perf_event_open": 241, "io_uring_setup": 425, "userfaultfd": 282, "add_key": 217,
                "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265},
}
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
PR_GET_NO_NEW_PRIVS, PR_SET_PTRACER = 39, 0x59616D61
TIOCSCTTY, TIOCSTI = 0x540E, 0x5412


def checked(answer: int | None, what: str) -> int:
    """Return what a call of the C library gave, or raise its errno."""
    if answer is None or answer < 0:
        raise OSError(ctypes.get_errno(), what)
    return answer


def system_call(name: str, *values: Any) -> int:
    number = CALLS.get(os.uname().machine, {}).get(name)
    if number is None:
        raise OSError(errno.ENOSYS, name)
    return checked(LIBC.syscall(ctypes.c_long(number), *values), name)


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# -- files -----------------------------------------------------------------------------------------


def read(op: Op) -> Any:
    descriptor = os.open(op["path"], os.O_RDONLY | os.O_NONBLOCK)
    return text_of(os.read(descriptor, MAX_VALUE))


def read_start(op: Op) -> Any:
    """Read from the start, wherever the one who has it open stands."""
    return text_of(os.pread(os.open(op["path"], os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), MAX_VALUE, 0))


def listing(op: Op) -> Any:
    return sorted(os.listdir(op["path"]))[:200]


def append(op: Op) -> Any:
    descriptor = os.open(op["path"], os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, op["text"].encode())


def create(op: Op) -> Any:
    descriptor = os.open(op["path"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(descriptor, op["text"].encode())


def truncate(op: Op) -> Any:
    os.truncate(op["path"], 0)


def unlink(op: Op) -> Any:
    os.unlink(op["path"])


def rename(op: Op) -> Any:
    os.rename(op["path"], op["to"])


def replace(op: Op) -> Any:
    """Save by rename: a new file takes the name of another."""
    create({"path": op["by"], "text": op["text"]})
    os.rename(op["by"], op["path"])


def link(op: Op) -> Any:
    """Give a file a second name where it may be written, and write there."""
    os.link(op["path"], op["to"])
    append({"path": op["to"], "text": op["text"]})


def through_link(op: Op) -> Any:
    """Write through a symbolic link of one's own."""
    os.symlink(op["path"], op["by"])
    append({"path": op["by"], "text": op["text"]})


def chmod(op: Op) -> Any:
    os.chmod(op["path"], op["mode"])


def fchmod(op: Op) -> Any:
    """Change the mode through a descriptor that was opened for reading only."""
    os.fchmod(os.open(op["path"], os.O_RDONLY), op["mode"])


def utime(op: Op) -> Any:
    os.utime(op["path"], (op["time"], op["time"]))


def setxattr(op: Op) -> Any:
    os.setxattr(op["path"], op["name"], b"1")


def may_write(op: Op) -> Any:
    """Ask the kernel whether a file could be written; nothing is opened. Source: faccessat(2)."""
    checked(LIBC.faccessat(-100, os.fsencode(op["path"]), os.W_OK, 0), "faccessat")


# -- environment and processes ---------------------------------------------------------------------


def processes() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()][:MAX_PROCESSES]


def slurp(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(1 << 20)


def environment(op: Op) -> Any:
    """Look for a value in the own environment and in that of every process that shows it."""
    if any(op["needle"] in value for value in os.environ.values()):
        return "environment of the command: " + op["needle"]
    return searched("environ", op["needle"])


def searched(name: str, needle: str) -> str:
    for pid in processes():
        try:
            found = needle.encode() in slurp(f"/proc/{pid}/{name}")
        except OSError:
            continue
        if found:
            return f"{name} of process {pid}: {needle}"
    return ""


def parent_environment(op: Op) -> Any:
    """Look into the parent: in a box that is its init, which began with the caller's environment."""
    data = text_of(slurp(f"/proc/{PARENT}/environ"))
    return op["needle"] if op["needle"] in data else ""


def parent_memory(op: Op) -> Any:
    os.open(f"/proc/{PARENT}/mem", os.O_RDONLY)


def command_lines(op: Op) -> Any:
    return searched("cmdline", op["needle"])


def kill(op: Op) -> Any:
    os.kill(op["pid"], op["signal"])


def lower_priority(op: Op) -> Any:
    os.setpriority(os.PRIO_PROCESS, op["pid"], os.getpriority(os.PRIO_PROCESS, op["pid"]) + 1)


def memory_file(op: Op) -> Any:
    descriptor = os.open(f"/proc/{op['pid']}/mem", os.O_RDONLY)
    return text_of(os.pread(descriptor, op["length"], op["address"]))


class Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def memory_call(op: Op) -> Any:
    buffer = ctypes.create_string_buffer(op["length"])
    own = Vector(ctypes.addressof(buffer), op["length"])
    other = Vector(op["address"], op["length"])
    checked(LIBC.process_vm_readv(op["pid"], ctypes.byref(own), 1, ctypes.byref(other), 1, 0), "process_vm_readv")
    return text_of(buffer.raw)


def trace(op: Op) -> Any:
    """Stop a process as a debugger does, take words of its memory, and let it go."""
    pid, found = op["pid"], b""
    checked(LIBC.ptrace(0x4206, pid, None, None), "ptrace")
    LIBC.ptrace(0x4207, pid, None, None)
    os.waitpid(pid, 0x40000000)
    try:
        for offset in range(0, op["length"], 8):
            ctypes.set_errno(0)
            word = LIBC.ptrace(2, pid, op["address"] + offset, None)
            if word == -1 and ctypes.get_errno():
                raise OSError(ctypes.get_errno(), "ptrace")
            found += (word & (1 << 64) - 1).to_bytes(8, sys.byteorder)
    finally:
        LIBC.ptrace(17, pid, None, None)
    return text_of(found[:op["length"]])


def stay(op: Op) -> Any:
    """Leave a process behind that holds the reading end of a fifo until its writers are gone."""
    ready, told = os.pipe()
    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        leash = os.open(op["fifo"], os.O_RDONLY)
        os.write(told, b"!")
        os.closerange(0, leash)
        os.closerange(leash + 1, 4096)
        while os.read(leash, 64):
            pass
        os._exit(0)
    os.close(told)
    if os.read(ready, 1) != b"!":
        raise OSError(errno.ECHILD, "stay")
    return os.stat(op["fifo"]).st_ino


# -- sockets and shared objects --------------------------------------------------------------------


def banner(end: socket.socket, address: Any) -> str:
    """Connect and take what the server says to everybody."""
    with end:
        end.settimeout(ANSWER_S / 2)
        end.connect(address)
        return text_of(end.recv(256))


def connect(op: Op) -> Any:
    return banner(socket.socket(socket.AF_UNIX), op["path"])


def connect_abstract(op: Op) -> Any:
    return banner(socket.socket(socket.AF_UNIX), "\0" + op["name"])


def connect_tcp(op: Op) -> Any:
    return banner(socket.socket(), ("127.0.0.1", op["port"]))


def shared_memory(op: Op) -> Any:
    number = checked(LIBC.shmget(op["key"], 0, 0), "shmget")
    address = LIBC.shmat(number, None, 0o10000)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "shmat")
    return text_of(ctypes.string_at(address, op["length"]))


def semaphores(op: Op) -> Any:
    checked(LIBC.semget(op["key"], 0, 0), "semget")


def messages(op: Op) -> Any:
    checked(LIBC.msgget(op["key"], 0), "msgget")


def posix_queue(op: Op) -> Any:
    library = LIBC if hasattr(LIBC, "mq_open") else ctypes.CDLL("librt.so.1", use_errno=True)
    checked(library.mq_open(op["name"].encode(), os.O_RDONLY), "mq_open")


# -- the kernel ------------------------------------------------------------------------------------


def user_namespace(op: Op) -> Any:
    checked(LIBC.unshare(CLONE_NEWUSER), "unshare")


def mount(op: Op) -> Any:
    """Mount a file system of one's own, in namespaces that end with this child."""
    checked(LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
    checked(LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mount")
    checked(LIBC.mount(b"none", os.fsencode(op["path"]), b"tmpfs", 0, None), "mount")


def io_uring(op: Op) -> Any:
    system_call("io_uring_setup", 1, ctypes.create_string_buffer(120))


def userfaultfd(op: Op) -> Any:
    system_call("userfaultfd", os.O_CLOEXEC | 1)


def perf_event(op: Op) -> Any:
    # A software clock of this process, user space only. Source: perf_event_open(2).
    attributes = struct.pack("=II32xQ64x", 1, 112, 1 << 5 | 1 << 6)
    system_call("perf_event_open", ctypes.create_string_buffer(attributes), 0, -1, -1, 0)


def bpf_map(op: Op) -> Any:
    attributes = struct.pack("=IIII104x", 2, 4, 4, 1)
    system_call("bpf", 0, ctypes.create_string_buffer(attributes), 120)


def add_key(op: Op) -> Any:
    system_call("add_key", b"user", b"stockade-prove", b"1", ctypes.c_size_t(1), -2)


def fanotify(op: Op) -> Any:
    system_call("fanotify_init", 0x200, os.O_RDONLY)


def file_handle(op: Op) -> Any:
    handle = ctypes.create_string_buffer((128).to_bytes(4, sys.byteorder) + bytes(140))
    number = ctypes.c_int()
    path = os.fsencode(op["path"])
    system_call("name_to_handle_at", -100, path, handle, ctypes.byref(number), 0)
    directory = os.open(os.path.dirname(op["path"]), os.O_RDONLY)
    system_call("open_by_handle_at", directory, handle, os.O_RDONLY)


def open_socket(op: Op) -> Any:
    socket.socket(op["family"], op["type"], op["protocol"]).close()


def setuid_file(op: Op) -> Any:
    create({"path": op["path"], "text": "#!/bin/sh\n"})
    os.chmod(op["path"], 0o4755)
    if not os.stat(op["path"]).st_mode & stat.S_ISUID:
        raise OSError(errno.EPERM, "chmod")


def new_privileges(op: Op) -> Any:
    """Tell whether a setuid program would get what it is marked for."""
    if checked(LIBC.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), "prctl"):
        raise OSError(errno.EPERM, "prctl")
    return "no_new_privs is 0"


def capabilities(op: Op) -> Any:
    lines = dict(line.split(":\t", 1) for line in text_of(slurp("/proc/self/status")).splitlines() if ":\t" in line)
    if not int(lines["CapEff"], 16):
        raise OSError(errno.EPERM, "capget")
    return "CapEff " + lines["CapEff"]


def type_into_terminal(op: Op) -> Any:
    """Make a terminal the own one, as the session of a shell has it, and type into it."""
    import fcntl

    os.setsid()
    fcntl.ioctl(op["fd"], TIOCSCTTY, 0)
    for letter in op["text"]:
        fcntl.ioctl(op["fd"], TIOCSTI, letter.encode())


# -- limits ----------------------------------------------------------------------------------------


def open_many(op: Op) -> Any:
    return len([os.open("/dev/null", os.O_RDONLY) for _ in range(op["count"])])


def fork_many(op: Op) -> Any:
    """Have so many children alive at once, in a box for as long as one needs who counts them."""
    hold, go = os.pipe()
    made, failure = 0, None
    try:
        for _ in range(op["count"]):
            if os.fork() == 0:
                os.close(go)
                os.read(hold, 1)
                os._exit(0)
            made += 1
        select.select([], [], [], 0 if sys.argv[1:] else op["hold_s"])
    except OSError as error:
        failure = error
    os.close(go)
    for _ in range(made):
        os.wait()
    if failure is not None:
        raise failure
    return made


def raise_core_limit(op: Op) -> Any:
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except ValueError:  # the module turns EPERM into ValueError
        raise OSError(errno.EPERM, "setrlimit") from None
    now = resource.getrlimit(resource.RLIMIT_CORE)[0]
    if now != resource.RLIM_INFINITY:  # the answer may be yes and nothing changed
        raise OSError(errno.EPERM, f"core limit {now}")
    return "core dumps of any size"


# -- the loop --------------------------------------------------------------------------------------


OPS = {name: value for name, value in list(globals().items())
       if callable(value) and getattr(value, "__module__", "") == __name__}


def attempt(op: Op) -> Any:
    """Do one operation and say what the kernel answered."""
    try:
        return {"errno": None, "value": OPS[op["op"]](op)}
    except TimeoutError:
        return {"errno": "ETIMEDOUT", "value": None}
    except OSError as error:
        return {"errno": errno.errorcode.get(error.errno or 0, str(error)), "value": None}
    except Exception as error:
        return {"errno": f"{type(error).__name__}: {error}"[:200], "value": None}


def answer(op: Op) -> Any:
    """Do one operation in a child, bounded in time."""
    inner, outer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(inner)
        os.write(outer, json.dumps(attempt(op)).encode())
        os._exit(0)
    os.close(outer)
    late = not select.select([inner], [], [], ANSWER_S)[0]
    if late:
        os.kill(child, signal.SIGKILL)
    data = b"" if late else collected(inner)
    os.close(inner)
    _, status = os.waitpid(child, 0)
    if data:
        return json.loads(data)
    how = "ETIMEDOUT" if late else f"ended with {os.waitstatus_to_exitcode(status)}"
    return {"errno": how, "value": None}


def collected(descriptor: int) -> bytes:
    """Read to the end: the child's answer is one write, and the child closes the pipe by ending."""
    parts = []
    while part := os.read(descriptor, 1 << 16):
        parts.append(part)
    return b"".join(parts)


def main() -> None:
    # The number of a process outside may be that of one in here, where numbers begin anew.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if sys.argv[1:] == ["below"]:
        # Without a box too there is a parent with the same environment, as a box has its init.
        global PARENT
        PARENT = os.getpid()
        LIBC.prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)  # else Yama guards it, which is no merit of a box
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
