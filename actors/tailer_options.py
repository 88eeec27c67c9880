"""What may be chosen about the source of a stream on a read proxy."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.options import KiB, MiB, option


@dataclass(frozen=True, slots=True, kw_only=True)
class TailerOptions:
    """Of one stream's source."""

    fetch_bytes: int = option(MiB, sim=(256, 64 * KiB))  # asked of a store at once
    metadata_wait_s: float = option(1.0, sim=(0.2, 1.0))  # at a reader's open, for metadata that is out of contact
    owner_wait_s: float = option(0.5, sim=(0.01, 0.5))  # for an owner's word on where the tail is, at a reader's open
    store_wait_s: float = option(1.0, sim=(0.01, 1.0))  # one long poll of the store's own LAC
    retry_min_s: float = option(0.05, sim=(0.001, 0.1))
    retry_max_s: float = option(1.0, sim=(0.1, 1.0))
    told_s: float = option(0.0002, sim=(0.0, 0.01))  # for each reader that was told of a LAC, before the next telling
    telling_max_s: float = option(0.01, sim=(0.0, 0.05))  # but no longer than that
