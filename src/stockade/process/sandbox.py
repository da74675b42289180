"""``Sandbox``: one set of rules, started many times.

Owns: the frozen options of a box and the narrowing of them. Hashable and thread-safe: it holds
no state of its own; plans are remembered in ``prepare.py``. Fails closed: ``narrow`` adds a
ceiling to what the options come to, and refuses what is not less than that; a per-call option
never changes what the box may reach. Read next: ``rules/narrow.py``, ``files.py``.
"""

from __future__ import annotations

import os

from stockade.errors import ConfigError, nearest
from stockade.frozen import replace
from stockade.light import Iterable, Mapping
from stockade.paths import canonical
from stockade.process import api
from stockade.process.api import Completed, Popen, Wrapped
from stockade.process.options import Args, collected
from stockade.rules import narrow
from stockade.rules.names import check_tier
from stockade.rules.narrow import Ceiling
from stockade.rules.request import PROCESS_OPTIONS, REQUEST_OPTIONS, absolute, build_request, check_limits
from stockade.rules.resolve import resolve
from stockade.rules.tiers import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Literal, Never, Unpack, overload

    from stockade.process.aio import Spawn
    from stockade.process.options import (
        CallOptions,
        CallRunOptions,
        Class,
        Env,
        Path,
        Paths,
        Text,
        TierName,
        Words,
    )
    from stockade.rules.grants import Grant
    from stockade.rules.resolved import Resolved

    Mode = Literal["read", "write", "create", "delete", "exec", "connect"]

_NARROW = frozenset({"tier", "net", "hide", "write", "read", "limits"})
# Per call: options of the process, and two that change nothing of what the box may reach.
PER_CALL = PROCESS_OPTIONS | {"cwd", "set_env"}


class Sandbox:
    """A frozen box description: ``Sandbox(tier="strict", profile=["npm"], cwd=repo)``.

    Takes the box options of ``run``. Equal options make equal sandboxes.
    """

    __slots__ = ("_ceiling", "_hash", "_options")
    _ceiling: Ceiling | None
    _options: tuple[tuple[str, Any], ...]
    _hash: int

    def __init__(
        self, *, tier: TierName = "auto", caller: Class = "generated", profile: Paths = (), cwd: Path | None = None,
        read: Paths = (), write: Paths = (), hide: Paths = (), sockets: Paths = (), devices: Paths = (),
        allow: Words = (), net: Words | None = None, env: Env | None = None, set_env: Env | None = None,
        pass_env: Text | Iterable[Text] = (), limits: Mapping[str, int | float | str | None] | None = None,
        accept: Words = (), cache: str | None = None, tmp: str | None = None, on_persistence: str | None = None,
        pass_fds: Iterable[int] = (), **refused: Never,
    ) -> None:
        options = collected(locals())
        for name in options:
            if name not in REQUEST_OPTIONS:
                raise ConfigError("unknown_option", f"option {name!r}: not an option of a sandbox",
                                  hint=nearest(name, REQUEST_OPTIONS))
        if options.get("cwd") is None:
            options["cwd"] = os.getcwd()
        # What says nothing is left out; an empty list of hosts does say something.
        self._set({name: value for name, value in options.items()
                   if value is not None and (value != () or name == "net")}, None)

    def _set(self, options: Mapping[str, Any], ceiling: Ceiling | None) -> None:
        frozen = tuple(sorted((name, _freeze(value)) for name, value in options.items()))
        object.__setattr__(self, "_options", frozen)
        object.__setattr__(self, "_ceiling", ceiling)
        object.__setattr__(self, "_hash", hash((frozen, ceiling)))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Sandbox is frozen: {name!r} cannot be set; use narrow()")

    def __hash__(self) -> int:
        value: int = object.__getattribute__(self, "_hash")
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sandbox) and (self._options, self._ceiling) == (other._options, other._ceiling)

    def __repr__(self) -> str:
        # Values of variables stay out: a repr is logged.
        shown = ", ".join(f"{name}={value!r}" for name, value in self._options if name not in ("env", "set_env"))
        return f"Sandbox({shown})" if self._ceiling is None else f"Sandbox({shown}).narrow({self._ceiling!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.options(), self._ceiling)

    def options(self) -> dict[str, Any]:
        """Return the options as ``run`` takes them."""
        return {name: _thaw(name, value) for name, value in self._options}

    if TYPE_CHECKING:
        @overload
        def run(self, args: Args, *, text: Literal[True], encoding: str | None = None, errors: str | None = None,
                **options: Unpack[CallRunOptions]) -> Completed[str]: ...
        @overload
        def run(self, args: Args, *, text: bool | None = None, encoding: str, errors: str | None = None,
                **options: Unpack[CallRunOptions]) -> Completed[str]: ...
        @overload
        def run(self, args: Args, *, text: Literal[False] | None = None, encoding: None = None, errors: None = None,
                **options: Unpack[CallRunOptions]) -> Completed[bytes]: ...
        @overload
        def run(self, args: Args, *, text: bool | None = None, encoding: str | None = None, errors: str | None = None,
                **options: Unpack[CallRunOptions]) -> Completed[Any]: ...

    def run(self, args: Args, **options: Any) -> Completed[Any]:
        """Run a command in this box; ``options`` are those of the process, ``cwd`` and ``set_env``."""
        return api.run_with(args, self._call(options))

    if TYPE_CHECKING:
        @overload
        def popen(self, args: Args, *, text: Literal[True], encoding: str | None = None, errors: str | None = None,
                  **options: Unpack[CallOptions]) -> Popen[str]: ...
        @overload
        def popen(self, args: Args, *, text: bool | None = None, encoding: str, errors: str | None = None,
                  **options: Unpack[CallOptions]) -> Popen[str]: ...
        @overload
        def popen(self, args: Args, *, text: Literal[False] | None = None, encoding: None = None, errors: None = None,
                  **options: Unpack[CallOptions]) -> Popen[bytes]: ...
        @overload
        def popen(self, args: Args, *, text: bool | None = None, encoding: str | None = None,
                  errors: str | None = None, **options: Unpack[CallOptions]) -> Popen[Any]: ...

    def popen(self, args: Args, **options: Any) -> Popen[Any]:
        """Start a command in this box."""
        return Popen._of(args, self._call(options))

    def wrap(self, args: Args, *, pin: str | None = None) -> Wrapped:
        """Return a launch line for a command in this box."""
        return api.wrap_with(args, self._call({}), pin=pin)

    if TYPE_CHECKING:
        @overload
        async def run_async(self, args: Args, *, text: Literal[True], encoding: str | None = None,
                            errors: str | None = None, **options: Unpack[CallRunOptions]) -> Completed[str]: ...
        @overload
        async def run_async(self, args: Args, *, text: bool | None = None, encoding: str,
                            errors: str | None = None, **options: Unpack[CallRunOptions]) -> Completed[str]: ...
        @overload
        async def run_async(self, args: Args, *, text: Literal[False] | None = None, encoding: None = None,
                            errors: None = None, **options: Unpack[CallRunOptions]) -> Completed[bytes]: ...
        @overload
        async def run_async(self, args: Args, *, text: bool | None = None, encoding: str | None = None,
                            errors: str | None = None, **options: Unpack[CallRunOptions]) -> Completed[Any]: ...

    async def run_async(self, args: Args, **options: Any) -> Completed[Any]:
        """Run a command in this box under asyncio."""
        from stockade.process import aio

        return await aio.run_async_with(args, self._call(options))

    def spawn(self, args: Args, **options: Unpack[CallOptions]) -> Spawn:
        """Start a command in this box under asyncio."""
        from stockade.process import aio

        return aio.Spawn(args, self._call(options))

    def _call(self, options: Mapping[str, Any]) -> dict[str, Any]:
        for name in options:
            if name not in PER_CALL:
                raise ConfigError("unknown_option", f"option {name!r}: belongs to the sandbox, not to one call",
                                  hint="make it with Sandbox(...), or use narrow(...)")
        merged = {**self.options(), **options}
        if self._ceiling is not None:
            merged["_ceiling"] = self._ceiling
        if "set_env" in options:
            merged["set_env"] = {**dict(self.options().get("set_env") or {}), **dict(options["set_env"] or {})}
        if options.get("cwd") is not None:
            merged["cwd"] = self.options()["cwd"]
            merged["_start_in"] = str(canonical(os.path.join(merged["cwd"], options["cwd"])))
        return merged

    def narrow(
        self, *, tier: TierName | None = None, net: Literal["none"] | None = None, hide: Paths = (),
        write: Paths | None = None, read: Paths | None = None,
        limits: Mapping[str, int | float | str | None] | None = None, **refused: Never,
    ) -> Sandbox:
        """Return a sandbox that allows less.

        Args: tier (not lower; never ``off``), net (``"none"``), hide (joined), write (the write roots
        from now on, inside the present ones; what is left out can still be read), read (the read
        grants from now on, inside the present ones), limits (not above the present ones).
        Raises: ConfigError(value_invalid) for anything that is not less than what this one allows.
        """
        for name in refused:
            raise ConfigError("unknown_option", f"narrow {name!r}: cannot be narrowed", hint=nearest(name, _NARROW))
        now = self._resolved()
        less = Ceiling(
            tier=Tier.off if tier is None else _tier(now, tier), net_none=_net_none(net),
            write=None if write is None else _inside("write", now.write_roots, write, now),
            read=None if read is None else _inside("read", (*now.read, *now.write_roots), read, now),
            limits=_limits(now, limits))
        mine = self.options()
        mine["hide"] = [*_paths(mine.get("hide")), *_paths(hide)]
        return _rebuild(mine, narrow.join(self._ceiling, less))

    def check(self, path: Path | bytes, mode: Mode) -> Literal["same_object", "private"]:
        """Return what a command of this box would get under that name, as the kernel would answer it.

        Args: path (relative: to the box's working directory), mode (``read``, ``write``, ``create``,
        ``delete``, ``exec``, ``connect``; of a directory ``read`` is listing it, ``write`` changing its names).
        Returns: ``same_object``: the host's own; ``private``: another object that the box has there.
        Raises: Denied(.rule, .grant), ConfigError(value_invalid, path_invalid), Refused(access_unknown).
        """
        from stockade.process import files

        return files.check(self, path, mode)

    def open(self, path: Path | bytes, mode: str = "r", buffering: int = -1, encoding: str | None = None,
             errors: str | None = None, newline: str | None = None) -> IO[Any]:
        """Open a file of the host as the built-in does, if it is the one that the box has under that name.

        No rename or link that is swapped meanwhile leads anywhere else: what is opened is the object
        that was judged. Raises: as ``check``, and what the built-in raises for names that are not there.
        """
        from stockade.process import files

        return files.open_file(self, path, mode, buffering, encoding, errors, newline)

    def _with(self, more: Mapping[str, Any]) -> Sandbox:
        """Return this sandbox with more words in some lists; the ceiling stays."""
        mine = self.options()
        for name, words in more.items():
            mine[name] = [*_paths(mine.get(name)), *words]
        return _rebuild(mine, self._ceiling)

    def _resolved(self) -> Resolved:
        """Return what the options come to for a command that no profile is made for."""
        return resolve(replace(build_request(["true"], **self.options()), ceiling=self._ceiling))


def _rebuild(options: dict[str, Any], ceiling: Ceiling | None) -> Sandbox:
    made = Sandbox(**options)
    made._set(options, ceiling)
    return made


def _freeze(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ("map", tuple(sorted((str(k), _freeze(v)) for k, v in value.items())))
    if isinstance(value, (str, bytes, int, float)) or value is None:
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Iterable):
        return tuple(_freeze(item) for item in value)
    return value


def _thaw(name: str, value: Any) -> Any:
    if isinstance(value, tuple) and len(value) == 2 and value[0] == "map" and name in ("env", "set_env", "limits"):
        return dict(value[1])
    return list(value) if isinstance(value, tuple) else value


def _wider(name: str, value: Any) -> ConfigError:
    return ConfigError("value_invalid", f"narrow {name}: got {value!r}, which would allow more")


def _tier(now: Resolved, new: Any) -> Tier:
    wanted = check_tier(new)
    if wanted in ("auto", "off") or Tier[wanted] < now.tier:
        raise _wider("tier", new)
    return Tier[wanted]


def _net_none(new: Any) -> bool:
    if new not in (None, "none", [], ()):
        raise _wider("net", new)
    return new is not None


def _inside(name: str, granted: tuple[Grant, ...], new: Any, now: Resolved) -> tuple[str, ...]:
    wanted = tuple(absolute(name, path, now.request.cwd, now.home) for path in _paths(new))
    for path in wanted:
        if not narrow.inside(canonical(path), granted):
            raise _wider(name, path)
    return tuple(dict.fromkeys(wanted))


def _limits(now: Resolved, new: Any) -> tuple[tuple[str, int], ...]:
    wanted = check_limits(new)
    for name, value in wanted:
        if value > now.limits.get(name, value):
            raise _wider(f"limits.{name}", value)
    return wanted


def _paths(value: Any) -> list[str]:
    if value is None:
        return []
    return [os.fspath(value)] if isinstance(value, (str, os.PathLike)) else [os.fspath(item) for item in value]
