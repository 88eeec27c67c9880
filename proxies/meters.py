"""Numbers of a proxy for its metrics endpoint, read when somebody scrapes: nothing is paid on the way.

The law of this room: what is counted is counted anyway, as plain integers where it happens; here they get their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlog.io import metrics

Read = Callable[[], float]


class Meters:
    """Gauges and counters of one process, by name without the prefix `dlog_`."""

    def __init__(self) -> None:
        self._gauges: list[tuple[str, str, Read]] = []
        self._counters: list[tuple[str, str, Read]] = []

    def gauge(self, name: str, what: str, read: Read) -> None:
        """A number that goes up and down."""
        self._gauges.append((name, what, read))

    def counter(self, name: str, what: str, read: Read) -> None:
        """A number that only grows."""
        self._counters.append((name, what, read))

    def collect(self) -> list[Any]:
        """For the registry; called from the scrape's thread, reads whole numbers only."""
        gauges = [metrics.family(name, what, read(), is_gauge=True) for name, what, read in self._gauges]
        counters = [metrics.family(name, what, read(), is_gauge=False) for name, what, read in self._counters]
        return [*gauges, *counters]

    def expose(self) -> None:
        """Be scraped from here on, as long as the process lives; once a process."""
        metrics.expose(self)
