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

A segment that a Java writer completed, or that was taken in, has the same two moments: what the format says, and the
creation of its znode. See docs/decisions/0027.
"""

from __future__ import annotations

from dlog.events import RetentionHeld
from dlog.log.changes import Expire
from dlog.log.tenure import Phase, Tenure
from dlog.machine import SetTimer, Tell

RETENTION_TIMER = ("retention",)


class Expiring:
    """Wants `Expire` when a segment was completed or opened: then metadata was changed a moment ago."""

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
        if t.phase is not Phase.SERVING:
            return
        own_ms, metadata_ms = t.clock_unix_ms(now_s), t.value.changed_unix_ms
        if abs(own_ms - metadata_ms) <= t.options.clocks_apart_max_s * 1000:
            t.register.want(Expire(min(own_ms, metadata_ms)))
        elif Expire(max(own_ms, metadata_ms)).apply(t.value) != t.value:
            t.out.append(Tell(RetentionHeld(t.stream, own_ms, metadata_ms)))
