"""Small immutable objects that are created in great numbers: messages, facts and effects; rows of records.

Invariants:
- `value` behaves like `dataclass(frozen=True, slots=True)`, but objects are created faster: a frozen dataclass looks up
  for each field, by name, how to set it; here the setters are bound once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import partial
from operator import eq
from typing import Any, TypeVar, cast, dataclass_transform, overload

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass with slots, without field factories and `__post_init__`."""
    made: type[Any] = dataclass(frozen=True, slots=True)(cls)
    assert not hasattr(made, "__post_init__"), f"a value has no __post_init__: {cls.__name__}"
    known: dict[str, Any] = {}
    given, steps = ["self"], []
    for f in fields(made):
        assert f.init and f.default_factory is MISSING and not f.kw_only, f"not a plain field: {cls.__name__}.{f.name}"
        known[f"_set_{f.name}"] = getattr(made, f.name).__set__
        known[f"_default_{f.name}"] = f.default
        given.append(f.name if f.default is MISSING else f"{f.name}=_default_{f.name}")
        steps.append(f"    _set_{f.name}(self, {f.name})")
    exec(f"def __init__({', '.join(given)}):\n" + "\n".join(steps or ["    pass"]), known)
    init = known["__init__"]
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__annotations__ = made.__init__.__annotations__
    made.__init__ = init
    return made


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
