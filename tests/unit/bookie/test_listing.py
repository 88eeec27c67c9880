"""Lists of entries: exact whatever lies where, and bounded in memory at the sizes that real ledgers have."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dlog.bookie.index import CHUNK_ENTRIES, RunTable
from dlog.bookie.journal import FIRST_MARKS
from dlog.bookie.listing import Run, joined, list_of
from dlog.bookie.messages import Fetch, ListStored
from dlog.bookie.options import BookieOptions
from dlog.io.bookie_disk import BookieDisk
from dlog.io.ledger_dir import LedgerDir
from dlog.wire.bookie_availability import GROUPS_MAX
from tests.crashpoints.station import fresh
from tests.simulation.disk import SimulatedDisk
from tests.sorted_runs import sorted_index
from tests.unit.bookie.test_ledger_dir import directory, half, row

Group = tuple[int, int, int, int]  # first, last, size, period


def groups(listed: bytes | None) -> list[Group]:
    assert listed is not None
    version, count = struct.unpack_from(">ii", listed)
    found = list(struct.iter_unpack(">qqii", listed[64:]))
    assert (version, count) == (0, len(found))
    return found


def ids(listed: bytes | None) -> list[int]:
    return [
        start + n
        for first, last, size, period in groups(listed)
        for start in range(first, last + 1, period or 1)
        for n in range(size)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_list_has_each_entry_once_wherever_it_lies(seed: int) -> None:
    rng = random.Random(seed)
    made: LedgerDir = directory(SimulatedDisk())
    there: set[int] = set()
    for _ in range(rng.randrange(6)):
        step, first = rng.choice((1, 1, 2, 3)), rng.randrange(500)
        entries = [first + n * step for n in range(rng.randrange(1, 400)) if rng.random() < 0.99]
        there.update(entries)
        made.flush(half(*((1, entry) for entry in entries), (2, 7)), [row(1, 9_999), row(2, 7)], FIRST_MARKS)
        if rng.random() < 0.3:
            made.merge_runs()
    in_memory = [rng.randrange(1000) for _ in range(rng.randrange(300))]
    there.update(in_memory)
    assert ids(list_of(made.entry_runs(1), in_memory)) == sorted(there)


def test_runs_that_touch_or_overlap_become_one() -> None:
    runs = [(0, 3), (2, 2), (4, 9), (11, 12), (12, 20), (22, 22)]
    assert list(joined(runs)) == [(0, 9), (11, 20), (22, 22)] and list(joined([])) == []


def test_a_ledger_of_a_hundred_million_entries_is_one_group() -> None:
    chunks = 510_000
    table = RunTable()
    firsts = range(0, chunks * CHUNK_ENTRIES, CHUNK_ENTRIES)
    for column, values in zip(
        table.columns,
        (itertools.repeat(1, chunks), firsts, (f + CHUNK_ENTRIES - 1 for f in firsts), firsts, ()),
        strict=True,
    ):
        column.extend(values)
    table.columns[4].extend(itertools.repeat(CHUNK_ENTRIES, chunks))
    made = directory(SimulatedDisk())
    sorted_index(made).runs = (SimpleNamespace(table=table),)  # type: ignore[assignment]  # only its table is used
    assert groups(list_of(made.entry_runs(1), [])) == [(0, 0, chunks * CHUNK_ENTRIES, 0)]


def test_a_striped_ledger_of_any_length_is_one_group() -> None:
    """Two of three entries are here, as in each bookie of a ledger of 3/2/2."""
    runs = 600_000
    listed = list_of([((first, first + 1) for first in range(0, 3 * runs, 3))], [])
    assert groups(listed) == [(0, 3 * (runs - 1), 2, 3)]


def test_a_list_with_too_many_groups_is_given_up_at_that_group() -> None:
    taken = 0

    def irregular() -> Iterator[Run]:
        nonlocal taken
        for taken in itertools.count(2):
            yield taken**2, taken**2

    assert list_of([irregular()], []) is None
    assert taken <= 2 * GROUPS_MAX + 10, "a group takes at most two of them"
    squares = [n**2 for n in range(2, 13)]
    assert ids(list_of([], squares, 6)) == squares
    assert list_of([], squares, 5) is None


class Pools:
    """Threads that do nothing; `submitted`: what each pool got, `sizes`: how many workers it has."""

    def __init__(self) -> None:
        self.submitted: list[tuple[str, Any]] = []
        self.sizes: dict[str, int] = {}

    def line(self, name: str, work: Any, on_failed: Any) -> Any:
        return None

    def pool(self, name: str, count: int, on_failed: Any) -> Any:
        self.sizes[name] = count

        def submit(work: Callable[..., None], *args: Any) -> None:
            self.submitted.append((name, args[0] if args else None))

        return SimpleNamespace(submit=submit)


def test_lists_run_one_at_a_time_and_take_no_reader() -> None:
    options = BookieOptions(journal_file_bytes=64 * 1024)
    station, threads = fresh(options), Pools()
    disk = BookieDisk(
        station.disk,
        station.opened,
        options,
        (),
        threads,  # type: ignore[arg-type]
        post=lambda _: None,
        on_failed=lambda _: None,
        on_event=lambda _: None,
    )
    disk.start()
    wanted, fetch = ListStored(1, 1, []), Fetch(1, 1, 0, 1, 1)
    disk.list(wanted)
    disk.fetch(fetch)
    assert threads.submitted[-2:] == [("list", wanted), ("read", fetch)]
    assert threads.sizes["list"] == 1
