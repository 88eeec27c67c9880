"""Tests the dedup trailer of an entry: what is written reads back, and other bytes are damage."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import DamagedError
from dlog.log.dedup_trailer import (
    MAGIC,
    BatchPosition,
    DedupTrailer,
    ProducerSnapshot,
    ProducerTableSnapshot,
    TrailerBatch,
    decode_batch_checksums,
    decode_trailer,
    encode_trailer,
    is_note,
    pack_snapshot,
)
from dlog.model.ids import EntryId
from dlog.model.window import WINDOW_MAX

U63 = st.integers(0, 2**63 - 1)
ID = st.binary(min_size=16, max_size=16)
dlsns = st.builds(BatchPosition, *[U63] * 6)
producers = st.builds(ProducerSnapshot, ID, U63, U63, st.lists(dlsns, max_size=3).map(tuple))
snapshots = st.builds(
    ProducerTableSnapshot, st.tuples(U63, st.integers(-1, 2**62)), st.lists(producers, max_size=3).map(tuple)
)
batches = st.lists(st.builds(TrailerBatch, ID, *[U63] * 4), max_size=5).map(tuple)


@settings(max_examples=60)
@given(U63, st.integers(-1, 2**62), batches, st.none() | snapshots, st.booleans())
def test_a_note_reads_back(
    unix_ms: int, entry: int, noted: tuple[TrailerBatch, ...], snapshot: ProducerTableSnapshot | None, packed: bool
) -> None:
    payload = encode_trailer(unix_ms, entry, noted, pack_snapshot(snapshot) if packed else snapshot)
    assert is_note(payload)
    assert decode_trailer(memoryview(payload)) == DedupTrailer(unix_ms, EntryId(entry), noted, snapshot)
    assert decode_batch_checksums(memoryview(payload)) == (unix_ms, {batch.slot: batch.crc for batch in noted})


BATCH = [b"p" * 16, 0, 1, 2, 0]
PRODUCER = [b"p" * 16, 0, 1, [[0, 1, 1, 0, 0, 9]]]


@pytest.mark.parametrize(
    "value",
    [
        [float("inf"), -1, [], None],
        ["5", -1, [], None],
        [True, -1, [], None],
        [-1, -1, [], None],
        [2**63, -1, [], None],
        [1, -2, [], None],
        [1, -1, None, None],
        [1, -1, 5, None],
        [1, -1, {}, None],
        [1, -1, []],
        [1, -1, [], None, None],
        [1, -1, [BATCH[:-1]], None],
        [1, -1, [[*BATCH, 1]], None],
        [1, -1, [[]], None],
        [1, -1, [[b"short", 0, 1, 2, 0]], None],
        [1, -1, [[b"p" * 16, -1, 1, 2, 0]], None],
        [1, -1, [], [1, []]],
        [1, -1, [], [True, [PRODUCER[:-1]]]],
        [1, -1, [], [True, [[b"p" * 16, 0, 1, [[0]]]]]],
        [1, -1, [], [True, [["p" * 16, 0, 1, []]]]],
        {},
        5,
    ],
)
def test_a_field_of_a_wrong_kind_is_damage(value: Any) -> None:
    with pytest.raises(DamagedError):
        decode_trailer(MAGIC + msgpack.packb(value))


@pytest.mark.parametrize(
    "value",
    [
        ["5", -1, [], None],
        [-1, -1, [], None],
        [1, -1, None, None],
        [1, -1, []],
        [1, -1, [BATCH[:-1]], None],
        [1, -1, [b"bytes"], None],
        [1, -1, [[*BATCH[:3], -1, 0]], None],
        [1, -1, [[*BATCH[:4], "0"]], None],
        {},
    ],
)
def test_a_field_of_a_wrong_kind_is_damage_to_who_wants_the_sums(value: Any) -> None:
    with pytest.raises(DamagedError):
        decode_batch_checksums(MAGIC + msgpack.packb(value))


@pytest.mark.parametrize(("window", "read"), [(0, 0), (16, 16), (WINDOW_MAX + 1, WINDOW_MAX)])
def test_a_snapshot_has_the_window_if_more_than_the_least_was_allowed(window: int, read: int) -> None:
    snapshot = ProducerTableSnapshot((0, -1), (), window)
    found = decode_trailer(encode_trailer(1, -1, [], snapshot)).snapshot
    assert found is not None
    assert found.window == read


@settings(max_examples=150)
@given(st.data())
def test_a_changed_byte_ends_in_a_note_or_damage(data: st.DataObject) -> None:
    snapshot = ProducerTableSnapshot((0, -1), (ProducerSnapshot(b"p" * 16, 0, 1, (BatchPosition(0, 1, 1, 0, 0, 9),)),))
    payload = bytearray(encode_trailer(1, -1, [TrailerBatch(b"p" * 16, 0, 1, 2, 0)], snapshot))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    for decode in (decode_trailer, decode_batch_checksums):
        with contextlib.suppress(DamagedError):
            decode(payload)


@pytest.mark.parametrize("payload", [b"", b"control", b"keepalive", b"heartbeat", b"dlog", b"dlog2"])
def test_other_control_records_are_no_notes(payload: bytes) -> None:
    assert not is_note(payload)
    with pytest.raises(DamagedError, match="magic"):
        decode_trailer(payload)


def test_what_a_note_declares_does_not_allocate() -> None:
    tracemalloc.start()
    try:
        for body in (b"\xdd\xff\xff\xff\xff", struct.pack(">BH", 0xDC, 1000) * 300, b"\xdf\xff\xff\xff\xff"):
            with pytest.raises(DamagedError):
                decode_trailer(MAGIC + body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * 1024 * 1024
