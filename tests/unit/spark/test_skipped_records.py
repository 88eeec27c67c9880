"""Tests the report of what a task left out: a line per entry, with the records that its neighbours prove."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from dlog.errors import ConfigError
from dlog.io.objects import Objects
from dlog.spark.cluster_connection import Cluster
from dlog.spark.columns import Run
from dlog.spark.losses import UNKNOWN, Loss
from dlog.spark.offsets import StreamOffset, StreamPosition
from dlog.spark.planning import Range
from dlog.spark.skipped_records import Line, SkippedEntries, attempt_name, check_location, leave, loss_name

WHOLE = Range(stream="s", segment=3, name="7", store="ledger", first=0, last=9, counted=40)
PART = Range(stream="s", segment=4, name="8", store="ledger", first=5, last=9)


def run(entry: int, position: int, count: int) -> Run:
    return Run(entry, 0, position, 1, 1, [b""] * count)


def losses(left: SkippedEntries) -> list[tuple[int, Loss]]:
    return [(line.entry, line.loss) for line in left.finish()]


def test_the_gap_between_two_neighbours_is_what_is_missing() -> None:
    left = SkippedEntries(lambda: 12)
    left.passed(WHOLE, run(0, 1, 4))
    left.skipped(WHOLE, 1, "it is bad")
    left.passed(WHOLE, run(2, 9, 1))
    (line,) = left.finish()
    assert line == Line("damaged", "s", 3, 1, "it is bad", Loss(4, 4), 12)
    assert line.as_json()["records"] == line.as_json()["records_max"] == 4


def test_the_first_and_the_last_of_a_segment_are_counted_by_its_ends() -> None:
    left = SkippedEntries()
    left.skipped(WHOLE, 0, "bad")
    left.passed(WHOLE, run(1, 4, 30))
    left.skipped(WHOLE, 9, "bad")
    assert losses(left) == [(0, Loss(3, 3)), (9, Loss(7, 7))]
    assert left.total == Loss(10, 10)


def test_at_the_borders_of_a_part_nobody_knows() -> None:
    left = SkippedEntries()
    left.skipped(PART, 5, "bad")
    left.passed(PART, run(6, 4, 2))
    left.skipped(PART, 9, "bad")
    left.passed(WHOLE, run(0, 1, 40))
    assert losses(left) == [(5, UNKNOWN), (9, UNKNOWN)]
    assert left.lines[0].as_json()["records"] is None


def test_entries_in_a_row_are_counted_together_and_once() -> None:
    left = SkippedEntries()
    left.passed(WHOLE, run(0, 1, 4))
    left.skipped(WHOLE, 1, "bad")
    left.skipped(WHOLE, 2, "bad")
    left.passed(WHOLE, run(3, 9, 32))
    assert losses(left) == [(1, Loss(0, 4)), (2, Loss(0, 4))]
    assert left.total == Loss(4, 4)


class _RangeReader:
    def __init__(self, objects: Objects) -> None:
        self.objects = objects


async def test_lines_lie_there_whole_and_a_loss_once(tmp_path: Path) -> None:
    line = Line("lost", "s", 3, 10, "gone", Loss(3, 9), 12)
    mark = StreamOffset(StreamPosition(3, 10), "a")
    async with Objects() as objects:
        cluster = Cluster(cast(Any, None), cast(Any, None), {"cold": cast(Any, _RangeReader(objects))})
        place = f"file://{tmp_path}/left"
        await check_location(cluster, place)
        for _ in range(2):
            await leave(cluster, place, loss_name("s", mark), [line])
            await leave(cluster, place, attempt_name(), [line, line])
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="leftOutTo: the location cannot be used, name one that the driver"):
            await check_location(cluster, f"file://{tmp_path}/file")
    files = sorted((tmp_path / "left").iterdir())
    assert [file.name.partition("-")[0] for file in files] == ["damaged", "damaged", "lost"]
    told = json.loads(files[-1].read_text())
    assert (told["kind"], told["records"], told["records_min"], told["records_max"]) == ("lost", None, 3, 9)
    assert len(files[0].read_text().splitlines()) == 2


def test_names_tell_streams_and_lives_apart() -> None:
    mark = StreamOffset(StreamPosition(3, 10), "a")
    names = {
        loss_name("s", mark),
        loss_name("t", mark),
        loss_name("s", mark._replace(incarnation="b")),
        loss_name("s:", mark),
    }
    assert len({*names, loss_name("s_", mark)}) == 5
    assert loss_name("s", mark) == loss_name("s", mark._replace(read=3)), "a batch that is repeated tells it again"
