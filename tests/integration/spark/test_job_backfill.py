"""Backfill on a real cluster: a range is written once, through a transform, however often it is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dlog.errors import ConfigError, StreamNotFoundError
from dlog.spark.jobs.backfill import BackfillOptions, backfill
from dlog.spark.jobs.frame import Report, Selection, Verdict
from tests.integration.cli.up import Up, dlog
from tests.integration.spark.drivers import driver
from tests.integration.spark.lake import Lake
from tests.integration.spark.test_sink import values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@pytest.fixture(scope="module")
def filled(lake: Lake) -> str:
    """A few segments; entries of four records with txids 0, 0, 0, 0, 10, 10, ..."""
    name = lake.create(segment_bytes=65_536)
    for number in range(60):
        payloads = [b"%03d-%d" % (number, i) + b"." * 600 for i in range(4)]
        lake.client.append_batch(name, payloads, txid=10 * number)
    return name


def position_of(lake: Lake, stream: str) -> Selection:
    return Selection(zookeeper=lake.zookeeper, namespace=lake.namespace, streams=(stream,))


def copy(lake: Lake, stream: str, to: str, **options: Any) -> Report:
    return backfill(lake.spark, position_of(lake, stream), BackfillOptions(to=to, **options))


def test_a_range_is_copied_once_however_often_it_is_run(lake: Lake, filled: str) -> None:
    to = lake.create()
    source = (("endingTxid", "400"), ("startingTxid", "101"))
    expected = [r for r in lake.truth(filled) if 101 <= r[3] < 400]
    would = copy(lake, filled, to, source=source, piece_bytes=20_000, dry_run=True)
    assert would.verdict is Verdict.OK and would.counts["pieces"] > 2
    assert values(lake, to) == []
    for run in range(2):
        report = copy(lake, filled, to, source=source, piece_bytes=20_000)
        assert report.verdict is Verdict.OK, report.failures
        assert report.counts["records"] == (0 if run else len(expected))
        assert [(r[3], r[4]) for r in lake.truth(to)] == [(r[3], r[4]) for r in expected]
    lake.client.append_batch(filled, [b"late"], txid=600)
    assert copy(lake, filled, to, source=source, piece_bytes=20_000).counts["records"] == 0


def test_the_first_run_decides_what_is_copied(lake: Lake) -> None:
    name, to = lake.create(), lake.create()
    lake.client.append_batch(name, [b"a", b"b"], txid=1)
    copy(lake, name, to, job="j1")
    lake.client.append_batch(name, [b"c"], txid=2)
    assert copy(lake, name, to, job="j1").counts["records"] == 0
    assert values(lake, to) == [b"a", b"b"]
    with pytest.raises(ConfigError, match="a job of this name copied something else"):
        copy(lake, name, to, job="j1", txids="new")


def upper(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("upper(cast(value as string)) as value", "txid")


def test_a_transform_is_a_function_or_a_query(lake: Lake) -> None:
    name, by_function, by_query = lake.create(), lake.create(), lake.create()
    lake.client.append_batch(name, [b"a", b"b", b"c"], txid=5)
    copy(lake, name, by_function, function=f"{__name__}:upper")
    copy(lake, name, by_query, sql="SELECT value FROM input WHERE slot <> 1", txids="new")
    assert values(lake, by_function) == [b"A", b"B", b"C"]
    assert values(lake, by_query) == [b"a", b"c"]


def test_a_target_that_is_past_the_txids_is_told_and_new_ones_are_a_way_out(lake: Lake) -> None:
    name, to = lake.create(), lake.create()
    lake.client.append_batch(name, [b"a"], txid=5)
    lake.client.append(to, b"there", txid=100)
    report = copy(lake, name, to)
    assert report.verdict is Verdict.FAILED
    assert "txids may not decrease" in report.failures[0]["error"]
    assert copy(lake, name, to, txids="new").verdict is Verdict.OK
    assert values(lake, to) == [b"there", b"a"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"txids": "some"}, "unknown choice of txids"),
        ({"function": "nowhere:at_all"}, "the function cannot be imported"),
        ({"function": "json"}, "module:function"),
        ({"function": "json:loads", "sql": "select 1"}, "not both"),
        ({"source": (("stream", "x"),)}, "that bound the range"),
        ({"source": (("startingTxid", "x"),)}, "a txid is a whole number"),
    ],
)
def test_what_makes_no_sense_is_refused_before_it_begins(lake: Lake, options: dict[str, Any], said: str) -> None:
    to = lake.create()
    with pytest.raises(ConfigError, match=said):
        copy(lake, "any", to, **options)


def test_streams_that_are_not_there_are_named(lake: Lake, filled: str) -> None:
    with pytest.raises(StreamNotFoundError, match="create it first"):
        copy(lake, filled, "nowhere")
    with pytest.raises(ConfigError, match="copied to itself"):
        copy(lake, filled, filled)


def test_the_command_is_killed_in_the_middle_and_goes_on(cluster: Up, lake: Lake, filled: str, tmp_path: Path) -> None:
    to = lake.create()
    report = tmp_path / "report.json"
    command = ["pipeline", "backfill", "--stream", filled, "--to", to]
    command += ["--zookeeper", lake.zookeeper, "--namespace", lake.namespace, "--master", "local[2]"]
    command += ["--piece-bytes", "14KiB", "--report", str(report)]
    expected = [(r[3], r[4]) for r in lake.truth(filled)]
    with driver(*command, directory=cluster.directory, room=tmp_path) as running:
        running.wait(lambda: 0 < len(values(lake, to)) < len(expected) // 2, "it does not begin to write")
    assert 0 < len(values(lake, to)) < len(expected)
    code, _, why = dlog(*command, directory=cluster.directory)
    assert code == 0, why
    assert [(r[3], r[4]) for r in lake.truth(to)] == expected
    told = json.loads(report.read_text())
    assert told["verdict"] == "ok" and told["counts"]["done_before"] > 0
    code, _, why = dlog(*command, "--txids", "some", directory=cluster.directory)
    assert code == 1 and "unknown choice of txids" in why
