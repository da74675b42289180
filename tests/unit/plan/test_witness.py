"""A warm plan is used only while everything it was made from is as it was."""

from __future__ import annotations

import os
from pathlib import Path

from stockade.plan.witness import Witness


def test_a_new_name_a_changed_file_and_a_changed_variable_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "config"
    env = {"PATH": "/bin"}

    def made() -> Witness:
        witness = Witness()
        witness.saw(str(path), str(tmp_path))
        witness.read_env(env, ["PATH", "CARGO_HOME"])
        return witness

    witness = made()
    assert witness.still_true(env)
    assert not witness.still_true({"PATH": "/usr/bin"})
    assert not witness.still_true({"PATH": "/bin", "CARGO_HOME": "/c"})
    path.write_text("x")
    assert not witness.still_true(env)
    witness = made()
    os.utime(path, ns=(1, 1))
    assert not witness.still_true(env)


def test_another_mount_table_is_noticed() -> None:
    witness = Witness()
    witness.saw_mounts("not the table of this process")
    assert not witness.still_true({})
