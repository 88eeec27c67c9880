"""The compare-and-set loop: how a state machine reads one value of metadata, changes it and learns what became of that.

    Stale -> Reading -> Current -> Writing -> Current
    Reading, Writing -> Stale (conflict, no answer) | Pausing (outcome unknown, with a timing) -> Stale

Invariants:
- at most one request is in flight, and only its answer counts;
- a value is written only over the version that was read or written last, and never after a conflict or a lost answer
  before the value was read again;
- a write is reported as made only if that was the answer, or if its value is read at another version than it was
  written over. After a lost answer one read of the old version proves nothing: the write may still take effect, until a
  later one succeeds;
- no request is made unless the owner of the loop asks for it, so none follows an error that a retry cannot help.

Source: BookKeeper, MetadataUpdateLoop; the unknown outcomes are our own.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Protocol

from dlog.machine import (
    CancelTimer,
    CompareAndSet,
    Conflict,
    Effect,
    Key,
    MetadataSeen,
    Missing,
    OutcomeUnknown,
    ReadMetadata,
    Refused,
    SetTimer,
    TimerFired,
    Token,
    Versioned,
)


@dataclass(frozen=True, slots=True)
class Found:
    """The value as read. Compute the change from it and write that, unless it needs none or is not allowed any more."""

    value: Any


@dataclass(frozen=True, slots=True)
class Written:
    """The value written last is in metadata, and no earlier write can take effect any more."""

    value: Any


class Timing(Protocol):
    """Timeout of a request, and the pause after one whose outcome is unknown."""

    @property
    def answer_timeout_s(self) -> float: ...

    @property
    def retry_after_s(self) -> float: ...


class _State(enum.Enum):
    STALE = "stale"  # to be read before the next write
    READING = "reading"
    WRITING = "writing"
    PAUSING = "pausing"
    CURRENT = "current"


class MetadataUpdateLoop:
    """The requests for one key, made by one state machine.

    `read` and `write` add the request to `out`. Every MetadataSeen goes to `handle`; with a timing TimerFired as well.

    name: first part of its tokens and timer keys; unique within the state machine. timing: None: no timer is set, and
    the owner of the loop pauses before it reads again. version: of the value that the owner has; None: it must be read
    first. reads: number of the newest read. wrote: whether the newest outcome is that of a write.
    """

    __slots__ = ("_key", "_name", "_number", "_proposed", "_state", "_timing", "reads", "version", "wrote")

    def __init__(self, key: Key, name: str = "metadata", timing: Timing | None = None, version: Any = None) -> None:
        self.version = version
        self.reads = 0
        self.wrote = False
        self._key = key
        self._name = name
        self._timing = timing
        self._state = _State.STALE if version is None else _State.CURRENT
        self._number = 0  # of the newest request or pause
        self._proposed: Any = None  # the value written last, until its outcome is known or another value is read

    @property
    def is_current(self) -> bool:
        """Whether the version is the newest as far as known; only then `write` is allowed."""
        return self._state is _State.CURRENT

    @property
    def is_idle(self) -> bool:
        """Whether the owner may ask: no request is in flight, and no pause."""
        return self._state in (_State.CURRENT, _State.STALE)

    def read(self, out: list[Effect]) -> None:
        """Read the value. Replaces the request in flight, whose answer is then ignored."""
        self.reads += 1
        self._ask(_State.READING, out)
        out.append(ReadMetadata(self._token, self._key))
        self._expect(out)

    def write(self, value: Any, out: list[Effect]) -> None:
        """Write the value over the version seen last."""
        assert self.is_current, "a change is computed from a value that was read"
        self._proposed = value
        self._ask(_State.WRITING, out)
        out.append(CompareAndSet(self._token, self._key, value, self.version))
        self._expect(out)

    def stop(self, out: list[Effect]) -> None:
        """Forget the request in flight: its answer will be ignored. A write may still take effect."""
        if self._timing is not None and not self.is_idle:
            out.append(CancelTimer(self._token))
        self._state = _State.STALE

    def handle(
        self, fact: MetadataSeen | TimerFired, out: list[Effect]
    ) -> Found | Written | Conflict | Missing | OutcomeUnknown | Refused | None:
        """Take an answer or a timeout. Returns what the owner must act on; None: nothing yet.

        Conflict: another client changed the value; read it. OutcomeUnknown: no answer, or it was lost; read the value
        once `is_idle`. Missing, Refused: a repetition fails in the same way; this request had no effect, though an
        earlier write with an unknown outcome may have had. After a refused write another value may be written.
        """
        if self.is_idle or (fact.token if isinstance(fact, MetadataSeen) else fact.key) != self._token:
            return None
        asked = self._state
        self.stop(out)
        if asked is _State.PAUSING:
            return None
        self.wrote = asked is _State.WRITING
        outcome = fact.outcome if isinstance(fact, MetadataSeen) else OutcomeUnknown("no answer in time")
        match outcome:
            case Versioned(value, version):
                is_written = self.wrote or (value == self._proposed and version != self.version)
                self.version, self._proposed, self._state = version, None, _State.CURRENT
                return Written(value) if is_written else Found(value)
            case Refused() if self.wrote:
                self._proposed, self._state = None, _State.CURRENT
            case OutcomeUnknown() if self._timing is not None and isinstance(fact, MetadataSeen):
                self._ask(_State.PAUSING, out)
                out.append(SetTimer(self._token, self._timing.retry_after_s))
        return outcome

    def _ask(self, state: _State, out: list[Effect]) -> None:
        self.stop(out)
        self._state = state
        self._number += 1

    def _expect(self, out: list[Effect]) -> None:
        if self._timing is not None:
            out.append(SetTimer(self._token, self._timing.answer_timeout_s))

    @property
    def _token(self) -> Token:
        return (self._name, self._number)
