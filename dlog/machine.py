"""Facts and effects: the inputs and outputs of the state machines that implement every protocol of this service.

Rules for a state machine:
1. It is synchronous and has one owner; `handle(fact) -> list[Effect]` is its only entry point. It uses no clock (facts
   carry `now_s` where time matters), no randomness but a seeded generator passed in, no logger (it returns `Emit`) and
   no tasks.
2. It records the fact first, then derives every consequence in one place, `_settle`. No handler decides on its own that
   something is finished.
3. No effect relies on the completion of an earlier one in the list. What must wait for a disk waits for `Persisted`.
4. A fact names the request that it answers, so a late answer is ignored.
5. Messages inside `Send` are the wire values themselves; `dlog/wire` only encodes them.

The driver (dlog/io/driver.py on asyncio, tests/simulation on a heap) performs effects in order after `handle` has
returned, passes facts one at a time, and turns a failed send into a `PeerLost` fact.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from dlog.errors import DLogError, Remedy
from dlog.values import value

Token = Hashable  # identifies a request to metadata or a timer; unique within one state machine
Ticket = int  # identifies a caller's request; unique within one driver
Peer = Hashable  # identifies a communication partner: a BookieId, a segment writer, a connection
Key = Hashable  # identifies a piece of versioned metadata: LedgerKey, StreamKey, ...


# ---- facts (inputs): what has happened, in the past tense ----------------------------------------------------------


@value
class Received:
    """A message arrived from a peer. now_s: monotonic seconds on arrival; 0 for state machines that need no time."""

    peer: Peer
    message: Any
    now_s: float = 0.0


@value
class PeerLost:
    """The connection to a peer is lost or could not be made: no pending request to it will be answered."""

    peer: Peer
    reason: str = ""


@value
class Persisted:
    """The data of every `Persist` with a token up to and including `upto` are on stable storage."""

    upto: int


@value
class TimerFired:
    """The timer `key` fired. now_s: monotonic seconds."""

    key: Token
    now_s: float


@value
class MetadataSeen:
    """The answer to ReadMetadata or CompareAndSet with the same token."""

    token: Token
    outcome: SeenOutcome


@value
class Asked:
    """A caller's request to the state machine; answered by `Answer` with the same ticket."""

    ticket: Ticket
    request: Any
    now_s: float = 0.0


Fact = Received | PeerLost | Persisted | TimerFired | MetadataSeen | Asked


# ---- outcomes of metadata requests ---------------------------------------------------------------------------------


@value
class Versioned:
    """The current value, and the version that a later CompareAndSet must name. For a CompareAndSet: it was written."""

    value: Any
    version: Any


@value
class Conflict:
    """The version named is not the current one; nothing was written. Read again."""


@value
class Missing:
    """There is no such key. For a CompareAndSet with a version: it was deleted; nothing was written.

    left: what an unfinished deletion left of the value; used only by a later deletion or a creation.
    """

    left: Any = None


@value
class OutcomeUnknown:
    """Connection or session lost: a read has no result; a write may or may not have been made. Read again."""

    reason: str = ""


Outcome = Versioned | Conflict | Missing | OutcomeUnknown  # what the metadata store returns


@value
class Refused:
    """The read or write failed for good: the stored value is damaged or older than one seen before, the change is too
    large for metadata, or this process has no permission."""

    error: DLogError


SeenOutcome = Outcome | Refused  # what a state machine receives


def unknown(error: DLogError) -> OutcomeUnknown:
    """The outcome of a failed metadata request. Raises the error if a retry cannot help."""
    if error.remedy is not Remedy.RETRY:
        raise error
    return OutcomeUnknown(error.message)


# ---- effects (outputs): what the driver shall do, in the imperative -------------------------------------------------


@value
class Send:
    """Send a wire message to a peer."""

    peer: Peer
    message: Any


@value
class Persist:
    """Put bytes on stable storage; tokens are increasing integers; answered by `Persisted`."""

    token: int
    data: Any


@value
class SetTimer:
    """Pass TimerFired(key) no earlier than `after_s` seconds from now; replaces a timer with the same key.

    can_wait: the timer may fire much later in a process with many such timers.
    """

    key: Token
    after_s: float
    can_wait: bool = False


@value
class CancelTimer:
    """Cancel the timer `key`; a TimerFired that is in the mailbox already may still come."""

    key: Token


@value
class ReadMetadata:
    """Read one key; answered by MetadataSeen(token, Versioned | Missing | OutcomeUnknown | Refused)."""

    token: Token
    key: Key


@value
class CompareAndSet:
    """Write `value` if the key's version is `version` (None: if there is no such key).

    Answered by MetadataSeen(token, Versioned (with the new version) | Conflict | Missing | OutcomeUnknown | Refused).
    """

    token: Token
    key: Key
    value: Any
    version: Any


@value
class Answer:
    """Answer the caller's request `ticket` with a result, or an error (a DLogError is raised in the caller)."""

    ticket: Ticket
    result: Any | DLogError


@value
class Emit:
    """Emit an event of dlog/events.py, for operators, metrics and tests."""

    event: Any


Effect = Send | Persist | SetTimer | CancelTimer | ReadMetadata | CompareAndSet | Answer | Emit


class Machine(Protocol):
    """A state machine, as drivers use it."""

    def handle(self, fact: Fact) -> list[Effect]: ...
