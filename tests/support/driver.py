#!/usr/bin/python3
"""Runs as the caller under test and speaks to the product through its public API.

Started with /usr/bin/python3 by ``actors.py`` (an ordinary user cannot read the interpreter of
the test run). One JSON job in argv[2], the package's parent directory in argv[1]. Modes:
``run`` (one box, answer as JSON), ``exec`` (become the launcher of a wrapped command, for boxes
that live while the host acts), ``plan`` (the compiled plan), ``raw`` (a given plan through a
sealed memfd to the launcher, for mechanisms switched off and for faults), ``check`` (what
``Sandbox.check`` says about paths), ``storm`` (``Sandbox.open`` while names are swapped), ``open`` (one file), ``trace`` (one box whose
names are watched).
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time


def _refusal(error):
    names = ("code", "message", "hint", "missing", "remedy", "transient", "reasons")
    fields = {name: getattr(error, name, None) for name in names}
    fields["missing"] = [str(item) for item in (fields["missing"] or ())]
    fields["reasons"] = [str(item) for item in (fields["reasons"] or ())]
    return {"refused": {**fields, "type": type(error).__name__, "text": str(error)}}


def _kwargs(job):
    given = dict(job.get("kwargs", {}))
    for name in ("read", "write", "hide", "sockets", "devices", "pass_env", "pass_fds", "accept", "profile"):
        if name in given and isinstance(given[name], list):
            given[name] = tuple(given[name])
    return given


def run(job):
    import stockade

    try:
        done = stockade.run(job["argv"], input=job.get("input", "").encode(), capture_output=True, **_kwargs(job))
    except stockade.TimedOut as error:
        receipt = getattr(error, "receipt", None)
        return {"timed_out": True, "receipt": _receipt(receipt), "stdout": (error.output or b"").decode("utf-8", "replace")}
    except stockade.Error as error:
        return _refusal(error)
    return {"returncode": done.returncode, "stdout": done.stdout.decode("utf-8", "replace"),
            "stderr": done.stderr.decode("utf-8", "replace"), "receipt": _receipt(done.receipt)}


def _receipt(receipt):
    if receipt is None:
        return None
    text = receipt.to_json()
    document = json.loads(text) if isinstance(text, (str, bytes)) else text
    return {**document["launch"], "end": document.get("end")}


def wrapped(job):
    import stockade

    return stockade.wrap(job["argv"], **_kwargs(job))


def plan(job):
    import stockade

    try:
        made = wrapped(job)
    except stockade.Error as error:
        return _refusal(error)
    return {"argv": list(made.argv), "env": dict(made.env), "plan": _plan_of(made)}


def _plan_of(made):
    argv = list(made.argv)
    digest = argv[argv.index("--plan") + 1]
    store = argv[argv.index("--plan-store") + 1]
    with open(os.path.join(store, f"{digest}.json"), encoding="utf-8") as handle:
        return json.load(handle)


def like_a_shell():
    """Python ignores SIGPIPE and SIGXFSZ; a shell that starts a launch line does not."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def become(job):
    """Replace this process by the launcher: no Python stays between the test and the box."""
    made = wrapped(job)
    argv = list(made.argv)
    if "report_fd" in job:
        os.set_inheritable(job["report_fd"], True)
        argv[argv.index("--"):argv.index("--")] = ["--report-fd", str(job["report_fd"])]
    like_a_shell()
    os.execve(argv[0], argv, dict(made.env))


def raw(job):
    """Hand a plan to the launcher the way the API does: by a sealed memfd."""
    body = json.dumps(job["plan"], sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    descriptor = os.memfd_create("plan", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, body)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, job.get("seals", 0xF))
    os.set_inheritable(descriptor, True)
    head = [*job.get("before", []), job["launcher"], "--plan-fd", str(descriptor), *job.get("options", [])]
    if "report_fd" in job:
        os.set_inheritable(job["report_fd"], True)
        head += ["--report-fd", str(job["report_fd"])]
    if "env_size" in job:
        os.environ.update({f"FILL_{n}": "x" * 64 for n in range(job["env_size"])})
    argv = [*head, "--", *job["argv"]]
    like_a_shell()
    os.execv(argv[0], argv)


def trace(job):
    """Run one box with its tracer: what the tracer wrote, besides the answer of ``run``."""
    import stockade
    from stockade.frozen import replace
    from stockade.process import _exec
    from stockade.process.prepare import launch_of, prepare
    from stockade.rules.request import build_request

    fd = os.memfd_create("trace", os.MFD_CLOEXEC)
    try:
        launch = launch_of(prepare(build_request(job["argv"], **_kwargs(job))), {})
        with _exec.Box(replace(launch, trace_fd=fd), stdout=-1, stderr=-1) as box:
            out, err = box.communicate()
            status = box.wait()
    except stockade.Error as error:
        return _refusal(error)
    with open(fd, encoding="utf-8", closefd=True) as stream:
        stream.seek(0)
        lines = [json.loads(line) for line in stream]
    return {"returncode": status, "stdout": out.decode("utf-8", "replace"), "stderr": err.decode("utf-8", "replace"),
            "receipt": _receipt(box.receipt), "lines": lines}


def check(job):
    """Ask ``Sandbox.check`` about many (path, mode) pairs; the grant is looked for in some of the denials only."""
    import stockade
    from stockade.process import files

    look, asked = files._grant, []
    every = job.get("grants_every", 25)
    files._grant = lambda *given: look(*given) if (len(asked) - 1) % every == 0 else None
    try:
        box = stockade.Sandbox(**_kwargs(job))
        for path, mode in job["pairs"]:
            asked.append(None)
            asked[-1] = _checked(stockade, box, path, mode)
    except stockade.Error as error:
        return _refusal(error)
    return {"answers": asked}


def _checked(stockade, box, path, mode):
    try:
        return {"answer": box.check(path, mode)}
    except stockade.Denied as error:
        return {"answer": "denied", "rule": error.rule, "grant": error.grant}
    except stockade.Refused as error:
        if error.code != "access_unknown":
            raise
        return {"answer": "unknown", "rule": str(error)}


def open_one(job):
    """Open one file and read it, or write the given text."""
    import stockade

    try:
        with stockade.Sandbox(**_kwargs(job)).open(job["path"], job["how"]) as stream:
            return {"text": stream.read() if "r" in job["how"] else stream.write(job["text"])}
    except stockade.Denied as error:
        return {"denied": error.rule, "grant": error.grant, "errno": error.errno, "filename": error.filename}
    except stockade.Error as error:
        return _refusal(error)
    except OSError as error:
        return {"error": type(error).__name__}


def storm(job):
    """Open one list of names again and again while another process swaps what they lead to."""
    import stockade
    from stockade.process import files

    box = stockade.Sandbox(**_kwargs(job))
    # Thousands of opens need one plan: a new one after each swap, or to name a grant, would make the storm a breeze.
    asked = {name: files._question(box, name) for name, _ in job["opens"]}
    files._grant, files._question = lambda *_: None, lambda _, name: asked[name]
    child = os.fork()
    if child == 0:
        _swap(job["swaps"])
    seen, denied, plain, end = {}, 0, 0, time.monotonic() + job["seconds"]
    try:
        while time.monotonic() < end:
            for name, mode in job["opens"]:
                try:
                    with box.open(name, mode) as stream:
                        text = stream.read() if "r" in mode else str(stream.write("grown\n") and "written")
                except stockade.Denied:
                    denied += 1
                except OSError:
                    plain += 1
                else:
                    seen[text] = seen.get(text, 0) + 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return {"seen": seen, "denied": denied, "plain": plain}


def _swap(swaps):
    """Exchange pairs of names as fast as it goes; RENAME_EXCHANGE leaves no moment without either."""
    import ctypes

    libc = ctypes.CDLL(None)
    pairs = [(left.encode(), right.encode()) for left, right in swaps]
    while True:
        for left, right in pairs:
            libc.renameat2(-100, left, -100, right, 2)


def main():
    sys.path.insert(0, sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") if sys.argv[2].startswith("/") else os.fdopen(int(sys.argv[2])) as source:
        job = json.load(source)
    mode = {"run": run, "exec": become, "plan": plan, "raw": raw, "check": check, "storm": storm, "open": open_one,
            "trace": trace}[job["mode"]]
    answer = mode(job)
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
