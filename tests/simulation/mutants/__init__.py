"""Planted defects: a check is proved by a defect that it catches.

A mutant is a machine with one method edited in its source. The text that is replaced must occur exactly once, so a
mutant whose defect no longer fits the code fails instead of proving nothing.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any


def edited(cls: type, *edits: tuple[str, str, str]) -> type:
    """A subclass of `cls` with methods edited: (method, text to replace, new text).

    Raises AssertionError if a text does not occur exactly once in the method's source.
    """
    namespace: dict[str, Any] = {}
    for method in dict.fromkeys(name for name, _, _ in edits):
        function = getattr(cls, method)
        function = getattr(function, "fget", function)  # of a property
        source = textwrap.dedent(inspect.getsource(function))
        for name, old, new in edits:
            if name == method:
                assert source.count(old) == 1, f"not exactly once in {cls.__name__}.{method}: {old!r}"
                source = source.replace(old, new)
        scope = dict(vars(sys.modules[function.__module__]))
        exec(compile(source, f"<mutant {cls.__name__}.{method}>", "exec"), scope)
        namespace[method] = scope[method]
    return type(f"Mutant{cls.__name__}", (cls,), namespace)


@contextlib.contextmanager
def planting(pairs: Iterable[tuple[type, type]]) -> Iterator[None]:
    """Replace methods of these classes by those of their mutants while this is entered; machines are made of many
    parts."""
    saved = [(cls, name, vars(cls)[name]) for cls, mutant in pairs for name in vars(mutant) if name in vars(cls)]
    try:
        for cls, mutant in pairs:
            for name, value in vars(mutant).items():
                if name in vars(cls) and not name.startswith("__d") and name != "__module__":
                    setattr(cls, name, value)
        yield
    finally:
        for cls, name, value in saved:
            if not name.startswith("__d") and name != "__module__":
                setattr(cls, name, value)
