"""Reads and writes a stream's metadata under the owner's claim, by compare-and-set.

Invariants:
- a change is written with the version of the value it was computed from;
- after a conflict or an unknown outcome the stream is read again: with another claim in it the lease is lost, with
  ours the change is computed again from what was read;
- one request is in flight at a time, and only the answer to the newest one counts;
- a change that metadata refuses for good is dropped, and no other change with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog.errors import DLogError, StreamNotFoundError
from dlog.log.changes import AlterSettings, Change, Refresh, Relocate, Touch
from dlog.log.options import OwnerOptions
from dlog.machine import (
    CancelTimer,
    CompareAndSet,
    Conflict,
    Effect,
    MetadataSeen,
    Missing,
    OutcomeUnknown,
    ReadMetadata,
    Refused,
    SeenOutcome,
    SetTimer,
    TimerFired,
    Versioned,
)
from dlog.model.segment import StreamMetadata
from dlog.ownership.claim import Claim


@dataclass(slots=True)
class _PendingRequest:
    """The request in flight: read number `read`, or a write of `changes`."""

    changes: tuple[Change, ...]
    read: int = 0


class StreamMetadataUpdater:
    """One stream's metadata, changed under one claim.

    `want` queues a change, `effects` returns the next request, `handle` takes answers, `take_done` returns the changes
    done since the last call. Once the lease is lost no request is made.

    confirmed_read, failed_read: number of the newest read that found our claim, and of the newest that failed. See
    `request_read`.
    """

    __slots__ = (
        "_done",
        "_lease",
        "_needed_read",
        "_number",
        "_options",
        "_question",
        "_reads",
        "_refused",
        "_requested_read",
        "_tries_alone",
        "_version",
        "_waiting",
        "_wanted",
        "confirmed_read",
        "failed_read",
        "value",
    )

    def __init__(self, lease: Claim, options: OwnerOptions) -> None:
        seen = lease.take_seen()  # the stream as the claim wrote it
        self.value: StreamMetadata = seen.value
        self._version = seen.version
        self._lease = lease
        self._options = options
        self._wanted: tuple[Change, ...] = ()
        self._done: tuple[Change, ...] = ()
        self._question: _PendingRequest | None = None
        self._number = 0
        self._refused: tuple[tuple[Change, DLogError], ...] = ()
        self._tries_alone = False  # write one change at a time: several together were refused
        self._waiting = False  # for the retry timer
        self._reads = 0  # number of the newest read
        self._needed_read = 0  # changes wait until this read, or a later one, has found our claim
        self._requested_read = 0  # this read, or a later one, shall be made
        self.confirmed_read = 0
        self.failed_read = 0

    def want(self, change: Change) -> None:
        """Queue a change; queued changes are written together, in order."""
        self._wanted += (change,)
        if isinstance(change, Refresh | Relocate | AlterSettings):
            # a refusal ("no such segment", "altered meanwhile") needs metadata read after the request
            self._needed_read = self._reads + 1

    def request_read(self) -> int:
        """Have the stream read again; returns the number of that read, which begins after this call. Queued changes
        are written first, so reads cannot delay them."""
        self._requested_read = self._reads + 1
        return self._requested_read

    def wants(self, kind: type[Change]) -> bool:
        """Whether a change of this kind is queued or in flight."""
        return any(isinstance(c, kind) for c in self._wanted)

    def take_done(self) -> tuple[Change, ...]:
        done, self._done = self._done, ()
        return done

    def take_refused(self) -> tuple[tuple[Change, DLogError], ...]:
        """Changes dropped since the last call because metadata refused them for good, with the errors."""
        refused, self._refused = self._refused, ()
        return refused

    def effects(self) -> list[Effect]:
        """Make the next request, unless one is in flight."""
        if self._question is not None or self._waiting or not self._is_held():
            return []
        if self._wanted and self.confirmed_read >= self._needed_read:
            effects = self._write()
            if effects:
                return effects
        if self._wanted or self._requested_read > self._reads:
            return self._read()
        return []

    def handle(self, fact: MetadataSeen | TimerFired) -> list[Effect]:
        """Take an answer or a timeout; those of older requests are ignored."""
        if isinstance(fact, TimerFired):
            if fact.key != self._token():
                return []
            self._waiting = False
            if self._question is not None:
                self.failed_read = self._question.read or self.failed_read
            self._question = None
            self._needed_read = self._reads + 1
            return self.effects()
        if fact.token != self._token() or self._question is None:
            return []
        question, self._question = self._question, None
        self._heard(question, fact.outcome)
        return [CancelTimer(fact.token), *self._after_unknown(fact.outcome), *self.effects()]

    def _heard(self, question: _PendingRequest, outcome: SeenOutcome) -> None:
        match outcome:
            case Versioned(value, version):
                assert isinstance(value, StreamMetadata)
                if not self._lease.observe(value):
                    return
                self.value, self._version = value, version
                self.confirmed_read = question.read or self.confirmed_read
                if question.changes:
                    self._finish(question.changes)
            case Missing():
                self._lease.lose(StreamNotFoundError(f"the stream was deleted: stream={self._lease.key.stream}"))
            case Refused(error):
                self._hear_refusal(question, error)
            case Conflict() | OutcomeUnknown():
                self.failed_read = question.read or self.failed_read
                self._needed_read = self._reads + 1

    def _hear_refusal(self, question: _PendingRequest, error: DLogError) -> None:
        """A read or write was refused for good. Of several changes, writing each alone shows which one is refused."""
        if question.read:
            self._lease.lose(error)
        elif len(question.changes) > 1:
            self._tries_alone = True
        else:
            self._wanted = self._wanted[1:]
            self._refused += ((question.changes[0], error),)

    def _after_unknown(self, outcome: SeenOutcome) -> list[Effect]:
        if not isinstance(outcome, OutcomeUnknown) or not self._is_held():
            return []
        self._waiting = True
        self._number += 1
        return [SetTimer(self._token(), self._options.retry_after_s)]

    def _read(self) -> list[Effect]:
        self._reads += 1
        self._question = _PendingRequest((), self._reads)
        self._number += 1
        return [ReadMetadata(self._token(), self._lease.key), SetTimer(self._token(), self._options.answer_timeout_s)]

    def _write(self) -> list[Effect]:
        value, changes = self.value, self._wanted[:1] if self._tries_alone else self._wanted
        for change in changes:
            value = change.apply(value)
        if value == self.value and not any(isinstance(change, Touch) for change in changes):
            self._finish(changes)  # already done by an earlier write whose reply was lost, or nothing to change
            return []
        self._question = _PendingRequest(changes)
        self._number += 1
        return [
            CompareAndSet(self._token(), self._lease.key, value, self._version),
            SetTimer(self._token(), self._options.answer_timeout_s),
        ]

    def _finish(self, changes: tuple[Change, ...]) -> None:
        self._done += changes
        self._wanted = self._wanted[len(changes) :]
        self._tries_alone = self._tries_alone and bool(self._wanted)

    def _is_held(self) -> bool:
        return self._lease.error is None

    def _token(self) -> tuple[str, int]:
        return ("register", self._number)
