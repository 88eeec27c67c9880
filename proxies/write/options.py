"""Options of a write proxy."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.log.options import PRODUCERS_MAX, OwnerOptions
from dlog.options import KiB, MiB, check_positive, option
from proxies.detector import DetectorOptions
from proxies.serving import ServingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(ServingOptions):
    """`*_bytes_max` limit batches in flight: accepted and not replied to. Above its limit a connection is not read;
    above the limit of a stream or the process batches are refused (517)."""

    connection_bytes_max: int = option(
        16 * MiB, "unanswered bytes of batches of a connection, beyond which it is not read", sim=(KiB, MiB)
    )
    stream_bytes_max: int = option(
        16 * MiB, "unanswered bytes of batches of a stream, beyond which batches are refused (517)", sim=(KiB, MiB)
    )
    process_bytes_max: int = option(
        128 * MiB,
        "unanswered bytes of batches of all streams, beyond which batches are refused (517)",
        sim=(4 * KiB, 4 * MiB),
    )
    requests_max: int = option(10_000, "requests that may wait for the owner of one stream", sim=(2, 100))
    takes_max: int = option(10_000, "streams that may wait to be taken over", sim=(1, 10))
    takes_at_once: int = option(16, "streams being taken over at a time, not counting slow ones", sim=(1, 4))
    take_slow_s: float = option(
        2.0, "time after which a take-over counts as slow, and the next one begins", sim=(0.1, 5.0)
    )
    idle_s: float = option(600.0, "time without any use, after which a stream is handed back", sim=(0.5, 30.0))
    upkeep_s: float = option(
        300.0, "time between rounds over streams without an owner (retention, deletion); 0: none", sim=(2.0, 20.0)
    )
    streams_max: int = option(
        10_000, "streams owned; beyond it one is handed back once it was quiet for a second", sim=(2, 50)
    )
    ping_every_s: float = option(0.15, "time between pings of each other write proxy", sim=(0.01, 0.5))
    ping_timeout_s: float = option(
        0.3, "least time without an answer, after which a proxy is suspected", sim=(0.05, 1.0)
    )
    cut_bytes: int = option(
        256 * KiB, "bytes of waiting batches that make an entry, even while others are in flight", sim=(64, 2 * KiB)
    )
    control_after_ms: float = option(
        10.0,
        "time without a further entry, after which a control record shows the last one to readers",
        sim=(0.0, 50.0),
    )
    control_records_per_s: int = option(400, "control records of all streams; those due beyond it come later")
    producers_max: int = option(4000, "producers remembered of a stream, 1 KB each; at most 10,000")

    def __post_init__(self) -> None:
        ServingOptions.__post_init__(self)
        check_positive(
            self, "connection_bytes_max", "stream_bytes_max", "process_bytes_max", "requests_max", "takes_max"
        )
        check_positive(self, "takes_at_once", "take_slow_s", "idle_s", "streams_max")
        check_positive(self, "ping_every_s", "ping_timeout_s", "cut_bytes", "producers_max")
        check_positive(self, "control_records_per_s")
        if self.producers_max > PRODUCERS_MAX:
            raise ValueError(f"producers_max is at most {PRODUCERS_MAX}: {self.producers_max}")

    @property
    def detector(self) -> DetectorOptions:
        return DetectorOptions(ping_every_s=self.ping_every_s, ping_timeout_s=self.ping_timeout_s)

    @property
    def owner(self) -> OwnerOptions:
        return OwnerOptions(
            cut_bytes=self.cut_bytes,
            control_after_ms=self.control_after_ms,
            pending_bytes_max=self.stream_bytes_max,
            producers_max=self.producers_max,
        )
