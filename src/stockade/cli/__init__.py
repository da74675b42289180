"""The command line: ``stockade``.

Owns: the way from words to a handler, the exit status of failures, and one-line errors. Handlers
live in one module each and are loaded when they are called: ``stockade run`` pays for itself alone.
Fails closed: every failure of Stockade itself is 125 for ``run`` and ``shell`` and 2 elsewhere,
an unforeseen one too; it is never the status 0 or 1 of an answer.
Read next: ``commands.py`` (what there is), ``run.py``.
"""

from __future__ import annotations

import gc
import os
import sys

from stockade.cli import grammar
from stockade.cli.commands import LATER, ROOT
from stockade.cli.grammar import Command, Parsed
from stockade.errors import Error, Refused, shortage
from stockade.light import Callable, Sequence

NAME = "stockade"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if None in (sys.stdin, sys.stdout, sys.stderr):
        from stockade.cli.output import open_closed

        open_closed()
    command, status = _answer(words)
    lost = unwritten()
    return status if lost is None else fail(lost, command)


def _answer(words: list[str]) -> tuple[Command, int]:
    """Run one command line; returns the command that it was, and the exit status."""
    command, path = ROOT, NAME
    try:
        command, path, rest = find(words)
        parsed = grammar.parse(command, rest, path)
        if parsed.flag("help"):
            from stockade.cli.helptext import show

            return command, show(command, path)
        return command, _root(parsed) if command is ROOT else _call(command, parsed)
    except KeyboardInterrupt:
        from signal import SIGINT

        return command, die_by(SIGINT)
    except Error as error:
        return command, fail(error, command)
    except OSError as error:
        return command, _system_fault(error, command, path)
    except Exception as error:
        return command, _unforeseen(error, command, str(error))


def _system_fault(error: OSError, command: Command, path: str) -> int:
    # EAGAIN is no shortage here: it comes from a standard stream that does not block.
    short = None if isinstance(error, BlockingIOError) else shortage(error, path)
    # What could not be printed is still in the buffer, so that it fails again.
    known = (unwritten() if error.filename is None else None) or short
    if known is not None:
        return fail(known, command)
    return _unforeseen(error, command, f"{os.strerror(error.errno)}" if error.errno else str(error))


def unwritten() -> Error | None:
    """Write what was printed; returns the error when nobody takes it, and drops it.

    Else the interpreter would find out at its end, with a status of its own.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        from errno import errorcode

        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
        return Error("output_failed", f"standard output: cannot be written ({errorcode.get(error.errno or 0, 'EIO')})")
    return None


def find(words: list[str]) -> tuple[Command, str, list[str]]:
    """Return the command that the first words name, its full name, and the words behind it.

    Raises: ConfigError ``unknown_command``.
    """
    if words[:1] == ["help"] and not any(word.startswith("-") for word in words):
        return _helped(words[1:])
    command, path, rest = ROOT, NAME, words
    while command.commands and rest and not rest[0].startswith("-"):
        command = grammar.choose(command, rest[0], LATER if command is ROOT else (), path)
        path, rest = f"{path} {command.name}", rest[1:]
    return command, path, rest


def _helped(words: list[str]) -> tuple[Command, str, list[str]]:
    """Read ``help run`` as ``run --help``."""
    command, path, rest = find(words) if words[:1] != ["help"] else find(["help", "--help"])
    if rest and rest != ["--help"]:
        raise grammar.usage(f"{NAME} help: got {rest[0]!r}, expected nothing more behind {path!r}")
    return command, path, ["--help"]


def _root(parsed: Parsed) -> int:
    if parsed.flag("version"):
        from stockade import __version__

        print(f"{NAME} {__version__}")
        return 0
    from stockade.cli.helptext import show

    show(ROOT, NAME, stream=sys.stderr)
    return 2


def _call(command: Command, parsed: Parsed) -> int:
    if not command.handler:
        from stockade.cli.helptext import show

        show(command, parsed.path, stream=sys.stderr)
        return 2
    if sys.platform != "linux":
        from stockade.elsewhere import refused

        raise refused(parsed.path)

    module, _, function = command.handler.partition(":")
    # Nothing here lives long enough to be collected, and looking for it costs 3 ms of a start.
    gc.disable()
    if command.failure == 2:
        import signal

        # `stockade plan show X | head` ends quietly, as any filter does.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    handler: Callable[[Parsed], int] = getattr(__import__(f"{__name__}.{module}", fromlist=(function,)), function)
    return handler(parsed)


def fail(error: Error, command: Command) -> int:
    """Print the one line of an error and return the exit status of the command for it."""
    from stockade.cli.output import tell

    # Commands of JSON answer errors on standard error as well: standard output holds answers only.
    tell(f"refused: {error}" if isinstance(error, Refused) else str(error))
    return error.exit_status if command.failure == 125 else command.failure


def _unforeseen(error: Exception, command: Command, reason: str) -> int:
    """Answer a fault that nobody thought of: still one line, still no status of an answer."""
    from stockade.cli.output import tell

    if os.environ.get("STOCKADE_LOG") == "debug":
        import traceback

        traceback.print_exception(error)
    name = getattr(error, "filename", None)
    tell(str(Error("internal", f"{type(error).__name__}{f' on {name!r}' if name else ''}: {reason}")))
    return command.failure


def die_by(number: int) -> int:
    """End this process by a signal, as the command did; returns only if the signal is blocked.

    No core: it would hold the caller's environment. A limit of 1 and not 0: a piped handler is
    started at 0 as well (core(5)).
    """
    import resource
    import signal

    try:
        sys.stdout.flush()
        if resource.getrlimit(resource.RLIMIT_CORE)[1] != 0:
            resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except (OSError, ValueError):
        pass
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number
