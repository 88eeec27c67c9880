"""Clusters whose streams are on Kafka: here in topics of a directory, with real processes that are killed.

tests/integration/regions/test_streams_on_kafka.py does the main steps on real brokers.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import pytest

from dlog.io.children import python_module
from dlog.io.file_topics import DirectoryTopics
from tests.integration.cli.up import Up, dlog, up, up_for_many, wait_until
from tests.integration.spark.parts import need_spark

LINES = b"".join(b"line %d\n" % n for n in range(5000))
#: hardly compressible, so that a few of them fill a segment
WIDE = b"".join(b"%s\n" % random.Random(n).randbytes(60).hex().encode() for n in range(3000))
SMALL = ("--bookies", "0", "--write-proxies", "1", "--read-proxies", "1")


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kafka") / "topics"


@pytest.fixture(scope="module")
def on_topics(tmp_path_factory: pytest.TempPathFactory, topics: Path) -> Iterator[Up]:
    """One cluster for the tests that do not end it. Owners of a stream may die: there are two write proxies."""
    with up_for_many(tmp_path_factory, "kafka", "--bookies", "0", "--kafka", f"file://{topics}") as running:
        yield running


def ok(cluster: Up, *arguments: str, given: bytes = b"") -> bytes:
    code, out, err = dlog(*arguments, directory=cluster.directory, given=given)
    assert code == 0, (out[-3000:], err)
    return out


def shown(cluster: Up, stream: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(ok(cluster, "show", stream, "--json"))
    return told


def stores_of(cluster: Up, stream: str) -> list[str]:
    """The stores of the stream's segments, oldest first, each run of equal ones once."""
    stores = [segment["store"] for segment in shown(cluster, stream)["segments"]]
    return [store for n, store in enumerate(stores) if n == 0 or stores[n - 1] != store]


def test_three_commands_bring_a_file_back(on_topics: Up, topics: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_bytes(LINES)
    ok(on_topics, "create", "s")
    ok(on_topics, "append", "s", str(lines))
    assert ok(on_topics, "read", "s", "--from-start") == LINES
    assert {part.role for part in on_topics.running.parts} == {"zookeeper", "write", "read"}
    assert stores_of(on_topics, "s") == ["kafka"], "it is the default without bookies"
    assert b"store      kafka, records are synced" in ok(on_topics, "show", "s")
    assert shown(on_topics, "s")["durability"] == "synced"
    assert any(topic.name.endswith("store") for topic in topics.iterdir())


def test_a_record_is_found_in_its_topic(on_topics: Up, topics: Path) -> None:
    ok(on_topics, "append", "explained", "--create", given=b"one\ntwo\n")
    told = json.loads(ok(on_topics, "explain", "explained", "1:0:1", "--json"))
    assert told["location"].startswith(f"{told['region']}/{told['table'].partition(' ')[0]}@")
    topic, _, address = told["topic"].partition(" at ")
    assert topic.endswith(f".data.{told['region']}") and address == f"file://{topics}"
    assert "being written, 1 entries" in told["table"]
    assert (told["sequence"], told["offset"] > 0) == (1, True)
    assert "record 1 of a batch of 2" in told["slot"]
    assert "not confirmed" in json.loads(ok(on_topics, "explain", "explained", "1:9:0", "--json"))["entry"]
    assert f"topic        {topic}" in ok(on_topics, "explain", "explained", "1:0:0").decode()


def test_streams_may_lie_in_files_too_and_stores_that_are_not_here_are_refused(on_topics: Up) -> None:
    ok(on_topics, "create", "in-files", "--store", "file")
    ok(on_topics, "append", "in-files", given=LINES)
    assert ok(on_topics, "read", "in-files", "--from-start") == LINES
    assert stores_of(on_topics, "in-files") == ["file"]
    code, _, err = dlog("create", "h", "--store", "ledger", directory=on_topics.directory)
    assert code == 2 and "choose one of ['file', 'kafka', 's3', 's3-direct']" in err
    code, _, err = dlog("create", "h", "--ensemble", "1", directory=on_topics.directory)
    assert code == 2 and "those of this store are none: store=kafka setting=ensemble" in err


def test_an_owner_that_is_killed_while_it_appends_loses_repeats_and_reorders_nothing(on_topics: Up) -> None:
    ok(on_topics, "create", "killed")
    half = b"".join(b"%d %s\n" % (n, b"x" * 80) for n in range(20_000))
    rest = b"".join(b"%d %s\n" % (n, b"y" * 80) for n in range(20_000, 40_000))
    append = python_module("dlog", "append", "killed", "-", "--dir", str(on_topics.directory))
    with Popen(append, stdin=PIPE, stdout=DEVNULL) as appending:
        assert appending.stdin is not None
        for part in (half, rest):
            appending.stdin.write(part)
            appending.stdin.flush()
            some = b"".join(part.splitlines(keepends=True)[:1])
            if part is half:
                assert ok(on_topics, "read", "killed", "--from-start", "--follow", "--limit", "1") == some
            owner = shown(on_topics, "killed")["owner"]["location"]
            on_topics.kill_part("write", owner)
        appending.stdin.close()
        assert appending.wait(180) == 0
    assert ok(on_topics, "read", "killed", "--from-start") == half + rest
    assert shown(on_topics, "killed")["owner"]["epoch"] >= 2
    ok(on_topics, "append", "killed", given=b"more\n")
    assert ok(on_topics, "read", "killed", "--from-start") == half + rest + b"more\n"


def test_truncation_and_deletion_delete_segments(on_topics: Up) -> None:
    ok(on_topics, "create", "cut", "--segment-bytes", "64KiB")
    while len(shown(on_topics, "cut")["segments"]) < 4:
        ok(on_topics, "append", "cut", given=WIDE)
    assert json.loads(ok(on_topics, "explain", "cut", "1:0:0", "--json"))["table"].partition("(")[2].startswith("ended")
    ok(on_topics, "truncate", "cut", "3:0:0")
    assert ok(on_topics, "read", "cut", "--from-start", "--limit", "1")
    wait_until(lambda: not shown(on_topics, "cut")["segments_to_delete"], "truncated segments stay")
    ok(on_topics, "delete", "cut", "--yes")


def test_reading_from_the_start_goes_on_behind_segments_that_another_program_deleted(tmp_path: Path) -> None:
    """The list of segments still has them, unlike truncated ones."""
    directory, topics = tmp_path / "c", tmp_path / "topics"
    with up(directory, *SMALL, "--kafka", f"file://{topics}") as running:
        running.wait_up()
        ok(running, "create", "s", "--segment-bytes", "64KiB")
        while len(shown(running, "s")["segments"]) < 4:
            ok(running, "append", "s", given=WIDE)
        writer = running.part("write")
        os.kill(writer.pid, signal.SIGTERM)  # it ends with a snapshot of its region
        running.wait_restarted(writer)
        ok(running, "append", "s", given=b"in another region\n")
        everything = ok(running, "read", "s", "--from-start")
        kept = ok(running, "read", "s", "--from", "3:0:0")
        region, _, offset = shown(running, "s")["segments"][2]["location"].partition("@")
        written = DirectoryTopics(str(topics))
        (topic,) = (name for name in written.names("") if name.endswith(f".data.{region.partition('/')[0]}"))
        written.delete_before(topic, int(offset))
        running.wait_restarted(running.kill_part("read"))  # it has the newest entries in memory
        code, out, err = dlog("read", "s", "--from-start", directory=directory)
        assert (code, out) == (1, kept), err
        assert everything.endswith(kept)
        assert "the records before 3:0:0 are gone, reading from there: stream=s" in err
        code, out, err = dlog("read", "s", "--from", "1:0:0", directory=directory)
        assert (code, out) == (1, b"")
        assert "read from 2:0:0, the first record kept" in err
        ok(running, "truncate", "s", "3:0:0")
        assert ok(running, "read", "s", "--from-start") == kept


def test_an_audit_reads_every_segment_and_an_offload_moves_them(on_topics: Up, tmp_path: Path) -> None:
    need_spark()
    ok(on_topics, "create", "proved", "--segment-bytes", "64KiB")
    while len(shown(on_topics, "proved")["segments"]) < 4:
        ok(on_topics, "append", "proved", given=WIDE)
    ok(on_topics, "append", "proved", given=b"in the segment in progress\n")
    everything = ok(on_topics, "read", "proved", "--from-start")
    epoch, count = shown(on_topics, "proved")["owner"]["epoch"], len(shown(on_topics, "proved")["segments"])
    audit = ("pipeline", "audit", "--stream", "proved", "--json")
    report = json.loads(ok(on_topics, *audit))
    assert report["findings"] == [] and report["failures"] == []
    assert {item["store"] for item in report["items"]} == {"kafka"}
    assert report["items"][-1]["state"] == "in progress" and report["items"][-1]["entries"] > 0
    whole = json.loads(ok(on_topics, "pipeline", "audit", "--orphan-age", "0s", "--json"))
    assert whole["findings"] == [] and whole["failures"] == [] and whole["counts"]["tables"] >= count
    now = shown(on_topics, "proved")
    assert (now["owner"]["epoch"], len(now["segments"])) == (epoch, count), "an audit fences nobody"

    offload = ["pipeline", "offload", "--stream", "proved", "--to", f"file://{tmp_path}", "--older-than", "0s"]
    offload += ["--keep", "0", "--grace", "0s", "--master", "local[1]", "--json"]
    assert json.loads(ok(on_topics, *offload))["counts"]["segments_offloaded"] == count - 1
    assert json.loads(ok(on_topics, *offload))["counts"]["hot_copies_deleted"] == count - 1
    assert stores_of(on_topics, "proved") == ["cold", "kafka"]
    assert ok(on_topics, "read", "proved", "--from-start") == everything
    ok(on_topics, "append", "proved", given=b"more\n")
    assert ok(on_topics, "read", "proved", "--from-start") == everything + b"more\n"
    assert json.loads(ok(on_topics, *audit))["findings"] == []


def test_kill_9_of_everything_at_once_loses_nothing_and_a_wrong_address_is_told(tmp_path: Path) -> None:
    directory, topics, elsewhere = tmp_path / "c", tmp_path / "topics", tmp_path / "elsewhere"
    with up(directory, *SMALL, "--kafka", f"file://{topics}") as first:
        ok(first, "append", "s", "--create", given=LINES)
        for pid in (first.process.pid, *(part.pid for part in first.running.parts)):
            with contextlib.suppress(ProcessLookupError):  # they die with their parent, and may have ended already
                os.kill(pid, signal.SIGKILL)
        first.process.wait()
    code, _, err = dlog("up", "--kafka", f"file://{elsewhere}", directory=directory)
    assert code == 2 and "not at this address, correct --kafka" in err and f"topics=file://{elsewhere}" in err, err
    assert not elsewhere.exists(), "nothing is created at the wrong address"
    with up(directory, "--kafka", f"file://{topics}") as right:
        assert ok(right, "read", "s", "--from-start") == LINES
        topics.rename(elsewhere)  # as if Kafka were exchanged while the cluster runs
        code, _, err = dlog("append", "s", directory=directory, given=b"more\n", timeout_s=60.0)
        assert code == 1 and "not written" in err and "not at this address" in err, err
        assert '"stream.stalled"' in (directory / "logs" / "write-1.log").read_text()
        elsewhere.rename(topics)
        ok(right, "append", "s", given=b"more\n")
        assert ok(right, "read", "s", "--from-start") == LINES + b"more\n"
        assert right.end() == 0
    with up(directory) as again:
        assert {part.role for part in again.running.parts} == {"zookeeper", "write", "read"}, "as it was"
        assert again.running.kafka_topics == f"file://{topics}"
        assert ok(again, "read", "s", "--from-start") == LINES + b"more\n"
        ok(again, "append", "t", "--create", given=LINES)
        assert stores_of(again, "t") == ["kafka"]


def test_a_stream_moves_to_bookies_and_back_while_it_is_written(tmp_path: Path) -> None:
    flags = ("--bookies", "3", "--write-proxies", "2", "--read-proxies", "1", "--kafka", f"file://{tmp_path}/topics")
    with up(tmp_path / "c", *flags) as both:
        ok(both, "create", "plain")
        assert shown(both, "plain")["settings"]["store"] == "ledger", "the default stays with bookies"
        assert "durability" not in shown(both, "plain")
        ok(both, "create", "moved", "--store", "kafka", "--segment-bytes", "64KiB")
        append = python_module("dlog", "append", "moved", "-", "--dir", str(both.directory))
        written: list[bytes] = []
        with Popen(append, stdin=PIPE, stdout=DEVNULL) as appending:
            assert appending.stdin is not None

            def write_until(stores: list[str]) -> None:
                """Write until the stream has segments in these stores, in this order."""
                while stores_of(both, "moved") != stores:
                    line = b"%d %s\n" % (len(written), random.Random(len(written)).randbytes(20_000).hex().encode())
                    written.append(line)
                    assert appending.stdin is not None
                    appending.stdin.write(line)
                    appending.stdin.flush()

            write_until(["kafka"])
            for store, stores in (("ledger", ["kafka", "ledger"]), ("kafka", ["kafka", "ledger", "kafka"])):
                ok(both, "alter", "moved", "--store", store)
                write_until(stores)
            appending.stdin.close()
            assert appending.wait(180) == 0
        assert ok(both, "read", "moved", "--from-start") == b"".join(written)
        owner = shown(both, "moved")["owner"]["location"]
        both.kill_part("write", owner)
        ok(both, "append", "moved", given=b"more\n")
        assert ok(both, "read", "moved", "--from-start") == b"".join(written) + b"more\n"


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("somewhere", "not an address of Kafka"),
        ("s3://bucket", "not an address of topics"),
        ("file://relative", "not an address of topics"),
        ("127.0.0.1:1,127.0.0.1:2", "none of Kafka's brokers accepts a connection: connection refused"),
        ("file:///dev/null/topics", "a file is in the way: file=/dev/null"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_before_anything_starts(
    address: str, says: str, tmp_path: Path
) -> None:
    code, _, err = dlog("up", *SMALL, "--kafka", address, directory=tmp_path / "c")
    assert code == 2 and says in err and "Traceback" not in err, err
    assert not (tmp_path / "c" / "cluster.json").exists(), "the next start has no wrong address"
