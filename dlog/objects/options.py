"""Options of the controller of streams in objects."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.options import KiB, MiB, option

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerOptions:
    """Limits of what the metadata may hold, and when objects are deleted and snapshots are written.

    pending_max: operations that are not answered. expiry: how long an object may be prepared and not committed; it must
    be longer than the slowest upload. unopened_ms: how long a stream may be created and not opened. retention_ms:
    between the record that marks an object and its deletion, so that readers with an older image still find it.
    appends_in_flight: entries of the metadata stream; what comes meanwhile gathers for the next one. At most the window
    of a producer (WINDOW_MIN), since nothing below queues them.
    gathered_bytes_max: of records of several operations in one entry.
    """

    pending_max: int = option(1000, sim=(2, 40))
    appends_in_flight: int = option(4, sim=(1, 4))
    gathered_bytes_max: int = option(64 * KiB, sim=(1, 500))
    keys_max: int = option(1_000_000)
    streams_max: int = option(1_000_000)
    streams_per_key_max: int = option(16)
    streams_per_close_max: int = option(10_000)
    ranges_max: int = option(10_000)  # of one stream
    nodes_max: int = option(10_000)
    wal_segments_max: int = option(10_000)  # of one node
    prepare_max: int = option(1000, sim=(2, 10))  # ids at once
    prepared_max: int = option(100_000, sim=(10, 100))  # objects
    expiry_min_ms: int = option(5 * _MINUTE_MS, sim=(100, 1000))
    expiry_max_ms: int = option(25 * 60 * _MINUTE_MS)
    unopened_ms: int = option(60 * _MINUTE_MS, sim=(500, 5000))
    retention_ms: int = option(10 * _MINUTE_MS, sim=(1, 2000))
    delete_max: int = option(1000, sim=(1, 5))  # objects deleted at once, as many as one request takes
    snapshot_records: int = option(1_000_000, sim=(5, 100))  # between two snapshots
    snapshot_bytes: int = option(64 * MiB, sim=(500, 10_000))  # of records between two snapshots
