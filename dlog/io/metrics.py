"""Metrics: counters bound once, read over HTTP by Prometheus. Off unless a port is given.

The law of this room: no label lookup on a hot path (children are bound at import or start), and the scrape runs on a
thread of its own, so that a slow scraper never holds the loop.
"""

from __future__ import annotations

import threading
from typing import Any
from wsgiref.simple_server import WSGIServer

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram

from dlog.errors import ConfigError
from dlog.events import Event

EVENTS = Counter("dlog_events", "Events told, by name", ["event"])
LOOP_STALLS = Histogram(
    "dlog_loop_stall_seconds",
    "Time the event loop was held up beyond 5 ms",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)
MINOR_FAULTS = Gauge("dlog_minor_faults", "Minor page faults of the process since its start")
ENTRIES_SENT = Counter("dlog_ledger_entries_sent", "Entries given to ledger writers of this process")
BYTES_SENT = Counter("dlog_ledger_bytes_sent", "Payload bytes given to ledger writers of this process")
ENTRIES_READ = Counter("dlog_ledger_entries_read", "Entries read and verified by ledger readers of this process")
BOOKIE_CONNECTIONS_LOST = Counter("dlog_bookie_connections_lost", "Connections to bookies that ended by themselves")
BOOKIE_TIMEOUTS = Counter("dlog_bookie_timeouts", "Connections to bookies closed because an answer did not come")
BOOKIE_LAGGING = Counter("dlog_bookie_lagging", "Connections to bookies closed because too many bytes were in flight")

_by_event: dict[type[Event], Any] = {}


def count(event: Event) -> None:
    """Count one event by its name; a subscriber like dlog.io.logs.tell."""
    counter = _by_event.get(type(event))
    if counter is None:
        counter = _by_event[type(event)] = EVENTS.labels(event=event.name)
    counter.inc()


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
    try:
        server, thread = prometheus_client.start_http_server(port, addr=host)
    except OSError as error:
        raise ConfigError(f"metrics cannot be served: {error.strerror}: address={host}:{port}") from error
    return Endpoint(server, thread)
