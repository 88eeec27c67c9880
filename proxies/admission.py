"""Limits the bytes of batches in flight, per stream and per process.

A connection has its own limit, at which it is not read further (proxies/connection.py): to the client that is a window.

Invariants:
- every accepted batch is counted, and given back exactly once, when its reply is known;
- a batch above the limit of its stream or of the process is refused as a whole, before any state changes.
"""

from __future__ import annotations

from dlog.errors import OverCapacityError

BATCH_OVERHEAD_BYTES = 512  # memory per batch beside its body


class Gauge:
    """Bytes in flight under one limit."""

    __slots__ = ("bytes", "bytes_max", "peak")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self.peak = 0


class Admission:
    """Admission of batches: one limit for the process, one for each stream."""

    __slots__ = ("_stream_bytes_max", "_streams", "batches", "bytes", "process", "producers_unknown", "refused")

    def __init__(self, *, process_bytes_max: int, stream_bytes_max: int) -> None:
        self.process = Gauge(process_bytes_max)
        self.batches = 0  # accepted so far
        self.bytes = 0  # bytes of bodies accepted so far
        self.refused = 0
        self.producers_unknown = 0  # batches refused because their producer is not in the table
        self._stream_bytes_max = stream_bytes_max
        self._streams: dict[str, Gauge] = {}

    def take(self, stream: str, size: int) -> int:
        """Accept a batch of `size` body bytes; returns the cost to pass to `give_back`.

        Raises OverCapacityError: nothing was accepted. An empty gauge accepts one batch of any size.
        """
        cost = size + BATCH_OVERHEAD_BYTES
        process = self.process
        gauge = self._streams.get(stream)
        used = gauge.bytes if gauge is not None else 0
        if process.bytes and process.bytes + cost > process.bytes_max:
            self.refused += 1
            raise OverCapacityError(
                f"too much is in flight at this proxy, try again: bytes={process.bytes} max={process.bytes_max}"
            )
        if used and used + cost > self._stream_bytes_max:
            self.refused += 1
            raise OverCapacityError(
                f"too much is in flight for the stream, try again: "
                f"stream={stream} bytes={used} max={self._stream_bytes_max}"
            )
        if gauge is None:
            gauge = self._streams[stream] = Gauge(self._stream_bytes_max)
        self.batches += 1
        self.bytes += size
        gauge.bytes += cost
        process.bytes += cost
        process.peak = max(process.peak, process.bytes)
        return cost

    def give_back(self, stream: str, cost: int) -> None:
        """The batch has its reply."""
        gauge = self._streams[stream]
        gauge.bytes -= cost
        self.process.bytes -= cost
        assert gauge.bytes >= 0 and self.process.bytes >= 0, "given back once"
        if not gauge.bytes:
            del self._streams[stream]

    def of_stream(self, stream: str) -> int:
        """Bytes in flight for a stream."""
        gauge = self._streams.get(stream)
        return gauge.bytes if gauge is not None else 0
