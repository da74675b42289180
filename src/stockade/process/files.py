"""``Sandbox.check`` and ``Sandbox.open``: a harness's own file access under the rules of its box.

Owns: the words of a denial, the search for the grant that changes it, and opening on the host what
the box would open. Opening never goes back to the name: a file that exists is opened again from the
descriptor that was judged, a new one is made in the directory that was judged, exclusively. Fails
closed: what is another object in the box is not opened here, and what cannot be told is refused
(``access_unknown``). Read next: ``stockade.plan.access``.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import partial

from stockade.errors import ConfigError, Denied, Error, Refused, nearest
from stockade.frozen import dataclass, replace
from stockade.host.active import active
from stockade.host.probe import facts_at
from stockade.plan.access import MODES, PRIVATE, Access, Granted
from stockade.plan.boxview import BoxView, bare, listening
from stockade.plan.boxwalk import Found, Stop, Unknown
from stockade.plan.verdict import Judge, Verdict, accepted_with
from stockade.process.prepare import Prepared, prepare
from stockade.rules.request import build_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

    from stockade.plan.access import State
    from stockade.plan.compile import Compiled
    from stockade.process.sandbox import Sandbox

# A command that every host has: what is asked about is a place, not a program.
_COMMAND = "true"
_CHANGES = frozenset({"write", "create", "delete"})
_KEYWORDS = {"allow_socket": "sockets", "device": "devices"}
# How often a name may appear and vanish under our hands while a file is made.
_TRIES = 16
# Obstacles that no rule of the box made: the tree itself is like that.
_PLAIN = frozenset({errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
                    errno.ENOTEMPTY, errno.EINVAL})
_WORDS = {
    errno.ENOENT: "nothing of that name is in the box", errno.EEXIST: "the name exists already",
    errno.ENOTDIR: "a part of the path is no directory", errno.EISDIR: "the path names a directory",
    errno.ELOOP: "too many symbolic links", errno.ENAMETOOLONG: "the path or a name in it is too long",
    errno.ENOTEMPTY: "the directory is not empty", errno.EINVAL: "the path ends in a dot",
}
_REASONS = {
    "permission": "the permissions of the host deny it",
    "read_only": "the mount is read-only",
    "mount": "a mount of the box stands there, which cannot be removed",
    "noexec": "nothing can be executed from that mount",
    "landlock": "no rule of the box gives that right",
    "nodev": "devices cannot be opened there",
    "type": "the object is of another type",
    "private": "the box has an object of its own under that name",
}
_SOCKET = Verdict(allowed=False, rule="a socket of the host is out of reach unless granted", promise="ipc.sockets")

# The last plan that was asked about, with what was made of it. Replaced whole: safe between threads.
_last: tuple[Compiled, Judge] | None = None
_seen: tuple[Compiled, list[str], BoxView] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One path as it was asked about: ``text`` of the caller, ``place`` absolute in the box."""

    box: Sandbox
    prepared: Prepared
    view: BoxView
    text: str
    place: str


def check(box: Sandbox, path: Any, mode: str) -> State:
    """Answer ``Sandbox.check``."""
    if mode not in MODES:
        raise ConfigError("value_invalid", f"mode {mode!r}: not a mode of check", hint=nearest(str(mode), MODES))
    asked = _question(box, path)
    try:
        return _answer(asked, mode).state
    except Stop as stop:
        raise _denied(asked, mode, stop) from None


def _question(box: Sandbox, path: Any) -> Question:
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise ConfigError("path_invalid", f"path {type(path).__name__}: expected a path") from None
    if not text or "\0" in text:
        raise ConfigError("path_invalid", f"path {text!r}: got an empty path or NUL")
    prepared = prepare(replace(build_request([_COMMAND], **box.options()), ceiling=box._ceiling))
    compiled = prepared.compiled
    view = bare(prepared.request.cwd) if compiled is None else _view(compiled)
    cwd = view.cwd if compiled is None or compiled.cwd is None else compiled.cwd
    return Question(box=box, prepared=prepared, view=view, text=text, place=os.path.join(cwd, text))


def _view(compiled: Compiled) -> BoxView:
    """A view is asked many times while plan and sockets stay as they are; it holds no descriptor."""
    global _seen
    sockets, known = listening(), _seen
    if known is None or known[0] is not compiled or known[1] != sockets:
        known = _seen = (compiled, sockets, BoxView(compiled.plan, compiled.binds, sockets))
    return known[2]


def _answer(asked: Question, mode: str) -> Granted:
    try:
        with Access(asked.view) as access:
            return access.ask(asked.place, mode)
    except Unknown as unknown:
        raise _unknown(asked, unknown) from None


def _unknown(asked: Question, unknown: Unknown) -> Refused:
    return Refused("access_unknown", f"{asked.text!r}: {unknown}")


def obstacle(prepared: Prepared, path: str, mode: str) -> str | None:
    """Return what keeps a box from a path that its rows show: a mount of the host, bits, Landlock."""
    if prepared.compiled is None:
        return None
    try:
        with Access(_view(prepared.compiled)) as access:
            access.ask(path, mode)
    except Stop as stop:
        return _REASONS[stop.why] if stop.why in ("permission", "read_only", "landlock", "nodev") else None
    except Unknown:
        return None
    return None


# -- denials ---------------------------------------------------------------------------------------


def _denied(asked: Question, mode: str, stop: Stop) -> Denied:
    verdict = _verdict(asked, mode, stop)
    rule = verdict.rule if verdict.promise is None else f"{verdict.rule} ({verdict.promise})"
    grant = _grant(asked, mode, verdict)
    return Denied("denied", f"{mode} {asked.text!r}: {rule}", rule=rule, grant=grant, path=asked.text,
                  hint=f"Sandbox({grant})" if grant else "no option of a sandbox changes that")


def _verdict(asked: Question, mode: str, stop: Stop) -> Verdict:
    """Return the rule in the words of ``stockade why``; what no rule made is said as it is."""
    if stop.why == "socket":
        return replace(_SOCKET, grants=(("allow_socket", stop.place),))
    plain = stop.errno in _PLAIN and stop.errno != errno.ENOENT
    said = None if plain or stop.why in ("mount", "type", "noexec") else _judged(asked, mode, stop.place)
    if said is not None:
        return said
    rule = _REASONS.get(stop.why) or _WORDS.get(stop.errno) or os.strerror(stop.errno).lower()
    grants = (("read", stop.place), ("write", stop.place)) if stop.why == "permission" else ()
    return Verdict(allowed=False, rule=f"{rule}: {stop.place}" if stop.why != "permission" else rule, grants=grants)


def _judged(asked: Question, mode: str, place: str) -> Verdict | None:
    compiled = asked.prepared.compiled
    if compiled is None:
        return None
    try:
        verdict = _judge(asked.prepared, compiled).one(place, write=mode in _CHANGES)
    except OSError:
        return None  # it went away meanwhile
    return None if verdict.allowed else verdict


def _judge(prepared: Prepared, compiled: Compiled) -> Judge:
    """Gathering what the words come from costs as much as the plan: one plan is asked about many paths."""
    global _last
    known = _last
    if known is None or known[0] is not compiled:
        resolved = prepared.resolved
        known = _last = (compiled, Judge(resolved, facts_at(active(), resolved.state_home), compiled))
    return known[1]


def _grant(asked: Question, mode: str, verdict: Verdict) -> str | None:
    """Return the option that changes the answer: each one is tried before it is named."""
    for name, value in (*_smallest(asked, mode, verdict), *verdict.grants):
        # Reading is not answered with the right to change, nor changing with less.
        if name == ("read" if mode in _CHANGES else "write"):
            continue
        given = _tried(asked, mode, {_KEYWORDS.get(name, name): [value]})
        if given is not None:
            return ", ".join(f"{option}={words!r}" for option, words in given.items())
    return None


def _smallest(asked: Question, mode: str, verdict: Verdict) -> tuple[tuple[str, str], ...]:
    """Where a directory above is what is missing, the object itself is less to grant."""
    if not any(name in ("read", "write") for name, _ in verdict.grants) or not os.path.lexists(asked.place):
        return ()
    parent, name = os.path.split(asked.place.rstrip("/"))
    path = os.path.join(os.path.realpath(parent), name)
    return (("write" if mode in _CHANGES else "read", path),) if name not in ("", ".", "..") else ()


def _tried(asked: Question, mode: str, given: dict[str, list[str]]) -> dict[str, list[str]] | None:
    try:
        _answer(_question(asked.box._with(given), asked.place), mode)
    except Refused as error:
        more = accepted_with(error)
        return _tried(asked, mode, {**given, **more}) if more and "accept" not in given else None
    except (Stop, Error):
        return None
    return given


# -- opening ---------------------------------------------------------------------------------------


def open_file(box: Sandbox, path: Any, mode: str, buffering: int, encoding: str | None, errors: str | None,
              newline: str | None) -> IO[Any]:
    """Answer ``Sandbox.open``: the built-in does everything but find the file."""
    asked = _question(box, path)
    return open(asked.text, mode, buffering, encoding, errors, newline, opener=partial(_opener, asked))


def _opener(asked: Question, _path: str, flags: int) -> int:
    mode = "read" if flags & os.O_ACCMODE == os.O_RDONLY else "create" if flags & os.O_EXCL else "write"
    try:
        for _ in range(_TRIES):
            with Access(asked.view) as access:
                descriptor = _opened(access, asked, flags)
            if descriptor is not None:
                return descriptor
    except Stop as stop:
        raise _open_error(asked, mode, stop) from None
    except Unknown as unknown:
        raise _unknown(asked, unknown) from None
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), asked.text)


def _open_error(asked: Question, mode: str, stop: Stop) -> OSError:
    """What only the tree is to blame for is the built-in's own error; a hidden name is always a denial."""
    plain = stop.errno in _PLAIN and not stop.why
    if plain and (stop.errno != errno.ENOENT or _judged(asked, mode, stop.place) is None):
        return OSError(stop.errno, os.strerror(stop.errno), asked.text)
    return _denied(asked, mode, stop)


def _opened(access: Access, asked: Question, flags: int) -> int | None:
    """Return a descriptor; None: somebody was faster, look again."""
    found = access.walk.to(asked.place, follow=not flags & os.O_EXCL)
    if flags & os.O_EXCL or (found.node is None and flags & os.O_CREAT):
        _same(access.judge(asked.place, found, "create"))
        return _made(access, found, flags)
    if flags & os.O_ACCMODE != os.O_RDONLY:
        if found.node is not None and stat.S_ISDIR(found.node.mode):
            raise Stop(errno.EISDIR, found.path)
        _same(access.judge(asked.place, found, "write"))
    if flags & os.O_ACCMODE != os.O_WRONLY:
        _same(access.judge(asked.place, found, "read"))
    assert found.node is not None
    # The judged object itself, whatever its name leads to by now.
    return os.open(f"/proc/self/fd/{found.node.fd}", flags & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW))


def _same(granted: Granted) -> None:
    if granted.state == PRIVATE:
        raise Stop(errno.EACCES, granted.found.path, "private")


def _made(access: Access, found: Found, flags: int) -> int | None:
    assert found.parent.fd is not None
    try:
        descriptor = os.open(found.name, flags | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=found.parent.fd)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise Stop(errno.EEXIST, found.path) from None
        return None
    except FileNotFoundError:
        return None  # the directory went away
    owner = access.rights.new_owner(found.parent)
    if owner is not None:
        os.fchown(descriptor, *owner)
    return descriptor
