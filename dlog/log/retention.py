"""Retention: finds the completed segments that are old enough to be deleted.

Invariants:
- No segment expires before the stream's retention has passed, in real time, since its last record was stored, as long
  as metadata's clock was right when the segment was completed and is right now, or the proxies' clocks were and are.

Why that holds. The age of a segment is the earlier of two "now" minus the later of two "completed" (`Expire`):

    now         this proxy's clock            | metadata's time of a change that was just made
    completed   its writer's clock, or later  | metadata's time of the change that completed it
                (when the store sealed it)    |

If metadata's clock is right, the age is at most the difference in the right column, whatever the left one shows; if the
proxies' clocks are right, at most the difference in the left one. So a record's timestamp, one proxy's clock or the
clock of ZooKeeper's leader can keep a segment too long, but none of them alone can expire it too early. This proxy's
clock is read once, at the claim, from a clock that never runs ahead of real time since the process began
(dlog/io/clock.py, NeverAheadClock), and advances by monotonic seconds: so a clock that jumps while the process runs
expires nothing either, even if ZooKeeper and all proxies share one machine and its clock. There, only a clock that is
wrong from the start of the process on stays undetected.

If the two "now" differ by more than `clocks_apart_max_s`, one of them is wrong and nothing expires; the event
RetentionHeld reports it if by one of them a segment is due.

A stream without writes has no change that shows metadata's time: when the oldest segment is due by this proxy's clock,
the stream is written unchanged (`Touch`), and then judged.

A segment that a Java writer completed, or that was imported, has the same two times: the one in the stored format, and
the creation of its znode. See docs/decisions/0027.
"""

from __future__ import annotations

from dlog.events import RetentionHeld
from dlog.log.changes import Expire, Touch
from dlog.log.owner_context import OwnerContext
from dlog.machine import Emit, SetTimer

RETENTION_TIMER = ("retention",)  # metadata was just changed: judge
DUE_TIMER = ("due",)  # the oldest segment's retention is over by our clock


class RetentionChecker:
    """Queues `Expire` when a segment was completed or opened, and when the oldest one is due."""

    __slots__ = ("_context",)

    def __init__(self, context: OwnerContext) -> None:
        self._context = context

    def look(self) -> None:
        """Metadata was just changed: judge the segments by the time of that change. The timer brings our own time."""
        t = self._context
        if t.value.settings.retention_s > 0:
            t.out.append(SetTimer(RETENTION_TIMER, 0.0))

    def look_when_due(self) -> None:
        """The stream waits for space or for its store, so no segment completes and no change is made: judge by the
        clock. What is due is found by the timer."""
        t = self._context
        if t.value.settings.retention_s > 0:
            t.out.append(SetTimer(DUE_TIMER, 0.0))

    def judge(self, now_s: float) -> None:
        """Expire segments, unless the clocks differ too much. now_s: monotonic seconds."""
        t = self._context
        if not t.is_held:
            return
        own_ms, metadata_ms = t.clock_unix_ms(now_s), t.value.changed_unix_ms
        if abs(own_ms - metadata_ms) <= t.options.clocks_apart_max_s * 1000:
            t.register.want(Expire(min(own_ms, metadata_ms)))
            self._wait(min(own_ms, metadata_ms), t.options.retry_after_max_s)
        else:
            self._wait(own_ms, t.options.clocks_apart_max_s)
            if Expire(max(own_ms, metadata_ms)).apply(t.value) != t.value:
                t.out.append(Emit(RetentionHeld(t.stream, own_ms, metadata_ms)))

    def due(self, now_s: float) -> None:
        """The timer for the oldest segment fired, which may be gone since."""
        t = self._context
        own_ms, due_ms = t.clock_unix_ms(now_s), self._due_ms
        if t.is_held and due_ms is not None and due_ms < own_ms:
            t.register.want(Touch())
        else:
            self._wait(own_ms, t.options.retry_after_max_s)

    @property
    def _due_ms(self) -> int | None:
        """When the oldest segment expires; None: never, e.g. since it is the last in the list."""
        value = self._context.value
        return value.expires_unix_ms(value.segments[0]) if len(value.segments) > 1 else None

    def _wait(self, now_ms: int, least_s: float) -> None:
        t, due_ms = self._context, self._due_ms
        if t.is_held and due_ms is not None:
            t.out.append(SetTimer(DUE_TIMER, max(least_s, (due_ms + 1 - now_ms) / 1000)))
