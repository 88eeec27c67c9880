"""Exposes a proxy's counters as metrics. Values are plain integers counted elsewhere and are read only at a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dlog.io import metrics
from dlog.io.clock import monotonic_s
from dlog.stores.contract import SegmentStore
from dlog.stores.kafka.store import KafkaStore
from dlog.stores.s3.node_figures import NodeFigures
from dlog.stores.s3.store import S3Store

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
    for store in stores:
        if isinstance(store, KafkaStore):
            _add_regions(meters, store)
        elif isinstance(store, S3Store) and store.node is not None:
            _add_node(meters, store.node.figures)


def _add_regions(meters: Meters, store: KafkaStore) -> None:
    reading = store.read_bytes
    meters.gauge("regions_owned", "Regions that this process writes", lambda: store.regions[0])
    meters.gauge("regions_followed", "Regions of which this process keeps the state", lambda: store.regions[1])
    meters.counter("regions_fetched_bytes", "Bytes of records read from topics", lambda: reading.fetched)
    meters.counter(
        "regions_delivered_bytes", "Bytes of entries from topics that readers got", lambda: reading.delivered
    )


def _add_node(meters: Meters, figures: NodeFigures) -> None:
    """Figures of the node for streams in objects, which are at most some seconds old."""

    def age_s(since_s: float | None) -> float:
        return 0.0 if since_s is None else max(0.0, monotonic_s() - since_s)

    meters.gauge(
        "objects_unuploaded_bytes",
        "Bytes of entries that only the write-ahead log and the memory of this process have",
        lambda: figures.unuploaded_bytes,
    )
    meters.gauge("objects_unuploaded_entries", "Number of these entries", lambda: figures.unuploaded_entries)
    meters.gauge(
        "objects_unuploaded_oldest_seconds",
        "For how long the oldest of these entries is in this process; 0: there is none",
        lambda: age_s(figures.oldest_entry_s),
    )
    meters.gauge(
        "objects_wal_segments",
        "Segments of the write-ahead log of this process that are not deleted",
        lambda: figures.wal_segments,
    )
    meters.gauge(
        "objects_wal_oldest_segment_seconds",
        "For how long this process knows the oldest of these segments",
        lambda: age_s(figures.oldest_segment_s),
    )
    meters.gauge(
        "objects_orphan_bytes",
        "Bytes of objects that nothing refers to any more and that are not deleted yet, in the whole cluster",
        lambda: figures.orphan_bytes,
    )
