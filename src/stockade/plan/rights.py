"""What the permission bits of an object allow the process of a box.

Owns: who that process is to the kernel (the caller without capabilities, or for a root caller an
id that owns nothing but what is id-mapped for it), and what owner, mode, access list and mount say
to it. The kernel is asked as well, as the caller: a box may never do more than that. Fails closed:
both must allow. Source: path_resolution(7), acl(5), mount_setattr(2) "ID-mapped mounts".
Read next: ``access.py``.
"""

from __future__ import annotations

import os
import stat
import struct

from stockade.frozen import dataclass
from stockade.light import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# posix_acl_xattr.h
_ACL_NAME = "system.posix_acl_access"
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_TREE = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """The mount that shows an object. ``alone``: its id on the host, where submounts do not come along."""

    kind: str
    read_only: bool = False
    noexec: bool = False
    nodev: bool = False
    idmap: bool = False
    owner: tuple[int, ...] | None = None
    alone: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One object of the box.

    ``kind``: ``host`` (``fd`` is the host's object), ``made`` (by the launcher), ``opaque`` (there,
    but its content is the box's own). ``top``: a mount stands here. ``veil``: names of an overlay
    that are hidden (None) or its own directories; ``layers``: of a cache, (descriptor, is its upper).
    ``private``: not the host's object. ``text``: where a made link leads.
    """

    path: str
    kind: str
    mode: int
    mount: Mount
    fd: int | None = None
    info: os.stat_result | None = None
    top: bool = False
    veil: Mapping[str, Any] | None = None
    layers: tuple[tuple[int, bool], ...] = ()
    private: bool = False
    text: str = ""


class Rights:
    """The process of a box as the kernel sees it."""

    def __init__(self, ids: Mapping[str, Any], *, bare: bool = False) -> None:
        self._bare = bare
        self._shifted = ids["mode"] == "shifted"
        self._uid = ids["kernel_uid"] if self._shifted else os.geteuid()
        self._groups = {ids["kernel_gid"]} if self._shifted else {os.getegid(), *os.getgroups()}
        self._owner = (ids["owner_uid"], ids["owner_gid"]) if self._shifted else None

    def may(self, node: Node, wanted: int) -> bool:
        """Tell whether the bits allow ``wanted`` (``os.R_OK`` ...); a read-only mount is another question."""
        if node.fd is None:
            # Made by the launcher, which gives everything to the box.
            return (node.mode >> 6) & wanted == wanted
        if wanted & os.W_OK and not self.mapped(node):
            return False
        return (self._bare or self._bits(node) & wanted == wanted) and self._host_allows(node, wanted)

    def _host_allows(self, node: Node, wanted: int) -> bool:
        """Ask the kernel as the caller; a root caller is refused only what nobody may (immutable files)."""
        return os.access(f"/proc/self/fd/{node.fd}", wanted, effective_ids=os.geteuid() != os.getuid())

    def _bits(self, node: Node) -> int:
        assert node.info is not None
        mode = node.info.st_mode
        if node.veil is not None and node.mount.kind == "overlay":
            # A directory of both layers has the mode of the upper one, which belongs to the box.
            return (mode >> 6) & self._class_bits(node, mode) & 7
        return self._class_bits(node, mode)

    def _class_bits(self, node: Node, mode: int) -> int:
        acl = self._acl(node)
        if acl:
            return acl[0]
        if self.owns(node):
            return (mode >> 6) & 7
        return ((mode >> 3) if self._in_group(node) else mode) & 7

    def _acl(self, node: Node) -> tuple[int, ...]:
        """Return the bits that an access list gives, as a tuple of one; empty: there is none."""
        try:
            data = os.getxattr(f"/proc/self/fd/{node.fd}", _ACL_NAME)
        except OSError:
            return ()
        entries = list(struct.iter_unpack("<HHI", data[4:]))
        first = {tag: bits for tag, bits, _ in entries}
        mask = first.get(_MASK, 7)
        if self.owns(node):
            return (first[_USER_OBJ],)
        named = [bits for tag, bits, number in entries if tag == _USER and self._is_user(node, number)]
        groups = [bits for tag, bits, number in entries if tag == _GROUP and self._is_group(node, number)]
        groups += [first[_GROUP_OBJ]] if self._in_group(node) else []
        if named or groups:
            # Of several groups one must give everything; their union would be too much.
            return ((named[0] if named else groups[0] if len(groups) == 1 else _common(groups)) & mask,)
        return (first[_OTHER],)

    # -- identity --------------------------------------------------------------------------------

    def _map(self, node: Node) -> tuple[int, ...] | None:
        """Return owner and group on disk that appear as the box; None: no id map."""
        return (node.mount.owner or self._owner) if self._shifted and node.mount.idmap else None

    def _is_user(self, node: Node, number: int) -> bool:
        mapped = self._map(node)
        return number == (self._uid if mapped is None else mapped[0])

    def _is_group(self, node: Node, number: int) -> bool:
        mapped = self._map(node)
        return number in self._groups if mapped is None else number == mapped[1]

    def owns(self, node: Node) -> bool:
        """Tell whether the object belongs to the box."""
        return node.info is None or self._is_user(node, node.info.st_uid)

    def _in_group(self, node: Node) -> bool:
        return node.info is None or self._is_group(node, node.info.st_gid)

    def mapped(self, node: Node) -> bool:
        """Tell whether an id map knows owner and group: without both nothing is written (EACCES)."""
        if self._map(node) is None or node.info is None:
            return True
        return self._is_user(node, node.info.st_uid) and self._is_group(node, node.info.st_gid)

    def new_owner(self, parent: Node) -> tuple[int, int] | None:
        """Return owner and group of what the box creates there; None: the caller's own.

        -1: the group that the directory hands down.
        """
        mapped = self._map(parent)
        if mapped is None:
            return None
        return mapped[0], -1 if parent.mode & stat.S_ISGID else mapped[1]

    # -- mounts and sysctls ----------------------------------------------------------------------

    @staticmethod
    def read_only(node: Node) -> bool:
        """Tell whether the mount, the box's or the host's, keeps files, directories and links as they are."""
        if stat.S_IFMT(node.mode) not in _TREE:
            return False
        return node.mount.read_only or _host_flag(node, os.ST_RDONLY)

    @staticmethod
    def no_exec(node: Node) -> bool:
        """Tell whether nothing can be executed from the mount."""
        return node.mount.noexec or _host_flag(node, os.ST_NOEXEC)

    def may_follow(self, directory: Node, link: Node) -> bool:
        """Tell whether a link may be followed. Source: proc_sys_fs(5), protected_symlinks."""
        if link.info is None or directory.info is None or not _protected():
            return True
        shared = directory.mode & stat.S_ISVTX and directory.mode & stat.S_IWOTH
        return not shared or self.owns(link) or directory.info.st_uid == link.info.st_uid

    def sticky_denies(self, directory: Node, node: Node) -> bool:
        """Tell whether the directory keeps others from removing an object. Source: unlink(2), EPERM."""
        return bool(directory.mode & stat.S_ISVTX) and not (self.owns(node) or self.owns(directory))


def _common(bits: list[int]) -> int:
    found = 7
    for each in bits:
        found &= each
    return found


def _host_flag(node: Node, flag: int) -> bool:
    if node.fd is None:
        return False
    return bool(os.statvfs(f"/proc/self/fd/{node.fd}").f_flag & flag)


def _protected() -> bool:
    try:
        with open("/proc/sys/fs/protected_symlinks", encoding="ascii") as stream:
            return stream.read().strip() != "0"
    except OSError:
        return True
