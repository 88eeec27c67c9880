"""Small immutable values that are made by the hundred thousand: messages, facts and effects.

The law of this file: `value` is `dataclass(frozen=True, slots=True)` in everything that can be seen but for what it
costs to make one: most of that went into finding out, for each field by its name, how a frozen object is written to.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass with slots. Fields have no factories and no `__post_init__` follows."""
    made: type[Any] = dataclass(frozen=True, slots=True)(cls)
    assert not hasattr(made, "__post_init__"), f"a value is what it was given: {cls.__name__}"
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
