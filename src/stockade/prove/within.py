"""The program between two boxes: it runs in the outer one and starts the attack program in a box inside.

Owns: nothing but that; started as a file, never imported. Arguments: a descriptor from which it reads one
JSON job, and one on which it tells, a JSON line each, the receipt at the start and at the end, or the
refusal. The attack program has its standard streams. Fails closed: whatever goes wrong, no word comes.
Read next: ``nesting.py``.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def tell(descriptor: int, what: dict[str, Any]) -> None:
    os.write(descriptor, json.dumps(what).encode() + b"\n")


def main() -> None:
    source, told = (int(word) for word in sys.argv[1:])
    with open(source, "rb") as stream:
        job = json.load(stream)
    sys.path.insert(0, job["lib"])
    from stockade.errors import Error
    from stockade.prove import sessions

    try:
        process = sessions.started(job["argv"], job["state"], {**job["options"], "stdin": None, "stdout": None})
    except Error as error:
        tell(told, {"code": error.code, "message": error.message})
        sys.exit(1)
    tell(told, process.receipt.to_json())
    process.wait()
    tell(told, process.receipt.to_json())


if __name__ == "__main__":
    main()
