"""Facts of the host are read, and stand still while nothing changes."""

from __future__ import annotations

import os
import sys

import pytest

from stockade.frozen import replace
from stockade.host import facts
from stockade.host.active import active


def gathered() -> facts.HostFacts:
    return facts.gather(6, sys.executable)


def test_facts_describe_this_process() -> None:
    found = gathered()
    assert found.uid == os.geteuid()
    assert found.kernel >= (3, 0)
    assert found.ram_bytes > 1 << 20
    assert len(found.boot_id) == 36
    assert found.to_json()["schema"] == "stockade.host.v1"


def test_the_key_of_an_answer_changes_with_each_thing_it_depends_on() -> None:
    found = gathered()
    assert found.key() == gathered().key()
    for change in ({"uid": 12345}, {"boot_id": "x"}, {"release": "9.9"}, {"lsm_profile": "p"},
                   {"container_id": "c"}, {"launcher": (1, 2, 3)}, {"has_sys_admin": not found.has_sys_admin},
                   {"standing": replace(found.standing, seccomp=2)}, {"standing": replace(found.standing, filters=9)},
                   {"standing": replace(found.standing, root=(1, 2))}, {"standing": replace(found.standing, label="x")},
                   {"mounts": ("/ /proc/x rw tmpfs",)}, {"sysctls": ("0",)}):
        assert replace(found, **change).key() != found.key()  # type: ignore[arg-type]


def test_a_variable_does_not_make_this_process_boxed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = active()
    monkeypatch.setenv("STOCKADE_BOX", "strict")
    monkeypatch.setenv("STOCKADE_RUN_ID", "01M8M6TPK1TN8B8H9V5EBZ4M80")
    assert active() == before
    assert before.where in ("outside", "foreign")


def test_a_sysctl_that_is_not_there_is_empty() -> None:
    assert facts.sysctl("user.max_user_namespaces").isdigit()
    assert facts.sysctl("no.such.thing") == ""


def test_a_container_is_known_by_what_was_bound_from_its_engine_and_the_engine_is_none() -> None:
    name = "0123456789abcdef" * 4
    inside = f"700 600 8:1 /var/lib/docker/containers/{name}/hostname /etc/hostname rw - ext4 /dev/sda1 rw"
    engine = f"700 600 0:70 / /var/lib/docker/overlay2/{name}/merged rw - overlay overlay rw"
    assert facts.container_id(inside) == name
    assert facts.container_id(engine) == facts.container_id("")
