"""Measurements of one producer: latencies, gaps, a timeline, and the history. Does no I/O but the history.

Invariants:
- a record's response time starts when the record was due, not when it was handed over;
- a gap ends at the next acknowledgement.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from loadtest.histogram import Histogram
from loadtest.history import HistoryWriter, after
from loadtest.systems.base import Acked, Position, Refused

TIMELINE_NS = 100_000_000
GAP_NS = 20_000_000
ERRORS_MAX = 10
_EACH = 16  # latencies of up to _EACH records are counted one by one, of more in _EACH groups


class Chunk:
    """Records handed over at once."""

    __slots__ = ("count", "due_ns", "first", "left", "sent_ns", "step_ns")

    def __init__(self, first: int, count: int, due_ns: int, step_ns: float, sent_ns: int) -> None:
        self.first = first
        self.count = count
        self.left = count
        self.due_ns = due_ns
        self.step_ns = step_ns
        self.sent_ns = sent_ns


class Flow:
    """Pending records of one log."""

    def __init__(self, log: int) -> None:
        self.log = log
        self.sent = 0
        self.chunks: deque[Chunk] = deque()


class Tally:
    """Counts and latencies. Times are CLOCK_MONOTONIC ns."""

    def __init__(self, producer: int, history: HistoryWriter, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.response = Histogram()
        self.service = Histogram()
        self.delay = Histogram()
        self.sent = self.acked = self.failed = self.measured = 0
        self.first_ack_ns = self.last_ack_ns = 0
        self.start_ns = self.from_ns = self.to_ns = 0
        self.gaps: list[tuple[int, int]] = []
        self.timeline: list[int] = []
        self.errors: list[str] = []
        self._producer = producer
        self._history = history
        self._now_ns = now_ns
        self._last_ns = 0
        self._refused_due_ns: int | None = None  # due time of the first record refused since the last ack

    def begin(self, start_ns: int, warmup_s: float, seconds: float) -> None:
        """Set when the load starts, and that acknowledgements in the `seconds` after the warm-up are measured."""
        self.start_ns = start_ns
        self.from_ns = start_ns + int(warmup_s * 1e9)
        self.to_ns = self.from_ns + int(seconds * 1e9)
        self._last_ns = start_ns

    @property
    def under_way(self) -> int:
        return self.sent - self.acked - self.failed

    def handed(self, flow: Flow, count: int, due_ns: int, step_ns: float, sent_ns: int) -> None:
        """The next `count` records of this log were handed over."""
        flow.chunks.append(Chunk(flow.sent, count, due_ns, step_ns, sent_ns))
        flow.sent += count
        self.sent += count
        if self.from_ns <= due_ns < self.to_ns:
            self.delay.record((sent_ns - due_ns) / 1000, count)

    def answered(self, flow: Flow, answer: Acked | Refused) -> None:
        if isinstance(answer, Acked):
            self._acked(flow, answer.first, answer.count, answer.position)
        else:
            self._refused(flow, answer)

    def _acked(self, flow: Flow, first: int, count: int, position: Position | None) -> None:
        now = self._now_ns()
        end = first + count
        oldest = flow.chunks[0].due_ns if flow.chunks else now  # also if this answer is for others
        for chunk in flow.chunks:
            if chunk.first >= end:
                break
            begin, stop = chunk.first, chunk.first + chunk.count
            if begin < first:
                begin = first
            if stop > end:
                stop = end
            if begin < stop:
                chunk.left -= stop - begin
                begin_at = None if position is None else after(position, begin - first)
                self._history.acked(flow.log, self._producer, begin, stop - begin, begin_at, chunk.sent_ns)
                self._latencies(chunk, begin - chunk.first, stop - begin, now)
        self._forget(flow)
        self._note_answer(now, count, oldest)

    def _latencies(self, chunk: Chunk, skip: int, count: int, now: int) -> None:
        if not self.from_ns <= chunk.due_ns + skip * chunk.step_ns < self.to_ns:
            return
        self.service.record((now - chunk.sent_ns) / 1000, count)
        if not chunk.step_ns:
            self.response.record((now - chunk.due_ns) / 1000, count)
            return
        groups = min(count, _EACH)
        for i in range(groups):
            begin, stop = count * i // groups, count * (i + 1) // groups
            due = chunk.due_ns + (skip + begin) * chunk.step_ns  # the earliest of the group
            self.response.record((now - due) / 1000, stop - begin)

    def _note_answer(self, now: int, count: int, oldest_due_ns: int) -> None:
        self.acked += count
        self.first_ack_ns = self.first_ack_ns or now
        if self._refused_due_ns is not None:  # refused records keep the gap open until this ack
            oldest_due_ns = min(oldest_due_ns, self._refused_due_ns)
            self._refused_due_ns = None
        begin = max(self._last_ns, min(oldest_due_ns, now))
        if self.start_ns and now - begin >= GAP_NS:
            self.gaps.append((begin, now))
        self._last_ns = self.last_ack_ns = now
        if self.from_ns <= now < self.to_ns:
            self.measured += count
        if self.start_ns and now >= self.start_ns:
            slot = (now - self.start_ns) // TIMELINE_NS
            if slot >= len(self.timeline):
                self.timeline.extend([0] * (slot + 1 - len(self.timeline)))
            self.timeline[slot] += count

    def _refused(self, flow: Flow, answer: Refused) -> None:
        self._history.refused(flow.log, self._producer, answer.first, answer.count, answer.unknown)
        end = answer.first + answer.count
        for chunk in flow.chunks:
            if chunk.first >= end:
                break
            within = min(end, chunk.first + chunk.count) - max(answer.first, chunk.first)
            if within > 0:
                chunk.left -= within
                since = self._refused_due_ns
                self._refused_due_ns = chunk.due_ns if since is None else min(since, chunk.due_ns)
        self._forget(flow)
        self.failed += answer.count
        self.note_error(f"{answer.first}+{answer.count}: {answer.error}")

    def note_error(self, text: str) -> None:
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(text[:300])

    @staticmethod
    def _forget(flow: Flow) -> None:
        while flow.chunks and flow.chunks[0].left <= 0:
            flow.chunks.popleft()

    def result(self, cpu_s: float) -> dict[str, Any]:
        """The generator's result. Pending records count as failed with unknown outcome."""
        end_ns = min(self.to_ns, self._now_ns())
        if self.under_way > 0:
            self.gaps.append((self._last_ns, self._now_ns()))
            self.note_error(f"{self.under_way} records got no response")
        return {
            "sent": self.sent,
            "acked": self.acked,
            "failed": self.sent - self.acked,
            "behind": 0,  # this generator hands over every due record, however late
            "errors": self.errors,
            "measured": self.measured,
            "measured_s": max(1e-9, (end_ns - self.from_ns) / 1e9),
            "first_ack_ns": self.first_ack_ns,
            "last_ack_ns": self.last_ack_ns,
            "response": self.response.as_json(),
            "service": self.service.as_json(),
            "delay": self.delay.as_json(),
            "timeline": self.timeline,
            "gaps": self.gaps,
            "cpu_s": cpu_s,
            "rss_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
