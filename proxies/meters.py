"""Exposes a proxy's counters as metrics. Values are plain integers counted elsewhere and are read only at a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dlog.io import metrics
from dlog.stores.contract import SegmentStore
from dlog.stores.kafka.store import KafkaStore

Read = Callable[[], float]


class Meters:
    """Gauges and counters of one process, by name without the prefix `dlog_`."""

    def __init__(self) -> None:
        self._gauges: list[tuple[str, str, Read]] = []
        self._counters: list[tuple[str, str, Read]] = []

    def gauge(self, name: str, what: str, read: Read) -> None:
        """Add a number that goes up and down."""
        self._gauges.append((name, what, read))

    def counter(self, name: str, what: str, read: Read) -> None:
        """Add a number that only grows."""
        self._counters.append((name, what, read))

    def collect(self) -> list[Any]:
        """Called by the registry in the scrape's thread, so it reads integers only."""
        gauges = [metrics.family(name, what, read(), is_gauge=True) for name, what, read in self._gauges]
        counters = [metrics.family(name, what, read(), is_gauge=False) for name, what, read in self._counters]
        return [*gauges, *counters]

    def expose(self) -> None:
        """Register for scrapes until the process ends; call it once per process."""
        metrics.expose(self)


def add_stores(meters: Meters, stores: Iterable[SegmentStore]) -> None:
    """Add what stores count."""
    store = next((one for one in stores if isinstance(one, KafkaStore)), None)
    if store is not None:
        reading = store.read_bytes
        meters.gauge("regions_owned", "Regions that this process writes", lambda: store.regions[0])
        meters.gauge("regions_followed", "Regions of which this process keeps the state", lambda: store.regions[1])
        meters.counter("regions_fetched_bytes", "Bytes of records read from topics", lambda: reading.fetched)
        meters.counter(
            "regions_delivered_bytes", "Bytes of entries from topics that readers got", lambda: reading.delivered
        )
