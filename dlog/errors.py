"""All errors of the service: code on the wire, what the caller should do, and whether a write may still appear.

Codes are DistributedLog's status codes; those from 530 up are our own. A class without its own code is sent as its
nearest base class that has one. A broken invariant is an AssertionError, never one of these.

Invariants:
- a class exists only if some caller handles it differently;
- a code belongs to one class of the code base: a peer that receives it raises that class.
"""

from __future__ import annotations

import copy
import enum
from typing import Any, TypeVar


class Remedy(enum.Enum):
    """What a caller does next. Callers decide by it, never by the message."""

    FIX = "fix"  # the request is wrong; sending it again cannot help
    RETRY = "retry"  # the same request may succeed later, here or elsewhere
    FOLLOW = "follow"  # another node serves this; go to `location`, or ask the ring
    REOPEN = "reopen"  # this handle is dead; open a new one
    STOP = "stop"  # there is nothing more, and that is final
    REPORT = "report"  # data is damaged or missing; an operator must look


class DLogError(Exception):
    """Base class of all errors. `message` is lower case, with variables last as key=value; it is not part of the API.

    fates: for an error of a pipeline or `append_many`, the outcome of each accepted record that was not reported as
    written (dlog.Fate), in order. next_step: advice for the user, where a command knows better than the class.
    """

    code = 500
    remedy = Remedy.REPORT
    outcome_unknown = False
    fates: tuple[Any, ...] = ()
    next_step: str | None = None

    def __init__(self, message: str = "", *, location: str | None = None, outcome_unknown: bool | None = None) -> None:
        super().__init__(message or self.__class__.__name__)
        self.message = message or self.__class__.__name__
        self.location = location
        if outcome_unknown is not None:
            self.outcome_unknown = outcome_unknown


# ---- FIX: the request itself is wrong ------------------------------------------------------------------------------


class InvalidRequestError(DLogError):
    """The request can never succeed unchanged."""

    code = 400
    remedy = Remedy.FIX


class RecordTooLargeError(InvalidRequestError):
    """A record or a batch exceeds the limit that the message names."""

    code = 413


class InvalidStreamNameError(InvalidRequestError):
    """The stream name is invalid; the message names the rule it breaks."""

    code = 602


class StreamNotFoundError(InvalidRequestError):
    """There is no stream of that name; create it first."""

    code = 510


class StreamRecreatedError(StreamNotFoundError):
    """The stream of this position or reader was deleted; the name now belongs to a new one."""

    code = 560


class PositionBeyondEndError(InvalidRequestError):
    """The position is beyond the end of the stream; `end` is the position after its last record, as DLSN text."""

    code = 561

    def __init__(self, message: str = "", *, end: str | None = None, **kw: object) -> None:
        super().__init__(message, **kw)  # type: ignore[arg-type]
        self.end = end


class StreamExistsError(InvalidRequestError):
    """A stream of that name exists already."""

    code = 522


class StaleRequestError(InvalidRequestError):
    """The request names a state that has changed; nothing was done. Read the current one, then send a new request."""

    code = 555


class TxidOutOfOrderError(InvalidRequestError):
    """The transaction id is below `last`, which the stream already contains (-1: not reported)."""

    code = 513

    def __init__(self, message: str = "", *, last: int = -1, **kw: object) -> None:
        super().__init__(message, **kw)  # type: ignore[arg-type]
        self.last = last


class SequenceGapError(InvalidRequestError):
    """A producer's batch arrived before one with a lower sequence; send again from `expected` on."""

    code = 530

    def __init__(self, message: str = "", *, expected: int = -1, **kw: object) -> None:
        super().__init__(message, **kw)  # type: ignore[arg-type]
        self.expected = expected


class ClusterNotFoundError(InvalidRequestError):
    """There is no cluster at this ZooKeeper address; run `dlog cluster init`."""

    code = 539


class ConfigError(InvalidRequestError):
    """A configuration file, variable or flag has an unknown key or a bad value."""

    code = 531


class ProtocolError(InvalidRequestError):
    """A peer sent bytes that violate the protocol; its connection is closed."""

    code = 532


class UnsupportedVersionError(InvalidRequestError):
    """The peer uses an unsupported protocol version, or stored metadata has a newer format."""

    code = 521


# ---- RETRY: later, or elsewhere ------------------------------------------------------------------------------------


class UnavailableError(DLogError):
    """The request cannot be served now."""

    code = 503
    remedy = Remedy.RETRY


class NotReadyError(UnavailableError):
    """The owner is still recovering the stream."""

    code = 518


class OverCapacityError(UnavailableError):
    """A limit on pending work is reached; nothing was accepted."""

    code = 517


class NotEnoughBookiesError(UnavailableError):
    """Too few bookies are writable to create an ensemble or to replace a failed member."""

    code = 533


class MetadataUnavailableError(UnavailableError):
    """ZooKeeper is unreachable or our session expired. The outcome of a write is unknown."""

    code = 505


class ConnectionLostError(UnavailableError):
    """The connection was lost with the request in flight: its outcome is unknown."""

    code = 534
    outcome_unknown = True


class RequestTimeoutError(UnavailableError):
    """No reply in time: the outcome of the request is unknown."""

    code = 508
    outcome_unknown = True


# ---- FOLLOW: another node ------------------------------------------------------------------------------------------


class OwnedElsewhereError(DLogError):
    """Another proxy owns the stream; `location` is its host:port if known."""

    code = 302
    remedy = Remedy.FOLLOW


class StreamUnavailableError(OwnedElsewhereError):
    """No proxy serves the stream at present; ask the ring again."""

    code = 515


# ---- REOPEN: this handle is dead -----------------------------------------------------------------------------------


class FencedError(DLogError):
    """Another owner or client took over. Pending writes may or may not be in the log."""

    code = 507
    remedy = Remedy.REOPEN
    outcome_unknown = True


class LedgerFencedError(FencedError):
    """Another client took over this ledger. Pending adds may or may not be in it."""

    code = 551


class ClaimLostError(FencedError):
    """The stream has a newer owner epoch than ours."""

    code = 504


class ProducerUnknownError(FencedError):
    """The log no longer holds this producer's state, so a repeated batch cannot be distinguished from a new one.

    since: segment and entry; everything that a new producer id writes from now on lies at or after this position.
    """

    code = 535

    def __init__(self, message: str = "", *, since: tuple[int, int] | None = None, **kw: object) -> None:
        super().__init__(message, **kw)  # type: ignore[arg-type]
        self.since = since


# ---- STOP: final ---------------------------------------------------------------------------------------------------


class EndedError(DLogError):
    """Nothing more will come. Only subclasses are raised."""

    remedy = Remedy.STOP


class EndOfStreamError(EndedError):
    """The stream is sealed."""

    code = 512


class TruncatedError(EndedError):
    """The position was truncated; `first` is the first readable one, as DLSN text, if known."""

    code = 511

    def __init__(self, message: str = "", *, first: str | None = None, **kw: object) -> None:
        super().__init__(message, **kw)  # type: ignore[arg-type]
        self.first = first


class ClosedError(EndedError):
    """The caller closed this handle."""

    code = 502


class LedgerNotFoundError(EndedError):
    """There is no metadata of this ledger: it was never created, or it was deleted."""

    code = 536


# ---- REPORT: an operator is needed ---------------------------------------------------------------------------------


class DamagedError(DLogError):
    """Stored data does not verify."""

    code = 523


class EntryMissingError(DamagedError):
    """An entry at or below the LAC could not be read from any replica."""

    code = 537


class MetadataWentBackError(DamagedError):
    """A stream's metadata is older than this process saw before; it refuses the stream."""

    code = 540


class SegmentNotEndedError(DLogError):
    """The stream was not deleted: a segment that may still be written cannot be closed. `--force` deletes it anyway."""

    code = 556


class EntryUnreadableError(UnavailableError):
    """No replica could return an entry, and too few denied it."""

    code = 1000


class UnauthorizedError(DLogError):
    """Wrong ledger password, or a permission is missing."""

    code = 403
    remedy = Remedy.FIX


class CookieError(DLogError):
    """The disk is not this bookie's: it belongs to another bookie or cluster, or was emptied."""

    code = 538


_E = TypeVar("_E", bound=DLogError)


def with_outcome(error: _E, unknown: bool) -> _E:
    """`error`, or a copy with `outcome_unknown` set to `unknown`: the sender of an earlier attempt knows more than the
    reply to the last one.
    """
    if error.outcome_unknown is unknown:
        return error
    copied = copy.copy(error)
    copied.outcome_unknown = unknown
    if unknown:
        copied.message = f"an earlier attempt may have succeeded; the last one failed: {error.message}"
        copied.args = (copied.message,)
    return copied


def to_raise(error: _E) -> _E:
    """A copy of an error that an object stores and raises at each call. Raising the stored error itself would create a
    reference cycle: its traceback refers to frames that refer to the object.
    """
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied


def _all(cls: type[DLogError]) -> list[type[DLogError]]:
    return [cls, *(deep for sub in cls.__subclasses__() for deep in _all(sub))]


#: wire code -> the class that declares it
BY_CODE: dict[int, type[DLogError]] = {cls.code: cls for cls in _all(DLogError) if "code" in vars(cls)}


def from_wire(code: int, message: str, location: str | None = None, outcome_unknown: bool = False) -> DLogError:
    """Build the error that a peer reported; an unknown code becomes a plain DLogError that keeps the number."""
    cls = BY_CODE.get(code)
    if cls is None:
        error = DLogError(f"{message} code={code}", location=location, outcome_unknown=outcome_unknown)
        error.code = code
        return error
    return cls(message, location=location, outcome_unknown=outcome_unknown)
