"""How the kernel confines the calling thread, and whether /proc can be believed about it.

Owns: what a launch inherits from its caller (filter, no_new_privs, ids, capabilities, namespaces,
root directory, LSM label), read from the thread's own entries in /proc and cross-checked, because
whoever has a mount namespace can put another file there.
Fails closed: what cannot be read, or is not the kernel's, is not ``certain``; nothing is kept for
such a caller and it is never called ``outside``. Read next: ``active.py``, ``answers.py``.
"""

from __future__ import annotations

import os
from _thread import get_native_id

from stockade.frozen import dataclass
from stockade.jsontext import dumps

THREAD = "/proc/thread-self"  # a filter and no_new_privs are a thread's own
# Source: include/linux/proc_ns.h, PROC_USER_INIT_INO and PROC_PID_INIT_INO.
FIRST_USER_NS = 0xEFFFFFFD
FIRST_PID_NS = 0xEFFFFFFC
_NAMESPACES = ("user", "mnt", "pid", "net")
_CAPS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What confines the calling thread. ``certain``: read whole, and from the kernel's own /proc.

    ``ids``: real, effective, saved and file-system uid, then gid. ``caps``: the five sets as /proc
    spells them. ``namespaces``: inodes of user, mount, pid and network namespace. ``root``: device
    and inode of the root directory. ``label``: of an LSM.
    """

    certain: bool = False
    no_new_privs: bool = False
    seccomp: int = -1
    filters: int = -1
    ids: tuple[str, str] = ("", "")
    caps: tuple[str, ...] = ()
    namespaces: tuple[int, ...] = ()
    root: tuple[int, int] = (0, 0)
    label: str = ""

    def key(self) -> str:
        """Return everything that an answer of the probe depends on, as one string."""
        return dumps((self.no_new_privs, self.seccomp, self.filters, self.ids, self.caps, self.namespaces,
                           self.root, self.label))

    @property
    def bare(self) -> bool:
        """True where nothing of another sandbox can be seen."""
        return self.certain and not self.no_new_privs and self.seccomp == 0 and self._first_namespaces() \
            and not self.label.endswith("(enforce)")

    def _first_namespaces(self) -> bool:
        return self.namespaces[0] == FIRST_USER_NS and self.namespaces[2] == FIRST_PID_NS


def standing() -> Standing:
    """Return how the kernel confines the calling thread."""
    try:
        fields = _status()
        spaces = tuple(_inode(name) for name in _NAMESPACES)
        root = os.stat("/")
        return Standing(
            certain=True, no_new_privs=fields["NoNewPrivs"] == "1", seccomp=int(fields["Seccomp"]),
            # Linux before 5.9 does not count them.
            filters=int(fields.get("Seccomp_filters", "-1")), ids=(fields["Uid"], fields["Gid"]),
            caps=tuple(fields[name] for name in _CAPS), namespaces=spaces, root=(root.st_dev, root.st_ino),
            label=label())
    except (OSError, ValueError, KeyError):
        return Standing()


def _status() -> dict[str, str]:
    """Return the thread's status. Raises: ValueError for a file that is not the kernel's or another's."""
    with open(f"{THREAD}/status", "rb") as stream:
        info = os.fstat(stream.fileno())
        text = stream.read().decode("ascii", "replace")
    # proc(5): the kernel makes the text as it is read, so that the size is 0.
    if info.st_size != 0 or info.st_dev != os.stat("/proc").st_dev:
        raise ValueError("not of the kernel")
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    # Seen from an outer /proc the innermost number is ours.
    if (int(fields["NSpid"].split()[-1]), int(fields["NStgid"].split()[-1])) != (get_native_id(), os.getpid()):
        raise ValueError("of another process")
    return fields


def _inode(name: str) -> int:
    kind, _, number = os.readlink(f"{THREAD}/ns/{name}").partition(":")
    if kind != name:
        raise ValueError("not of the kernel")
    return int(number.strip("[]"))


def label() -> str:
    """Return the label that an LSM gave this thread; empty without one."""
    try:
        with open(f"{THREAD}/attr/current", "rb") as stream:
            return stream.read().decode("utf-8", "replace").strip("\0\n ")
    except OSError:
        return ""
