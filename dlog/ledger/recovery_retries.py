"""When a recovery repeats unanswered requests, and when it gives up."""

from __future__ import annotations

from dlog.errors import DLogError
from dlog.machine import CancelTimer, Effect, SetTimer

RETRY = "retry"  # key of the timer


class RecoveryRetries:
    """Runs the retry timer of one recovery and counts consecutive attempts without progress.

    The timer goes on when one stage of the recovery follows another.
    """

    __slots__ = ("_attempts_max", "_retry_s", "attempts", "is_waiting")

    def __init__(self, retry_s: float, attempts_max: int) -> None:
        self.attempts = 0
        self.is_waiting = False  # the timer is running
        self._retry_s = retry_s
        self._attempts_max = attempts_max

    @property
    def is_exhausted(self) -> bool:
        return self.attempts >= self._attempts_max

    @property
    def is_last(self) -> bool:
        """Whether the next attempt without progress ends the recovery."""
        return self.attempts + 1 >= self._attempts_max

    def note_failure(self, error: DLogError) -> None:
        """Count an attempt without progress. Raises `error` if it was the last one."""
        self.attempts += 1
        if self.is_exhausted:
            raise error

    def wait(self, error: DLogError, out: list[Effect]) -> None:
        """Count an attempt without progress, and retry later. Raises `error` if it was the last one."""
        self.note_failure(error)
        self.pause(out)

    def pause(self, out: list[Effect]) -> None:
        """Retry later, without counting an attempt."""
        if not self.is_waiting:
            self.is_waiting = True
            out.append(SetTimer(RETRY, self._retry_s))

    def stop(self, out: list[Effect]) -> None:
        if self.is_waiting:
            self.is_waiting = False
            out.append(CancelTimer(RETRY))
