"""tty.injection: nothing inside can type into the terminal it shares with the caller."""

from __future__ import annotations

import json

from requirements import at_tiers, requirement
from support.actors import Actor
from support.terminal import Terminal


def _report(text: str) -> dict[str, str]:
    start = text.index("{")
    return dict(json.loads(text[start:text.index("}", start) + 1]))


@requirement("tty.injection", "C.tiocsti_high_bits")
@at_tiers("tty.injection")
def test_no_character_is_pushed_into_the_terminal(actor: Actor, tier: str) -> None:
    program = [str(actor.stage.bin / "tty")]
    with Terminal.bare(actor, program) as bare:
        got = _report(bare.read_until("}"))
        bare.wait()
    # On a kernel with dev.tty.legacy_tiocsti=0 the call is refused for everybody: EIO.
    assert {got["sti"], got["sti_high"]} <= {"ok", "EIO"} and got["linux"] in ("ENOTTY", "EPERM", "EINVAL", "ok")
    with Terminal.boxed(actor, program, tier=tier) as boxed:
        inside = _report(boxed.read_until("}"))
        assert boxed.wait() == 0
        left = boxed.pending_input()
    attacks = {name: text for name, text in inside.items() if not name.startswith("ok_")}
    assert {"sti", "sti_high", "linux"} <= set(attacks) and set(attacks.values()) == {"EPERM"}, attacks
    assert {text for name, text in inside.items() if name.startswith("ok_")} == {"ok"}
    assert left == 0, "characters wait in the terminal"


@requirement("tty.injection")
@at_tiers("tty.injection")
def test_the_receipt_names_the_terminal_filter(actor: Actor, tier: str) -> None:
    run = actor.run(["true"], tier=tier)
    assert run.state("tty.injection") == "kept"
