"""Step (2) for class first_party: proven by an installed distribution, never claimed.

Owns: which distributions count, and the proof: the program is a console script of one of them, every
file of its RECORD is as it was installed, and argv *and* environment are what the distribution's own
``derive()`` returns (entry points of the group ``stockade.first_party``). Fails closed: whatever cannot
be resolved, stands twice on the import path, or is one variable more, is not first party
(``caller_unproven``). Read next: ``resolve.py``, ``stockade.decision`` (D3), ``docs/decision.md``.
"""

from __future__ import annotations

import os
from _thread import allocate_lock

from stockade.errors import ConfigError, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.metadata import Distribution, EntryPoint
    from typing import Any

    from stockade.rules.request import Request

GROUP = "stockade.first_party"
# The algorithms of RECORD that are no longer guessable. Source: PyPA, "Recording installed projects".
_HASHES = frozenset({"sha256", "sha384", "sha512"})

_registered = {"stockade"}
_lock = allocate_lock()


class _Unproven(Exception):
    """Why a distribution does not vouch for a request."""


def register_first_party(distribution: str) -> None:
    """Let the console scripts of an installed distribution be started as class ``first_party``.

    Args: distribution: its name, as on the package index. Call it once, at the start of the program.
    Raises: ConfigError ``first_party_unknown``.
    """
    try:
        _installed(_normal(distribution))
    except _Unproven as why:
        raise ConfigError("first_party_unknown", f"distribution {distribution!r}: {why}") from None
    with _lock:
        _registered.add(_normal(distribution))


def prove(request: Request) -> str:
    """Return the origin of the class: the distribution that vouches for the request.

    Raises: Refused ``caller_unproven``.
    """
    program = request.argv[0]
    whys = []
    for name in sorted(_registered):
        try:
            _vouch(_installed(name), request)
        except _Unproven as why:
            whys.append(f"{name}: {why}")
        else:
            return f"distribution {name}"
    raise Refused("caller_unproven", f"caller class 'first_party' of {program!r}: {'; '.join(whys)}", reasons=whys)


def _vouch(found: Distribution, request: Request) -> None:
    record = _record(found)
    _console_script(found, record, request.argv[0])
    environ = {**request.environ(), **dict(request.set_env)}
    loader = next(_loaders(environ), None)
    if loader is not None:
        raise _Unproven(f"variable {loader} makes programs load other code")
    _unchanged(record)
    lines = [_derived(entry, record) for entry in found.entry_points if entry.group == GROUP]
    if not any(argv == request.argv for argv, _ in lines):
        raise _Unproven(f"no line of {GROUP} has these arguments")
    if not any(argv == request.argv and env == environ for argv, env in lines):
        raise _Unproven("the environment is not the derived one: " + _first_difference(request, environ, lines))


def _first_difference(request: Request, environ: dict[str, str], lines: list[Any]) -> str:
    """Name a variable, never its value."""
    env = next(env for argv, env in lines if argv == request.argv)
    return next((f"variable {name}" for name in sorted({*environ, *env}) if environ.get(name) != env.get(name)), "")


def _normal(name: str) -> str:
    import re

    return re.sub(r"[-_.]+", "-", name).lower()  # PyPA, "Names and normalization"


def _installed(name: str) -> Distribution:
    """Return the one distribution of that name; two are a squatter and its victim, in some order."""
    from importlib.metadata import Distribution

    found = {os.path.realpath(str(getattr(item, "_path", ""))): item for item in Distribution.discover(name=name)}
    if len(found) != 1:
        raise _Unproven(f"{len(found)} distributions of that name on the import path, expected one")
    place, item = next(iter(found.items()))
    try:
        here = os.getcwd()
    except OSError:
        here = ""
    if os.path.dirname(place) == here:
        raise _Unproven("it lies in the working directory")
    return item


def _record(found: Distribution) -> dict[str, tuple[str, str]]:
    """Return the files of RECORD by their real path: algorithm and digest."""
    import csv

    text = found.read_text("RECORD")
    if not text:
        raise _Unproven("it has no RECORD of its files")
    rows: dict[str, tuple[str, str]] = {}
    for row in csv.reader(text.splitlines()):
        path, given = (*row, "", "")[:2]
        algorithm, _, digest = given.partition("=")
        if digest:
            rows[os.path.realpath(str(found.locate_file(path)))] = algorithm, digest
    return rows


def _console_script(found: Distribution, record: dict[str, tuple[str, str]], program: str) -> None:
    """Check that a program is a console script that was installed with the distribution."""
    real = os.path.realpath(program)
    if not os.path.isabs(program):
        raise _Unproven("a program without its path may be another one")
    names = {entry.name for entry in found.entry_points if entry.group == "console_scripts"}
    if os.path.basename(real) not in names or real not in record:
        raise _Unproven("it is no console script of it (the interpreter form never is)")


def _unchanged(record: dict[str, tuple[str, str]]) -> None:
    for path in record:
        _check(path, record)


def _check(path: str, record: dict[str, tuple[str, str]]) -> None:
    """Check one file against its digest."""
    import hashlib
    from base64 import urlsafe_b64encode

    algorithm, digest = record.get(path, ("", ""))
    if algorithm not in _HASHES:
        raise _Unproven(f"file {path!r} has no digest in RECORD that counts")
    try:
        with open(path, "rb") as stream:
            has = hashlib.file_digest(stream, algorithm).digest()
    except OSError:
        raise _Unproven(f"file {path!r} cannot be read") from None
    if urlsafe_b64encode(has).rstrip(b"=").decode() != digest:
        raise _Unproven(f"file {path!r} is not as it was installed")


def _derived(entry: EntryPoint, record: dict[str, tuple[str, str]]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return argv and environment of one ``derive()``; only code of the distribution itself is run for it."""
    import importlib.util

    name = ""
    try:
        for part in entry.module.split("."):
            name = f"{name}.{part}" if name else part
            spec = importlib.util.find_spec(name)
            if spec is None or not spec.origin or os.path.realpath(spec.origin) not in record:
                # A package of that name in the working directory comes first on most import paths.
                raise _Unproven(f"module {name} of {GROUP} is not a file of the distribution")
            importlib.import_module(name)
        argv, env = entry.load()()
        return tuple(map(str, argv)), {str(key): str(value) for key, value in dict(env).items()}
    except _Unproven:
        raise
    except Exception as err:
        raise _Unproven(f"{entry.name} of {GROUP} does not work ({type(err).__name__})") from err


def _loaders(environ: dict[str, str]) -> Iterator[str]:
    from stockade.rules.load import load_list
    from stockade.rules.match import matches

    patterns = [entry.pattern.upper() for entry in load_list("env-injection")]
    return (name for name in environ if any(matches(name.upper(), pattern) for pattern in patterns))
