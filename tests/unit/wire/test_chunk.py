"""Tests the bytes of chunks: what is encoded is decoded, and no changed or missing byte goes unnoticed."""

from __future__ import annotations

import random

import pytest

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.wire.chunk import HEAD_BYTES, ChunkKind, decode_body, decode_head, decode_rows, encode_chunk, rows_size
from dlog.wire.digest import crc32c

NONCE, SEGMENT = bytes(range(16)), bytes(range(16, 32))
HUGE = 2**40 + 7


def chunk(kind: ChunkKind, *payloads: bytes) -> bytes:
    parts = encode_chunk(
        kind,
        payloads,
        nonce=NONCE,
        segment=SEGMENT,
        number=HUGE,
        epoch=HUGE + 1,
        contiguous=HUGE - 4,
        first=HUGE + 2,
        bytes_before=HUGE + 3,
    )
    return b"".join(parts)


@pytest.mark.parametrize("payloads", [(b"one",), (b"", b"two", b"x" * 5000)])
def test_a_chunk_of_entries_is_read_back_whole_and_in_parts(payloads: tuple[bytes, ...]) -> None:
    data = chunk(ChunkKind.DATA, *payloads)
    head = decode_head(data)
    assert (head.kind, head.nonce, head.segment, head.number) == (ChunkKind.DATA, NONCE, SEGMENT, HUGE)
    assert (head.epoch, head.contiguous, head.first, head.end, head.bytes_before) == (
        HUGE + 1,
        HUGE - 4,
        HUGE + 2,
        HUGE + 2 + len(payloads),
        HUGE + 3,
    )
    assert head.payload_bytes == sum(map(len, payloads))
    assert tuple(map(bytes, decode_body(head, data[HEAD_BYTES:]))) == payloads
    rows = decode_rows(head, data[HEAD_BYTES : HEAD_BYTES + rows_size(len(payloads))])
    assert tuple(data[row.offset : row.offset + row.length] for row in rows) == payloads
    assert [row.crc for row in rows] == list(map(crc32c, payloads))


def test_a_chunk_without_entries_has_an_empty_interval() -> None:
    for kind, payloads in ((ChunkKind.BEGIN, [b"description"]), (ChunkKind.SEAL, []), (ChunkKind.FENCE, [])):
        data = chunk(kind, *payloads)
        head = decode_head(data)
        assert (head.kind, head.first, head.end) == (kind, HUGE + 2, HUGE + 2)
        assert head.kind.is_end is (kind in (ChunkKind.SEAL, ChunkKind.FENCE))
        assert list(map(bytes, decode_body(head, data[HEAD_BYTES:]))) == (payloads or [b""])


def test_every_changed_byte_is_noticed() -> None:
    data = chunk(ChunkKind.DATA, b"one", b"", b"three")
    for at in range(len(data)):
        for bit in (1, 128):
            changed = bytearray(data)
            changed[at] ^= bit
            with pytest.raises((DamagedError, UnsupportedVersionError)):
                decode_body(decode_head(changed), changed[HEAD_BYTES:])


def test_every_chunk_that_is_cut_short_is_noticed() -> None:
    data = chunk(ChunkKind.DATA, b"one", b"", b"three")
    for size in range(len(data)):
        with pytest.raises(DamagedError):
            decode_body(decode_head(data[:size]), data[HEAD_BYTES:size])


def test_a_changed_byte_of_the_rows_is_noticed_without_the_payloads() -> None:
    data = chunk(ChunkKind.DATA, b"one", b"", b"three")
    head, rows = decode_head(data), data[HEAD_BYTES : HEAD_BYTES + rows_size(3)]
    for at in range(len(rows)):
        changed = bytearray(rows)
        changed[at] ^= 1
        with pytest.raises(DamagedError):
            decode_rows(head, changed)


@pytest.mark.parametrize(("version", "told"), [(1, "of no release"), (3, "upgrade")])
def test_another_version_is_told_from_damage(version: int, told: str) -> None:
    data = bytearray(chunk(ChunkKind.DATA, b"one"))
    data[9] = version
    data[HEAD_BYTES - 4 : HEAD_BYTES] = crc32c(data[: HEAD_BYTES - 4]).to_bytes(4)
    with pytest.raises(UnsupportedVersionError, match=told):
        decode_head(data)


def test_a_damaged_version_is_damage() -> None:
    data = bytearray(chunk(ChunkKind.DATA, b"one"))
    for at in (8, 9):
        changed = bytearray(data)
        changed[at] ^= 128
        with pytest.raises(DamagedError, match="checksum of a chunk's head does not match: version="):
            decode_head(changed)


def test_a_chunk_that_knows_of_chunks_above_it_is_damaged() -> None:
    numbers = {"number": 7, "epoch": 1, "contiguous": 8, "first": 0, "bytes_before": 0}
    with pytest.raises(DamagedError, match="contiguous=8"):
        decode_head(b"".join(encode_chunk(ChunkKind.DATA, [b"x"], nonce=NONCE, segment=SEGMENT, **numbers)))


def test_a_foreign_object_is_told() -> None:
    with pytest.raises(DamagedError, match="no chunk"):
        decode_head(b"x" * 1000)


def test_any_bytes_are_refused_or_decoded() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        with pytest.raises((DamagedError, UnsupportedVersionError)):
            decode_head(b"DLOGCHNK" + rng.randbytes(rng.randrange(200)))
