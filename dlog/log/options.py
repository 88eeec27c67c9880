"""Options of a stream's owner: packing, limits, rolling, retries; each with the range that simulations draw from."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.model.window import WINDOW_MIN
from dlog.options import KiB, MiB, option

PRODUCERS_MAX = 10_000  # per stream: that many fit into half an entry, without the DLSNs of their batches


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerOptions:
    """Options of one stream's owner.

    There is no linger: an entry is packed when fewer entries are in flight than the segment's store can use
    (Capabilities.entries_in_flight), or when `cut_bytes` wait.
    """

    cut_bytes: int = option(256 * KiB, sim=(64, 2 * KiB))  # an entry's target size; a single batch may exceed it
    pending_bytes_max: int = option(16 * MiB, sim=(1 * KiB, 16 * KiB))  # of all unanswered batches
    control_after_ms: float = option(10.0, sim=(0.0, 50.0))  # how long the LAC waits for a later entry to carry it
    snapshot_bytes: int = option(512 * KiB, sim=(128, 4 * KiB))  # of log between two snapshots of the producer table
    snapshot_ratio: int = option(32, sim=(0, 4))  # ... but at least this many times the size of the last snapshot
    producers_max: int = option(4000, sim=(4, 16))  # in the producer table; others pay a second round trip
    window_min: int = option(WINDOW_MIN, sim=(1, 5))  # unanswered batches allowed to a producer, whatever the store
    recover_segments_max: int = option(4, sim=(2, 4))  # segments in which recovery looks for the producer table
    allocate_ahead: float = option(0.5, sim=(0.0, 1.0))  # fraction of a segment's size or age: create the next one then
    retry_after_s: float = option(0.1, sim=(0.001, 0.2))  # after a store failure; doubles up to retry_after_max_s
    retry_after_max_s: float = option(5.0, sim=(0.2, 1.0))
    answer_timeout_s: float = option(5.0, sim=(0.05, 2.0))  # of a metadata request
    clocks_apart_max_s: float = option(60.0, sim=(0.2, 100.0))  # proxy's from metadata's; beyond it nothing expires
    deletes_max: int = option(4, sim=(1, 4))  # segments deleted at the same time
    truncate_portion: int = option(200, sim=(1, 3))  # truncated segments marked, deleted and removed together

    def __post_init__(self) -> None:
        if not 0 < self.producers_max <= PRODUCERS_MAX:
            raise ValueError(
                f"producers_max is from 1 to {PRODUCERS_MAX}, a snapshot must fit into an entry: {self.producers_max}"
            )
