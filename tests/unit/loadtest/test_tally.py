"""Latency counts from the time at which a record was due; a gap ends at the next answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.history import AckedRun, HistoryWriter, RefusedRun, notes
from loadtest.systems.base import Acked, Refused
from loadtest.tally import Chunk, Flow, Tally

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(tmp_path: Path) -> Iterator[HistoryWriter]:
    made = HistoryWriter(str(tmp_path / "history"))
    yield made
    made.close()


@pytest.fixture
def tally(clock: Clock, history: HistoryWriter) -> Tally:
    made = Tally(4, history, clock)
    made.begin(1000 * MS, 1.0, 5.0)  # measured from 2000 ms to 7000 ms
    return made


def test_a_stall_of_the_system_is_in_the_latency_of_all_that_was_due_in_it(tally: Tally, clock: Clock) -> None:
    """A closed loop would omit this: here a thousand records wait for one stall of a second."""
    flow = Flow(0)
    tally.handed(flow, 1000, 3000 * MS, MS, 3999 * MS)  # a thousand, one each ms, appended when the stall ends
    clock.ns = 4000 * MS
    tally.answered(flow, Acked(0, 1000, (0, 0)))
    assert tally.response.percentile(100) == pytest.approx(1_000_000, rel=0.01)
    assert tally.response.percentile(50) == pytest.approx(500_000, rel=0.1)
    assert tally.service.percentile(100) == pytest.approx(1000, rel=0.01)
    assert tally.delay.percentile(50) == pytest.approx(999_000, rel=0.01)


def test_only_what_was_due_in_the_measured_time_is_measured(tally: Tally, clock: Clock) -> None:
    flow = Flow(0)
    for due_ms in (1500, 2500, 7500):
        tally.handed(flow, 1, due_ms * MS, 0.0, due_ms * MS)
    for at_ms, first in ((1501, 0), (2501, 1), (7501, 2)):
        clock.ns = at_ms * MS
        tally.answered(flow, Acked(first, 1, (0, first)))
    assert (tally.response.count, tally.measured, tally.acked) == (1, 1, 3)
    result = tally.result(0.5)
    assert (result["measured"], result["measured_s"], result["failed"], result["cpu_s"]) == (1, 5.0, 0, 0.5)
    assert sum(result["timeline"]) == 3 and result["timeline"][5] == 1


def test_a_gap_begins_when_something_was_due_and_ends_at_the_next_answer(tally: Tally, clock: Clock) -> None:
    flow = Flow(0)
    tally.handed(flow, 1, 2000 * MS, 0.0, 2000 * MS)
    clock.ns = 2001 * MS
    tally.answered(flow, Acked(0, 1, (0, 0)))
    tally.handed(flow, 1, 2500 * MS, 0.0, 2500 * MS)  # nothing was due for half a second: no gap
    clock.ns = 2800 * MS
    tally.answered(flow, Acked(1, 1, (0, 1)))
    assert tally.gaps == [(2500 * MS, 2800 * MS)]


def test_a_gap_is_not_ended_by_refusals(tally: Tally, clock: Clock) -> None:
    flow = Flow(0)
    tally.handed(flow, 1, 2000 * MS, 0.0, 2000 * MS)
    clock.ns = 2001 * MS
    tally.answered(flow, Acked(0, 1, (0, 0)))
    tally.handed(flow, 2, 2100 * MS, 0.0, 2100 * MS)
    clock.ns = 4900 * MS
    tally.answered(flow, Refused(1, 2, "no leader", True))
    tally.handed(flow, 1, 4990 * MS, 0.0, 4990 * MS)
    clock.ns = 5000 * MS
    tally.answered(flow, Acked(3, 1, (0, 1)))
    assert tally.gaps == [(2100 * MS, 5000 * MS)]


def test_what_is_never_answered_is_a_gap_to_the_end_and_a_failure(tally: Tally, clock: Clock) -> None:
    flow = Flow(0)
    tally.handed(flow, 3, 2000 * MS, 0.0, 2000 * MS)
    clock.ns = 9000 * MS
    result = tally.result(0.0)
    assert (result["sent"], result["acked"], result["failed"]) == (3, 0, 3)
    assert result["gaps"][-1][1] == 9000 * MS
    assert "got no response" in result["errors"][0]


def test_answers_out_of_order_and_in_parts(tally: Tally, clock: Clock, history: HistoryWriter, tmp_path: Path) -> None:
    flow = Flow(0)
    tally.handed(flow, 4, 2000 * MS, 0.0, 2000 * MS)
    tally.handed(flow, 4, 2100 * MS, 0.0, 2100 * MS)
    clock.ns = 2200 * MS
    tally.answered(flow, Acked(6, 2, (0, 16)))
    tally.answered(flow, Acked(2, 4, (0, 12)))  # the end of one batch, the begin of the other
    assert tally.under_way == 2
    tally.answered(flow, Refused(0, 2, "no", False))
    assert (tally.under_way, tally.failed, len(flow.chunks)) == (0, 2, 0)
    history.close()
    found = list(notes(tmp_path / "history"))
    assert RefusedRun(0, 4, 0, 2, False) in found
    acked = sorted((n.first, n.count, n.position) for n in found if isinstance(n, AckedRun))
    assert acked == [(2, 2, (0, 12)), (4, 2, (0, 14)), (6, 2, (0, 16))]


def test_many_records_of_one_chunk_are_counted_by_groups_and_never_too_well(tally: Tally, clock: Clock) -> None:
    flow = Flow(0)
    tally.handed(flow, 160, 3000 * MS, MS, 3160 * MS)
    clock.ns = 3200 * MS
    tally.answered(flow, Acked(0, 160, (0, 0)))
    assert tally.response.count == 160
    assert tally.response.percentile(0) >= 41_000  # the truth is 41 ms for the last, 200 ms for the first
    assert tally.response.percentile(100) == pytest.approx(200_000, rel=0.01)


def test_a_refusal_looks_only_at_what_it_refuses(tally: Tally) -> None:
    """Fifty thousand records are refused at once after a freeze: no search through all records in flight for each."""
    looked = 0

    class Counted(deque[Chunk]):
        def __iter__(self) -> Iterator[Chunk]:
            nonlocal looked
            for chunk in super().__iter__():
                looked += 1
                yield chunk

    flow = Flow(0)
    flow.chunks = Counted()
    for i in range(100):
        tally.handed(flow, 10, 3000 * MS + i, 0.0, 3000 * MS + i)
    for first in range(1000):
        tally.answered(flow, Refused(first, 1, "gone", True))
    assert tally.failed == 1000 and not flow.chunks
    assert looked <= 2 * 1000


def test_a_gap_is_of_all_that_was_due_not_only_of_what_is_answered_after_it(tally: Tally, clock: Clock) -> None:
    """A frozen leader never answers its records, and its successor answers later ones."""
    flow = Flow(0)
    for due_ms in (3000, 3010, 7400):
        tally.handed(flow, 1, due_ms * MS, 0.0, due_ms * MS)
        if due_ms == 3000:
            clock.ns = 3005 * MS
            tally.answered(flow, Acked(0, 1, (0,)))
    clock.ns = 7410 * MS
    tally.answered(flow, Acked(2, 1, (1,)))
    tally.answered(flow, Refused(1, 1, "no answer", True))
    assert tally.gaps == [(3010 * MS, 7410 * MS)]
