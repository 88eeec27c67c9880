"""Tests options: each default, and each refusal with what would be right."""

from __future__ import annotations

import pytest

from dlog.errors import ConfigError
from dlog.spark.offsets import StreamPosition
from dlog.spark.options import EARLIEST, LATEST, Kind, SourceOptions, parse
from dlog.spark.sink_options import parse_sink

HERE = {"zookeeper": "h1:2181,h2:2181/chroot", "stream": "s"}


def batch(**given: str) -> SourceOptions:
    return parse({**HERE, **given}, streaming=False)


def stream(**given: str) -> SourceOptions:
    return parse({**HERE, **given}, streaming=True)


def test_a_batch_begins_with_the_first_record_and_ends_with_the_last() -> None:
    options = batch()
    assert (options.starting.default, options.ending.default) == (EARLIEST, LATEST)
    assert options.split_bytes == 128 << 20 and options.fail_on_data_loss and options.verify == "crc"


def test_a_stream_that_begins_with_what_comes_needs_a_name_to_keep_its_place_under() -> None:
    with pytest.raises(ConfigError, match="set readerId"):
        stream()
    assert stream(readerId="r").starting.default == LATEST
    assert stream(startingOffsets="earliest").starting.default == EARLIEST
    with pytest.raises(ConfigError, match="set readerId"):
        stream(startingTimestamp="2026-11-22T10:00:00Z")


def test_names_of_options_have_no_case() -> None:
    """Trap 10."""
    assert batch(SPLITBYTES="1m").split_bytes == batch(splitBytes="1MiB").split_bytes == 1 << 20


def test_time_goes_before_txid_and_txid_before_offsets() -> None:
    given = {"startingOffsets": "earliest", "startingTxid": "7", "startingTimestamp": "1000000000000"}
    assert batch(**given).starting.default.kind is Kind.TIME
    del given["startingTimestamp"]
    assert batch(**given).starting.default.kind is Kind.TXID
    del given["startingTxid"]
    assert batch(**given).starting.default is EARLIEST


def test_places_by_stream_leave_the_others_at_their_default() -> None:
    options = parse(
        {"zookeeper": "h:1", "streams": "a, b,a", "startingOffsets": '{"a":[3,4]}', "endingOffsets": '{"b":"latest"}'},
        streaming=False,
    )
    assert options.streams == ("a", "b")
    assert options.starting.of("a").position == StreamPosition(3, 4) and options.starting.of("b") == EARLIEST


def test_times_are_read_as_written() -> None:
    assert batch(startingTimestamp="2026-11-22T10:00:00Z").starting.default.value == 1795341600000
    assert batch(startingTimestamp="2026-11-22T12:00:00+02:00").starting.default.value == 1795341600000
    assert batch(startingTimestampByStream='{"s": 1795341600000}').starting.of("s").value == 1795341600000
    assert batch(endingTimestamp="1795341600").ending.default.value == 1795341600000
    assert batch(endingTimestamp="1795341600000").ending.default.value == 1795341600000


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"zookeeper": ""}, "set option zookeeper"),
        ({"zookeeper": "nowhere"}, "set option zookeeper"),
        ({"stream": ""}, "exactly one of stream, streams, streamsPattern"),
        ({"streams": "a,b"}, "exactly one of"),
        ({"stream": "../x"}, "stream: a stream name holds"),
        ({"path": "s"}, "load\\(\\) takes no path"),
        ({"spiltBytes": "1m"}, "did you mean splitBytes"),
        ({"anything": "1"}, "no such option of format dlog"),
        ({"splitBytes": "0"}, "splitBytes: expected at least 1"),
        ({"splitBytes": "much"}, "splitBytes: not a size"),
        ({"minPartitions": "-1"}, "minPartitions: expected a whole number"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss: expected true or false"),
        ({"pushdown": "true"}, "pushdown: Spark would give wrong rows to the second query"),
        ({"pushdown": "yes"}, "pushdown: expected false or once"),
        ({"verify": "some"}, "verify: expected one of crc, full, none"),
        ({"leftOutTo": "file:///left"}, "leftOutTo: nothing is ever left out; set onCorruption=skip-entry"),
        ({"leftOutTo": "/left", "onCorruption": "skip-entry"}, "leftOutTo: invalid object location: write file:///"),
        ({"leftOutTo": "hdfs://n:1/x", "onCorruption": "skip-entry"}, "leftOutTo: .*say the NameNode's HTTP address"),
        (
            {"leftOutTo": "file:///left", "onCorruption": "skip-entry", "metadata": "entries"},
            "leftOutTo applies to reads of records",
        ),
        ({"onCorruption": "ignore"}, "onCorruption: expected one of fail, skip-entry"),
        ({"startingOffsets": "latest"}, "a batch that begins at the latest position is empty"),
        ({"startingOffsets": '{"s":"latest"}'}, "a batch that begins at the latest position is empty"),
        ({"endingOffsets": "earliest"}, "a batch that ends at the earliest position is empty"),
        ({"startingOffsets": "soon"}, "expected JSON"),
        ({"startingOffsets": '{"s":[1]}'}, "startingOffsets of s: a position is"),
        ({"startingOffsets": '{"other":[1,0]}'}, "starting bound of a stream that is not read"),
        ({"startingTxid": "-3"}, "startingTxid: a txid is a whole number"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp: a time is unix milliseconds or as"),
        ({"startingTimestamp": "20261120"}, "startingTimestamp: a time is unix milliseconds or as"),
        ({"endingTimestamp": "2026-11-20"}, "endingTimestamp: which time zone?"),
        ({"startingTimestampByStream": '{"a": 20261120}'}, "startingTimestampByStream of a: a time is"),
        ({"readerId": "r"}, "readerId is an option of streaming reads only"),
        ({"maxBytesPerTrigger": "1m"}, "maxBytesPerTrigger is an option of streaming reads only"),
    ],
)
def test_what_means_nothing_is_refused_with_what_would(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse({**HERE, **given}, streaming=False)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is an option of batch reads only"),
        ({"pushdown": "once"}, "pushdown is an option of batch reads only"),
        ({"metadata": "lag"}, "metadata is an option of batch reads only"),
        ({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "5"}, "at most one limit of a trigger"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "minOffsetsPerTrigger may not exceed"),
        ({"maxTriggerDelay": "long"}, "maxTriggerDelay: not a duration"),
        ({"readerId": "a/b"}, "readerId: expected 1 to 100 letters"),
    ],
)
def test_what_a_stream_cannot_be_asked_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse({**HERE, "startingOffsets": "earliest", **given}, streaming=True)


def test_what_is_left_out_has_a_place_where_something_may_be() -> None:
    assert batch(leftOutTo="file:///left/", onCorruption="skip-entry").left_out_to == "file:///left"
    assert stream(leftOutTo="s3://bucket/x", failOnDataLoss="false", readerId="r").left_out_to == "s3://bucket/x"
    assert not batch(onCorruption="skip-entry").left_out_to


def test_a_pattern_matches_whole_names_and_must_be_one() -> None:
    options = parse({"zookeeper": "h:1", "streamsPattern": "a.*"}, streaming=False)
    assert options.selects("ab") and not options.selects("ba")
    with pytest.raises(ConfigError, match="streamsPattern is not a regular expression"):
        parse({"zookeeper": "h:1", "streamsPattern": "("}, streaming=False)


def test_stores_of_segments_have_options_of_source_and_sink() -> None:
    given = {"zookeeper": "h:1", "stream": "s", "File.Directory": "/Segments", "cold.timeout_s": "5"}
    for options in (parse(given, streaming=False), parse_sink(given, streaming=False)):
        assert options.stores.file.directory == "/Segments"
        assert options.stores.cold.timeout_s == 5.0
    for wrong in ("file.dir", "filedirectory"):
        with pytest.raises(ConfigError):
            parse_sink({"zookeeper": "h:1", "stream": "s", wrong: "/x"}, streaming=False)
