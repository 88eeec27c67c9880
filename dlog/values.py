"""Decorator for small immutable objects that are created in great numbers: messages, facts and effects.

Invariants:
- `value` behaves like `dataclass(frozen=True, slots=True)`, but objects are created faster: a frozen dataclass looks up
  for each field, by name, how to set it; here the setters are bound once.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, dataclass_transform

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
