"""Models of what nodes stand on: a segment store that keeps the contract of dlog/stores/contract.py, and an object
storage.

Both carry out requests late, twice or never, and lose answers. What an unclear write of an object means is found out by
asking again, as dlog/stores/object_storage/creating.py does.

Invariants:
- Appends to a segment are confirmed in order, once they are durable. After an append failed its writer is dead, and
  what it sent may still arrive, until a recovery fences the segment.
- A recovery decides the end of a segment once and for all: all that was confirmed, and a random part of the rest.
- An object is created only where there is none; a request that is late may create it after it was deleted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dlog.errors import ConnectionLostError, DLogError, UnavailableError
from dlog.model.object_streams import NodeId, ObjectId, ObjectStreamId, WalSegment
from dlog.objects.node_messages import (
    AppendWalEntry,
    CreateWalSegment,
    DeleteWalSegment,
    ObjectKeyTakenError,
    ObjectWritten,
    ReadWalEntries,
    RecoverWalSegment,
    SealWalSegment,
    WalLocation,
    WriteObject,
)
from dlog.stores.contract import SegmentFencedError, SegmentNotFoundError, StoreUnavailableError
from dlog.wire.stream_object import (
    ObjectEncoder,
    ObjectEntry,
    decode_block,
    decode_footer,
    decode_index,
    index_in,
)

Later = Callable[[float, Callable[[], None]], None]
Done = Callable[[Any], None]


@dataclass(slots=True)
class StoredWal:
    """A segment. confirmed: number of entries; end: of entries, once decided. owner: the process that writes it."""

    name: str
    number: int
    owner: str
    entries: list[bytes] = field(default_factory=list)
    confirmed: int = 0
    end: int | None = None
    is_failed: bool = False  # its writer


class WalStore:
    """The store of all write-ahead logs."""

    def __init__(self, rng: random.Random, later: Later, reached: Counter[str], fails: Callable[[], bool]) -> None:
        self.segments: dict[str, StoredWal] = {}
        self.on_delete: Callable[[StoredWal], None] = lambda _: None
        self.on_recover: Callable[[StoredWal], None] = lambda _: None
        self._rng = rng
        self._later = later
        self._reached = reached
        self._fails = fails
        self._created = 0

    def ask(self, owner: str, request: Any, done: Done) -> None:
        """Carry out a request of a process; `done` gets the result or an error, or is never called."""
        match request:
            case AppendWalEntry():
                self._append(owner, request, done)
            case SealWalSegment(segment):
                self._later(self._delay_s(), lambda: self._seal(self.segments.get(segment.name), done))
            case _:
                self._later(self._delay_s(), lambda: self._carry_out(owner, request, done))

    def _delay_s(self) -> float:
        return self._rng.uniform(0.001, 0.02)

    def _carry_out(self, owner: str, request: Any, done: Done) -> None:
        if self._fails() and self._rng.random() < 0.5:
            done(StoreUnavailableError("not carried out"))
            return
        result: Any
        match request:
            case CreateWalSegment(number):
                self._created += 1
                name = f"w{self._created}"
                self.segments[name] = StoredWal(name, number, owner)
                result = WalLocation("model", name)
            case RecoverWalSegment(segment):
                result = self._recover(segment)
            case ReadWalEntries(segment, first, end):
                stored = self.segments.get(segment.name)
                last = first + self._rng.randint(1, end - first)
                result = (
                    SegmentNotFoundError("no such segment") if stored is None else tuple(stored.entries[first:last])
                )
            case DeleteWalSegment(segment):
                stored = self.segments.get(segment.name)
                if stored is not None:
                    self.on_delete(stored)
                    del self.segments[segment.name]
                    self._reached["wal_deleted"] += 1
                result = None
            case _:
                raise AssertionError(request)
        if self._fails():
            done(StoreUnavailableError("the answer is lost"))
        else:
            self._later(self._delay_s(), lambda: done(result))

    def _recover(self, segment: WalSegment) -> int | DLogError:
        stored = self.segments.get(segment.name)
        if stored is None:
            return SegmentNotFoundError("no such segment")
        if stored.end is None:
            stored.end = self._rng.randint(stored.confirmed, len(stored.entries))
            self._reached["recovered_unconfirmed"] += stored.end > stored.confirmed
            self._reached["fenced_writer"] += not stored.is_failed
            del stored.entries[stored.end :]
            stored.confirmed = stored.end
            self.on_recover(stored)
        return stored.end

    def _seal(self, stored: StoredWal | None, done: Done) -> None:
        if stored is not None and stored.end is None and stored.confirmed == len(stored.entries):
            stored.end = stored.confirmed
            self._reached["wal_rolled"] += 1
        done(None)

    def _append(self, owner: str, request: AppendWalEntry, done: Done) -> None:
        payload = b"".join(bytes(part) for part in request.parts)
        stored = self.segments.get(request.segment.name)
        if stored is None or stored.is_failed or stored.owner != owner:
            self._later(0.0, lambda: done(StoreUnavailableError("the writer has ended", outcome_unknown=True)))
            return
        fails = self._fails() and self._rng.random() < 0.2
        if fails:
            stored.is_failed = True
            self._reached["wal_failed"] += 1

        def land() -> None:
            if stored.end is not None:
                done(SegmentFencedError("fenced"))
                return
            if len(stored.entries) != request.entry:
                if not (stored.is_failed or len(stored.entries) < request.entry):
                    raise AssertionError("an entry was appended twice")
                if len(stored.entries) < request.entry and not stored.is_failed:
                    self._later(0.002, land)  # an entry before it is on its way
                return
            stored.entries.append(payload)
            if not fails:
                self._later(self._delay_s(), confirm)

        def confirm() -> None:
            if stored.end is not None:
                if request.entry >= stored.end or self._rng.random() < 0.5:
                    done(SegmentFencedError("fenced"))
                else:
                    done(None)
            elif stored.confirmed < request.entry and not stored.is_failed:
                self._later(0.002, confirm)
            elif not stored.is_failed:
                stored.confirmed = max(stored.confirmed, request.entry + 1)
                self._later(self._delay_s(), lambda: done(None))

        if fails:
            self._later(self._delay_s(), lambda: done(StoreUnavailableError("append failed", outcome_unknown=True)))
            if self._rng.random() < 0.5:
                return  # it never arrives
        self._later(self._delay_s(), land)


def encode_object(node: NodeId, request: WriteObject) -> bytes:
    """The bytes of an object, as the owner of a node's machine encodes them."""
    encoder = ObjectEncoder(request.object, node, request.node_epoch, block_bytes=100)
    parts = [
        part
        for data in request.slices
        for offset, entry in enumerate(data.entries, data.slice.start)
        for part in encoder.add(data.slice.stream, offset, ObjectEntry(entry.payload, entry.span))
    ]
    return b"".join(bytes(part) for part in [*parts, *encoder.finish()])


class ObjectStorage:
    """The object storage. objects: what is there. deleted: ids of objects that were deleted."""

    def __init__(self, rng: random.Random, later: Later, reached: Counter[str], fails: Callable[[], bool]) -> None:
        self.objects: dict[ObjectId, bytes] = {}
        self.deleted: set[ObjectId] = set()
        self.late: set[ObjectId] = set()  # created after they were deleted
        self.late_s = 1.0
        self.now_ms: Callable[[], int] = lambda: 0
        self._rng = rng
        self._later = later
        self._reached = reached
        self._fails = fails

    def entries(self, object: ObjectId) -> dict[tuple[ObjectStreamId, int], bytes] | None:
        """The payloads in an object, by stream and offset; None: there is no object. Raises DamagedError."""
        data = self.objects.get(object)
        if data is None:
            return None
        footer = decode_footer(data, len(data))
        index = index_in(footer, data)
        assert index is not None and footer.object == object
        found: dict[tuple[ObjectStreamId, int], bytes] = {}
        for row in decode_index(footer, index).blocks:
            block = decode_block(row, data[row.position : row.position + row.bytes])
            found |= {(row.stream, row.start + n): bytes(entry.payload) for n, entry in enumerate(block)}
        return found

    def ask(self, node: NodeId, request: WriteObject, done: Done) -> None:
        data = encode_object(node, request)
        delay_s = self._rng.uniform(0.005, 0.1)
        fault = self._rng.choice(("refused", "lost", "late", "answer", "twice", "foreign")) if self._fails() else ""
        if fault:
            self._reached[f"put_{fault}"] += 1
        match fault:
            case "refused":
                self._later(delay_s, lambda: done(UnavailableError("503 SlowDown")))
            case "lost":
                self._later(delay_s, lambda: done(ConnectionLostError("lost")))
            case "late":
                self._later(delay_s + self._rng.uniform(0, self.late_s), lambda: self._land(request, data))
                self._later(delay_s, lambda: done(ConnectionLostError("lost")))
            case "answer":
                self._later(delay_s, lambda: self._land(request, data))
                self._later(2 * delay_s, lambda: done(ConnectionLostError("lost")))
            case _:
                if fault == "foreign" and request.object not in self.objects:
                    self.objects[request.object] = b"foreign"
                if fault == "twice":
                    self._later(delay_s + self._rng.uniform(0, self.late_s), lambda: self._land(request, data))
                self._later(delay_s, lambda: done(self._put(request, data)))

    def delete(self, object: ObjectId) -> None:
        self.objects.pop(object, None)
        self.deleted.add(object)

    def _land(self, request: WriteObject, data: bytes) -> None:
        self._put(request, data)

    def _put(self, request: WriteObject, data: bytes) -> ObjectWritten | ObjectKeyTakenError:
        there = self.objects.setdefault(request.object, data)
        if request.object in self.deleted:
            self._reached["put_after_deletion"] += request.object not in self.late
            self.late.add(request.object)
        if there != data:
            return ObjectKeyTakenError(f"another object is there: object={request.object}")
        return ObjectWritten(len(data), self.now_ms())
