"""Tests the bytes of the file store: what is written is read, and a difference in any bit or length is an error."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import ConfigError
from dlog.model.ids import NO_ENTRY, EntryId, StreamName
from dlog.options import build
from dlog.stores.contract import SegmentCorruptError
from dlog.stores.file.format import (
    ENTRIES_OFFSET,
    ENTRY_HEAD,
    HEADER_BYTES,
    NONCE_BYTES,
    WATERMARK_BYTES,
    End,
    Header,
    decode_end,
    decode_header,
    decode_watermark,
    encode_end,
    encode_entry_head,
    encode_header,
    encode_watermark,
    entry_crc,
)
from dlog.stores.file.options import FileStoreOptions
from dlog.wire.digest import crc32c

NONCE, OTHER = b"n0n0n0n0", b"n0n0n0n1"
HEADER = Header(NONCE, 7, 3, StreamName("orders"))
END = End(EntryId(9), ENTRIES_OFFSET + 1234, ((0, ENTRIES_OFFSET), (5, ENTRIES_OFFSET + 700)))
NOTHING_CONFIRMED = (0, ENTRIES_OFFSET)

NONCES = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)
U64 = st.integers(0, 2**64 - 1)
NAMES = st.text("abc-._Z", min_size=1, max_size=200)


def used(header: Header) -> int:
    """Bytes of an encoded header before the zeros."""
    return len(encode_header(header).rstrip(b"\0"))


# ---- header ----------------------------------------------------------------------------------------------------------


@given(NONCES, U64, U64, NAMES)
def test_a_header_comes_back(nonce: bytes, number: int, epoch: int, name: str) -> None:
    header = Header(nonce, number, epoch, StreamName(name))
    data = encode_header(header)
    assert len(data) == HEADER_BYTES
    assert decode_header(data, "x") == header


def test_a_header_with_a_flipped_bit_is_told() -> None:
    data = encode_header(HEADER)
    for bit in range(8 * used(HEADER)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SegmentCorruptError, match="location=here"):
            decode_header(bytes(damaged), "here")


def test_a_header_that_was_cut_short_is_told() -> None:
    data = encode_header(HEADER)[: used(HEADER)]
    assert decode_header(data, "here") == HEADER, "the zeros behind it say nothing"
    for size in range(len(data)):
        with pytest.raises(SegmentCorruptError):
            decode_header(data[:size], "here")


# ---- watermark -------------------------------------------------------------------------------------------------------


@given(NONCES, U64, U64)
def test_a_watermark_comes_back(nonce: bytes, entries: int, offset: int) -> None:
    assert decode_watermark(nonce, encode_watermark(nonce, entries, offset)) == (entries, offset)


def test_a_watermark_that_is_damaged_or_missing_confirms_nothing() -> None:
    data = encode_watermark(NONCE, 12, ENTRIES_OFFSET + 99)
    assert len(data) == WATERMARK_BYTES
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_watermark(NONCE, bytes(damaged)) == NOTHING_CONFIRMED
    for size in range(len(data)):
        assert decode_watermark(NONCE, data[:size]) == NOTHING_CONFIRMED
    assert decode_watermark(NONCE, bytes(WATERMARK_BYTES)) == NOTHING_CONFIRMED, "none was written yet"
    assert decode_watermark(OTHER, data) == NOTHING_CONFIRMED, "it is another segment's"


# ---- entries ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=50), max_size=5), st.integers(0, 2**63))
def test_the_checksum_of_an_entry_depends_on_its_bytes_and_not_on_how_they_are_cut(
    parts: list[bytes], entry: int
) -> None:
    whole = b"".join(parts)
    assert encode_entry_head(NONCE, entry, parts) == encode_entry_head(NONCE, entry, [whole])
    length, crc = ENTRY_HEAD.unpack(encode_entry_head(NONCE, entry, parts))
    assert (length, crc) == (len(whole), entry_crc(NONCE, entry, len(whole), [whole]))


def test_the_checksum_of_an_entry_covers_nonce_id_length_and_payload() -> None:
    crc = entry_crc(NONCE, 5, 4, [b"abcd"])
    others = [
        entry_crc(OTHER, 5, 4, [b"abcd"]),
        entry_crc(NONCE, 6, 4, [b"abcd"]),
        entry_crc(NONCE, 5, 5, [b"abcd"]),
        entry_crc(NONCE, 5, 4, [b"abce"]),
    ]
    assert crc not in others and len(set(others)) == 4


# ---- end -------------------------------------------------------------------------------------------------------------


@given(NONCES, st.integers(NO_ENTRY, 2**62), U64, st.lists(st.tuples(U64, U64), max_size=9))
def test_an_end_comes_back(nonce: bytes, last: int, offset: int, points: list[tuple[int, int]]) -> None:
    end = End(EntryId(last), offset, tuple(points))
    assert decode_end(nonce, encode_end(nonce, end), "x") == end


def test_an_end_with_a_flipped_bit_or_of_another_length_or_segment_is_told() -> None:
    data = encode_end(NONCE, END)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SegmentCorruptError, match="location=here"):
            decode_end(NONCE, bytes(damaged), "here")
    for other in (*(data[:size] for size in range(len(data))), data + b"\0", data + data):
        with pytest.raises(SegmentCorruptError):
            decode_end(NONCE, other, "here")
    with pytest.raises(SegmentCorruptError):
        decode_end(OTHER, data, "here")


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, b"dlogend2"), (16, (-2).to_bytes(8, "big", signed=True)), (32, (3).to_bytes(4, "big"))],
    ids=["magic", "last entry", "number of points"],
)
def test_an_end_with_a_good_checksum_is_judged_all_the_same(at: int, value: bytes) -> None:
    body = bytearray(encode_end(NONCE, END)[:-4])
    body[at : at + len(value)] = value
    with pytest.raises(SegmentCorruptError):
        decode_end(NONCE, bytes(body) + crc32c(bytes(body)).to_bytes(4, "big"), "here")


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_bytes_of_nothing_are_an_error_of_ours(data: bytes) -> None:
    for decode in (lambda: decode_header(data, "x"), lambda: decode_end(NONCE, data, "x")):
        with pytest.raises(SegmentCorruptError):
            decode()
    assert decode_watermark(NONCE, data) == NOTHING_CONFIRMED


# ---- options ---------------------------------------------------------------------------------------------------------


def test_options_take_sizes_and_times_and_have_no_directory_by_themselves() -> None:
    assert FileStoreOptions().directory == ""
    given_ = build(FileStoreOptions, {"directory": "d", "append_bytes_max": "1MiB", "poll_max_s": "100ms"})
    assert (given_.directory, given_.append_bytes_max, given_.poll_max_s) == ("d", 1 << 20, 0.1)


@pytest.mark.parametrize("name", ["poll_min_s", "poll_max_s", "append_bytes_max", "threads"])
@pytest.mark.parametrize("value", [0, -1])
def test_options_that_must_be_positive_are_refused_otherwise(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=name):
        build(FileStoreOptions, {name: value})
