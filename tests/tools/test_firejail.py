"""Where a process in firejail is: in somebody else's sandbox, with its filter, without, and with a forged record."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from requirements import requirement
from support.actors import Actor
from support.where import active
from tools.support import Tool

FOREIGN = ["foreign", None, False, None]


@requirement("F.where_am_i")
@pytest.mark.parametrize("options", [(), ("--noprofile",), ("--noprofile", "--seccomp"), ("--noprofile", "--net=none"), ("--noprofile", "--nonewprivs")], ids=" ".join)
def test_firejail_is_foreign(actor: Actor, debian: Callable[..., Tool], options: tuple[str, ...]) -> None:
    debian("firejail", "firejail")
    assert active(actor, ["/usr/bin/firejail", "--quiet", *options, "--"]) == FOREIGN
