"""What both proxies tell of streams: the list of names, and one stream as metadata knows it.

The law of this room: results are maps of plain values as docs/protocol.md lists them; a list is always cut at a bound
and says so.
"""

from __future__ import annotations

from typing import Any

from dlog.io.metadata import Metadata
from dlog.model.dlsn import DLSN
from dlog.model.ids import TXID_END_OF_STREAM
from dlog.model.segment import Segment, StreamMetadata, Truncation
from dlog.wire.stream_metadata import settings_to_map

NAMES_MAX = 10_000  # in one answer to List
SEGMENTS_MAX = 10_000  # in one answer to Stat; the newest are told


async def list_streams(metadata: Metadata, after: str, limit: int) -> dict[str, Any]:
    """Names after `after`, in order, at most `limit`. Raises MetadataUnavailableError."""
    names = sorted(name for name in await metadata.streams() if name > after)
    limit = min(limit, NAMES_MAX)
    return {"streams": names[:limit], "more": len(names) > limit}


def describe(value: StreamMetadata) -> dict[str, Any]:
    """One stream, as an answer to Stat."""
    kept = [s for s in value.segments if s.truncation is not Truncation.TRUNCATED]
    completed = [s for s in kept if s.completed and s.record_count]
    txids = [s.last_txid for s in completed if s.last_txid != TXID_END_OF_STREAM]
    shown = value.segments[-SEGMENTS_MAX:]
    owner = value.owner
    return {
        "stream": value.name,
        "life": value.life,
        "sealed": value.is_sealed,
        "settings": settings_to_map(value.settings),
        "owner": {
            "epoch": owner.epoch,
            "proxy": owner.proxy,
            "location": owner.address,
            "released": owner.released,
        },
        "first_dlsn": list(kept[0].first_dlsn) if kept else None,
        "last_dlsn": list(completed[-1].last_dlsn) if completed else None,
        "last_txid": txids[-1] if txids else None,
        "records": sum(s.record_count for s in kept),
        "segments": [describe_segment(s) for s in shown],
        "segments_left_out": len(value.segments) - len(shown),
    }


def describe_segment(segment: Segment) -> dict[str, Any]:
    """One segment, as it stands in metadata."""
    return {
        "number": segment.number,
        "store": segment.store,
        "place": segment.place,
        "completed": segment.completed,
        "first_txid": segment.first_txid,
        "last_txid": segment.last_txid,
        "first_dlsn": list(segment.first_dlsn),
        "last_dlsn": list(segment.last_dlsn) if segment.completed else None,
        "records": segment.record_count,
        "completed_unix_ms": segment.completed_unix_ms,
        "truncation": segment.truncation.name.lower(),
    }


def with_tail(told: dict[str, Any], segment: int, lac: int, last: DLSN | None) -> dict[str, Any]:
    """Add what is known of the segment in progress beyond metadata."""
    for shown in told["segments"]:
        if shown["number"] == segment and not shown["completed"]:
            shown["lac"] = lac
    if last is not None:
        told["last_dlsn"] = list(last)
    return told
