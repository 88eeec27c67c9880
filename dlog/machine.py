"""Facts and effects: the one vocabulary in which every protocol of this service is written.

The law of a machine:
1. Synchronous, single-owned, closed: `handle(fact) -> list[Effect]` is the only door. No clock (a fact that needs time
   carries `now_s`), no randomness but a seeded generator handed in, no logger (it returns `Tell`), no task.
2. Record the fact first, then derive every consequence in one place, `_settle`. No handler decides on its own that
   something is finished.
3. No effect relies on the completion of an earlier one in the list. What must wait for a disk waits for `Persisted`.
4. A fact names the question it answers. A late answer is then immaterial, not dangerous.
5. Messages inside `Send` are the wire values themselves; `dlog/wire` only turns them into bytes.

The driver's side of the bargain (dlog/io/driver.py on asyncio, tests/simulation on a heap): effects are performed in
order after `handle` has returned; a failed send is a `PeerLost` fact; facts are handed over one at a time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from dlog.errors import DLogError, Remedy
from dlog.values import value

Token = Hashable  # names a question; unique within one machine
Ticket = int  # names a caller's request; unique within one driver
Peer = Hashable  # names another party: a BookieId, a segment writer, a connection
Key = Hashable  # names a piece of versioned metadata: LedgerKey, StreamKey, ...


# ---- facts: what has happened, in the past tense -----------------------------------------------------------------


@value
class Received:
    """A message arrived from a peer. now_s: monotonic seconds when it arrived; 0 for machines that read no clock."""

    peer: Peer
    message: Any
    now_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The connection to a peer is gone (or could not be made): nothing outstanding there will be answered."""

    peer: Peer
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Persisted:
    """Everything handed to `Persist` with a token up to and including `upto` is on stable storage."""

    upto: int


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The timer `key` came due; `now_s` is monotonic seconds."""

    key: Token
    now_s: float


@dataclass(frozen=True, slots=True)
class MetadataSeen:
    """The answer to ReadMetadata or CompareAndSet with the same token."""

    token: Token
    outcome: SeenOutcome


@value
class Asked:
    """A caller asks the machine for something; it is answered by `Answer` with the same ticket."""

    ticket: Ticket
    request: Any
    now_s: float = 0.0


Fact = Received | PeerLost | Persisted | TimerFired | MetadataSeen | Asked


# ---- outcomes of metadata questions --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Versioned:
    """The value as it stands, with the version that a later CompareAndSet must name. Also: our write took place."""

    value: Any
    version: Any


@dataclass(frozen=True, slots=True)
class Conflict:
    """The version named is not (any more) the current one; nothing was written. Read again."""


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no such key. For a CompareAndSet with a version: it was deleted; nothing was written.

    left: what an unfinished deletion has left of the value; only a later deletion, or a creation, looks at it.
    """

    left: Any = None


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """Connection or session lost: a read has no result; a write may or may not have taken place. Read again."""

    reason: str = ""


Outcome = Versioned | Conflict | Missing | OutcomeUnknown  # what the metadata store returns


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was written, or can be read, and asking again cannot mend that: what is there is damaged or older than
    what was seen, the change is larger than metadata takes, or this process has no right to it."""

    error: DLogError


SeenOutcome = Outcome | Refused  # what a machine hears of its question


def unknown(error: DLogError) -> OutcomeUnknown:
    """The outcome of a metadata question that failed. Raises the error if asking again cannot mend it."""
    if error.remedy is not Remedy.RETRY:
        raise error
    return OutcomeUnknown(error.message)


# ---- effects: what shall be done, in the imperative -----------------------------------------------------------------


@value
class Send:
    """Send a wire message to a peer."""

    peer: Peer
    message: Any


@dataclass(frozen=True, slots=True)
class Persist:
    """Put bytes on stable storage; tokens are increasing integers; answered by `Persisted`."""

    token: int
    data: Any


@value
class SetTimer:
    """Wake me with TimerFired(key) no earlier than `after_s` seconds from now; replaces a timer of the same key.

    can_wait: it may come any time later, in a process in which many machines wait for theirs.
    """

    key: Token
    after_s: float
    can_wait: bool = False


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget the timer `key`; a firing already in the mailbox may still come."""

    key: Token


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """Read one key; answered by MetadataSeen(token, Versioned | Missing | OutcomeUnknown | Refused)."""

    token: Token
    key: Key


@dataclass(frozen=True, slots=True)
class CompareAndSet:
    """Write `value` if the key's version is `version` (None: if the key does not exist).

    Answered by MetadataSeen(token, Versioned (with the new version) | Conflict | Missing | OutcomeUnknown | Refused).
    """

    token: Token
    key: Key
    value: Any
    version: Any


@value
class Answer:
    """Answer the caller of `ticket` with a result or an error (a DLogError is raised at the caller)."""

    ticket: Ticket
    result: Any | DLogError


@value
class Tell:
    """Something worth telling an operator, a metric or a test; an event of dlog/events.py."""

    event: Any


Effect = Send | Persist | SetTimer | CancelTimer | ReadMetadata | CompareAndSet | Answer | Tell


class Machine(Protocol):
    """What a driver drives."""

    def handle(self, fact: Fact) -> list[Effect]: ...
