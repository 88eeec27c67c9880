"""The outcome of each record of a failed pipeline.

Invariants:
- once the pipeline's error is raised, each record not passed to `on_written` has one Outcome;
- a record is NOT_WRITTEN only if it is certainly not in the log and never will be: it can be sent again safely.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from dlog.client.batch import BatchResult
from dlog.errors import DLogError

_E = TypeVar("_E", bound=BaseException)


class Outcome(enum.Enum):
    """What is known of a record whose append has ended."""

    WRITTEN = "written"
    NOT_WRITTEN = "not written"  # it is not in the log and never will be
    UNKNOWN = "unknown"  # it may be in the log, or be written later


@dataclass(frozen=True, slots=True)
class Fate:
    """The outcome of consecutive records of a pipeline or of `append_many`."""

    index: int  # of the first record, from 0, in the order they were appended
    count: int
    outcome: Outcome
    result: BatchResult | None = None  # where they are, if written


def failure_of(cause: _E, reported: int, fates: Sequence[Fate]) -> _E:
    """The error that a pipeline raises. cause: why its first record failed, or what `on_written` raised. reported:
    number of records passed to `on_written`. fates: of all other records, in order.

    Returns a copy of a DLogError with `fates`, and with `outcome_unknown` unless all of them are NOT_WRITTEN.
    """
    counts = dict.fromkeys(Outcome, 0)
    for fate in fates:
        counts[fate.outcome] += fate.count
    text = f"records of this pipeline: {reported} reported as written; of the others " + ", ".join(
        f"{count} {outcome.value}" for outcome, count in counts.items()
    )
    if not isinstance(cause, DLogError):
        cause.add_note(text)
        return cause
    error = copy.copy(cause)
    error.message = f"{cause.message} ({text})"
    error.args = (error.message,)
    error.fates = tuple(fates)
    error.outcome_unknown = any(fate.outcome is not Outcome.NOT_WRITTEN for fate in fates)
    error.__cause__ = cause
    return error
