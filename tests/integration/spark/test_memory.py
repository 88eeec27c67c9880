"""The memory of a Spark worker is bounded, however much it reads. Trap 14: Spark limits the address space, so that
mapped memory and memory kept for later count at once."""

from __future__ import annotations

import random
import resource
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from dlog.client.sync import SyncClient
from tests.integration.cli.up import Up

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from dlog.spark.source import StreamsReader

RECORD_BYTES, RECORDS = 8_000, 40_000
STREAM_BYTES = RECORD_BYTES * RECORDS
SEGMENT_BYTES = 2 * STREAM_BYTES  # one segment would not fit either
SHORT_BYTES = 32 << 20
ROOM_BYTES = 128 << 20  # beyond what a short read has already taken
SLOW_S = 1.0  # time in which everything could be prefetched
BLOCKS = 500
PATIENCE_S = 60.0


class Passed(NamedTuple):
    """What was read. crc: of the values in order."""

    rows: int
    crc: int


class Written(NamedTuple):
    """A stream with the options of the source for it, and what a read of it must give."""

    options: dict[str, str]
    passed: Passed


@pytest.fixture(scope="module")
def written(cluster: Up, client: SyncClient) -> Iterator[Written]:
    assert STREAM_BYTES > 2 * ROOM_BYTES
    stream = f"s-{uuid.uuid4().hex[:10]}"
    client.create(stream, segment_bytes=SEGMENT_BYTES)
    passed = Passed(0, 0)

    def passing() -> Iterator[bytes]:
        nonlocal passed
        for record in records():
            passed = Passed(passed.rows + 1, zlib.crc32(record, passed.crc))
            yield record

    client.append_many(stream, passing())
    running = cluster.running
    of = {"zookeeper": running.zookeeper, "namespace": running.namespace, "stream": stream}
    yield Written(of, passed)
    client.delete(stream)


def records() -> Iterator[bytes]:
    """Records that differ from each other and cannot be compressed."""
    rng = random.Random(7)
    blocks = [rng.randbytes(RECORD_BYTES - 8) for _ in range(BLOCKS)]
    for number in range(RECORDS):
        yield number.to_bytes(8) + blocks[number % BLOCKS]


def test_a_worker_reads_more_than_it_may_take(written: Written) -> None:
    assert apart(written, keeps=False) == written.passed


def test_a_worker_that_kept_what_it_read_would_fail(written: Written) -> None:
    """Shows that the test above would fail: it depends on the behaviour of the allocators, too."""
    with pytest.raises(MemoryError):
        apart(written, keeps=True)


def apart(written: Written, *, keeps: bool) -> Passed:
    """Read everything in a process of its own, as small as one of Spark's."""
    with get_context("spawn").Pool(1) as process:
        return process.apply_async(read_all, (written.options, keeps)).get(PATIENCE_S)


def read_all(options: dict[str, str], keeps: bool) -> Passed:
    """Read as a worker does, in one task, for a consumer that is slow at first. keeps: every batch is kept.

    Raises MemoryError, or an error that follows from one elsewhere, if more than ROOM_BYTES are taken.
    """
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own reserves a GiB of addresses before its first allocation
    reader, (short, *_) = planned(options, SHORT_BYTES)
    assert SHORT_BYTES / 2 < sum(batch.nbytes for batch in reader.read(short)) < 2 * SHORT_BYTES
    reader, (whole,) = planned(options, 2 * SEGMENT_BYTES)
    kept: list[pa.RecordBatch] = []
    passed = Passed(0, 0)
    with no_more_than(ROOM_BYTES):
        for batch in reader.read(whole):
            if not passed.rows:
                time.sleep(SLOW_S)
            passed = and_with(passed, batch)
            if keeps:
                kept.append(batch)
    return passed


def planned(options: dict[str, str], split_bytes: int) -> tuple[StreamsReader, Sequence[InputPartition]]:
    """A reader, and tasks of about this size."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    from dlog.spark.source import DlogDataSource, StreamsReader

    source = DlogDataSource({**options, "splitBytes": str(split_bytes)})
    reader = source.reader(StructType([StructField("value", BinaryType())]))
    assert isinstance(reader, StreamsReader)
    return reader, reader.partitions()


def and_with(passed: Passed, batch: pa.RecordBatch) -> Passed:
    crc = passed.crc
    for value in batch.column("value"):
        crc = zlib.crc32(value.as_buffer(), crc)
    return Passed(passed.rows + batch.num_rows, crc)


@contextmanager
def no_more_than(room: int) -> Iterator[None]:
    """Limit this process, as Spark limits its workers, to this many bytes of addresses more than it has now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize:"))
    resource.setrlimit(resource.RLIMIT_AS, ((int(line.split()[1]) << 10) + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
