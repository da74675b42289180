#!/usr/bin/python3
"""The probe's operations for ``Sandbox.check``: one for each mode, which tells what object it got.

Each undoes what it did. A separate program beside ``probe.py``, with its interface.
"""

from __future__ import annotations

import errno
import os
import stat

import probe


def identity(path):
    info = os.stat(path)
    return {"dev": info.st_dev, "ino": info.st_ino, "kind": stat.S_IFMT(info.st_mode)}


def whose(op):
    """What a name leads to here: of a new name the directory, of one to delete the name itself."""
    path = op["path"]
    if op["mode"] == "create":
        return identity(os.path.dirname(path) or ".")
    info = os.lstat(path) if op["mode"] == "delete" else os.stat(path)
    if op["mode"] == "read":
        try:
            return use_read(op)
        except OSError:
            pass
    return {"dev": info.st_dev, "ino": info.st_ino, "kind": stat.S_IFMT(info.st_mode)}


def use_read(op):
    descriptor = os.open(op["path"], os.O_RDONLY | os.O_NONBLOCK)
    try:
        info = os.fstat(descriptor)
        text = os.pread(descriptor, 64, 0).decode("latin-1") if stat.S_ISREG(info.st_mode) else None
        names = os.listdir(op["path"]) if stat.S_ISDIR(info.st_mode) else None
        return {"dev": info.st_dev, "ino": info.st_ino, "kind": stat.S_IFMT(info.st_mode), "text": text, "names": names}
    finally:
        os.close(descriptor)


def use_write(op):
    """Open for writing without changing anything; in a directory a name is made and removed."""
    if os.path.isdir(op["path"]):
        name = os.path.join(op["path"], ".probe-made")
        os.mkdir(name)
        os.rmdir(name)
        return identity(op["path"])
    try:
        descriptor = os.open(op["path"], os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        # fifo(7): nobody reads, which is no question of rights.
        if error.errno == errno.ENXIO and stat.S_ISFIFO(os.stat(op["path"]).st_mode):
            return identity(op["path"])
        raise
    os.close(descriptor)
    return identity(op["path"])


def use_create(op):
    descriptor = os.open(op["path"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.close(descriptor)
    found = identity(os.path.dirname(op["path"]) or ".")
    os.unlink(op["path"])
    return found


def use_delete(op):
    """Remove a name and put it back: a rename has the same rule, and an empty directory is made again."""
    info = os.lstat(op["path"])
    found = {"dev": info.st_dev, "ino": info.st_ino, "kind": stat.S_IFMT(info.st_mode)}
    if stat.S_ISDIR(info.st_mode):
        os.rmdir(op["path"])
        os.mkdir(op["path"].rstrip("/"))
        os.chmod(op["path"].rstrip("/"), stat.S_IMODE(info.st_mode))
        return found
    # The path may lead through the very name that goes, so the way back starts in its directory.
    directory, name = os.open(os.path.dirname(op["path"]) or ".", os.O_PATH), os.path.basename(op["path"])
    try:
        os.rename(op["path"], ".probe-aside", dst_dir_fd=directory)
        os.rename(".probe-aside", name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(directory)
    return found


def use_exec(op):
    try:
        pid = os.posix_spawn(op["path"], [op["path"]], {})
    except OSError as error:
        if error.errno != errno.ENOEXEC:  # no program, but one that may be started
            raise
    else:
        os.waitpid(pid, 0)
    return identity(op["path"])


def use_connect(op):
    probe.connect(op)
    return identity(op["path"])


probe.OPS.update({name: value for name, value in list(globals().items()) if name.startswith(("use_", "whose"))})

if __name__ == "__main__":
    probe.main()
