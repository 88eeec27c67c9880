"""A stream as a table, on a real cluster and a real Spark: it has the rows that a reader reads, each once."""

from __future__ import annotations

import json
import shutil
import uuid
from contextlib import suppress
from dataclasses import replace

import pytest

from dlog.errors import ConfigError, StreamExistsError, StreamNotFoundError, UnsupportedVersionError
from tests.integration.cli.up import dlog
from tests.integration.spark.desk import Desk


def test_a_table_is_what_a_reader_reads_and_a_second_run_adds_what_came(desk: Desk) -> None:
    stream = desk.stream()
    desk.append(stream, 80)
    dry = desk.run(stream, dry_run=True)
    assert not desk.to.exists() and not desk.checkpoint.exists()
    assert dry.counts["behind_records"] > 0
    first = desk.run(stream)
    truth = desk.truth(stream)
    assert len({row[0] for row in truth}) > 1, "several segments, else this shows little"
    assert desk.rows() == truth
    assert (first.counts["records"], first.counts["behind_records"], int(first.verdict)) == (len(truth), 0, 0)
    files = set(desk.to.rglob("*.parquet"))
    again = desk.run(stream)
    assert again.counts["records"] == 0 and set(desk.to.rglob("*.parquet")) == files
    desk.append(stream, 10)
    more = desk.run(stream)
    assert more.counts["records"] == 30 and files < set(desk.to.rglob("*.parquet"))
    assert desk.rows() == desk.truth(stream)
    (item,) = more.items
    assert item["stream"] == stream and item["behind_records"] == 0
    assert set(desk.spark.read.parquet(str(desk.to)).columns) == {
        *("stream", "segment", "entry", "slot", "txid", "sequence_id", "timestamp", "value")
    }


def test_days_are_directories(desk: Desk) -> None:
    stream = desk.stream()
    desk.append(stream, 5)
    desk.run(stream, partition_by="day")
    days = [path.name for path in desk.to.glob("day=*")]
    assert days and all(len(day) == len("day=2026-11-22") for day in days)
    assert desk.rows() == desk.truth(stream)


NASTY = ("007", "7", "1e5", "2026-11-20", "2026-11-20-10", "1.50", "-1", "0x10", "NaN", "true", "null", "a_b.c-d")


def test_streams_are_directories_and_their_names_stay_what_they_are(desk: Desk) -> None:
    """A reader that infers the types of partition columns reads the names back unchanged."""
    from dlog.spark.jobs.table import table

    run = uuid.uuid4().hex[:6]
    for kept, names in ((run, NASTY), (f"{run}-alone", NASTY[:1])):
        for name in names:
            with suppress(StreamExistsError):
                desk.client.create(name)
            desk.client.append(name, name.encode())
        place = replace(desk.selection("x"), streams=names)
        options = desk.options(
            to=str(desk.room / kept), checkpoint=str(desk.room / f"{kept}-at"), partition_by="stream"
        )
        assert int(table(desk.spark, place, options).verdict) == 0
        frame = desk.spark.read.parquet(options.to)
        assert dict(frame.dtypes)["stream"] == "string"
        assert {(r.stream, bytes(r.value).decode()) for r in frame.collect()} == {(name, name) for name in names}
        assert frame.where("stream_directory = 'is-007'").count() == frame.where("stream = '007'").count() > 0


def test_directories_of_something_else_are_refused(desk: Desk) -> None:
    one, other = desk.stream(), desk.stream()
    desk.append(one, 2)
    desk.append(other, 2)
    desk.run(one)
    with pytest.raises(ConfigError, match=f"table of another query.*streams={one} wanted={other}"):
        desk.run(other)
    with pytest.raises(ConfigError, match=f"checkpoint of another query.*streams={one} wanted={other}"):
        desk.run(other, to=str(desk.room / "new"))
    with pytest.raises(ConfigError, match=r"table of another query.*partition_by= wanted=day"):
        desk.run(one, partition_by="day")
    with pytest.raises(ConfigError, match="its table is gone"):
        desk.run(one, to=str(desk.room / "new"))
    with pytest.raises(ConfigError, match="it was written with another checkpoint"):
        desk.run(one, checkpoint=str(desk.room / "new"))
    desk.run(one, to=str(desk.room / "two"), checkpoint=str(desk.room / "two-checkpoint"))
    with pytest.raises(ConfigError, match="this table was written with another checkpoint"):
        desk.run(one, checkpoint=str(desk.room / "two-checkpoint"))
    (desk.room / "letters").mkdir()
    (desk.room / "letters" / "a.txt").write_text("a letter")
    with pytest.raises(ConfigError, match="it has other contents"):
        desk.run(one, to=str(desk.room / "letters"), checkpoint=str(desk.room / "new"))
    assert not (desk.room / "new").exists(), "what is refused writes nothing"
    with pytest.raises(StreamNotFoundError, match="stream=t-none"):
        desk.run("t-none", to=str(desk.room / "new"), checkpoint=str(desk.room / "newer"))
    assert desk.rows() == desk.truth(one)


def test_delta_is_refused_where_it_does_not_run(desk: Desk) -> None:
    stream = desk.stream()
    desk.append(stream, 1)
    with pytest.raises(
        UnsupportedVersionError, match=r"does not run in this session.*its jars are missing.*spark\.jars"
    ):
        desk.run(stream, format="delta")
    assert not desk.to.exists()
    desk.run(stream)
    assert desk.rows() == desk.truth(stream), "and the directories are free for Parquet"


def test_what_the_stream_lost_is_a_failure_and_the_table_stays(desk: Desk) -> None:
    stream = desk.stream()
    desk.append(stream, 3)
    desk.run(stream)
    before = desk.rows()
    desk.client.delete(stream)
    desk.client.create(stream)
    report = desk.run(stream)
    assert "deleted and created again under the same name" in report.failures[0]["error"] and int(report.verdict) == 3
    assert desk.rows() == before


def test_a_start_that_was_killed_between_two_names_goes_on(desk: Desk) -> None:
    stream = desk.stream()
    desk.append(stream, 2)
    desk.run(stream)
    mark = (desk.to / "_dlog_table.json").read_bytes()
    for path in (desk.to, desk.checkpoint):
        shutil.rmtree(path)
    desk.to.mkdir()
    (desk.to / "_dlog_table.json").write_bytes(mark)
    (desk.to / "._dlog_table.json-0").write_bytes(b"")
    desk.run(stream)
    assert desk.rows() == desk.truth(stream)


def test_killed_in_the_middle_and_run_again_it_has_each_row_once(desk: Desk) -> None:
    """The whole process group gets SIGKILL, when files of a batch are written that no log names yet."""
    stream = desk.stream()
    desk.append(stream, 14)
    bound = ("--source", "maxOffsetsPerTrigger=6")
    with desk.driver(stream, *bound) as running:
        running.wait((desk.to / "_spark_metadata" / "1").exists, "no batch is done")
    truth = desk.truth(stream)
    assert 0 < len(desk.rows()) < len(truth)
    code, out, told = dlog(*desk.command(stream, *bound), directory=desk.cluster.directory)
    assert code == 0, told
    assert desk.rows() == truth
    assert 0 < json.loads(out)["counts"]["records"] < len(truth), "it went on where it was"


def test_it_follows_until_it_is_interrupted(desk: Desk) -> None:
    stream = desk.stream()
    desk.append(stream, 3)
    with desk.driver(stream, "--follow", "--every", "0s") as running:
        running.wait((desk.to / "_spark_metadata" / "0").exists, "no batch is done")
        desk.append(stream, 4)
        truth = desk.truth(stream)
        running.wait(lambda: len(desk.rows()) == len(truth), "it does not follow")
        running.interrupt()
    report = json.loads(running.said.read_bytes())
    assert (report["verdict"], report["counts"]["records"]) == ("ok", len(truth))
    assert desk.rows() == truth
    assert desk.run(stream).counts["records"] == 0


def test_options_that_mean_nothing_are_refused(desk: Desk) -> None:
    place = desk.selection("s")
    for given, why in (
        ({"to": ""}, "a directory for the table"),
        ({"format": "csv"}, "one of parquet, delta"),
        ({"partition_by": "hour"}, "day or stream"),
        ({"every_s": -1.0}, "every_s"),
        ({"checkpoint": str(desk.to / "_checkpoint")}, "neither inside the other"),
    ):
        with pytest.raises(ConfigError, match=why):
            desk.options(**given)
    with pytest.raises(ConfigError, match="this option of the source cannot be set here, remove it: option=streams"):
        desk.options(source={"Streams": "a"}).source_options(place)
    told = desk.options(source={"startingTxid": "7"}).source_options(place)
    assert "startingOffsets" not in told and told["maxBytesPerTrigger"] == str(1 << 30)
    assert replace(desk.options(), source={}).source_options(place)["startingOffsets"] == "earliest"
