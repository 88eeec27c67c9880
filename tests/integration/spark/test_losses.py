"""Records that a query can no longer read are counted, reported and written down; records that are not lost are not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlog.log.dedup_trailer import encode_trailer
from dlog.model.ids import EntryId, stream_name
from dlog.model.quorum import Quorum
from dlog.model.segment import StreamKey, StreamMetadata
from dlog.spark.cluster_connection import Cluster, reach
from dlog.wire.entry import CONTROL, RECORD_SET, Record, build_record_set, encode_entry
from tests.integration.cli.up import wait_until
from tests.integration.spark.lake import Lake
from tests.integration.spark.test_streaming import Query, fill


def metadata(lake: Lake, name: str) -> StreamMetadata:
    async def look(cluster: Cluster) -> StreamMetadata:
        seen: Any = await cluster.metadata.read(StreamKey(stream_name(name)))
        value: StreamMetadata = seen.value
        return value

    return reach(lake.zookeeper, lake.namespace).ask(look)


def end_segment(lake: Lake, name: str) -> None:
    lake.client.hand_over(name)
    wait_until(lambda: metadata(lake, name).owner.released, "the stream is not handed back")


def plant(lake: Lake, name: str, batches: list[list[bytes]], bad: int) -> None:
    """Put the first segment of the stream into a ledger with an entry for each of these batches; one batch has a wrong
    producer's checksum."""

    async def write(cluster: Cluster) -> None:
        ledger = await cluster.ledgers.create(Quorum(ensemble=3, write=3, ack=2))
        position = 1
        for number, values in enumerate(batches):
            body = build_record_set(values)
            crc = 1 if number == bad else 0
            noted = [(b"p" * 16, number, len(values), crc, 0)] if crc else []
            records = [
                Record(RECORD_SET, position, 1, body),
                Record(CONTROL, position + len(values) - 1, 1, encode_trailer(1, -1, noted, None)),
            ]
            position += len(values)
            await ledger.append(encode_entry(records))
        await ledger.close()
        key = StreamKey(stream_name(name))
        seen: Any = await cluster.metadata.read(key)
        end = {"last_entry": EntryId(len(batches) - 1), "record_count": position - 1}
        first = replace(seen.value.segments[0], name=str(ledger.ledger_id), **end)
        outcome = await cluster.metadata.compare_and_set(key, seen.value.with_segment(first), seen.version)
        assert type(outcome).__name__ == "Versioned", outcome

    reach(lake.zookeeper, lake.namespace).ask(write)


def left_out(lake: Lake, place: Path) -> list[dict[str, Any]]:
    rows = lake.spark.read.json(f"file://{place}").orderBy("segment", "entry").collect()
    return [row.asDict() for row in rows]


def test_an_entry_that_is_left_out_is_a_line_with_its_records(lake: Lake, tmp_path: Path) -> None:
    name = lake.create()
    lake.client.append(name, b"x")
    end_segment(lake, name)
    plant(lake, name, [[b"0", b"1"], [b"2", b"3", b"4"], [b"5"]], bad=1)
    with pytest.raises(Exception, match="the producer's checksum does not match"):
        lake.read(name).collect()
    left = tmp_path / "left"
    frame = lake.read(name, "value binary", onCorruption="skip-entry", leftOutTo=f"file://{left}")
    assert sorted(bytes(row.value) for row in frame.collect()) == [b"0", b"1", b"5"]
    (row,) = left_out(lake, left)
    assert (row["kind"], row["stream"], row["segment"], row["entry"]) == ("damaged", name, 1, 1)
    assert (row["records"], row["records_min"], row["records_max"]) == (3, 3, 3)
    assert "checksum does not match" in row["why"]
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="leftOutTo: the location cannot be used"):
        lake.read(name, onCorruption="skip-entry", leftOutTo=f"file://{tmp_path}/file").collect()


def test_records_that_were_truncated_are_counted_and_told_once(lake: Lake, tmp_path: Path) -> None:
    name, left = lake.create(), tmp_path / "left"
    fill(lake, name, 0, 10)
    query = Query(lake, name, tmp_path / "checkpoint")
    query.run()
    fill(lake, name, 10, 8)
    end_segment(lake, name)
    fill(lake, name, 18, 2)
    places = [record.dlsn for record in lake.client.read(name, follow=False)]
    lake.client.truncate(name, places[15])
    with pytest.raises(Exception, match="records lost: exactly 5; option failOnDataLoss=false"):
        query.run()
    query.options |= {"failOnDataLoss": "false", "leftOutTo": f"file://{left}"}
    rest = [b"%05d" % number for number in range(15, 20)]
    assert query.run() == rest
    last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    assert query.run() == rest, "the batch is repeated"
    (row,) = left_out(lake, left)
    assert (row["kind"], row["stream"], row["records"]) == ("lost", name, 5)


def test_who_had_read_all_that_was_truncated_has_lost_nothing(lake: Lake, tmp_path: Path) -> None:
    """The segment is gone when the query starts again, and only its offset shows where it ended."""
    name = lake.create()
    values = fill(lake, name, 0, 10)
    query = Query(lake, name, tmp_path)
    assert query.run() == values
    end_segment(lake, name)
    assert query.run() == [], "nothing came, and that is noted"
    assert len(query.batches) <= 2
    more = fill(lake, name, 10, 3)
    places = [record.dlsn for record in lake.client.read(name, follow=False)]
    lake.client.truncate(name, places[10])
    wait_until(lambda: metadata(lake, name).segments[0].number == 2, "the first segment is not forgotten")
    assert query.run() == more


def test_who_had_not_read_all_of_it_has(lake: Lake, tmp_path: Path) -> None:
    name = lake.create()
    fill(lake, name, 0, 10)
    query = Query(lake, name, tmp_path)
    query.run()
    fill(lake, name, 10, 1)
    end_segment(lake, name)
    more = fill(lake, name, 11, 3)
    places = [record.dlsn for record in lake.client.read(name, follow=False)]
    lake.client.truncate(name, places[11])
    wait_until(lambda: metadata(lake, name).segments[0].number == 2, "the first segment is not forgotten")
    with pytest.raises(Exception, match="records were truncated before they were read"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert query.run() == more


def test_a_stream_made_again_that_has_outgrown_what_was_read_is_noticed(lake: Lake, tmp_path: Path) -> None:
    name, left = lake.create(), tmp_path / "left"
    fill(lake, name, 0, 5)
    query = Query(lake, name, tmp_path / "checkpoint")
    query.run()
    lake.client.delete(name)
    lake.client.create(name)
    again = fill(lake, name, 10, 20)
    with pytest.raises(Exception, match=f"deleted and created again under the same name: stream={name}"):
        query.run()
    query.options |= {"failOnDataLoss": "false", "leftOutTo": f"file://{left}"}
    assert query.run() == again
    (row,) = left_out(lake, left)
    assert (row["kind"], row["records"], row["records_max"]) == ("lost", None, None)


def test_a_checkpoint_of_before_is_gone_on_with(lake: Lake, tmp_path: Path) -> None:
    """The offsets of an old checkpoint are only positions."""
    name = lake.create()
    fill(lake, name, 0, 5)
    query = Query(lake, name, tmp_path)
    query.run()
    (kept,) = (path for path in (tmp_path / "offsets").glob("[0-9]*"))
    *head, offset = kept.read_text().splitlines()
    told = json.loads(offset)
    assert told["v"] == 1 and told["streams"][name]["life"]
    kept.write_text("\n".join([*head, json.dumps({name: told["streams"][name]["at"]})]))
    (kept.parent / f".{kept.name}.crc").unlink(missing_ok=True)
    more = fill(lake, name, 5, 5)
    assert query.run() == more
