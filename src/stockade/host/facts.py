"""Facts about this host that decide what a box can keep.

Owns: reading them, fast and without side effects; the launcher names its Landlock ABI. What the
kernel *does* when asked is the probe's answer, not a guess made from these.
Fails closed: a fact that cannot be read has the value that allows least. Read next: ``probe.py``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache

from stockade.decision import BackendVerdict
from stockade.frozen import asdict, dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CAP_SYS_ADMIN = 21
_CONTAINER = r"([0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){4,})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What this host is. ``backends``: verdicts of the probe, strongest first."""

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
    backends: tuple[BackendVerdict, ...] = field(default=())

    def key(self) -> str:
        """Return what a probe's answer depends on, as one string."""
        parts = (self.release, self.boot_id, self.uid, self.has_sys_admin, self.lsm_profile,
                 self.container_id, self.landlock_abi, self.launcher)
        return json.dumps(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        data = asdict(self)
        for row in data["backends"]:
            row["keeps"], row["open_net"] = sorted(row["keeps"]), sorted(row["open_net"])
        return {"schema": "stockade.host.v1", **data}


def gather(landlock_abi: int, launcher_path: str) -> HostFacts:
    """Read the facts of this process and kernel.

    Args: landlock_abi: as the launcher reports it; launcher_path: the launcher's file.
    """
    name = os.uname()
    info = os.stat(launcher_path)
    status = _status()
    return HostFacts(
        kernel=_version(name.release), release=name.release, arch=name.machine,
        uid=os.geteuid(), gid=os.getegid(), has_sys_admin=_has_cap(status, CAP_SYS_ADMIN),
        boot_id=_text("/proc/sys/kernel/random/boot_id"), lsm_profile=_text("/proc/self/attr/current"),
        container_id=container_id(), landlock_abi=landlock_abi, ram_bytes=ram_bytes(),
        launcher=(info.st_ino, info.st_size, info.st_mtime_ns),
    )


def _version(release: str) -> tuple[int, int]:
    major, _, rest = release.partition(".")
    minor = rest[:next((index for index, char in enumerate(rest) if not char.isdigit()), len(rest))]
    return (int(major), int(minor)) if major.isdigit() and minor else (0, 0)


@lru_cache(maxsize=1)
def ram_bytes() -> int:
    """Return the memory of the machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _status() -> Mapping[str, str]:
    return dict(line.split(":\t", 1) for line in _text("/proc/self/status").splitlines() if ":\t" in line)


def _has_cap(status: Mapping[str, str], number: int) -> bool:
    try:
        return bool(int(status.get("CapEff", "0"), 16) >> number & 1)
    except ValueError:
        return False


def confinement() -> tuple[bool, bool]:
    """Return (no_new_privs, a seccomp filter is on) of this process."""
    status = _status()
    return status.get("NoNewPrivs", "0").strip() == "1", status.get("Seccomp", "0").strip() == "2"


def container_id() -> str:
    """Return an id of the surrounding container, or an empty string.

    cgroup v2 shows ``0::/`` inside a container, so the mount table is asked as well.
    """
    for path in ("/proc/self/cgroup", "/proc/self/mountinfo"):
        for line in _text(path).splitlines():
            if "/containers/" in line or "docker" in line or "libpod" in line or "kubepods" in line:
                import re  # most hosts have no such line

                found = re.search(_CONTAINER, line)
                if found:
                    return found.group(1)
    return ""


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip("\0\n ")
    except OSError:
        return ""


def sysctl(name: str) -> str:
    """Return the text of a sysctl such as ``user.max_user_namespaces``; empty when there is none."""
    return _text("/proc/sys/" + name.replace(".", "/"))
