"""Retention: which completed segments have become so old that they may be deleted.

Invariants:
- No segment is expired before the stream's retention has passed, in real time, since its last record was stored, as
  long as metadata's clock was right when it was completed and is right now, or the proxies' clocks were and are.

Why that holds. The age of a segment is the earlier of two "now" minus the later of two "completed" (`Expire`):

    now         this proxy's clock             | the time of a change that metadata has just made
    completed   its writer's clock, or later   | the time at which metadata wrote that it is complete
                (when the store said so)       |

If metadata's clock is right, the age is at most the difference of the right column, whatever the left one says; if the
proxies' clocks are right, at most the difference of the left one. So a record's timestamp, one proxy's clock or the
clock of ZooKeeper's leader can make a segment stay too long, and none of them alone can make it go too early. This
proxy's clock is read once, at the claim, from one that never runs ahead of real time since the process began
(dlog/io/clock.py, SteadyClock), and goes on by monotonic seconds: so a clock that jumps while the process runs makes
nothing expire either, even where ZooKeeper and all proxies share one machine, and one clock. What nobody there can tell
is that this clock is wrong from the start of the process on.

When the two "now" are further apart than `clocks_apart_max_s`, one of them is wrong, and nothing expires: told by the
event RetentionHeld if one of them would have had something deleted.

A stream into which nothing is written has no change that tells metadata's time: when this proxy's clock says that the
oldest segment is due, the stream is written as it is (`Touch`), and then judged.

A segment that a Java writer completed, or that was taken in, has the same two moments: what the format says, and the
creation of its znode. See docs/decisions/0027.
"""

from __future__ import annotations

from dlog.events import RetentionHeld
from dlog.log.changes import Expire, Touch
from dlog.log.tenure import Phase, Tenure
from dlog.machine import SetTimer, Tell

RETENTION_TIMER = ("retention",)  # metadata has just been changed: judge
DUE_TIMER = ("due",)  # the oldest segment's retention is over, by our clock
_JUDGED = (Phase.SERVING, Phase.SEALED)


class Expiring:
    """Wants `Expire` when a segment was completed or opened, and when the oldest one is due."""

    __slots__ = ("_tenure",)

    def __init__(self, tenure: Tenure) -> None:
        self._tenure = tenure

    def look(self) -> None:
        """Metadata has just been changed: judge what it holds by the time of that change. A timer brings our own."""
        t = self._tenure
        if t.value.settings.retention_s > 0:
            t.out.append(SetTimer(RETENTION_TIMER, 0.0))

    def judge(self, now_s: float) -> None:
        """now_s: monotonic seconds."""
        t = self._tenure
        if t.phase not in _JUDGED:
            return
        own_ms, metadata_ms = t.clock_unix_ms(now_s), t.value.changed_unix_ms
        if abs(own_ms - metadata_ms) <= t.options.clocks_apart_max_s * 1000:
            t.register.want(Expire(min(own_ms, metadata_ms)))
            self._wait(min(own_ms, metadata_ms), t.options.retry_after_max_s)
        else:
            self._wait(own_ms, t.options.clocks_apart_max_s)
            if Expire(max(own_ms, metadata_ms)).apply(t.value) != t.value:
                t.out.append(Tell(RetentionHeld(t.stream, own_ms, metadata_ms)))

    def due(self, now_s: float) -> None:
        """The timer fired that was set for the oldest segment, or for one that has gone since."""
        t = self._tenure
        own_ms, due_ms = t.clock_unix_ms(now_s), self._due_ms
        if t.phase in _JUDGED and due_ms is not None and due_ms < own_ms:
            t.register.want(Touch())
        else:
            self._wait(own_ms, t.options.retry_after_max_s)

    @property
    def _due_ms(self) -> int | None:
        """When the oldest segment expires; None: it never does, for the list keeps its last one."""
        value = self._tenure.value
        return value.expires_unix_ms(value.segments[0]) if len(value.segments) > 1 else None

    def _wait(self, now_ms: int, least_s: float) -> None:
        t, due_ms = self._tenure, self._due_ms
        if t.phase in _JUDGED and due_ms is not None:
            t.out.append(SetTimer(DUE_TIMER, max(least_s, (due_ms + 1 - now_ms) / 1000)))
