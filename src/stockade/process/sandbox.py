"""``Sandbox``: one set of rules, started many times.

Owns: the frozen options of a box and the narrowing of them. Hashable and thread-safe: it holds
no state of its own; plans are remembered in ``prepare.py``. Fails closed: ``narrow`` takes only
what narrows, and a per-call option never changes what the box may reach.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from stockade.errors import ConfigError, nearest
from stockade.paths import canonical, is_below
from stockade.process import api
from stockade.process.api import Args, Completed, Wrapped
from stockade.rules.names import check_tier
from stockade.rules.request import PROCESS_OPTIONS, REQUEST_OPTIONS
from stockade.rules.tiers import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Per call: options of the process, and two that change nothing of what the box may reach.
PER_CALL = PROCESS_OPTIONS | {"cwd", "set_env"}


class Sandbox:
    """A frozen box description: ``Sandbox(tier="strict", profile=["npm"], cwd=repo)``.

    Takes the box options of ``run``. Equal options make equal sandboxes.
    """

    __slots__ = ("_hash", "_options")
    _options: tuple[tuple[str, Any], ...]
    _hash: int

    def __init__(self, **options: Any) -> None:
        for name in options:
            if name not in REQUEST_OPTIONS:
                raise ConfigError("unknown_option", f"option {name!r}: not an option of a sandbox",
                                  hint=nearest(name, REQUEST_OPTIONS))
        if options.get("cwd") is None:
            options["cwd"] = os.getcwd()
        frozen = tuple(sorted((name, _freeze(value)) for name, value in options.items()))
        object.__setattr__(self, "_options", frozen)
        object.__setattr__(self, "_hash", hash(frozen))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Sandbox is frozen: {name!r} cannot be set; use narrow()")

    def __hash__(self) -> int:
        value: int = object.__getattribute__(self, "_hash")
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sandbox) and self._options == other._options

    def __repr__(self) -> str:
        # Values of variables stay out: a repr is logged.
        shown = ", ".join(f"{name}={value!r}" for name, value in self._options if name not in ("env", "set_env"))
        return f"Sandbox({shown})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.options(),)

    def options(self) -> dict[str, Any]:
        """Return the options as ``run`` takes them."""
        return {name: _thaw(name, value) for name, value in self._options}

    def run(self, args: Args, **options: Any) -> Completed:
        """Run a command in this box; ``options`` are those of the process."""
        return api.run(args, **self._call(options))

    def popen(self, args: Args, **options: Any) -> api.Popen:
        """Start a command in this box."""
        return api.Popen(args, **self._call(options))

    def wrap(self, args: Args, *, pin: str | None = None) -> Wrapped:
        """Return a launch line for a command in this box."""
        return api.wrap(args, pin=pin, **self.options())

    async def run_async(self, args: Args, **options: Any) -> Completed:
        """Run a command in this box under asyncio."""
        from stockade.process import aio

        return await aio.run_async(args, **self._call(options))

    def spawn(self, args: Args, **options: Any) -> Any:
        """Start a command in this box under asyncio."""
        from stockade.process import aio

        return aio.spawn(args, **self._call(options))

    def _call(self, options: Mapping[str, Any]) -> dict[str, Any]:
        for name in options:
            if name not in PER_CALL:
                raise ConfigError("unknown_option", f"option {name!r}: belongs to the sandbox, not to one call",
                                  hint="make it with Sandbox(...), or use narrow(...)")
        merged = {**self.options(), **options}
        if "set_env" in options:
            merged["set_env"] = {**dict(self.options().get("set_env") or {}), **dict(options["set_env"] or {})}
        if options.get("cwd") is not None:
            merged["cwd"] = self.options()["cwd"]
            merged["_start_in"] = str(canonical(os.path.join(merged["cwd"], options["cwd"])))
        return merged

    def narrow(self, **options: Any) -> Sandbox:
        """Return a sandbox that allows less.

        Args: tier (not lower), net ("none"), hide (joined), write and read (inside the present
        ones), limits (not above the present ones).
        Raises: ConfigError(value_invalid) for anything that would widen.
        """
        mine = self.options()
        for name, value in options.items():
            check = _NARROW.get(name)
            if check is None:
                raise ConfigError("unknown_option", f"narrow {name!r}: cannot be narrowed",
                                  hint=nearest(name, _NARROW))
            mine[name] = check(mine.get(name), value)
        return Sandbox(**mine)


def _rebuild(options: dict[str, Any]) -> Sandbox:
    return Sandbox(**options)


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


def _tier(old: Any, new: Any) -> str:
    wanted, present = check_tier(new), check_tier(old or "auto")
    if wanted == "auto" or (present != "auto" and Tier[wanted] < Tier[present]):
        raise _wider("tier", new)
    return wanted


def _net(old: Any, new: Any) -> str:
    if new not in ("none", []):
        raise _wider("net", new)
    return "none"


def _hide(old: Any, new: Any) -> list[str]:
    return [*_paths(old), *_paths(new)]


def _inside(name: str) -> Any:
    def check(old: Any, new: Any) -> list[str]:
        roots = [str(canonical(path)) for path in _paths(old)]
        wanted = _paths(new)
        for path in wanted:
            if not any(is_below(canonical(path), root) for root in roots):
                raise _wider(name, path)
        return wanted
    return check


def _limits(old: Any, new: Any) -> dict[str, Any]:
    from stockade.rules.request import check_limits

    present, wanted = dict(check_limits(old) or ()), dict(check_limits(new) or ())
    for name, value in wanted.items():
        if name in present and value > present[name]:
            raise _wider(f"limits.{name}", value)
    return {**(dict(old) if old else {}), **dict(new)}


def _paths(value: Any) -> list[str]:
    if value is None:
        return []
    return [os.fspath(value)] if isinstance(value, (str, os.PathLike)) else [os.fspath(item) for item in value]


_NARROW: Mapping[str, Any] = {
    "tier": _tier, "net": _net, "hide": _hide, "write": _inside("write"), "read": _inside("read"),
    "limits": _limits,
}
