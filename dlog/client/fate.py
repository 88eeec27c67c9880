"""What became of the records of a pipeline that failed: nothing is said of a record that is not known of it.

The law of this file: a record that was not told as written is, once the pipeline's error is raised, one of three:
written behind a failed one, certainly not written, or unknown. Sending the second kind again duplicates nothing.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Sequence
from dataclasses import dataclass

from dlog.client.batch import BatchResult
from dlog.errors import DLogError


class Outcome(enum.Enum):
    """What is known of a record whose append ended."""

    WRITTEN = "written"
    NOT_WRITTEN = "not written"  # it is not in the log and will not be
    UNKNOWN = "unknown"  # it may be in the log, or come into it later


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of consecutive records that a pipeline (or `append_many`) took."""

    index: int  # of the first, counted from 0 in the order they were taken
    count: int
    outcome: Outcome
    result: BatchResult | None = None  # where they lie, if they are written


def failure_of(cause: Exception, told: int, fates: Sequence[Fate]) -> Exception:
    """The error a pipeline raises. cause: why its first record failed, or what its listener raised. told: records that
    its listener was told of. fates: of all others that it took, in order.

    Returns a copy of a DLogError: `fates` is set, and `outcome_unknown` unless all of them are certainly not written.
    """
    counts = dict.fromkeys(Outcome, 0)
    for fate in fates:
        counts[fate.outcome] += fate.count
    text = f"records of this pipeline: {told} told as written; of the others " + ", ".join(
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
