#!/usr/bin/python3
"""Does what a tracer could disturb, and prints what the program itself sees of it.

Run bare, in a box and in a watched box: the three documents must be equal. Covers ends by every
signal, stops and continues, many forks, threads that all execute a program, pointers to nothing,
paths that are too long, a path that changes while it is read, and vfork.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
FORKS = 200
THREADS = 64
# The interpreter's libc keeps these for itself; sigaction(2) refuses to touch them by name only.
SIGNALS = [number for number in range(1, 65) if number not in (32, 33)]


def _child(body):
    """A group of its own: the kernel drops terminal stops of a group that is orphaned, as a session's first is."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        body()
        os._exit(99)
    with contextlib.suppress(PermissionError, ProcessLookupError):  # it was quicker, or is gone
        os.setpgid(pid, pid)
    return pid


def _die(number):
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def ends():
    """Status after each signal that a process sends itself; a stop is continued, then the child ends."""
    found = {}
    for number in SIGNALS:
        pid = _child(lambda number=number: _die(number))
        told = []
        while True:
            # Not WCONTINUED: a child that has ended before anybody asks is no longer reported as continued.
            _, status = os.waitpid(pid, os.WUNTRACED)
            # A core is written nowhere, but the bit of it may be set.
            told.append(status & ~0x80 if os.WIFSIGNALED(status) else status)
            if os.WIFSTOPPED(status):
                os.kill(pid, signal.SIGCONT)
            else:
                break
        found[number] = told
    return found


def stops():
    """A child that is stopped and continued from outside five times goes on where it was."""
    reader, writer = os.pipe()
    back, answer = os.pipe()

    def body():
        while os.read(reader, 1) == b"x":
            os.write(answer, b"y")
        os._exit(7)

    pid = _child(body)
    told = []
    for number in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGSTOP):
        os.kill(pid, number)
        told.append(os.waitpid(pid, os.WUNTRACED)[1])
        os.write(writer, b"x")
        os.set_blocking(back, False)
        try:
            told.append(os.read(back, 1).decode())
        except BlockingIOError:
            told.append("stands still")
        os.set_blocking(back, True)
        os.kill(pid, signal.SIGCONT)
        told.append(os.waitpid(pid, os.WCONTINUED)[1])
        told.append(os.read(back, 1).decode())
    os.write(writer, b"q")
    told.append(os.waitpid(pid, 0)[1])
    return told


def killed():
    """A stopped child that is killed is dead at once; so is one that is killed in the middle of calls."""
    told = []
    for stop in (True, False):
        reader, writer = os.pipe()

        def body(writer=writer):
            os.write(writer, b"x")
            while True:
                os.path.exists("/no/such")

        pid = _child(body)
        os.read(reader, 1)
        if stop:
            os.kill(pid, signal.SIGSTOP)
            told.append(os.waitpid(pid, os.WUNTRACED)[1])
        os.kill(pid, signal.SIGKILL)
        told.append(os.waitpid(pid, 0)[1])
    return told


def caught():
    """A handler runs once for each signal that comes while a call waits, and the call goes on."""
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    reader, writer = os.pipe()
    parent = os.getpid()

    def body():
        for _ in range(20):
            os.kill(parent, signal.SIGUSR1)
            os.stat("/")
            while not os.path.exists("/"):
                pass
            os.write(writer, b"x")
        os._exit(0)

    pid = _child(body)
    got = b""
    while len(got) < 20:
        got += os.read(reader, 1)
    os.waitpid(pid, 0)
    return [1 <= len(seen) <= 20, len(got)]


def forks():
    """Many children at once, each with a call that names something and a status of its own."""
    pids = {_child(lambda n=n: os._exit(n % 100 if os.path.exists("/") else 200)): n for n in range(FORKS)}
    wrong = 0
    for _ in range(FORKS):
        pid, status = os.wait()
        wrong += os.waitstatus_to_exitcode(status) != pids[pid] % 100
    return wrong


def execs():
    """64 threads execute a program at once: one wins, as the same process."""

    def body():
        go = threading.Barrier(THREADS)

        def execute(number):
            go.wait()
            os.execv("/bin/sh", ["sh", "-c", f"exit {10 + number % 3}"])

        threads = [threading.Thread(target=execute, args=(n,), daemon=True) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    codes = [os.waitstatus_to_exitcode(os.waitpid(_child(body), 0)[1]) for _ in range(5)]
    return all(10 <= code <= 12 for code in codes)


def _open(pointer):
    fd = LIBC.openat(AT_FDCWD, pointer, os.O_RDONLY)
    if fd >= 0:
        os.close(fd)
        return "ok"
    return ctypes.get_errno()


def pointers():
    """Error numbers of names that are none."""
    long = ctypes.create_string_buffer(b"/" + b"a" * 5000)
    parts = ctypes.create_string_buffer(b"/a" * 2500)
    page = ctypes.c_void_p(LIBC.mmap(None, 4096, 3, 0x22, -1, 0))
    return [_open(ctypes.c_void_p(at)) for at in (0, 8, 2**47, 2**63, 2**64 - 4)] + [_open(long), _open(parts), _open(page)]


def rewritten():
    """A path that another thread changes all the time is one of the two, or neither."""
    first, second = b"/etc/passwd", b"/etc/no-such"
    buffer = ctypes.create_string_buffer(first, 64)
    done = threading.Event()

    def flip():
        while not done.is_set():
            ctypes.memmove(buffer, second, len(second) + 1)
            ctypes.memmove(buffer, first, len(first) + 1)

    thread = threading.Thread(target=flip)
    thread.start()
    answers = {_open(buffer) for _ in range(300)}
    done.set()
    thread.join()
    return answers <= {"ok", 2}


def garbage():
    """Error numbers of 3,000 calls with arguments that make no sense, the same ones each time."""
    import random
    import tempfile

    os.chdir(tempfile.mkdtemp())
    chance = random.Random(1)
    names = [b"/no/such/name", b"", b"no-such", b"/" + b"x/" * 3000, b"/proc/self/fd"]
    names += [bytes([family, 0]) + b"/no/such" * 20 for family in (1, 2, 10, 16, 255)]
    # At a place of their own: with others the same call would be another one each time.
    start, step = 1 << 32, 1 << 14
    assert LIBC.mmap(start, step * len(names), 3, 0x100022, -1, 0) == start
    places = [start + step * index for index in range(len(names))]
    for place, name in zip(places, names, strict=True):
        ctypes.memmove(place, name + b"\0", len(name) + 1)
    # The last one lies behind the end: nothing is mapped there.
    pointers = [0, 1, 2**64 - 1, 2**47 - 1, *places, start + step * len(names)]
    numbers = [0, 1, 3, 7, 2**32 - 100, 2**64 - 100, 2**31, 100, 1 << 40]
    told = []
    for _ in range(3000):
        function = chance.choice(("openat", "faccessat", "mkdirat", "unlinkat", "renameat", "linkat", "symlinkat", "chdir",
                                  "inotify_add_watch", "connect", "bind", "sendto", "utimensat", "truncate"))
        arguments = [chance.choice(pointers + numbers) for _ in range(6)]
        ctypes.set_errno(0)
        result = getattr(LIBC, function)(*(ctypes.c_void_p(item) for item in arguments))
        told.append([function, result if result < 0 else 0, ctypes.get_errno()])
        if result > 2:
            os.close(result)
    return told


def spawns():
    """posix_spawn and subprocess use vfork: the parent waits for the child's exec."""
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 5"], {})
    missing = subprocess.run(["/bin/sh", "-c", "exec /no/such/program"], stderr=subprocess.DEVNULL, check=False).returncode
    out = subprocess.run(["/bin/sh", "-c", "echo $((6 * 7)); exit 3"], stdout=subprocess.PIPE, check=False)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), missing, out.returncode, out.stdout.decode()]


def main():
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    tests = (ends, stops, killed, caught, forks, execs, pointers, rewritten, garbage, spawns)
    chosen = sys.argv[1:] or [test.__name__ for test in tests]
    LIBC.mmap.restype = ctypes.c_void_p
    LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    print(json.dumps({test.__name__: test() for test in tests if test.__name__ in chosen}))


if __name__ == "__main__":
    main()
