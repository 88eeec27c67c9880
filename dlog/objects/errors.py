"""Refusals of the controller. Nothing was recorded, but for ControllerLostError, where that is unknown.

These numbers are not in dlog/errors.py: only nodes and controllers exchange them; `BY_CODE` here has them.
"""

from __future__ import annotations

from dlog.errors import DLogError, FencedError, InvalidRequestError, StaleRequestError, UnavailableError


class StreamFencedError(FencedError):
    """The object stream was opened with a greater epoch, or belongs to another node: close the handle."""

    code = 570
    outcome_unknown = False


class NodeEpochExpiredError(FencedError):
    """The node was started again or another node took it over; begin anew with an epoch above `current`."""

    code = 571
    outcome_unknown = False

    def __init__(self, message: str = "", *, current: int = 0, **kw: object) -> None:
        super().__init__(message, **kw)  # type: ignore[arg-type]  # outcome_unknown at most
        self.current = current


class StreamNotClosedError(UnavailableError):
    """The object stream is still open, here or on another node: ask again once it is closed."""

    code = 572


class NodeInFailoverError(UnavailableError):
    """Another node is taking over this one's work: start it again with a greater epoch to open streams."""

    code = 573


class OffsetMismatchError(StaleRequestError):
    """Offsets do not continue what is committed: read the metadata again. expected: the offset that would, -1 if there
    is none."""

    code = 574

    def __init__(self, message: str = "", *, expected: int = -1, **kw: object) -> None:
        super().__init__(message, **kw)  # type: ignore[arg-type]  # outcome_unknown at most
        self.expected = expected


class ObjectNotFoundError(StaleRequestError):
    """An object is not in the state that the request needs: it expired, or was compacted. Write it again under a new
    id, or plan the compaction again."""

    code = 575


class ObjectStreamNotFoundError(InvalidRequestError):
    """There is no such object stream: it was never created, or is deleted."""

    code = 576


class CompactionMismatchError(StaleRequestError):
    """The new objects do not hold exactly what the sources hold: plan the compaction again from newer metadata."""

    code = 577


class ControllerLostError(UnavailableError):
    """This controller lost the metadata stream: send the same request again to the next one, which knows whether it was
    recorded."""

    code = 578
    outcome_unknown = True


BY_CODE: dict[int, type[DLogError]] = {
    cls.code: cls
    for cls in (
        StreamFencedError,
        NodeEpochExpiredError,
        StreamNotClosedError,
        NodeInFailoverError,
        OffsetMismatchError,
        ObjectNotFoundError,
        ObjectStreamNotFoundError,
        CompactionMismatchError,
        ControllerLostError,
    )
}
