"""Decides which blocks of an object are requested now, and which of them in one request.

A request costs a round trip, and CPU in the client and in the storage, however little it reads. So adjacent blocks are
read together, if a reader wants them or is about to: one that read the blocks before. How far ahead it is served grows
with how much of them is known.

Invariants:
- a read of one block, whose neighbour before it is unknown, requests this block only;
- every block that a read needs is known or requested; no block is requested that is known;
- a request has one block, or adjacent blocks of at most group_bytes;
- at most ahead_bytes are requested behind the blocks that the read needs.

Source: Linux's readahead (mm/readahead.c): the window grows with each sequential read, and is refilled in large steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dlog.stores.object_storage.read_limits import ReadLimits
from dlog.wire.stream_object import BLOCK_HEAD_BYTES, BlockRow

_GROWTH = 4  # the window, compared with what is known before the read

_ROW_BYTES = 8  # of an entry in a block without spans
_SPAN_ROW_BYTES = 41  # of an entry in a block with spans


def payload_bytes(row: BlockRow) -> int:
    """The bytes of all payloads of a block."""
    row_bytes = _ROW_BYTES if row.span is None else _SPAN_ROW_BYTES
    return row.bytes - BLOCK_HEAD_BYTES - (row.end - row.start) * row_bytes


def needed_blocks(blocks: Sequence[BlockRow], wanted: range, start: int, max_bytes: int) -> range:
    """The first of the wanted blocks, with about max_bytes of payloads from the entry `start` on; at least one."""
    size = 0
    for number in wanted:
        row = blocks[number]
        size += payload_bytes(row) * (row.end - max(start, row.start)) // (row.end - row.start)
        if size >= max_bytes:
            return range(wanted.start, number + 1)
    return wanted


def plan_requests(
    blocks: Sequence[BlockRow], available: range, needed: range, limits: ReadLimits, is_known: Callable[[int], bool]
) -> list[range]:
    """The requests to make now, each as the numbers of its blocks, in order.

    available: numbers of the blocks that the reader can come to, adjacent in the object. needed: those of them that its
    read needs. is_known: whether a block is cached or requested.
    """
    end = needed.stop
    ahead = window = min(_GROWTH * _known_before(blocks, available, needed, limits, is_known), limits.ahead_bytes)
    while end < available.stop and blocks[end].bytes <= window:
        window -= blocks[end].bytes
        end += 1
    refill = min(limits.group_bytes, ahead // 2)
    requests: list[range] = []
    at = needed.start
    while at < end:
        if is_known(at):
            at += 1
            continue
        begin, size = at, blocks[at].bytes
        at += 1
        while at < end and not is_known(at) and size + blocks[at].bytes <= limits.group_bytes:
            size += blocks[at].bytes
            at += 1
        may_grow = at == end < available.stop and size < refill
        if begin < needed.stop or not may_grow:
            requests.append(range(begin, at))
    return requests


def _known_before(
    blocks: Sequence[BlockRow], available: range, needed: range, limits: ReadLimits, is_known: Callable[[int], bool]
) -> int:
    """Bytes of the known blocks directly before those that are needed, as far as they matter."""
    size, at = 0, needed.start - 1
    while at >= available.start and _GROWTH * size < limits.ahead_bytes and is_known(at):
        size += blocks[at].bytes
        at -= 1
    return size
