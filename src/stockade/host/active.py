"""Where the calling process stands: outside, in a box, in somebody else's sandbox.

Owns: the attestation by kernel facts. The record on /run/stockade is believed only where all that
every box has is there as well: the launcher's own read-only tmpfs, its init as process 1 and out
of reach, namespaces that the record names, no capability left, a filter that refuses what every
box refuses. A variable proves nothing, because every parent can set one; nor does a file, because
whoever has a mount namespace can put one there.
Fails closed: facts that contradict each other, or a /proc that is not the kernel's, are
``unknown``, never ``outside`` and never a box with a tier. Read next: ``standing.py``,
``launcher/src/steps/record.rs``, ``stockade.decision``.
"""

from __future__ import annotations

import errno
import os
import stat
from time import sleep

from stockade.errors import ConfigError
from stockade.frozen import dataclass
from stockade.host import standing
from stockade.host.standing import Standing
from stockade.jsontext import loads
from stockade.rules.tiers import Tier, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BOX_DIR = "/run/stockade"
# A supervisor that has not taken a connection for so long builds no box now.
CONNECT_TRIES, CONNECT_WAIT_S = 40, 0.05
BOX_RECORD = "/run/stockade/box.json"
_FLAGS = frozenset({"ro", "nosuid", "nodev", "noexec"})
# (family, type, protocol) that the filter of every box refuses and an ordinary process may have:
# AF_VSOCK, and NETLINK_KOBJECT_UEVENT. Source: launcher/seccomp/x86_64.toml.
_REFUSED = ((40, 1, 0), (16, 3, 15))


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """Where this process is.

    ``chain``: run ids of the boxes around it, innermost first; ``nests``: the supervisor of the
    innermost answers, so that it can build a box in it.
    """

    where: str
    tier: Tier | None = None
    known: bool = False
    run_id: str | None = None
    chain: tuple[str, ...] = ()
    nests: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    device: str
    root: str
    point: str
    flags: frozenset[str]
    fstype: str


def active() -> Active:
    """Return where this process stands, attested by the kernel."""
    # (4) Ask the kernel, never the environment.
    place = standing.standing()
    mounts = _mounts()
    if not place.certain or not _own_proc(mounts):
        return Active(where="unknown")
    if _claimed(mounts):
        return _in_box() if _is_box(place, mounts) else Active(where="unknown")
    return Active(where="outside", tier=Tier.off, known=True) if place.bare and not _another_root(mounts) \
        else Active(where="foreign")


def _mounts() -> list[_Mount]:
    """Return the mounts of this thread's namespace in the order in which they lie on each other."""
    found = []
    try:
        with open(f"{standing.THREAD}/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
            for line in stream:
                head, _, tail = line.partition(" - ")
                fields = head.split(" ")
                found.append(_Mount(device=fields[2], root=fields[3], point=fields[4],
                                    flags=frozenset(fields[5].split(",")), fstype=tail.partition(" ")[0]))
    except (OSError, IndexError):
        return []
    return found


def _own_proc(mounts: list[_Mount]) -> bool:
    """Tell whether /proc is the kernel's, whole, with nothing laid over what it says of a process."""
    whole = [mount for mount in mounts if mount.point == "/proc" and mount.fstype == "proc" and mount.root == "/"]
    return any(_is_device(mount, "/proc") for mount in whole) and not any(
        mount.point.startswith("/proc/") and _names_a_process(mount.point) for mount in mounts)


def _names_a_process(point: str) -> bool:
    word = point.split("/")[2]
    return word.isdigit() or word in ("self", "thread-self")


def _is_device(mount: _Mount, path: str) -> bool:
    """Tell whether what is seen at a path lies on the device of the mount."""
    try:
        info = os.stat(path)
    except OSError:
        return False
    return f"{os.major(info.st_dev)}:{os.minor(info.st_dev)}" == mount.device


def _another_root(mounts: list[_Mount]) -> bool:
    """Tell whether the root directory is not that of the mount namespace or of the first process."""
    if not any(mount.point == "/" for mount in mounts):
        return True  # chroot(2) into a directory: mountinfo shows only what lies below it
    try:
        first, own = os.stat("/proc/1/root"), os.stat("/")
    except OSError:
        return False  # the first process is another user's
    # A mount namespace of one's own has copies of the same mounts, so device and inode are equal.
    return (first.st_dev, first.st_ino) != (own.st_dev, own.st_ino)


def _claimed(mounts: list[_Mount]) -> bool:
    """Tell whether somebody says that this is a box: by a mount, or by a record without one."""
    return os.path.lexists(BOX_RECORD) or any(
        mount.point == BOX_DIR or mount.point.startswith(BOX_DIR + "/") for mount in mounts)


def _is_box(place: Standing, mounts: list[_Mount]) -> bool:
    """Tell whether everything that the launcher makes for each box is here."""
    return _confined(place) and _record_is_mounted(mounts) and _first_process_is_init() and _names_us(place) \
        and _surface_is_small()


def _confined(place: Standing) -> bool:
    return place.no_new_privs and place.seccomp == 2 and not any(int(caps, 16) for caps in place.caps) \
        and place.namespaces[0] != standing.FIRST_USER_NS and place.namespaces[2] != standing.FIRST_PID_NS


def _record_is_mounted(mounts: list[_Mount]) -> bool:
    """launcher/src/steps/record.rs: a tmpfs of its own with a record and a socket, nothing laid over it."""
    over = [mount for mount in mounts if mount.point == BOX_DIR or mount.point.startswith(BOX_DIR + "/")]
    # In a box inside a box the outer one's lies below, out of sight: the last is the one that is seen.
    if not over or any(mount.point != BOX_DIR or mount.fstype != "tmpfs" or mount.root != "/" for mount in over):
        return False
    try:
        kinds = {name: stat.S_IFMT(os.lstat(f"{BOX_DIR}/{name}").st_mode) for name in os.listdir(BOX_DIR)}
    except OSError:
        return False
    return all(mount.flags >= _FLAGS for mount in over) and _is_device(over[-1], BOX_RECORD) \
        and kinds == {"box.json": stat.S_IFREG, "box.sock": stat.S_IFSOCK}


def _first_process_is_init() -> bool:
    """launcher/src/init.rs: process 1 of a box has a filter, no capability, and is not dumpable."""
    try:
        with open("/proc/1/environ", "rb"):
            return False  # whoever may read that could also write its memory
    except PermissionError:
        pass
    except OSError:
        return False
    try:
        with open("/proc/1/status", encoding="ascii", errors="replace") as stream:
            fields = {name: value.strip() for name, _, value in (line.partition(":") for line in stream)}
        return fields["Name"] == "stockade-init" and fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2" \
            and not int(fields["CapPrm"], 16) and not int(fields["CapBnd"], 16)
    except (OSError, ValueError, KeyError):
        return False


def _names_us(place: Standing) -> bool:
    """A record that was copied names the namespaces of another box, or none."""
    user, mount, pid, _ = place.namespaces
    return bool(box_record().get("namespaces") == {"user": user, "mnt": mount, "pid": pid})


def _surface_is_small() -> bool:
    import _socket  # the C half of ``socket``, which is there without the rest

    for family, kind, protocol in _REFUSED:
        try:
            _socket.socket(family, kind, protocol).close()
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT):  # what our filter answers
                continue
        return False
    return True


def box_record() -> dict[str, Any]:
    """Return what the launcher wrote of the box around this process; believe it only where ``active`` says box."""
    try:
        with open(BOX_RECORD, encoding="utf-8") as stream:
            record = loads(stream.read())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _in_box() -> Active:
    record = box_record()
    try:
        # What was kept, never what was asked for.
        tier = parse(str(record["effective_tier"]))
        run_id = str(record["run_id"])
    except (KeyError, ConfigError):
        # A box whose record says too little is still a box; its tier is not known.
        return Active(where="box")
    chain = tuple(str(item) for item in record.get("chain", ()) or (run_id,))
    return Active(where="box", tier=tier, known=True, run_id=run_id, chain=chain, nests=_answers())


def _answers() -> bool:
    """Tell whether somebody listens at the box's socket."""
    import _socket

    try:
        link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    except OSError:
        return False
    link.setblocking(False)  # a full queue is said at once (unix(7), EAGAIN), and somebody may keep it full
    try:
        for _ in range(CONNECT_TRIES):
            try:
                link.connect(f"{BOX_DIR}/box.sock")
                return True
            except BlockingIOError:
                sleep(CONNECT_WAIT_S)
    except OSError:
        return False
    finally:
        link.close()
    return False
