"""Messages between a ledger client and a bookie, and their BookKeeper v2 bytes.

Source: BookKeeper v2 binary protocol as restated in docs/protocol.md. All integers big-endian.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dlog.model.ids import EntryId, LedgerId

Buffer = bytes | bytearray | memoryview


class Code(enum.IntEnum):
    """Return codes of v2."""

    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO_ERROR = 101
    UNAUTHORIZED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106
    UNKNOWN_LEDGER_STATE = 107  # never sent to a v2 client, which dies of it: IO_ERROR instead


@dataclass(frozen=True, slots=True)
class AddEntry:
    """Store an entry packet (head, digest, payload). `parts` joined are the packet; a decoder gives one part."""

    ledger: LedgerId
    entry: EntryId
    master_key: bytes
    parts: tuple[Buffer, ...]
    recovery: bool = False  # passes the fence: sent by recovery and re-replication only
    high_priority: bool = False


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """Read one entry; entry -1 asks for the last the bookie has. `fence` sets the fence first and needs the key."""

    ledger: LedgerId
    entry: EntryId
    fence: bool = False
    master_key: bytes = b""
    high_priority: bool = False


@dataclass(frozen=True, slots=True)
class BatchRead:
    """Read consecutive entries from `start`; max_count <= 0 means no limit of count."""

    ledger: LedgerId
    start: EntryId
    request: int
    max_count: int
    max_bytes: int
    fence: bool = False
    master_key: bytes = b""


@dataclass(frozen=True, slots=True)
class Auth:
    """An AuthMessage protobuf, opaque here."""

    message: bytes


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A request we recognise but do not serve: a v3 frame, answered in v3 form with `answer` (already encoded)."""

    answer: bytes


Request = AddEntry | ReadEntry | BatchRead | Auth | Unsupported


@dataclass(frozen=True, slots=True)
class EntryAdded:
    """Answer to AddEntry: stored and durable (OK), or why not."""

    ledger: LedgerId
    entry: EntryId
    code: Code


@dataclass(frozen=True, slots=True)
class EntryRead:
    """Answer to ReadEntry. `fence` is set by the connection from the question it answers, never by the peer.

    `entry` echoes the question (-1 stays -1; the real id is inside the packet).
    """

    ledger: LedgerId
    entry: EntryId
    code: Code
    packet: Buffer = b""
    fence: bool = False


@dataclass(frozen=True, slots=True)
class BatchDone:
    """Answer to BatchRead: packets of consecutive entries."""

    ledger: LedgerId
    start: EntryId
    request: int
    code: Code
    packets: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class AuthDone:
    """Answer to Auth: an AuthMessage protobuf."""

    message: bytes


Response = EntryAdded | EntryRead | BatchDone | AuthDone
