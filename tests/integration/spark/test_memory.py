"""What a worker of Spark takes is bounded, however much it reads. Trap 14: Spark makes its limit one of address space,
so that what is mapped, or kept for later, counts at once."""

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
SEGMENT_BYTES = 2 * STREAM_BYTES  # so there is one, which would not fit either
SHORT_BYTES = 32 << 20
ROOM_BYTES = 128 << 20  # beyond what a short read left to a process
SLOW_S = 1.0  # in which all of it could be read ahead
BLOCKS = 500
PATIENCE_S = 60.0


class Passed(NamedTuple):
    """What went by. crc: of the values, one behind the other."""

    rows: int
    crc: int


class Written(NamedTuple):
    """A stream, as options of the source name it, and what must go by when it is read."""

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
    """No two alike, and none that can be packed."""
    rng = random.Random(7)
    blocks = [rng.randbytes(RECORD_BYTES - 8) for _ in range(BLOCKS)]
    for number in range(RECORDS):
        yield number.to_bytes(8) + blocks[number % BLOCKS]


def test_a_worker_reads_more_than_it_may_take(written: Written) -> None:
    assert apart(written, keeps=False) == written.passed


def test_a_worker_that_kept_what_it_read_would_fail(written: Written) -> None:
    """That the test above sees what it is there to see: the allocators, too, have to be as it takes them to be."""
    with pytest.raises(MemoryError):
        apart(written, keeps=True)


def apart(written: Written, *, keeps: bool) -> Passed:
    """Read all of it in a process of its own, as small as one of Spark's."""
    with get_context("spawn").Pool(1) as process:
        return process.apply_async(read_all, (written.options, keeps)).get(PATIENCE_S)


def read_all(options: dict[str, str], keeps: bool) -> Passed:
    """As a worker does it, in one task, for somebody who is slow at first. keeps: every batch stays.

    Raises MemoryError, or whatever comes of one elsewhere: more than ROOM_BYTES were taken.
    """
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own takes a GiB of addresses before it is asked for anything
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
    """Limit this process, as Spark limits its workers, to so many bytes of addresses more than it has now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize:"))
    resource.setrlimit(resource.RLIMIT_AS, ((int(line.split()[1]) << 10) + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
