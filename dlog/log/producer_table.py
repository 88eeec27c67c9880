"""The producer table: recognises repeated batches (deduplication).

Invariants:
- A batch counts as new only if it is certain that it was never written. If that is no longer known, the producer gets
  ProducerUnknownError and nothing is written.
- The table is stored in the log (dlog/log/dedup_trailer.py), so a new owner knows what the old one knew.
- Only a batch that goes into an entry takes room in the table: a refused batch evicts no producer.
- Only the newest generation of a producer writes. Once its first batch is accepted, batches of older generations that
  are not in the log never will be.

Each producer numbers its records; a batch carries the sequence of its first one. Per producer the table keeps `next`
(the expected sequence), `floor` (nothing is known below it) and the DLSNs of as many batches as it may have unanswered,
the window (dlog/model/window.py). The table is
bounded: the least recently used producer without a pending batch is forgotten first, and `horizon` (segment and entry)
rises to its last batch. So every producer that wrote above the horizon is in the table. Each batch carries `since`: the
producer has written nothing below that segment and entry. A producer that is not in the table is new if `since` is
above the horizon, otherwise it is refused: a delayed copy of a first batch that was written and forgotten meanwhile has
a `since` below the horizon. See docs/decisions/0011.

A producer id is the producer's name (12 bytes) and its generation (4 bytes, big-endian). A producer that abandons
batches which may be in flight goes on under the next generation and continues its numbers: the first batch carries in
`replaces` the sequence from which on, as far as it knows, the log holds nothing of older generations. It is accepted
only if that is so, and ends the older generations. See docs/decisions/0026.
"""

from __future__ import annotations

from dlog.errors import DLogError, InvalidRequestError, ProducerUnknownError, SequenceGapError
from dlog.log.dedup_trailer import BatchPosition, ProducerSnapshot, ProducerTableSnapshot, TrailerBatch
from dlog.log.messages import BatchWritten, WriteBatch
from dlog.machine import Ticket
from dlog.model.dlsn import DLSN_INVALID, of
from dlog.model.ids import NO_TXID, Txid

EntryPosition = tuple[int, int]  # segment and entry
NOTHING_FORGOTTEN: EntryPosition = (0, -1)  # below every entry
NAME_BYTES = 12  # of a producer id; the rest is the generation


class Batch:
    """An accepted, unconfirmed batch. segment, entry, slot: its DLSN once it is packed into an entry, before that -1.

    txid_before: the last txid assigned before its own.
    """

    __slots__ = ("entry", "producer", "request", "segment", "slot", "tickets", "txid", "txid_before")

    def __init__(self, ticket: Ticket, request: WriteBatch, producer: Producer, txid: int, txid_before: int) -> None:
        self.tickets = [ticket]  # of the first attempt, then of repeats received meanwhile
        self.request = request
        self.producer = producer
        self.txid = txid
        self.txid_before = txid_before
        self.segment = -1
        self.entry = -1
        self.slot = -1


class Producer:
    """State of one generation of a producer. logged: `next` after the last batch packed into an entry. last: segment
    and entry of its newest confirmed batch, or later. older: the generation it replaces, until its first batch is
    confirmed."""

    __slots__ = ("floor", "id", "last", "logged", "name", "next", "older", "pending", "positions")

    def __init__(self, id: bytes, floor: int, older: Producer | None = None) -> None:
        self.id = id
        self.name = id[:NAME_BYTES]
        self.floor = floor
        self.next = floor
        self.logged = floor
        self.last = NOTHING_FORGOTTEN
        self.positions: list[BatchPosition] = []  # DLSNs of the last confirmed batches, oldest first
        self.pending: list[Batch] = []
        self.older = older


class ProducerTable:
    """Producers of one stream, least recently used first. horizon: (segment, entry); all that wrote above are here.
    window: batches that a producer may have unanswered now; the least one until `set_window`."""

    __slots__ = ("_new", "_producers", "_producers_max", "_window_max", "_window_min", "horizon", "window")

    def __init__(self, producers_max: int, window: int, horizon: EntryPosition = NOTHING_FORGOTTEN) -> None:
        self.horizon = horizon
        self.window = self._window_max = self._window_min = window
        self._producers: dict[bytes, Producer] = {}  # by name; those with a batch in an entry
        self._new: dict[bytes, Producer] = {}  # by name; those with admitted batches only, none in an entry yet
        self._producers_max = producers_max

    def __len__(self) -> int:
        return len(self._producers.keys() | self._new.keys())

    def has_certainly_not_written(self, id: bytes, since: EntryPosition | None) -> bool:
        """Whether nothing of this producer is in the log or pending: had it written at or above `since` (None:
        unknown), it would be in the table."""
        if self._find(id) is not None:
            return False
        return self.horizon == NOTHING_FORGOTTEN or (since is not None and since > self.horizon)

    def _find(self, id: bytes) -> Producer | None:
        """The newest generation of the producer that this id names."""
        name = id[:NAME_BYTES]
        return self._new.get(name) or self._producers.get(name)

    def set_window(self, window: int) -> None:
        """Producers may have so many batches unanswered from now on. Those that were allowed more before may still have
        them, and the owner that allowed them may be a former one, so neither this table nor one that is restored from
        its snapshots remembers fewer again."""
        self.window = window
        self._window_max = max(self._window_max, window)

    # ---- admission --------------------------------------------------------------------------------------------------

    def judge(self, request: WriteBatch) -> Producer | Batch | BatchWritten | DLogError:
        """Judge a batch; changes nothing. Returns its Producer if it is new and next in order (see `accept`), the Batch
        if it is pending, BatchWritten if it is in the log, or an error to refuse it with."""
        producer = self._find(request.producer)
        sequence = request.sequence
        if producer is None:
            return self._judge_stranger(request)
        if producer.id != request.producer:
            return self._judge_generation(producer, request)
        if sequence == producer.next:
            return producer
        if sequence > producer.next:
            return SequenceGapError(
                f"an earlier batch is missing, send that first: sequence={sequence} expected={producer.next}",
                expected=producer.next,
            )
        return self._repeated(producer, request)

    def _judge_stranger(self, request: WriteBatch) -> Producer | DLogError:
        """Judge a batch of a producer that is not in the table: new or forgotten."""
        if not self.has_certainly_not_written(request.producer, request.since):
            return ProducerUnknownError(
                f"this producer is no longer known, go on with a new producer id: sequence={request.sequence}",
                outcome_unknown=request.retry,
            )
        return self._begun(request, None)

    def _judge_generation(self, known: Producer, request: WriteBatch) -> Producer | DLogError:
        """Judge a batch of another generation: older ones are over, a newer one may begin."""
        if request.producer < known.id:
            return ProducerUnknownError(
                f"this producer goes on under a newer id, nothing more is written under this one: "
                f"sequence={request.sequence}",
                outcome_unknown=request.retry,
            )
        first = request.replaces or 0
        if first < known.next:
            return ProducerUnknownError(
                f"batches that this id replaces are in the log or in flight: replaces={first} next={known.next}",
                outcome_unknown=True,
            )
        return self._begun(request, known)

    def _begun(self, request: WriteBatch, older: Producer | None) -> Producer | DLogError:
        """The new producer, if this is the first batch of an id that has certainly not written."""
        sequence, first = request.sequence, request.replaces or 0
        if sequence == first:
            return Producer(request.producer, first, older)
        return SequenceGapError(
            f"this is not the producer's first batch, send that first: sequence={sequence} expected={first}",
            expected=first,
        )

    def accept(self, batch: Batch) -> None:
        """Add a batch that `judge` found new; it is pending until `confirm`."""
        producer = batch.producer
        producer.next += batch.request.count
        producer.pending.append(batch)
        if self._producers.get(producer.name) is producer:
            del self._producers[producer.name]
            self._producers[producer.name] = producer  # most recently used
        else:
            self._new[producer.name] = producer

    def withdraw(self, batch: Batch) -> None:
        """Remove a batch that is refused unwritten. Call in reverse order of accepting."""
        producer = batch.producer
        last = producer.pending.pop()
        assert last is batch, "no later batch of its producer is pending"
        producer.next = batch.request.sequence
        if not producer.pending and self._new.get(producer.name) is producer:
            del self._new[producer.name]  # nothing of it was written: it is as unknown as before
            if producer.older is not None and producer.older.logged == producer.older.floor:
                self._new[producer.name] = producer.older

    def _repeated(self, producer: Producer, request: WriteBatch) -> Batch | BatchWritten | DLogError:
        """The answer to a batch that is pending or in the log. It allows the least window: that of the table may not be
        in the log yet, which it is once an entry of the current segment is confirmed."""
        sequence, after = request.sequence, request.sequence + request.count
        if sequence < producer.floor:
            return ProducerUnknownError(
                f"whether this batch was written is no longer known: sequence={sequence} floor={producer.floor}"
            )
        if after > producer.next:
            return InvalidRequestError(
                f"a repeated batch has records that were not sent before: sequence={sequence} count={request.count} "
                f"expected={producer.next}"
            )
        for batch in producer.pending:
            if batch.request.sequence <= sequence < batch.request.sequence + batch.request.count:
                if batch.request.sequence == sequence and batch.request.count == request.count:
                    return batch
                return InvalidRequestError(f"a repeated batch has other bounds than before: sequence={sequence}")
        for position in producer.positions:
            if position.sequence <= sequence and after <= position.sequence + position.records:
                dlsn = of(position.segment, position.entry, position.slot + sequence - position.sequence)
                return BatchWritten(dlsn, request.count, Txid(position.txid), True, self._window_min)
        return BatchWritten(DLSN_INVALID, request.count, NO_TXID, True, self._window_min)

    # ---- into entries, and confirmed --------------------------------------------------------------------------------

    def cut(self, batch: Batch, segment: int, entry: int, slot: int) -> None:
        """The batch is packed into this entry; snapshots in later entries include it."""
        batch.segment, batch.entry, batch.slot = segment, entry, slot
        producer = batch.producer
        producer.logged = batch.request.sequence + batch.request.count
        if self._producers.get(producer.name) is not producer:
            self._remember(producer)
            if self._new.get(producer.name) is producer:
                del self._new[producer.name]

    def uncut(self, batch: Batch) -> None:
        """Its entry did not survive; it will be packed again. Call in reverse order of packing."""
        batch.segment = batch.entry = batch.slot = -1
        producer = batch.producer
        producer.logged = batch.request.sequence
        if producer.logged == producer.floor:  # nothing of it is in the log: the generation it replaces is back
            del self._producers[producer.name]
            self._new.setdefault(producer.name, producer)
            if producer.older is not None:
                self._producers[producer.name] = producer.older

    def confirm(self, batch: Batch) -> None:
        """The batch's entry is durable."""
        producer, request = batch.producer, batch.request
        first = producer.pending.pop(0)
        assert first is batch, "batches of one producer are confirmed in order"
        position = BatchPosition(request.sequence, request.count, batch.segment, batch.entry, batch.slot, batch.txid)
        self._keep_position(producer, position)
        producer.last = (batch.segment, batch.entry)
        producer.older = None

    # ---- written to the log and read back ---------------------------------------------------------------------------

    def snapshot(self) -> ProducerTableSnapshot:
        """The table as of the entries so far: with packed batches, without those that wait."""
        return ProducerTableSnapshot(
            self.horizon,
            tuple(
                ProducerSnapshot(p.id, p.floor, p.logged, self._positions_in_log(p)) for p in self._producers.values()
            ),
            self._window_max if self._window_max > self._window_min else 0,
        )

    def restore(self, snapshot: ProducerTableSnapshot, at: EntryPosition) -> None:
        """Replace the table by the snapshot found in the entry `at`."""
        self.horizon = snapshot.horizon
        self._window_max = max(self._window_max, snapshot.window)
        self._producers.clear()
        for noted in snapshot.producers:
            producer = Producer(noted.producer, noted.floor)
            producer.next = producer.logged = noted.next
            producer.positions = list(noted.positions)
            producer.last = noted.positions[-1][2:4] if noted.positions else at
            self._remember(producer)

    def forget_all(self, horizon: EntryPosition) -> None:
        """What is written up to `horizon` is not known: every producer that may have written there is unknown."""
        self._producers.clear()
        self.horizon = horizon

    def replay(self, noted: TrailerBatch, segment: int, entry: int, txid: int) -> None:
        """Add a batch found in the log."""
        producer = self._producers.get(noted.producer[:NAME_BYTES])
        if producer is None or producer.id != noted.producer or producer.next != noted.sequence:
            producer = Producer(noted.producer, noted.sequence)
        producer.next = producer.logged = noted.sequence + noted.records
        position = BatchPosition(noted.sequence, noted.records, segment, entry, noted.slot, txid)
        self._keep_position(producer, position)
        producer.last = (segment, entry)
        self._remember(producer)

    def _keep_position(self, producer: Producer, position: BatchPosition) -> None:
        positions = producer.positions
        positions.append(position)
        if len(positions) > self._window_max:
            del positions[: -self._window_max]

    def _positions_in_log(self, producer: Producer) -> tuple[BatchPosition, ...]:
        positions = list(producer.positions)
        for batch in producer.pending:
            if batch.entry >= 0:
                request = batch.request
                positions.append(
                    BatchPosition(request.sequence, request.count, batch.segment, batch.entry, batch.slot, batch.txid)
                )
        return tuple(positions[-max(self._window_max, len(producer.positions)) :])

    # ---- bounds -----------------------------------------------------------------------------------------------------

    def _remember(self, producer: Producer) -> None:
        """Make it the most recently used; over the limit, evict the least recently used without pending batches."""
        self._producers.pop(producer.name, None)
        self._producers[producer.name] = producer
        while len(self._producers) > self._producers_max:
            idle = (other for other in self._producers.values() if not other.pending and other is not producer)
            other = next(idle, None)
            if other is None:
                return
            self._forget(other)

    def _forget(self, producer: Producer) -> None:
        del self._producers[producer.name]
        self.horizon = max(self.horizon, producer.last)
