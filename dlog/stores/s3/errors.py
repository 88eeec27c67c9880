"""Errors of the machines of dlog/objects as those of the contract of segment stores."""

from __future__ import annotations

from dlog.errors import ClosedError, DamagedError, DLogError, FencedError, MetadataWentBackError, Remedy, TruncatedError
from dlog.objects.errors import ObjectStreamNotFoundError
from dlog.objects.node_messages import NodeEndedError
from dlog.stores.contract import (
    SegmentCorruptError,
    SegmentFencedError,
    SegmentNotFoundError,
    StoreError,
    StoreOutOfReachError,
    StoreTooSmallError,
    StoreUnavailableError,
)


def is_fence(error: BaseException | None) -> bool:
    """Whether a node ended because another process took over, which deletes the log once it is uploaded."""
    fence = SegmentFencedError | FencedError | SegmentNotFoundError
    return isinstance(error, fence) and not isinstance(error, NodeEndedError)


def given_up(error: StoreError, *, outcome_unknown: bool | None = None) -> StoreError:
    """The error of what was tried for long, whose last failure was `error`: the owner of a stream tells the reason.
    It says that there are too few members, if the failure goes back to that."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    is_too_small = any(isinstance(one, StoreTooSmallError) for one in causes)
    kind = StoreTooSmallError if is_too_small else StoreOutOfReachError
    return kind(error.message, outcome_unknown=error.outcome_unknown if outcome_unknown is None else outcome_unknown)


def store_error(error: DLogError) -> StoreError:
    """What an error of the controller or of a node means for a segment."""
    if isinstance(error, StoreError):
        return error
    unknown = error.outcome_unknown
    kind: type[StoreError] = StoreUnavailableError
    if isinstance(error, NodeEndedError):
        if is_fence(error.__cause__):
            kind = SegmentFencedError
        elif isinstance(error.__cause__, StoreOutOfReachError | StoreTooSmallError):  # of the log
            kind = type(error.__cause__)
    elif isinstance(error, FencedError):
        kind = SegmentFencedError
    elif isinstance(error, ObjectStreamNotFoundError | TruncatedError):
        kind = SegmentNotFoundError
    elif isinstance(error, MetadataWentBackError):
        kind = StoreUnavailableError  # no segment is damaged: it can be served again once metadata are back
    elif isinstance(error, DamagedError) or (error.remedy is Remedy.REPORT and not isinstance(error, ClosedError)):
        kind = SegmentCorruptError
    made = kind(error.message, outcome_unknown=unknown)
    made.__cause__ = error
    return made
