"""Records of a stream as either side reads them, in one form, and their comparison."""

from __future__ import annotations

from typing import Any

import dlog
from dlog.client.position import Position
from dlog.model.dlsn import DLSN
from tests.interop.java_peer import JavaRecord

Seen = tuple[DLSN, int, bytes]  # place, txid, payload

#: Java's writer: each record an entry of its own, and a control record after it
AT_ONCE = {"writerOutputBufferSize": 0, "enableImmediateFlush": True}
#: Java's writer: many records in an entry, sent and made visible by timers; and it speaks when it has nothing to say
BY_TIMER = {
    "writerOutputBufferSize": 16_384,
    "periodicFlushFrequencyMilliSeconds": 40,
    "periodicKeepAliveMilliSeconds": 100,
}


async def we_read(
    client: dlog.Client, stream: str, start: Position | DLSN | None = None, **arguments: Any
) -> list[Seen]:
    """As our client reads, through a read proxy, to the tail as of now."""
    return [(r.dlsn, r.txid, bytes(r.payload)) async for r in client.read(stream, start, **arguments)]


def java_read(records: list[JavaRecord]) -> list[Seen]:
    """As Java's reader delivered them."""
    return [(record.dlsn, record.txid, record.payload) for record in records]


def payloads_of(seen: list[Seen]) -> list[bytes]:
    return [payload for _, _, payload in seen]


def numbered_records(maker: str, first: int, count: int, txid: int) -> list[tuple[int, bytes]]:
    """What a Java writer is given: txids rise by ten."""
    return [(txid + 10 * i, b"%s-%d" % (maker.encode(), first + i)) for i in range(count)]
