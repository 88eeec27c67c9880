"""The producer id of one stream's batches, their sequences, and the incarnation of the stream that they are meant for.

Invariants:
- A batch keeps its (producer id, sequence) from the first attempt on while it may have been written. The log recognises
  duplicates by them.
- Only a batch that is certainly not written moves to a new producer id, the next generation of the old one. Its first
  batch names the sequence from which on no batch of older generations is in the log. The log accepts it only if that
  is true, and accepts no older generation afterwards: so once the next batch is acknowledged, a batch that failed
  with an unknown outcome is in the log or never will be.
- Each batch carries `since`, a position in the log from before its producer id was first used. If everything that the
  owner has evicted from its producer table is older, the producer is new to the log, not forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable

from dlog.client.batch import Batch
from dlog.model.dlsn import DLSN, DLSN_INVALID

NAME_BYTES = 12  # of a producer id; 4 of its generation follow


class ProducerIdentity:
    """What batches say of their producer. Positions are (segment, entry)."""

    def __init__(self, name: bytes) -> None:
        self.generation = 0
        self.producer_id = name + bytes(4)
        self.sequence = 0  # of the next record to be sent for the first time
        self.since: tuple[int, int] | None = None  # see the invariants
        self.replaces: int | None = None  # first sequence of this generation, see the invariants
        self.is_renewal_due = False  # a failed batch left a gap in the sequences: the rest needs a new generation
        self.incarnation: str | None = None  # the stream's incarnation id; "": it has none; None: not known yet
        self.reached: tuple[int, int] | None = None  # the latest known position in the log
        self._highest = 0  # all sequences sent under older generations are lower
        self._acknowledged_generation = 0  # the newest one with an acknowledged batch
        self._doubtful_generation = -1  # the newest one with a failed batch that may still be written

    @property
    def is_final(self) -> bool:
        """Whether no failed batch may still be written: each was refused at its only attempt, or the log has
        acknowledged a batch of a later generation, or the stream was deleted.

        That the stream is sealed does not suffice: its owner refuses batches with EndOfStreamError as soon as it begins
        to seal, and may lose the stream before the seal is durable.
        """
        return self.incarnation is None or self._doubtful_generation < self._acknowledged_generation

    def learn_stream(self, incarnation: str, reached: tuple[int, int] | None) -> None:
        """The owner named the stream's incarnation, and a position before all that is written from now on."""
        self.incarnation = incarnation
        self.reached = reached
        if self.sequence == 0:
            self.since = reached

    def forget_stream(self) -> None:
        """The next batch is for the stream that has the name then."""
        self.incarnation = self.since = self.reached = None
        self.is_renewal_due = self.is_renewal_due or self.sequence > 0

    def number(self, batch: Batch) -> None:
        """Give a batch, once closed, its sequence under the present generation."""
        if batch.generation != self.generation:
            batch.generation, batch.sequence = self.generation, self.sequence
            self.sequence += batch.count

    def on_acknowledged(self, batch: Batch, dlsn: DLSN) -> None:
        if batch.generation > self._acknowledged_generation:
            self._acknowledged_generation = batch.generation
        if dlsn != DLSN_INVALID:
            self.reached = dlsn[:2]

    def on_failed(self, batch: Batch) -> None:
        """A batch has failed, or lost records. If it was sent, that leaves a gap in the sequences."""
        if batch.sequence >= 0:
            self.is_renewal_due = True
            if batch.may_be_written or batch.may_arrive_late:
                self._doubtful_generation = max(self._doubtful_generation, batch.generation)

    def renew(self, carried: Iterable[Batch]) -> None:
        """Start the next generation. It begins at the lowest sequence of the batches carried over, which are certainly
        not written, or else above all sequences ever sent."""
        first = self._highest = max(self._highest, self.sequence)
        for batch in carried:
            first = min(first, batch.sequence)
            batch.carried = True
        self.is_renewal_due = False
        self.generation += 1
        self.producer_id = self.producer_id[:NAME_BYTES] + self.generation.to_bytes(4, "big")
        self.since = self.reached
        self.sequence = self.replaces = first
