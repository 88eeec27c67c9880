"""Every error of the service: its number on the wire, what the caller should do, and whether a write may still appear.

The law of this room: a class exists only if somebody acts differently on it. Numbers are DistributedLog's status codes
(those from 530 up are ours). A number belongs to one class of the whole code base: whoever hears it raises that class.
A class without a number of its own is told to a peer as the nearest one above it that has one. A broken invariant is an
AssertionError, never one of these.
"""

from __future__ import annotations

import copy
import enum
from typing import Any, TypeVar


class Remedy(enum.Enum):
    """What a caller does next; the only thing callers branch on."""

    FIX = "fix"  # the request is wrong, sending it again cannot help
    RETRY = "retry"  # the same request may succeed later, here or elsewhere
    FOLLOW = "follow"  # another node answers this; go to `location`, or ask the ring
    REOPEN = "reopen"  # this handle is dead; open a new one
    STOP = "stop"  # nothing follows, and that is final
    REPORT = "report"  # data is damaged or missing; a person must look


class DLogError(Exception):
    """Root of all errors. `message` is lower case, variables last as key=value, and is not API.

    fates: of an error that a pipeline or `append_many` raises, what became of each record that was taken and not told
    as written (dlog.Fate), in order. next_step: what a person does, where a command knows it better than the class.
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
    """The request can never succeed as it stands."""

    code = 400
    remedy = Remedy.FIX


class RecordTooLargeError(InvalidRequestError):
    """A record or a batch exceeds the limit the message names."""

    code = 413


class InvalidStreamNameError(InvalidRequestError):
    """The stream name is not one we accept; the message says which rule it breaks."""

    code = 602


class StreamNotFoundError(InvalidRequestError):
    """No stream of that name; create it first."""

    code = 510


class StreamRecreatedError(StreamNotFoundError):
    """The stream that this position or reader belongs to was deleted; the one that has its name now is another."""

    code = 560


class PositionBeyondEndError(InvalidRequestError):
    """The stream does not reach as far as this position; `end` is the place behind its last record, as DLSN text."""

    code = 561

    def __init__(self, message: str = "", *, end: str | None = None, **kw: object) -> None:
        super().__init__(message, **kw)  # type: ignore[arg-type]
        self.end = end


class StreamExistsError(InvalidRequestError):
    """A stream of that name exists already."""

    code = 522


class StaleRequestError(InvalidRequestError):
    """The request names a state that is over, nothing was done: read what is now, and ask anew."""

    code = 555


class TxidOutOfOrderError(InvalidRequestError):
    """The transaction id is below `last`, which is in the stream already (-1: not told)."""

    code = 513

    def __init__(self, message: str = "", *, last: int = -1, **kw: object) -> None:
        super().__init__(message, **kw)  # type: ignore[arg-type]
        self.last = last


class SequenceGapError(InvalidRequestError):
    """A producer's batch arrived before one with a lower sequence; send from `expected` on."""

    code = 530

    def __init__(self, message: str = "", *, expected: int = -1, **kw: object) -> None:
        super().__init__(message, **kw)  # type: ignore[arg-type]
        self.expected = expected


class ClusterNotFoundError(InvalidRequestError):
    """No cluster was made at this ZooKeeper address; run `dlog cluster init`."""

    code = 539


class ConfigError(InvalidRequestError):
    """A configuration file, variable or flag holds a key or value we do not know."""

    code = 531


class ProtocolError(InvalidRequestError):
    """A peer sent bytes that are not of the protocol; its connection is closed."""

    code = 532


class UnsupportedVersionError(InvalidRequestError):
    """The peer speaks a version we do not, or stored metadata is of a newer format."""

    code = 521


# ---- RETRY: later, or elsewhere ------------------------------------------------------------------------------------


class UnavailableError(DLogError):
    """Cannot be served now."""

    code = 503
    remedy = Remedy.RETRY


class NotReadyError(UnavailableError):
    """The owner is still recovering the stream."""

    code = 518


class OverCapacityError(UnavailableError):
    """A bound on waiting work is reached; nothing was taken."""

    code = 517


class NotEnoughBookiesError(UnavailableError):
    """Too few bookies are writable for the ensemble or to mend it."""

    code = 533


class MetadataUnavailableError(UnavailableError):
    """ZooKeeper cannot be reached or lost our session. For a write, the outcome is unknown."""

    code = 505


class ConnectionLostError(UnavailableError):
    """The peer went away with the request in flight: whether it was carried out is unknown."""

    code = 534
    outcome_unknown = True


class RequestTimeoutError(UnavailableError):
    """No answer in time: whether the request was carried out is unknown."""

    code = 508
    outcome_unknown = True


# ---- FOLLOW: somebody else -----------------------------------------------------------------------------------------


class OwnedElsewhereError(DLogError):
    """Another proxy owns the stream; `location` is its host:port when known."""

    code = 302
    remedy = Remedy.FOLLOW


class StreamUnavailableError(OwnedElsewhereError):
    """Nobody serves the stream at this instant; ask the ring again."""

    code = 515


# ---- REOPEN: this handle is dead -----------------------------------------------------------------------------------


class FencedError(DLogError):
    """Somebody else took over. Pending writes may or may not be in the log."""

    code = 507
    remedy = Remedy.REOPEN
    outcome_unknown = True


class LedgerFencedError(FencedError):
    """Another client took this ledger over. Pending adds may or may not be in it."""

    code = 551


class LeaseLostError(FencedError):
    """The stream has a newer owner epoch than ours."""

    code = 504


class ProducerUnknownError(FencedError):
    """The log no longer holds this producer's state, so a repeated batch cannot be told from a new one.

    since: segment and entry; whoever begins anew as another producer will write nothing below this place.
    """

    code = 535

    def __init__(self, message: str = "", *, since: tuple[int, int] | None = None, **kw: object) -> None:
        super().__init__(message, **kw)  # type: ignore[arg-type]
        self.since = since


# ---- STOP: final ---------------------------------------------------------------------------------------------------


class EndedError(DLogError):
    """Nothing more will come. Only its kinds are raised."""

    remedy = Remedy.STOP


class EndOfStreamError(EndedError):
    """The stream is sealed."""

    code = 512


class TruncatedError(EndedError):
    """The position was truncated; `first` is the first that can still be read, as DLSN text, if known."""

    code = 511

    def __init__(self, message: str = "", *, first: str | None = None, **kw: object) -> None:
        super().__init__(message, **kw)  # type: ignore[arg-type]
        self.first = first


class ClosedError(EndedError):
    """This handle was closed by its owner."""

    code = 502


class LedgerNotFoundError(EndedError):
    """No metadata for this ledger: never created, or deleted."""

    code = 536


# ---- REPORT: a person is needed ------------------------------------------------------------------------------------


class DamagedError(DLogError):
    """Stored data does not verify."""

    code = 523


class EntryMissingError(DamagedError):
    """An entry at or below the LAC could not be read from any replica."""

    code = 537


class MetadataWentBackError(DamagedError):
    """A stream's metadata is older than what this process has seen of it: nothing is served from it."""

    code = 540


class SegmentNotEndedError(DLogError):
    """A stream is not deleted: a segment that may still be written cannot be ended. Force deletes it all the same."""

    code = 556


class EntryUnreadableError(UnavailableError):
    """No replica could answer for an entry, and none could say it is absent."""

    code = 1000


class UnauthorizedError(DLogError):
    """Wrong ledger password or missing right."""

    code = 403
    remedy = Remedy.FIX


class CookieError(DLogError):
    """The disk is not the one this bookie had: foreign, emptied, or of another cluster."""

    code = 538


_E = TypeVar("_E", bound=DLogError)


def with_outcome(error: _E, unknown: bool) -> _E:
    """`error`, or a copy of it that says by `outcome_unknown` what is so: whoever sent an earlier try knows it better
    than the answer to the last one."""
    if error.outcome_unknown is unknown:
        return error
    told = copy.copy(error)
    told.outcome_unknown = unknown
    if unknown:
        told.message = f"an earlier try may have been carried out; the last one failed: {error.message}"
        told.args = (told.message,)
    return told


def to_raise(error: _E) -> _E:
    """A copy of an error that an object stores and raises at each call. A raised error refers to the frames that it
    passed, and these to that object: to raise the stored error itself would make a reference cycle."""
    told = copy.copy(error)
    told.__cause__ = error.__cause__
    return told


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
