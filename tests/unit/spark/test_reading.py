"""Tests how a task handles what the store returns, above all damage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from dlog.errors import DamagedError, EntryUnreadableError, MetadataUnavailableError
from dlog.spark import cluster_connection, reading
from dlog.spark.columns import COLUMNS
from dlog.spark.losses import Loss
from dlog.spark.options import SourceOptions
from dlog.spark.planning import Range
from dlog.spark.skipped_records import Line
from dlog.stores.contract import Buffer, SegmentCorruptError, StoreUnavailableError
from tests.unit.spark.test_columns import entry_of

PART = Range(stream="s", segment=3, name="7", store="ledger", first=0, last=4)
SCHEMA = pa.schema(list(COLUMNS.items()))


class Pumped:
    """A cluster with these extents."""

    def __init__(self, payloads: list[bytes]) -> None:
        self.payloads = payloads

    def pump(self, make: Callable[[Any], AsyncIterator[Any]]) -> Iterator[reading.Extent]:
        yield PART, 0, list(self.payloads)


def options(**given: Any) -> SourceOptions:
    return SourceOptions(zookeeper="h:1", streams=("s",), **given)


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    good = [entry_of([(n, [b"%d" % n])]) for n in range(5)]
    good[2] = entry_of([(2, [b"2"])], crc=1)
    monkeypatch.setattr(reading, "reach", lambda *_: Pumped(good))


def test_damage_is_told_with_its_place(damaged: None) -> None:
    with pytest.raises(DamagedError, match="stream=s segment=3 entry=2; option onCorruption=skip-entry"):
        list(reading.batches([PART], options(), SCHEMA))


def test_damage_is_left_out_and_told_if_that_was_asked_for(damaged: None, capsys: pytest.CaptureFixture[str]) -> None:
    (batch,) = reading.batches([PART], options(on_corruption="skip-entry"), SCHEMA)
    assert [row["value"] for row in batch.to_pylist()] == [b"0", b"1", b"3", b"4"]
    assert "dlog: entry left out" in capsys.readouterr().err


def test_what_is_left_out_is_written_once_the_task_is_through(
    damaged: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[tuple[str, str, int, Loss]] = []

    async def leave(cluster: object, location: str, name: str, lines: list[Line]) -> None:
        written.extend((location, name, line.entry, line.loss) for line in lines)

    monkeypatch.setattr(reading, "leave", leave)
    monkeypatch.setattr(Pumped, "ask", lambda self, work, **_: asyncio.run(work(self)), raising=False)
    given = options(on_corruption="skip-entry", left_out_to="file:///left")
    (batch,) = reading.batches([PART], given, SCHEMA)
    assert batch.num_rows == 4
    ((place, name, entry, loss),) = written
    assert (place, entry) == ("file:///left", 2) and name.startswith("damaged-0-0-")
    assert loss == Loss(), "each of these entries says that it begins its segment"
    assert "dlog: left out: entries=1; records lost: unknown" in capsys.readouterr().err
    with pytest.raises(DamagedError):
        list(reading.batches([PART], options(), SCHEMA))
    assert len(written) == 1


class EntrySource:
    """A segment reader with faults: the errors of `faults` are raised first, then entries follow."""

    def __init__(self, faults: list[Exception], corrupt: int | None = None) -> None:
        self.faults = faults
        self.corrupt = corrupt

    async def read(self, first: int, last: int) -> list[bytes]:
        if self.faults:
            raise self.faults.pop(0)
        if self.corrupt is not None and first <= self.corrupt <= last:
            raise SegmentCorruptError("does not verify")
        return [b"%d" % n for n in range(first, last + 1)]


async def read(source: EntrySource, entry: int, **given: Any) -> list[Buffer | reading.Damaged]:
    return await reading._read(source, PART, entry, options(**given))


async def test_what_may_be_there_later_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 23: Spark itself does not try again."""
    monkeypatch.setattr(cluster_connection, "PAUSE_FIRST_S", 0.001)
    faults: list[Exception] = [StoreUnavailableError("away"), EntryUnreadableError("away"), TimeoutError()]
    assert await read(EntrySource(list(faults)), 3) == [b"3", b"4"]
    with pytest.raises(MetadataUnavailableError):
        await read(EntrySource([MetadataUnavailableError("away")] * 5), 3, fetch_retries=4)


async def test_one_damaged_entry_costs_itself_only(capsys: pytest.CaptureFixture[str]) -> None:
    got: list[Buffer | reading.Damaged] = []
    while len(got) < 5:
        got += await read(EntrySource([], corrupt=1), len(got), on_corruption="skip-entry")
    assert got == [b"0", reading.Damaged("does not verify"), b"2", b"3", b"4"]
    with pytest.raises(DamagedError, match="entry=1"):
        await read(EntrySource([], corrupt=1), 1)
