"""Retention in the simulated world of one stream: clocks that jump by days, and the check that nothing expires early.

In one history either the proxies' clocks jump (one of them, or all at once, and that of a foreign writer), or
metadata's. Never both: without any right clock no age can be known.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from dlog.model.segment import Location, Segment, StreamMetadata

if TYPE_CHECKING:
    from tests.simulation.stream_world import StreamWorld

DAY_S = 86_400.0
EPOCH_MS = 1_000 * 86_400_000  # a right clock at the start of a history
_ROUNDING_S = 0.002  # clocks count milliseconds


def draw_jumps(rng: random.Random, duration_s: float) -> dict[str, Any]:
    """Draw, for a plan's config: whose clocks jump, when, for how long, which proxy's ("": all), by how many days."""
    whose = rng.choice(("proxies", "metadata"))
    nodes = ("p1", "p2", "p3", "j", "") if whose == "proxies" else ("",)
    jumps = [
        [
            rng.uniform(0, duration_s),
            rng.choice((0.05, 0.3, duration_s)),
            rng.choice(nodes),
            rng.choice((-4.0, -0.01, 0.01, 4.0)),
        ]
        for _ in range(rng.choice((1, 2, 4)))
    ]
    return {"clocks": whose, "jumps": sorted(jumps)}


class RetentionChecks:
    """E1: checks every segment that metadata drops."""

    def __init__(self, world: StreamWorld) -> None:
        self._world = world
        self._metadata_days = 0.0
        self._stored_s: dict[Location, float] = {}  # when the last record was stored in it

    # ---- clocks -----------------------------------------------------------------------------------------------------

    @property
    def metadata_unix_ms(self) -> int:
        """The time of metadata's clock."""
        days = 0.0 if self._world.sim.healed else self._metadata_days
        return EPOCH_MS + int((self._world.sim.now_s + days * DAY_S) * 1000)

    def begin(self) -> None:
        for at_s, for_s, who, days in self._world.config.get("jumps", ()):
            self._world.sim.call_in(at_s, self._jump, who, days)
            self._world.sim.call_in(at_s + for_s, self._jump, who, 0.0)

    def _jump(self, who: str, days: float) -> None:
        world = self._world
        if world.sim.healed:
            return
        world.sim.reach("clock_jumped")
        if world.config["clocks"] == "metadata":
            self._metadata_days = days
            return
        for name, node in world.sim.nodes.items():
            if name == who or not who:
                node.skew_s = days * DAY_S

    # ---- checks -----------------------------------------------------------------------------------------------------

    def stored(self, location: Location) -> None:
        """Note that an entry is stored there now; an owner that was frozen meanwhile may acknowledge it much later."""
        self._stored_s[location] = self._world.sim.now_s

    def changed(self, old: StreamMetadata, new: StreamMetadata) -> None:
        """Check E1 when metadata was written."""
        for segment in new.segments:
            if segment.completed and old.segment(segment.number) is None:
                self.stored(segment.location)  # it was imported
        for segment in new.truncated:
            if old.segment(segment.number) is not None and not segment.last_dlsn < self._world.highest_point:
                self._check(segment, new.settings.retention_s)

    def _check(self, segment: Segment, retention_s: float) -> None:
        self._world.sim.reach("expired")
        age_s = self._world.sim.now_s - self._stored_s.get(segment.location, 0.0)
        if age_s < retention_s - _ROUNDING_S or not retention_s:
            text = f"segment {segment.number} expired {age_s:.3f} s after its last record was stored"
            self._world.checks.fail("E1", f"{text}, it was to be kept for {retention_s} s: {segment}")
