"""Tests entries, records and record sets: what is written reads back with its slots; inconsistent bytes are damage."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from unittest import mock

import lz4.block
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import DamagedError, RecordTooLargeError
from dlog.wire import entry as entry_module
from dlog.wire.entry import (
    CONTROL,
    DECOMPRESSED_BYTES_MAX,
    ENTRY_BYTES_MAX,
    RECORD_BYTES_MAX,
    RECORD_SET,
    SET_OVERHEAD,
    SET_RECORD_OVERHEAD,
    Buffer,
    Codec,
    Record,
    build_record_set,
    control_record,
    decode_entry,
    encode_entry,
    end_of_stream_record,
    parse_record_set,
    record_set_count,
)

payloads = st.lists(st.binary(max_size=60), min_size=1, max_size=8)
codecs = st.sampled_from(Codec)


def entry(*records: Record, codec: Codec = Codec.NONE) -> bytes:
    return b"".join(encode_entry(records, codec))


def stored(data: Buffer) -> list[Record]:
    return decode_entry(data, expand=False)


def set_record(position: int, txid: int, inner: list[bytes], codec: Codec = Codec.NONE) -> Record:
    return Record(RECORD_SET, position, txid, build_record_set(inner, codec))


@settings(max_examples=80)
@given(payloads, codecs)
def test_a_record_set_reads_back(inner: list[bytes], codec: Codec) -> None:
    packed = build_record_set(inner, codec)
    assert parse_record_set(packed) == inner
    assert record_set_count(packed) == len(inner)
    if codec is Codec.NONE:
        assert len(packed) == SET_OVERHEAD + SET_RECORD_OVERHEAD * len(inner) + sum(map(len, inner))


def test_a_record_longer_than_the_table_of_lengths_is_packed_alike() -> None:
    inner = [b"a" * 4095, b"b" * 4096, b"", b"c" * 100_000]
    assert parse_record_set(build_record_set(inner)) == inner


plain = st.builds(lambda p: [p], st.binary(max_size=60))


@settings(max_examples=80)
@given(st.lists(st.tuples(st.booleans(), payloads, codecs), max_size=5), codecs, st.integers(0, 2**62), st.booleans())
def test_slots_and_positions_count_every_record_of_every_set(
    groups: list[tuple[bool, list[bytes], Codec]], codec: Codec, txid: int, enveloped: bool
) -> None:
    records: list[Record] = []
    wanted: list[Record] = []
    position = 1
    for as_set, inner, inner_codec in groups:
        if as_set:
            records.append(set_record(position, txid, inner, inner_codec))
        else:
            inner = inner[:1]
            records.append(Record(0, position, txid, inner[0]))
        wanted += [Record(0, position + i, txid, p, len(wanted) + i) for i, p in enumerate(inner)]
        position += len(inner)
    records.append(control_record(position - 1, txid))
    wanted.append(Record(CONTROL, position - 1, txid, b"control", len(wanted)))
    data = entry(*records, codec=codec if enveloped else Codec.NONE)
    data = data if enveloped else data[13:]
    assert decode_entry(data, enveloped=enveloped) == wanted
    closed = decode_entry(data, expand=False, enveloped=enveloped)
    assert [r[:4] for r in closed] == [r[:4] for r in records]
    assert sum(r.count for r in closed) == len(wanted)
    assert all(r.slot == sum(s.count for s in closed[:i]) for i, r in enumerate(closed))


def test_what_a_reader_is_to_see() -> None:
    data = entry(Record(0, 1, 5, b"user"), end_of_stream_record(1), control_record(1, 2**63 - 1))
    user, end, control = decode_entry(data)
    assert (user.is_user, end.is_user, control.is_user) == (True, False, False)
    assert end.is_end_of_stream and control.is_control and not user.is_set
    assert (end.txid, bytes(end.payload), end.slot) == (2**63 - 1, b"endOfStream", 1)


def test_payloads_are_not_copied_when_written() -> None:
    bodies: list[Buffer] = [bytes(10), bytearray(2000), memoryview(bytes(3000))]
    parts = encode_entry([Record(0, i + 1, 9, body) for i, body in enumerate(bodies)])
    assert all(any(part is body for part in parts) for body in bodies)


def test_a_small_entry_is_one_part() -> None:
    assert len(encode_entry([Record(0, 1, 9, bytes(100)), control_record(1, 9)])) == 1


def test_an_entry_without_records_is_an_entry() -> None:
    assert decode_entry(entry()) == []


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_the_largest_record_set_is_one_record_and_one_more_byte_is_too_much() -> None:
    room = RECORD_BYTES_MAX - SET_OVERHEAD - SET_RECORD_OVERHEAD
    assert len(build_record_set([bytes(room)])) == RECORD_BYTES_MAX
    with pytest.raises(RecordTooLargeError):
        build_record_set([bytes(room + 1)])
    with pytest.raises(RecordTooLargeError):
        build_record_set([b""] * (RECORD_BYTES_MAX // SET_RECORD_OVERHEAD))


def test_an_entry_has_a_largest_size() -> None:
    entry(Record(0, 1, 1, bytes(ENTRY_BYTES_MAX - 20)))
    with pytest.raises(RecordTooLargeError):
        entry(Record(0, 1, 1, bytes(ENTRY_BYTES_MAX - 19)))


# ---- inconsistent bytes ---------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(st.binary(max_size=120), st.sampled_from(["raw", "envelope", "record", "set"]))
def test_hostile_bytes_end_in_records_or_damage(garbage: bytes, dress: str) -> None:
    if dress == "set":
        garbage = struct.pack(">qqi", 1 << 16 | 4, 9, len(garbage)) + garbage
    if dress in ("set", "record"):
        garbage = struct.pack(">biii", 1, 0, len(garbage), len(garbage)) + garbage
    if dress == "envelope":
        garbage = b"\1\0\0\0\1" + garbage
    for read in (decode_entry, stored, parse_record_set):
        with contextlib.suppress(DamagedError):
            read(garbage)


@settings(max_examples=150)
@given(payloads, codecs, codecs, st.data())
def test_a_changed_byte_ends_in_records_or_damage(
    inner: list[bytes], codec: Codec, outer: Codec, data: st.DataObject
) -> None:
    packed = bytearray(entry(set_record(1, 9, inner, codec), control_record(len(inner), 9), codec=outer))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(DamagedError):
        decode_entry(packed)


@pytest.mark.parametrize("codec", Codec)
def test_no_prefix_of_an_entry_passes(codec: Codec) -> None:
    whole = entry(set_record(1, 9, [b"one", b"two"]), control_record(2, 9), codec=codec)
    for size in range(len(whole)):
        with pytest.raises(DamagedError):
            decode_entry(whole[:size])
    with pytest.raises(DamagedError):
        decode_entry(whole + b"\0")


BODY = struct.pack(">i", 3) + b"abc"


@pytest.mark.parametrize(
    "head,body",
    [
        ((0x1000, 2, 7, 7), BODY),  # says two, holds one
        ((0x1000, 0, 7, 7), BODY),
        ((0x1000, -1, 7, 7), BODY),
        ((0x1000, 1, 8, 7), BODY),
        ((0x1000, 1, 7, 8), BODY),
        ((0x1000, 1, 7, 6), BODY[:-1]),
        ((0x1000, 1, 6, 6), BODY[:-1]),  # the record runs past the end
        ((0x1000, 2, 9, 9), BODY + b"\0\0"),  # ends inside a length
        ((0x1000, 1, 8, 8), struct.pack(">i", -1) + b"abcd"),
        ((0x2000, 1, 7, 7), BODY),
        ((0x1002, 1, 7, 7), BODY),
        ((0x1001, 1, 7, 7), BODY),  # not LZ4
        ((0x1001, 1, -7, 7), BODY),
        ((0x1001, 2**29, 2**31 - 1, 7), BODY),
    ],
)
def test_a_set_that_does_not_add_up_is_damaged(head: tuple[int, int, int, int], body: bytes) -> None:
    with pytest.raises(DamagedError):
        parse_record_set(struct.pack(">iiii", *head) + body)


@pytest.mark.parametrize("declared", [2**31 - 1, DECOMPRESSED_BYTES_MAX + 1, DECOMPRESSED_BYTES_MAX, 300 * 255])
def test_a_declared_size_is_judged_before_anything_is_decompressed(declared: int) -> None:
    block = lz4.block.compress(b"a" * 64, store_size=False)
    data = struct.pack(">biii", 1, 1, declared, len(block)) + block
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError, match="impossible"):
            decode_entry(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000


def test_a_block_of_another_size_than_declared_is_damaged() -> None:
    block = lz4.block.compress(b"a" * 64, store_size=False)
    for declared in (0, 63, 65, 200):
        with pytest.raises(DamagedError):
            decode_entry(struct.pack(">biii", 1, 1, declared, len(block)) + block)


@pytest.mark.parametrize("head", [(0, 0), (2, 0), (1, 2), (1, 3)])
def test_an_unknown_envelope_is_damaged(head: tuple[int, int]) -> None:
    with pytest.raises(DamagedError):
        decode_entry(struct.pack(">biii", *head, 0, 0))


def outcome(body: bytes) -> list[bytes] | str:
    try:
        return parse_record_set(body)
    except DamagedError as error:
        return error.message


@given(
    length=st.integers(0, 9),
    count=st.integers(1, 140),
    codec=codecs,
    others=st.lists(st.tuples(st.integers(0, 139), st.binary(max_size=12)), max_size=1),
    moves=st.lists(st.tuples(st.integers(0, 139), st.integers(0, 139)), max_size=2),
    lies=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=2),
)
def test_records_of_one_length_are_read_at_once_and_read_the_same(
    length: int,
    count: int,
    codec: Codec,
    others: list[tuple[int, bytes]],
    moves: list[tuple[int, int]],
    lies: list[tuple[int, int]],
) -> None:
    """The fast path agrees with the one record by record: on what it decodes, and on what it must leave to that."""
    records = [bytes([n]) * length for n in range(count)]
    for at, record in others:
        records[at % count] = record
    for giver, taker in moves:  # the bytes together stay as many
        records[taker % count] += records[giver % count][-1:]
        records[giver % count] = records[giver % count][:-1]
    body = bytearray(build_record_set(records, codec))
    for at, value in lies:
        body[at % len(body)] = value
    quick = outcome(bytes(body))
    with mock.patch.object(entry_module, "_parse_alike", lambda body, count: None):
        assert quick == outcome(bytes(body))
    if not lies:
        assert quick == records


@pytest.mark.parametrize(("count", "is_quick"), [(31, False), (32, True), (33, True), (1000, True)])
def test_many_records_of_one_length_go_the_quick_way(count: int, is_quick: bool) -> None:
    body = memoryview(build_record_set([b"abc"] * count))[SET_OVERHEAD:]
    assert (entry_module._parse_alike(body, count) == [b"abc"] * count) is is_quick


def test_lengths_that_only_add_up_are_not_one_length() -> None:
    records = [b"abc"] * 40
    records[7], records[30] = b"abcd", b"ab"
    body = build_record_set(records)
    assert entry_module._parse_alike(memoryview(body)[SET_OVERHEAD:], 40) is None
    assert parse_record_set(body) == records
