"""Places to ask from: namespaces of one's own, forged records, other people's sandboxes.

Owns: the command prefixes, and ``active`` (what the package says there). Everything is mounted in
a mount namespace of the command's own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from support.actors import PYTHON, Actor

SAY = ("import sys; sys.path.insert(0, sys.argv[1]); import json, stockade; a = stockade.active(); "
       "print(json.dumps([a.where, None if a.tier is None else str(a.tier), a.known, a.run_id]))")
# No capability, no new privileges and a filter, as every box has.
BARE_SETS = ["/usr/bin/setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--ambient-caps", "-all"]
# What the launcher mounts, made by somebody else; $1 is the file to show as the record.
FORGE = """
mount -t tmpfs none /run; mkdir /run/stockade
mount -t tmpfs -o nosuid,nodev,noexec,mode=0755 none /run/stockade
/usr/bin/python3 -I -c '
import json, os, socket, sys
record = json.loads(sys.argv[1])
if sys.argv[2] == "named":
    record["namespaces"] = {name: os.stat(f"/proc/self/ns/{name}").st_ino for name in ("user", "mnt", "pid")}
open("/run/stockade/box.json", "w").write(json.dumps(record))
socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).bind("/run/stockade/box.sock")
' "$RECORD" "$NAMED"
mount -o remount,bind,ro,nosuid,nodev,noexec /run/stockade
"""


def saying(actor: Actor) -> list[str]:
    """The command that prints where it is."""
    return [PYTHON, "-I", "-B", "-c", SAY, str(actor.stage.lib)]


def active(actor: Actor, before: Sequence[str] = (), **kw: Any) -> list[Any]:
    """Where the package says that a command is which was started that way."""
    done = actor.call([*before, *saying(actor)], **kw)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    return list(json.loads(done.stdout))


def filtered(actor: Actor) -> list[str]:
    """A filter that refuses nothing which anybody here calls, and no new privileges."""
    return [str(actor.stage.bin / "fault_loader"), "chroot:EPERM", "--"]


def own(*options: str) -> list[str]:
    """Namespaces of one's own in which one is root, as every account may make them."""
    return ["/usr/bin/unshare", "--user", "--map-root-user", "--mount", "--propagation", "private", *options, "--"]


def shell(script: str, last: str = 'exec "$@"') -> list[str]:
    """Do that first, then become what follows."""
    return ["/bin/sh", "-ec", f"{script}\n{last}", "sh"]
