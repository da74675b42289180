"""What every start needs of the standard library, without what that would cost it.

Owns: ``memo``, ``IntEnum``, ``StrEnum`` and ``MappingProxyType`` with the meaning of their namesakes as far as this
package uses them, and the abstract containers. ``enum``, ``functools`` and ``collections`` take 6 ms of a start
that takes 50, and no file of ours needs more of them. Fails closed: an unknown value or name of a member is an
error, a member cannot be changed. Read next: ``frozen.py``, which has the records.
"""

from __future__ import annotations

# What ``collections.abc`` is another name of: ``os`` has loaded it, the package around the name nobody has.
from _collections_abc import Callable as Callable
from _collections_abc import Collection as Collection
from _collections_abc import Generator as Generator
from _collections_abc import Iterable as Iterable
from _collections_abc import Iterator as Iterator
from _collections_abc import Mapping as Mapping
from _collections_abc import Sequence as Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from enum import IntEnum as IntEnum
    from enum import StrEnum as StrEnum
    from functools import lru_cache
    from types import MappingProxyType as MappingProxyType

    memo = lru_cache
else:
    MappingProxyType = type(type.__dict__)

    def memo(maxsize):
        """Keep the last answers of a function; ``cache_clear`` forgets them.

        Args: maxsize: how many. Where ``lru_cache`` would drop one answer this drops all.
        Raises: TypeError for an argument that cannot be hashed, and what the function raises, which is not kept.
        """
        def keeping(function):
            kept = {}

            def answer(*args, **named):
                key = (*args, *named.items()) if named else args
                found = kept.get(key, kept)
                if found is kept:
                    found = function(*args, **named)
                    if len(kept) >= maxsize:
                        kept.clear()
                    kept[key] = found
                return found

            answer.cache_clear, answer.__wrapped__ = kept.clear, function
            answer.__name__, answer.__doc__ = function.__name__, function.__doc__
            return answer

        return keeping

    class _Members(type):
        """Makes one object of each name of a class body that has a plain value."""

        def __new__(meta, name, bases, own):
            if getattr(bases[0], "__members__", None):
                raise TypeError(f"{name}: {bases[0].__qualname__} has members and cannot be extended")
            names = [key for key, value in own.items() if key[0] != "_" and type(value) in (int, str)]
            plain = {key: own.pop(key) for key in names}
            cls = super().__new__(meta, name, bases, own)
            members = {}
            for key, value in plain.items():
                members[key] = made = bases[0].__base__.__new__(cls, value)
                made.__dict__.update(name=key, value=value, _name_=key, _value_=value)
                type.__setattr__(cls, key, made)
            type.__setattr__(cls, "__members__", MappingProxyType(members))
            type.__setattr__(cls, "_of_value", {made.value: made for made in members.values()})
            return cls

        def __call__(cls, value):
            try:
                return cls._of_value[value]
            except (KeyError, TypeError):
                raise ValueError(f"{value!r} is not a valid {cls.__qualname__}") from None

        def __iter__(cls):
            return iter(cls.__members__.values())

        def __len__(cls):
            return len(cls.__members__)

        def __contains__(cls, value):
            return value in cls._of_value

        def __getitem__(cls, name):
            return cls.__members__[name]

        def __reversed__(cls):
            return reversed(tuple(cls.__members__.values()))

        def __setattr__(cls, name, value=None):
            raise AttributeError(f"cannot set {name!r} of {cls.__qualname__}")

        __delattr__ = __setattr__

    def _repr(member):
        return f"<{type(member).__name__}.{member.name}: {member.value!r}>"

    def _reduce(member, _protocol):
        return type(member), (member.value,)

    def _refuse(member, name, _value=None):
        raise AttributeError(f"cannot set {name!r} of {member!r}")

    _OWN = {"__repr__": _repr, "__reduce_ex__": _reduce, "__setattr__": _refuse, "__delattr__": _refuse}
    IntEnum = type.__new__(_Members, "IntEnum", (int,), {**_OWN, "__str__": int.__repr__, "_of_value": {}})
    StrEnum = type.__new__(_Members, "StrEnum", (str,), {**_OWN, "__str__": str.__str__, "_of_value": {}})
