"""Byte format of the journal: group commits, and how a restart tells a torn tail from damage.

A journal consists of files with consecutive ids. A file is a header block followed by *groups*. A group is written by
one write and one fdatasync: a group header and its records, padded to whole blocks. Group numbers and record sequences
continue from file to file. All checks are CRC32C.

Invariants:
- The check of every group and record header is seeded by its file's header, which holds the file id and a fresh nonce.
  So neither leftovers of a file's earlier use nor client data that imitate a group are accepted.
- A group is written only after the previous one is durable. So a group that does not verify is a torn tail, and was
  never acknowledged, exactly if no valid group with a higher number follows anywhere; otherwise it is damage. An idle
  writer soon appends an empty group, so that this also decides about the last one.
- A file is created only when the previous one is durable under its name, so a missing id among them is damage.

    file header   "DLJ1" | owner u32 | file id u64 | nonce u64 | size u64 | crc u32           padded to 4096
    group header  "GRUP" | body length u32 | group u64 | first sequence u64 | count u32 | crc u32
    record        length u32 | kind u8 | 0 0 0 | sequence u64 | payload crc u32 | head crc u32 | payload
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from dlog.errors import DamagedError
from dlog.wire.framing import Buffer

BLOCK = 4096
HEADER_BYTES = BLOCK

_FILE = struct.Struct(">4sIQQQ")
_GROUP = struct.Struct(">4sIQQI")
_HEAD = struct.Struct(">IBxxxQI")
_CRC = struct.Struct(">I")
_FILE_MAGIC, _GROUP_MAGIC = b"DLJ1", b"GRUP"
_GROUP_BYTES = _GROUP.size + 4
RECORD_OVERHEAD = _HEAD.size + 4
_ZEROS = bytes(BLOCK)
_LEDGER = struct.Struct(">qBB")
_SCAN_BYTES = 256 * BLOCK

PRead = Callable[[int, int], bytes]  # length, offset -> bytes, fewer at the end of the file


class Kind(enum.IntEnum):
    """Kind of a record."""

    ADD = 1  # payload: the entry packet as received
    LEDGER = 2  # payload: ledger i64 | flags u8 (1 fenced) | key length u8 | master key
    LAC = 3  # payload: the packet of an explicit LAC as received: ledger i64 | LAC i64 | digest


class Record(NamedTuple):
    """Content of one record. `crc` is the CRC32C of the payload."""

    kind: int
    payload: Buffer
    crc: int


class JournalMark(NamedTuple):
    """A position between two groups: everything before it is stored elsewhere, durably."""

    file: int
    offset: int
    group: int  # number of the last group before the mark
    sequence: int  # of the next record


FIRST_MARK = JournalMark(0, HEADER_BYTES, 0, 0)  # before the first file, which has id 1

JournalMarks = tuple[JournalMark, ...]  # one for each journal of a bookie, in the order of its directories
FIRST_MARKS: JournalMarks = (FIRST_MARK,)


def padded(marks: JournalMarks, journals: int) -> JournalMarks:
    """The marks of so many journals. Those beyond `marks` were added since, and are at their beginning."""
    return marks[:journals] + (FIRST_MARK,) * (journals - len(marks))


class Group(NamedTuple):
    """A complete, verified group, and the mark after it."""

    number: int
    records: list[Record]
    end: JournalMark


class JournalDamaged(DamagedError):
    """Durable groups no longer verify: this bookie may have lost acknowledged entries."""


class ForeignJournalError(DamagedError):
    """A journal file is another bookie's, or of another journal of this bookie. Nothing is lost."""


def journal_owner(bookie: str, journal: int) -> int:
    """The number in the headers of a bookie's journal files. journal: its position among the bookie's journals."""
    return crc32c(f"{bookie}\0{journal}".encode() if journal else bookie.encode())


def ledger_record(ledger: int, master_key: bytes, fenced: bool) -> Record:
    """Return the record that creates a ledger with its key, or fences it."""
    payload = _LEDGER.pack(ledger, fenced, len(master_key)) + master_key
    return Record(Kind.LEDGER, payload, crc32c(payload))


def lac_record(packet: bytes) -> Record:
    """Return the record of an explicit LAC."""
    return Record(Kind.LAC, packet, crc32c(packet))


def parse_ledger_record(payload: Buffer) -> tuple[int, bytes, bool]:
    """Return ledger, master key, fenced."""
    ledger, flags, size = _LEDGER.unpack_from(payload)
    return ledger, bytes(payload[_LEDGER.size : _LEDGER.size + size]), bool(flags & 1)


# ---- writing ---------------------------------------------------------------------------------------------------------


def file_header(file_id: int, owner: int, nonce: int, size: int) -> bytes:
    """Return the first block of a file. owner: a number of the bookie; nonce: 64 unpredictable bits, fresh each time.

    size: of the file as created, in bytes; a shorter file has lost its end.
    """
    head = _FILE.pack(_FILE_MAGIC, owner, file_id, nonce, size)
    return (head + _CRC.pack(crc32c(head))).ljust(HEADER_BYTES, b"\0")


def seed_of(header: bytes, file_id: int, owner: int, size: int) -> int:
    """Return the seed of every check in the file. size: of the file as found.

    Raises JournalDamaged if `header` (the first block or its start) is not that of file `file_id`, or the file has lost
    its end; ForeignJournalError if it has another owner.
    """
    if len(header) >= _FILE.size + 4:
        magic, stored_owner, stored_id, _, stored_size = _FILE.unpack_from(header)
        head = header[: _FILE.size]
        if magic == _FILE_MAGIC and crc32c(head) == _CRC.unpack_from(header, _FILE.size)[0]:
            if stored_owner != owner:
                raise ForeignJournalError(
                    "journal file is another bookie's, or of another journal of this bookie; mount the right disk: "
                    f"file={file_id:016x}"
                )
            if size < stored_size:
                raise JournalDamaged(f"journal file is cut off: file={file_id} size={size} of={stored_size}")
            if stored_id == file_id:
                return crc32c(head, crc32c(head))
    raise JournalDamaged(f"journal file's header does not verify: file={file_id}")


def encode_group(seed: int, number: int, first_sequence: int, records: Sequence[Record]) -> tuple[list[Buffer], int]:
    """Return the buffers of a group, in write order, and their total length, a multiple of BLOCK."""
    buffers: list[Buffer] = [b""]
    body = 0
    sequence = first_sequence
    pack, crc_pack = _HEAD.pack, _CRC.pack
    for kind, payload, crc in records:
        head = pack(len(payload), kind, sequence, crc)
        buffers.append(head + crc_pack(crc32c(head, seed)))
        buffers.append(payload)
        body += RECORD_OVERHEAD + len(payload)
        sequence += 1
    header = _GROUP.pack(_GROUP_MAGIC, body, number, first_sequence, len(records))
    buffers[0] = header + crc_pack(crc32c(header, seed))
    total = _GROUP_BYTES + body
    padding = -total % BLOCK
    if padding:
        buffers.append(_ZEROS[:padding])
    return buffers, total + padding


class GroupAllocator:
    """Decides the location of the next group. For one writer, one group at a time."""

    __slots__ = ("_file_bytes", "_seed", "mark")

    def __init__(self, mark: JournalMark, file_bytes: int, seed: int) -> None:
        self.mark = mark
        self._file_bytes = file_bytes
        self._seed = seed

    def must_roll(self, payload_bytes: int, count: int) -> bool:
        """Whether a group of that size goes into the next file. A group larger than a file extends its file."""
        size = _GROUP_BYTES + payload_bytes + count * RECORD_OVERHEAD
        return self.mark.offset > HEADER_BYTES and self.mark.offset + size + BLOCK > self._file_bytes

    def rolled(self, file_id: int, seed: int) -> None:
        """The next group is the first of file `file_id`."""
        assert file_id == self.mark.file + 1, "journal files have consecutive ids"
        self.mark = JournalMark(file_id, HEADER_BYTES, self.mark.group, self.mark.sequence)
        self._seed = seed

    def group(self, records: Sequence[Record]) -> tuple[list[Buffer], int]:
        """Return the buffers of the next group and its offset; the mark advances past it."""
        file, offset, number, sequence = self.mark
        buffers, size = encode_group(self._seed, number + 1, sequence, records)
        self.mark = JournalMark(file, offset + size, number + 1, sequence + len(records))
        return buffers, offset


# ---- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A file to replay; `pread` reads it, `seed` is from its header."""

    file_id: int
    seed: int
    size: int
    pread: PRead


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of the journal that was durable and no longer verifies."""

    file: int
    offset: int
    group: int


def replay(files: Sequence[JournalFile], mark: JournalMark, on_damage: Callable[[Damage], None]) -> Iterator[Group]:
    """Yield the groups after `mark`, in order. A torn tail is dropped silently: it was never acknowledged.

    on_damage is called with each damaged range and usually raises; if it returns, replay continues after the range.
    """
    expected = mark.group + 1
    at = mark.offset
    torn: Damage | None = None
    if mark != FIRST_MARK and (not files or files[0].file_id != mark.file):
        on_damage(Damage(mark.file, mark.offset, expected))
        at = HEADER_BYTES
    last_id = mark.file - 1
    for file in files:
        if file.file_id != last_id + 1 and last_id >= mark.file:
            on_damage(torn or Damage(last_id + 1, 0, expected))  # files are created in order: one is missing
            torn = None
        last_id = file.file_id
        while True:
            found = _header_at(file, at)
            group = _group_at(file, at, found) if found is not None and found.number == expected else None
            if group is not None:
                if torn is not None:
                    on_damage(torn)
                    torn = None
                yield group
                at, expected = group.end.offset, expected + 1
                continue
            later = _find_header(file, at if found is None or found.number > expected else at + BLOCK, expected)
            if later is None:
                if found is not None and torn is None:
                    torn = Damage(file.file_id, at, expected)
                break
            on_damage(torn or Damage(file.file_id, at, expected))
            torn = None
            at, expected = later
        at = HEADER_BYTES


class _Header(NamedTuple):
    number: int
    first_sequence: int
    records: int
    body: int


def _header_at(file: JournalFile, offset: int) -> _Header | None:
    data = file.pread(_GROUP_BYTES, offset)
    return _header_in(data, 0, file.seed)


def _header_in(data: bytes, at: int, seed: int) -> _Header | None:
    if len(data) - at < _GROUP_BYTES or data[at : at + 4] != _GROUP_MAGIC:
        return None
    _, body, number, first_sequence, count = _GROUP.unpack_from(data, at)
    (crc,) = _CRC.unpack_from(data, at + _GROUP.size)
    if crc != crc32c(data[at : at + _GROUP.size], seed):
        return None
    return _Header(number, first_sequence, count, body)


def _group_at(file: JournalFile, offset: int, header: _Header) -> Group | None:
    """Return the group, or None if one of its records does not verify."""
    body = file.pread(header.body, offset + _GROUP_BYTES)
    if len(body) != header.body:
        return None
    records: list[Record] = []
    at = 0
    for i in range(header.records):
        if at + RECORD_OVERHEAD > len(body):
            return None
        length, kind, sequence, crc = _HEAD.unpack_from(body, at)
        (head_crc,) = _CRC.unpack_from(body, at + _HEAD.size)
        payload = body[at + RECORD_OVERHEAD : at + RECORD_OVERHEAD + length]
        if (
            head_crc != crc32c(body[at : at + _HEAD.size], file.seed)
            or sequence != header.first_sequence + i
            or len(payload) != length
            or crc != crc32c(payload)
        ):
            return None
        records.append(Record(kind, payload, crc))
        at += RECORD_OVERHEAD + length
    end = offset + _GROUP_BYTES + header.body
    mark = JournalMark(file.file_id, end + -end % BLOCK, header.number, header.first_sequence + header.records)
    return Group(header.number, records, mark)


def _find_header(file: JournalFile, start: int, minimum: int) -> tuple[int, int] | None:
    """Return offset and number of the first valid group header from `start` on with a number of at least `minimum`."""
    at = start
    while at < file.size:
        data = file.pread(_SCAN_BYTES, at)
        for inner in range(0, len(data), BLOCK):
            header = _header_in(data, inner, file.seed)
            if header is not None and header.number >= minimum:
                return at + inner, header.number
        at += _SCAN_BYTES
    return None
