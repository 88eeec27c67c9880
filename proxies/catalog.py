"""Replies of both proxies to List and Stat: the names of streams, and the description of one stream.

Invariants:
- results are maps of plain values as docs/protocol.md lists them;
- every list is limited, and the reply says if more is left.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from dataclasses import dataclass
from typing import Any

from dlog.io.metadata import StreamMetadataStore
from dlog.model.dlsn import DLSN
from dlog.model.ids import TXID_END_OF_STREAM, StreamName, is_reserved
from dlog.model.segment import Segment, StreamMetadata
from dlog.stores.contract import SegmentStore
from dlog.wire.stream_metadata import settings_to_map

NAMES_MAX = 10_000  # in one reply to List
LISTINGS_MAX = 8  # listings a process keeps the names of, each until its last page
SEGMENTS_MAX = 5_000  # in one reply to Stat: the newest
_PORTION = 250  # segments handled before the event loop runs other tasks


@dataclass(slots=True)
class _Listing:
    after: str  # the last name sent
    names: deque[StreamName]  # the names after it, in order


class Listings:
    """Lists the names of all streams in pages; a listing reads the names once.

    Invariants:
    - a listing contains every stream that exists from before its first page until after its last one, but those that
      dlog keeps for itself;
    - a page that does not continue a kept listing (unknown here, or another page) reads the names again;
    - at most LISTINGS_MAX listings are kept, each until its last page; the least recently used is dropped first.
    """

    def __init__(self, metadata: StreamMetadataStore) -> None:
        self._metadata = metadata
        self._kept: dict[str, _Listing] = {}  # by listing id; least recently used first

    async def page(self, after: str, limit: int, listing: str | None) -> dict[str, Any]:
        """At most `limit` and NAMES_MAX names after `after`, in order, whether there are more, and the listing id.

        listing: id from the page before; None: the first page. Raises MetadataUnavailableError.
        """
        kept = self._kept.pop(listing, None) if listing is not None else None
        if kept is None or kept.after != after:
            every = await self._metadata.streams()
            names = sorted(name for name in every if name > after and not is_reserved(name))
            kept, listing = _Listing(after, deque(names)), None
        page = [kept.names.popleft() for _ in range(min(limit, NAMES_MAX, len(kept.names)))]
        if not kept.names:
            return {"streams": page, "more": False, "listing": None}
        if page:
            kept.after = page[-1]
        listing = listing or os.urandom(8).hex()
        self._kept[listing] = kept
        if len(self._kept) > LISTINGS_MAX:
            del self._kept[next(iter(self._kept))]
        return {"streams": page, "more": True, "listing": listing}


async def describe(value: StreamMetadata) -> dict[str, Any]:
    """One stream, as the reply to Stat. Lets other tasks run every _PORTION segments."""
    left_out = max(0, len(value.segments) - SEGMENTS_MAX)
    shown: list[dict[str, Any]] = []
    last: Segment | None = None
    last_txid: int | None = None
    records = 0
    for begin in range(0, len(value.segments), _PORTION):
        if begin:
            await asyncio.sleep(0)
        for number, segment in enumerate(value.segments[begin : begin + _PORTION], begin):
            records += segment.record_count
            if segment.completed and segment.record_count:
                last = segment
                last_txid = segment.last_txid if segment.last_txid != TXID_END_OF_STREAM else last_txid
            if number >= left_out:
                shown.append(describe_segment(segment))
    owner = value.owner
    return {
        "stream": value.name,
        "incarnation": value.incarnation,
        "sealed": value.is_sealed,
        "settings": settings_to_map(value.settings),
        "owner": {
            "epoch": owner.epoch,
            "proxy": owner.proxy,
            "location": owner.address,
            "released": owner.released,
        },
        "first_dlsn": list(value.first_dlsn) if value.segments else None,
        "last_dlsn": list(last.last_dlsn) if last is not None else None,
        "last_txid": last_txid,
        "records": records,
        "segments": shown,
        "segments_left_out": left_out,
        "segments_to_delete": len(value.truncated),
    }


def describe_segment(segment: Segment) -> dict[str, Any]:
    """One segment's metadata, for the reply to Stat."""
    return {
        "number": segment.number,
        "store": segment.store,
        "location": segment.name,
        "completed": segment.completed,
        "first_txid": segment.first_txid,
        "last_txid": segment.last_txid,
        "first_dlsn": list(segment.first_dlsn),
        "last_dlsn": list(segment.last_dlsn) if segment.completed else None,
        "records": segment.record_count,
        "completed_unix_ms": segment.completed_unix_ms,
        "truncation": segment.truncation.name.lower(),
    }


def with_durability(description: dict[str, Any], store: SegmentStore | None) -> dict[str, Any]:
    """Add the durability class of acknowledged records, if it depends on this process's configuration. store: the one
    that the stream's settings name; None: this process does not have it."""
    if store is not None and store.capabilities.durability:
        description["durability"] = store.capabilities.durability
    return description


def with_tail(description: dict[str, Any], segment: int, lac: int, last: DLSN | None) -> dict[str, Any]:
    """Add the LAC and last DLSN of the segment in progress, which metadata does not have."""
    for shown in reversed(description["segments"]):
        if shown["number"] <= segment:
            if shown["number"] == segment and not shown["completed"]:
                shown["lac"] = lac
            break
    if last is not None:
        description["last_dlsn"] = list(last)
    return description
