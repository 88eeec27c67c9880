"""Replay of regions in topics of a directory, without Spark: the tables are those that a reader of the region finds."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dlog.client.regions import Region, Regions
from dlog.errors import ConfigError, DamagedError, InvalidRequestError
from dlog.io.file_topics import DirectoryTopics
from dlog.region.options import RegionOptions
from dlog.region.topics import Stored, TopicNotFoundError
from dlog.spark.jobs import replay as job
from dlog.spark.jobs import wal_region
from dlog.spark.jobs.flushed_sequences import Marks
from dlog.spark.jobs.frame import Report
from dlog.spark.jobs.replay import ReplayOptions, replay
from dlog.spark.jobs.wal import RegionPiece
from dlog.spark.jobs.wal_region import RegionAddress, RegionWal
from tests.unit.spark.test_replay import OnTheSpot

Rows = list[tuple[int, int, bytes]]  # offset, sequence, payload

HOT = 7


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "scatter", OnTheSpot())


class Place:
    """A region in a directory."""

    def __init__(self, directory: Path) -> None:
        self.topics = f"file://{directory}/topics"
        self.address = f"{self.topics}/app/orders"
        self.directory = directory / "topics"

    def with_region(self, work: Callable[[Region], Any], version: int | None = None) -> Any:
        """Run a coroutine with the region, of a new owner. version: of the records."""

        async def run() -> Any:
            options = RegionOptions(map_every=4, format=version)
            async with Regions(self.topics, "app", options=options, clean_every_s=None) as regions:
                return await work(await regions.open("orders", create=True))

        return asyncio.run(run())

    def write(self, rng: random.Random, batches: int, version: int | None = None) -> None:
        async def work(region: Region) -> None:
            for _ in range(batches):
                tables = [HOT if rng.random() < 0.7 else rng.randrange(1, 6) for _ in range(rng.choice((1, 1, 3)))]
                await region.write_many(
                    (table, b"%d|" % table + rng.randbytes(rng.choice((0, 200)))) for table in tables
                )

        self.with_region(work, version)

    def read(self, starts: Mapping[int, int] | None = None) -> dict[int, Rows]:
        """What a reader of the region finds, without what is lost."""

        async def run() -> dict[int, Rows]:
            found: dict[int, Rows] = {}
            async with Regions(self.topics, "app", clean_every_s=None) as regions:
                async for entry in (await regions.view("orders")).read(starts, on_lost=lambda lost: None):
                    found.setdefault(entry.table, []).append((entry.offset, entry.sequence, entry.payload))
            return found

        return asyncio.run(run())

    def cut(self, offset: int) -> None:
        DirectoryTopics(str(self.directory)).delete_before("app.data.orders", offset)

    def damage(self, offset: int) -> None:
        """Append nothing, and flip a bit of the record at an offset, in a way that the topic verifies: rewrite it."""
        topics = DirectoryTopics(str(self.directory))
        records = topics.read("app.data.orders", 0, 1 << 30)
        topics.delete("app.data.orders")
        topics.create("app.data.orders")
        for at, key, value in records:
            changed = value[:-1] + bytes([value[-1] ^ 1]) if at == offset else value
            topics.append("app.data.orders", [(key, changed)])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    rng = random.Random(5)
    for _ in range(3):
        made.write(rng, 60)
    return made


def run(place: Place, source: Mapping[str, str] | None = None, **options: Any) -> Report:
    sizes: dict[str, Any] = {"piece_bytes": 3000, "run_bytes": 2000, "part_bytes": 4000}
    return replay(None, None, ReplayOptions(**{**sizes, **options}), wal=RegionWal(place.address, source))  # type: ignore[arg-type]


def rows_of(to: Path) -> dict[int, Rows]:
    import pyarrow.parquet as pq

    found: dict[int, Rows] = {}
    for path in to.glob("region=orders/table=*/_manifest.json"):
        told = json.loads(path.read_bytes())
        rows: Rows = []
        for file in told["files"]:
            for row in pq.ParquetFile(path.parent / file["file"]).read().to_pylist():
                assert (row["segment"], row["slot"], row["txid"], row["timestamp"]) == (0, 0, row["entry"], None)
                rows.append((row["entry"], row["sequence"], row["payload"]))
        assert told["first_dlsn"] == f"0:{rows[0][0]}:0"
        found[told["table"]] = rows
    return found


def test_every_table_is_what_a_reader_finds(place: Place, tmp_path: Path) -> None:
    dry = run(place, dry_run=True)
    report = run(place, to=str(tmp_path / "to"))
    assert rows_of(tmp_path / "to") == place.read()
    assert report.verdict == 0 and report.counts["pieces"] > 5
    assert report.counts["records"] == sum(map(len, place.read().values()))
    assert [item["records"] for item in dry.items] == [item["records"] for item in report.items]
    assert run(place, to=str(tmp_path / "to")).counts == report.counts, "nothing is left to do"


def test_it_begins_behind_the_regions_marks_and_those_given(place: Place, tmp_path: Path) -> None:
    async def mark(region: Region) -> None:
        await region.mark_deleted(HOT, 30)
        await region.drop_table(2)
        await region.mark_deleted(3, region.tables[3].next_seq_num)

    place.with_region(mark)
    report = run(place, to=str(tmp_path / "to"), marks=Marks.of({str(HOT): 49, "1": 3, "9": 5}))
    expected = place.read({HOT: 50, 1: 4, 4: 0, 5: 0})
    assert rows_of(tmp_path / "to") == expected and set(expected) == {1, 4, 5, HOT}
    assert report.verdict == 0, report.failures
    (failure,) = run(place, to=str(tmp_path / "late"), marks=Marks.of({str(HOT): 10}), tables=(HOT,)).failures
    assert (failure["error"], failure["expected"], failure["found"]) == ("sequence gap", 11, 30)
    (failure,) = run(place, to=str(tmp_path / "none"), marks=Marks.of({"3": 0}), tables=(3,)).failures
    assert (failure["error"], failure["expected"], failure["dlsn"]) == ("sequence gap", 1, "")
    (failure,) = run(place, to=str(tmp_path / "high"), marks=Marks.of({"1": 10_000}), tables=(1,)).failures
    assert "beyond the last record" in failure["advice"]
    for mark_ in (0, -1):
        assert run(place, to=str(tmp_path / f"all{mark_}"), marks=Marks.of({"1": mark_}), tables=(1,)).verdict == 0


def test_a_region_without_records_has_no_tables(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write(random.Random(1), 0)
    report = run(place, to=str(tmp_path / "to"))
    assert report.verdict == 0 and report.items == [] and report.counts["pieces"] == 0


def test_the_plan_ends_where_the_region_ended(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed before a task began goes on with its plan."""
    before = place.read()

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "scatter", killed)
    with pytest.raises(KeyboardInterrupt):
        run(place, to=str(tmp_path / "to"))
    monkeypatch.setattr(job, "scatter", OnTheSpot())
    place.write(random.Random(6), 20)
    assert run(place, to=str(tmp_path / "to")).verdict == 0
    assert rows_of(tmp_path / "to") == before


class Counted:
    """Topics that count what is read of the data topic."""

    def __init__(self, directory: Path) -> None:
        self.bytes = 0
        self._topics = DirectoryTopics(str(directory))

    async def read(self, topic: str, offset: int, bytes_max: int) -> list[Stored]:
        found = self._topics.read(topic, offset, 4000)
        self.bytes += sum(len(key) + len(value) for _, key, value in found)
        return found


def test_one_table_is_read_with_little_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)

    async def work(region: Region) -> None:
        for _ in range(4):
            for _ in range(40):
                await region.write(1, [b"x" * 100])
            for _ in range(10):
                await region.write(2, [b"y" * 300_000])

    place.with_region(work)
    topics = Counted(place.directory)
    monkeypatch.setattr(wal_region, "open_topics", lambda *_, **__: topics)
    assert run(place, to=str(tmp_path / "to"), tables=(1,), piece_bytes=1 << 20).verdict == 0
    assert rows_of(tmp_path / "to") == {1: place.read()[1]}
    assert topics.bytes < 2_000_000, "of 12 MB; its own records are 30 kB"


def test_a_front_that_another_program_deleted_fails_the_tables_concerned(place: Place, tmp_path: Path) -> None:
    async def late(region: Region) -> None:
        await region.write_many([(8, b"late")] * 3)

    place.with_region(late)
    whole = place.read()
    place.cut(whole[8][0][0] - 10)
    report = run(place, to=str(tmp_path / "to"))
    assert rows_of(tmp_path / "to") == {8: whole[8]}
    assert {failure["table"] for failure in report.failures} == set(whole) - {8}
    assert all(failure["error"] == "sequence gap" for failure in report.failures)


def test_a_front_that_is_deleted_while_it_is_replayed_is_told(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = place.read()
    at = next(offset for offset, _, _ in late[HOT] if offset > 150)

    def plan_and_cut(self: RegionWal, *given: Any) -> Any:
        made = original(self, *given)
        place.cut(at)
        return made

    original = RegionWal.plan
    monkeypatch.setattr(RegionWal, "plan", plan_and_cut)
    report = run(place, to=str(tmp_path / "to"))
    assert report.items == [] and {failure["region"] for failure in report.failures} == {"orders"}
    assert f"records were deleted since the replay was planned: region=orders offset=1 first={at}" in str(
        report.failures
    )
    report = run(place, {"failOnDataLoss": "false"}, to=str(tmp_path / "some"), tables=(1, HOT))
    assert {failure["error"] for failure in report.failures} == {"sequence gap"}, report.failures


def test_damage_fails_the_region_with_its_offset_or_is_left_out(place: Place, tmp_path: Path) -> None:
    whole = place.read()
    offset = whole[HOT][20][0]
    place.damage(offset)
    report = run(place, to=str(tmp_path / "to"))
    assert rows_of(tmp_path / "to") == {}
    assert [failure["region"] for failure in report.failures] == ["orders"]
    assert (
        "checksum does not match" in report.failures[0]["error"] and f"offset={offset}" in report.failures[0]["error"]
    )
    report = run(place, {"oncorruption": "skip-entry"}, to=str(tmp_path / "some"), piece_bytes=500)
    assert any(f"offset={offset}, left out" in finding["text"] for finding in report.findings)
    assert HOT in {failure["table"] for failure in report.failures}
    replayed = rows_of(tmp_path / "some")
    assert replayed and all(rows == whole[table] for table, rows in replayed.items())


def test_a_damaged_first_record_is_no_beginning(place: Place, tmp_path: Path) -> None:
    place.damage(1)
    with pytest.raises(DamagedError, match="offset=1"):
        run(place, to=str(tmp_path / "to"))
    report = run(place, {"onCorruption": "skip-entry"}, to=str(tmp_path / "some"))
    assert any("offset=1, left out" in finding["text"] for finding in report.findings)
    assert report.failures


@pytest.mark.parametrize("again", ["created", "gone", "shorter"])
def test_another_region_of_the_same_name_is_not_read(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    def plan_and_replace(self: RegionWal, *given: Any) -> Any:
        made = original(self, *given)
        topics = DirectoryTopics(str(place.directory))
        topics.delete("app.data.orders")
        topics.delete("app.meta.orders")
        if again == "created":
            place.write(random.Random(5), 200)
        elif again == "shorter":
            place.write(random.Random(5), 1)
        return made

    original = RegionWal.plan
    monkeypatch.setattr(RegionWal, "plan", plan_and_replace)
    report = run(place, to=str(tmp_path / "to"))
    assert report.items == [] and report.failures
    told = {"created": "another region has been created", "gone": "no such topic", "shorter": ""}[again]
    assert told in report.failures[0]["error"]


def test_what_is_wrong_is_told_before_anything_is_done(place: Place, tmp_path: Path) -> None:
    for address in ("orders", "app/orders", "file:///app", "file:///x//orders", "kafka://h:1/orders", "x://"):
        with pytest.raises(ConfigError, match="use kafka://host:port,host:port/NAMESPACE/REGION"):
            RegionWal(address)
    with pytest.raises(ConfigError, match="not an address of topics"):
        RegionWal("ftp://h/app/orders")
    with pytest.raises(ConfigError, match="not an address of Kafka"):
        RegionWal("kafka://h/app/orders")
    with pytest.raises(InvalidRequestError, match="a namespace has 1 to 100"):
        RegionWal("file:///x/a.b/orders")
    with pytest.raises(ConfigError, match=r"does not fit a region in topics, remove it; .*: option=startingTxid"):
        RegionWal(place.address, {"startingTxid": "7"})
    with pytest.raises(ConfigError, match="onCorruption: expected one of fail, skip-entry"):
        RegionWal(place.address, {"onCorruption": "ignore"})
    with pytest.raises(TopicNotFoundError, match="there is no such region, create it first: region=app/other"):
        replay(None, None, ReplayOptions(to=str(tmp_path)), wal=RegionWal(f"{place.topics}/app/other"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="name the streams"):
        replay(None, None, ReplayOptions(to=str(tmp_path)))  # type: ignore[arg-type]
    assert RegionAddress.parse("kafka://h:1,i:2/app/orders") == ("kafka://h:1,i:2", "app", "orders")


def test_records_of_version_0_are_one_piece_in_front_of_the_others(tmp_path: Path) -> None:
    place = Place(tmp_path)
    rng = random.Random(8)
    for version in (0, None, 1, None):
        place.write(rng, 60, version)
    report = run(place, to=str(tmp_path / "to"))
    assert report.verdict == 0
    assert rows_of(tmp_path / "to") == place.read()
    assert report.counts["pieces"] > 3
    first = json.loads((tmp_path / "to" / "_replay" / "plan.json").read_bytes())["pieces"][0]
    assert first["records"] > 100
    assert rows_of(tmp_path / "to")[HOT][0][0] < 5


def test_a_table_that_no_row_can_hold_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path)

    async def work(region: Region) -> None:
        await region.write_many([(2**63, b"x"), (1, b"y")])

    place.with_region(work)
    with pytest.raises(InvalidRequestError, match="select others"):
        run(place, to=str(tmp_path / "to"))
    assert run(place, to=str(tmp_path / "one"), tables=(1,)).verdict == 0


def test_a_plan_in_a_running_loop(place: Place) -> None:
    async def plan() -> Sequence[RegionPiece]:
        return RegionWal(place.address).plan(1000, Marks(), ()).pieces

    pieces = asyncio.run(plan())
    assert [piece.number for piece in pieces] == list(range(len(pieces)))
    assert len(pieces) > 10


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("DLOG_KAFKA_TOPICS", raising=False)
    yield
