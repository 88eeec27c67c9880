"""A compact set of ledger ids, at about one bit an id.

The ids of a cluster come from one sequence, so those of a bookie are dense: they are kept as bitmaps of `BLOCK_IDS`
ids. An id alone in its block costs a whole bitmap.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

from fastcrc.crc32 import iscsi as crc32c

from dlog.errors import DamagedError

BLOCK_IDS = 4096
_BYTES = BLOCK_IDS // 8
_MAGIC = b"DLG1"
_HEAD = struct.Struct(">4sI")  # magic, CRC32C of the rest
_KEY = struct.Struct(">q")


class IdSet:
    """Non-negative ids below 2**63. Not thread-safe."""

    __slots__ = ("_blocks",)

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._blocks: dict[int, bytearray] = {}
        self.update(ids)

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, int)
        block = self._blocks.get(number // BLOCK_IDS)
        at = number % BLOCK_IDS
        return block is not None and bool(block[at >> 3] >> (at & 7) & 1)

    def __iter__(self) -> Iterator[int]:
        for key in sorted(self._blocks):
            for at, bits in enumerate(self._blocks[key]):
                for bit in range(8):
                    if bits >> bit & 1:
                        yield key * BLOCK_IDS + at * 8 + bit

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __len__(self) -> int:
        return sum(int.from_bytes(block).bit_count() for block in self._blocks.values())

    def update(self, ids: Iterable[int]) -> None:
        for number in ids:
            block = self._blocks.get(number // BLOCK_IDS)
            if block is None:
                block = self._blocks[number // BLOCK_IDS] = bytearray(_BYTES)
            at = number % BLOCK_IDS
            block[at >> 3] |= 1 << (at & 7)

    def discard(self, number: int) -> None:
        if number in self:
            block, at = self._blocks[number // BLOCK_IDS], number % BLOCK_IDS
            block[at >> 3] &= ~(1 << (at & 7))
            if not any(block):
                del self._blocks[number // BLOCK_IDS]

    def union(self, ids: Iterable[int]) -> IdSet:
        """Return a copy with these ids added."""
        made = IdSet()
        made._blocks = {key: bytearray(block) for key, block in self._blocks.items()}
        made.update(ids)
        return made

    def encode(self) -> bytes:
        body = zlib.compress(b"".join(_KEY.pack(key) + self._blocks[key] for key in sorted(self._blocks)), 1)
        return _HEAD.pack(_MAGIC, crc32c(body)) + body


def decode_id_set(data: bytes) -> IdSet:
    """Inverse of `IdSet.encode`. Raises DamagedError for any other bytes."""
    body = data[_HEAD.size :]
    if len(data) < _HEAD.size or _HEAD.unpack_from(data) != (_MAGIC, crc32c(body)):
        raise DamagedError("a stored set of ledger ids does not verify")
    blocks = zlib.decompress(body)
    made = IdSet()
    size = _KEY.size + _BYTES
    for at in range(0, len(blocks), size):
        made._blocks[_KEY.unpack_from(blocks, at)[0]] = bytearray(blocks[at + _KEY.size : at + size])
    return made
