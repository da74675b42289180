"""What this package answers where there is no Linux: a typed refusal for every request.

Owns: the stand-ins that ``stockade`` and the command line use on macOS, Windows and others, where
a wheel holds no launcher. They load nothing that those systems lack, so a program that imports
Stockade starts there and learns at its first request. Fails closed: not even tier ``off`` starts.
Read next: ``stockade.__init__``, scripts/hatch_build.py.
"""

from __future__ import annotations

import sys

from stockade.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.host.active import Active

# These are types: a program may name them in an annotation or ask isinstance.
_TYPES = frozenset({"Completed", "Popen", "Receipt", "Sandbox"})


def refused(what: str) -> Refused:
    """Return the refusal of a request or command on this system."""
    return Refused("no_backend", f"{what}: got the system {sys.platform!r}, expected Linux",
                   hint="run it on Linux on x86_64 or aarch64: a virtual machine, a container, WSL2")


def stand_in(name: str) -> Any:
    """Return what a public name is on this system."""
    if name in _TYPES:
        return type(name, (), {"__init__": _refuse(name), "__doc__": f"``stockade.{name}`` on this system."})
    return active if name == "active" else _refuse(name)


def active() -> Active:
    """Return ``unknown``: what confines a process can be asked of Linux alone."""
    from stockade.host.active import Active

    return Active(where="unknown")


def _refuse(name: str) -> Any:
    def refuse(*_given: object, **_named: object) -> None:
        raise refused(f"stockade.{name}")

    return refuse
