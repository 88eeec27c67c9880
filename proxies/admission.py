"""How much may be in flight: counted in bytes, for a stream and for the process, given back when the answer is known.

The law of this room: nothing is taken without its bytes being counted, and every count is given back exactly once. A
connection's own share is not refused but not read any further (proxies/connection.py): the client feels it as a
window. Beyond the stream's or the process's share a batch is refused whole, before anything remembers it.
"""

from __future__ import annotations

from dlog.errors import OverCapacityError

BATCH_OVERHEAD_BYTES = 512  # what keeping one batch costs beside its body


class Gauge:
    """Bytes in flight under one bound."""

    __slots__ = ("bytes", "bytes_max", "peak")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self.peak = 0


class Admission:
    """The door of the process. One bound for all, one gauge a stream."""

    __slots__ = ("_stream_bytes_max", "_streams", "batches", "bytes", "process", "producers_unknown", "refused")

    def __init__(self, *, process_bytes_max: int, stream_bytes_max: int) -> None:
        self.process = Gauge(process_bytes_max)
        self.batches = 0  # taken so far
        self.bytes = 0  # of bodies, taken so far
        self.refused = 0
        self.producers_unknown = 0  # batches refused because their producer is not remembered
        self._stream_bytes_max = stream_bytes_max
        self._streams: dict[str, Gauge] = {}

    def take(self, stream: str, size: int) -> int:
        """Count a batch of `size` body bytes in; returns what `give_back` must be called with.

        Raises OverCapacityError: nothing was taken. A gauge that is empty takes any one batch.
        """
        cost = size + BATCH_OVERHEAD_BYTES
        process = self.process
        gauge = self._streams.get(stream)
        used = gauge.bytes if gauge is not None else 0
        if process.bytes and process.bytes + cost > process.bytes_max:
            self.refused += 1
            raise OverCapacityError(
                f"this proxy holds as much as it may: bytes={process.bytes} max={process.bytes_max}"
            )
        if used and used + cost > self._stream_bytes_max:
            self.refused += 1
            raise OverCapacityError(
                f"too much is in flight for this stream: stream={stream} bytes={used} max={self._stream_bytes_max}"
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
        """The batch is answered."""
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
