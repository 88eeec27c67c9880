"""Retry limits of the client: exponential back-off for each caller, and one retry budget for all."""

from __future__ import annotations

import random


class Backoff:
    """Delays that double from `first_s` to `max_s`, each drawn between half and all of it."""

    def __init__(self, first_s: float, max_s: float, rng: random.Random) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._rng = rng
        self._failures = 0

    def next_s(self) -> float:
        """The next delay; 0 after the first failure, since most owners are replaced at once."""
        self._failures += 1
        if self._failures == 1:
            return 0.0
        whole = min(self._max_s, self._first_s * 2.0 ** min(self._failures - 2, 30))
        return whole * (0.5 + 0.5 * self._rng.random())

    def reset(self) -> None:
        self._failures = 0


class RetryBudget:
    """A token bucket of retries shared by a whole client, so that an outage does not cause a retry storm."""

    def __init__(self, burst: int, per_s: float, now_s: float) -> None:
        self._burst = float(burst)
        self._per_s = per_s
        self._tokens = float(burst)
        self._at_s = now_s

    def take(self, now_s: float) -> float:
        """Take one token; returns the seconds to wait before the retry (0 if a token was there)."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._per_s)
