"""Attacks on the kernel's surface, on the terminal, and on limits.

Owns: ``kernel.surface``, ``tty.injection`` and ``limits``. Most leave no trace outside, so the
answer of the kernel counts; each has to be yes without a box first. Nothing here changes the host:
namespaces and mounts end with the child that makes them, and no call loads, reboots or swaps.
Read next: ``attack.py``, ``catalogue.py``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from stockade.prove.model import Answer, Attack
from stockade.prove.on_files import answered
from stockade.prove.stage import MARK, Stage

HOLD_S = 5.0  # who counts does so every 100 ms (launcher/src/watch.rs); a loaded machine has more time
# Source: address_families(7), linux/netlink.h. Netlink other than ROUTE, kernel crypto, raw packets, vsock.
_SOCKETS = (("a netlink socket of kernel events", 16, 3, 15), ("the kernel's crypto", 38, 5, 0),
            ("raw packets", 17, 3, 0), ("a socket to the hypervisor", 40, 1, 0))
_CALLS = (("make a user namespace", "user_namespace"), ("mount a file system", "mount"),
          ("set up io_uring", "io_uring"), ("take page faults (userfaultfd)", "userfaultfd"),
          ("count processor events (perf)", "perf_event"), ("make a bpf map", "bpf_map"),
          ("add a key to a keyring", "add_key"), ("watch files by fanotify", "fanotify"),
          ("open a file by its handle", "file_handle"), ("gain rights by a setuid program", "new_privileges"),
          ("have a capability", "capabilities"))


def attacks(stage: Stage) -> Iterator[Attack]:
    """Yield the attacks on the kernel, the terminal and the limits."""
    promise = "kernel.surface"
    target = {"path": f"{stage.project}/mounted"}
    for name, op in _CALLS:
        path = {"mount": target, "file_handle": {"path": stage.config}}.get(op, {})
        yield Attack(promise=promise, name=name, seen=answered, op={"op": op, **path})
    for name, family, kind, protocol in _SOCKETS:
        yield Attack(promise=promise, name=f"open {name}", seen=answered,
                     op={"op": "open_socket", "family": family, "type": kind, "protocol": protocol})
    yield Attack(promise=promise, name="make a setuid file", seen=_setuid,
                 op={"op": "setuid_file", "path": f"{stage.project}/setuid"})
    yield Attack(promise="tty.injection", name="type into the terminal (TIOCSTI)", seen=_typed, peer=False,
                 op={"op": "type_into_terminal", "fd": -1, "text": MARK})
    for name, fields in (("open more files than allowed", {"op": "open_many", "count": 200}),
                         ("raise the limit of core dumps", {"op": "raise_core_limit"})):
        yield Attack(promise="limits", name=name, seen=answered, shape="limits", op=fields, peer=False)
    # The last one there: where no limit of the kernel counts a box alone, the box is ended.
    yield Attack(promise="limits", name="start more processes than allowed", seen=_crowded, shape="limits", late=True,
                 op={"op": "fork_many", "count": 80, "hold_s": HOLD_S}, peer=False)


def _crowded(stage: Stage, got: Answer) -> str:
    if got.errno != "ended":
        return answered(stage, got)
    hit = None if got.receipt is None or got.receipt.end is None else got.receipt.end.get("limit_hit")
    return "" if hit == "processes" else f"the box ended, and its limit is called {hit!r}"


def _setuid(stage: Stage, got: Answer) -> str:
    path = f"{stage.project}/setuid"
    try:
        return f"{path} is setuid" if os.stat(path).st_mode & stat.S_ISUID else ""
    except OSError:
        return ""


def _typed(stage: Stage, got: Answer) -> str:
    return f"typed {MARK!r} into the terminal" if got.errno is None else ""
