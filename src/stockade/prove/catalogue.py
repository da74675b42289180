"""Which attack shows which promise.

Owns: the list of all attacks, made for one stage. A test holds it against the table of promises
both ways. Fails closed: success is read from outside (a file of the host, a signal that arrived, a
secret that only its owner had); an errno of the attack program counts alone only where nothing else
can be seen. Read next: ``on_files.py``, ``on_kernel.py``, ``model.py``.
"""

from __future__ import annotations

from stockade.prove import on_files, on_kernel, on_processes
from stockade.prove.model import Attack
from stockade.prove.stage import Stage


def attacks(stage: Stage) -> tuple[Attack, ...]:
    """Return every attack on a stage."""
    return (*on_processes.environment(stage), *on_files.attacks(stage), *on_processes.attacks(stage),
            *on_kernel.attacks(stage))
