"""Walking a path as a process of a box would, with descriptors of the host's real objects.

Owns: path resolution in the box: the rows of the plan where they stand, below them the host's
directories, opened one component at a time and never through a link (``O_PATH``, ``O_NOFOLLOW``);
a link is read and resolved again from the box's own root. A concurrent rename changes what is
found, never where it may lie: every descriptor comes out of the one above it. Fails closed: what
a plan does not say (the content of the box's own /proc, what a covered mount hides) is
``Unknown``. Source: path_resolution(7). Read next: ``rights.py``, ``access.py``.
"""

from __future__ import annotations

import errno
import os
import stat
from types import TracebackType

from stockade.frozen import dataclass, replace
from stockade.plan.boxview import BoxView
from stockade.plan.rights import Mount, Node, Rights
from stockade.plan.rows import Row
from stockade.plan.trails import MAX_LINKS
from stockade.plan.veil import is_opaque, mount_id, veil

NAME_MAX, PATH_MAX = 255, 4096
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = (errno.ENOENT, errno.ENOTDIR)
_DIR = stat.S_IFDIR | 0o755


class Stop(Exception):
    """The kernel of the box would answer with an error. ``place``: where, in the box."""

    def __init__(self, number: int, place: str, why: str = "") -> None:
        super().__init__(number, place, why)
        self.errno, self.place, self.why = number, place, why


class Unknown(Exception):
    """The answer hangs on something that only a running box has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Where a path leads. ``node`` None: the last name is missing in ``parent``.

    ``slash``: the text asked for a directory; ``dots``: it ended in ``.`` or ``..``.
    """

    parent: Node
    name: str
    node: Node | None
    slash: bool = False
    dots: bool = False

    @property
    def path(self) -> str:
        """Canonical place in the box."""
        return self.node.path if self.node is not None else _join(self.parent.path, self.name)


class Walk:
    """One evaluation: holds every descriptor that it opened until it is closed."""

    def __init__(self, view: BoxView, rights: Rights) -> None:
        self.view, self.rights = view, rights
        self._opened: list[int] = []
        self._root: Node | None = None

    def __enter__(self) -> Walk:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        for descriptor in self._opened:
            os.close(descriptor)
        self._opened.clear()

    # -- resolution ------------------------------------------------------------------------------

    def to(self, path: str, *, follow: bool) -> Found:
        """Resolve an absolute path of the box; ``follow``: also a link at its end.

        Raises: Stop, Unknown.
        """
        if len(os.fsencode(path)) >= PATH_MAX:
            raise Stop(errno.ENAMETOOLONG, path)
        root = self.root()
        stack, left, links = [root], path.split("/")[::-1], 0
        slash, name, dots = path.endswith("/"), "", True
        while left:
            name = left.pop()
            if not name:
                continue
            self._enter(stack[-1])
            dots = name in (".", "..")
            if dots:
                del stack[max(1, len(stack) - len(name) + 1):]
                continue
            last, node = not any(left), self._child(stack[-1], name)
            if node is None:
                return self._missing(stack[-1], name, slash=slash, last=last)
            # rmdir(2) and open(2) with O_EXCL do not follow a last link, also where the text ends in a slash.
            if not stat.S_ISLNK(node.mode) or (last and not follow):
                stack.append(node)
                continue
            links += 1
            text = self._target(stack[-1], node, links)
            slash = slash or (last and text.endswith("/"))
            if text.startswith("/"):
                stack = [root]
            left.extend(text.split("/")[::-1])
        return Found(parent=stack[-2:][0], name=name, node=stack[-1], slash=slash, dots=dots)

    def _missing(self, here: Node, name: str, *, slash: bool, last: bool) -> Found:
        if not last:
            raise Stop(errno.ENOENT, _join(here.path, name))
        return Found(parent=here, name=name, node=None, slash=slash)

    def _enter(self, here: Node) -> None:
        if not stat.S_ISDIR(here.mode):
            raise Stop(errno.ENOTDIR, here.path)
        if not self.rights.may(here, os.X_OK):
            raise Stop(errno.EACCES, here.path, "permission")

    def _target(self, here: Node, node: Node, links: int) -> str:
        if links > MAX_LINKS:
            raise Stop(errno.ELOOP, node.path)
        if not self.rights.may_follow(here, node):
            raise Stop(errno.EACCES, node.path, "permission")
        text = node.text if node.fd is None else os.readlink("", dir_fd=node.fd)
        if not text:
            raise Stop(errno.ENOENT, node.path)
        return text

    # -- names -----------------------------------------------------------------------------------

    def root(self) -> Node:
        """Return the root of the box."""
        if self._root is None:
            made = self._row("/", self.view.rows["/"], None)
            if made is None:
                raise Unknown("the root of the box cannot be opened")
            self._root = made
        return self._root

    def _child(self, here: Node, name: str) -> Node | None:
        path = _join(here.path, name)
        if len(os.fsencode(name)) > NAME_MAX:
            raise Stop(errno.ENAMETOOLONG, path)
        row = self.view.rows.get(path)
        made_there = row is not None and row["kind"] in ("dir", "file", "symlink", "socket")
        node = None
        if row is not None and (not made_there or here.kind == "made"):
            node = self._row(path, row, here.mount)
        if node is None:
            node = self._below(here, name, path)
        return None if node is None else self._pinned(path, node)

    def _below(self, here: Node, name: str, path: str) -> Node | None:
        if here.kind == "opaque":
            raise Unknown(f"what {here.path} holds is known to a running box only")
        if here.kind == "made":
            there = path in self.view.above
            return Node(path=path, kind="made", mode=_DIR, mount=here.mount) if there else None
        if here.mount.kind == "cache":
            return self._layered(here, name, path)
        veil = here.veil.get(name, ()) if here.veil is not None else ()
        if veil is None:
            return None  # a whiteout
        node = self._host(here, name, path, here.fd)
        if veil == ():
            return node
        if node is None or not stat.S_ISDIR(node.mode):
            return Node(path=path, kind="made", mode=_DIR, mount=here.mount)
        return replace(node, veil=veil)

    def _host(self, here: Node, name: str, path: str, directory: int | None) -> Node | None:
        try:
            descriptor = os.open(name, _PATH, dir_fd=directory)
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise Stop(error.errno or errno.EACCES, path, "permission") from None
        self._opened.append(descriptor)
        info = os.fstat(descriptor)
        mount = here.mount
        if mount.alone is not None and mount_id(descriptor) != mount.alone:
            # A mount of the host that the box does not get: it has the directory below it.
            return Node(path=path, kind="opaque", mode=info.st_mode, mount=mount)
        return Node(path=path, kind="host", mode=info.st_mode, mount=mount, fd=descriptor, info=info)

    def _layered(self, here: Node, name: str, path: str) -> Node | None:
        """A cache: the identity's upper hides what the user's own directory has."""
        found: list[tuple[Node, bool]] = []
        for directory, upper in here.layers:
            node = self._host(here, name, path, directory)
            if node is None:
                continue
            if stat.S_ISCHR(node.mode) and node.info is not None and node.info.st_rdev == 0:
                break  # a whiteout
            found.append((node, upper))
            if not stat.S_ISDIR(node.mode) or is_opaque(node.fd):
                break
        if not found:
            return None
        top, upper = found[0]
        layers = tuple((node.fd, above) for node, above in found if stat.S_ISDIR(node.mode) and node.fd is not None)
        return replace(top, layers=layers, private=upper)

    def _pinned(self, path: str, node: Node) -> Node:
        """Guards and covers: mounts that the launcher puts over what the rows show."""
        if path in self.view.covered_files:
            mount = replace(node.mount, nodev=self.view.covered_files[path])
            return Node(path=path, kind="made", mode=stat.S_IFCHR | 0o666, mount=mount, top=True)
        if path in self.view.covered_dirs and node.fd is not None:
            mount = replace(node.mount, kind="overlay", read_only=True, alone=mount_id(node.fd))
            return replace(node, mount=mount, veil={}, top=True)
        if path not in self.view.guards:
            return node
        locked = node.mount.read_only or self.view.guards[path]
        return replace(node, mount=replace(node.mount, read_only=locked), top=True)

    def is_mount(self, directory: Node, node: Node) -> bool:
        """Tell whether a mount of the host stands at a name. Raises: Unknown where the box does not get it."""
        if node.kind == "opaque" and node.mount.alone is not None:
            raise Unknown(f"{node.path}: the box has the directory below a mount of the host")
        if node.fd is None or directory.fd is None or node.layers:
            return False
        return mount_id(node.fd) != mount_id(directory.fd)

    # -- rows ------------------------------------------------------------------------------------

    def _row(self, path: str, row: Row, around: Mount | None) -> Node | None:
        """Return the node that a row puts at a path; None: an optional row without a source."""
        kind = row["kind"]
        if around is not None and kind in ("dir", "file", "symlink", "socket"):
            types = {"dir": stat.S_IFDIR, "file": stat.S_IFREG, "symlink": stat.S_IFLNK, "socket": stat.S_IFSOCK}
            return Node(path=path, kind="made", mode=types[kind] | int(row.get("mode", "0777"), 8), mount=around,
                        text=row.get("to", ""))
        attrs = ("nodev", "nosuid", "ro") if kind == "overlay" else row.get("attrs", ("nodev", "nosuid"))
        mount = Mount(kind=kind, read_only="ro" in attrs or path in self.view.sealed or self.view.locked(path),
                      noexec="noexec" in attrs, nodev="nodev" in attrs, idmap=bool(row.get("idmap")),
                      owner=tuple(row["owner"]) if row.get("owner") else None)
        if kind == "tmpfs":
            return Node(path=path, kind="made", mode=stat.S_IFDIR | int(row["mode"], 8), mount=mount, top=True)
        if kind == "proc":
            return Node(path=path, kind="opaque", mode=stat.S_IFDIR | 0o555, mount=replace(mount, read_only=True),
                        top=True)
        return self._shown(path, row, mount)

    def _shown(self, path: str, row: Row, mount: Mount) -> Node | None:
        lower = None if row["source"] is None else self._source(row["source"], optional=row.get("optional", False))
        if row["kind"] == "cache":
            upper = self._source(row["upper"], optional=False)
            layers = tuple((fd, fd == upper) for fd in (upper, lower) if fd is not None)
            return replace(self._top(path, upper, mount), layers=layers, private=True)
        if lower is None:
            return None
        whole = row["kind"] == "bind" and row["recursive"] and not mount.idmap
        node = self._top(path, lower, mount if whole else replace(mount, alone=mount_id(lower)))
        return replace(node, veil=veil(lower, row)) if row["kind"] == "overlay" else node

    def _top(self, path: str, descriptor: int | None, mount: Mount) -> Node:
        if descriptor is None:
            raise Unknown(f"{path}: its source is gone")
        info = os.fstat(descriptor)
        return Node(path=path, kind="host", mode=info.st_mode, mount=mount, fd=descriptor, info=info, top=True)

    def _source(self, path: str, *, optional: bool) -> int | None:
        """Open a source as the launcher does: component by component, no link anywhere."""
        descriptor = os.open("/", _PATH | os.O_DIRECTORY)
        self._opened.append(descriptor)
        for name in path.split("/"):
            if not name:
                continue
            try:
                descriptor = os.open(name, _PATH, dir_fd=descriptor)
            except OSError as error:
                if optional and error.errno in _GONE:
                    return None
                raise Unknown(f"{path}: its source cannot be opened: {error.strerror}") from None
            self._opened.append(descriptor)
        if stat.S_ISLNK(os.fstat(descriptor).st_mode):
            raise Unknown(f"{path}: its source is a symbolic link now")
        return descriptor


def _join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"
