"""A small model of a bookie for the ledger protocol, exact about what must be durable before which answer.

Adds and fences go to a journal and are answered once synced. An accepted entry is readable at once, as on Java's
bookie; the real machine (shipped_bookie.py) is stricter and serves only what is durable. A fence refuses plain adds
from the moment it is accepted. An add of an entry that is stored with another payload is refused. After a crash the
state is what the journal kept. An add with deferred sync is answered at once; a force once all before it is synced.
A long poll is answered at once, as if nobody knew what it is.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from dlog.bookie.messages import CopiesToFree, CopiesToSeal, CopiesToUnseal
from dlog.machine import Effect, Fact, PeerLost, Persist, Persisted, Received, Send
from dlog.model.ids import EntryId, LedgerId
from dlog.wire.bookie import AddEntry, BatchRead, BatchReadDone, Code, EntryAdded, EntryRead, ReadEntry
from dlog.wire.bookie_v3_messages import (
    ForceLedger,
    LacRead,
    LacWritten,
    LedgerForced,
    ReadLac,
    ReadWithLac,
    ReadWithLacDone,
    WriteLac,
)
from dlog.wire.digest import is_same_entry


class Ailments:
    """The present faults of a bookie; drawn by the world, they outlast its crashes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.io_error = 0.0  # probability that an answer is IO_ERROR
        self.damage = 0.0  # probability that a packet read has a bit flipped
        self.read_only = False
        self.hangs = False  # adds are neither stored nor answered

    def cure(self) -> None:
        self.io_error = self.damage = 0.0
        self.read_only = self.hangs = False

    def is_ill(self) -> bool:
        return self.io_error > 0 and self.rng.random() < self.io_error

    def perhaps_damaged(self, packet: bytes) -> bytes:
        if self.damage > 0 and self.rng.random() < self.damage:
            at = self.rng.randrange(len(packet))
            return packet[:at] + bytes([packet[at] ^ 0x40]) + packet[at + 1 :]
        return packet


class BookieModel:
    """One bookie. `records`: the content of its journal: ("add", ledger, entry, packet) and ("fence", ledger)."""

    def __init__(self, records: list[tuple[int, Any]], ailments: Ailments) -> None:
        self.entries: dict[tuple[int, int], bytes] = {}
        self.last: dict[int, int] = {}
        self.fenced: set[int] = set()
        self.ailments = ailments
        self.token = records[-1][0] if records else 0
        self.waiting: list[tuple[int, Any, Any]] = []  # token, peer, request
        self.lacs: dict[int, bytes] = {}  # explicit ones, by ledger
        self.sealed: set[int] = set()
        self.records = records
        self.on_freed: Callable[[bool], None] = lambda _: None
        self.on_rewritten: Callable[[], None] = lambda: None
        for _, record in records:
            if record[0] == "fence":
                self.fenced.add(record[1])
            elif record[0] == "add":
                self.store(*record[1:])
            elif record[0] == "lac":
                self.lacs[record[1]] = record[2]

    def handle(self, fact: Fact) -> list[Effect]:
        match fact:
            case Received(peer, AddEntry() as add):
                return self.add(peer, add)
            case Received(peer, ForceLedger() as force):
                return self.persist(peer, force, ("force", force.ledger))
            case Received(peer, WriteLac() as update):
                return self.persist(peer, update, ("lac", update.ledger, update.packet))
            case Received(peer, ReadLac(ledger)):
                return [Send(peer, self.read_lac(ledger))]
            case Received(peer, ReadEntry(fence=True) as read):
                return self.fence(peer, read)
            case Received(peer, ReadEntry() as read):
                return [Send(peer, self.read(read))]
            case Received(peer, ReadWithLac() as poll):
                told = self.read(ReadEntry(poll.ledger, poll.entry))
                lac = EntryId(self.last.get(poll.ledger, -1))  # above what is confirmed, and nobody may believe it
                return [Send(peer, ReadWithLacDone(poll.ledger, poll.entry, told.code, told.packet, lac))]
            case Received(peer, BatchRead() as read):
                return [Send(peer, self.read_batch(read))]
            case Persisted(upto):
                done = [w for w in self.waiting if w[0] <= upto]
                self.waiting = [w for w in self.waiting if w[0] > upto]
                return [Send(peer, self.after_durable(asked)) for _, peer, asked in done]
            case PeerLost():
                return []
            case CopiesToSeal(ledger):
                if not self.waiting:
                    self.sealed.add(ledger)
                return []
            case CopiesToUnseal(ledger):
                self.sealed.discard(ledger)
                return []
            case CopiesToFree(ledgers):
                self.free(min(ledgers))
                return []
        raise AssertionError(f"not a fact of a bookie: {fact!r}")

    def is_sealed(self, ledger: int) -> bool:
        return ledger in self.sealed

    def free(self, ledger: int) -> None:
        """Forget the entries of a sealed ledger, but not its fence."""
        is_idle = ledger in self.sealed and not self.waiting
        self.sealed.discard(ledger)
        if is_idle:
            self.entries = {key: packet for key, packet in self.entries.items() if key[0] != ledger}
            self.last.pop(ledger, None)
            self.fenced.add(ledger)
            self.records[:] = [(token, kept) for token, kept in self.records if kept[1] != ledger]
            self.records.append((self.token, ("fence", ledger)))
            self.on_rewritten()
        self.on_freed(is_idle)

    def add(self, peer: Any, add: AddEntry) -> list[Effect]:
        if self.ailments.hangs:
            return []
        if add.ledger in self.fenced and not add.recovery:
            return [Send(peer, EntryAdded(add.ledger, add.entry, Code.FENCED))]
        if add.ledger in self.sealed:
            return [Send(peer, EntryAdded(add.ledger, add.entry, Code.READ_ONLY))]
        if self.ailments.read_only and not add.high_priority:
            return [Send(peer, EntryAdded(add.ledger, add.entry, Code.READ_ONLY))]
        if self.ailments.is_ill():
            return [Send(peer, EntryAdded(add.ledger, add.entry, Code.IO_ERROR))]
        packet = b"".join(bytes(part) for part in add.parts)
        held = self.entries.get((add.ledger, add.entry))
        if held is not None and not is_same_entry(held, packet, recovery=add.recovery):
            return [Send(peer, EntryAdded(add.ledger, add.entry, Code.UNAUTHORIZED))]
        self.store(add.ledger, add.entry, packet)
        if add.deferred:
            return self.defer(peer, add, packet)
        return self.persist(peer, add, ("add", add.ledger, add.entry, packet))

    def defer(self, peer: Any, add: AddEntry, packet: bytes) -> list[Effect]:
        """Write, and answer without waiting for the sync."""
        self.token += 1
        written = Persist(self.token, ("add", add.ledger, add.entry, packet))
        return [written, Send(peer, EntryAdded(add.ledger, add.entry, Code.OK))]

    def store(self, ledger: int, entry: int, packet: bytes) -> None:
        """Store an entry; if it is stored already, the first payload stays."""
        self.entries.setdefault((ledger, entry), packet)
        self.last[ledger] = max(self.last.get(ledger, -1), entry)

    def fence(self, peer: Any, read: ReadEntry) -> list[Effect]:
        if read.ledger in self.sealed:
            return [Send(peer, EntryRead(read.ledger, read.entry, Code.TOO_MANY_REQUESTS, b"", fence=True))]
        self.fenced.add(read.ledger)
        return self.persist(peer, read, ("fence", read.ledger))

    def persist(self, peer: Any, asked: Any, record: Any) -> list[Effect]:
        self.token += 1
        self.waiting.append((self.token, peer, asked))
        return [Persist(self.token, record)]

    def after_durable(self, asked: Any) -> Any:
        if isinstance(asked, AddEntry):
            return EntryAdded(asked.ledger, asked.entry, Code.OK)
        if isinstance(asked, WriteLac):
            self.lacs[asked.ledger] = asked.packet
            return LacWritten(asked.ledger, Code.OK)
        if isinstance(asked, ForceLedger):
            code = Code.IO_ERROR if self.ailments.is_ill() else Code.OK
            return LedgerForced(asked.ledger, code, asked.number)
        return self.read(asked)

    def read_lac(self, ledger: LedgerId) -> LacRead:
        last, explicit = self.read(ReadEntry(ledger, EntryId(-1))), self.lacs.get(ledger, b"")
        if last.code is Code.OK or (explicit and last.code in (Code.NO_ENTRY, Code.NO_LEDGER)):
            return LacRead(ledger, Code.OK, self.ailments.perhaps_damaged(explicit) if explicit else b"", last.packet)
        return LacRead(ledger, last.code)

    def read(self, read: ReadEntry) -> EntryRead:
        entry = self.last.get(read.ledger, -1) if read.entry == -1 else read.entry
        packet = self.entries.get((read.ledger, entry))
        if self.ailments.is_ill():
            return EntryRead(read.ledger, read.entry, Code.IO_ERROR, b"", read.fence)
        if packet is None:
            known = read.ledger in self.last or read.ledger in self.fenced
            return EntryRead(read.ledger, read.entry, Code.NO_ENTRY if known else Code.NO_LEDGER, b"", read.fence)
        return EntryRead(read.ledger, read.entry, Code.OK, self.ailments.perhaps_damaged(packet), read.fence)

    def read_batch(self, read: BatchRead) -> BatchReadDone:
        packets: list[bytes] = []
        size = 36
        while read.max_count <= 0 or len(packets) < read.max_count:
            packet = self.entries.get((read.ledger, read.start + len(packets)))
            if packet is None or (packets and size + 4 + len(packet) > read.max_bytes):
                break
            size += 4 + len(packet)
            packets.append(self.ailments.perhaps_damaged(packet))
        code = Code.IO_ERROR if self.ailments.is_ill() else Code.OK if packets else Code.NO_ENTRY
        return BatchReadDone(read.ledger, read.start, read.request, code, tuple(packets) if code is Code.OK else ())
