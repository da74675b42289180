"""Where the calling process stands: outside, in a box, in somebody else's sandbox.

Owns: the attestation by kernel facts. A box is known by the read-only tmpfs that only the
launcher mounts on /run/stockade, together with no_new_privs and a seccomp filter; a variable
proves nothing, because every parent can set one. Fails closed: facts that contradict each
other are ``unknown``, never ``outside``. Read next: ``stockade.decision``.
"""

from __future__ import annotations

import json
import os

from stockade.errors import ConfigError
from stockade.frozen import dataclass
from stockade.host import facts
from stockade.rules.tiers import Tier, parse

BOX_DIR = "/run/stockade"
BOX_RECORD = "/run/stockade/box.json"
_FULL_MAP = ("0", "0", "4294967295")


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """Where this process is. ``chain``: run ids of the boxes around it, innermost first."""

    where: str
    tier: Tier | None = None
    known: bool = False
    run_id: str | None = None
    chain: tuple[str, ...] = ()


def active() -> Active:
    """Return where this process stands, attested by the kernel."""
    # (4) Ask the kernel, never the environment.
    no_new_privs, filtered = facts.confinement()
    mounted = box_mount()
    if mounted:
        return _in_box() if no_new_privs and filtered else Active(where="unknown")
    if no_new_privs or filtered or not _whole_id_map():
        return Active(where="foreign")
    return Active(where="outside", tier=Tier.off, known=True)


def box_mount() -> bool:
    """Tell whether a read-only tmpfs is mounted on /run/stockade."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
        for line in stream:
            head, _, tail = line.partition(" - ")
            fields = head.split(" ")
            if len(fields) > 5 and fields[4] == BOX_DIR and tail.startswith("tmpfs "):
                return "ro" in fields[5].split(",")
    return False


def _in_box() -> Active:
    try:
        with open(BOX_RECORD, encoding="utf-8") as stream:
            record = json.load(stream)
        tier = parse(str(record["tier"]))
        run_id = str(record["run_id"])
    except (OSError, ValueError, KeyError, TypeError, ConfigError):
        # A box whose record cannot be read is still a box; its tier is not known.
        return Active(where="box")
    chain = tuple(str(item) for item in record.get("chain", ()) or (run_id,))
    return Active(where="box", tier=tier, known=True, run_id=run_id, chain=chain)


def _whole_id_map() -> bool:
    """A user namespace that maps every id is the initial one (or equal to it in power)."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as stream:
            return tuple(stream.read().split()) == _FULL_MAP
    except OSError:
        # No /proc: what confines this process cannot be seen, so it is not called outside.
        return os.path.exists("/proc/self/status")
