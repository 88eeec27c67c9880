"""Tests packets: what is packed verifies, and a changed packet does not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.model.ledger import DigestType
from dlog.wire.digest import Digest, DigestMismatch, crc32c

I64 = st.integers(-(2**63), 2**63 - 1)
LEDGER = st.integers(0, 2**63 - 1)


@settings(max_examples=60)
@given(st.sampled_from(DigestType), LEDGER, LEDGER, I64, LEDGER, st.lists(st.binary(max_size=50), max_size=4))
def test_a_packed_entry_verifies_and_reads_back(
    type: DigestType, ledger: int, entry: int, lac: int, length: int, parts: list[bytes]
) -> None:
    digest = Digest(ledger, type, b"pw")
    packet = b"".join(digest.pack(entry, lac, length, parts))
    assert len(packet) == 32 + digest.size + sum(map(len, parts))
    for asked in (entry, None, -1):
        found = digest.verify(packet, asked)
        assert (found.entry_id, found.lac, found.length, bytes(found.payload)) == (entry, lac, length, b"".join(parts))


def test_payload_parts_are_handed_on_untouched() -> None:
    parts = (b"one", bytearray(b"two"), memoryview(b"three"))
    packed = Digest(1, DigestType.CRC32C).pack(0, -1, 11, parts)
    assert all(a is b for a, b in zip(packed[1:], parts, strict=True))


@pytest.mark.parametrize("type", [DigestType.CRC32, DigestType.HMAC, DigestType.CRC32C])
def test_each_flipped_bit_is_noticed(type: DigestType) -> None:
    digest = Digest(7, type, b"pw")
    packet = b"".join(digest.pack(3, 2, 11, [b"hello world"]))
    for bit in range(len(packet) * 8):
        broken = bytearray(packet)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DigestMismatch):
            digest.verify(broken, 3)


def test_a_dummy_digest_still_knows_its_ledger_and_entry() -> None:
    packet = b"".join(Digest(7, DigestType.DUMMY).pack(3, 2, 5, [b"hello"]))
    with pytest.raises(DigestMismatch, match="another entry"):
        Digest(8, DigestType.DUMMY).verify(packet, 3)
    with pytest.raises(DigestMismatch, match="another entry"):
        Digest(7, DigestType.DUMMY).verify(packet, 4)


@pytest.mark.parametrize("type", DigestType)
def test_every_short_packet_is_refused(type: DigestType) -> None:
    digest = Digest(7, type, b"pw")
    packet = b"".join(digest.pack(3, 2, 0, []))
    for size in range(len(packet)):
        with pytest.raises(DigestMismatch):
            digest.verify(packet[:size])


def test_the_password_tells_keys_apart() -> None:
    assert Digest(1, DigestType.HMAC, b"a").master_key != Digest(1, DigestType.HMAC, b"b").master_key
    packet = b"".join(Digest(1, DigestType.HMAC, b"a").pack(0, -1, 0, []))
    with pytest.raises(DigestMismatch):
        Digest(1, DigestType.HMAC, b"b").verify(packet)


@pytest.mark.parametrize("type", DigestType)
def test_an_explicit_lac_reads_back_and_no_other_size_or_ledger_does(type: DigestType) -> None:
    digest = Digest(9, type, b"pw")
    packet = digest.pack_lac(41)
    assert digest.verify_lac(packet) == 41
    for broken in (packet[:-1], packet + b"\0", Digest(8, type, b"pw").pack_lac(41)):
        with pytest.raises(DigestMismatch):
            digest.verify_lac(broken)


def test_crc32c_is_castagnoli_and_chains() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"56789"), crc32c(bytearray(b"1234"))) == 0xE3069283
    assert crc32c(b"") == 0
