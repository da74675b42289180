"""Facts about this host that decide what a box can keep.

Owns: reading them, fast and without side effects; the launcher names its Landlock ABI. What the
kernel *does* when asked is the probe's answer, not a guess made from these.
Fails closed: a fact that cannot be read has the value that allows least. Read next:
``standing.py`` (what confines the caller), ``probe.py``.
"""

from __future__ import annotations

import os

from stockade.frozen import asdict, dataclass, field
from stockade.host.standing import THREAD, Standing, standing
from stockade.jsontext import dumps
from stockade.light import memo
from stockade.rules.circumstances import BackendVerdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CAP_SYS_ADMIN = 21
# What may switch namespaces off; the first is a namespace's own, whose number may be another's later.
SYSCTLS = ("user.max_user_namespaces", "kernel.unprivileged_userns_clone",
           "kernel.apparmor_restrict_unprivileged_userns")
_CONTAINER = r"([0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){4,})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What this host is. ``backends``: verdicts of the probe, strongest first.

    ``layer``, ``inner``, ``broker``: see ``stockade.rules.circumstances.Host``; None: not to be had.
    """

    kernel: tuple[int, int]
    release: str
    arch: str
    uid: int
    gid: int
    has_sys_admin: bool
    boot_id: str
    lsm_profile: str
    container_id: str
    landlock_abi: int
    ram_bytes: int
    launcher: tuple[int, int, int]  # inode, size, mtime in nanoseconds
    standing: Standing = field(default_factory=Standing)
    mounts: tuple[str, ...] = ()  # of / and below /proc: what decides whether a new proc may be mounted
    sysctls: tuple[str, ...] = ()
    backends: tuple[BackendVerdict, ...] = field(default=())
    layer: BackendVerdict | None = None
    inner: BackendVerdict | None = None
    broker: str | None = None

    def key(self) -> str:
        """Return what a probe's answer depends on, as one string."""
        parts = (self.release, self.boot_id, self.uid, self.has_sys_admin, self.lsm_profile, self.container_id,
                 self.launcher, self.standing.key(), self.mounts, self.sysctls)
        return dumps(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        data = asdict(self)
        for row in filter(None, (*data["backends"], data["layer"], data["inner"])):
            row["keeps"], row["open_net"] = sorted(row["keeps"]), sorted(row["open_net"])
        return {"schema": "stockade.host.v1", **data}


def gather(landlock_abi: int, launcher_path: str, place: Standing | None = None) -> HostFacts:
    """Read the facts of this process and kernel.

    Args: landlock_abi: as the launcher reports it; launcher_path: the launcher's file; place: what
    confines the caller, when that was read already.
    """
    name = os.uname()
    info = os.stat(launcher_path)
    place = place or standing()
    mounts = text(f"{THREAD}/mountinfo")
    return HostFacts(
        kernel=_version(name.release), release=name.release, arch=name.machine,
        uid=os.geteuid(), gid=os.getegid(), has_sys_admin=_has_cap(place, CAP_SYS_ADMIN),
        boot_id=text("/proc/sys/kernel/random/boot_id"), lsm_profile=place.label,
        container_id=container_id(mounts), landlock_abi=landlock_abi, ram_bytes=ram_bytes(),
        launcher=(info.st_ino, info.st_size, info.st_mtime_ns), standing=place, mounts=deciding_mounts(mounts),
        sysctls=tuple(sysctl(key) for key in SYSCTLS),
    )


def deciding_mounts(mounts: str | None = None) -> tuple[str, ...]:
    """Return the mounts that a box is made from, without the numbers that each mount gets."""
    found = []
    for line in (text(f"{THREAD}/mountinfo") if mounts is None else mounts).splitlines():
        fields = line.split(" ")
        if len(fields) > 5 and (fields[4] == "/" or fields[4].startswith("/proc")):
            found.append(" ".join((*fields[3:6], line.partition(" - ")[2].partition(" ")[0])))
    return tuple(found)


def _version(release: str) -> tuple[int, int]:
    major, _, rest = release.partition(".")
    minor = rest[:next((index for index, char in enumerate(rest) if not char.isdigit()), len(rest))]
    return (int(major), int(minor)) if major.isdigit() and minor else (0, 0)


@memo(maxsize=1)
def ram_bytes() -> int:
    """Return the memory of the machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _has_cap(place: Standing, number: int) -> bool:
    try:
        return bool(int(place.caps[2], 16) >> number & 1)
    except (ValueError, IndexError):
        return False


def container_id(mounts: str) -> str:
    """Return an id of the surrounding container, or an empty string.

    cgroup v2 shows ``0::/`` inside a container, so the mount table is asked as well: for what was bound
    from the engine's directory. Where the engine itself runs that is a mount point, never a source.
    """
    sources = [fields[3] for fields in (line.split(" ", 4) for line in mounts.splitlines()) if len(fields) > 4]
    for line in (*text("/proc/self/cgroup").splitlines(), *sources):
        if "/containers/" in line or "docker" in line or "libpod" in line or "kubepods" in line:
            import re  # most hosts have no such line

            found = re.search(_CONTAINER, line)
            if found:
                return found.group(1)
    return ""


def text(path: str) -> str:
    """Return the text of a small file of the kernel; empty when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip("\0\n ")
    except OSError:
        return ""


def sysctl(name: str) -> str:
    """Return the text of a sysctl such as ``user.max_user_namespaces``; empty when there is none."""
    return text("/proc/sys/" + name.replace(".", "/"))
