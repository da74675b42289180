"""``stockade run`` and ``stockade shell``.

Owns: the line before the start, what is said and written after the end, and the exit status. When
nothing has to be done after the end, this process becomes the launcher and no Python stays.
Fails closed: a receipt that cannot be delivered is found out before the start; without a launch
record no receipt is shown. Read next: ``stockade.process.refusals``, ``stockade.process.attend``.
"""

from __future__ import annotations

import os
import sys

from stockade.cli import request as wanted
from stockade.cli.grammar import Parsed
from stockade.cli.output import tell
from stockade.errors import ConfigError, Error
from stockade.light import Iterator
from stockade.process import becoming
from stockade.process.prepare import Prepared
from stockade.process.refusals import prepare_to_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.cli.githints import Advice
    from stockade.cli.receipts import Sink
    from stockade.process.attend import Ended


def run(parsed: Parsed) -> int:
    """Run a command in a box and end as it ended."""
    check_quoted(parsed.words)
    return _run(parsed, parsed.words, hints=True)


def check_quoted(words: tuple[str, ...]) -> None:
    """Answer a command line that was quoted as a whole, which no PATH has a name for.

    Raises: ConfigError ``not_found``.
    """
    name = words[0]
    if len(words) > 1 or len(name.split()) < 2:
        return
    from shutil import which

    if which(name) is None:
        raise ConfigError("not_found", f"{name!r}: got one word with spaces, expected a program and its arguments",
                          hint=f"leave the quotes out, or say: sh -c {name!r}")


def shell(parsed: Parsed) -> int:
    """Start the user's shell in a box."""
    program = os.environ.get("SHELL", "")
    if not program.startswith("/"):
        import pwd

        program = pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    return _run(parsed, (program,), hints=False)


def _run(parsed: Parsed, argv: tuple[str, ...], *, hints: bool) -> int:
    sink = _sink(parsed.text("receipt"))
    prepared = prepare_to_start(wanted.request(parsed, argv))
    quiet = parsed.flag("quiet")
    watched = os.isatty(2) and not quiet
    before(prepared, parsed, watched=watched)
    if prepared.compiled is None:
        return _off(prepared, sink)
    advice = None if quiet or not hints else _advice(prepared, argv)
    if sink is None and not watched and advice is None and not becoming.must_stay(prepared):
        _flush()
        becoming.become(prepared, quiet=quiet)
    from stockade.process import attend

    ended = attend.attend(prepared)
    if ended.error is not None:
        return not_started(ended.error, sink, told=ended.told)
    again = _again(parsed, prepared) if watched and hints and ended.status else ""
    for line in () if quiet else _lines(ended, advice, watched=watched, hints=hints, again=again):
        tell(line)
    return finish(sink, ended)


def _advice(prepared: Prepared, argv: tuple[str, ...]) -> Advice | None:
    """Return the hint that waits for the end; only git has one, and nobody else pays for the module."""
    if prepared.compiled is None or os.path.basename(argv[0]) != "git":
        return None
    from stockade.cli.githints import advice

    return advice(argv, prepared.compiled)


def _again(parsed: Parsed, prepared: Prepared) -> str:
    from stockade.cli.again import learn_line

    return learn_line(parsed, prepared)


def _sink(target: str | None) -> Sink | None:
    if target is None:
        return None
    from stockade.cli.receipts import open_sink

    return open_sink(target)


def before(prepared: Prepared, parsed: Parsed, *, watched: bool) -> None:
    """Say what is about to run: the tier on a terminal, what was taken away anywhere."""
    if parsed.flag("quiet"):
        return
    if watched or parsed.flag("verbose"):
        tell(headline(prepared))
    else:
        # A weaker box is never silent, also where nobody watches: a log may be all there is.
        less = downgrade(prepared)
        if less:
            tell(less)
    if parsed.flag("verbose"):
        for name, item in prepared.decision.values.items():
            value = " ".join(map(str, item.value)) if isinstance(item.value, (list, tuple)) else item.value
            tell(f"{name} {'-' if value in (None, '') else value} ({item.origin})")
    for note in unpicked(prepared):
        tell(note)
    for note in prepared.compiled.notes if prepared.compiled else prepared.resolved.notes:
        tell(note)


def unpicked(prepared: Prepared) -> Iterator[str]:
    """Yield a line about a tool that has a profile and did not get it, because the workspace chose its name.

    Which do not: ``stockade.rules.picking``.
    """
    argv, resolved = prepared.resolved.request.argv, prepared.resolved
    if resolved.profiles or resolved.values["profile"].origin != "none" or prepared.compiled is None:
        return
    tool = argv[2] if len(argv) > 2 and argv[1] == "-m" else os.path.basename(argv[0])
    from stockade.rules.load import profile_for

    name = profile_for(tool)
    if name is not None:
        yield (f"{resolved.tier} without profile {name}: a program of the workspace does not pick it; "
               f"--profile {name} gives it")


def headline(prepared: Prepared) -> str:
    """Return the line ``strict · profile npm · net host · 19 promises kept``."""
    resolved, decision = prepared.resolved, prepared.decision
    if prepared.compiled is None:
        from stockade.process.downgrade import text

        around = f"in the box around, {decision.effective_tier or 'unknown'}"
        where = "no box" if decision.kind == "unconfined" else around
        return text(prepared) or f"{resolved.tier} · {where} · the environment is filtered as at {decision.env_tier}"
    parts = [str(resolved.tier)]
    if resolved.profiles:
        parts.append(f"profile {' '.join(resolved.profiles)}")
    parts.append(f"net {resolved.net}")
    plan, lost = prepared.compiled.plan, lost_by(prepared)
    rows = [row for row in plan["promises"] if row["state"] != "not_kept"
            and not (row["ns"] and plan["backend"] == "landlock")]
    parts.append(f"{sum(row['id'] not in lost for row in rows)} promises kept")
    return " · ".join([*parts, *given_up(prepared)])


def given_up(prepared: Prepared) -> list[str]:
    """Return what the box lacks because somebody said it may: ``waived A B``, ``missing C``."""
    if prepared.compiled is None:
        return []
    states = {row["id"]: row["state"] for row in prepared.compiled.plan["promises"]}
    lost = lost_by(prepared)
    waived = [name for name in lost if states[name] == "waived"]
    found = [("waived", sorted(waived)), ("missing", [name for name in lost if name not in waived])]
    return [f"{word} {' '.join(names)}" for word, names in found if names]


def lost_by(prepared: Prepared) -> dict[str, str]:
    """Return the promises of the tier that this start does without: id -> why."""
    from stockade.process.downgrade import lost

    return lost(prepared)


def downgrade(prepared: Prepared) -> str:
    """Return the line about a box that keeps less than its tier; empty when it keeps all."""
    if prepared.compiled is None:
        from stockade.process.downgrade import text

        return text(prepared)
    lost = given_up(prepared)
    return f"accepted: less than {prepared.resolved.tier}: {', '.join(lost)}" if lost else ""


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _off(prepared: Prepared, sink: Sink | None) -> int:
    """No box of its own. With a receipt or a time limit this process waits, else it becomes the command."""
    from stockade.errors import TimedOut
    from stockade.process import off

    if sink is None and "wall_ms" not in prepared.resolved.limits:
        _flush()
        off.become(prepared)
    from stockade.process.attend import Ended

    try:
        done = off.attend(prepared)
    except TimedOut as error:
        return finish(sink, Ended(status=error.exit_status, receipt=error.receipt))
    return finish(sink, Ended(status=done.returncode, receipt=done.receipt))


def not_started(error: Error, sink: Sink | None, *, told: bool) -> int:
    if not told:
        tell(f"refused: {error}")
    if sink is not None:
        sink.refused(error)
    return error.exit_status


def _lines(ended: Ended, advice: Advice | None, *, watched: bool, hints: bool, again: str) -> Iterator[str]:
    """Yield what is said after the end: on a terminal what the receipt holds, anywhere losses and an exact hint."""
    exact = advice.after(ended.status) if advice is not None else ""
    if ended.receipt is not None:
        from stockade.cli.receipts import after, lost

        yield from after(ended.receipt, hints=hints and not exact, again=again) if watched else lost(ended.receipt)
    if exact:
        yield exact


def finish(sink: Sink | None, ended: Ended) -> int:
    """Deliver the receipt, then end as the command did."""
    if sink is not None and ended.receipt is not None:
        sink.write(ended.receipt)
    if ended.status >= 0:
        return ended.status
    from stockade.cli import die_by

    return die_by(-ended.status)
