"""Tests records and snapshots of regions: the bytes, every cut and every flipped bit, and other versions."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.wire.digest import crc32c
from dlog.wire.region import (
    NONCE_BYTES,
    SNAPSHOT_ARRAY_MAX,
    RecordKind,
    RegionRecord,
    RegionSnapshot,
    TableSnapshot,
    decode_followers,
    decode_record,
    decode_snapshot,
    encode_batch,
    encode_record,
    encode_snapshot,
)

U64 = st.integers(0, 2**64 - 1)
RECORD = RegionRecord(
    kind=RecordKind.ENTRY,
    region=3,
    table=7,
    sequence=9,
    payload=b"payload",
    epoch=2,
    nonce=b"n" * NONCE_BYTES,
    batch=5,
    position=1,
    count=4,
)
SNAPSHOT = RegionSnapshot(
    64,
    2,
    b"n" * NONCE_BYTES,
    6,
    (4,),
    (TableSnapshot(7, 5, 2, 32, ((2, 16), (3, 16), (4, 31)), 700, 15), TableSnapshot(8, 1, 0, 0)),
)


@st.composite
def records(draw: st.DrawFn) -> RegionRecord:
    count = draw(st.integers(1, 2**32 - 1))
    return RegionRecord(
        kind=draw(st.sampled_from(RecordKind)),
        region=draw(U64),
        table=draw(U64),
        sequence=draw(U64),
        payload=draw(st.binary(max_size=50)),
        epoch=draw(U64),
        nonce=draw(st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)),
        batch=draw(U64),
        position=draw(st.integers(0, count - 1)),
        count=count,
    )


@given(records())
def test_records_read_back(record: RegionRecord) -> None:
    assert decode_record(*encode_record(record)) == record


def test_the_bytes_of_a_record() -> None:
    key, value = encode_record(RECORD)
    assert key.hex() == "01" + "0000000000000003" + "0000000000000007" + "0000000000000009" + "01"
    head = "01" + "0000000000000002" + "6e" * 16 + "0000000000000005" + "00000001" + "00000004"
    crc = crc32c(key + bytes.fromhex(head) + b"payload")
    assert value.hex() == head + f"{crc:08x}" + b"payload".hex()


@pytest.mark.parametrize(
    ("kind", "number"), [(RecordKind.TABLE_END, 3), (RecordKind.TABLE_BEGIN, 5), (RecordKind.TABLE_DROPPED, 6)]
)
def test_the_key_of_a_record_about_a_table(kind: RecordKind, number: int) -> None:
    key, value = encode_record(RegionRecord(kind=kind, region=3, table=7))
    assert key.hex() == f"{number:02x}" + "0000000000000003" + "0000000000000007" + "0000000000000000" + "01"
    assert value[:1] + value[9:25] == b"\1" + bytes(NONCE_BYTES)


def test_a_batch_begins_a_table_with_sequence_0() -> None:
    records = [decode_record(*one) for one in encode_batch(3, 2, RECORD.nonce, 5, [(7, 0, b"about it"), (7, 1, b"x")])]
    assert [(one.kind, one.sequence, one.position, one.count) for one in records] == [
        (RecordKind.TABLE_BEGIN, 0, 0, 2),
        (RecordKind.ENTRY, 1, 1, 2),
    ]


def test_the_fields_of_a_snapshot() -> None:
    packed = encode_snapshot(SNAPSHOT)[5:]
    first, second = [7, 5, 2, 32, [2, 16, 1, 0, 1, 15], 700, 15], [8, 1, 0, 0, [], 0, 0]
    assert msgpack.unpackb(packed) == [64, 2, b"n" * NONCE_BYTES, 6, [4], [first, second]]
    correct = struct.pack(">BI", 1, crc32c(msgpack.packb((1, 0, b"", 0, [], [second]))))
    assert decode_snapshot(correct + msgpack.packb((1, 0, b"", 0, [], [second]))).tables == (TableSnapshot(8, 1, 0, 0),)


def test_version_0_is_the_common_format_of_the_design() -> None:
    plain = RegionRecord(kind=RecordKind.ENTRY, region=1, table=2, sequence=3, payload=b"row", version=0)
    key, value = encode_record(plain)
    assert key == struct.pack(">BQQQB", 1, 1, 2, 3, 0)
    assert len(key) == 26
    assert value == b"\0row"
    assert decode_record(key, value) == plain


@pytest.mark.parametrize("kind", [kind for kind in RecordKind if kind is not RecordKind.ENTRY])
def test_version_0_has_entries_only(kind: RecordKind) -> None:
    with pytest.raises(ValueError, match=f"kind={kind.name} version=0"):
        encode_record(RegionRecord(kind=kind, region=1, version=0))
    with pytest.raises(DamagedError, match="key and value do not fit"):
        decode_record(struct.pack(">BQQQB", kind, 1, 0, 0, 0), b"\0")


@pytest.mark.parametrize(
    "wrong",
    [{"table": 2**64}, {"sequence": -1}, {"nonce": b"short"}, {"count": 2**32}, {"version": 2}, {"epoch": 2**64}],
)
def test_what_does_not_fit_is_not_encoded(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"does not fit|no such record"):
        encode_record(replace(RECORD, **wrong))


def test_every_cut_of_a_record_is_damage() -> None:
    key, value = encode_record(RECORD)
    for size in range(len(key)):
        with pytest.raises(DamagedError, match="not a record of a region"):
            decode_record(key[:size], value)
    for size in range(len(value)):
        with pytest.raises(DamagedError):
            decode_record(key, value[:size])
    with pytest.raises(DamagedError, match="not a record of a region"):
        decode_record(key + b"\0", value)


def test_every_flipped_bit_of_a_record_is_found() -> None:
    key, value = encode_record(RECORD)
    whole = key + value
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises((DamagedError, UnsupportedVersionError)):
            decode_record(changed[: len(key)], changed[len(key) :])


BATCH = encode_batch(3, 2, RECORD.nonce, 5, [(7, 0, b"about"), (7, 1, b"x"), (8, 4, b""), (7, 2, b"y" * 300)])
OTHERS = {
    "another batch": encode_batch(3, 2, RECORD.nonce, 6, [(7, 0, b""), (7, 1, b"x"), (8, 4, b""), (7, 2, b"")])[2],
    "another position": BATCH[3],
    "the same position": BATCH[1],
    "another count": encode_batch(3, 2, RECORD.nonce, 5, [(7, 0, b""), (7, 1, b""), (8, 4, b"")])[2],
    "another nonce": encode_batch(3, 2, bytes(NONCE_BYTES), 5, [(8, 4, b"")] * 4)[2],
    "another epoch": encode_batch(3, 1, RECORD.nonce, 5, [(8, 4, b"")] * 4)[2],
    "another region": encode_batch(4, 2, RECORD.nonce, 5, [(8, 4, b"")] * 4)[2],
    "no entry": encode_record(
        RegionRecord(RecordKind.TABLE_END, 3, 8, 4, epoch=2, nonce=RECORD.nonce, batch=5, position=2, count=4)
    ),
    "version 0": encode_record(RegionRecord(RecordKind.ENTRY, 3, 8, 4, version=0)),
    "no key": (b"", BATCH[2][1]),
    "no value": (BATCH[2][0], b""),
}


def _followers(records: list[tuple[bytes, bytes]], at: int = 1) -> list[tuple[int, int, bytes]]:
    """What is decoded behind the first record of BATCH."""
    offsets = range(100 + at, 100 + len(records))
    return _decoded(at, offsets, records[at:])


def _decoded(at: int, offsets: Sequence[int], records: list[tuple[bytes, bytes]]) -> list[tuple[int, int, bytes]]:
    first = decode_record(*BATCH[0])
    keys, values = [key for key, _ in records], [value for _, value in records]
    return list(zip(*decode_followers(first, at, 100 + at, offsets, keys, values), strict=True))


def test_the_records_of_a_batch_are_decoded_together_as_one_by_one() -> None:
    expected = [(one.table, one.sequence, one.payload) for one in (decode_record(*record) for record in BATCH)]
    for at in range(1, 5):
        assert _followers(BATCH, at) == expected[at:]
    assert _followers([*BATCH, BATCH[3]]) == expected[1:], "it has no more"


@pytest.mark.parametrize("name", OTHERS)
def test_another_record_ends_what_is_decoded_together(name: str) -> None:
    assert len(_followers([*BATCH[:2], OTHERS[name], *BATCH[3:]])) == 1


def test_a_gap_in_the_offsets_ends_what_is_decoded_together() -> None:
    assert len(_decoded(1, (101, 103, 104), BATCH[1:])) == 1


def test_every_flipped_bit_ends_what_is_decoded_together() -> None:
    key, data = BATCH[2]
    for bit in range(8 * len(key + data)):
        changed = bytearray(key + data)
        changed[bit // 8] ^= 1 << bit % 8
        changed_key, changed_data = bytes(changed[: len(key)]), bytes(changed[len(key) :])
        assert len(_followers([*BATCH[:2], (changed_key, changed_data), BATCH[3]])) == 1


def _damaged(rng: random.Random, batch: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Records of a batch, some of them changed, missing, repeated, or in another order."""
    found = list(batch)
    for _ in range(rng.choice((0, 1, 1, 3))):
        at, other = rng.randrange(len(found)), rng.randrange(len(found))
        key, value = found[at]
        cut = rng.randint(0, len(value) + 1)
        flipped = bytearray(key + value)
        if flipped:
            flipped[rng.choice((0, 25, rng.randrange(70), -1)) % len(flipped)] ^= 1 << rng.randrange(8)
        changed = (bytes(flipped[: len(key)]), bytes(flipped[len(key) :]))
        head, payload = changed[1][:41], changed[1][45:]
        sealed = changed[0], head + struct.pack(">I", crc32c(changed[0] + head + payload)) + payload
        other_key, other_value = rng.choice(list(OTHERS.values()))
        found[at : at + 1] = rng.choice(
            (
                [changed],
                [sealed],
                [sealed],
                [(key[: rng.randrange(len(key) + 1)], value)],
                [(key, value[:cut])],
                [(key + b"\1", value), (key, value + b"?")],
                [found[other]],
                [(found[other][0], value)],
                [(other_key, other_value)],
                [(key, value), (key, value)],
            )
        )
    return found


@pytest.mark.parametrize("seed", range(300))
def test_damaged_and_odd_records_are_decoded_together_as_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    entries = [
        (rng.randrange(3), rng.choice((0, 1, 5, 2**64 - 1)), rng.randbytes(rng.choice((0, 1, 90)))) for _ in range(9)
    ]
    batch = encode_batch(3, 2, RECORD.nonce, 5, entries)
    first, at = decode_record(*batch[0]), rng.randrange(1, 9)
    key, value = batch[-1]
    head = value[:33] + struct.pack(">II", 9, 9)
    beyond = key, head + struct.pack(">I", crc32c(key + head + value[45:])) + value[45:]
    records = [*_damaged(rng, batch[at:]), beyond]
    offsets = [100 + at + i for i in range(len(records))]
    if not rng.randrange(4):
        offsets[rng.randrange(len(offsets)) :] = range(500, 500 + len(offsets))
    expected: list[tuple[int, int, bytes]] = []
    for record, offset in zip(records, offsets, strict=False):
        with contextlib.suppress(DamagedError, UnsupportedVersionError):
            one = decode_record(*record)
            place = (offset, one.region, one.epoch, one.nonce, one.batch, one.position, one.count, one.version)
            at_end = 100 + at + len(expected), 3, 2, first.nonce, 5, at + len(expected), 9, 1
            is_entry = one.kind is (RecordKind.ENTRY if one.sequence else RecordKind.TABLE_BEGIN)
            if place == at_end and is_entry:
                expected.append((one.table, one.sequence, bytes(one.payload)))
                continue
        break
    keys, values = [key for key, _ in records], [value for _, value in records]
    found = decode_followers(first, at, 100 + at, offsets[: len(records)], keys, values)
    assert list(zip(*found, strict=True)) == expected


def test_a_newer_version_is_told_from_damage() -> None:
    key, value = encode_record(RECORD)
    for newer in ((key[:-1] + b"\2", value), (key, b"\2" + value[1:])):
        with pytest.raises(UnsupportedVersionError, match="version=2"):
            decode_record(*newer)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_a_record_or_a_typed_error(key: bytes, value: bytes) -> None:
    with contextlib.suppress(DamagedError, UnsupportedVersionError):
        decode_record(key, value)


def test_snapshots_read_back() -> None:
    for snapshot in (SNAPSHOT, RegionSnapshot(0)):
        assert decode_snapshot(encode_snapshot(snapshot)) == snapshot
    with pytest.raises(ValueError, match="does not fit"):
        encode_snapshot(RegionSnapshot(2**64))
    many = tuple((number, number) for number in range(SNAPSHOT_ARRAY_MAX // 2 + 1))
    for refused in (
        RegionSnapshot(1, nonce=b"short"),
        RegionSnapshot(1, tables=(TableSnapshot(7, len(many), 0, 0, many),)),
        RegionSnapshot(1, ended=tuple(range(SNAPSHOT_ARRAY_MAX + 1))),
    ):
        with pytest.raises(ValueError, match="no such snapshot"):
            encode_snapshot(refused)


def test_the_mapping_of_a_full_region_fits_into_one_record() -> None:
    """3,500,000 entries in 1,000 tables, with a mapped one in 64."""
    mapping = tuple((1 + 64 * number, 5_000_000 + 64_000 * number) for number in range(55))
    tables = tuple(TableSnapshot(table, 3501, 0, 8_500_000, mapping, 10**6, 10**6) for table in range(1000))
    assert len(encode_snapshot(RegionSnapshot(9_000_000, 1, bytes(16), 10**6, (), tables))) < 400_000


def test_every_cut_and_every_flipped_bit_of_a_snapshot_is_found() -> None:
    data = encode_snapshot(SNAPSHOT)
    for size in range(len(data)):
        with pytest.raises(DamagedError):
            decode_snapshot(data[:size])
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises((DamagedError, UnsupportedVersionError)):
            decode_snapshot(changed)


@pytest.mark.parametrize(
    "fields",
    [
        (),
        (1, 2, b"n" * 15, 0, [], []),
        (-1, 0, b"", 0, [], []),
        (1, True, b"", 0, [], []),
        (1, 0, "", 0, [], []),
        (1, 0, b"", 0, 5, []),
        (1, 0, b"", 0, [], [[7, 5, 2]]),
        (1, 0, b"", 0, [], [[7, 0, 0, 0, [], 0, 0]]),
        (1, 0, b"", 0, [], [[7, 5, 6, 0, [], 0, 0]]),
        (1, 0, b"", 0, [], [[7, 5, 2, 9, [2, 16, 1], 0, 0]]),
        (1, 0, b"", 0, [], [[7, 5, 2, 9, [3, 16, 0, 1], 0, 0]]),
        (1, 0, b"", 0, [], [[7, 5, 2, 9, [2, 17, 1, -1], 0, 0]]),
        (1, 0, b"", 0, [], [[7, 5, 2, 9, ["2", 17], 0, 0]]),
        (1, 0, b"", 0, [], [[7, 5, 2, 9, [], -1, 0]]),
        (1, 0, b"", 0, [], [[7, 5, 2, 9, [], 0, None]]),
        (1, 0, b"", 0, [], [[7, 5, 2, 9, []]]),
    ],
)
def test_a_snapshot_with_a_right_checksum_may_still_be_wrong(fields: tuple[object, ...]) -> None:
    packed = msgpack.packb(fields)
    with pytest.raises(DamagedError, match="not valid"):
        decode_snapshot(struct.pack(">BI", 1, crc32c(packed)) + packed)
