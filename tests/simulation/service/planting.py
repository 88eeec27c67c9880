"""Plants a defect into production code: replaces one method while a trial lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from tests.simulation.worlds import Mutant

Plant = Callable[[], AbstractContextManager[object]]


def instead(cls: Any, name: str, make: Callable[[Any], Any]) -> Plant:
    """Replace a method of a class, or a function of a module, by what `make` returns for it."""
    return lambda: mock.patch.object(cls, name, make(getattr(cls, name)))


@contextlib.contextmanager
def both(*plants: Plant) -> Iterator[None]:
    """Plant several changes as one defect."""
    with contextlib.ExitStack() as stack:
        for plant in plants:
            stack.enter_context(plant())
        yield


def mutant(name: str, invariants: tuple[str, ...], plant: Plant, *, style: str, seeds: int) -> Mutant:
    """A planted defect of the service."""
    return Mutant(name=name, invariants=invariants, parts={"plant": plant}, style=style, seeds=seeds)
