"""Options of a stream's source on a read proxy."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.options import KiB, MiB, option


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedOptions:
    """Options of one stream's source."""

    fetch_bytes: int = option(MiB, sim=(256, 64 * KiB))  # read from a store in one request
    metadata_wait_s: float = option(1.0, sim=(0.2, 1.0))  # longest wait of a new reader for ZooKeeper
    owner_wait_s: float = option(0.5, sim=(0.01, 0.5))  # longest wait of a new reader for the owner's LAC
    store_wait_s: float = option(1.0, sim=(0.01, 1.0))  # length of one long poll of the store's LAC
    retry_min_s: float = option(0.05, sim=(0.001, 0.1))
    retry_max_s: float = option(1.0, sim=(0.1, 1.0))
    notify_pause_s: float = option(0.0002, sim=(0.0, 0.01))  # pause per tail reader before the next notification
    notify_pause_max_s: float = option(0.01, sim=(0.0, 0.05))  # longest such pause
