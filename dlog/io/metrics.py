"""Metrics: numbers counted where things happen, read over HTTP by Prometheus. Off unless a port is given.

The law of this room: counting is adding to a number, no label lookup on a hot path; the Prometheus library is loaded by
the process that is scraped and by no other (it is a seventh of an idle process); and the scrape runs on a thread of
its own, so that a slow scraper never holds the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from dlog.errors import ConfigError
from dlog.events import Event
from dlog.hostport import bare_host, join_host_port

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer  # brings http and email along: 2.5 MB of every process


class Number:
    """A number with a name, for one process. A counter only grows; a gauge is set."""

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
    """What Prometheus' registry asks for metric families."""

    def collect(self) -> Iterable[Any]: ...


LOOP_STALLS = Number("loop_stalls", "How often the event loop was held up beyond 5 ms")
LOOP_STALL_SECONDS = Number("loop_stall_seconds", "Time for which the event loop was held up beyond 5 ms")
MINOR_FAULTS = Number("minor_faults", "Minor page faults of the process since its start", is_gauge=True)
METADATA_CONNECTED = Number("metadata_connected", "1 while the process is in contact with ZooKeeper", is_gauge=True)
ENTRIES_SENT = Number("ledger_entries_sent", "Entries given to ledger writers of this process")
BYTES_SENT = Number("ledger_bytes_sent", "Payload bytes given to ledger writers of this process")
ENTRIES_READ = Number("ledger_entries_read", "Entries read and verified by ledger readers of this process")
BOOKIE_CONNECTIONS_LOST = Number("bookie_connections_lost", "Connections to bookies that ended by themselves")
BOOKIE_TIMEOUTS = Number("bookie_timeouts", "Connections to bookies closed because an answer did not come")
BOOKIE_LAGGING = Number("bookie_lagging", "Connections to bookies closed because too many bytes were in flight")
GC_LIVE_BYTES = Number(
    "gc_live_bytes", "Bytes in entry logs of ledgers that exist, at the last collection", is_gauge=True
)
GC_DEAD_BYTES = Number("gc_dead_bytes", "The other bytes of entry logs, at the last collection", is_gauge=True)
GC_RECLAIMED_BYTES = Number("gc_reclaimed_bytes", "Bytes of entry logs without a ledger that collections deleted")
GC_COPIED_BYTES = Number("gc_copied_bytes", "Bytes of entries that compactions copied")
GC_LAST_RUN_SECONDS = Number("gc_last_run_seconds", "When the last collection ended, in Unix time", is_gauge=True)
GC_LEDGERS = Number("gc_ledgers", "Ledgers that exist on this bookie, at the last collection", is_gauge=True)
GC_UNSEEN_LEDGERS = Number(
    "gc_unseen_ledgers", "Of these, ledgers never seen in metadata: they are kept", is_gauge=True
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
    GC_LAST_RUN_SECONDS,
    GC_LEDGERS,
    GC_UNSEEN_LEDGERS,
)
_events: dict[str, int] = {}
_exposed: list[Collector] = []
_registry: Any = None  # Prometheus', once this process is scraped


def count(event: Event) -> None:
    """Count one event by its name; a subscriber like dlog.io.logs.tell."""
    _events[event.name] = _events.get(event.name, 0) + 1


def family(name: str, what: str, value: float, *, is_gauge: bool) -> Any:
    """One number as Prometheus wants it; for a Collector, in the process that is scraped."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    make = GaugeMetricFamily if is_gauge else CounterMetricFamily
    return make(f"dlog_{name}", what, value=value)


def expose(collector: Collector) -> None:
    """Have this collector scraped too; once a process."""
    _exposed.append(collector)
    if _registry is not None:
        _registry.register(collector)


class _Own:
    """The numbers of this file."""

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        events = CounterMetricFamily("dlog_events", "Events told, by name", labels=["event"])
        for name, times in list(_events.items()):
            events.add_metric([name], times)
        yield events
        for number in _NUMBERS:
            yield family(number.name, number.what, number.value, is_gauge=number.is_gauge)


_exposed.append(_Own())


class Endpoint:
    """A running scrape endpoint; `port` is the one the kernel chose when 0 was asked."""

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread
        self.port = server.server_port

    def close(self) -> None:
        """Stop serving; returns when the thread has ended."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(port: int | None, host: str = "127.0.0.1") -> Endpoint | None:
    """Serve /metrics on host:port; None as port means no metrics. Raises ConfigError when the port is taken."""
    if port is None:
        return None
    import prometheus_client

    global _registry
    if _registry is None:
        _registry = prometheus_client.REGISTRY
        for collector in _exposed:
            _registry.register(collector)
    try:
        server, thread = prometheus_client.start_http_server(port, addr=bare_host(host))
    except OSError as error:
        raise ConfigError(
            f"metrics cannot be served: {error.strerror}: address={join_host_port(host, port)}"
        ) from error
    return Endpoint(server, thread)
