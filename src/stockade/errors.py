"""Every public error and every stable code.

Owns: the exception types and the one-line form of an error. The table of codes is loaded by the first
error: a start that has none does not pay for it.
Fails closed: an error never carries an environment value, and a code that the table
does not know still gives exit status 125, never success.
Read next: ``codes.py``, ``outcomes.py``, ``stockade.decision``.
"""

from __future__ import annotations

import errno
import os

from stockade.light import Iterable, Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from stockade.codes import Code
    from stockade.outcomes import CommandFailed as CommandFailed
    from stockade.outcomes import TimedOut as TimedOut

EXIT_REFUSED = 125
EXIT_TIMED_OUT = 124
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


TRANSIENT_CODES = frozenset({"transient", "resource", "mount_stuck", "start_timed_out", "nest_busy"})


def _one_line(text: str) -> str:
    """Escape control characters: a file name must not write a second line into a log."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode("ascii")
                   for c in text)


def _known(code: str) -> Code | None:
    from stockade.codes import CODES

    return CODES.get(code)


class Error(Exception):
    """Base of all errors of this package.

    Args: code: a key of ``stockade.codes.CODES``; message: ``what failed on which object: got X, expected Y``;
    hint: what the reader can do (default: the code's own hint).
    """

    _fields: ClassVar[tuple[str, ...]] = ("code", "message", "hint")

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        self.code = code
        self.message = _one_line(message)
        known = _known(code)
        self.hint = _one_line(hint) if hint is not None else (known.hint if known else "")
        Exception.__init__(self, code, message)

    @property
    def exit_status(self) -> int:
        """Exit status of ``stockade run`` for this error."""
        known = _known(self.code)
        return known.exit if known else EXIT_REFUSED

    def __str__(self) -> str:
        tail = f" (hint: {self.hint})" if self.hint else ""
        return f"{self.code}: {self.message}{tail}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data for ``--json`` output."""
        return {"code": self.code, "message": self.message, "hint": self.hint}

    def __reduce__(self) -> tuple[Any, ...]:
        # The default of exceptions calls the class with ``args`` and loses keyword state,
        # which breaks the error on its way out of a worker process.
        return _rebuild, (type(self), {name: getattr(self, name) for name in self._fields})


def _rebuild(kind: type[Error], fields: dict[str, Any]) -> Error:
    return kind(**fields)


class ConfigError(Error):
    """A request, profile, configuration or policy file is wrong; nothing was started.

    Args: path, line: the file and the line, where there is one (the message names them, too).
    """

    _fields = ("code", "message", "hint", "path", "line")

    def __init__(self, code: str, message: str, *, hint: str | None = None, path: str | None = None,
                 line: int | None = None) -> None:
        super().__init__(code, message, hint=hint)
        self.path = path
        self.line = line


class Refused(Error):
    """The request is understood and will not be run as asked.

    Args: reasons: one line each, in the order of the decision; missing: promise ids that this
    host does not keep; remedy: what changes the answer on this host; transient: worth a retry;
    cause: what the launcher was refused (its code, step, object, errno), where it was one.
    """

    _fields = ("code", "message", "hint", "reasons", "missing", "remedy", "transient", "cause")

    def __init__(self, code: str, message: str, *, hint: str | None = None,
                 reasons: Iterable[str] = (), missing: Iterable[str] = (),
                 remedy: str | None = None, transient: bool | None = None,
                 cause: Mapping[str, Any] | None = None) -> None:
        super().__init__(code, message, hint=remedy if hint is None else hint)
        self.cause = dict(cause) if cause else None
        self.reasons = tuple(reasons)
        self.missing = tuple(missing)
        self.remedy = remedy if remedy is not None else self.hint
        self.transient = code in TRANSIENT_CODES if transient is None else transient

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data for ``--json`` output."""
        return {**super().to_json(), "reasons": list(self.reasons), "missing": list(self.missing),
                "remedy": self.remedy, "transient": self.transient, "cause": self.cause}


class LaunchFailed(Error):
    """The launcher could not be started, or ended without a record.

    Args: record: the launcher's last record, if there was one; returncode: its exit status.
    """

    _fields = ("code", "message", "hint", "record", "returncode")

    def __init__(self, code: str, message: str, *, hint: str | None = None,
                 record: Mapping[str, Any] | None = None, returncode: int | None = None) -> None:
        super().__init__(code, message, hint=hint)
        self.record = dict(record) if record is not None else None
        self.returncode = returncode


class AuditUnavailable(Error):
    """A record that policy requires could not be written; nothing was started."""


class Denied(Error, PermissionError):
    """A rule of the box denies one access. ``rule`` says which, ``grant`` what would allow it."""

    _fields = ("code", "message", "hint", "rule", "grant", "path")

    def __init__(self, code: str, message: str, *, hint: str | None = None,
                 rule: str, grant: str | None = None, path: str | None = None) -> None:
        Error.__init__(self, code, message, hint=hint)
        OSError.__init__(self, errno.EACCES, message)
        self.filename = path
        self.path = path
        self.rule = rule
        self.grant = grant

    __str__ = Error.__str__


class DowngradeWarning(UserWarning):
    """A request ran with fewer promises than asked, because somebody said it may."""


# Which limit of the caller an error number speaks of, and the shell's letter for it.
# Source: getrlimit(2), "ERRORS" of fork(2), open(2), write(2), mmap(2).
_LIMITS = {errno.EFBIG: ("RLIMIT_FSIZE", "f"), errno.EMFILE: ("RLIMIT_NOFILE", "n"),
           errno.EAGAIN: ("RLIMIT_NPROC", "u"), errno.ENOMEM: ("RLIMIT_AS", "v")}
_SHORTAGES = frozenset({*_LIMITS, errno.ENFILE, errno.ENOSPC, errno.EDQUOT})


def shortage(err: OSError, what: str) -> Refused | None:
    """Return the transient refusal for a shortage in front of ``what``; None for any other error.

    It is in this module because it is loaded: without descriptors nothing can be imported.
    """
    if err.errno not in _SHORTAGES:
        return None
    limit, hint = limit_of(err.errno)
    name = errno.errorcode[err.errno]
    return Refused("resource", f"{what}: the kernel was short of something ({name}{limit and f'; {limit}'})", hint=hint)


def limit_of(number: int) -> tuple[str, str | None]:
    """Return ``RLIMIT_X is N`` and a hint for an error number; nothing where no limit is set."""
    name, letter = _LIMITS.get(number, ("", ""))
    value = _soft_limit(name)
    if value is None:
        return "", None
    return f"{name} is {value}", f"raise the limit (ulimit -{letter}), or try again with less at work"


def _soft_limit(name: str) -> int | None:
    try:
        if name == "RLIMIT_NOFILE":
            value = os.sysconf("SC_OPEN_MAX")  # needs no descriptor, as the import below does
        else:
            import resource

            value = resource.getrlimit(getattr(resource, name))[0]
    except (AttributeError, ImportError, OSError, ValueError):
        return None
    return value if value >= 0 else None  # -1 is RLIM_INFINITY


# For E2BIG. Source: execve(2), "Limits on size of arguments and environment".
TOO_LONG = ("give fewer or shorter arguments, through a file or standard input: one may have 131071 bytes, and all "
            "with the environment a quarter of the stack limit (ulimit -s)")


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the known name that a misspelt one was probably meant to be.

    Dashes in front do not count: every option has them, and they would make any two alike.
    """
    import difflib  # only errors need it; it costs start-up time

    known = {item.lstrip("-"): item for item in sorted(set(names))}
    found = difflib.get_close_matches(name.lower().lstrip("-"), known, n=1, cutoff=0.6)
    return known[found[0]] if found else None


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint that names the known name closest to ``name``, or the known ones."""
    known = sorted(set(names))
    close = closest(name, known)
    if close is not None:
        return f"did you mean {close!r}?"
    return "known: " + ", ".join(known[:40]) if known else "none is known"


def __getattr__(name: str) -> Any:
    """Load the errors that are also errors of ``subprocess`` with it, on first use (PEP 562)."""
    if name not in ("TimedOut", "CommandFailed"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stockade import outcomes

    return getattr(outcomes, name)
