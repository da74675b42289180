"""What the launcher says of itself, and a launcher that says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from stockade.errors import LaunchFailed
from stockade.process import _exec


def test_a_launcher_that_hangs_or_fails_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "stockade-launch"
    monkeypatch.setattr(_exec, "launcher_path", lambda: str(fake))
    monkeypatch.setattr(_exec, "ANSWER_S", 0.2)
    for script, words in (("exec sleep 60", "got no answer within 0.2 s"), ("exit 3", "got status 3")):
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
        with pytest.raises(LaunchFailed, match=words) as caught:
            _exec.launcher_facts()
        assert caught.value.code == "launch_failed"
