"""What the kernel would answer a process of a box about one path, before there is a box.

Owns: the six modes (read, write, create, delete, exec, connect) over what ``boxwalk.py`` found:
permission bits, mounts, guards, Landlock, sockets; and whether that object is the host's own one.
Nothing is decided from text: what is compared is device and inode of opened objects. Fails closed:
the first obstacle is the answer, and what cannot be told is ``Unknown``. Bounds: append-only files
and quotas are not looked at. Read next: ``stockade.process.files``.
"""

from __future__ import annotations

import errno
import os
import stat

from stockade.frozen import dataclass
from stockade.plan.boxview import BoxView
from stockade.plan.boxwalk import Found, Stop, Unknown, Walk
from stockade.plan.rights import Node, Rights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Literal

    State = Literal["same_object", "private"]

SAME: Final = "same_object"
PRIVATE: Final = "private"
MODES = ("read", "write", "create", "delete", "exec", "connect")


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """``state``: ``same_object`` or ``private``; ``found``: the object, or the place of a new one."""

    state: State
    found: Found


class Access:
    """Asks about paths of one box; a context manager, since it holds descriptors."""

    def __init__(self, view: BoxView) -> None:
        self.view = view
        self.rights = Rights(view.ids, bare=view.bare)
        self.walk = Walk(view, self.rights)

    def __enter__(self) -> Access:
        return self

    def __exit__(self, *raised: object) -> None:
        self.walk.__exit__(None, None, None)

    def ask(self, path: str, mode: str) -> Granted:
        """Return what a process of the box gets for ``mode`` at an absolute path.

        Raises: Stop (the kernel says no), Unknown.
        """
        follow = mode not in ("create", "delete")
        found = self.walk.to(path, follow=follow)
        return self.judge(path, found, mode)

    def judge(self, path: str, found: Found, mode: str) -> Granted:
        """Return the answer for a place that was walked to already. Raises: Stop, Unknown."""
        getattr(self, f"_{mode}")(found)
        return Granted(state=self._state(path, found, mode), found=found)

    # -- modes -----------------------------------------------------------------------------------

    def _read(self, found: Found) -> None:
        node = self._there(found)
        self._openable(node)
        self._may(node, os.R_OK)
        self._rule(node.path, "read_dir" if stat.S_ISDIR(node.mode) else "read_file")

    def _write(self, found: Found) -> None:
        """A file is opened for writing; of a directory the names may change."""
        node = self._there(found)
        if stat.S_ISDIR(node.mode):
            self._change(node)
            return
        self._openable(node)
        # In the order of the kernel: the superblock, the bits, the mount.
        self._may(node, os.W_OK)
        self._keeps(node)
        self._rule(node.path, "write_file")

    def _create(self, found: Found) -> None:
        if found.node is not None:
            raise Stop(errno.EEXIST, found.path)
        if found.slash:
            raise Stop(errno.EISDIR, found.path)
        self._change(found.parent)

    def _delete(self, found: Found) -> None:
        node, parent = found.node, found.parent
        if node is None:
            raise Stop(errno.ENOENT, found.path)
        if node.path == "/":
            raise Stop(errno.EBUSY, "/", "mount")
        if found.dots:
            raise Stop(errno.EINVAL, found.path)
        if found.slash and not stat.S_ISDIR(node.mode):
            raise Stop(errno.ENOTDIR, found.path)
        self._change(parent, "remove")
        if self.rights.sticky_denies(parent, node) or not self.rights.mapped(node):
            raise Stop(errno.EPERM, found.path, "permission")
        if node.top or self.walk.is_mount(parent, node):
            raise Stop(errno.EBUSY, found.path, "mount")
        if stat.S_ISDIR(node.mode) and self._holds_something(node):
            raise Stop(errno.ENOTEMPTY, found.path)

    def _exec(self, found: Found) -> None:
        node = self._there(found)
        if not stat.S_ISREG(node.mode):
            raise Stop(errno.EACCES, node.path, "type")
        self._may(node, os.X_OK)
        if self.rights.no_exec(node):
            raise Stop(errno.EACCES, node.path, "noexec")
        self._rule(node.path, "execute")

    def _connect(self, found: Found) -> None:
        node = self._there(found)
        if self.view.alone and stat.S_ISSOCK(node.mode):
            raise Stop(errno.EAFNOSUPPORT, node.path, "socket")  # the filter knows no local socket
        if not stat.S_ISSOCK(node.mode):
            raise Stop(errno.ECONNREFUSED, node.path, "socket" if node.path in self.view.covered_files else "type")
        self._may(node, os.W_OK)
        if node.mount.kind == "overlay":
            raise Stop(errno.ECONNREFUSED, node.path, "socket")
        if node.fd is not None and node.path not in self.view.listening and not self.view.bare:
            raise Unknown(f"{node.path}: nobody listens there, or from another network namespace")

    # -- steps -----------------------------------------------------------------------------------

    def _there(self, found: Found) -> Node:
        node = found.node
        if node is None:
            raise Stop(errno.ENOENT, found.path)
        if found.slash and not stat.S_ISDIR(node.mode):
            raise Stop(errno.ENOTDIR, found.path)
        return node

    def _openable(self, node: Node) -> None:
        if stat.S_ISSOCK(node.mode):
            raise Stop(errno.ENXIO, node.path, "type")
        if (stat.S_ISCHR(node.mode) or stat.S_ISBLK(node.mode)) and node.mount.nodev:
            raise Stop(errno.EACCES, node.path, "nodev")
        if node.path == "/dev/tty":
            raise Unknown("/dev/tty: whether a box has a terminal shows when it starts")

    def _may(self, node: Node, wanted: int) -> None:
        if node.kind == "opaque":
            if node.mount.read_only and wanted == os.W_OK:
                raise Stop(errno.EROFS, node.path, "read_only")
            if node.mount.alone is not None:
                raise Unknown(f"{node.path}: the box has the directory below a mount of the host")
            return
        if wanted & os.W_OK and self.rights.read_only(node):
            raise Stop(errno.EROFS, node.path, "read_only")
        if not self.rights.may(node, wanted):
            raise Stop(errno.EACCES, node.path, "permission")

    def _keeps(self, node: Node) -> None:
        if self.rights.read_only(node):
            raise Stop(errno.EROFS, node.path, "read_only")

    def _change(self, directory: Node, right: str = "make") -> None:
        """Names in a directory may be made or removed."""
        self._may(directory, os.W_OK)
        self._may(directory, os.X_OK)
        self._keeps(directory)
        self._rule(directory.path, right)

    def _rule(self, path: str, right: str) -> None:
        if not self.view.landlock_allows(path, right):
            raise Stop(errno.EACCES, path, "landlock")

    def _holds_something(self, node: Node) -> bool:
        if any(parent == node.path for parent in map(os.path.dirname, self.view.rows)):
            return True
        if node.fd is None:
            return False
        if node.layers:
            raise Unknown(f"{node.path}: a directory of a cache")
        try:
            descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=node.fd)
        except OSError:
            raise Unknown(f"{node.path}: its caller cannot list it, so it may be empty or not") from None
        try:
            with os.scandir(descriptor) as entries:
                return next(entries, None) is not None
        finally:
            os.close(descriptor)

    # -- whose object ----------------------------------------------------------------------------

    def _state(self, path: str, found: Found, mode: str) -> State:
        """Compare with what the name leads to on the host: device and inode, of descriptors."""
        # What is new is the host's if its directory is; changes in a cache go to the identity's layer.
        node = found.node if found.node is not None else found.parent
        changed = mode in ("write", "create", "delete")
        if node.fd is None or node.private or (node.mount.kind == "cache" and changed):
            return PRIVATE
        if node.mount.kind == "overlay" and stat.S_ISFIFO(node.mode):
            return PRIVATE  # a pipe of the box's own
        place = path
        if found.node is None:
            # A new name: that of the text, or what a link without an end leads to.
            place = os.path.dirname(os.path.realpath(path) if os.path.islink(path) else path.rstrip("/")) or "/"
        return SAME if _identity(place, node, mode) else PRIVATE


def _identity(path: str, node: Node, mode: str) -> bool:
    flags = os.O_PATH | os.O_CLOEXEC | (os.O_NOFOLLOW if mode == "delete" else 0)
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return False
    try:
        info = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return node.info is not None and (info.st_dev, info.st_ino) == (node.info.st_dev, node.info.st_ino)
