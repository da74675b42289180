"""A program may fork at any time, and its child has none of the threads that held a lock."""

from __future__ import annotations

import os
from typing import Any

import pytest

from stockade.host import probe
from stockade.process import prepare


@pytest.mark.parametrize("module", [probe, prepare], ids=lambda module: module.__name__)
def test_a_child_has_no_lock_that_its_parent_held(module: Any) -> None:
    with module._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if module._lock.acquire(timeout=5) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not module._lock.acquire(blocking=False), "the parent lost its own"
