"""Small immutable objects that are created in great numbers: messages, facts and effects; rows of records.

Invariants:
- `value` behaves like `dataclass(frozen=True, slots=True)`, but objects are created faster: a frozen dataclass looks up
  for each field, by name, how to set it; here the setters are bound once.
- The class is made faster, too: a frozen dataclass compiles each of its methods on its own, and a process starts with
  hundreds of classes. Here one compilation makes those that name the fields; all classes share the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from functools import partial
from operator import eq
from reprlib import recursive_repr
from typing import Any, TypeVar, cast, dataclass_transform, overload

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass with slots, without field factories, `__post_init__` and dataclass methods of its
    own."""
    own = vars(cls).keys() & {"__init__", "__post_init__", "__eq__", "__hash__", *_SHARED}
    assert not own, f"a value has no {', '.join(sorted(own))} of its own: {cls.__name__}"
    bases = [base.__dataclass_params__.frozen for base in cls.__mro__ if "__dataclass_params__" in vars(base)]  # type: ignore[attr-defined]  # set by dataclass(), unknown to typeshed
    made: type[Any] = dataclass(frozen=any(bases), slots=True, init=False, repr=False, eq=False)(cls)
    made.__dataclass_params__.frozen = True  # else no frozen dataclass could be derived from it
    known: dict[str, Any] = {"__name__": made.__module__}
    given, steps = ["self"], []
    for f in fields(made):
        assert f.init and f.default_factory is MISSING and not f.kw_only, f"not a plain field: {cls.__name__}.{f.name}"
        known[f"_set_{f.name}"] = getattr(made, f.name).__set__
        known[f"_default_{f.name}"] = f.default
        given.append(f.name if f.default is MISSING else f"{f.name}=_default_{f.name}")
        steps.append(f"    _set_{f.name}(self, {f.name})\n")
    compared = [f.name for f in fields(made) if f.compare]
    ours, theirs = ("".join(f"{side}.{name}, " for name in compared) for side in ("self", "other"))
    exec(
        f"def __init__({', '.join(given)}):\n{''.join(steps) or '    pass'}\n"
        f"def __eq__(self, other):\n"
        f"    return ({ours}) == ({theirs}) if other.__class__ is self.__class__ else NotImplemented\n"
        f"def __hash__(self):\n    return hash(({ours}))\n",
        known,
    )
    known["__init__"].__annotations__ = {f.name: f.type for f in fields(made)} | {"return": None}
    for name in ("__init__", "__eq__", "__hash__"):
        known[name].__qualname__ = f"{made.__qualname__}.{name}"
        setattr(made, name, known[name])
    for name, method in _SHARED.items():
        setattr(made, name, method)
    return made


@recursive_repr("...")
def _show(self: Any) -> str:
    shown = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr]
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse_change(self: object, name: str, *_: object) -> None:
    raise FrozenInstanceError(f"cannot change field {name!r}")


def _pickle(self: Any) -> tuple[type[Any], tuple[Any, ...]]:
    return type(self), tuple([getattr(self, f.name) for f in fields(self)])


_SHARED = {"__repr__": _show, "__setattr__": _refuse_change, "__delattr__": _refuse_change, "__reduce__": _pickle}


class Columns(Sequence[T]):
    """A sequence of named tuples that is held as one sequence for each field. A tuple is made when it is asked for, so
    that code which only needs the fields does not pay for objects, nor for the garbage collector's visits to them.

    columns: in the order of the fields, all of one length. Equal to any sequence of the same tuples.
    """

    __slots__ = ("_make", "columns")

    def __init__(self, cls: type[T], columns: tuple[Sequence[Any], ...]) -> None:
        self.columns = columns
        self._make = partial(cast("Any", tuple.__new__), cls)  # `cls._make`, without running Python code

    @classmethod
    def of(cls, made: type[T], rows: Sequence[T]) -> Columns[T]:
        """Columns of named tuples of the class `made`."""
        if isinstance(rows, Columns):
            return rows
        fields = cast("Any", made)._fields
        return cls(made, tuple(zip(*cast("Any", rows), strict=True)) or ((),) * len(fields))

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[T]:
        return map(self._make, zip(*self.columns, strict=True))

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Columns[T]: ...
    def __getitem__(self, at: int | slice) -> T | Columns[T]:
        part = tuple([column[at] for column in self.columns])
        return cast("T", self._make(part)) if isinstance(at, int) else Columns(self._make.args[0], part)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {self._make.args[0].__name__}>"  # asyncio asks for it at each `run`
