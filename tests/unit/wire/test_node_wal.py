"""Tests the bytes of a node's write-ahead log: what is encoded is decoded, and no changed or missing byte goes
unnoticed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.model.ids import Epoch
from dlog.model.object_streams import NodeEpoch, ObjectStreamId
from dlog.wire.digest import crc32c
from dlog.wire.node_wal import (
    HEAD_BYTES,
    MAGIC,
    OFFSET_END,
    StreamEntry,
    WalEntry,
    WalFrame,
    decode_wal_entry,
    encode_wal_entry,
    stream_entry,
)
from dlog.wire.stream_object import Span

HUGE = 2**40 + 7
ONE = WalFrame(ObjectStreamId(HUGE), Epoch(3), HUGE + 1, (stream_entry(b"one", Span(-1, HUGE, 5, 6)),))
TWO = WalFrame(ObjectStreamId(2), Epoch(-1), 0, (stream_entry(b""), stream_entry(b"x" * 5000, Span(4, 5, 6, 7))))
ENTRY = WalEntry(NodeEpoch(HUGE + 2), (ONE, TWO))

numbers = st.integers(-(2**63), 2**63 - 1)
entries = st.builds(
    stream_entry,
    st.binary(max_size=40),
    st.none() | st.builds(Span, numbers, numbers, numbers, numbers),
)
frames = st.builds(
    WalFrame,
    st.integers(1, 2**64 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(0, OFFSET_END - 10),
    st.lists(entries, min_size=1, max_size=5).map(tuple),
)
wal_entries = st.builds(WalEntry, st.integers(0, 2**64 - 1), st.lists(frames, min_size=1, max_size=5).map(tuple))


def encoded(entry: WalEntry = ENTRY) -> bytes:
    return b"".join(encode_wal_entry(entry))


@given(wal_entries)
def test_what_is_encoded_is_decoded(entry: WalEntry) -> None:
    assert decode_wal_entry(encoded(entry)) == entry


def test_a_frame_knows_its_end_and_an_entry_its_checksum() -> None:
    assert (ONE.end, TWO.end) == (HUGE + 2, 2)
    assert [one.crc for one in decode_wal_entry(encoded()).frames[1].entries] == [crc32c(b""), crc32c(b"x" * 5000)]


def test_payloads_are_not_copied() -> None:
    payloads = [one.payload for frame in ENTRY.frames for one in frame.entries]
    assert [part for part in encode_wal_entry(ENTRY)[2:] for whole in payloads if part is whole] == payloads
    data = encoded()
    found = decode_wal_entry(data).frames[0].entries[0].payload
    assert isinstance(found, memoryview) and found.obj is data


def test_every_changed_byte_is_noticed() -> None:
    data = encoded(WalEntry(NodeEpoch(1), (ONE, WalFrame(ObjectStreamId(2), Epoch(1), 5, (stream_entry(b"ab"),)))))
    for at in range(len(data)):
        for bit in (1, 128):
            changed = bytearray(data)
            changed[at] ^= bit
            with pytest.raises((DamagedError, UnsupportedVersionError)):
                decode_wal_entry(changed)


def test_every_entry_that_is_cut_short_or_too_long_is_noticed() -> None:
    data = encoded()
    for size in range(len(data)):
        with pytest.raises(DamagedError):
            decode_wal_entry(data[:size])
    with pytest.raises(DamagedError, match="sizes"):
        decode_wal_entry(data + b"x")


def test_a_newer_version_is_told_from_damage() -> None:
    data = bytearray(encoded())
    data[len(MAGIC)] = 2
    with pytest.raises(DamagedError, match=r"checksum of a WAL entry's head does not match: version=2 known="):
        decode_wal_entry(data)
    data[HEAD_BYTES - 4 : HEAD_BYTES] = crc32c(data[: HEAD_BYTES - 4]).to_bytes(4)
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        decode_wal_entry(data)


def test_a_foreign_entry_is_told() -> None:
    with pytest.raises(DamagedError, match="no entry"):
        decode_wal_entry(b"x" * 1000)


def test_a_frame_without_meaning_is_damage_although_its_checksums_match() -> None:
    frame = WalFrame(ObjectStreamId(0), Epoch(1), 0, (stream_entry(b"a"),))
    with pytest.raises(DamagedError, match="no meaning"):
        decode_wal_entry(encoded(WalEntry(NodeEpoch(1), (frame,))))


def test_a_wrong_checksum_of_a_payload_is_noticed() -> None:
    wrong = WalFrame(ObjectStreamId(1), Epoch(1), 0, (StreamEntry(b"abc", 1),))
    with pytest.raises(DamagedError, match="checksum"):
        decode_wal_entry(encoded(WalEntry(NodeEpoch(1), (wrong,))))


def test_any_bytes_are_refused() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        with pytest.raises((DamagedError, UnsupportedVersionError)):
            decode_wal_entry(MAGIC + rng.randbytes(rng.randrange(200)))
