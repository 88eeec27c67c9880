"""Fills a stream's segment list in metadata, with segments that have no ledgers.

A stream gets a real segment by one append and a release. Completed segments with ledger ids that no cluster assigns are
inserted before it, up to 2,000 per change. Segments that are rolled and read afterwards are real. Deleting an inserted
segment finds no ledger; deleting a real one also removes a znode and makes the bookies collect garbage, so truncation
of real segments costs more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import dlog
from dlog.io.clock import unix_ms
from dlog.io.zookeeper_layout import StreamPaths
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.machine import Versioned
from dlog.model.ids import EntryId, SegmentNumber, StreamName, Txid
from dlog.model.segment import Segment, StreamKey
from dlog.model.segment_list import SegmentList
from loadtest.systems.base import CannotRunError
from loadtest.waiting import until

_LEDGER_BASE = 2**62  # a cluster assigns ids below
_PORTION = 2000  # segments per change; ZooKeeper accepts 1 MiB


async def fill(
    client: dlog.Client,
    metadata: ZooKeeperMetadata,
    stream: str,
    count: int,
    **settings: Unpack[dlog.SettingsChanges],
) -> None:
    """Create the stream with `count` completed segments without ledgers, then a real one; it has no owner.

    The record of the real segment carries no producer: truncate it before checking. Raises DLogError, CannotRunError.
    """
    await client.create(stream, **settings)
    await client.append(stream, b"filled")
    await client.hand_over(stream)
    key = StreamKey(StreamName(stream))
    found = await metadata.read(key)
    if not isinstance(found, Versioned) or len(found.value.segments) != 1 or not found.value.segments[0].completed:
        raise CannotRunError(f"expected one completed segment after the release: {stream} {found}")
    real, version, value = found.value.segments[0], found.version, found.value
    made_ms = unix_ms()
    first = 1
    while first <= count:
        end = min(first + _PORTION, count + 1)
        changes: dict[int, Segment | None] = {number: _hollow(number, made_ms) for number in range(first, end)}
        changes[end] = replace(real, number=SegmentNumber(end))
        segments = SegmentList(value.segments).updated(changes)
        outcome = await metadata.compare_and_set(
            key, replace(value, segments=segments, max_segment=SegmentNumber(end)), version
        )
        if not isinstance(outcome, Versioned):
            raise CannotRunError(f"segments could not be inserted into metadata: {stream} {outcome}")
        value, version, first = outcome.value, outcome.version, end


async def segments_listed(metadata: ZooKeeperMetadata, namespace: str, stream: str) -> int:
    """Number of segments in ZooKeeper, including truncated ones. Costs one packet."""
    path = f"{StreamPaths(namespace).root(StreamName(stream))}/ledgers"
    stat = await metadata.zookeeper.exists(path, fresh=True)
    if stat is None:
        raise CannotRunError(f"the stream does not exist any more: {stream}")
    return stat.children


async def wait_until_listed(
    metadata: ZooKeeperMetadata, namespace: str, stream: str, at_most: int, within_s: float
) -> None:
    """Wait until metadata lists at most `at_most` segments. Raises CannotRunError."""

    async def is_gone() -> bool:
        return await segments_listed(metadata, namespace, stream) <= at_most

    await until(is_gone, within_s, f"more than {at_most} segments of {stream} were still listed")


def _hollow(number: int, made_ms: int) -> Segment:
    """A completed segment of a thousand records whose ledger does not exist."""
    return Segment(
        number=SegmentNumber(number),
        name=str(_LEDGER_BASE + number),
        first_txid=Txid(number),
        completed=True,
        last_txid=Txid(number),
        last_entry=EntryId(9),
        last_slot=99,
        record_count=1000,
        completed_unix_ms=made_ms,
    )
