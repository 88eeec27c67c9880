"""State machine of one bookie: decides which reply is sent after which fdatasync.

Facts: requests of connections, `Persisted` of the journal, results of its storage requests. Effects: `Send`, `Persist`
(data: a tuple of journal records), `Emit`, and the storage requests (dlog/bookie/messages.py).

Invariants:
- An add is answered OK once its record is durable, and an entry is served only then: a power cut takes back nothing
  that was served. A request for an entry that is being persisted waits for it.
- From the moment a fence is received, adds are refused, except a recovery's; the request is answered once the fence is
  durable, whatever the reply. Tokens of a ledger become durable in order, so all its adds accepted before are readable
  by then.
- Nothing happens between the check of key and fence and the Persist of an add.
- "No such entry" is a certain answer; if it is uncertain the reply is an I/O error.
- The first payload acknowledged for an entry is final: an add with another payload is refused with UNAUTHORIZED, which
  ends Java's writers and recoveries at once.
- A collected ledger never accepts an add again, from any client and with any key: its fence outlives it, for a writer
  may still exist. Its id stays known (entry -1 is NO_ENTRY), so that it is not assigned again.
- A ledger is collected only while none of its records is being persisted.
- Of a sealed ledger (dlog/bookie/sealed_ledgers.py) no entry is taken. Once its entries are removed it stays known, and
  fenced.
- An explicit LAC is answered once it is durable, and read only then; a force of a ledger once all earlier records in
  its journal are.

Source: BookKeeper 4.17 bookie semantics; docs/protocol.md says where ours is stricter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from fastcrc.crc32 import iscsi as crc32c

from dlog.bookie.batch_reads import Batch, BatchReads
from dlog.bookie.cache import Stored, WriteCache
from dlog.bookie.events import (
    BookieReadOnly,
    BookieWritable,
    CheckpointFailed,
    EntryConflict,
    LedgerFencedHere,
)
from dlog.bookie.id_set import IdSet
from dlog.bookie.index import LedgerRow
from dlog.bookie.journal import Kind, Record, lac_record, ledger_record
from dlog.bookie.journal_queues import JournalQueues, LacWaiting, Waiting
from dlog.bookie.ledgers import NEVER, Ledger, restored
from dlog.bookie.listing import Listings
from dlog.bookie.messages import (
    CheckpointDue,
    CollectAsked,
    CollectDue,
    CopiesToFree,
    CopiesToSeal,
    CopiesToUnseal,
    Fetched,
    Flush,
    Flushed,
    IndexRewritten,
    InputEnded,
    LedgersMarkedDeleted,
    LedgersNew,
    LedgersToDelete,
    MarkLedgersDeleted,
    PersistRefused,
    SeenInMetadata,
    SpaceAsked,
    SpaceSeen,
    StoredListed,
    StoredSummarized,
)
from dlog.bookie.options import BookieOptions
from dlog.bookie.sealed_ledgers import SealedLedgers
from dlog.bookie.stored_reads import Outcome, Resume, StoredReads
from dlog.bookie.summaries import Summaries
from dlog.bookie.tail_reads import LacReading, PollTimer, TailRead, TailReads
from dlog.machine import Emit, Peer, PeerLost, Persist, Persisted, Received, Send, TimerFired
from dlog.wire.bookie import (
    AddEntry,
    Auth,
    AuthDone,
    BatchRead,
    BatchReadDone,
    Code,
    Collect,
    EntriesSummarized,
    EntryAdded,
    EntryRead,
    ReadEntry,
    SummarizeEntries,
    Unsupported,
)
from dlog.wire.bookie_auth import AUTH_DISABLED
from dlog.wire.bookie_v3_messages import (
    EntriesListed,
    ForceLedger,
    GetSpace,
    LacRead,
    LacWritten,
    LedgerForced,
    ListEntries,
    ReadLac,
    ReadWithLac,
    ReadWithLacDone,
    WriteLac,
)
from dlog.wire.digest import is_same_entry
from dlog.wire.framing import Buffer

PACKET_MIN = 24  # ledger, entry and LAC
_LAC = struct.Struct(">q")
_STAYS_BYTES = 4096  # a smaller packet is copied: cheaper than a view, and one receive brings many
_as_stored: Callable[[tuple[Buffer, int]], Stored] = partial(tuple.__new__, Stored)  # 3x as fast
_as_record: Callable[[tuple[int, Buffer, int]], Record] = partial(tuple.__new__, Record)
_LISTINGS_MAX = 16  # lists of entries at once, each of which may take megabytes
_RECORD_COST = 128  # memory of a waiting record beside its payload, in bytes


class Bookie:
    """The state machine. `rows`: ledgers found by a restart; `gone`: collected ledgers; `moved`: ledgers whose entries
    were once removed since they were moved away; `limbo`: data may have been lost, so the bookie never denies an entry;
    `journals`: how many it has.
    """

    def __init__(
        self,
        options: BookieOptions,
        rows: Iterable[LedgerRow] = (),
        *,
        limbo: bool = False,
        gone: Iterable[int] = (),
        moved: Iterable[int] = (),
        journals: int = 1,
    ) -> None:
        self._options = options
        self._limbo = limbo
        self._gone = IdSet(gone)
        self._new: set[int] = set()  # first seen since `take_new`, or restored and never seen in metadata
        self._burying: dict[int, Ledger] = {}  # counted as collected, until the disk confirms or fails
        self._ledgers = {row.ledger: restored(row) for row in rows}
        self._new.update(number for number, ledger in self._ledgers.items() if not ledger.seen)
        self._cache = WriteCache()
        self._stored = StoredReads(options, self._cache, limbo=limbo)
        self._sealed = SealedLedgers(
            self._ledgers, moved, may_seal=self._may_seal, put_back=self._put_back, forget=self._stored.forget
        )
        self._waiting = JournalQueues(journals)
        self._dirty: dict[int, Ledger] = {}
        self._flush: Flush | None = None  # in flight, or failed and to be retried
        self._flush_running = False
        self._free_bytes = 1 << 62
        self._no_room = False  # the journal or a flush ran out of space
        self.read_only = limbo
        self._shortage = 0  # worst level since the last recovery of space: 1 nearly full, 2 read-only
        self._handlers: dict[type[Any], Callable[[Any, list[Any]], None]] = {
            Persisted: self._persisted,
            Fetched: self._stored.fetched,
            CheckpointDue: self._checkpoint_due,
            Flushed: self._flushed,
            PersistRefused: self._persist_refused,
            SpaceSeen: self._space_seen,
            SeenInMetadata: self._seen_in_metadata,
            LedgersToDelete: self._bury_due,
            LedgersMarkedDeleted: self._buried,
            CopiesToSeal: self._sealed.seal,
            CopiesToUnseal: self._sealed.unseal,
            CopiesToFree: self._sealed.free,
            IndexRewritten: self._sealed.freed,
            TimerFired: self._timer_fired,
            PeerLost: self._peer_lost,
            InputEnded: self._input_ended,
            StoredListed: self._stored_listed,
            StoredSummarized: self._stored_summarized,
        }
        self._tail = TailReads(self._ledgers, self._find, options.long_polls_max)
        self._batches = BatchReads(self._find, self._fence)
        self._listings = Listings()
        self._summaries = Summaries(self._cache.get)
        self._requests: dict[type[Any], Callable[[Peer, Any, list[Any]], None]] = {
            AddEntry: self._add,
            ReadEntry: self._read,
            BatchRead: self._batches.read,
            Auth: self._auth,
            Collect: self._collect,
            Unsupported: self._unsupported,
            ReadWithLac: self._tail.read,
            ReadLac: self._tail.read_lac,
            WriteLac: self._write_lac,
            ForceLedger: self._force,
            GetSpace: self._space_asked,
            ListEntries: self._list,
            SummarizeEntries: self._summarize,
        }

    def handle(self, fact: Any) -> list[Any]:
        """Process one fact and return its effects."""
        out: list[Any] = []
        if fact.__class__ is Received:
            self._requests[fact.message.__class__](fact.peer, fact.message, out)
        else:
            handler = self._handlers.get(fact.__class__)
            if handler is not None:
                handler(fact, out)
        return out

    @property
    def waiting_bytes(self) -> int:
        """Memory of the records that wait for the journals."""
        return self._waiting.waiting_bytes

    @property
    def reads_waiting(self) -> int:
        """How many requests wait for the disk."""
        return self._stored.waiting

    @property
    def ledgers(self) -> int:
        """How many ledgers are known."""
        return len(self._ledgers)

    def known(self) -> dict[int, int]:
        """Each ledger with the mark chain under which metadata had it (dlog/bookie/garbage_collection.py), 0: never."""
        return {number: ledger.seen for number, ledger in self._ledgers.items()}

    def with_entries(self) -> list[int]:
        """The ledgers with entries, but none that may lack some."""
        return [] if self._limbo else [number for number, ledger in self._ledgers.items() if ledger.last >= 0]

    def take_new(self) -> set[int]:
        """Return the ledgers first seen since the last call."""
        taken, self._new = self._new, set()
        return taken

    @property
    def may_lack_data(self) -> bool:
        """Whether data may have been lost: such a bookie denies no entry and deletes nothing."""
        return self._limbo

    @property
    def is_short_of_room(self) -> bool:
        """Whether the disk is full, or nearly so."""
        return self._shortage > 0

    @property
    def is_dirty(self) -> bool:
        """Whether a checkpoint would move anything to the index."""
        return bool(self._dirty or self._flush is not None or self._cache.entries_active)

    @property
    def is_congested(self) -> bool:
        """Whether both halves of the write cache are full: adds that can wait should, until the flush is done."""
        cache, options = self._cache, self._options
        return (
            self._flush_running
            and not self.read_only
            and (cache.bytes_active >= options.write_cache_bytes or cache.entries_active >= options.write_cache_entries)
        )

    # ---- adds --------------------------------------------------------------------------------------------------------

    def _add(self, peer: Peer, m: AddEntry, out: list[Any], known_absent: bool = False) -> None:
        code = self._try_add(peer, m, out, known_absent)
        if code is not None:
            out.append(Send(peer, EntryAdded(m.ledger, m.entry, code)))

    def _try_add(self, peer: Peer, m: AddEntry, out: list[Any], known_absent: bool) -> Code | None:
        """Return the reply to send now, or None if the add is being persisted."""
        entry = m.entry
        if m.ledger < 0 or entry < 0:
            return Code.BAD_REQUEST
        if self.read_only and not self._admits_in_reserve(m):
            return Code.READ_ONLY
        ledger = self._ledgers.get(m.ledger)
        if ledger is not None:
            if not ledger.admits(m.master_key):
                return Code.UNAUTHORIZED
            if ledger.fenced and not m.recovery:
                return Code.FENCED
            if m.ledger in self._sealed:
                return Code.READ_ONLY if m.recovery else Code.FENCED
            token = ledger.adding.get(entry)
            if token is not None:
                stored = self._waiting.find(token).stored
                assert stored is not None, "only adds are in `adding`"
                code = self._compare(m, stored.packet, out)
                if code is Code.OK:
                    self._park(token, peer, m)
                    return None
                return code
            if entry <= ledger.last and not known_absent:
                held = self._stored.find(m.ledger, entry, self._resume_add, (peer, m), out, alone=True)
                return held if held is None or isinstance(held, Code) else self._compare(m, held, out)
        elif m.ledger in self._gone:
            return Code.NO_LEDGER if m.recovery else Code.FENCED
        packet = m.parts[0] if len(m.parts) == 1 else b"".join(m.parts)
        if not isinstance(packet, bytes) and not _can_stay(packet):
            packet = bytes(packet)
        if len(packet) < PACKET_MIN:
            return Code.BAD_REQUEST
        size = len(packet) + _RECORD_COST
        if self._is_over_capacity(size) or (ledger is None and len(self._ledgers) >= self._options.ledgers_max):
            return Code.TOO_MANY_REQUESTS
        if ledger is None:
            ledger = self._make(m, out)
        carries_key = not ledger.recorded
        crc = crc32c(packet)
        stored = _as_stored((packet, crc))
        record = _as_record((Kind.ADD, packet, crc))
        records: tuple[Record, ...] = (record,)
        if carries_key:
            ledger.recorded = True
            records = (ledger_record(ledger.ledger, ledger.master_key, ledger.fenced), record)
        token = self._waiting.append(Waiting(size, ledger, carries_key, peer, entry, stored))
        ledger.adding[entry] = token
        out.append(Persist(token, records))
        return None

    def _make(self, m: AddEntry | ReadEntry | BatchRead | WriteLac, out: list[Any]) -> Ledger:
        """Create a ledger that is new to this bookie, with the key of the request."""
        if not self._new:
            out.append(LedgersNew())
        ledger = self._ledgers[m.ledger] = Ledger(m.ledger, m.master_key)
        self._new.add(m.ledger)
        return ledger

    def _admits_in_reserve(self, m: AddEntry) -> bool:
        if self._limbo and not m.recovery:
            return False  # its fence may have been lost
        return (m.recovery or m.high_priority) and self._free_bytes >= self._options.disk_free_reserve_bytes

    def _is_over_capacity(self, size: int) -> bool:
        options, waiting = self._options, self._waiting.waiting_bytes
        if waiting and waiting + size > options.journal_waiting_bytes_max:
            return True
        cache = self._cache
        return self._flush is not None and (
            cache.bytes_active >= 2 * options.write_cache_bytes
            or cache.entries_active >= 2 * options.write_cache_entries
        )

    def _compare(self, m: AddEntry, held: Buffer, out: list[Any]) -> Code:
        """Return the reply to an add of an entry that is stored already."""
        offered = m.parts[0] if len(m.parts) == 1 else b"".join(m.parts)
        if is_same_entry(held, offered, recovery=m.recovery):
            return Code.OK
        out.append(Emit(EntryConflict(m.ledger, m.entry)))
        return Code.UNAUTHORIZED

    def _resume_add(self, waiter: tuple[Peer, AddEntry], outcome: Outcome, out: list[Any]) -> None:
        """Keep an entry found on disk; accept the new one if it is absent or unreadable."""
        peer, m = waiter
        if outcome is None:
            self._add(peer, m, out)
        elif isinstance(outcome, Code):
            self._add(peer, m, out, known_absent=self._stored.in_memory(m.ledger, m.entry) is None)
        else:
            out.append(Send(peer, EntryAdded(m.ledger, m.entry, self._compare(m, outcome, out))))

    # ---- journal results ---------------------------------------------------------------------------------------------

    def _persisted(self, fact: Persisted, out: list[Any]) -> None:
        waiting, upto, dirty, polled = self._waiting, fact.upto, self._dirty, self._tail.polled
        queue = waiting.queue_of(upto)
        while queue and queue[0].token <= upto:
            w = queue.popleft()
            waiting.waiting_bytes -= w.size
            ledger = w.ledger
            dirty[ledger.ledger] = ledger
            stored = w.stored
            if stored is not None:
                entry = w.entry
                ledger.settle(entry)
                self._cache.put(ledger.ledger, entry, stored)
                if entry > ledger.last:
                    ledger.last = entry
                (lac,) = _LAC.unpack_from(stored.packet, 16)
                if lac > ledger.lac:
                    ledger.lac = lac
                    if polled and ledger.ledger in polled:
                        self._tail.lac_moved(ledger, out)
                out.append(Send(w.peer, EntryAdded(ledger.ledger, entry, Code.OK)))
            elif w.token == ledger.fence_token:
                ledger.fence_durable, ledger.fence_token = True, NEVER
                self._tail.fenced(ledger.ledger, out)
            elif isinstance(w, LacWaiting):
                self._lac_persisted(w, out)
            if w.parked is not None:
                for peer, request in w.parked:
                    self._serve_parked(peer, request, out)
        self._flush_if_full(out)

    def _persist_refused(self, fact: PersistRefused, out: list[Any]) -> None:
        refused = self._waiting.take_all(fact.journal)
        self._no_room = True
        self._review_space(fact.reason, out)
        for w in refused:
            if w.carries_key:
                w.ledger.recorded = False
            if w.stored is not None:
                w.ledger.settle(w.entry)
                out.append(Send(w.peer, EntryAdded(w.ledger.ledger, w.entry, Code.READ_ONLY)))
            elif w.token == w.ledger.fence_token:
                w.ledger.fence_token = NEVER
            elif isinstance(w, LacWaiting):
                w.ledger.lac_token = NEVER
                out.append(Send(w.peer, LacWritten(w.ledger.ledger, Code.READ_ONLY)))
            for peer, request in w.parked or ():
                out.append(Send(peer, _refusal(request, Code.IO_ERROR)))

    def _park(self, token: int, peer: Peer, request: Any) -> None:
        """Serve a request once `token` is durable."""
        w = self._waiting.find(token)
        if w.parked is None:
            w.parked = []
        w.parked.append((peer, request))

    def _serve_parked(self, peer: Peer, request: Any, out: list[Any]) -> None:
        if isinstance(request, AddEntry):
            out.append(Send(peer, EntryAdded(request.ledger, request.entry, Code.OK)))
        elif isinstance(request, ReadEntry):
            self._serve_read(peer, request, out)
        elif isinstance(request, BatchRead):
            self._batches.start(peer, request, out)
        elif isinstance(request, TailRead):
            self._tail.serve(request, out)
        elif isinstance(request, LacReading):
            self._tail.serve_lac(request, out)
        elif isinstance(request, ForceLedger):
            out.append(Send(peer, LedgerForced(request.ledger, Code.OK, request.number)))
        else:
            self._batches.gather(request, out)

    # ---- fences ------------------------------------------------------------------------------------------------------

    def _fence(self, peer: Peer, m: ReadEntry | BatchRead, out: list[Any]) -> Code | None:
        """Return OK if the fence is durable; None if the request waits for it; else the error."""
        if len(m.master_key) == 0:
            return Code.UNAUTHORIZED
        ledger = self._ledgers.get(m.ledger)
        if ledger is None and m.ledger in self._gone:
            return Code.OK  # a collected ledger stays fenced
        if ledger is not None and not ledger.admits(m.master_key):
            return Code.UNAUTHORIZED
        if m.ledger in self._sealed:
            return Code.TOO_MANY_REQUESTS  # it is closed
        if ledger is None or (not ledger.fence_durable and ledger.fence_token == NEVER):
            size = len(m.master_key) + _RECORD_COST
            if self.waiting_bytes and self.waiting_bytes + size > 2 * self._options.journal_waiting_bytes_max:
                return Code.TOO_MANY_REQUESTS
            if ledger is None:
                if len(self._ledgers) >= self._options.ledgers_max:
                    return Code.TOO_MANY_REQUESTS
                ledger = self._make(m, out)
            ledger.fenced = True  # adds are refused from here on
            carries_key = not ledger.recorded
            ledger.recorded = True
            ledger.fence_token = token = self._waiting.append(Waiting(size, ledger, carries_key))
            out.append(Emit(LedgerFencedHere(m.ledger)))
            out.append(Persist(token, (ledger_record(ledger.ledger, ledger.master_key, True),)))
        if ledger.fence_durable:
            return Code.OK
        self._park(ledger.fence_token, peer, m)
        return None

    # ---- explicit LAC, force -----------------------------------------------------------------------------------------

    def _write_lac(self, peer: Peer, m: WriteLac, out: list[Any]) -> None:
        code = self._try_write_lac(peer, m, out)
        if code is not None:
            out.append(Send(peer, LacWritten(m.ledger, code)))

    def _try_write_lac(self, peer: Peer, m: WriteLac, out: list[Any]) -> Code | None:
        """Return the reply to send now, or None if the LAC is being persisted. A fence does not refuse it."""
        if m.ledger < 0 or m.lac < -1:
            return Code.BAD_REQUEST
        if self.read_only or m.ledger in self._sealed:
            return Code.READ_ONLY
        ledger = self._ledgers.get(m.ledger)
        if ledger is None and m.ledger in self._gone:
            return Code.NO_LEDGER
        if ledger is not None and not ledger.admits(m.master_key):
            return Code.UNAUTHORIZED
        size = len(m.packet) + _RECORD_COST
        if self._is_over_capacity(size) or (ledger is None and len(self._ledgers) >= self._options.ledgers_max):
            return Code.TOO_MANY_REQUESTS
        if ledger is None:
            ledger = self._make(m, out)
        carries_key = not ledger.recorded
        record = lac_record(m.packet)
        records: tuple[Record, ...] = (record,)
        if carries_key:
            ledger.recorded = True
            records = (ledger_record(ledger.ledger, ledger.master_key, ledger.fenced), record)
        waiting = LacWaiting(size, ledger, carries_key, peer, lac=m.lac, packet=m.packet)
        ledger.lac_token = token = self._waiting.append(waiting)
        out.append(Persist(token, records))
        return None

    def _lac_persisted(self, w: LacWaiting, out: list[Any]) -> None:
        ledger = w.ledger
        if ledger.lac_token == w.token:
            ledger.lac_token = NEVER
        ledger.explicit_lac = w.packet  # the newest, even if it is lower, as in BookKeeper
        if w.lac > ledger.lac:
            ledger.lac = w.lac
            if ledger.ledger in self._tail.polled:
                self._tail.lac_moved(ledger, out)
        out.append(Send(w.peer, LacWritten(ledger.ledger, Code.OK)))

    def _force(self, peer: Peer, m: ForceLedger, out: list[Any]) -> None:
        """Adds are answered when they are durable, so this waits only for those in flight. A ledger that is unknown
        here has no entries here: with striping a writer may force it."""
        last = self._waiting.last_of(m.ledger)
        if last is not None and m.ledger >= 0 and not self._limbo:
            self._park(last.token, peer, m)
            return
        code = Code.BAD_REQUEST if m.ledger < 0 else Code.IO_ERROR if self._limbo else Code.OK
        out.append(Send(peer, LedgerForced(m.ledger, code, m.number)))

    # ---- reads -------------------------------------------------------------------------------------------------------

    def _read(self, peer: Peer, m: ReadEntry, out: list[Any]) -> None:
        code: Code | None = Code.OK
        if m.ledger < 0 or m.entry < -1:
            code = Code.BAD_REQUEST
        elif m.fence:
            code = self._fence(peer, m, out)
        if code is Code.OK:
            self._serve_read(peer, m, out)
        elif code is not None:
            out.append(Send(peer, EntryRead(m.ledger, m.entry, code, b"", m.fence)))

    def _serve_read(self, peer: Peer, m: ReadEntry, out: list[Any], alone: bool = False) -> None:
        outcome = self._find(m.ledger, m.entry, peer, m, self._resume_read, (peer, m), out, alone)
        if outcome is not None:
            self._resume_read((peer, m), outcome, out)

    def _resume_read(self, waiter: tuple[Peer, ReadEntry], outcome: Outcome, out: list[Any]) -> None:
        peer, m = waiter
        if outcome is None:
            self._serve_read(peer, m, out, alone=True)
        elif isinstance(outcome, Code):
            out.append(Send(peer, EntryRead(m.ledger, m.entry, outcome, b"", m.fence)))
        else:
            out.append(Send(peer, EntryRead(m.ledger, m.entry, Code.OK, outcome, m.fence)))

    def _find(
        self,
        number: int,
        entry: int,
        peer: Peer,
        parked: Any,
        resume: Resume,
        waiter: Any,
        out: list[Any],
        alone: bool,
        wanted: int = 0,
    ) -> Outcome:
        """Return the packet or the error; None if it arrives later: then `parked` is served, or `resume` is called with
        `waiter`. wanted: bytes the request would take, following entries included.
        """
        ledger = self._ledgers.get(number)
        if ledger is None:
            if number in self._gone:
                return Code.NO_ENTRY if entry < 0 else Code.NO_LEDGER
            return Code.IO_ERROR if self._limbo else Code.NO_LEDGER
        if entry < 0:
            entry = ledger.last
        token = ledger.adding.get(entry)
        if token is not None:
            self._park(token, peer, parked)
            return None
        if entry < 0 or entry > ledger.last:
            if self._sealed.are_freed(number, ledger):
                return Code.TOO_MANY_REQUESTS  # neither yes nor no: by metadata others hold it
            return Code.IO_ERROR if self._limbo else Code.NO_ENTRY
        return self._stored.find(number, entry, resume, waiter, out, alone=alone, wanted=wanted)

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def _checkpoint_due(self, _: CheckpointDue, out: list[Any]) -> None:
        if self._flush_running:
            return
        if self._flush is None:
            rows = tuple([ledger.row() for ledger in self._dirty.values()])
            self._dirty = {}
            self._flush = Flush(self._stored.checkpoints + 1, self._cache.swap(), rows)
        self._flush_running = True
        out.append(self._flush)

    def _flush_if_full(self, out: list[Any]) -> None:
        options = self._options
        if (
            self._cache.bytes_active >= options.write_cache_bytes
            or self._cache.entries_active >= options.write_cache_entries
        ) and self._flush is None:
            self._checkpoint_due(CheckpointDue(), out)

    def _flushed(self, fact: Flushed, out: list[Any]) -> None:
        self._flush_running = False
        if fact.failure:
            self._no_room = True
            out.append(Emit(CheckpointFailed(fact.failure)))
        else:
            self._flush = None
            self._stored.checkpoints += 1
            self._cache.forget_flushed()
            self._no_room = False
            self._flush_if_full(out)
        self._review_space(fact.failure, out)

    # ---- collected ledgers -------------------------------------------------------------------------------------------

    def _seen_in_metadata(self, fact: SeenInMetadata, _: list[Any]) -> None:
        for number in fact.ledgers:
            ledger = self._ledgers.get(number)
            if ledger is not None and ledger.seen != fact.chain:
                ledger.seen = fact.chain
                if ledger.recorded:
                    self._dirty[number] = ledger  # stored by the next checkpoint

    def _bury_due(self, fact: LedgersToDelete, out: list[Any]) -> None:
        buried: list[int] = []
        for number in fact.ledgers:
            ledger = self._ledgers.get(number)
            if ledger is not None and not ledger.adding and ledger.fence_token == ledger.lac_token == NEVER:
                self._burying[number] = self._ledgers.pop(number)
                buried.append(number)
        self._gone.update(buried)
        out.append(MarkLedgersDeleted(tuple(buried)))

    def _buried(self, fact: LedgersMarkedDeleted, _: list[Any]) -> None:
        for number in fact.ledgers:
            ledger = self._burying.pop(number)
            if number in fact.failed:
                self._ledgers[number] = ledger
                self._gone.discard(number)
            else:
                self._dirty.pop(number, None)

    # ---- copies that were moved away ---------------------------------------------------------------------------------

    def is_sealed(self, ledger: int) -> bool:
        """Whether entries of the ledger are refused until its copies are freed."""
        return ledger in self._sealed

    def _is_in_index(self, number: int, ledger: Ledger) -> bool:
        """Whether all records of the ledger are in the index, none is on its way there, and none is being read."""
        flush = self._flush
        return (
            not ledger.adding
            and ledger.fence_token == ledger.lac_token == NEVER
            and number not in self._dirty
            and not self._cache.entries_of(number)
            and (flush is None or all(row.ledger != number for row in flush.rows))
            and not self._stored.is_reading(number)
        )

    def _may_seal(self, number: int, ledger: Ledger) -> bool:
        return not self._limbo and self._is_in_index(number, ledger)

    def _put_back(self, number: int, ledger: Ledger) -> None:
        self._ledgers[number] = self._dirty[number] = ledger

    # ---- space -------------------------------------------------------------------------------------------------------

    def _space_seen(self, fact: SpaceSeen, out: list[Any]) -> None:
        self._free_bytes = fact.free_bytes
        if self._no_room and self._flush is None and fact.free_bytes >= self._writable_from():
            self._no_room = False
        self._review_space(f"free_bytes={fact.free_bytes} disk_free_min_bytes={self._options.disk_free_min_bytes}", out)

    def _writable_from(self) -> int:
        """Free bytes at which a read-only bookie is writable again: 10 % above the limit, against flapping."""
        limit = self._options.disk_free_min_bytes
        return limit + limit // 10

    def _review_space(self, reason: str, out: list[Any]) -> None:
        if self._limbo:
            return
        floor = self._writable_from() if self.read_only else self._options.disk_free_min_bytes
        read_only = self._no_room or self._free_bytes < floor
        if read_only != self.read_only:
            self.read_only = read_only
            out.append(Emit(BookieReadOnly(reason) if read_only else BookieWritable()))
        limit = self._options.disk_free_min_bytes
        nearly = limit * 11 // 8 if self._shortage else limit * 5 // 4  # hysteresis, against flapping
        shortage = 2 if read_only else int(self._free_bytes < nearly)
        if shortage > self._shortage:
            out.append(CollectDue())
        self._shortage = max(shortage, self._shortage) if shortage else 0

    # ---- the rest ----------------------------------------------------------------------------------------------------

    def _auth(self, peer: Peer, _: Auth, out: list[Any]) -> None:
        out.append(Send(peer, AuthDone(AUTH_DISABLED)))

    def _collect(self, peer: Peer, m: Collect, out: list[Any]) -> None:
        out.append(CollectAsked(peer, m.number))

    def _list(self, peer: Peer, m: ListEntries, out: list[Any]) -> None:
        code: Code | None = None
        if m.ledger < 0:
            code = Code.BAD_REQUEST
        elif self._limbo:
            code = Code.IO_ERROR  # an entry that is not listed is denied
        elif m.ledger not in self._ledgers:
            code = Code.NO_LEDGER
        elif len(self._listings) >= _LISTINGS_MAX:
            code = Code.TOO_MANY_REQUESTS
        if code is not None:
            out.append(Send(peer, EntriesListed(m.ledger, code)))
        else:
            self._listings.begin(peer, m, self._cache.entries_of(m.ledger), out)

    def _stored_listed(self, fact: StoredListed, out: list[Any]) -> None:
        self._listings.done(fact, out)

    def _summarize(self, peer: Peer, m: SummarizeEntries, out: list[Any]) -> None:
        code = self._summaries.refusal(m)
        if code is None and self._limbo:
            code = Code.IO_ERROR  # an entry that is not counted is denied
        elif code is None and m.ledger not in self._ledgers:
            code = Code.NO_LEDGER
        if code is not None:
            out.append(Send(peer, EntriesSummarized(m.ledger, m.first, m.request, code)))
        else:
            self._summaries.begin(peer, m, out)

    def _stored_summarized(self, fact: StoredSummarized, out: list[Any]) -> None:
        self._summaries.done(fact, out)

    def _space_asked(self, peer: Peer, m: GetSpace, out: list[Any]) -> None:
        out.append(SpaceAsked(peer, m))

    def _timer_fired(self, fact: TimerFired, out: list[Any]) -> None:
        assert isinstance(fact.key, PollTimer), "there are no other timers here"
        self._tail.timed_out(fact.key, out)

    def _peer_lost(self, fact: PeerLost, out: list[Any]) -> None:
        self._tail.lost(fact.peer, out)

    def _input_ended(self, fact: InputEnded, out: list[Any]) -> None:
        self._tail.input_ended(fact.peer, out)

    def _unsupported(self, peer: Peer, m: Unsupported, out: list[Any]) -> None:
        out.append(Send(peer, m))


def _can_stay(packet: Buffer) -> bool:
    """Whether to keep a packet in its receive buffer: the buffer is at most twice the packet."""
    if len(packet) < _STAYS_BYTES or not isinstance(packet, memoryview):
        return False
    received = packet.obj
    return isinstance(received, bytes | bytearray) and packet.readonly and len(received) <= 2 * len(packet)


def _refusal(request: Any, code: Code) -> Any:
    if isinstance(request, Batch):
        request = request.request
    if isinstance(request, AddEntry):
        return EntryAdded(request.ledger, request.entry, code)
    if isinstance(request, BatchRead):
        return BatchReadDone(request.ledger, request.start, request.request, code)
    if isinstance(request, TailRead):
        return ReadWithLacDone(request.request.ledger, request.request.entry, code)
    if isinstance(request, LacReading):
        return LacRead(request.request.ledger, code)
    if isinstance(request, ForceLedger):
        return LedgerForced(request.ledger, code, request.number)
    return EntryRead(request.ledger, request.entry, code, b"", request.fence)
