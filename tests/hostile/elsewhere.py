#!/usr/bin/python3
"""Asks the package for everything on an interpreter that lacks what another system's lacks.

Not an attack: a Linux interpreter made poorer. argv: the system's name, the directory of the
package. Prints one JSON document: for each request the error's type and text, or what came.
"""

import asyncio
import builtins
import contextlib
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import threading

LINUX_ONLY = ("memfd_create", "MFD_CLOEXEC", "MFD_ALLOW_SEALING", "pidfd_open", "O_PATH", "getxattr", "setxattr",
              "listxattr", "eventfd", "splice", "sched_getaffinity", "unshare", "setns")
POSIX_ONLY = ("getuid", "geteuid", "getgid", "getegid", "getgroups", "setsid", "fork", "uname", "mkfifo", "fchmod", "chown",
              "lchown", "O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY", "O_NONBLOCK", "posix_spawn", "sysconf", "WNOHANG", "killpg",
              "setpgid", "getpgid", "tcgetpgrp", "statvfs", "openpty")
POSIX_MODULES = ("fcntl", "pwd", "grp", "resource", "termios", "tty", "pty", "syslog")
POSIX_SIGNALS = ("SIGKILL", "SIGSTOP", "SIGPIPE", "SIGXFSZ", "SIGCHLD", "SIGTSTP", "SIGCONT", "SIGTTOU", "SIGTTIN", "SIGHUP",
                 "SIGQUIT", "SIGUSR1", "SIGALRM", "SIGWINCH", "pthread_sigmask", "SIG_UNBLOCK", "SIG_BLOCK", "setitimer")


def become(system):
    """Take away what the named system's Python does not have."""
    sys.platform = system
    windows = system == "win32"
    for name in (*LINUX_ONLY, *(POSIX_ONLY if windows else ())):
        if hasattr(os, name):
            delattr(os, name)
    for name in [name for name in dir(fcntl) if "SEAL" in name]:
        delattr(fcntl, name)
    for name in POSIX_MODULES if windows else ():
        sys.modules[name] = None
    for name in POSIX_SIGNALS if windows else ():
        delattr(signal, name)
    whole = builtins.open
    builtins.open = lambda path, *rest, **named: whole("/nonexistent" if str(path).startswith(("/proc", "/sys")) else path, *rest, **named)


def asked(call):
    """Tell what one request was answered with."""
    try:
        return ["value", repr(call())]
    except Exception as error:
        return [type(error).__name__, str(error)]


def said(main, words):
    """Tell how one command line ended and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    return [status, out.getvalue(), err.getvalue()]


def main():
    """Ask for everything."""
    system, lib = sys.argv[1:]
    sys.path.insert(0, lib)
    become(system)
    import stockade
    from stockade.cli import main as command

    async def spawned():
        async with stockade.spawn(["true"]):
            pass

    calls = {
        "run": lambda: stockade.run(["true"]), "off": lambda: stockade.run(["true"], tier="off"),
        "Popen": lambda: stockade.Popen(["true"]), "wrap": lambda: stockade.wrap(["true"]),
        "decide": lambda: stockade.decide(["true"]), "Sandbox": lambda: stockade.Sandbox(tier="strict"),
        "run_async": lambda: asyncio.run(stockade.run_async(["true"])), "spawn": lambda: asyncio.run(spawned()),
    }
    lines = (["run", "true"], ["shell"], ["doctor"], ["explain", "true"], ["ps"], ["cache", "list"])
    answers = {name: asked(call) for name, call in calls.items()}
    answers["isinstance"] = asked(lambda: isinstance(1, (stockade.Completed, stockade.Receipt)))
    answers["active"] = asked(lambda: stockade.active().where)
    answers.update({" ".join(words): said(command, words) for words in (*lines, ["--version"], ["run", "--help"])})
    answers["loaded"] = [name for name in sys.modules if name.startswith("stockade.process")]
    print(json.dumps(answers))


assert subprocess and threading  # loaded before become(): what the standard library is made of stays
main()
