"""The producer table: tells a repeated batch from a new one.

Invariants:
- A batch is new only if it is certain that it was never written. When that cannot be known any more the producer hears
  so (ProducerUnknownError) and nothing is written.
- The table lives in the log (dlog/log/note.py), so a new owner knows what the old one knew.
- Only a batch that goes into an entry takes a place in the table: one that is refused pushes nobody out.
- Of one producer only the newest generation writes. What an older one sent and the log does not hold when the first
  batch of a newer one is accepted, the log never will.

Each producer numbers its records; a batch names the sequence of its first. Per producer the table keeps `next` (what is
expected), `floor` (below it nothing is known) and the places of the last few batches. It is bounded: the least recently
used producer without a batch on its way is forgotten first, and `horizon` rises to the place of its last batch. So
whoever wrote anything above the horizon is in the table. A producer says with each batch since where in the log it may
have written; one that is not in the table is new if that is above the horizon, and refused otherwise, whatever it says
of its batch: a copy of a first batch that was held up somewhere, while another was written and forgotten, names a place
below the horizon. See docs/decisions/0011.

A producer id is the producer's name (12 bytes) and its generation (4 bytes, big-endian). A producer that gives up
batches which may be under way goes on under the next generation, and its numbers go on too: the first batch names in
`replaces` the sequence from which nothing of the older generations is in the log, as far as it knows. It is accepted
only if that is so; then the older ones are over. See docs/decisions/0026.
"""

from __future__ import annotations

from dlog.errors import DLogError, InvalidRequestError, ProducerUnknownError, SequenceGapError
from dlog.log.messages import BatchWritten, WriteBatch
from dlog.log.note import NotedBatch, NotedPlace, NotedProducer, Snapshot
from dlog.machine import Ticket
from dlog.model.dlsn import DLSN_INVALID, of
from dlog.model.ids import NO_TXID, Txid

Place = tuple[int, int]  # segment and entry
NOTHING_FORGOTTEN: Place = (0, -1)  # below every place
NAME_BYTES = 12  # of a producer id; the rest is the generation


class Batch:
    """An accepted batch on its way into the log. segment, entry, slot: its place, once cut into an entry (else -1).

    txid_before: the last one given out before its own.
    """

    __slots__ = ("entry", "producer", "request", "segment", "slot", "tickets", "txid", "txid_before")

    def __init__(self, ticket: Ticket, request: WriteBatch, producer: Producer, txid: int, txid_before: int) -> None:
        self.tickets = [ticket]  # the first is the original's, the others repeated it meanwhile
        self.request = request
        self.producer = producer
        self.txid = txid
        self.txid_before = txid_before
        self.segment = -1
        self.entry = -1
        self.slot = -1


class Producer:
    """What is known of one generation of a producer. logged: `next` as of the last batch cut into an entry. last: where
    its newest confirmed batch lies, or above that. older: the generation it replaces, until its first batch is
    confirmed."""

    __slots__ = ("floor", "id", "last", "logged", "name", "next", "older", "pending", "places")

    def __init__(self, id: bytes, floor: int, older: Producer | None = None) -> None:
        self.id = id
        self.name = id[:NAME_BYTES]
        self.floor = floor
        self.next = floor
        self.logged = floor
        self.last = NOTHING_FORGOTTEN
        self.places: list[NotedPlace] = []  # of the last confirmed batches, oldest first
        self.pending: list[Batch] = []
        self.older = older


class ProducerTable:
    """Producers of one stream, least recently used first. horizon: all that wrote above this place are here."""

    __slots__ = ("_new", "_places_max", "_producers", "_producers_max", "horizon")

    def __init__(self, producers_max: int, places_max: int, horizon: Place = NOTHING_FORGOTTEN) -> None:
        self.horizon = horizon
        self._producers: dict[bytes, Producer] = {}  # by name; those that have something in an entry
        self._new: dict[bytes, Producer] = {}  # by name; all that these have is admitted, and in no entry yet
        self._producers_max = producers_max
        self._places_max = places_max

    def __len__(self) -> int:
        return len(self._producers.keys() | self._new.keys())

    def has_certainly_not_written(self, id: bytes, since: Place | None) -> bool:
        """Whether nothing of this producer, which began at `since` (None: nobody knows), is in the log or on its way:
        had it written since then, it would be here."""
        if self._find(id) is not None:
            return False
        return self.horizon == NOTHING_FORGOTTEN or (since is not None and since > self.horizon)

    def _find(self, id: bytes) -> Producer | None:
        """The newest generation of the producer that this id names."""
        name = id[:NAME_BYTES]
        return self._new.get(name) or self._producers.get(name)

    # ---- admission --------------------------------------------------------------------------------------------------

    def judge(self, request: WriteBatch) -> Producer | Batch | BatchWritten | DLogError:
        """A producer: the batch is new and next in order (see `accept`). A Batch: it is on its way already.
        BatchWritten: it is in the log already. An error: refuse it. Changes nothing."""
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
                f"a batch before this one is missing: sequence={sequence} expected={producer.next}",
                expected=producer.next,
            )
        return self._repeated(producer, request)

    def _judge_stranger(self, request: WriteBatch) -> Producer | DLogError:
        """A producer that is not in the table: new, or forgotten?"""
        if not self.has_certainly_not_written(request.producer, request.since):
            return ProducerUnknownError(
                f"this producer is not remembered, begin anew as another: sequence={request.sequence}",
                outcome_unknown=request.retry,
            )
        return self._begun(request, None)

    def _judge_generation(self, known: Producer, request: WriteBatch) -> Producer | DLogError:
        """Another generation of a producer that is in the table: an older one is over, a newer one may begin."""
        if request.producer < known.id:
            return ProducerUnknownError(
                f"this producer goes on under a newer id, nothing more is written under this one: "
                f"sequence={request.sequence}",
                outcome_unknown=request.retry,
            )
        first = request.replaces or 0
        if first < known.next:
            return ProducerUnknownError(
                f"what this id is to replace is in the log or on its way: replaces={first} next={known.next}",
                outcome_unknown=True,
            )
        return self._begun(request, known)

    def _begun(self, request: WriteBatch, older: Producer | None) -> Producer | DLogError:
        """An id that has certainly not written begins with its first batch."""
        sequence, first = request.sequence, request.replaces or 0
        if sequence == first:
            return Producer(request.producer, first, older)
        return SequenceGapError(
            f"this producer has not written yet: sequence={sequence} expected={first}", expected=first
        )

    def accept(self, batch: Batch) -> None:
        """Take a batch that `judge` found new; it is pending until `confirm`."""
        producer = batch.producer
        producer.next += batch.request.count
        producer.pending.append(batch)
        if self._producers.get(producer.name) is producer:
            del self._producers[producer.name]
            self._producers[producer.name] = producer  # most recently used
        else:
            self._new[producer.name] = producer

    def withdraw(self, batch: Batch) -> None:
        """It is not written, and goes back to who sent it. Call in reverse order of accepting."""
        producer = batch.producer
        last = producer.pending.pop()
        assert last is batch, "nothing of its producer stands behind it"
        producer.next = batch.request.sequence
        if not producer.pending and self._new.get(producer.name) is producer:
            del self._new[producer.name]  # none of it was taken: it is as unknown as before
            if producer.older is not None and producer.older.logged == producer.older.floor:
                self._new[producer.name] = producer.older

    def _repeated(self, producer: Producer, request: WriteBatch) -> Batch | BatchWritten | DLogError:
        sequence, after = request.sequence, request.sequence + request.count
        if sequence < producer.floor:
            return ProducerUnknownError(
                f"whether the batch was written is unknown: sequence={sequence} floor={producer.floor}"
            )
        if after > producer.next:
            return InvalidRequestError(
                f"a repeated batch reaches beyond what was sent: sequence={sequence} count={request.count} "
                f"expected={producer.next}"
            )
        for batch in producer.pending:
            if batch.request.sequence <= sequence < batch.request.sequence + batch.request.count:
                if batch.request.sequence == sequence and batch.request.count == request.count:
                    return batch
                return InvalidRequestError(f"a repeated batch was cut in another way: sequence={sequence}")
        for place in producer.places:
            if place.sequence <= sequence and after <= place.sequence + place.records:
                dlsn = of(place.segment, place.entry, place.slot + sequence - place.sequence)
                return BatchWritten(dlsn, request.count, Txid(place.txid), True)
        return BatchWritten(DLSN_INVALID, request.count, NO_TXID, True)

    # ---- a batch's way ----------------------------------------------------------------------------------------------

    def cut(self, batch: Batch, segment: int, entry: int, slot: int) -> None:
        """The batch goes into this entry; snapshots of later entries include it."""
        batch.segment, batch.entry, batch.slot = segment, entry, slot
        producer = batch.producer
        producer.logged = batch.request.sequence + batch.request.count
        if self._producers.get(producer.name) is not producer:
            self._remember(producer)
            if self._new.get(producer.name) is producer:
                del self._new[producer.name]

    def uncut(self, batch: Batch) -> None:
        """Its entry did not survive; it will be cut again. Call in reverse order of cutting."""
        batch.segment = batch.entry = batch.slot = -1
        producer = batch.producer
        producer.logged = batch.request.sequence
        if producer.logged == producer.floor:  # nothing of it is in the log: what it replaces is as it was
            del self._producers[producer.name]
            self._new.setdefault(producer.name, producer)
            if producer.older is not None:
                self._producers[producer.name] = producer.older

    def confirm(self, batch: Batch) -> None:
        """The batch is durable where it was cut."""
        producer, request = batch.producer, batch.request
        first = producer.pending.pop(0)
        assert first is batch, "batches of one producer are confirmed in order"
        place = NotedPlace(request.sequence, request.count, batch.segment, batch.entry, batch.slot, batch.txid)
        self._keep_place(producer, place)
        producer.last = (batch.segment, batch.entry)
        producer.older = None

    # ---- in and out of the log --------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The table as the log has it before the next entry: with what is cut, without what waits."""
        return Snapshot(
            self.horizon,
            tuple(NotedProducer(p.id, p.floor, p.logged, self._places_in_log(p)) for p in self._producers.values()),
        )

    def restore(self, snapshot: Snapshot, at: Place) -> None:
        """Become what a snapshot says that lies in the entry `at`."""
        self.horizon = snapshot.horizon
        self._producers.clear()
        for noted in snapshot.producers:
            producer = Producer(noted.producer, noted.floor)
            producer.next = producer.logged = noted.next
            producer.places = list(noted.places[-self._places_max :])
            producer.last = noted.places[-1][2:4] if noted.places else at
            self._remember(producer)

    def replay(self, noted: NotedBatch, segment: int, entry: int, txid: int) -> None:
        """Learn a batch found in the log."""
        producer = self._producers.get(noted.producer[:NAME_BYTES])
        if producer is None or producer.id != noted.producer or producer.next != noted.sequence:
            producer = Producer(noted.producer, noted.sequence)
        producer.next = producer.logged = noted.sequence + noted.records
        place = NotedPlace(noted.sequence, noted.records, segment, entry, noted.slot, txid)
        self._keep_place(producer, place)
        producer.last = (segment, entry)
        self._remember(producer)

    def _keep_place(self, producer: Producer, place: NotedPlace) -> None:
        places = producer.places
        places.append(place)
        if len(places) > self._places_max:
            del places[0]

    def _places_in_log(self, producer: Producer) -> tuple[NotedPlace, ...]:
        places = list(producer.places)
        for batch in producer.pending:
            if batch.entry >= 0:
                request = batch.request
                places.append(
                    NotedPlace(request.sequence, request.count, batch.segment, batch.entry, batch.slot, batch.txid)
                )
        return tuple(places[-self._places_max :])

    # ---- bounds -----------------------------------------------------------------------------------------------------

    def _remember(self, producer: Producer) -> None:
        """It is the most recently used; the least recently used one without a batch on its way makes room."""
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
