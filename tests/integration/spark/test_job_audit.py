"""Audits a real cluster in which each kind of damage was planted once: the report has all of it, and nothing else."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dlog
from dlog.errors import ConfigError, StreamNotFoundError
from dlog.model.ids import LedgerId
from dlog.spark.cluster_connection import reach
from dlog.spark.jobs.audit_findings import Kind
from dlog.spark.jobs.audit_orphans import find_orphans
from dlog.spark.jobs.frame import Report, Selection, Verdict
from tests.deleting import delete_stream
from tests.integration.cli.up import Up, is_alive, up_for_many, wait_until
from tests.integration.cli.up import dlog as command
from tests.integration.spark.corpus import Corpus, Row, turn_bytes
from tests.integration.spark.drivers import driver
from tests.integration.spark.parts import need_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOUND = ("whole", "striped", "sound")


class Stage:
    """A running cluster, its damage, and the report of an audit."""

    def __init__(self, running: Up, planted: list[Row], spark: SparkSession) -> None:
        self.up = running
        self.planted = sorted(map(str, planted))
        self.zookeeper = running.running.zookeeper
        self.spark = spark

    def audit(self, *streams: str, pattern: str = "", **options: Any) -> Report:
        from dlog.spark.jobs.audit import AuditOptions, audit

        place = Selection(zookeeper=self.zookeeper, streams=streams, pattern=pattern)
        return audit(self.spark, place, AuditOptions(**{"orphan_age_s": 0.0, "patience_s": 0.5, **options}))


def told(findings: list[dict[str, Any]]) -> list[str]:
    return sorted(str(Row(f["stream"], f["segment"], f["entry"], f["kind"], f["bookie"])) for f in findings)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Stage]:
    need_spark()
    with up_for_many(tmp_path_factory, "audit") as running:
        with dlog.connect_sync(running.running.connect) as client:
            write_sound(client)
        of_cluster = reach(running.running.zookeeper, running.running.namespace)
        corpus = of_cluster.ask(lambda cluster: Corpus(cluster, running.running.namespace).plant())
        bookie = turn_bytes_of_one(running)
        yield Stage(running, [*corpus.planted, Row("unreadable", 1, 3, "unreadable", bookie)], spark)


def turn_bytes_of_one(running: Up) -> str:
    """Stop a bookie, damage its disk, and have it started again; returns its id."""
    part = running.part("bookie")
    os.kill(running.process.pid, signal.SIGSTOP)  # it would restart the bookie at once
    try:
        os.kill(part.pid, signal.SIGTERM)
        wait_until(lambda: not is_alive(part.pid), "the bookie does not stop")
        turn_bytes(running.directory, part.id)
    finally:
        os.kill(running.process.pid, signal.SIGCONT)
    running.wait_restarted(part)
    return part.id


def write_sound(client: dlog.SyncClient) -> None:
    """Write streams as owners do: records of any length, several segments, copies on all bookies and on some."""
    rng = random.Random(3)
    client.create("whole", segment_bytes=150_000)
    client.create("striped", segment_bytes=150_000, ensemble=3, write_quorum=2, ack_quorum=2)
    for name in ("whole", "striped"):
        for number in range(60):
            size = rng.choice((0, 1, 200, 4000))
            client.append_batch(name, [rng.randbytes(size) for _ in range(rng.choice((1, 3, 40)))], txid=number)


def test_each_damage_is_told_of_once_and_nothing_else(stage: Stage) -> None:
    report = stage.audit()
    assert told(report.findings) == stage.planted
    assert report.failures == []
    assert report.verdict is Verdict.FINDINGS
    assert report.counts["findings"] == len(stage.planted) == 31
    for finding in report.findings:
        assert finding["expected"] and finding["found"], finding
    by_name = {(item["stream"], item["segment"]): item for item in report.items}
    assert by_name["sound", 1]["records"] == 20 and by_name["sound", 1]["replicas"] == 3
    assert by_name["sound", 1]["read_bytes"] == 3 * by_name["sound", 1]["bytes"]
    assert by_name["striped", 1]["replicas"] == 2
    small = stage.audit(split_bytes=20_000, open_cost_bytes=1)
    assert small.counts["tasks"] > 2 * report.counts["tasks"]
    assert (small.findings, small.items) == (report.findings, report.items), "however the work is cut"


def test_what_is_sound_is_found_so(stage: Stage) -> None:
    for options in ({}, {"all_replicas": False}, {"verify": "crc"}, {"verify": "none"}, {"split_bytes": 20_000}):
        report = stage.audit(*SOUND, **options)
        assert (report.findings, report.failures, report.verdict) == ([], [], Verdict.OK), options
        read, copy = report.counts["read_bytes"], report.counts["bytes"]
        assert read == copy if options.get("all_replicas") is False else read > 2 * copy - 1
    assert stage.audit(pattern="who.*").counts["streams"] == 1
    with pytest.raises(StreamNotFoundError, match="no such stream: stream=none"):
        stage.audit("none")
    with pytest.raises(ConfigError, match="no stream matches"):
        stage.audit(pattern="none")


def test_one_copy_is_enough_where_only_one_is_read(stage: Stage) -> None:
    """The first bookie's copies are read; where one is missing the next is read, and the report says so."""
    report = stage.audit("missing", "digest", "lost", all_replicas=False)
    assert [(f["stream"], f["entry"], f["kind"]) for f in report.findings] == [
        ("lost", 3, "lost"),
        ("missing", 1, "missing"),
    ]
    by_name = {(item["stream"], item["segment"]): item for item in report.items}
    assert by_name["missing", 1]["entries"] == 5, "read from another one"
    assert by_name["lost", 1]["entries"] == 4


def test_a_stream_that_is_written_meanwhile_is_sound(stage: Stage) -> None:
    over = threading.Event()
    with dlog.connect_sync(stage.up.running.connect) as client:
        client.create("living", segment_bytes=65_536)
        client.append("living", b"first")

        def write() -> None:
            while not over.is_set():
                client.append_batch("living", [b"x" * 50] * 20)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            reports = [stage.audit("living") for _ in range(3)]
        finally:
            over.set()
            writer.join()
        for report in reports:
            assert (report.findings, report.failures) == ([], [])
        records = [report.counts["records"] for report in reports]
        assert 0 < records[0] < records[1] < records[2], "up to the tail, which goes on"
        assert reports[-1].items[-1]["state"] == "in progress"
        client.append("living", b"its owner lives: nobody was fenced")
        client.delete("living")


def test_a_bookie_that_is_away_is_a_failure_and_the_others_are_read(stage: Stage) -> None:
    part = stage.up.part("bookie")
    os.kill(part.pid, signal.SIGSTOP)
    try:
        report = stage.audit("txid", retries=0)
    finally:
        os.kill(part.pid, signal.SIGCONT)
    assert report.verdict is Verdict.FAILED
    assert {f["bookie"] for f in report.failures} == {part.address}
    assert {(f["stream"], f["segment"], f["entries"]) for f in report.failures} == {("txid", n, "0..4") for n in (1, 2)}
    assert "cannot be reached" in report.failures[0]["error"]
    assert [f["kind"] for f in report.findings] == ["txid"], "no word of what the others have"
    assert {item["entries"] for item in report.items} == {5}


def test_a_rate_is_held(stage: Stage) -> None:
    whole = stage.audit("whole", "striped", split_bytes=1 << 30)
    slow = stage.audit("whole", "striped", split_bytes=1 << 30, rate_bytes_s=whole.counts["read_bytes"] // 2)
    assert slow.counts == whole.counts
    assert slow.took_s > 0.9 * 2 / whole.counts["tasks"]


def test_the_command_says_what_the_function_says(stage: Stage, tmp_path: Path) -> None:
    """The command is killed once while it runs, and run again."""
    arguments = ["pipeline", "audit", "--master", "local[2]", "--orphan-age", "0s", "--patience", "0.5s", "--json"]
    slow = ("--rate", "10KiB", "--report", str(tmp_path / "killed"))
    with driver(*arguments, *slow, directory=stage.up.directory, room=tmp_path) as first:
        first.wait(lambda: reads(first.process.pid), "it never began to read")
    assert not (tmp_path / "killed").exists()

    code, out, err = command(*arguments, "--report", str(tmp_path / "report"), directory=stage.up.directory)
    assert code == 2, err
    report = json.loads(out)
    assert told(report["findings"]) == stage.planted
    assert json.loads((tmp_path / "report").read_text()) == report
    assert report["verdict"] == "findings" and report["failures"] == []


def reads(leader: int) -> bool:
    """Whether a child of this process is a Spark worker that has a socket to a bookie."""
    for process in Path("/proc").iterdir():
        try:
            fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
            if fields[3] == str(leader) and b"pyspark.daemon" in (process / "cmdline").read_bytes():
                sockets = [os.readlink(fd) for fd in (process / "fd").iterdir()]
                if sum("socket:" in name for name in sockets) >= 3:
                    return True
        except OSError:
            continue
    return False


def test_a_dry_run_says_what_would_be_read_and_reads_nothing(stage: Stage) -> None:
    report = stage.audit(*SOUND, dry_run=True)
    real = stage.audit(*SOUND)
    assert report.dry_run and report.verdict is Verdict.OK and report.findings == []
    for name in ("streams", "segments", "tasks"):
        assert report.counts[name] == real.counts[name]
    keys = ("stream", "segment", "state", "location", "entries", "bytes", "replicas", "read_bytes")
    assert [[item[key] for key in keys] for item in report.items] == [[i[key] for key in keys] for i in real.items]
    code, out, err = command(
        *("pipeline", "audit", "--dry-run", "--stream", "sound", "--master", "local[1]"), directory=stage.up.directory
    )
    assert code == 0, err
    assert "would read" in out.decode() and "sound, segment 2, completed" in out.decode()
    assert "1 streams, 2 segments, 10 entries" in out.decode()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--verify", "most"), "'most' is not one of 'full', 'crc', 'none'"),
        (("--rate", "much"), "not a size"),
        (("--rate", "0"), "at least 1 byte per second"),
        (("--orphan-age", "old"), "not a duration"),
        (("--stream", "a", "--pattern", "b"), "--stream or --pattern, not both"),
        (("--replicas", "two"), "is not one of"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_begins(stage: Stage, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = command("pipeline", "audit", *arguments, directory=stage.up.directory)
    assert (code, out) == (1, b"")
    assert said in err


def test_an_orphan_is_told_of_when_it_is_old_enough_and_ledgers_of_others_never(stage: Stage) -> None:
    async def others(cluster: Any) -> LedgerId:
        from dlog.io.zookeeper_cluster import cluster_init
        from dlog.io.zookeeper_metadata import ZooKeeperMetadata
        from dlog.model.segment import StreamKey

        await cluster_init(stage.zookeeper, "/teams/other")
        corpus = Corpus(cluster, "/teams/other")
        corpus.bookies = tuple(sorted((await cluster.metadata.members()).writable))
        value = await corpus.stream("elsewhere")
        async with await ZooKeeperMetadata.connect(stage.zookeeper, "/teams/other") as metadata:
            await metadata.compare_and_set(StreamKey(value.name), value, None)
        await delete_stream(cluster.metadata, value.name)  # of our namespace: only the other one names them now
        return LedgerId(int(value.segments[0].name))

    of_cluster = reach(stage.zookeeper, "/dlog")
    ledger = of_cluster.ask(others)

    def orphans(age_s: float) -> list[str]:
        found = of_cluster.ask(lambda cluster: find_orphans(cluster, stage.zookeeper, "/dlog", age_s=age_s))
        assert found.ledgers > 50 and found.foreign == 0 and found.failures == []
        return [finding.found for finding in found.findings if finding.kind is Kind.ORPHAN_LEDGER]

    (found,) = orphans(0.0)
    assert f"ledger {ledger}," not in found and "5 entries" in found
    assert orphans(3600.0) == []


def test_a_segment_in_cold_storage_is_proved_too(stage: Stage, tmp_path: Path) -> None:
    from dlog.spark.jobs.offload import offload
    from dlog.spark.jobs.offload_work import OffloadOptions

    with dlog.connect_sync(stage.up.running.connect) as client:
        client.create("cold")
        for _ in range(3):
            client.append_batch("cold", [b"c" * 500] * 160)
            client.hand_over("cold")  # its segment is completed, and the next owner begins another
    told = offload(
        stage.spark,
        Selection(zookeeper=stage.zookeeper, streams=("cold",)),
        OffloadOptions(to=f"file://{tmp_path}", older_than_s=0.0, keep=0),
    )
    assert told.failures == [] and told.findings == []
    report = stage.audit("cold")
    assert (report.findings, report.failures) == ([], [])
    cold = [item for item in report.items if item["store"] == "cold"]
    assert len(cold) == 3 and all(item["replicas"] == 1 and item["records"] for item in cold)
    assert report.counts["records"] == 480
    assert stage.audit("cold", dry_run=True).counts["entries"] >= report.counts["entries"]
    found = reach(stage.zookeeper, "/dlog").ask(
        lambda cluster: find_orphans(cluster, stage.zookeeper, "/dlog", age_s=0.0)
    )
    assert [f.stream for f in found.findings if f.kind is Kind.ORPHAN_LEDGER] == ["orphan"], "hot copies have a name"

    first, second = sorted(tmp_path.rglob("*.seg"))[:2]
    data = bytearray(first.read_bytes())
    data[data.index(b"c" * 100)] ^= 1
    first.write_bytes(data)
    second.unlink()
    told_of = [(f["segment"], f["entry"], f["kind"], f["bookie"]) for f in stage.audit("cold").findings]
    assert told_of == [(1, 0, "digest", "cold"), (2, None, "object_gone", None)]
    with dlog.connect_sync(stage.up.running.connect) as client:
        client.delete("cold")
