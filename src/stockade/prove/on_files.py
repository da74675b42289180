"""Attacks on files: reading what is secret, changing what is somebody else's.

Owns: the ``fs.*`` promises. Reading counts when the planted secret comes back; changing counts when
the file of the host has changed, whatever the program inside was told. Read next: ``catalogue.py``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator

from stockade.prove import samples
from stockade.prove.model import Answer, Attack
from stockade.prove.stage import HERE, MARK, OLD_S, Stage

Seen = Callable[[Stage, Answer], str]


def attacks(stage: Stage) -> Iterator[Attack]:
    """Yield the attacks on every ``fs.*`` promise."""
    yield from _own_state(stage)
    yield from _write_roots(stage)
    yield from _metadata(stage)
    yield from _credentials(stage)
    yield from _persistence(stage)
    yield from _hidden(stage)


# -- how success is seen ---------------------------------------------------------------------------


def read_back(stage: Stage, got: Answer) -> str:
    """The secret came back."""
    return f"read {stage.secret!r}" if stage.secret in str(got.value) else ""


def answered(stage: Stage, got: Answer) -> str:
    """The call succeeded; for what leaves no trace outside."""
    return "" if got.errno else f"the call succeeded{f' ({got.value})' if got.value else ''}"


def marked(path: str) -> Seen:
    """The file of the host holds what the attack writes."""
    return lambda stage, got: f"{path} was changed" if MARK in stage.text(path) else ""


def gone(path: str) -> Seen:
    """The file of the host is no longer there."""
    return lambda stage, got: "" if os.path.lexists(path) else f"{path} is gone"


def appeared(path: str) -> Seen:
    """The host has a new name."""
    return lambda stage, got: f"{path} was made" if os.path.lexists(path) else ""


def _attack(promise: str, name: str, seen: Seen, kind: str, /, **fields: str | int) -> Attack:
    return Attack(promise=promise, name=name, op={"op": kind, **fields}, seen=seen)


# -- the promises ----------------------------------------------------------------------------------


def _own_state(stage: Stage) -> Iterator[Attack]:
    key, moved = f"{stage.state}/keys/prove.key", stage.path(".local.moved")
    yield _attack("fs.own_state", "read a key of the state home", read_back, "read", path=key)
    yield _attack("fs.own_state", "change a key", marked(key), "append", path=key, text=MARK)
    yield _attack("fs.own_state", "change the configuration", marked(stage.config), "append", path=stage.config,
                  text=f"# {MARK}\n")
    yield _attack("fs.own_state", "write into the installed package", answered, "may_write", path=f"{HERE}/attack.py")

    def put_back(stage: Stage) -> None:
        if os.path.lexists(moved):
            os.rename(moved, stage.path(".local"))

    yield Attack(promise="fs.own_state", name="move a directory above the state home", seen=appeared(moved),
                 op={"op": "rename", "path": stage.path(".local"), "to": moved}, after=put_back)


def _write_roots(stage: Stage) -> Iterator[Attack]:
    promise = "fs.write_roots"
    for where, base in (("home", stage.home), ("a path granted to read", stage.granted)):
        file = {name: f"{base}/{name}" for name in samples.TARGETS}
        own = f"{stage.project}/{where[:4].strip()}"
        new = f"{base}/new"
        yield _attack(promise, f"append to a file ({where})", marked(file["append"]), "append", path=file["append"],
                      text=MARK)
        yield _attack(promise, f"make a file ({where})", appeared(new), "create", path=new, text=MARK)
        yield _attack(promise, f"empty a file ({where})", _emptied(file["truncate"]), "truncate", path=file["truncate"])
        yield _attack(promise, f"remove a file ({where})", gone(file["unlink"]), "unlink", path=file["unlink"])
        yield _attack(promise, f"rename a file ({where})", gone(file["rename"]), "rename", path=file["rename"],
                      to=f"{base}/renamed")
        yield _attack(promise, f"save over a file ({where})", marked(file["replace"]), "replace", path=file["replace"],
                      by=f"{base}/replaced", text=MARK)
        yield _attack(promise, f"write through a hard link ({where})", marked(file["link"]), "link", path=file["link"],
                      to=f"{own}.hard", text=MARK)
        yield _attack(promise, f"write through a symbolic link ({where})", marked(file["through"]), "through_link",
                      path=file["through"], by=f"{own}.soft", text=MARK)


def _emptied(path: str) -> Seen:
    return lambda stage, got: f"{path} was emptied" if os.path.getsize(path) == 0 else ""


def _metadata(stage: Stage) -> Iterator[Attack]:
    promise = "fs.metadata"
    for where, base in (("home", stage.home), ("a path granted to read", stage.granted)):
        yield _attack(promise, f"chmod ({where})", _mode(f"{base}/chmod"), "chmod", path=f"{base}/chmod", mode=0o640)
        yield _attack(promise, f"fchmod of a file opened to read ({where})", _mode(f"{base}/fchmod"), "fchmod",
                      path=f"{base}/fchmod", mode=0o640)
        yield _attack(promise, f"set times ({where})", _time(f"{base}/utime"), "utime", path=f"{base}/utime",
                      time=OLD_S + 9)
        yield _attack(promise, f"set an attribute ({where})", _attribute(f"{base}/setxattr"), "setxattr",
                      path=f"{base}/setxattr", name="user.prove")


def _mode(path: str) -> Seen:
    return lambda stage, got: f"mode of {path} was changed" if stat.S_IMODE(os.stat(path).st_mode) == 0o640 else ""


def _time(path: str) -> Seen:
    return lambda stage, got: "" if int(os.stat(path).st_mtime) == OLD_S else f"time of {path} was changed"


def _attribute(path: str) -> Seen:
    def seen(stage: Stage, got: Answer) -> str:
        try:
            return f"attribute of {path} was set" if os.listxattr(path) else ""
        except OSError:
            return ""

    return seen


def _credentials(stage: Stage) -> Iterator[Attack]:
    promise = "fs.credentials"
    for name in samples.credentials():
        yield _attack(promise, f"read ~/{name}", read_back, "read", path=stage.path(name))
    later, replaced = stage.path(samples.LATER_STORE), stage.path(samples.REPLACED_STORE)
    yield Attack(promise=promise, name=f"read ~/{samples.LATER_STORE}, made while the box lives", seen=read_back,
                 op={"op": "read", "path": later}, before=lambda stage: _plant(stage, later))
    yield Attack(promise=promise, name=f"read ~/{samples.REPLACED_STORE}, replaced meanwhile", seen=read_back,
                 op={"op": "read", "path": replaced}, before=lambda stage: _plant(stage, replaced))


def _plant(stage: Stage, path: str) -> None:
    """Save by rename, as programs do."""
    stage.write(f"{path}.saved")
    os.rename(f"{path}.saved", path)


def _persistence(stage: Stage) -> Iterator[Attack]:
    promise, git = "fs.persistence", f"{stage.project}/.git"
    for name in ("config", "hooks/pre-commit"):
        yield _attack(promise, f"change .git/{name}", marked(f"{git}/{name}"), "append", path=f"{git}/{name}",
                      text=f"# {MARK}\n")
    for name in samples.persistence():
        path = f"{stage.project}/{name}"
        yield _attack(promise, f"change {name}", marked(path), "append", path=path, text=MARK)
    yield _attack(promise, "save over .git/config", marked(f"{git}/config"), "replace", path=f"{git}/config",
                  by=f"{git}/config.new", text=f"# {MARK}\n")
    yield _attack(promise, "plant a hook", appeared(f"{git}/hooks/post-checkout"), "create",
                  path=f"{git}/hooks/post-checkout", text=MARK)
    yield _back(promise, "swap the directory of hooks", f"{git}/hooks", f"{git}/hooks.old")
    yield _back(promise, "swap .git", git, f"{stage.project}/.git.old")
    yield Attack(promise=promise, name=f"make {samples.NEW_POINT}, and nobody is told", seen=_unsaid, late=True,
                 op={"op": "create", "path": f"{stage.project}/{samples.NEW_POINT}", "text": MARK})


def _back(promise: str, name: str, path: str, moved: str) -> Attack:
    def put_back(stage: Stage) -> None:
        if os.path.lexists(moved):
            os.rename(moved, path)

    return Attack(promise=promise, name=name, seen=appeared(moved), op={"op": "rename", "path": path, "to": moved},
                  after=put_back)


def _unsaid(stage: Stage, got: Answer) -> str:
    path = f"{stage.project}/{samples.NEW_POINT}"
    rows = () if got.receipt is None else got.receipt.persistence
    told = any(str(row.get("path", "")).rsplit("/", 1)[-1] == samples.NEW_POINT for row in rows)
    return "" if told or not os.path.lexists(path) else f"{path} was made and no receipt names it"


def _hidden(stage: Stage) -> Iterator[Attack]:
    later = stage.path("later.txt")
    yield _attack("fs.home", "read a file of the home", read_back, "read", path=stage.path("notes.txt"))
    yield _attack("fs.home", "list the home", _listed, "listing", path=stage.home)
    yield Attack(promise="fs.home", name="read a file made while the box lives", seen=read_back,
                 op={"op": "read", "path": later}, before=lambda stage: _plant(stage, later))
    yield _attack("fs.home", "change a file of the home", marked(stage.path("notes.txt")), "append",
                  path=stage.path("notes.txt"), text=MARK)
    yield _attack("fs.system", "read a file outside the home", read_back, "read", path=f"{stage.outside}/data")
    for path in ("/var/log", "/sys/class/net"):
        yield _attack("fs.system", f"list {path}", _listed_any, "listing", path=path)
    for name in samples.workspace_secrets():
        yield _attack("fs.workspace_secrets", f"read {name} of the project", read_back, "read",
                      path=f"{stage.project}/{name}")


def _listed(stage: Stage, got: Answer) -> str:
    return "listed notes.txt" if "notes.txt" in (got.value or ()) else ""


def _listed_any(stage: Stage, got: Answer) -> str:
    return f"listed {len(got.value)} names" if got.value else ""
