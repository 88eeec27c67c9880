"""How an owner packs, bounds, rolls and retries; each with the range a simulation may push it to."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.options import KiB, MiB, option

PRODUCERS_MAX = 10_000  # of one stream: so many fit into half an entry, without the places of their batches


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerOptions:
    """Of one stream's owner.

    There is no linger: an entry is cut when the pipe has room (fewer than `inflight_entries_max` entries wait for their
    confirmation), or when `cut_bytes` wait.
    """

    inflight_entries_max: int = option(3, sim=(1, 4))
    cut_bytes: int = option(256 * KiB, sim=(64, 2 * KiB))  # an entry is closed at this size, one batch may exceed it
    pending_bytes_max: int = option(16 * MiB, sim=(1 * KiB, 16 * KiB))  # of all batches not yet answered
    control_after_ms: float = option(10.0, sim=(0.0, 50.0))  # how long a LAC may wait for a later entry to carry it
    snapshot_bytes: int = option(512 * KiB, sim=(128, 4 * KiB))  # of log between two snapshots of the producer table
    snapshot_ratio: int = option(32, sim=(0, 4))  # ... but at least so many times the size of the last snapshot
    producers_max: int = option(4000, sim=(4, 16))  # remembered; a batch of another one costs a second round trip
    places_max: int = option(5, sim=(1, 5))  # DLSNs kept per producer to answer duplicates with
    recover_segments_max: int = option(4, sim=(2, 4))  # how many segments back the producer table is looked for
    allocate_ahead: float = option(0.5, sim=(0.0, 1.0))  # of a segment's size or age, when the next one is created
    retry_after_s: float = option(0.1, sim=(0.001, 0.2))  # after a store's failure, doubled each time up to the next
    retry_after_max_s: float = option(5.0, sim=(0.2, 1.0))
    answer_timeout_s: float = option(5.0, sim=(0.05, 2.0))  # of a metadata question
    clocks_apart_max_s: float = option(60.0, sim=(0.2, 100.0))  # own and metadata's; further apart nothing expires
    deletes_max: int = option(4, sim=(1, 4))  # segments deleted at once
    truncate_portion: int = option(200, sim=(1, 3))  # truncated segments marked, deleted and forgotten together

    def __post_init__(self) -> None:
        if not 0 < self.producers_max <= PRODUCERS_MAX:
            raise ValueError(
                f"producers_max is from 1 to {PRODUCERS_MAX}, a snapshot must fit into an entry: {self.producers_max}"
            )
