"""Reads and writes a stream's metadata under the owner's claim, by compare-and-set.

Invariants:
- a change is written with the version of the value it was computed from;
- after a conflict or an unknown outcome the stream is read again: with another claim in it the claim is lost, with
  ours the change is computed again from what was read;
- a change that metadata refuses for good is dropped, and no other change with it.
"""

from __future__ import annotations

from dlog.errors import DLogError, StreamNotFoundError
from dlog.log.changes import AlterSettings, Change, Refresh, SetSegmentLocation, Touch
from dlog.log.options import OwnerOptions
from dlog.machine import Effect, MetadataSeen, Missing, OutcomeUnknown, Refused, TimerFired
from dlog.metadata_update import Found, MetadataUpdateLoop, Written
from dlog.model.segment import StreamMetadata
from dlog.ownership.claim import Claim


class StreamMetadataUpdater:
    """One stream's metadata, changed under one claim.

    `want` queues a change, `effects` returns the next request, `handle` takes answers, `take_done` returns the changes
    done since the last call. Once the claim is lost no request is made.

    confirmed_read, failed_read: number of the newest read that found our claim, and of the newest that failed. See
    `request_read`.
    """

    __slots__ = (
        "_claim",
        "_done",
        "_needed_read",
        "_refused",
        "_requested_read",
        "_tries_alone",
        "_update",
        "_wanted",
        "_writing",
        "confirmed_read",
        "failed_read",
        "value",
    )

    def __init__(self, claim: Claim, options: OwnerOptions) -> None:
        seen = claim.take_seen()  # the stream as the claim wrote it
        self.value: StreamMetadata = seen.value
        self._claim = claim
        self._update = MetadataUpdateLoop(claim.key, "register", options, seen.version)
        self._wanted: tuple[Change, ...] = ()
        self._done: tuple[Change, ...] = ()
        self._writing: tuple[Change, ...] = ()  # the changes in the newest write
        self._refused: tuple[tuple[Change, DLogError], ...] = ()
        self._tries_alone = False  # write one change at a time: several together were refused
        self._needed_read = 0  # changes wait until this read, or a later one, has found our claim
        self._requested_read = 0  # this read, or a later one, shall be made
        self.confirmed_read = 0
        self.failed_read = 0

    def want(self, change: Change) -> None:
        """Queue a change; queued changes are written together, in order."""
        self._wanted += (change,)
        if isinstance(change, Refresh | SetSegmentLocation | AlterSettings):
            # a refusal ("no such segment", "altered meanwhile") needs metadata read after the request
            self._needed_read = self._update.reads + 1

    def request_read(self) -> int:
        """Have the stream read again; returns the number of that read, which begins after this call. Queued changes
        are written first, so reads cannot delay them."""
        self._requested_read = self._update.reads + 1
        return self._requested_read

    def wants(self, kind: type[Change]) -> bool:
        """Whether a change of this kind is queued or in flight."""
        return any(isinstance(c, kind) for c in self._wanted)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is to be asked or taken."""
        return not (self._wanted or self._done or self._refused) and self._requested_read <= self._update.reads

    def take_done(self) -> tuple[Change, ...]:
        done, self._done = self._done, ()
        return done

    def take_refused(self) -> tuple[tuple[Change, DLogError], ...]:
        """Changes dropped since the last call because metadata refused them for good, with the errors."""
        refused, self._refused = self._refused, ()
        return refused

    def effects(self) -> list[Effect]:
        """Make the next request, unless one is in flight."""
        out: list[Effect] = []
        if self._claim.error is None:
            if self._wanted and self._update.is_current and self.confirmed_read >= self._needed_read:
                self._write(out)
            if self._update.is_idle and (self._wanted or self._requested_read > self._update.reads):
                self._update.read(out)
        return out

    def handle(self, fact: MetadataSeen | TimerFired) -> list[Effect]:
        """Take an answer or a timeout; those of older requests are ignored."""
        out: list[Effect] = []
        match self._update.handle(fact, out):
            case Written(value) | Found(value):
                if self._claim.observe(value):
                    self.value = value
                    self.confirmed_read = self._update.reads
                    if self._update.wrote:  # what is found in place of a lost reply is judged change by change
                        self._finish(self._writing)
            case Missing():
                self._claim.lose(StreamNotFoundError(f"the stream was deleted: stream={self._claim.key.stream}"))
            case Refused(error):
                self._handle_refusal(error)
            case OutcomeUnknown() if not self._update.wrote:
                self.failed_read = self._update.reads
        return out + self.effects()

    def _handle_refusal(self, error: DLogError) -> None:
        """A read or write was refused for good. Of several changes, writing each alone shows which one is refused."""
        if not self._update.wrote:
            self._claim.lose(error)
        elif len(self._writing) > 1:
            self._tries_alone = True
        else:
            self._wanted = self._wanted[1:]
            self._refused += ((self._writing[0], error),)

    def _write(self, out: list[Effect]) -> None:
        value, changes = self.value, self._wanted[:1] if self._tries_alone else self._wanted
        for change in changes:
            value = change.apply(value)
        if value == self.value and not any(isinstance(change, Touch) for change in changes):
            self._finish(changes)  # already done by an earlier write whose reply was lost, or nothing to change
        else:
            self._writing = changes
            self._update.write(value, out)

    def _finish(self, changes: tuple[Change, ...]) -> None:
        self._writing = ()
        self._done += changes
        self._wanted = self._wanted[len(changes) :]
        self._tries_alone = self._tries_alone and bool(self._wanted)
