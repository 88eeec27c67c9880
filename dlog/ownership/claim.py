"""The claim on a stream: makes a proxy the stream's owner. It never expires and reads no clock.

    Idle -> Claiming(request) -> Held(epoch) -> Lost(reason)

Invariants:
- a claim is one compare-and-set that adds one to the epoch and carries a unique nonce;
- two proxies may believe that they own a stream, which is harmless: a deposed owner is stopped by the fence on its
  segment and by the version that every change of the segment list names;
- after a lost reply the stream is read again, and our nonce in it shows that the claim was made.

Source: ours; docs/decisions/0004.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace

from dlog.errors import DLogError, OwnedElsewhereError, StreamNotFoundError
from dlog.machine import Effect, MetadataSeen, Missing, Refused, TimerFired, Versioned
from dlog.metadata_update import Found, MetadataUpdateLoop, Written
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
    """One claim, from the first request to its loss. A new claim needs a new Claim and a new nonce.

    refusal: returns the reason why a stream with this metadata must not be claimed, or None. Called before each write
    of the claim; metadata of a refused stream is not changed.
    """

    __slots__ = (
        "_base",
        "_refusal",
        "_update",
        "claimant",
        "epoch",
        "error",
        "incarnation",
        "key",
        "newest",
        "previous",
        "seen",
        "state",
    )

    def __init__(
        self,
        key: StreamKey,
        claimant: Claimant,
        options: ClaimOptions,
        refusal: Callable[[StreamMetadata], DLogError | None] = lambda _: None,
    ) -> None:
        self._refusal = refusal
        self.key = key
        self.claimant = claimant
        self.state = ClaimState.IDLE
        self.epoch = Epoch(0)  # of the claim, once held
        self.previous = Owner()  # the claim that it replaced
        self.newest = Owner()  # the newest claim seen, ours or not
        self.seen: Versioned | None = None  # the stream as our claim wrote it, until `take_seen`
        self.error: DLogError | None = None  # why it is lost
        self.incarnation: str | None = None  # the incarnation of the stream, once known
        self._base: Epoch | None = None  # the epoch that may be replaced
        self._update = MetadataUpdateLoop(key, "claim", options)

    def begin(self, if_epoch: Epoch | None, incarnation: str | None = None) -> list[Effect]:
        """Start claiming. if_epoch: replace only the claim of this epoch; None: the one found at the first read.
        incarnation: claim only this incarnation of the stream; None: any."""
        assert self.state is ClaimState.IDLE, "a claim is made once"
        self.state = ClaimState.CLAIMING
        self.incarnation = incarnation
        self._base = if_epoch
        out: list[Effect] = []
        self._update.read(out)
        return out

    def handle(self, fact: MetadataSeen | TimerFired) -> list[Effect]:
        """Take an answer or a timeout; those of older requests are ignored."""
        out: list[Effect] = []
        if self.state is not ClaimState.CLAIMING:
            return out
        match self._update.handle(fact, out):
            case Written(value) | Found(value):
                self._saw(value, out)
            case Missing():
                self._lose(StreamNotFoundError(f"no such stream: stream={self.key.stream}"))
            case Refused(error):
                self._lose(error)
        if self.state is ClaimState.CLAIMING and self._update.is_idle:
            self._update.read(out)  # after a conflict, or without an answer
        return out

    def observe(self, value: StreamMetadata) -> bool:
        """Whether the stream, as just read, has our claim; if not, ours is lost for good."""
        if self.incarnation is not None and value.incarnation != self.incarnation:
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
        """The stream as our claim wrote it. Called once: the caller keeps it current, the claim drops its copy, which
        would become old."""
        seen, self.seen = self.seen, None
        assert seen is not None, "called once, after the claim is held"
        return seen

    def lose(self, error: DLogError) -> None:
        """Mark the claim as lost for a reason found by the caller."""
        self._lose(error)

    def _is_ours(self, value: StreamMetadata) -> bool:
        return value.owner.claim == self.claimant.nonce

    def _saw(self, value: StreamMetadata, out: list[Effect]) -> None:
        if self.incarnation is not None and value.incarnation != self.incarnation:
            self.observe(value)
            return
        self.newest = value.owner
        if self._is_ours(value):
            self.incarnation = value.incarnation
            self.state = ClaimState.HELD
            self.epoch = value.owner.epoch
            self.seen = Versioned(value, self._update.version)
            return
        if self._base is None:
            self._base = value.owner.epoch
        if value.owner.epoch != self._base:
            self.observe(value)
        elif error := self._refusal(value):
            self._lose(error)
        else:
            self._write(value, out)

    def _write(self, value: StreamMetadata, out: list[Effect]) -> None:
        self.previous = value.owner
        claim = Owner(
            epoch=Epoch(value.owner.epoch + 1),
            proxy=self.claimant.proxy,
            address=self.claimant.address,
            claim=self.claimant.nonce,
        )
        self._update.write(replace(value, owner=claim), out)

    def _lose(self, error: DLogError) -> None:
        self.state = ClaimState.LOST
        self.error = error
