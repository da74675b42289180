"""Read /proc/self/mountinfo: which mounts lie below a path, and aliases of a directory.

Fails closed: an unreadable table is an error, not "no mounts" (a home with a separate mount
would lose it from view, or show what must be hidden). Source: proc_pid_mountinfo(5).
"""

from __future__ import annotations

from stockade.frozen import NamedTuple, dataclass
from stockade.light import Iterable, Mapping, Sequence

# Source: filesystems(5) and Documentation/filesystems. "fuse.sshfs" counts as "fuse".
DISTANT = frozenset({
    "9p", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "fuse", "fuseblk", "gfs2", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "virtiofs",
})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of mountinfo: where it is, what it shows, and how."""

    point: str
    root: str
    device: str
    fstype: str
    options: frozenset[str]

    @property
    def distant(self) -> bool:
        """True where another program or machine answers for the file system, or does not: a look may never end."""
        return self.fstype.partition(".")[0] in DISTANT


def parse(text: str) -> tuple[Mount, ...]:
    """Parse mountinfo text; lines that do not have the documented shape are skipped."""
    found: list[Mount] = []
    for line in text.splitlines():
        head, mark, tail = line.partition(" - ")
        fields = head.split(" ")
        kinds = tail.split(" ")
        if not mark or len(fields) < 6 or not kinds[0]:
            continue
        found.append(
            Mount(
                point=_unescape(fields[4]),
                root=_unescape(fields[3]),
                device=fields[2],
                fstype=kinds[0],
                options=frozenset(fields[5].split(",")),
            )
        )
    return tuple(found)


def read(path: str = "/proc/self/mountinfo") -> tuple[Mount, ...]:
    """Return the mounts of this process's namespace."""
    with open(path, encoding="utf-8", errors="surrogateescape") as stream:
        return parse(stream.read())


def submounts(mounts: Iterable[Mount], path: str) -> tuple[str, ...]:
    """Return the top-most mount points strictly below ``path``, sorted."""
    prefix = path.rstrip("/") + "/"
    points = sorted({m.point for m in mounts if m.point.startswith(prefix) and m.point != path})
    top: list[str] = []
    for point in points:
        if not any(point.startswith(seen + "/") for seen in top):
            top.append(point)
    return tuple(top)


def aliases(mounts: Sequence[Mount], paths: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return (path, other spelling) where a path is mounted a second time (bind aliases), sorted for each path.

    A path lives at some place of some file system; another mount of the same file system
    whose root contains that place shows it a second time.
    """
    table = {mount.point: mount for mount in mounts}  # of two on one point the later line is the one on top
    homes: dict[str, Mount | None] = {}  # directory -> the mount it lies in
    twins: dict[str, tuple[_Twin, ...]] = {}
    found: list[tuple[str, str]] = []
    for path in paths:
        directory = path.rpartition("/")[0]
        if directory not in homes:
            homes[directory] = _mount_of(table, directory)
        home = table.get(path) or homes[directory]
        if home is None:
            continue
        if home.point not in twins:
            twins[home.point] = _twins(home, mounts)
        near = [twin for twin in twins[home.point] if path.startswith(twin.seen)]
        if near:
            inner = _join(home.root, path[len(home.point.rstrip("/")):])
            found.extend((path, other) for other in sorted(_elsewhere(inner, near)) if other != path)
    return tuple(found)


class _Twin(NamedTuple):
    """A second mount of a file system: what of it, where, and under which name the first mount shows that."""

    root: str
    point: str
    seen: str


def _twins(home: Mount, mounts: Iterable[Mount]) -> tuple[_Twin, ...]:
    """Return the other mounts that may show something of ``home``; nearly always they show another part."""
    base, top = home.point.rstrip("/"), home.root.rstrip("/")
    found = []
    for mount in mounts:
        root = mount.root.rstrip("/")
        if mount.device != home.device or mount.point == home.point:
            continue
        if f"{top}/".startswith(f"{root}/"):
            found.append(_Twin(root, mount.point, base))
        elif root.startswith(f"{top}/"):
            found.append(_Twin(root, mount.point, base + root[len(top):]))
    return tuple(found)


def _elsewhere(inner: str, twins: Iterable[_Twin]) -> set[str]:
    """Where a place of a file system is seen through its other mounts."""
    return {_join(twin.point, inner[len(twin.root):]) for twin in twins
            if inner.startswith(twin.root) and inner[len(twin.root):len(twin.root) + 1] in ("", "/")}


def sources(mounts: Iterable[Mount]) -> tuple[tuple[str, str], ...]:
    """Return (mount point, path) of mounts that show a part of a file system seen elsewhere.

    A bind of one file shows what lies at the path; a directory above is shown by neither.
    """
    by_device: dict[str, list[Mount]] = {}
    for mount in mounts:
        by_device.setdefault(mount.device, []).append(mount)
    found: dict[tuple[str, str], None] = {}
    for group in by_device.values():
        for mount in group:
            for other in group if mount.root != "/" else ():
                root = other.root.rstrip("/")
                if other is not mount and mount.root.startswith(root + "/"):
                    found[mount.point, _join(other.point, mount.root[len(root):])] = None
    return tuple(found)


def _mount_of(table: Mapping[str, Mount], path: str) -> Mount | None:
    while path and path not in table:
        path = path.rpartition("/")[0]
    return table.get(path or "/")


def _join(base: str, rest: str) -> str:
    return (base.rstrip("/") + "/" + rest.strip("/")).rstrip("/") or "/"


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    import re  # few tables have a name with a blank in it

    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
