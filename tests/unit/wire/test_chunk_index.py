"""Tests the bytes of an index: what is encoded is decoded, and no changed or missing byte goes unnoticed."""

from __future__ import annotations

import random

import pytest

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.wire.chunk import HEAD_BYTES, ChunkHead, ChunkKind, rows_size
from dlog.wire.chunk_index import decode_index, encode_index, make_index
from dlog.wire.digest import crc32c

NONCE, SEGMENT = bytes(range(16)), bytes(range(16, 32))


def head(number: int) -> ChunkHead:
    """Of a chunk with two entries of 50 bytes each."""
    first = 2 * (number - 1)
    return ChunkHead(ChunkKind.DATA, NONCE, SEGMENT, number, 1, 0, first, first + 2, 50 * first, rows_size(2) + 100, 0)


INDEX = make_index(NONCE, [head(number) for number in range(1, 6)])


def test_an_index_is_read_back() -> None:
    assert decode_index(encode_index(INDEX)) == INDEX
    assert (INDEX.end_number, INDEX.entries, INDEX.payload_bytes) == (6, 10, 500)
    size = HEAD_BYTES + rows_size(2) + 100
    assert INDEX.place(1) == (0, size) and INDEX.place(5) == (4 * size, size)
    assert INDEX.place(0) is None and INDEX.place(6) is None


def test_every_changed_or_missing_byte_is_noticed() -> None:
    data = encode_index(INDEX)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        for damaged in (bytes(changed), data[:at]):
            with pytest.raises((DamagedError, UnsupportedVersionError)):
                decode_index(damaged)


def test_a_newer_version_is_told_from_damage() -> None:
    data = bytearray(encode_index(INDEX))
    data[9] = 9
    with pytest.raises(DamagedError, match=r"checksum of a segment's index does not match: version=9 known="):
        decode_index(data)
    data[-4:] = crc32c(data[:-4]).to_bytes(4)
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        decode_index(data)


def test_any_bytes_are_refused_or_decoded() -> None:
    rng = random.Random(1)
    for _ in range(1000):
        with pytest.raises((DamagedError, UnsupportedVersionError)):
            decode_index(b"DLOGINDX" + rng.randbytes(rng.randrange(200)))
