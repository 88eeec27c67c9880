"""`dlog read`: writes the records of a stream to standard output."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import sys
from collections.abc import Callable
from contextlib import nullcontext

import click

from dlog.cli.discovery import cluster_options, target
from dlog.cli.output import EXIT_FAILED, EXIT_OK, CommandError, note, say_bytes
from dlog.cli.watch import ended_by_interrupt
from dlog.client.client import connect
from dlog.client.position import START, TAIL, Position, at_dlsn, at_time, at_txid, begin_of
from dlog.client.record import RecordBatch
from dlog.errors import ConfigError, InvalidRequestError, TruncatedError
from dlog.io.clock import unix_ms
from dlog.model.ids import stream_name
from dlog.options import parse_duration_s, parse_unix_ms

_LENGTH = struct.Struct(">I")


@click.command()
@click.argument("stream")
@click.option("--from", "from_dlsn", metavar="POSITION", help="Start at this DLSN, such as 3:17:2, or at a position.")
@click.option(
    "--after",
    metavar="POSITION",
    help="Start after the record at this DLSN, or with this position, as --format json prints it.",
)
@click.option(
    "--from-txid", type=click.IntRange(0), metavar="N", help="Start at the first record with this txid or above."
)
@click.option("--from-time", metavar="TIME", help="Start at a time: 2026-11-20T08:00Z, unix seconds, or 10m (ago).")
@click.option("--from-start", is_flag=True, help="Start at the first record that is kept (default).")
@click.option("--tail", is_flag=True, help="Read only records written from now on; implies --follow.")
@click.option(
    "--follow", "-f", is_flag=True, help="Wait at the end for new records, until the stream is sealed or Ctrl-C."
)
@click.option("--limit", "-n", type=click.IntRange(0), metavar="N", help="Print at most N records.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "raw", "framed"]),
    default="text",
    help="text: one line per record; json: one object per record; raw: payloads without separator; "
    "framed: a 4-byte length before each payload.",
)
@click.option("--positions", is_flag=True, help="With --format text: print DLSN and txid before each record.")
@cluster_options
def read(
    stream: str,
    from_dlsn: str | None,
    after: str | None,
    from_txid: int | None,
    from_time: str | None,
    from_start: bool,
    tail: bool,
    follow: bool,
    limit: int | None,
    form: str,
    positions: bool,
    connect: str | None,
    directory: str | None,
    as_json: bool,
) -> int:
    """Print the records of STREAM. Exit 1 if its first segments were removed by their store, and not truncated."""
    stream_name(stream)
    given = [from_dlsn is not None, after is not None, from_txid is not None, from_time is not None, from_start, tail]
    if sum(given) > 1:
        raise click.UsageError("give only one of --from, --after, --from-txid, --from-time, --from-start and --tail")
    start = START
    if from_dlsn is not None:
        start = at_dlsn(from_dlsn)
    elif after is not None:
        start = begin_of(None, after)
    elif from_txid is not None:
        start = at_txid(from_txid)
    elif from_time is not None:
        start = parse_time(from_time, unix_ms() / 1000)
        if start.value > unix_ms() and not follow:
            note(f"the time is in the future, no record is as late: --from-time={from_time}; --follow waits for it")
    elif tail:
        start = TAIL
    if as_json:
        form = "json"
    shape = _SHAPES["positions" if positions and form == "text" else form]
    if form in ("raw", "framed") and sys.stdout.isatty():
        raise CommandError(
            f"--format {form} is binary, and standard output is a terminal",
            "redirect it to a file or a pipe, or use --format text",
        )
    return asyncio.run(_read(target(connect, directory), stream, start, follow or tail, limit, shape))


async def _read(
    to: str, stream: str, start: Position, follow: bool, limit: int | None, shape: Callable[[RecordBatch], bytes]
) -> int:
    has_read = has_lost = False
    with ended_by_interrupt() if follow else nullcontext():
        async with connect(to) as client:
            await client.reach()
            begin = start
            while True:
                try:
                    async for batch in client.read_batches(stream, begin, follow=follow, limit=limit):
                        has_read = True
                        say_bytes(shape(batch))
                    break
                except TruncatedError as error:  # a removed segment that the list still has; a truncated one it has not
                    if start != START or has_read or error.first is None:
                        raise
                    has_lost, begin = True, at_dlsn(error.first)
                    note(f"the records before {error.first} are gone, reading from there: stream={stream}")
    return EXIT_FAILED if has_lost else EXIT_OK


def parse_time(text: str, now_s: float) -> Position:
    """A position by time: how long ago, such as 10m, or what `parse_unix_ms` accepts. Raises CommandError, also for a
    time outside the bounds of `parse_unix_ms`."""
    body = text.strip()
    try:
        if body and body[0].isdigit() and body[-1] in "smhd":
            return at_time(now_s - parse_duration_s(body))
        return at_time(parse_unix_ms(body) / 1000)
    except (ConfigError, InvalidRequestError) as error:
        how = "write 2026-11-20T08:00Z for UTC, unix seconds, or how long ago, such as 10m"
        raise CommandError(f"not a time: {error.message}", how) from None


# ---- output formats: a batch as bytes -------------------------------------------------------------------------------


def _text(batch: RecordBatch) -> bytes:
    return b"\n".join(batch.payloads) + b"\n"


def _with_positions(batch: RecordBatch) -> bytes:
    segment, entry, slot = batch.dlsn
    txid = batch.txid
    head = f"{segment}:{entry}:"
    lines = [f"{head}{slot + i}\t{txid}\t".encode() + payload for i, payload in enumerate(batch.payloads)]
    return b"\n".join(lines) + b"\n"


def _json(batch: RecordBatch) -> bytes:
    lines: list[str] = []
    for record in batch:
        where = {"dlsn": str(record.dlsn), "position": str(record.position)}
        fields = {**where, "txid": record.txid, "unix_ms": record.unix_ms}
        try:
            lines.append(json.dumps({**fields, "payload": record.payload.decode()}, ensure_ascii=False))
        except UnicodeDecodeError:
            lines.append(json.dumps({**fields, "payload_base64": base64.b64encode(record.payload).decode()}))
    return ("\n".join(lines) + "\n").encode()


def _raw(batch: RecordBatch) -> bytes:
    return b"".join(batch.payloads)


def _framed(batch: RecordBatch) -> bytes:
    woven = [b""] * (2 * len(batch.payloads))
    woven[0::2] = map(_LENGTH.pack, map(len, batch.payloads))
    woven[1::2] = batch.payloads
    return b"".join(woven)


_SHAPES: dict[str, Callable[[RecordBatch], bytes]] = {
    "text": _text,
    "positions": _with_positions,
    "json": _json,
    "raw": _raw,
    "framed": _framed,
}
