"""`dlog append`: appends the lines of a file or of standard input to a stream.

A chunk of input is split by one C call and becomes one batch, so there is no Python work for each record. Batches are
pipelined. Input from a pipe is sent as it arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import stat
import struct
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from dlog.cli import stopping
from dlog.cli.discovery import cluster_options, target
from dlog.cli.output import (
    EXIT_OK,
    CommandError,
    MutatingCommand,
    StoppedError,
    ending_signals,
    note,
    say,
    say_json,
)
from dlog.client.batch import BatchResult
from dlog.client.client import connect
from dlog.client.fate import Outcome
from dlog.client.options import RECORD_BYTES_MAX
from dlog.client.pipeline import Pipeline
from dlog.errors import DLogError, NotEnoughBookiesError, RecordTooLargeError, StreamExistsError
from dlog.io.clock import monotonic_s
from dlog.model.dlsn import DLSN
from dlog.model.ids import user_stream_name

LASTING_S = 2.0  # an obstacle that lasts this long is reported; too few bookies at once
STOP_S = 3.0  # how long to wait for pending batches after a signal; then their outcome is unknown
CHUNK_BYTES = 180 * 1024  # of input read at once: about one batch
_LENGTH = struct.Struct(">I")

Progress = Callable[[int, int], None]  # records, bytes of input acknowledged since the last call


class Tally:
    """Counts what has been acknowledged so far."""

    def __init__(self, progress: Progress) -> None:
        self.records = 0
        self.bytes = 0
        self.first: DLSN | None = None
        self.last: DLSN | None = None
        self.pipeline: Pipeline | None = None
        self._sizes: deque[int] = deque()  # of pending batches
        self._progress = progress

    def sent(self, size: int) -> None:
        """A batch made of `size` bytes of input is being sent."""
        self._sizes.append(size)

    def written(self, batch: BatchResult) -> None:
        """The next batch is durable."""
        size = self._sizes.popleft()
        self.records += batch.count
        self.bytes += size
        if self.first is None:
            self.first = batch.first
        self.last = batch.last
        self._progress(batch.count, size)


@click.command(
    cls=MutatingCommand,
    when_unknown="whether the last records were written is unknown, and they may still appear: if sent again, they may "
    "be there twice; docs/reliability.md, 'Outcome unknown'",
)
@click.argument("stream")
@click.argument("file", required=False, default="-")
@click.option("--framed", is_flag=True, help="Input is binary records, each after its length as 4 bytes, big-endian.")
@click.option("--create", "make", is_flag=True, help="Create the stream if it does not exist.")
@cluster_options
def append(
    stream: str, file: str, framed: bool, make: bool, connect: str | None, directory: str | None, as_json: bool
) -> int:
    """Append the lines of FILE (or of standard input) to STREAM, one record for each.

    The last line of output has the number of acknowledged records and their first and last DLSN, also after a failure
    or a signal. After the first signal no more input is read; pending records are waited for.
    """
    user_stream_name(stream)
    begun_s = monotonic_s()
    failure: DLogError | None = None
    with opened_input(file) as descriptor, _progress(descriptor, quiet=as_json) as progress:
        tally = Tally(progress)
        work = _append(target(connect, directory), stream, tally, descriptor, framed, make, as_json)
        try:
            failure = stopping.run(work)
        except KeyboardInterrupt:  # a second signal
            failure = _stopped(tally)
    if not tally.records and failure is None and file != "-":
        raise CommandError(f"nothing to append, the file is empty: file={file}", "check the file name")
    if tally.records or failure is None or isinstance(failure, StoppedError):
        _say_summary(tally, stream, monotonic_s() - begun_s, as_json)
    if failure is not None:
        if tally.records and not isinstance(failure, StoppedError):
            note("the other records were not acknowledged:")
        raise failure
    return EXIT_OK


async def _append(
    to: str, stream: str, tally: Tally, descriptor: int, framed: bool, make: bool, as_json: bool
) -> DLogError | None:
    """Append all input; returns the error that ended it early, or None. All acknowledged records are in the tally."""
    async with connect(to) as client:
        await client.reach()
        if make:
            with contextlib.suppress(StreamExistsError):
                await client.create(stream)
        pipeline = tally.pipeline = client.pipeline(stream, tally.written)
        batches = framed_batches(descriptor) if framed else line_batches(descriptor)
        async with asyncio.TaskGroup() as tasks:
            explaining = tasks.create_task(_explain_waiting(pipeline, quiet=as_json), name="explain why it waits")
            sending = tasks.create_task(_send(pipeline, tally, batches), name="send")
            with ended_by_signals(sending):
                await asyncio.wait((sending,))
                explaining.cancel()
                if not sending.cancelled():
                    return sending.result()
                try:
                    with contextlib.suppress(DLogError, TimeoutError):
                        async with asyncio.timeout(STOP_S):
                            await pipeline.drain()
                finally:
                    await client.close(orderly=False)
    return _stopped(tally)


@contextmanager
def ended_by_signals(sending: asyncio.Task[Any]) -> Iterator[None]:
    """Within this context the first ending signal cancels the task; later ones have their former handlers again."""
    loop = asyncio.get_running_loop()
    numbers = ending_signals()
    before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])

    def end() -> None:
        restore()
        sending.cancel()

    for number in numbers:
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        restore()


def _stopped(tally: Tally) -> StoppedError:
    """The error after a signal. The client is closed, so every buffered record has a known Fate."""
    counts = dict.fromkeys(Outcome, 0)
    for fate in tally.pipeline.fates if tally.pipeline is not None else ():
        counts[fate.outcome] += fate.count
    return stopped_error(
        tally.records + counts[Outcome.WRITTEN],
        counts[Outcome.UNKNOWN],
        "records that may be written may still appear: if sent again, they may be there twice; "
        "docs/reliability.md, 'Outcome unknown'",
    )


def stopped_error(written: int, unknown: int, when_unknown: str) -> StoppedError:
    """The error after a signal. written, unknown: numbers of records. when_unknown: the next step if some are
    unknown."""
    message = f"stopped by a signal: {written} records are written"
    if unknown:
        return StoppedError(f"{message}, {unknown} more may be", when_unknown)
    return StoppedError(
        f"{message}, and no other record of the input",
        "continue with the record after those that are written",
        outcome_unknown=False,
    )


async def _explain_waiting(pipeline: Pipeline, *, quiet: bool) -> None:
    """Report once, on stderr, why records are not being acknowledged."""
    since_s: float | None = None
    while not quiet:
        obstacle, now_s = pipeline.obstacle, monotonic_s()
        if obstacle is None:
            since_s = None
        else:
            since_s = now_s if since_s is None else since_s
            if isinstance(obstacle, NotEnoughBookiesError) or now_s - since_s >= LASTING_S:
                note(f"waiting: {obstacle.message}")
                return
        await asyncio.sleep(0.1)


async def _send(pipeline: Pipeline, tally: Tally, batches: AsyncIterator[tuple[list[bytes], int]]) -> DLogError | None:
    """Put all batches into the pipeline; returns its failure, or None."""
    try:
        async for records, size in batches:
            tally.sent(size)
            await pipeline.put(records)
        await pipeline.drain()
    except DLogError as error:
        return error
    return None


def _say_summary(tally: Tally, stream: str, seconds: float, as_json: bool) -> None:
    rate = tally.records / seconds if seconds > 0 else 0.0
    if as_json:
        say_json(
            {
                "stream": stream,
                "records": tally.records,
                "bytes": tally.bytes,
                "first": str(tally.first) if tally.first else None,
                "last": str(tally.last) if tally.last else None,
                "seconds": round(seconds, 3),
                "records_per_s": round(rate),
            }
        )
    elif tally.first is None:
        say("0 records")
    else:
        say(
            f"{tally.records:,} records, {tally.first} .. {tally.last}, "
            f"{seconds:.2f} s, {rate:,.0f} records/s, {tally.bytes / seconds / 1e6:.1f} MB/s"
        )


# ---- input ----------------------------------------------------------------------------------------------------------


class BatchLimits(NamedTuple):
    """Bounds of a batch of records; `overhead_bytes` of each record count too. One record of `record_bytes_max` is
    always a batch."""

    record_bytes_max: int
    batch_bytes_max: int
    overhead_bytes: int


RECORD_SET_LIMITS = BatchLimits(RECORD_BYTES_MAX, RECORD_BYTES_MAX, 4)


async def line_batches(
    descriptor: int, limits: BatchLimits = RECORD_SET_LIMITS
) -> AsyncIterator[tuple[list[bytes], int]]:
    """Yield batches of lines without their newlines, and the bytes of input in each.

    A last line without a newline is a record too. Raises RecordTooLargeError, which names the line.
    """
    rest = b""
    line = 1
    async for chunk in _chunks(descriptor):
        data = rest + chunk if rest else chunk
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines:
            for batch in _fitting(lines, line, limits):
                yield batch, sum(map(len, batch)) + len(batch)
            line += len(lines)
        if len(rest) > limits.record_bytes_max:
            raise _too_large(len(rest), line, limits)
    if rest:
        yield [rest], len(rest)


async def framed_batches(descriptor: int) -> AsyncIterator[tuple[list[bytes], int]]:
    """Yield batches of length-prefixed records. Raises RecordTooLargeError; CommandError for an incomplete record."""
    rest = b""
    number = 1
    async for chunk in _chunks(descriptor):
        data = rest + chunk if rest else chunk
        records: list[bytes] = []
        at, end = 0, len(data)
        while end - at >= 4:
            (length,) = _LENGTH.unpack_from(data, at)
            if length > RECORD_BYTES_MAX:
                raise _too_large(length, number + len(records), RECORD_SET_LIMITS)
            if end - at - 4 < length:
                break
            records.append(data[at + 4 : at + 4 + length])
            at += 4 + length
        rest = data[at:]
        for batch in _fitting(records, number, RECORD_SET_LIMITS):
            yield batch, sum(map(len, batch)) + 4 * len(batch)
        number += len(records)
    if rest:
        raise CommandError(
            f"the input ends inside record {number}: bytes={len(rest)}",
            "check that each record follows its 4-byte length",
        )


def _fitting(records: list[bytes], number: int, limits: BatchLimits) -> Iterator[list[bytes]]:
    """Yield the records in as few batches as the limits allow. Raises RecordTooLargeError; number: of the first."""
    if sum(map(len, records)) + limits.overhead_bytes * len(records) <= limits.batch_bytes_max:
        if records:
            yield records
        return
    size, batch = 0, list[bytes]()
    for record in records:
        more = len(record) + limits.overhead_bytes
        if len(record) > limits.record_bytes_max:
            raise _too_large(len(record), number, limits)
        if batch and size + more > limits.batch_bytes_max:
            yield batch
            size, batch = 0, []
        batch.append(record)
        size += more
        number += 1
    yield batch


def _too_large(size: int, number: int, limits: BatchLimits) -> RecordTooLargeError:
    return RecordTooLargeError(
        f"record {number} of the input is larger than {limits.record_bytes_max} bytes: bytes={size}"
    )


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Yield the input in chunks; waits for a pipe or a terminal without blocking the event loop."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        while chunk := os.read(descriptor, CHUNK_BYTES):
            yield chunk
        return
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except OSError:  # /dev/null and the like are always ready
        while chunk := os.read(descriptor, CHUNK_BYTES):
            yield chunk
        return
    there_is = select.poll()
    there_is.register(descriptor, select.POLLIN)
    try:
        while True:
            await readable.wait()
            readable.clear()
            if not there_is.poll(0):  # the event was for data read already; a read now would block the loop
                continue
            chunk = os.read(descriptor, CHUNK_BYTES)
            if not chunk:
                return
            yield chunk
    finally:
        loop.remove_reader(descriptor)


@contextmanager
def opened_input(file: str) -> Iterator[int]:
    """A descriptor of the file, or of standard input for "-". Raises CommandError."""
    if file == "-":
        try:
            descriptor = sys.stdin.fileno()
        except (OSError, ValueError, AttributeError):
            raise CommandError("standard input is closed", "name a file") from None
        if sys.stdin.isatty():
            note("reading lines from the terminal; end with Ctrl-D on an empty line")
        yield descriptor
        return
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError as error:
        raise CommandError(
            f"cannot read the file: {(error.strerror or str(error)).lower()}: file={file}",
            "check the name, or use - for standard input",
        ) from None
    try:
        if Path(file).is_dir():
            raise CommandError(
                f"this is a directory, not a file: file={file}", "name a file, or use - for standard input"
            )
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _progress(descriptor: int, *, quiet: bool) -> Iterator[Progress]:
    """A progress bar if stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda records, size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

    found = os.fstat(descriptor)
    total = found.st_size if stat.S_ISREG(found.st_mode) else None
    columns = (
        BarColumn() if total else TextColumn("appending"),
        TextColumn("{task.percentage:>3.0f}%") if total else TextColumn(""),
        TextColumn("{task.fields[records]:,} records"),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=8, transient=True) as bar:
        task = bar.add_task("append", total=total, records=0)
        done = [0, 0]

        def advance(records: int, size: int) -> None:
            done[0] += records
            done[1] += size
            bar.update(task, completed=done[1], records=done[0])

        yield advance
