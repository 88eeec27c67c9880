"""Tests the cache of a node: what is read, what is evicted, and when there is room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlog.model.ids import Epoch
from dlog.model.object_streams import ObjectStreamId
from dlog.objects.node_cache import Block, NodeCache, entry_bytes
from dlog.wire.node_wal import StreamEntry, WalFrame
from tests.unit.objects.nodes import E1, S1, S2, entries


def frame(first: int, *payloads: bytes, stream: ObjectStreamId = S1, epoch: Epoch = E1) -> WalFrame:
    return WalFrame(stream, epoch, first, entries(*payloads))


def payloads(found: list[StreamEntry]) -> list[bytes]:
    return [bytes(entry.payload) for entry in found]


def test_a_read_crosses_blocks_and_ends_at_the_end_at_a_gap_or_at_the_size() -> None:
    cache = NodeCache(10_000)
    cache.add(frame(5, b"five", b"six"))
    cache.cut()
    cache.add(frame(7, b"seven"))
    cache.add(frame(9, b"nine", epoch=Epoch(2)))
    assert payloads(cache.read(S1, 5, 100, 1000)) == [b"five", b"six", b"seven"]
    assert payloads(cache.read(S1, 6, 7, 1000)) == [b"six"]
    assert payloads(cache.read(S1, 6, 100, 1)) == [b"six"]
    assert payloads(cache.read(S1, 9, 100, 1000)) == [b"nine"]
    assert cache.read(S1, 8, 100, 1000) == cache.read(S1, 4, 100, 1000) == cache.read(S2, 0, 9, 1000) == []


def test_the_oldest_uploaded_block_is_evicted_when_more_is_confirmed() -> None:
    each = entry_bytes(entries(b"x"))
    cache = NodeCache(2 * each)
    cache.add(frame(0, b"a"))
    first = cache.cut()
    cache.add(frame(1, b"b"))
    assert not cache.has_room(1)
    cache.uploaded(first)
    assert cache.has_room(each) and not cache.has_room(each + 1)
    assert payloads(cache.read(S1, 0, 9, 1000)) == [b"a", b"b"]
    cache.add(frame(2, b"c"))
    assert cache.read(S1, 0, 9, 1000) == []
    assert payloads(cache.read(S1, 1, 9, 1000)) == [b"b", b"c"]


@given(st.lists(st.sampled_from(("add", "cut", "upload")), max_size=60), st.integers(100, 500))
def test_what_is_not_uploaded_stays_and_the_rest_is_bounded(steps: list[str], bytes_max: int) -> None:
    cache, cut, next, first_left = NodeCache(bytes_max), list[tuple[Block, int]](), 0, 0
    for step in steps:
        if step == "add":
            cache.add(frame(next, b"%d" % next))
            next += 1
        elif step == "cut":
            cut.append((cache.cut(), next))
        elif cut:
            block, first_left = cut.pop(0)
            cache.uploaded(block)
        left = payloads(cache.read(S1, first_left, next, 10**6))
        assert left == [b"%d" % offset for offset in range(first_left, next)]
        assert cache.bytes <= max(bytes_max, cache.unuploaded_bytes)
