"""Hosts without user namespaces: refused by a filter, or by a limit of a namespace of the test's own.

Owns the command prefixes and ``plain_plan``, a hand-made plan of backend ``landlock``.
"""

from __future__ import annotations

from typing import Any

from support.actors import Actor
from support.plans import small_plan
from support.where import shell

USERNS = "0x10000000:0x10000000"
ENOUGH = ["domain", "landlock_fs", "landlock_signal", "init_protected", "fds_closed", "env_filtered", "no_new_privs", "keyring", "caps_empty", "rlimits",
          "seccomp", "supervised"]


def filtered(actor: Actor) -> list[str]:
    """A filter that denies user namespaces, as container engines have it.

    Behind two more that deny nothing: filters are told apart by their number (docs/limitations.md), and other tests
    have one of their own.
    """
    loader, harmless = str(actor.stage.bin / "fault_loader"), ["chroot:EPERM", "--"]
    denies = [f"clone:EPERM:0:{USERNS}", f"unshare:EPERM:0:{USERNS}", "--"]
    return [loader, *harmless, loader, *harmless, loader, *denies]


def limited(actor: Actor) -> list[str]:
    """A limit of zero, in a namespace of the test's own and under the caller's own number."""
    mine = ["/usr/bin/unshare", "--user", f"--map-user={actor.uid}", f"--map-group={actor.gid}", "--keep-caps", "--"]
    zero = shell("echo 0 > /proc/sys/user/max_user_namespaces")
    return [*mine, *zero, "/usr/bin/setpriv", "--inh-caps", "-all", "--ambient-caps", "-all"]


HOSTS = {"filter": filtered, "limit": limited}


def plain_plan(actor: Actor, **changed: Any) -> dict[str, Any]:
    """A plan of backend landlock: everything may be read, the workspace written."""
    rules = [{"path": path, "access": access} for path, access in
             (("/", "read"), ("/dev/null", "device"), (actor.workspace, "write"))]
    promise = {"id": "fs.write_roots", "tiers": ["standard", "guarded", "strict"], "ns": False,
               "needs": [ENOUGH, ["keyring_refused" if fact == "keyring" else fact for fact in ENOUGH]], "state": None, "reason": None}
    plan = small_plan(actor) | {
        "backend": "landlock", "namespaces": [], "mounts": [], "guards": [], "cover_sockets": False, "persistence": [],
        "landlock": {"abi": 6, "scope_signal": True, "scope_abstract": True, "rules": rules},
        "seccomp": {"filter": "landlock-offline"}, "promises": [promise]}
    plan["env"] = plan["env"] | {"set": {}}
    return plan | changed
