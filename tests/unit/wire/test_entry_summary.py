"""Summaries are equal for copies of the same entries, whatever LAC they carry, and differ for everything else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.model.ledger import DigestType
from dlog.wire.digest import Digest
from dlog.wire.entry_summary import HEAD_BYTES_MAX, EntryOutline, Summary, content_sum, summarize

WITH_CONTENT = st.sampled_from([DigestType.CRC32, DigestType.CRC32C])
LAC = st.integers(-1, 2**40)


def outline(
    type: DigestType, entry: int, payload: bytes, lac: int = -1, length: int = 9, ledger: int = 5
) -> EntryOutline:
    packet = b"".join(Digest(ledger, type, b"pw").pack(entry, lac, length, (payload,)))
    return EntryOutline(entry, packet[:HEAD_BYTES_MAX], len(packet))


@settings(max_examples=60)
@given(st.sampled_from(DigestType), st.binary(max_size=300), LAC, LAC)
def test_copies_with_another_lac_are_equal(type: DigestType, payload: bytes, lac: int, other: int) -> None:
    one, two = outline(type, 3, payload, lac), outline(type, 3, payload, other)
    assert summarize([one], type) == summarize([two], type)


@settings(max_examples=60)
@given(WITH_CONTENT, st.binary(min_size=1, max_size=300), LAC, LAC, st.data())
def test_another_payload_differs(type: DigestType, payload: bytes, lac: int, other: int, data: st.DataObject) -> None:
    changed = bytearray(payload)
    changed[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    one, two = outline(type, 3, payload, lac), outline(type, 3, bytes(changed), other)
    assert summarize([one], type) != summarize([two], type)


@pytest.mark.parametrize("type", [DigestType.CRC32, DigestType.CRC32C])
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 200_000])
def test_the_content_is_the_crc_of_the_payload_in_its_place(type: DigestType, size: int) -> None:
    """Against the definition: the digest of the payload behind a head of other bytes."""
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    sums = {
        content_sum(made.head, made.length, type)
        for made in (outline(type, entry, payload, lac, 7, ledger) for entry, lac, ledger in ((0, -1, 1), (9, 4, 2)))
    }
    assert len(sums) == 1


def test_ids_lengths_and_order_count() -> None:
    type = DigestType.CRC32C
    base = summarize([outline(type, 3, b"x"), outline(type, 4, b"y")], type)
    assert base.entries == 2
    assert summarize([outline(type, 3, b"x"), outline(type, 5, b"y")], type) != base
    assert summarize([outline(type, 3, b"x"), outline(type, 4, b"y", length=10)], type) != base
    assert summarize([outline(type, 3, b"y"), outline(type, 4, b"x")], type) != base
    assert summarize([outline(type, 3, b"x")], type).entries == 1
    assert summarize([], type) == Summary(0, 0)


@pytest.mark.parametrize("type", DigestType)
@pytest.mark.parametrize("size", [0, 16, 24, 33, 35])
def test_a_packet_too_short_for_its_digest_is_counted(type: DigestType, size: int) -> None:
    assert summarize([EntryOutline(1, bytes(size), size)], type).entries == 1
