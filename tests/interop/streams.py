"""Records of a stream as dlog and Java read them, in one form, and their comparison."""

from __future__ import annotations

from typing import Any

import dlog
from dlog.client.position import Position
from dlog.model.dlsn import DLSN
from tests.interop.java_peer import JavaRecord

Seen = tuple[DLSN, int, bytes]  # place, txid, payload

#: Java's writer: each record is an entry of its own, followed by a control record
AT_ONCE = {"writerOutputBufferSize": 0, "enableImmediateFlush": True}
#: Java's writer: many records in an entry, sent and made visible by timers; when idle it writes control records
BY_TIMER = {
    "writerOutputBufferSize": 16_384,
    "periodicFlushFrequencyMilliSeconds": 40,
    "periodicKeepAliveMilliSeconds": 100,
}


async def we_read(
    client: dlog.Client, stream: str, start: Position | DLSN | None = None, **arguments: Any
) -> list[Seen]:
    """Read with dlog's client, through a read proxy, to the present tail."""
    return [(r.dlsn, r.txid, bytes(r.payload)) async for r in client.read(stream, start, **arguments)]


def java_read(records: list[JavaRecord]) -> list[Seen]:
    """Records as Java's reader delivered them."""
    return [(record.dlsn, record.txid, record.payload) for record in records]


def payloads_of(seen: list[Seen]) -> list[bytes]:
    return [payload for _, _, payload in seen]


def numbered_records(maker: str, first: int, count: int, txid: int) -> list[tuple[int, bytes]]:
    """Records for a Java writer: txids rise by ten."""
    return [(txid + 10 * i, b"%s-%d" % (maker.encode(), first + i)) for i in range(count)]
