"""Tests replay without Spark: regions as batches in, tables out, compared with a replay record by record."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.dataset import dataset

from dlog.errors import ConfigError, DamagedError
from dlog.spark.jobs import replay as job
from dlog.spark.jobs.flushed_sequences import Marks, read_marks
from dlog.spark.jobs.replay import ReplayOptions, replay
from dlog.spark.jobs.replay_merge import Merge, TablePart
from dlog.spark.jobs.replay_runs import OUTPUT
from dlog.spark.jobs.replay_work import Work, joined_crc32c
from dlog.spark.jobs.wal import SCHEMA, KnownTable, OnSkipped, RegionPiece, WalPlan
from dlog.wire.digest import crc32c

Region = list[tuple[int, int, bytes]]  # table, sequence, payload


@dataclass
class Regions:
    """A `Wal` in memory, which returns regions in pieces and batches of given numbers of records."""

    regions: dict[str, Region]
    per_piece: int = 50
    per_batch: int = 7

    def identity(self) -> dict[str, Any]:
        return {"regions": sorted(self.regions)}

    def plan(self, piece_bytes: int, marks: Marks, tables: Sequence[int]) -> WalPlan:
        pieces = (
            RegionPiece(region=name, number=number, bytes=1, records=self.per_piece, told=({"from": at},))
            for name, region in self.regions.items()
            for number, at in enumerate(range(0, len(region), self.per_piece))
        )
        return WalPlan(tuple(pieces))

    def read(self, piece: RegionPiece, tables: Sequence[KnownTable], on_skipped: OnSkipped) -> Iterator[pa.RecordBatch]:
        begin = piece.told[0]["from"]
        rows = list(enumerate(self.regions[piece.region]))[begin : begin + self.per_piece]
        for at in range(0, len(rows), self.per_batch):
            yield batch_of(rows[at : at + self.per_batch])


def batch_of(rows: Sequence[tuple[int, tuple[int, int, bytes]]]) -> pa.RecordBatch:
    """Record i of a region is at 1:i:0."""
    columns = {
        "segment": [1] * len(rows),
        "entry": [at for at, _ in rows],
        "slot": [0] * len(rows),
        "txid": [at for at, _ in rows],
        "timestamp": [at or None for at, _ in rows],
        "table": [row[0] for _, row in rows],
        "sequence": [row[1] for _, row in rows],
        "payload": [row[2] for _, row in rows],
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in SCHEMA], schema=SCHEMA)


class OnTheSpot:
    """Does the work of `scatter` at once in this process."""

    def __call__(self, spark: Any, tasks: Sequence[Any], work: Callable[[Any], Any], **_: Any) -> list[Any]:
        return [work(task) for task in tasks]


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "scatter", OnTheSpot())


def run(regions: Regions, **options: Any) -> Any:
    sizes: dict[str, Any] = {"run_bytes": 200, "part_bytes": 2000}
    return replay(None, None, ReplayOptions(**{**sizes, **options}), wal=regions)  # type: ignore[arg-type]


def region_of(rng: random.Random, tables: dict[int, int], weights: dict[int, int] | None = None) -> Region:
    """This many records of each table, numbered from 1, in any order between tables."""
    left = dict(tables)
    numbers = dict.fromkeys(tables, 0)
    records = []
    while left:
        names = list(left)
        table = rng.choices(names, [weights.get(n, 1) if weights else left[n] for n in names])[0]
        numbers[table] += 1
        records.append(
            (table, numbers[table], b"%d/%d|" % (table, numbers[table]) + rng.randbytes(rng.choice((0, 9, 60))))
        )
        left[table] -= 1
        if not left[table]:
            del left[table]
    return records


def oracle(
    region: Region, marks: Marks
) -> tuple[dict[int, list[tuple[int, int, bytes]]], dict[int, tuple[str, int, int, int]]]:
    """Replay record by record: of each table what is replayed (position, sequence, payload), or where it breaks first
    (what, position, expected, found)."""
    good: dict[int, list[tuple[int, int, bytes]]] = {}
    bad: dict[int, tuple[str, int, int, int]] = {}
    following: dict[int, int] = {}
    for at, (table, sequence, payload) in enumerate(region):
        mark = marks.of_table(table)
        if mark is not None and sequence <= mark:
            continue
        expected = following.get(table, sequence if mark is None else mark + 1)
        if sequence != expected and table not in bad:
            bad[table] = ("gap" if sequence > expected else "regression", at, expected, sequence)
        following[table] = sequence + 1
        good.setdefault(table, []).append((at, sequence, payload))
    return {table: rows for table, rows in good.items() if table not in bad}, bad


def files_of(to: Path) -> dict[tuple[str, int], list[tuple[int, int, bytes]]]:
    """The content of a directory of tables, by its manifests."""
    found = {}
    for path in to.glob("region=*/table=*/_manifest.json"):
        told = json.loads(path.read_bytes())
        assert {p.name for p in path.parent.iterdir()} == {"_manifest.json", *(f["file"] for f in told["files"])}
        rows = []
        for file in told["files"]:
            table = (
                pq.ParquetFile(path.parent / file["file"]).read()
                if file["file"].endswith("parquet")
                else (pa.ipc.open_file(path.parent / file["file"]).read_all())
            )
            assert table.schema.equals(OUTPUT)
            of_file = [(r["entry"], r["sequence"], r["payload"]) for r in table.to_pylist()]
            assert crc32c(b"".join(row[2] for row in of_file)) == file["crc32c"] and len(of_file) == file["records"]
            rows += of_file
        assert told["crc32c"] == crc32c(b"".join(row[2] for row in rows)) and told["records"] == len(rows)
        assert (told["first_dlsn"], told["last_dlsn"]) == (f"1:{rows[0][0]}:0", f"1:{rows[-1][0]}:0")
        assert (told["first_sequence"], told["last_sequence"]) == (rows[0][1], rows[-1][1])
        found[told["region"], told["table"]] = rows
    return found


def failures_of(report: Any) -> dict[int, tuple[str, int, int, int]]:
    return {
        f["table"]: (f["error"].removeprefix("sequence "), int(f["dlsn"].split(":")[1]), f["expected"], f["found"])
        for f in report.failures
    }


table_ids = st.sampled_from([0, 1, 2, 3, 65_535, 65_536, 2**40])


@given(
    st.lists(st.tuples(table_ids, st.integers(0, 3), st.binary(max_size=30)), max_size=120),
    st.dictionaries(table_ids, st.integers(-1, 12), max_size=4),
    st.one_of(st.none(), st.integers(-1, 4)),
    st.integers(1, 40),
    st.integers(1, 400),
    st.integers(1, 1500),
)
@settings(max_examples=150)
def test_tables_are_what_one_finds_record_after_record(
    tmp_path_factory: pytest.TempPathFactory,
    told: list[tuple[int, int, bytes]],
    by_table: dict[int, int],
    default: int | None,
    per_piece: int,
    run_bytes: int,
    part_bytes: int,
) -> None:
    """Any steps between sequences, so any mix of gaps and steps back; any sizes."""
    at: dict[int, int] = {}
    region: Region = []
    for table, step, payload in told:
        at[table] = at.get(table, 0) + (1 if step < 2 else 2 - step if step == 3 else 2)
        region.append((table, max(0, at[table]), payload))
    marks = Marks(by_table, default)
    to = tmp_path_factory.mktemp("to")
    report = run(Regions({"r": region}, per_piece), to=str(to), marks=marks, run_bytes=run_bytes, part_bytes=part_bytes)
    good, bad = oracle(region, marks)
    assert files_of(to) == {("r", table): rows for table, rows in good.items()}
    assert failures_of(report) == bad
    assert report.counts["records"] == len(region)
    assert [item["table"] for item in report.items] == sorted(good)
    assert int(report.verdict) == (3 if bad else 0)


@pytest.mark.parametrize("file_format", ["parquet", "arrow"])
def test_a_hot_table_is_many_parts_and_small_ones_share_tasks(tmp_path: Path, file_format: str) -> None:
    rng = random.Random(3)
    counts = {7: 900, **dict.fromkeys(range(10, 20), 10)}
    region = region_of(rng, counts)
    calls: list[list[str]] = []
    original = Merge.do

    def do(self: Merge, parts: Sequence[Any], token: str) -> list[dict[str, Any]]:
        calls.append([part.name for part in parts])
        assert len(parts) == 1 or sum(part.weight for part in parts) <= 5000
        return original(self, parts, token)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Merge, "do", do)
        report = run(Regions({"r": region}), to=str(tmp_path), part_bytes=5000, format=file_format)
    hot = next(item for item in report.items if item["table"] == 7)
    assert hot["parts"] > 5 and hot["records"] == 900 and len(hot["files"]) == hot["parts"]
    assert max(sum(name.startswith("r-7-") for name in names) for names in calls) <= 2, "no task holds the table"
    assert any(len(names) > 3 for names in calls)
    good, _ = oracle(region, Marks())
    assert files_of(tmp_path) == {("r", table): rows for table, rows in good.items()}


def test_a_gap_and_a_step_back_fail_their_tables_only(tmp_path: Path) -> None:
    region = [(1, 1, b"a"), (2, 1, b"b"), (3, 1, b"c"), (1, 3, b"d"), (2, 2, b"e"), (3, 1, b"f"), (2, 3, b"g")]
    report = run(Regions({"r": region}), to=str(tmp_path))
    assert failures_of(report) == {1: ("gap", 3, 2, 3), 3: ("regression", 5, 2, 1)}
    assert [f["dlsn"] for f in report.failures] == ["1:3:0", "1:5:0"]
    assert files_of(tmp_path) == {("r", 2): [(1, 1, b"b"), (4, 2, b"e"), (6, 3, b"g")]}
    assert int(report.verdict) == 3
    assert (tmp_path / "_replay" / "runs").is_dir(), "what a run left that failed is there for the next one"


def test_what_follows_a_mark_must_follow_it(tmp_path: Path) -> None:
    region = [(1, 5, b"a"), (1, 6, b"b"), (2, 5, b"c"), (3, 5, b"d"), (4, 1, b"e")]
    marks = Marks.of({"1": 5, "2": 3, "3": 9, "*": 0})
    report = run(Regions({"r": region}), to=str(tmp_path), marks=marks)
    assert failures_of(report) == {2: ("gap", 2, 4, 5)}
    assert "the mark belongs to another table" in report.failures[0]["advice"]
    assert files_of(tmp_path) == {("r", 1): [(1, 6, b"b")], ("r", 4): [(4, 1, b"e")]}
    assert report.counts["flushed"] == 2


def test_only_the_tables_asked_for(tmp_path: Path) -> None:
    region = [(1, 1, b"a"), (2, 1, b"b"), (3, 1, b"c"), (2, 2, b"d")]
    report = run(Regions({"r": region}), to=str(tmp_path), tables=(2, 9))
    assert files_of(tmp_path) == {("r", 2): [(1, 1, b"b"), (3, 2, b"d")]}
    assert (report.counts["records"], report.counts["others"]) == (4, 2)


def test_regions_do_not_touch_each_other(tmp_path: Path) -> None:
    regions = {"r": [(1, 1, b"a"), (1, 2, b"b")], "s": [(1, 1, b"c"), (1, 3, b"d"), (2, 1, b"e")]}
    report = run(Regions(regions), to=str(tmp_path))
    assert files_of(tmp_path) == {("r", 1): [(0, 1, b"a"), (1, 2, b"b")], ("s", 2): [(2, 1, b"e")]}
    assert [(f["region"], f["table"]) for f in report.failures] == [("s", 1)]


def test_a_dry_run_says_the_same_and_writes_nothing(tmp_path: Path) -> None:
    region = region_of(random.Random(1), {1: 100, 2: 30, 3: 5})
    region.append((3, 99, b""))
    wet = run(Regions({"r": region}), to=str(tmp_path / "wet"))
    dry = run(Regions({"r": region}), to=str(tmp_path / "dry"), dry_run=True)
    assert not (tmp_path / "dry").exists()
    assert dry.failures == wet.failures and dry.dry_run
    for name in ("table", "records", "bytes", "parts", "first_dlsn", "last_dlsn", "first_sequence", "last_sequence"):
        assert [item[name] for item in dry.items] == [item[name] for item in wet.items]
    assert {**dry.counts, "pieces_kept": 0, "parts_kept": 0} == wet.counts


class Killed(BaseException):
    pass


def test_killed_anywhere_and_begun_again_it_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at each step that touches the disk, then run to the end."""
    import os as real

    region = region_of(random.Random(2), {1: 60, 2: 20, 3: 3})
    regions = Regions({"r": region})
    run(regions, to=str(tmp_path / "whole"), part_bytes=1000)
    expected = tree(tmp_path / "whole")
    assert len(expected) > 8
    good, _ = oracle(region, Marks())
    for step in itertools.count():
        to = tmp_path / f"cut-{step}"
        left = iter([None] * step)

        def cut(original: Callable[..., Any], left: Iterator[None] = left) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                if next(left, Killed) is Killed:
                    raise Killed
                return original(*args, **kwargs)

            return call

        was_cut = False
        with monkeypatch.context() as patch:
            for name in ("link", "rename", "fsync"):
                patch.setattr(f"os.{name}", cut(getattr(real, name)))
            try:
                run(regions, to=str(to), part_bytes=1000)
            except Killed:
                was_cut = True
        again = run(regions, to=str(to), part_bytes=1000)
        assert int(again.verdict) == 0
        assert tree(to) == expected, f"cut at step {step}"
        if step % 7 == 0:
            assert files_of(to) == {("r", table): rows for table, rows in good.items()}
        if not was_cut:
            break
    assert step > 30


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
@pytest.mark.parametrize("names", [("007",), ("007", "1e5", "2026-11-20", "true"), ("7", "-1", "plain")])
def test_names_of_regions_stay_what_they_are_for_who_guesses_types(
    names: tuple[str, ...], format_: str, tmp_path: Path
) -> None:
    region = region_of(random.Random(5), {1: 5, 2: 3})
    assert int(run(Regions(dict.fromkeys(names, region)), to=str(tmp_path), format=format_).verdict) == 0
    guessed = dataset(tmp_path, format=format_, partitioning="hive", exclude_invalid_files=True).to_table()
    assert Counter(guessed["region"].to_pylist()) == dict.fromkeys(names, len(region))
    assert Counter(guessed["table"].to_pylist()) == {1: 5 * len(names), 2: 3 * len(names)}


def tree(to: Path) -> dict[str, bytes]:
    """Everything that a reader of the output sees."""
    return {
        str(path.relative_to(to)): path.read_bytes()
        for path in sorted(to.rglob("*"))
        if path.is_file() and "_replay" not in path.relative_to(to).parts
    }


def test_a_second_run_does_nothing_and_another_replay_wants_another_directory(tmp_path: Path) -> None:
    regions = Regions({"r": region_of(random.Random(4), {1: 60, 2: 20})})
    first = run(regions, to=str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    regions.regions["r"].append((1, 61, b"later"))
    second = run(regions, to=str(tmp_path))
    assert second.items == first.items and second.counts == first.counts
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before
    with pytest.raises(ConfigError, match=r"this directory holds another replay.*differs=marks"):
        run(regions, to=str(tmp_path), marks=Marks({1: 5}))
    with Work(tmp_path / "_replay", tmp_path), pytest.raises(ConfigError, match="another replay is running"):
        run(regions, to=str(tmp_path))


def test_a_table_that_is_there_already_is_not_touched(tmp_path: Path) -> None:
    regions = Regions({"r": [(1, 1, b"a")]})
    run(regions, to=str(tmp_path / "to"))
    with pytest.raises(ConfigError, match="this table was written by another replay"):
        run(regions, to=str(tmp_path / "to"), work=str(tmp_path / "other"), marks=Marks({1: 0}))


def test_a_run_file_that_changed_is_damage_and_not_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regions = Regions({"r": [(1, 1, b"a"), (2, 1, b"b")]})
    with monkeypatch.context() as patch:
        patch.setattr(job, "_merge", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            run(regions, to=str(tmp_path))
    (path,) = (tmp_path / "_replay" / "runs").glob("*.run")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # in the payload of table 2
    path.write_bytes(data)
    report = run(regions, to=str(tmp_path))
    assert list(files_of(tmp_path)) == [("r", 1)]
    assert [(f["table"], f["error"][:21]) for f in report.failures] == [(2, "a run file is damaged")]


# ---- functions ------------------------------------------------------------------------------------------------------

called: list[tuple[TablePart, list[int]]] = []
fail_at: set[tuple[int, int]] = set()


def take(part: TablePart, batches: Iterator[pa.RecordBatch]) -> None:
    if (part.table, part.number) in fail_at:
        raise RuntimeError("no room")
    called.append((part, [sequence for batch in batches for sequence in batch.column("sequence").to_pylist()]))


def leave_early(part: TablePart, batches: Iterator[pa.RecordBatch]) -> None:
    next(batches)


@pytest.fixture
def no_calls() -> Iterator[None]:
    called.clear()
    fail_at.clear()
    yield


def test_a_function_gets_each_table_in_order_and_what_failed_is_done_again(tmp_path: Path, no_calls: None) -> None:
    regions = Regions({"r": region_of(random.Random(5), {1: 200, 2: 200, 3: 4})})
    options: dict[str, Any] = {"function": f"{__name__}:take", "work": str(tmp_path), "part_bytes": 3000}
    fail_at.add((2, 1))
    report = run(regions, **options)
    assert [(f["table"], f["part"], f["error"]) for f in report.failures] == [(2, 1, "RuntimeError: no room")]
    assert [item["table"] for item in report.items] == [1, 3]
    for table in (1, 3):
        parts = [(part, got) for part, got in called if part.table == table]
        assert [part.number for part, _ in parts] == list(range(parts[0][0].parts))
        assert [n for _, got in parts for n in got] == list(range(1, regions_count(regions, table) + 1))
        assert all(got[0] == part.first_sequence and got[-1] == part.last_sequence for part, got in parts)
    assert [part.number for part, _ in called if part.table == 2] == [0], "nothing behind what failed"
    called.clear()
    fail_at.clear()
    again = run(regions, **options)
    assert int(again.verdict) == 0 and [item["table"] for item in again.items] == [1, 2, 3]
    assert {part.table for part, _ in called} == {2} and next(part.number for part, _ in called) == 1
    assert all(item["files"] == [] for item in again.items)


def regions_count(regions: Regions, table: int) -> int:
    return sum(row[0] == table for row in regions.regions["r"])


def test_a_function_must_take_every_record(tmp_path: Path) -> None:
    many = Regions({"r": [(1, n, b"x" * 200_000) for n in range(100)]})
    report = run(many, function=f"{__name__}:leave_early", work=str(tmp_path), part_bytes=10**9)
    assert "before it consumed every record" in report.failures[0]["error"]


def test_a_function_that_is_not_there_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    for name, why in (
        ("nothing", "cannot be imported"),
        ("no.such:f", "cannot be imported"),
        ("os:sep", "module:function"),
    ):
        with pytest.raises(ConfigError, match=why):
            run(Regions({}), function=name, work=str(tmp_path))


# ---- options, marks, arithmetic -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({}, "either a directory for files"),
        ({"to": "a", "function": "b:c"}, "either a directory for files"),
        ({"function": "b:c"}, "needs a work directory"),
        ({"to": "a", "format": "csv"}, "one of parquet, arrow"),
        ({"to": "a", "tables": (-1,)}, "a table must be a whole number"),
        ({"to": "a", "run_bytes": 0}, "run_bytes must be from 1"),
        ({"to": "a", "run_bytes": 2 << 30}, "run_bytes must be from 1"),
    ],
)
def test_options_that_mean_nothing_are_refused(told: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ReplayOptions(**told)


def test_marks_are_read_and_judged(tmp_path: Path) -> None:
    path = tmp_path / "marks.json"
    path.write_text('{"7": 120, "8": -1, "*": 3}')
    marks = read_marks(path)
    assert (marks.of_table(7), marks.of_table(8), marks.of_table(9)) == (120, -1, 3)
    assert Marks.of(marks.as_map()) == marks
    for text, why in (
        ("[1]", "expected an object like"),
        ("{", "marks cannot be read"),
        ('{"7": "a"}', "a flushed sequence must be a whole number"),
        ('{"7": true}', "a flushed sequence must be a whole number"),
        ('{"7": -2}', "a flushed sequence must be a whole number"),
        ('{"x": 1}', "a table must be a whole number"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=why):
            read_marks(path)
    with pytest.raises(ConfigError, match="marks cannot be read"):
        read_marks(tmp_path / "none")


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksums_of_joined_bytes(first: bytes, second: bytes) -> None:
    assert joined_crc32c(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)


def test_an_index_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    with Work(tmp_path, tmp_path / "to") as work:
        (work.runs / "r-000000.index").write_bytes(b'{"region": "r"}\n')
        with pytest.raises(DamagedError, match="an index of runs cannot be read"):
            work.split_of(RegionPiece(region="r", number=0, bytes=1, records=1, told=()))
