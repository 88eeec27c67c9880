"""The report on a real cluster: correct numbers, a page that shows them, and every error in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dlog.errors import ConfigError, StreamNotFoundError
from dlog.model.ids import StreamName
from dlog.spark.cluster_connection import Cluster, reach
from dlog.spark.jobs.frame import Report, Selection, Verdict
from dlog.spark.jobs.report import ReportOptions, report
from dlog.spark.readers import find, path_of, readers
from tests.deleting import delete_stream
from tests.integration.cli.up import Up, wait_until
from tests.integration.cli.up import dlog as command
from tests.integration.spark.corpus import Corpus
from tests.integration.spark.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PATIENCE_S = 120


class Stage:
    """Two streams, one of them read by a query up to its middle."""

    def __init__(self, lake: Lake, directory: Path) -> None:
        self.lake = lake
        self.large, self.small = lake.create(segment_bytes=100_000), lake.create()
        for number in range(8):
            lake.client.append_batch(self.large, [b"x" * 500] * 100, txid=number)
            if number in (2, 5):
                self._wait_for_segments(2 + number // 3)
        lake.client.append(self.small, b"one")
        self.reader = f"reader-of-{self.large}"
        self._read(directory)

    def _wait_for_segments(self, least: int) -> None:
        """Wait for this many segments; the records fill one less, and the next one is created late."""
        wait_until(lambda: len(self.lake.client.stat(self.large).segments) >= least, "it does not roll")

    def _read(self, directory: Path) -> None:
        """Read with a query. Of several batches Spark does not report the last one; then more records come."""
        frame: DataFrame = (
            self.lake.spark.readStream.format("dlog")
            .options(
                zookeeper=self.lake.zookeeper,
                namespace=self.lake.namespace,
                stream=self.large,
                startingOffsets="earliest",
                readerId=self.reader,
                maxOffsetsPerTrigger="300",
            )
            .load()
        )
        writer = frame.writeStream.foreachBatch(lambda *_: None).option("checkpointLocation", str(directory))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S)

    @property
    def cluster(self) -> Any:
        return reach(self.lake.zookeeper, self.lake.namespace)

    def report(self, *streams: str, pattern: str = "", **options: Any) -> Report:
        place = Selection(
            zookeeper=self.lake.zookeeper, namespace=self.lake.namespace, streams=streams, pattern=pattern
        )
        return report(self.lake.spark, place, ReportOptions(**options))


@pytest.fixture(scope="module")
def stage(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(lake, tmp_path_factory.mktemp("checkpoint"))


def rows(told: Report, what: str) -> list[dict[str, Any]]:
    return [row for row in told.items if row["what"] == what]


def test_the_numbers_are_those_of_the_streams(stage: Stage, tmp_path: Path) -> None:
    told = stage.report(stage.large, stage.small, out=str(tmp_path / "page.html"))
    assert (told.verdict, told.failures, told.findings) == (Verdict.OK, [], [])
    large, small = rows(told, "stream")
    assert (large["stream"], large["records"], small["records"]) == (stage.large, 800, 1)
    truth = stage.lake.client.stat(stage.large)
    assert large["segments"] == len(truth.segments) >= 3
    assert large["segments_in_progress"] == 1 and not large["sealed"]
    assert large["bytes"] > 800 * 500
    assert large["owner"] == stage.lake.client.owner(stage.large).location
    assert large["growth_bytes_a_day"] > 0
    sizes = [size for _, size in large["growth"]]
    assert sizes == sorted(sizes) and len(sizes) == large["segments"] and sizes[-1] == large["bytes"]
    assert told.counts["records"] == 801 and told.counts["streams"] == 2
    owned = {name: row for row in rows(told, "proxy") for name in row["streams"]}
    assert owned[stage.large]["address"] == large["owner"] and owned[stage.large]["registered"]
    assert len(rows(told, "proxy")) == told.counts["write_proxies"] == 2


def test_how_far_a_reader_is_behind(stage: Stage, tmp_path: Path) -> None:
    """The last batch, which Spark has not reported yet, counts as not read."""
    kept = stage.cluster.ask(lambda cluster: readers(cluster, stage.lake.namespace))
    (one,) = [reader for reader in kept if reader.name == stage.reader]
    assert one.start[stage.large] < one.done[stage.large] == one.positions[stage.large]
    told = stage.report(stage.large, out=str(tmp_path / "page.html"))
    (row,) = rows(told, "reader")
    assert (row["reader"], row["stream"], row["state"]) == (stage.reader, stage.large, "reads")
    assert 0 < row["behind_records"] <= 400 and row["behind_bytes"] > 500 * row["behind_records"] * 0.9
    assert row["position"] == one.done[stage.large].as_json()
    before = row["behind_records"]
    stage.lake.client.append_batch(stage.large, [b"x" * 500] * 100, txid=100)
    (row,) = rows(stage.report(stage.large, out=str(tmp_path / "page.html")), "reader")
    assert 0.5 * 100 < row["behind_records"] - before < 1.5 * 100, "about: of an open segment it is estimated"
    assert told.counts["readers"] == 1 and told.counts["behind_records_max"] == before


def test_the_page_is_whole_and_takes_the_place_of_the_one_before(stage: Stage, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("an old page")
    told = stage.report(stage.large, stage.small, out=str(out))
    text = out.read_text()
    assert text.startswith("<!doctype html>") and text.endswith("</html>\n")
    for said in (stage.large, stage.small, stage.reader, rows(told, "stream")[0]["owner"]):
        assert said in text
    assert text.count("<svg") >= 4 and "<script" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_what_cannot_be_told_of_is_a_failure_and_the_rest_is_told(stage: Stage, tmp_path: Path) -> None:
    namespace = stage.lake.namespace

    async def spoil(cluster: Cluster) -> None:
        corpus = Corpus(cluster, namespace)
        corpus.bookies = tuple(sorted((await cluster.metadata.members()).writable))
        unsealed = {"completed": False, "last_entry": -1, "last_slot": -1, "record_count": 0, "last_txid": -1}
        await corpus.stream("stuck-report", closed=False, wrong={1: unsealed})
        await cluster.metadata.zookeeper.create(path_of(namespace, "odd"), b"what", parents=True)

    async def mend(cluster: Cluster) -> None:
        await delete_stream(cluster.metadata, StreamName("stuck-report"))
        await cluster.metadata.zookeeper.delete(path_of(namespace, "odd"), -1)

    stage.cluster.ask(spoil)
    try:
        told = stage.report(stage.small, "stuck-report", out=str(tmp_path / "page.html"))
        with pytest.raises(Exception, match="delete the znode to start over"):
            stage.cluster.ask(lambda cluster: find(cluster, namespace, "odd"))
    finally:
        stage.cluster.ask(mend)
    assert told.verdict is Verdict.FAILED
    assert [row["stream"] for row in rows(told, "stream")] == [stage.small]
    wrong = {(row["stream"], row["reader"]): row["error"] for row in told.failures}
    assert wrong.keys() == {("stuck-report", None), (None, "odd")}
    assert "a segment is not sealed" in wrong["stuck-report", None]
    assert "Not reported" in (tmp_path / "page.html").read_text()


def test_the_command_says_what_the_function_says(stage: Stage, cluster: Up, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    arguments = ("pipeline", "report", "--stream", stage.small, "--stream", stage.large, "--master", "local[1]")
    code, printed, err = command(*arguments, "--out", str(out), "--json", directory=cluster.directory)
    assert code == 0, err
    told, mine = json.loads(printed), stage.report(stage.small, stage.large, out=str(tmp_path / "mine.html"))
    assert told["counts"].keys() == mine.counts.keys() and told["counts"]["records"] == mine.counts["records"]
    still = [key for key in rows(mine, "stream")[0] if not key.startswith("growth")]
    assert [[row[key] for key in still] for row in told["items"] if row["what"] == "stream"] == [
        [row[key] for key in still] for row in rows(mine, "stream")
    ]
    assert stage.large in out.read_text()


def test_a_dry_run_writes_nothing(stage: Stage, tmp_path: Path) -> None:
    told = stage.report(stage.small, out=str(tmp_path / "page.html"), dry_run=True)
    assert told.dry_run and told.counts["records"] == 1
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_option_is_refused(stage: Stage, cluster: Up, tmp_path: Path) -> None:
    code, out, err = command(
        *("pipeline", "report", "--out", str(tmp_path / "none" / "page.html")), directory=cluster.directory
    )
    assert (code, out) == (1, b"") and "no such directory, create it" in err
    with pytest.raises(StreamNotFoundError, match="no such stream: stream=none"):
        stage.report("none", out=str(tmp_path / "page.html"))
    with pytest.raises(ConfigError, match="no stream matches"):
        stage.report(pattern="none", out=str(tmp_path / "page.html"))
    assert list(tmp_path.iterdir()) == []
