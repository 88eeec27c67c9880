"""Tests the streaming source: every record once, whatever happens between two batches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli.up import wait_until
from tests.integration.spark.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

PATIENCE_S = 120


class Query:
    """One query that writes its batches down, restarted any number of times on the same checkpoint."""

    def __init__(self, lake: Lake, stream: str, directory: Path, **options: Any) -> None:
        self.lake = lake
        self.options = {"stream": stream, "startingOffsets": "earliest", **options}
        self.directory = directory
        self.batches: list[tuple[int, list[bytes]]] = []

    def frame(self) -> DataFrame:
        reader = self.lake.spark.readStream.format("dlog")
        reader = reader.option("zookeeper", self.lake.zookeeper).option("namespace", self.lake.namespace)
        for key, value in self.options.items():
            reader = reader.option(key, value)
        return reader.load()

    def start(self, **trigger: Any) -> StreamingQuery:
        def note(batch: DataFrame, number: int) -> None:
            rows = batch.select("segment", "entry", "slot", "value").orderBy("segment", "entry", "slot").collect()
            self.batches.append((number, [bytes(r.value) for r in rows]))

        writer = self.frame().writeStream.foreachBatch(note).option("checkpointLocation", str(self.directory))
        return writer.trigger(**trigger).start()

    def run(self) -> list[bytes]:
        """Run once through all records; returns what it read."""
        before = len(self.batches)
        query = self.start(availableNow=True)
        assert query.awaitTermination(PATIENCE_S)
        return [value for _, values in self.batches[before:] for value in values]

    @property
    def values(self) -> list[bytes]:
        return [value for _, values in self.batches for value in values]


def fill(lake: Lake, name: str, first: int, count: int) -> list[bytes]:
    values = [b"%05d" % number for number in range(first, first + count)]
    for value in values:
        lake.client.append(name, value)
    return values


def until(condition: Callable[[], bool], query: StreamingQuery) -> None:
    wait_until(lambda: query.exception() is not None or condition(), "the query does not come to it")
    assert query.exception() is None


def test_every_record_once_over_runs_and_segments(lake: Lake, tmp_path: Path) -> None:
    name = lake.create()
    query = Query(lake, name, tmp_path)
    first = fill(lake, name, 0, 25)
    lake.client.hand_over(name)  # its next owner begins another segment
    first += fill(lake, name, 25, 25)
    assert query.run() == first
    assert query.run() == [], "nothing came"
    second = fill(lake, name, 50, 50)
    assert query.run() == second
    assert query.values == first + second


def test_available_now_keeps_the_bounds_of_a_trigger_and_ends_where_it_began_to_look(
    lake: Lake, tmp_path: Path
) -> None:
    """Trap 26."""
    name = lake.create()
    expected = fill(lake, name, 0, 100)
    query = Query(lake, name, tmp_path, maxOffsetsPerTrigger=30)
    assert query.run() == expected
    assert len(query.batches) >= 4
    assert all(len(values) <= 40 for _, values in query.batches), "a bound is rounded to entries"


def test_a_query_follows_what_comes(lake: Lake, tmp_path: Path) -> None:
    name = lake.create()
    query = Query(lake, name, tmp_path)
    expected = fill(lake, name, 0, 5)
    running = query.start(processingTime="0 seconds")
    try:
        until(lambda: query.values == expected, running)
        expected += fill(lake, name, 5, 20)
        until(lambda: query.values == expected, running)
        batches = len(query.batches)
        time.sleep(3)  # Spark polls all the time: there is no event for what did not happen
        assert len(query.batches) == batches, "nothing comes, so there are no batches"
        (source,) = json.loads(running.recentProgress[-1].json)["sources"]
        assert source["latestOffset"], "how far behind it is can be told"
    finally:
        running.stop()


def test_the_latest_place_is_pinned_under_the_name_of_the_reader(lake: Lake, tmp_path: Path) -> None:
    """Trap 19: records between two looks at "latest" would be lost without a report."""
    name = lake.create()
    fill(lake, name, 0, 10)
    options = {"startingOffsets": "latest", "readerId": f"r-{name}"}
    first = Query(lake, name, tmp_path / "one", **options)
    assert first.run() == []
    late = fill(lake, name, 10, 5)
    again = Query(lake, name, tmp_path / "two", **options)  # its checkpoint was lost: it begins where it first began
    assert again.run() == late


def test_truncation_below_the_checkpoint_is_told(lake: Lake, tmp_path: Path) -> None:
    """Trap 31: going on from the present start of the log would be a loss without a report."""
    name = lake.create()
    fill(lake, name, 0, 10)
    query = Query(lake, name, tmp_path)
    query.run()
    fill(lake, name, 10, 8)
    lake.client.hand_over(name)
    fill(lake, name, 18, 2)
    places = [record.dlsn for record in lake.client.read(name, follow=False)]
    lake.client.truncate(name, places[15])
    with pytest.raises(Exception, match="records were truncated before they were read"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert query.run() == [b"%05d" % number for number in range(15, 20)]


def test_a_stream_that_matches_later_is_read_from_its_first_record(lake: Lake, tmp_path: Path) -> None:
    stem = lake.create()
    query = Query(lake, stem, tmp_path, streamsPattern=f"{stem}.*")
    del query.options["stream"]
    fill(lake, stem, 0, 3)
    assert query.run() == [b"00000", b"00001", b"00002"]
    lake.client.create(f"{stem}-late")
    fill(lake, f"{stem}-late", 7, 2)
    assert query.run() == [b"00007", b"00008"]


def test_few_records_wait_for_more_but_not_for_ever(lake: Lake, tmp_path: Path) -> None:
    """Trap 27."""
    name = lake.create()
    query = Query(lake, name, tmp_path, minOffsetsPerTrigger=10, maxTriggerDelay="4s")
    fill(lake, name, 0, 3)
    running = query.start(processingTime="0 seconds")
    try:
        until(lambda: len(query.values) == 3, running)  # after the delay
        fill(lake, name, 3, 12)
        until(lambda: len(query.values) == 15, running)
    finally:
        running.stop()


def test_a_stream_that_was_deleted_is_told_or_gone_on_without(lake: Lake, tmp_path: Path) -> None:
    stem = lake.create()
    other = f"{stem}-other"
    lake.client.create(other)
    query = Query(lake, stem, tmp_path, streams=f"{stem},{other}")
    del query.options["stream"]
    fill(lake, stem, 0, 2)
    fill(lake, other, 2, 2)
    query.run()
    lake.client.delete(other)
    more = fill(lake, stem, 4, 2)
    with pytest.raises(Exception, match="the stream was deleted; option failOnDataLoss=false"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert query.run() == more


def test_a_stream_made_again_is_told_or_read_from_its_first_record(lake: Lake, tmp_path: Path) -> None:
    name = lake.create()
    query = Query(lake, name, tmp_path)
    fill(lake, name, 0, 5)
    query.run()
    lake.client.delete(name)
    lake.client.create(name)
    again = fill(lake, name, 10, 1)
    with pytest.raises(Exception, match="deleted and created again under the same name"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert query.run() == again


def test_one_name_of_a_reader_is_for_the_streams_it_began_with(lake: Lake, tmp_path: Path) -> None:
    one, other = lake.create(), lake.create()
    options = {"startingOffsets": "latest", "readerId": f"r-{one}"}
    Query(lake, one, tmp_path / "one", **options).run()
    with pytest.raises(Exception, match="the readerId belongs to a reader of other streams"):
        Query(lake, other, tmp_path / "other", **options).run()
