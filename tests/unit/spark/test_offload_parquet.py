"""Checksums of columns depend on the rows alone, not on their batches; row groups have a bounded size."""

from __future__ import annotations

import datetime as dt
import io
import random
from collections.abc import Iterator
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def rows(count: int, seed: int = 1) -> Any:
    from dlog.spark.columns import COLUMNS

    rng = random.Random(seed)
    made = {
        "stream": ["s"] * count,
        "segment": [3] * count,
        "entry": [i // 7 for i in range(count)],
        "slot": [i % 7 for i in range(count)],
        "txid": [i * 2 for i in range(count)],
        "sequence_id": [i if i % 3 else None for i in range(count)],
        "timestamp": [dt.datetime.fromtimestamp(i, dt.UTC) if i % 5 else None for i in range(count)],
        "value": [rng.randbytes(rng.choice((0, 1, 30))) for _ in range(count)],
    }
    return pa.RecordBatch.from_arrays([pa.array(made[n], k) for n, k in COLUMNS.items()], names=list(COLUMNS))


def cut(batch: Any, seed: int) -> Iterator[Any]:
    """The same rows in batches of other sizes, with offsets into larger buffers."""
    rng, at = random.Random(seed), 0
    while at < batch.num_rows:
        size = rng.choice((1, 2, 30, 500))
        yield batch.slice(at, size)
        at += size


def sums(batches: Any) -> tuple[Any, ...]:
    from dlog.spark.jobs.offload_parquet import Sums

    found = Sums()
    for batch in batches:
        found.add(batch)
    return found.rows, found.first, found.last, found.as_text()


@pytest.mark.parametrize("seed", range(5))
def test_the_sums_do_not_depend_on_how_rows_are_cut(seed: int) -> None:
    whole = rows(1000)
    assert sums(cut(whole, seed)) == sums([whole])
    assert sums([whole])[:3] == (1000, (3, 0, 0), (3, 142, 5))


@pytest.mark.parametrize("column", range(8))
def test_one_value_that_differs_changes_the_sums(column: int) -> None:
    whole = rows(50)
    other = rows(51, seed=2).slice(1)
    mixed = [other.column(i) if i == column else whole.column(i) for i in range(8)]
    changed = pa.RecordBatch.from_arrays(mixed, schema=whole.schema)
    same = changed.equals(whole)
    assert (sums([changed]) == sums([whole])) is same
    assert same is (column < 2), "stream and segment are the same in both"


def test_values_that_moved_over_a_border_change_the_sums() -> None:
    def of(*values: bytes) -> Any:
        batch = rows(len(values))
        return pa.RecordBatch.from_arrays([*batch.columns[:7], pa.array(values, pa.binary())], schema=batch.schema)

    assert sums([of(b"ab", b"c")]) != sums([of(b"a", b"bc")])


def test_row_groups_are_neither_too_long_nor_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    from dlog.spark.jobs import offload_parquet

    monkeypatch.setattr(offload_parquet, "ROWS", 300)
    whole = rows(1000)
    out = io.BytesIO()
    with pq.ParquetWriter(out, whole.schema) as writer:
        group = offload_parquet._Group(writer, offload_parquet.Sums())
        for batch in cut(whole, 3):
            group.add(batch)
        group.end()
    file = pq.ParquetFile(out)
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [300, 300, 300, 100]
    assert file.read().to_batches()[0].schema.names == whole.schema.names
    assert file.read().to_pylist() == whole.to_pylist()
    statistics = file.metadata.row_group(1).column(4).statistics
    assert (statistics.min, statistics.max) == (600, 1198)
    monkeypatch.setattr(offload_parquet, "GROUP_BYTES", 1000)
    out = io.BytesIO()
    with pq.ParquetWriter(out, whole.schema) as writer:
        group = offload_parquet._Group(writer, offload_parquet.Sums())
        for batch in cut(whole, 3):
            group.add(batch)
        group.end()
    assert pq.ParquetFile(out).num_row_groups > 4
