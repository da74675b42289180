"""Frozen, slotted, keyword-only records without the start-up cost of ``dataclasses``.

Owns: ``dataclass``, ``field``, ``replace``, ``asdict``, ``fields``, ``NamedTuple`` with the meaning of their
namesakes for the one style this package uses. Fails closed: a missing or unknown field is a
TypeError, another style is refused where the class is defined.
Why: every command pays for its imports. The standard module loads ``inspect`` and compiles half a
dozen methods for each class, about 0.5 ms a class; these methods are written once and read the
slots of their class. Read next: ``bench/`` (the import budget).
"""

from __future__ import annotations

# Type checkers take this for true. At run time ``typing`` stays away: it costs 3 ms of each start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar, dataclass_transform
    from typing import NamedTuple as NamedTuple

    T = TypeVar("T")
else:
    def dataclass_transform(**_options):
        """Say nothing at run time; see ``typing.dataclass_transform``."""
        return lambda function: function

    try:
        from _collections import _tuplegetter  # what named tuples of the standard library use
    except ImportError:
        from operator import itemgetter

        def _tuplegetter(index, doc):
            return property(itemgetter(index), doc=doc)

    class _TupleClass(type):
        """Makes a named tuple of a class body, as ``typing.NamedTuple`` does, without compiling code for each."""

        def __new__(meta, name, bases, own):
            names = tuple(own.get("__annotations__", ()))
            defaults = {item: own.pop(item) for item in names if item in own}
            own |= {item: _tuplegetter(at, item) for at, item in enumerate(names)}
            return type(name, (_Row,), {"__slots__": (), "_fields": names, "_field_defaults": defaults,
                                        "__match_args__": names, **own})

    class _Row(tuple):
        """What every named tuple can do."""

        __slots__ = ()
        _fields, _field_defaults = (), {}

        def __new__(cls, *values, **named):
            names = cls._fields
            if named or len(values) != len(names):
                values = cls._filled(values, named)
            return tuple.__new__(cls, values)

        @classmethod
        def _filled(cls, values, named):
            rest = {**cls._field_defaults, **named}
            behind = cls._fields[len(values):]
            wrong = [item for item in behind if item not in rest] + [item for item in named if item not in behind]
            if wrong or len(values) > len(cls._fields):
                raise TypeError(f"{cls.__name__}: got {len(values)} values and {sorted(named)}, expected {cls._fields}")
            return (*values, *(rest[item] for item in behind))

        @classmethod
        def _make(cls, values):
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"{cls.__name__}: got {len(made)} values, expected {len(cls._fields)}")
            return made

        def _replace(self, **changes):
            unknown = changes.keys() - set(self._fields)
            if unknown:
                raise TypeError(f"{type(self).__name__}: unknown field {sorted(unknown)[0]!r}")
            return self._make(changes.get(item, old) for item, old in zip(self._fields, self, strict=True))

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            return f"{type(self).__name__}({', '.join(f'{item}={value!r}' for item, value in self._asdict().items())})"

    NamedTuple = type.__new__(_TupleClass, "NamedTuple", (), {})

_MISSING: Any = type("_Missing", (), {"__repr__": lambda self: "MISSING"})()


class Field(NamedTuple):
    """One field; ``default`` and ``default_factory`` are ``MISSING`` when there is none."""

    name: str
    default: Any = _MISSING
    default_factory: Any = _MISSING
    repr: bool = True


MISSING = _MISSING


def field(*, default: Any = _MISSING, default_factory: Any = _MISSING, repr: bool = True) -> Any:
    """Describe a field that has a factory, or that must not be printed."""
    return Field("", default, default_factory, repr)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def dataclass(*, frozen: bool = False, slots: bool = False, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Make a record class. ``slots`` and ``kw_only`` must be True; ``frozen`` may be False."""
    if not (slots and kw_only):
        raise TypeError("a record has slots and keyword-only fields")
    return lambda cls: _make(cls, frozen=frozen)


def _make(cls: type[T], *, frozen: bool) -> type[T]:
    own = dict(cls.__dict__)
    names = [name for name, kind in own.get("__annotations__", {}).items() if not str(kind).startswith("ClassVar")]
    inherited = [item for item in getattr(cls, "__record_fields__", ()) if item.name not in names]
    found = (*inherited, *(_field(name, own.pop(name, _MISSING)) for name in names))
    for name in ("__dict__", "__weakref__"):
        own.pop(name, None)
    own.update(__slots__=tuple(names), __record_fields__=found, __match_args__=())
    methods: dict[str, Any] = {"__init__": _init, "__repr__": _repr, "__eq__": _eq, "__replace__": _replaced}
    methods |= {"__hash__": _hash, "__setattr__": _refuse, "__delattr__": _refuse,
                "__getstate__": _getstate, "__setstate__": _setstate} if frozen else {"__hash__": None}
    for name, method in methods.items():
        own.setdefault(name, method)
    if "__eq__" in cls.__dict__ and "__hash__" not in cls.__dict__:
        own["__hash__"] = None
    meta: Any = type(cls)
    made: Any = meta(cls.__name__, cls.__bases__, own)
    made.__qualname__ = cls.__qualname__
    # Slot descriptors set a field below __setattr__, which a frozen record refuses.
    made.__record_setters__ = tuple((item, getattr(made, item.name).__set__) for item in found)
    return made  # type: ignore[no-any-return]


def _field(name: str, value: Any) -> Field:
    return value._replace(name=name) if isinstance(value, Field) else Field(name, value)


def _init(self: Any, **values: Any) -> None:
    used = 0
    for item, put in self.__record_setters__:
        if item.name in values:
            used += 1
            put(self, values[item.name])
        elif item.default is not _MISSING:
            put(self, item.default)
        elif item.default_factory is not _MISSING:
            put(self, item.default_factory())
        else:
            raise TypeError(f"{type(self).__name__}: missing field {item.name!r}")
    if used != len(values):
        unknown = set(values) - {item.name for item in self.__record_fields__}
        raise TypeError(f"{type(self).__name__}: unknown field {sorted(unknown)[0]!r}")
    after = getattr(self, "__post_init__", None)
    if after is not None:
        after()


def _values(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, item.name) for item in self.__record_fields__])


def _repr(self: Any) -> str:
    shown = (f"{item.name}={getattr(self, item.name)!r}" for item in self.__record_fields__ if item.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: object) -> Any:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _refuse(self: Any, name: str, value: Any = None) -> None:
    raise AttributeError(f"{type(self).__name__}.{name}: the record is frozen")


def _getstate(self: Any) -> tuple[Any, ...]:
    return _values(self)


def _setstate(self: Any, state: tuple[Any, ...]) -> None:
    for (_, put), value in zip(self.__record_setters__, state, strict=True):
        put(self, value)


def _replaced(self: Any, **changes: Any) -> Any:
    known = {item.name: getattr(self, item.name) for item in self.__record_fields__}
    return type(self)(**{**known, **changes})


def replace(record: T, **changes: Any) -> T:
    """Return a copy of ``record`` with some fields changed."""
    made: T = _replaced(record, **changes)
    return made


def values(record: Any, *, but: str = "") -> tuple[Any, ...]:
    """Return the values of the fields in order, without that of one field."""
    return tuple([getattr(record, item.name) for item in record.__record_fields__ if item.name != but])


def fields(record: Any) -> tuple[Field, ...]:
    """Return the fields of a record or record class, in order."""
    found: tuple[Field, ...] = record.__record_fields__
    return found


def asdict(record: Any) -> dict[str, Any]:
    """Return the fields as plain data; records inside are converted too."""
    return {item.name: _plain(getattr(record, item.name)) for item in fields(record)}


def _plain(value: Any) -> Any:
    if hasattr(type(value), "__record_fields__"):
        return asdict(value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_plain(item) for item in value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
