"""A program of a user that calls every public method; tests/repository/test_contents.py checks its types against the
installed wheel. It is never run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import dlog
from dlog import DLSN, BatchResult, Lag, Position, Record, RecordBatch

logging.getLogger("dlog").setLevel(logging.INFO)


def describe(stream: dlog.StreamInfo) -> str:
    owner: dlog.Owner | None = stream.owner
    first: DLSN | None = stream.first_dlsn
    segments: tuple[dlog.SegmentInfo, ...] = stream.segments
    settings: dlog.StreamSettings = stream.settings
    location = owner.location if owner is not None else "nowhere"
    sizes = [segment.records for segment in segments]
    return f"{stream.name} at {location} from {first}: {sizes} {settings.retention_s:g} s {stream.incarnation}"


def told(batch: BatchResult) -> None:
    places: list[DLSN] = batch.dlsns()
    print(places, batch.first.to_bytes(), batch.last.to_base64())


async def streams(client: dlog.Client) -> None:
    await client.reach(patience_s=1.0)
    made: dlog.StreamInfo = await client.create("orders", exist_ok=True, retention_s=3600.0, ensemble=3)
    print(describe(made), describe(await client.stat("orders")))
    settings: dlog.StreamSettings = await client.alter("orders", segment_bytes=1 << 20)
    changes: dlog.SettingsChanges = {"retention_s": settings.retention_s * 2}
    await client.alter("orders", **changes)
    names: list[str] = [name async for name in client.streams()]
    owner: dlog.Owner = await client.owner(names[0])
    owners: list[dlog.Owner] = await client.owners()
    print(owner.epoch, [one.state for one in owners])
    kept: DLSN = await client.truncate("orders", "2:0:0")
    incarnation: str = await client.incarnation("orders")
    batch = dlog.SinkBatch("sink", 0, "query", 1)
    imported: dlog.ImportResult = await client.import_segments(
        "orders", [("17", 5)], batch, since=(1, 0), incarnation=incarnation
    )
    once: BatchResult = await client.append_once("orders", [b"x"], batch, incarnation=incarnation)
    print(kept, imported.segments, once.duplicate)
    await client.move_segment("orders", 1, store="ledger", location="17", to_store="cold", to_location="s3://b/k")
    await client.seal("orders")
    await client.hand_over("orders")
    await client.delete("orders", force=False)


async def write(client: dlog.Client) -> None:
    dlsn: DLSN = await client.append("orders", b"one", txid=7)
    batch: BatchResult = await client.append_batch("orders", [b"two", b"three"])
    many: dlog.AppendSummary = await client.append_many("orders", (b"%d" % n for n in range(9)), on_written=told)
    print(dlsn.next_slot(), batch.count, many.with_row(batch).count, many.last)
    pipeline: dlog.Pipeline
    try:
        async with client.pipeline("orders", told) as pipeline:
            await pipeline.append(b"four")
            if not pipeline.append_nowait(b"five", txid=None):
                await pipeline.room()
            await pipeline.put([b"six", b"seven"])
            await pipeline.drain()
            print(pipeline.obstacle, pipeline.fates)
    except dlog.EndOfStreamError as error:
        fates: tuple[dlog.Fate, ...] = error.fates
        print([fate.outcome is dlog.Outcome.NOT_WRITTEN for fate in fates], error.remedy is dlog.Remedy.STOP)


async def read(client: dlog.Client, after: str) -> Position | None:
    position: Position | None = None
    reader: dlog.Reader[Record] = client.read("orders", after=after, follow=True)
    async for record in reader:
        position = record.position
        lag: Lag | None = reader.lag
        if lag is not None and reader.caught_up:
            break
    await reader.aclose()
    starts = (dlog.START, dlog.TAIL, dlog.at_txid(5), dlog.at_time(datetime.now(UTC)), dlog.at_dlsn("1:0:0"))
    for start in starts:
        batches: dlog.Reader[RecordBatch] = client.read_batches("orders", start, limit=10)
        async for batch in batches:
            print(batch.last, batch.position, batch.from_slot(1), batch.first_n(2), [r.payload for r in batch])
    return position


async def main() -> None:
    async with dlog.connect("dlog://127.0.0.1:7400", append_deadline_s=5.0) as client:
        await streams(client)
        await write(client)
        await read(client, "1:0:0")
    client = dlog.connect(options=dlog.ClientOptions(buffer_bytes_max=1 << 20))
    await client.close(orderly=False)


def blocking() -> Iterator[bytes]:
    with dlog.connect_sync("dlog://127.0.0.1:7400") as client:
        made: dlog.StreamInfo = client.create("orders", exist_ok=True, retention_s=3600.0)
        settings: dlog.StreamSettings = client.alter("orders", retention_s=60.0)
        print(describe(made), describe(client.stat("orders")), settings.store)
        dlsn: DLSN = client.append("orders", b"one")
        batch: BatchResult = client.append_batch("orders", [b"two"])
        many: dlog.AppendSummary = client.append_many("orders", [b"three"], on_written=told)
        reader: dlog.SyncReader[Record] = client.read("orders", after=dlsn)
        for record in reader:
            yield record.payload
        print(reader.lag, reader.caught_up, batch.count, many.count)
        reader.close()
        batches: dlog.SyncReader[RecordBatch] = client.read_batches("orders", limit=5)
        print([len(one) for one in batches], list(client.streams()), client.incarnation("orders"))
        print(client.owner("orders").location, [one.stream for one in client.owners()])
        kept: DLSN = client.truncate("orders", dlsn)
        sink = dlog.SinkBatch("sink", 0, "query", 1)
        imported: dlog.ImportResult = client.import_segments("orders", [("17", 5)], sink)
        print(kept, imported.records, client.append_once("orders", [b"x"], sink).txid)
        client.move_segment("orders", 1, store="ledger", location="17", to_store="cold", to_location="s3://b/k")
        client.seal("orders")
        client.hand_over("orders")
        client.delete("orders")
        client.close()
