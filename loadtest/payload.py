"""Records of a load, each with its producer, sequence, due time and a CRC.

crc32 u32 | producer u32 | sequence u64 | due u64 (CLOCK_MONOTONIC ns) | filler

The CRC covers the filler first and then the 20 other bytes of the head, so that the filler's part is computed once per
producer: generator and system share the machine, so records must be cheap to make. Half of the filler repeats, so that
compression is neither free nor useless.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from fastcrc.crc32 import iso_hdlc as crc32  # zlib's polynomial, a KiB in half the time

_HEAD = struct.Struct(">IIQQ")
_CLAIM = struct.Struct(">IQQ")
_CRC = struct.Struct(">I")
_LOW = 1 << 16  # sequences whose CRCs are derived from one CRC
PAYLOAD_BYTES_MIN = _HEAD.size


class Claim(NamedTuple):
    """Contents of a record."""

    producer: int
    sequence: int
    due_ns: int


class PayloadMaker:
    """Makes one producer's records of `size` bytes. Raises ValueError below PAYLOAD_BYTES_MIN."""

    def __init__(self, producer: int, size: int, seed: int = 0) -> None:
        if size < PAYLOAD_BYTES_MIN:
            raise ValueError(f"record_bytes must be at least {PAYLOAD_BYTES_MIN}: record_bytes={size}")
        room = size - PAYLOAD_BYTES_MIN
        rng = random.Random(f"{seed} {producer}")
        self._producer = producer
        self._filler = rng.randbytes(room // 2) + (b"%08x" % rng.getrandbits(32)) * (room // 16 + 1)
        self._filler = self._filler[:room]
        self._filler_crc = crc32(self._filler)

    def make(self, first: int, count: int, due_ns: int, step_ns: float = 0.0) -> list[bytes]:
        """Records first..first+count-1; each is due `step_ns` after the one before."""
        if not step_ns and count > 1:
            return self._make_at_once(first, count, due_ns)
        claim, crc_of, crc, producer = _CLAIM.pack, crc32, _CRC.pack, self._producer
        filler, start = self._filler, self._filler_crc
        made = []
        for i in range(count):
            head = claim(producer, first + i, due_ns + int(i * step_ns))
            made.append(crc(crc_of(head, start)) + head + filler)
        return made

    def _make_at_once(self, first: int, count: int, due_ns: int) -> list[bytes]:
        """As `make`, all due at one time: heads differ in the sequence only, so one CRC gives all others."""
        low = first % _LOW
        if low + count > _LOW:
            here = _LOW - low
            return self._make_at_once(first, here, due_ns) + self._make_at_once(first + here, count - here, due_ns)
        producer, filler, pack = self._producer, self._filler, _HEAD.pack
        base = crc32(_CLAIM.pack(producer, first - low, due_ns), self._filler_crc)
        sums = map(base.__xor__, _changes()[low : low + count])
        return [pack(crc, producer, i, due_ns) + filler for i, crc in enumerate(sums, first)]


@cache
def _changes() -> list[int]:
    """By the lowest 16 bits of a sequence: the value to XOR to the CRC of a head in which they are 0. A CRC is linear,
    so the value does not depend on the other bytes."""
    none = crc32(_CLAIM.pack(0, 0, 0))
    one = [crc32(_CLAIM.pack(0, i, 0)) ^ none for i in range(256)]
    high = [crc32(_CLAIM.pack(0, i << 8, 0)) ^ none for i in range(256)]
    return [h ^ o for h in high for o in one]


def read(payload: bytes | memoryview) -> Claim | None:
    """Decode a record; None if its CRC does not match."""
    if len(payload) < PAYLOAD_BYTES_MIN:
        return None
    crc, producer, sequence, due_ns = _HEAD.unpack_from(payload)
    if crc32(payload[4:PAYLOAD_BYTES_MIN], crc32(payload[PAYLOAD_BYTES_MIN:])) != crc:
        return None
    return Claim(producer, sequence, due_ns)


class Span(NamedTuple):
    """Consecutive records of one delivery; or, with many = 0, one whose CRC does not match."""

    at: int  # index of the first one in the delivery
    producer: int
    first: int
    many: int


def spans(payloads: Sequence[bytes]) -> list[Span]:
    """Verify every record of a delivery and join consecutive ones: the reader's hot loop."""
    found: list[Span] = []
    unpack, crc_of, least = _HEAD.unpack_from, crc32, PAYLOAD_BYTES_MIN
    producer, first, begin, expected = -1, 0, 0, -1
    for i, payload in enumerate(payloads):
        if len(payload) >= least:
            crc, whose, sequence, _ = unpack(payload)
            if crc_of(payload[4:least], crc_of(payload[least:])) == crc:
                if sequence == expected and whose == producer:
                    expected += 1
                    continue
                if expected >= 0:
                    found.append(Span(begin, producer, first, expected - first))
                producer, first, begin, expected = whose, sequence, i, sequence + 1
                continue
        if expected >= 0:
            found.append(Span(begin, producer, first, expected - first))
            expected = -1
        found.append(Span(i, 0, 0, 0))
    if expected >= 0:
        found.append(Span(begin, producer, first, expected - first))
    return found


def due_ns(payload: bytes) -> int:
    """The due time of a verified record."""
    due: int = _HEAD.unpack_from(payload)[3]
    return due
