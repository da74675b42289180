"""Landlock rules over the same grants as the mounts: a second mechanism that holds on its own.

Owns: which path gets which access. Rules are hierarchical, so a rule on ``/`` reaches every
mount below it. Fails closed: a host without ABI 3 gets none (truncation could not be denied and
a rule set that looks whole would not be), and the promises then name the mounts alone.
Source: Documentation/userspace-api/landlock.rst. Read next: ``launcher/src/steps/landlock.rs``.
"""

from __future__ import annotations

from stockade.plan.rows import Row
from stockade.plan.want import Want, is_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MIN_ABI = 3
MAX_ABI = 6  # later ones add no right that this product handles


def ruleset(want: Want, table: list[Row]) -> dict[str, Any] | None:
    """Return the plan's landlock object, or None where the host has too little."""
    if want.landlock_abi < MIN_ABI:
        return None
    abi = min(want.landlock_abi, MAX_ABI)
    access = _strict(want, table) if want.strict else _host(want, table)
    rules = [{"path": path, "access": kind} for path, kind in sorted(access)]
    return {"abi": abi, "scope_signal": abi >= 6, "scope_abstract": abi >= 6, "rules": rules}


def _host(want: Want, table: list[Row]) -> set[tuple[str, str]]:
    """standard and guarded: everything may be read, only private places and roots written."""
    return {("/", "read"), *_writable(table)}


def _strict(want: Want, table: list[Row]) -> set[tuple[str, str]]:
    """strict: reading by grant as well; the private root's own directories may be listed."""
    found: set[tuple[str, str]] = {("/", "list")}
    for row in table:
        kind, target = row["kind"], row["target"]
        if kind in ("bind", "overlay", "cache") or (kind == "tmpfs" and target != "/"):
            found.add((target, "read"))
        elif kind == "file":
            found.add((_top(target), "read"))
    found.add(("/proc", "read"))
    readable = [path for path, access in found if access == "read"]
    # A rule below another of the same access adds nothing and costs a lookup in the kernel.
    outer = {(path, "read") for path in readable
             if not any(path != other and is_below(path, other) for other in readable)}
    return {("/", "list"), *outer, *_writable(table)}


def _top(path: str) -> str:
    """First component: files made for the box lie in directories of the private root."""
    return "/" + path.lstrip("/").split("/")[0]


def _writable(table: list[Row]) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = {("/dev", "device"), ("/dev/shm", "write"), ("/dev/mqueue", "write"),
                                    ("/proc", "write")}
    for row in table:
        kind, target = row["kind"], row["target"]
        if kind == "cache" or (kind == "tmpfs" and target != "/" and "ro" not in row["attrs"]):
            found.add((target, "write"))
        elif kind == "bind" and target.startswith("/dev/"):
            continue
        elif kind == "bind" and "ro" not in row["attrs"]:
            found.add((target, "write"))
    return found
