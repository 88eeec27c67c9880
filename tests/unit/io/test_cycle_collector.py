"""When all generations are collected, how many objects one collection visits, and that dropped objects are freed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any, cast

import pytest

from dlog.io import process
from dlog.io.cycle_collector import (
    IDLE_LATE_S,
    IDLE_LOOKS,
    LOOK_S,
    MIDDLE_GENERATION_MAX,
    OLD_GENERATION_MAX,
    THRESHOLDS,
    CycleCollector,
)

BUSY_S = 2 * IDLE_LATE_S
VISITED_MAX = 70_000  # objects


class Heap:
    """Counts of objects as CPython's collector has them; objects die only on request."""

    def __init__(self, thresholds: tuple[int, int, int] = THRESHOLDS) -> None:
        self.thresholds = thresholds
        self.generations = [0, 0, 0]
        self.frozen = 0
        self.collections = [0, 0, 0]
        self.visited: list[int] = []  # by each requested collection

    def make(self, count: int, *, dying: float = 0.0) -> None:
        """Create objects, a few at a time; dying: this share of them is dropped at once."""
        for _ in range(count // 1000):
            self.generations[0] += int(1000 * (1.0 - dying))
            if self.generations[0] > self.thresholds[0]:
                self._collected(0)

    def _collected(self, generation: int) -> None:
        self.collections[generation] += 1
        for younger in range(min(generation + 1, 2)):
            moved, self.generations[younger] = self.generations[younger], 0
            self.generations[min(younger + 1, 2)] += moved
        if generation == 2:
            self.generations[2] += self.generations[1]
            self.generations[1] = 0

    def collect(self, generation: int = 2) -> int:
        self.visited.append(sum(self.generations))
        self._collected(2)
        return 0

    def freeze(self) -> None:
        self.frozen += sum(self.generations)
        self.generations = [0, 0, 0]

    def get_objects(self, generation: int | None = None) -> list[object]:
        assert generation is not None
        return cast(list[object], range(self.generations[generation]))

    def get_stats(self) -> list[dict[str, int]]:
        return [{"collections": count} for count in self.collections]

    def get_threshold(self) -> tuple[int, int, int]:
        return self.thresholds


@pytest.mark.parametrize("each_look", [1_000, 5_000, 20_000])
def test_no_collection_looks_at_more_than_a_bound_while_two_million_objects_come_to_stay(each_look: int) -> None:
    heap = Heap()
    collector = CycleCollector(heap)
    for _ in range(2_000_000 // each_look):
        heap.make(each_look)
        collector.look(BUSY_S)
    assert max(heap.visited) <= VISITED_MAX
    assert len(heap.visited) <= 2_000_000 // MIDDLE_GENERATION_MAX, "not more often than worth it"
    assert heap.frozen >= 2_000_000 - VISITED_MAX


def test_a_process_whose_objects_die_at_once_is_not_collected_while_it_is_busy() -> None:
    heap = Heap()
    collector = CycleCollector(heap)
    for _ in range(10 * IDLE_LOOKS):
        heap.make(5_000, dying=1.0)
        collector.look(BUSY_S)
    assert not heap.visited


def test_an_idle_process_collects_once_a_minute_and_freezes_nothing() -> None:
    heap = Heap()
    heap.make(OLD_GENERATION_MAX)
    collector = CycleCollector(heap)
    for _ in range(10 * IDLE_LOOKS):
        collector.look(0.0)
    assert len(heap.visited) == 10
    assert heap.frozen == 0


def test_a_busy_process_puts_off_what_is_not_urgent() -> None:
    heap = Heap()
    collector = CycleCollector(heap)
    for _ in range(3 * IDLE_LOOKS):
        collector.look(BUSY_S)
    assert not heap.visited
    collector.look(0.0)
    assert len(heap.visited) == 1


def test_a_process_that_is_starting_is_left_alone() -> None:
    heap = Heap((700, 10, 10))
    collector = CycleCollector(heap)
    for _ in range(3 * IDLE_LOOKS):
        heap.make(20_000)
        collector.look(0.0)
    assert not heap.visited


class Connection:
    """An object that refers to itself, as repeated operations may leave one."""

    def __init__(self) -> None:
        self.itself = self
        self.parts = [[] for _ in range(10)]  # type: ignore[var-annotated]  # of anything


@pytest.fixture
def serving() -> Iterator[None]:
    """Python's collector with the settings of a serving process."""
    thresholds = gc.get_threshold()
    process.freeze()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


@pytest.mark.usefixtures("serving")
def test_cycles_that_grew_old_before_they_were_dropped_are_freed_in_an_idle_process() -> None:
    collector = CycleCollector()
    alive = [Connection() for _ in range(1000)]
    freed: list[None] = []
    for connection in alive:
        weakref.finalize(connection, freed.append, None)
    for _ in range(IDLE_LOOKS):
        collector.look(0.0)
    assert not freed
    assert gc.get_objects(generation=2), "they are old now"
    del connection
    alive.clear()
    assert not freed, "each is a cycle"
    for _ in range(IDLE_LOOKS):
        collector.look(0.0)
    assert len(freed) == 1000


@pytest.mark.usefixtures("serving")
def test_cycles_of_a_repeated_path_do_not_pile_up_in_a_busy_process() -> None:
    collector = CycleCollector()
    freed: list[None] = []
    held: list[Connection] = []
    rounds = 20_000
    for _ in range(rounds):
        connection = Connection()
        weakref.finalize(connection, freed.append, None)
        held.append(connection)
        if len(held) > 100:  # the age of each when it is dropped
            held.pop(0)
        collector.look(BUSY_S)
    assert rounds - len(freed) <= 5_000


async def test_it_looks_by_a_timer_of_the_loop_until_it_is_stopped() -> None:
    loop = asyncio.get_running_loop()
    planned: list[tuple[float, Any, tuple[Any, ...]]] = []

    class Handle:
        def cancel(self) -> None:
            planned.clear()

    class Loop:
        def call_later(self, delay_s: float, callback: Any, *args: Any) -> Handle:
            planned.append((delay_s, callback, args))
            return Handle()

    heap = Heap()
    collector = CycleCollector(heap)
    with contextlib.ExitStack() as stack:
        stack.callback(asyncio._set_running_loop, loop)
        asyncio._set_running_loop(cast(asyncio.AbstractEventLoop, Loop()))
        collector.start()
    for _ in range(5):
        heap.make(20_000)
        [(delay_s, callback, args)] = planned
        assert delay_s == LOOK_S
        planned.clear()
        callback(*args)
    assert len(heap.visited) == 5
    collector.stop()
    assert not planned
