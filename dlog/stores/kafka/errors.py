"""Turns errors of topics and regions into those of the store contract."""

from __future__ import annotations

from dlog.errors import (
    ConfigError,
    DamagedError,
    DLogError,
    UnauthorizedError,
    UnavailableError,
    UnsupportedVersionError,
)
from dlog.region.follower import TableNotFoundError
from dlog.region.owner import RegionFencedError
from dlog.region.topics import TopicNotFoundError, UnsafeTopicError
from dlog.region.waiting import TableEndedError
from dlog.stores.contract import (
    MisconfiguredError,
    SegmentCorruptError,
    SegmentFencedError,
    SegmentNotFoundError,
    StoreError,
    StoreOutOfReachError,
    StoreUnavailableError,
)
from dlog.stores.kafka.ports import WrongTopicsError


def store_error(error: DLogError, location: str) -> StoreError:
    """The store's error for one of a call. location: of the segment that was asked for."""
    message = f"{error.message}: store=kafka location={location or 'none'}"
    match error:
        case StoreError():
            return error
        case WrongTopicsError():  # never a finding about segments: it may be mended
            return StoreOutOfReachError(message)
        case TopicNotFoundError() | TableNotFoundError():
            return SegmentNotFoundError(message)
        case DamagedError() | UnsupportedVersionError():
            return SegmentCorruptError(message)
        case ConfigError() | UnauthorizedError() | UnsafeTopicError():
            return MisconfiguredError(message)
        case UnavailableError():
            return StoreOutOfReachError(message, outcome_unknown=error.outcome_unknown)
    return StoreUnavailableError(message, outcome_unknown=error.outcome_unknown)


def writer_error(error: DLogError, location: str) -> StoreError:
    """The store's error for one that ends a writer: appends without an answer may be in the segment."""
    message = f"{error.message}: store=kafka location={location}"
    if isinstance(error, RegionFencedError | TableEndedError | TopicNotFoundError):
        return SegmentFencedError(message)
    if isinstance(error, UnauthorizedError | UnsafeTopicError):
        return MisconfiguredError(message, outcome_unknown=True)
    kind = StoreOutOfReachError if isinstance(error, UnavailableError) else StoreUnavailableError
    return kind(message, outcome_unknown=True)
