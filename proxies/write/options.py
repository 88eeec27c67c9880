"""What a write proxy may be told."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.log.options import PRODUCERS_MAX, OwnerOptions
from dlog.options import KiB, MiB, at_least_one, option
from proxies.detector import DetectorOptions
from proxies.serving import ServingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(ServingOptions):
    """Bounds are bytes of batches in flight: taken and not answered. What a connection has beyond its own bound is not
    read; what a stream or the process has beyond theirs is refused (517)."""

    connection_bytes_max: int = option(16 * MiB, sim=(KiB, MiB))
    stream_bytes_max: int = option(16 * MiB, sim=(KiB, MiB))
    process_bytes_max: int = option(128 * MiB, sim=(4 * KiB, 4 * MiB))
    requests_max: int = option(10_000, sim=(2, 100))  # waiting for one stream's owner
    takes_max: int = option(10_000, sim=(1, 10))  # streams that wait to be taken
    takes_at_once: int = option(16, sim=(1, 4))  # streams being taken, besides those that take longer than the next
    take_slow_s: float = option(2.0, sim=(0.1, 5.0))
    idle_s: float = option(600.0, sim=(0.5, 30.0))  # a stream that nobody used for so long is handed back
    upkeep_s: float = option(300.0, sim=(2.0, 20.0))  # between rounds over streams without an owner; 0: none
    streams_max: int = option(10_000, sim=(2, 50))  # beyond these, one is handed back once quiet for a second
    ping_every_s: float = option(0.15, sim=(0.01, 0.5))
    ping_timeout_s: float = option(0.3, sim=(0.05, 1.0))
    inflight_entries_max: int = option(3, sim=(1, 4))
    cut_bytes: int = option(256 * KiB, sim=(64, 2 * KiB))
    control_after_ms: float = option(10.0, sim=(0.0, 50.0))
    control_records_per_s: int = 400  # of all streams of this proxy; those due beyond that come later
    producers_max: int = 4000  # remembered of a stream, 1 KB each; at most dlog.log.options.PRODUCERS_MAX

    def __post_init__(self) -> None:
        ServingOptions.__post_init__(self)
        at_least_one(self, "connection_bytes_max", "stream_bytes_max", "process_bytes_max", "requests_max", "takes_max")
        at_least_one(self, "takes_at_once", "take_slow_s", "idle_s", "streams_max")
        at_least_one(self, "ping_every_s", "ping_timeout_s", "inflight_entries_max", "cut_bytes", "producers_max")
        at_least_one(self, "control_records_per_s")
        if self.producers_max > PRODUCERS_MAX:
            raise ValueError(f"producers_max is at most {PRODUCERS_MAX}: {self.producers_max}")

    @property
    def detector(self) -> DetectorOptions:
        return DetectorOptions(ping_every_s=self.ping_every_s, ping_timeout_s=self.ping_timeout_s)

    @property
    def owner(self) -> OwnerOptions:
        return OwnerOptions(
            inflight_entries_max=self.inflight_entries_max,
            cut_bytes=self.cut_bytes,
            control_after_ms=self.control_after_ms,
            pending_bytes_max=self.stream_bytes_max,
            producers_max=self.producers_max,
        )
