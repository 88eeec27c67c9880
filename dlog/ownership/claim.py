"""The claim on a stream: makes a proxy the stream's owner. It never expires and reads no clock.

    Idle -> Claiming(request) -> Held(epoch) -> Lost(reason)

Invariants:
- a claim is one compare-and-set that adds one to the epoch and carries a unique nonce;
- two proxies may believe that they own a stream, which is harmless: a deposed owner is stopped by the fence on its
  segment and by the version that every change of the segment list names;
- after a lost reply the stream is read again, and our nonce in it shows that the claim was made;
- only the answer to the newest request counts.

Source: architecture notes 3.2; docs/decisions.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from dlog.errors import DLogError, OwnedElsewhereError, StreamNotFoundError
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
from dlog.model.ids import Epoch, ProxyId
from dlog.model.segment import Owner, StreamKey, StreamMetadata
from dlog.options import option


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimOptions:
    """Timeout of a metadata request, and the pause after a failed one."""

    answer_timeout_s: float = option(5.0, sim=(0.02, 2.0))
    retry_after_s: float = option(0.1, sim=(0.001, 0.2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """The claiming proxy. nonce: never used for another claim, by this or any other process."""

    proxy: ProxyId
    address: str
    nonce: str


class ClaimState(enum.Enum):
    IDLE = "idle"
    CLAIMING = "claiming"
    HELD = "held"
    LOST = "lost"


class Claim:
    """One claim, from the first request to its loss. A new claim needs a new Lease and a new nonce."""

    __slots__ = (
        "_base",
        "_options",
        "_question",
        "claimant",
        "epoch",
        "error",
        "key",
        "life",
        "newest",
        "previous",
        "seen",
        "state",
    )

    def __init__(self, key: StreamKey, claimant: Claimant, options: ClaimOptions) -> None:
        self.key = key
        self.claimant = claimant
        self.state = ClaimState.IDLE
        self.epoch = Epoch(0)  # of the claim, once held
        self.previous = Owner()  # the claim that it replaced
        self.newest = Owner()  # the newest claim seen, ours or not
        self.seen: Versioned | None = None  # the stream as our claim wrote it, until `take_seen`
        self.error: DLogError | None = None  # why it is lost
        self.life: str | None = None  # the incarnation of the stream, once known
        self._options = options
        self._base: Epoch | None = None  # the epoch that may be replaced
        self._question = 0  # number of the newest request; only its answer counts

    def claim(self, if_epoch: Epoch | None, life: str | None = None) -> list[Effect]:
        """Start claiming. if_epoch: replace only the claim of this epoch; None: the one found at the first read. life:
        claim only this incarnation of the stream; None: any."""
        assert self.state is ClaimState.IDLE, "a lease is claimed once"
        self.state = ClaimState.CLAIMING
        self.life = life
        self._base = if_epoch
        return self._read()

    def handle(self, fact: MetadataSeen | TimerFired) -> list[Effect]:
        """Take an answer or a timeout; those of older requests are ignored."""
        if self.state is not ClaimState.CLAIMING:
            return []
        if isinstance(fact, TimerFired):
            return self._read() if fact.key == self._token() else []
        if not self._answers_our_question(fact):
            return []
        return self._heard(fact.outcome)

    def observe(self, value: StreamMetadata) -> bool:
        """Whether the stream, as just read, has our claim; if not, the lease is lost for good."""
        if self.life is not None and value.life != self.life:
            self._lose(StreamNotFoundError(f"the stream was deleted, another has its name: stream={self.key.stream}"))
            return False
        self.newest = value.owner
        if self._is_ours(value):
            return True
        self._lose(
            OwnedElsewhereError(
                f"the stream is claimed by another proxy: epoch={value.owner.epoch} proxy={value.owner.proxy}",
                location=value.owner.address or None,
            )
        )
        return False

    def take_seen(self) -> Versioned:
        """The stream as our claim wrote it. Called once: the caller keeps it current, the lease drops its copy, which
        would become old."""
        seen, self.seen = self.seen, None
        assert seen is not None, "called once, after the claim is held"
        return seen

    def lose(self, error: DLogError) -> None:
        """Mark the lease as lost for a reason found by the caller."""
        self._lose(error)

    def _answers_our_question(self, fact: MetadataSeen) -> bool:
        return fact.token == self._token()

    def _is_ours(self, value: StreamMetadata) -> bool:
        return value.owner.claim == self.claimant.nonce

    def _heard(self, outcome: SeenOutcome) -> list[Effect]:
        match outcome:
            case Versioned(value, _):
                assert isinstance(value, StreamMetadata)
                self.seen = outcome
                return self._saw(value)
            case Missing():
                self._lose(StreamNotFoundError(f"no such stream: stream={self.key.stream}"))
                return [CancelTimer(self._token())]
            case Conflict():
                return self._read()  # the stream has changed, maybe by our own write whose reply was lost
            case Refused(error):
                self._lose(error)
                return [CancelTimer(self._token())]
            case OutcomeUnknown():
                cancel = CancelTimer(self._token())
                self._question += 1
                return [cancel, SetTimer(self._token(), self._options.retry_after_s)]

    def _saw(self, value: StreamMetadata) -> list[Effect]:
        cancel = CancelTimer(self._token())
        if self.life is not None and value.life != self.life:
            self.observe(value)
            return [cancel]
        self.newest = value.owner
        if self._is_ours(value):
            self.life = value.life
            self.state = ClaimState.HELD
            self.epoch = value.owner.epoch
            return [cancel]
        if self._base is None:
            self._base = value.owner.epoch
        if value.owner.epoch != self._base:
            self.observe(value)
            return [cancel]
        return [cancel, *self._write(value)]

    def _read(self) -> list[Effect]:
        cancel = CancelTimer(self._token())
        self._question += 1
        return [cancel, ReadMetadata(self._token(), self.key), self._overdue()]

    def _write(self, value: StreamMetadata) -> list[Effect]:
        assert self.seen is not None
        self.previous = value.owner
        self._question += 1
        claim = Owner(
            epoch=Epoch(value.owner.epoch + 1),
            proxy=self.claimant.proxy,
            address=self.claimant.address,
            claim=self.claimant.nonce,
        )
        claimed = replace(value, owner=claim)
        return [CompareAndSet(self._token(), self.key, claimed, self.seen.version), self._overdue()]

    def _lose(self, error: DLogError) -> None:
        self.state = ClaimState.LOST
        self.error = error

    def _token(self) -> tuple[str, int]:
        return ("lease", self._question)

    def _overdue(self) -> SetTimer:
        return SetTimer(self._token(), self._options.answer_timeout_s)
