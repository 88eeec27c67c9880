"""Tests the bytes of objects with entries: what is encoded is decoded and found, and no changed or missing byte goes
unnoticed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectId, ObjectStreamId, Slice
from dlog.wire import stream_object
from dlog.wire.digest import crc32c
from dlog.wire.stream_object import (
    INDEX_ROW_BYTES,
    ObjectEncoder,
    ObjectEntry,
    ObjectIndex,
    Span,
    decode_block,
    decode_footer,
    decode_index,
    index_in,
    tail_bytes,
)

Content = dict[tuple[int, int], tuple[bytes, Span | None]]  # by stream and offset
HUGE = 2**63 + 5

spans = st.none() | st.builds(Span, *[st.integers(-(2**63), 2**63 - 1)] * 4)
contents: st.SearchStrategy[Content] = st.dictionaries(
    st.tuples(
        st.integers(1, 3) | st.just(HUGE),
        st.integers(0, 12) | st.integers(2**32 - 2, 2**32 + 3) | st.integers(HUGE, HUGE + 3),
    ),
    st.tuples(st.binary(max_size=40), spans),
    min_size=1,
    max_size=40,
)


def encoded(content: Content, *, block_bytes: int = 100) -> bytes:
    encoder = ObjectEncoder(ObjectId(HUGE), NodeId("nöde"), NodeEpoch(7), block_bytes=block_bytes)
    parts = []
    for (stream, offset), (payload, span) in sorted(content.items()):
        parts += encoder.add(ObjectStreamId(stream), offset, ObjectEntry(payload, span))
    parts += encoder.finish()
    data = b"".join(parts)
    assert encoder.bytes == len(data)
    assert encoder.slices() == opened(data).slices()
    return data


def opened(data: bytes, *, tail: int | None = None) -> ObjectIndex:
    last = data[-(tail or tail_bytes(len(data))) :]
    footer = decode_footer(last, len(data))
    index = index_in(footer, last)
    if index is None:
        index = memoryview(data)[footer.index_position : footer.index_position + footer.index_bytes]
    return decode_index(footer, index)


def decoded(data: bytes) -> Content:
    index, found = opened(data), {}
    for row in index.blocks:
        for at, entry in enumerate(decode_block(row, data[row.position : row.position + row.bytes])):
            found[row.stream, row.start + at] = bytes(entry.payload), entry.span
    return found  # type: ignore[return-value]  # stream ids are numbers


EXAMPLE: Content = {
    (1, 0): (b"one", None),
    (1, 1): (b"", Span(1, 2, 3, 4)),
    (1, 2**40): (b"x" * 150, None),
    (2, 7): (b"three", Span(-1, 5, 0, 9)),
}


@given(contents, st.sampled_from((1, 100, 1000)))
def test_what_is_encoded_is_decoded(content: Content, block_bytes: int) -> None:
    data = encoded(content, block_bytes=block_bytes)
    assert decoded(data) == content
    footer = opened(data).footer
    assert (footer.object, footer.node, footer.node_epoch) == (HUGE, "nöde", 7)


@given(contents, st.integers(0, 4), st.integers(0, 2**33), st.integers(0, 20))
def test_the_blocks_of_an_interval_are_those_that_have_an_entry_in_it(
    content: Content, stream: int, start: int, length: int
) -> None:
    index = opened(encoded(content, block_bytes=60))
    for first in (start, start % 14, HUGE - 2):
        wanted = [
            at
            for at, row in enumerate(index.blocks)
            if row.stream == stream and row.start < first + length and first < row.end and length
        ]
        assert list(index.find(ObjectStreamId(stream), first, first + length)) == wanted


@given(contents)
def test_a_block_has_the_span_of_its_entries(content: Content) -> None:
    for row in opened(encoded(content)).blocks:
        there = [content[row.stream, offset][1] for offset in range(row.start, row.end)]
        known = [span for span in there if span is not None]
        if not known:
            assert row.span is None
        else:
            assert row.span == Span(
                min(span.first_txid for span in known),
                max(span.last_txid for span in known),
                min(span.first_ms for span in known),
                max(span.last_ms for span in known),
            )


def test_slices_are_joined_where_offsets_go_on_and_nowhere_else() -> None:
    content: Content = {(1, offset): (b"x" * 90, None) for offset in (0, 1, 2, 4, 2**32 - 1, 2**32)}
    index = opened(encoded(content))
    one = ObjectStreamId(1)
    assert index.slices() == (Slice(one, 0, 3), Slice(one, 4, 5), Slice(one, 2**32 - 1, 2**32 + 1))
    assert len(index.blocks) > 4


def test_every_changed_bit_is_noticed() -> None:
    data = encoded(EXAMPLE)
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            with pytest.raises((DamagedError, UnsupportedVersionError)):
                decoded(bytes(changed))


def test_every_object_that_is_cut_short_is_noticed() -> None:
    data = encoded(EXAMPLE)
    for size in range(len(data)):
        for cut in (data[:size], data[len(data) - size :]):
            with pytest.raises(DamagedError):
                decoded(cut)


def test_an_object_inside_an_object_is_not_taken_for_the_whole() -> None:
    inner = encoded(EXAMPLE)
    data = encoded({(1, 0): (inner, None)})
    for size in range(len(data)):
        with pytest.raises(DamagedError):
            decoded(data[:size])


def test_a_block_that_was_read_in_part_or_is_another_one_is_noticed() -> None:
    data = encoded(EXAMPLE)
    index = opened(data)
    first, second = index.blocks[0], index.blocks[1]
    block = data[first.position : first.position + first.bytes]
    with pytest.raises(DamagedError, match="in part"):
        decode_block(first, block[:-1])
    other = data[second.position : second.position + second.bytes]
    moved = stream_object.BlockRow(first.stream, 5, 6, first.position, second.bytes, second.span, second.crc)
    with pytest.raises(DamagedError, match="not what its index says"):
        decode_block(moved, other)


def test_an_index_that_the_first_read_does_not_have_is_read_exactly() -> None:
    content: Content = {(stream, 0): (b"x", None) for stream in range(1, 400)}
    data = encoded(content)
    size = tail_bytes(len(data))
    assert size == 8 << 10 < 399 * INDEX_ROW_BYTES
    assert index_in(decode_footer(data[-size:], len(data)), data[-size:]) is None
    assert decoded(data) == content


def test_the_first_read_grows_with_the_object() -> None:
    assert tail_bytes(100) == 100
    assert tail_bytes(64 << 20) == (8 << 10) + 128 * INDEX_ROW_BYTES


def test_a_newer_version_is_told_from_damage() -> None:
    data = bytearray(encoded(EXAMPLE))
    data[-9] = 2
    with pytest.raises(DamagedError, match=r"checksum of an object's footer does not match: .* version=2 known="):
        decoded(bytes(data))
    footer = decode_footer(encoded(EXAMPLE), len(data)).bytes
    data[-14:-10] = crc32c(data[-10:], crc32c(data[-footer:-14])).to_bytes(4)
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        decoded(bytes(data))


def test_a_foreign_object_is_told() -> None:
    with pytest.raises(DamagedError, match="none with entries"):
        decoded(b"x" * 1000)


def test_parts_are_the_payloads_themselves() -> None:
    payload = bytearray(b"x" * 1000)
    encoder = ObjectEncoder(ObjectId(1), NodeId("n"), NodeEpoch(1))
    encoder.add(ObjectStreamId(1), 0, ObjectEntry(payload))
    assert any(part is payload for part in encoder.finish())


def test_entries_out_of_order_are_an_assertion() -> None:
    encoder = ObjectEncoder(ObjectId(1), NodeId("n"), NodeEpoch(1))
    encoder.add(ObjectStreamId(2), 5, ObjectEntry(b""))
    for stream, offset in ((1, 9), (2, 5), (2, 4)):
        with pytest.raises(AssertionError):
            encoder.add(ObjectStreamId(stream), offset, ObjectEntry(b""))


def test_any_bytes_are_refused() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        with pytest.raises((DamagedError, UnsupportedVersionError)):
            decoded(rng.randbytes(rng.randrange(200)) + b"\0\1DLOGSOBJ")
