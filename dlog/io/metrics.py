"""Metrics of a process; dlog/io/http_server.py serves them to Prometheus if a port is configured.

Invariants:
- Counting adds to a number; no label is looked up on a hot path.
- The Prometheus library is loaded only by a process that serves metrics: it is a seventh of an idle process's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from dlog.events import Event


class Number:
    """A named counter, or a gauge, of this process."""

    __slots__ = ("is_gauge", "name", "value", "what")

    def __init__(self, name: str, what: str, *, is_gauge: bool = False) -> None:
        self.name = name
        self.what = what
        self.is_gauge = is_gauge
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        self.value += amount

    def set(self, value: float) -> None:
        self.value = value


class Collector(Protocol):
    """Gives metric families to Prometheus' registry."""

    def collect(self) -> Iterable[Any]: ...


LOOP_STALLS = Number("loop_stalls", "How often the event loop was blocked for more than 5 ms")
LOOP_STALL_SECONDS = Number("loop_stall_seconds", "Time for which the event loop was blocked beyond 5 ms")
MINOR_FAULTS = Number("minor_faults", "Minor page faults of the process since its start", is_gauge=True)
METADATA_CONNECTED = Number("metadata_connected", "1 while the process is connected to ZooKeeper", is_gauge=True)
ENTRIES_SENT = Number("ledger_entries_sent", "Entries given to ledger writers of this process")
BYTES_SENT = Number("ledger_bytes_sent", "Payload bytes given to ledger writers of this process")
ENTRIES_READ = Number("ledger_entries_read", "Entries read and verified by ledger readers of this process")
BOOKIE_CONNECTIONS_LOST = Number("bookie_connections_lost", "Connections to bookies that failed or were lost")
BOOKIE_TIMEOUTS = Number("bookie_timeouts", "Connections to bookies closed because a response was overdue")
BOOKIE_LAGGING = Number("bookie_lagging", "Connections to bookies closed because too many bytes were unanswered")
GC_LIVE_BYTES = Number(
    "gc_live_bytes", "Bytes in entry logs of ledgers that exist, at the last collection", is_gauge=True
)
GC_DEAD_BYTES = Number("gc_dead_bytes", "All other bytes in entry logs, at the last collection", is_gauge=True)
GC_RECLAIMED_BYTES = Number("gc_reclaimed_bytes", "Bytes of the entry logs that garbage collections deleted")
GC_COPIED_BYTES = Number("gc_copied_bytes", "Bytes of entries that compactions copied")
GC_MOVED_LEDGERS = Number("gc_moved_ledgers", "Closed ledgers whose copies were freed, as others hold them now")
GC_LAST_RUN_SECONDS = Number("gc_last_run_seconds", "When the last collection ended, in Unix time", is_gauge=True)
GC_LEDGERS = Number("gc_ledgers", "Ledgers that exist on this bookie, at the last collection", is_gauge=True)
GC_UNSEEN_LEDGERS = Number(
    "gc_unseen_ledgers", "Ledgers of dlog_gc_ledgers never seen in metadata: not collected", is_gauge=True
)
UNDER_REPLICATED_LEDGERS = Number(
    "under_replicated_ledgers", "Ledgers marked as lacking copies, as the auditor counts them", is_gauge=True
)
OLDEST_MARK_SECONDS = Number(
    "under_replicated_oldest_seconds", "Age of the oldest of these marks, by the auditor's wall clock", is_gauge=True
)
UNDER_REPLICATED_BYTES = Number(
    "under_replicated_bytes",
    "Bytes of payload of the entries below their write quorum; those of open ledgers are not known",
    is_gauge=True,
)
ENTRIES_BELOW_WRITE_QUORUM = Number(
    "entries_below_write_quorum",
    "Entries of marked ledgers with fewer copies than Qw, without the bookies that the marks name",
    is_gauge=True,
)
ENTRIES_BELOW_ACK_QUORUM = Number(
    "entries_below_ack_quorum", "Of these, entries with fewer copies than Qa", is_gauge=True
)
MISPLACED_LEDGERS = Number(
    "misplaced_ledgers",
    "Closed ledgers that do not keep their placement policy, by the auditor's last look",
    is_gauge=True,
)
REPAIRED_LEDGERS = Number("repaired_ledgers", "Ledgers that this process gave their copies again")
REPAIRED_ENTRIES = Number("repaired_entries", "Entries that this process copied for repair")
REPAIRED_BYTES = Number("repaired_bytes", "Bytes of payload of these entries")
COMPARED_LEDGERS = Number("compared_ledgers", "Ledgers whose copies this process compared, as the auditor")
MISSING_COPIES = Number("missing_copies", "Copies that comparisons found missing on bookies that answer")
DIFFERING_COPIES = Number("differing_copies", "Entries whose copies comparisons found to differ")
UNREADABLE_ENTRIES = Number(
    "repair_unreadable_entries", "Entries that no replica could serve at this process's last attempts", is_gauge=True
)

_NUMBERS = (
    LOOP_STALLS,
    LOOP_STALL_SECONDS,
    MINOR_FAULTS,
    METADATA_CONNECTED,
    ENTRIES_SENT,
    BYTES_SENT,
    ENTRIES_READ,
    BOOKIE_CONNECTIONS_LOST,
    BOOKIE_TIMEOUTS,
    BOOKIE_LAGGING,
    GC_LIVE_BYTES,
    GC_DEAD_BYTES,
    GC_RECLAIMED_BYTES,
    GC_COPIED_BYTES,
    GC_MOVED_LEDGERS,
    GC_LAST_RUN_SECONDS,
    GC_LEDGERS,
    GC_UNSEEN_LEDGERS,
    UNDER_REPLICATED_LEDGERS,
    OLDEST_MARK_SECONDS,
    UNDER_REPLICATED_BYTES,
    ENTRIES_BELOW_WRITE_QUORUM,
    ENTRIES_BELOW_ACK_QUORUM,
    MISPLACED_LEDGERS,
    REPAIRED_LEDGERS,
    REPAIRED_ENTRIES,
    REPAIRED_BYTES,
    COMPARED_LEDGERS,
    MISSING_COPIES,
    DIFFERING_COPIES,
    UNREADABLE_ENTRIES,
)
_events: dict[str, int] = {}
_exposed: list[Collector] = []
_registry: Any = None  # Prometheus' registry, once this process serves metrics


def count(event: Event) -> None:
    """Count one event by its name; an event subscriber like dlog.io.logs.log_event."""
    _events[event.name] = _events.get(event.name, 0) + 1


def family(name: str, what: str, value: float, *, is_gauge: bool) -> Any:
    """Make a Prometheus metric family of one number; for a Collector, loads the Prometheus library."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    make = GaugeMetricFamily if is_gauge else CounterMetricFamily
    return make(f"dlog_{name}", what, value=value)


def expose(collector: Collector) -> None:
    """Include this collector in scrapes; call it once per process."""
    _exposed.append(collector)
    if _registry is not None:
        _registry.register(collector)


class _Own:
    """Collects the numbers of this file and the event counts."""

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        events = CounterMetricFamily("dlog_events", "Events reported, by name", labels=["event"])
        for name, times in list(_events.items()):
            events.add_metric([name], times)
        yield events
        for number in _NUMBERS:
            yield family(number.name, number.what, number.value, is_gauge=number.is_gauge)


_exposed.append(_Own())


def renderer() -> Callable[[], tuple[str, bytes]]:
    """Load the Prometheus library; return a function that renders all metrics, as content type and body.

    The function may run in any thread.
    """
    import prometheus_client

    global _registry
    if _registry is None:
        _registry = prometheus_client.REGISTRY
        for collector in _exposed:
            _registry.register(collector)
    return lambda: (prometheus_client.CONTENT_TYPE_LATEST, prometheus_client.generate_latest(_registry))
