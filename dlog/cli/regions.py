"""`dlog region`: write-ahead logs that many tables share, in topics of Kafka or of a directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import click

from dlog.cli import stopping
from dlog.cli.append import BatchLimits, ended_by_signals, line_batches, opened_input, stopped_error
from dlog.cli.output import (
    EXIT_FAILED,
    EXIT_OK,
    CommandError,
    MutatingCommand,
    StoppedError,
    flush,
    json_option,
    note,
    say,
    say_bytes,
    say_json,
    say_table,
)
from dlog.cli.watch import ended_by_interrupt
from dlog.client.regions import Region, Regions, RegionView
from dlog.errors import DamagedError, DLogError, UnavailableError
from dlog.events import Event, RegionRecordIgnored, TablePinsRegion
from dlog.io.kafka_settings import KafkaOptions
from dlog.io.settings import load
from dlog.region.items import RECORD_OVERHEAD_BYTES
from dlog.region.messages import LostEntries
from dlog.region.options import RegionOptions
from dlog.region.owner import RegionFencedError
from dlog.region.topics import TopicNotFoundError

T = TypeVar("T")
#: next step by error class, where that of other commands does not fit
_NEXT: dict[type[DLogError], str] = {
    TopicNotFoundError: "`dlog region create NAMESPACE/NAME` creates a region",
    DamagedError: "`dlog region verify` names what is damaged, `dlog region read --skip-damaged` leaves it out",
    RegionFencedError: "find the process that opened the region; `dlog region show` shows what is written",
    UnavailableError: "see that the topics can be reached, or name others with --topics or DLOG_KAFKA_TOPICS",
}
STOP_S = 3.0  # how long to wait for the batch under way after a signal; then its outcome is unknown
_WRITE_UNKNOWN = (
    "whether the last records were written is unknown: the next `dlog region write` settles it, and then "
    "`dlog region show` shows it"
)
_UNKNOWN = "whether it was done is unknown: `dlog region show` shows it, and doing it again is harmless"


@click.group()
def region() -> None:
    """Write-ahead logs that many tables share, in Kafka or in a directory.

    REGION is NAMESPACE/NAME. The topics are named by --topics or DLOG_KAFKA_TOPICS: file:///path, or
    kafka://host:port,host:port. `write`, `mark`, `drop` and `clean` open the region: a process that owned it before
    can write no more. `show`, `read` and `verify` take it from nobody.
    """


def region_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument REGION and the options of every command."""
    command = json_option(command)
    command = click.option(
        "--topics",
        "address",
        envvar="DLOG_KAFKA_TOPICS",
        help="file:///path, or kafka://host:port,host:port (default: DLOG_KAFKA_TOPICS).",
    )(command)
    return click.argument("name", metavar="REGION")(command)


@region.command(cls=MutatingCommand, when_unknown=_UNKNOWN)
@region_options
def create(name: str, address: str | None, as_json: bool) -> None:
    """Create REGION, unless it exists."""

    async def work(regions: Regions, short: str) -> None:
        await regions.open(short, create=True)

    _run(name, address, work)
    _say_done(name, as_json, f"{name} is there", {})


@region.command(cls=MutatingCommand, when_unknown=_WRITE_UNKNOWN)
@region_options
@click.option("--table", type=click.IntRange(0, 2**64 - 1), required=True, help="Number of the table.")
@click.option(
    "--format",
    "version",
    type=click.IntRange(0, 1),
    help="Version of the records (default: that of the region). 0: HoraeDB's, without fences: you see to it that one "
    "process writes. 1: for good.",
)
@click.argument("file", required=False, default="-")
def write(name: str, address: str | None, table: int, version: int | None, file: str, as_json: bool) -> None:
    """Write each line of FILE (default: standard input) as a record of a table.

    Lines from a pipe are written as they arrive. After the first signal no more input is read; the records under way
    are waited for.
    """
    options = RegionOptions(format=version)
    limits = BatchLimits(
        options.batch_bytes_max - RECORD_OVERHEAD_BYTES, options.batch_bytes_max, RECORD_OVERHEAD_BYTES
    )
    tally = _Tally()
    with opened_input(file) as descriptor:

        async def work(regions: Regions, short: str) -> None:
            await _write_all(await regions.open(short), table, line_batches(descriptor, limits), tally)

        try:
            _run(name, address, work, options)
        except BaseException as error:
            if tally.records:
                note(f"written before: {tally.summary()}")
            if isinstance(error, KeyboardInterrupt):
                raise _stopped(tally) from None
            raise
    values = {"first": tally.first, "last": tally.last, "records": tally.records}
    _say_done(name, as_json, f"{name} table {table}: {tally.summary()}", values)


@region.command()
@region_options
def show(name: str, address: str | None, as_json: bool) -> None:
    """Print what is known of REGION and of each table."""
    view = _run(name, address, lambda regions, short: regions.view(short))
    rows = [
        (
            number,
            table.next_seq_num,
            table.latest_marked_deleted,
            table.current_high_watermark,
            len(table.seq_offset_mapping),
        )
        for number, table in sorted(view.tables.items())
    ]
    head = ("table", "next_seq_num", "latest_marked_deleted", "current_high_watermark", "mapped")
    if as_json:
        tables = [dict(zip(head, row, strict=True)) for row in rows]
        say_json({"region": name, "first": view.first, "next": view.next, "format": view.format, "tables": tables})
    else:
        say(f"{name}: offsets {view.first} to {view.next}")
        if view.format == 0:
            say("records of version 0: no fence keeps a second writer out, see that only one process writes")
        say_table(head, rows)


@region.command(cls=MutatingCommand, when_unknown=_UNKNOWN)
@region_options
@click.option("--table", type=click.IntRange(0, 2**64 - 1), required=True, help="Number of the table.")
@click.option("--below", type=click.IntRange(0, 2**63), required=True, help="Records below this sequence may go.")
def mark(name: str, address: str | None, table: int, below: int, as_json: bool) -> None:
    """Mark the records of a table below a sequence as deletable: they are flushed elsewhere."""

    async def work(regions: Regions, short: str) -> None:
        opened = await regions.open(short)
        await opened.mark_deleted(table, below)
        await opened.save()

    _run(name, address, work)
    _say_done(name, as_json, f"{name} table {table}: deletable below {below}", {"table": table, "below": below})


@region.command(cls=MutatingCommand, when_unknown=_UNKNOWN)
@region_options
@click.option("--table", type=click.IntRange(0, 2**64 - 1), required=True, help="Number of the table.")
def drop(name: str, address: str | None, table: int, as_json: bool) -> None:
    """Mark a whole table as deletable."""

    async def work(regions: Regions, short: str) -> None:
        await (await regions.open(short)).drop_table(table)

    _run(name, address, work)
    _say_done(name, as_json, f"{name} table {table}: dropped", {"table": table})


@region.command(cls=MutatingCommand, when_unknown=_UNKNOWN)
@region_options
def clean(name: str, address: str | None, as_json: bool) -> None:
    """Delete the records that no table needs."""

    async def work(regions: Regions, short: str) -> int | None:
        return await (await regions.open(short)).clean()

    offset = _run(name, address, work)
    summary = "nothing to delete" if offset is None else f"deleted below offset {offset}"
    _say_done(name, as_json, f"{name}: {summary}", {"offset": offset})


@region.command()
@region_options
@click.option("--table", type=click.IntRange(0, 2**64 - 1), help="Only this table (default: all).")
@click.option("--from", "first", type=click.IntRange(0), default=0, help="First sequence, of --table.")
@click.option("--follow", is_flag=True, help="Go on with new records until stopped.")
@click.option("--skip-damaged", is_flag=True, help="Leave out records that cannot be decoded.")
def read(
    name: str, address: str | None, table: int | None, first: int, follow: bool, skip_damaged: bool, as_json: bool
) -> int:
    """Print the records of REGION in order, those of --table one a line.

    Of all tables: the table, the sequence, and the record. Exit 1 if records were left out.
    """
    if first and table is None:
        raise CommandError("a sequence is of one table", "add --table NUMBER")
    lost: list[LostEntries] = []

    async def work(regions: Regions, short: str) -> list[str]:
        view: RegionView | None = None
        with ended_by_interrupt() if follow else nullcontext():
            view = await regions.view(short, skip_damaged=skip_damaged)
            starts = None if table is None else {table: first}
            async for entry in view.read(starts, on_lost=lost.append, follow=follow):
                if as_json:
                    payload = entry.payload.decode("utf-8", "replace")
                    say_json({"table": entry.table, "sequence": entry.sequence, "payload": payload})
                    if follow:
                        flush()
                elif table is None:
                    say_bytes(b"%d\t%d\t%b\n" % (entry.table, entry.sequence, entry.payload))
                else:
                    say_bytes(entry.payload + b"\n")
        return [] if view is None else view.problems  # None: interrupted before there was one

    problems = _run(name, address, work)
    for one in lost:
        note(f"deleted: table {one.table}, sequences {one.first} to {one.end - 1}")
    for problem in problems:
        note(f"left out: {problem}")
    return EXIT_FAILED if problems or lost else EXIT_OK


@region.command()
@region_options
def verify(name: str, address: str | None, as_json: bool) -> int:
    """Read all of REGION, check every record, and count those of each table. Exit 1 if something is wrong."""
    counts: dict[int, int] = {}
    lost: list[LostEntries] = []

    async def work(regions: Regions, short: str) -> RegionView:
        view = await regions.view(short, skip_damaged=True)
        async for entry in view.read(on_lost=lost.append):
            counts[entry.table] = counts.get(entry.table, 0) + 1
        return view

    view = _run(name, address, work)
    problems = [*view.problems, *(f"table {one.table}: {one.first} to {one.end - 1} are deleted" for one in lost)]
    if as_json:
        say_json({"region": name, "records": sum(counts.values()), "tables": counts, "problems": problems})
    else:
        say_table(("table", "records"), sorted(counts.items()))
        for problem in problems:
            say(f"wrong: {problem}")
        say(f"{name}: {sum(counts.values())} records, {len(problems)} problems")
    return EXIT_FAILED if problems else EXIT_OK


def _run(
    name: str,
    address: str | None,
    work: Callable[[Regions, str], Awaitable[T]],
    options: RegionOptions | None = None,
) -> T:
    """Run a coroutine with the regions of the namespace in NAMESPACE/NAME."""
    namespace, slash, short = name.partition("/")
    if not slash:
        raise CommandError(f"not a region: {name[:120]}", "name it as NAMESPACE/NAME, for example app/orders")
    if not address:
        raise CommandError(
            "no topics are named", "add --topics file:///path or kafka://host:port, or set DLOG_KAFKA_TOPICS"
        )

    kafka = load(KafkaOptions, "kafka", None, {})

    async def run() -> T:
        async with Regions(
            address, namespace, options=options, kafka=kafka, clean_every_s=None, on_event=_note_event
        ) as regions:
            return await work(regions, short)

    try:
        return stopping.run(run())
    except DLogError as error:
        for kind, step in _NEXT.items():
            if isinstance(error, kind) and error.next_step is None and not error.outcome_unknown:
                error.next_step = step
        raise


def _note_event(event: Event) -> None:
    match event:
        case RegionRecordIgnored(_, reason):
            note(f"left out: {reason}")
        case TablePinsRegion(_, table, records):
            note(f"table {table} keeps {records} records from being deleted: mark it, or drop it")


class _Tally:
    """Counts the records of `dlog region write`. pending: those under way, whose outcome is not known yet."""

    def __init__(self) -> None:
        self.first = self.last = self.records = self.pending = 0
        self.writing: asyncio.Task[DLogError | None] | None = None

    def written(self, sequences: Sequence[int]) -> None:
        """The pending records are durable."""
        self.first, self.last = self.first or sequences[0], sequences[-1]
        self.records += len(sequences)
        self.pending = 0

    def summary(self) -> str:
        return f"{self.records} records, sequences {self.first} to {self.last}" if self.records else "no records"


def _stopped(tally: _Tally) -> StoppedError:
    return stopped_error(tally.records, tally.pending, _WRITE_UNKNOWN)


async def _write_all(
    opened: Region, table: int, batches: AsyncIterator[tuple[list[bytes], int]], tally: _Tally
) -> None:
    """Write all batches; what is durable is in the tally. Raises DLogError, and StoppedError after a signal."""
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(_send(opened, table, batches, tally, tasks), name="send")
        with ended_by_signals(sending):
            await asyncio.wait((sending,))
            if sending.cancelled() and tally.writing is not None:
                await asyncio.wait((tally.writing,), timeout=STOP_S)
                tally.writing.cancel()
    if sending.cancelled():
        raise _stopped(tally)
    if (failure := sending.result()) is not None:
        raise failure


async def _send(
    opened: Region,
    table: int,
    batches: AsyncIterator[tuple[list[bytes], int]],
    tally: _Tally,
    tasks: asyncio.TaskGroup,
) -> DLogError | None:
    """Write one batch after the other; returns the error that ended it, or None. If it is cancelled, the batch under
    way goes on in `tasks`."""
    try:
        async for records, _ in batches:
            tally.writing = tasks.create_task(_write_batch(opened, table, records, tally), name="write a batch")
            await asyncio.wait((tally.writing,))
            if (failure := tally.writing.result()) is not None:
                return failure
    except DLogError as error:
        return error
    return None


async def _write_batch(opened: Region, table: int, records: list[bytes], tally: _Tally) -> DLogError | None:
    """Write the records together; returns the error, or None."""
    tally.pending = len(records)
    try:
        tally.written(await opened.write(table, records))
    except DLogError as error:
        if not error.outcome_unknown:
            tally.pending = 0
        return error
    return None


def _say_done(name: str, as_json: bool, text: str, values: dict[str, Any]) -> None:
    if as_json:
        say_json({"region": name, **values})
    else:
        say(text)
