"""Replaces what production code takes directly from the operating system: time, randomness and the process id.

Invariants:
- While a trial runs, clocks read the trial's loop and randomness comes from the streams of the current process.
- Outside of a trial nothing is replaced.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from unittest import mock

from dlog.io import clock
from tests.simulation.service.loop import SimulatedLoop

EPOCH_NS = 1_760_000_000 * 1_000_000_000


class _Clocks:
    """Replaces the module `time` in dlog.io.clock."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    def time_ns(self) -> int:
        return EPOCH_NS + self._loop.now + self._loop.process.skew_ns


@contextlib.contextmanager
def of(loop: SimulatedLoop) -> Iterator[None]:
    """Take time and randomness from this loop while the context is entered."""

    def urandom(size: int) -> bytes:
        return loop.process.rng("urandom").randbytes(size)

    with (
        mock.patch.object(clock, "time", _Clocks(loop)),
        mock.patch.object(os, "urandom", urandom),
        mock.patch.object(os, "getpid", lambda: 4000 + loop.process.number),
        mock.patch.object(random, "_urandom", urandom),  # secrets and SystemRandom
    ):
        yield
