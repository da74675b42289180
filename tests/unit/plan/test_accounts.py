"""Generated account files name the caller and nobody else of the machine."""

from __future__ import annotations

import os
import pwd

from stockade.plan import accounts


def test_passwd_names_the_caller_root_and_nobody_only() -> None:
    text = accounts.passwd(1234567, 1234567, "/home/x")
    names = [line.split(":")[0] for line in text.splitlines()]
    assert names == ["root", "user", "nobody"]
    assert "user:x:1234567:1234567::/home/x:/bin/sh" in text


def test_the_callers_own_entry_keeps_its_name() -> None:
    text = accounts.passwd(os.getuid(), os.getgid(), "/h")
    assert f"{pwd.getpwuid(os.getuid()).pw_name}:x:{os.getuid()}:" in text


def test_a_field_cannot_forge_a_second_entry() -> None:
    text = accounts.passwd(1234567, 1, "/home/x\nroot2:x:0:0::/:/bin/sh")
    assert len(text.splitlines()) == 3
    assert ":0:0:" not in text.splitlines()[1]


def test_names_are_not_looked_up_over_a_socket() -> None:
    assert "hosts: files dns" in accounts.nsswitch(network=True)
    assert "hosts: files\n" in accounts.nsswitch(network=False)
    assert "sss" not in accounts.nsswitch(network=True)
