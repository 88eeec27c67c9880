"""Options of a region's owner, and of those who follow it."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.options import KiB, MiB, option
from dlog.region.tables import MAP_EVERY


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionOptions:
    """batch_bytes_max: of the records of one append. pinned_records: a table that keeps more offsets than this from
    being deleted is reported at each cleaning.

    format: version of the entries that are written; None: that of the region, 1 if it has none. 0 is HoraeDB's, without
    fences: two owners at a time are not kept from giving out the same sequences, so the caller must ensure, by a lease,
    that there is one. A region that was opened with format 1 can never be written with format 0 again.
    """

    batch_bytes_max: int = option(1 * MiB - 4 * KiB, sim=(400, 2 * KiB))  # Kafka's default limit, less its own bytes
    queue_bytes_max: int = option(16 * MiB, sim=(1 * KiB, 16 * KiB))  # of unanswered writes
    map_every: int = option(MAP_EVERY, sim=(1, 5))
    snapshot_bytes: int = option(16 * MiB, sim=(200, 4 * KiB))  # of log between two snapshots
    snapshots_kept: int = option(3, sim=(1, 3))
    pinned_records: int = option(1_000_000, sim=(1, 100))
    retry_s: float = option(0.2, sim=(0.01, 0.5))  # after a failure
    open_attempts: int = option(5, sim=(2, 5))
    format: int | None = None

    def __post_init__(self) -> None:
        if self.format not in (None, 0, 1):
            raise ValueError(f"the format of a region's entries is 0 or 1: format={self.format}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerOptions:
    """Options of a process that follows a region."""

    map_every: int = option(MAP_EVERY, sim=(1, 5))
    recent_bytes: int = option(8 * MiB, sim=(100, 4 * KiB))  # of entries that are kept for readers at the tail
    pinned_records: int = option(1_000_000, sim=(1, 100))  # a table that keeps more of them is reported at a trim
    load_attempts: int = option(5, sim=(2, 5))  # while the front of the data topic is deleted again and again
