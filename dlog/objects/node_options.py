"""Options of a node and of a failover worker."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.options import KiB, MiB, option

STREAM_OBJECTS_MAX = 500  # of one upload: its ids are prepared together


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """cache_bytes_max: of entries in memory; when so much is not uploaded, appends are refused. upload_bytes,
    upload_interval_s: what has gathered is uploaded when either is reached."""

    upload_bytes: int = option(64 * MiB, sim=(200, 2 * KiB))
    upload_interval_s: float = option(60.0, sim=(0.2, 5.0))
    stream_object_bytes: int = option(8 * MiB, sim=(50, 500))  # of a stream in one upload, to be an object of its own
    writes_in_flight: int = option(4, sim=(1, 4))  # objects
    cache_bytes_max: int = option(256 * MiB, sim=(2 * KiB, 8 * KiB))
    expiry_ms: int = option(60 * 60_000, sim=(300, 3000))  # of an upload, after which its objects may be deleted
    wal_entries_in_flight: int = option(4, sim=(1, 4))
    wal_entry_bytes_max: int = option(1 * MiB - 64 * KiB, sim=(300, 2 * KiB))  # of payloads and their frames
    wal_segment_bytes: int = option(64 * MiB, sim=(300, 4 * KiB))
    wal_read_entries: int = option(64, sim=(1, 8))  # of a recovery's question
    retry_s: float = option(0.2, sim=(0.01, 0.5))
    retry_max_s: float = option(5.0, sim=(0.5, 2.0))

    def __post_init__(self) -> None:
        if self.cache_bytes_max < self.wal_entry_bytes_max:
            text = "cache_bytes_max is at least wal_entry_bytes_max, else a large append never fits"
            raise ValueError(f"{text}: {self.cache_bytes_max} < {self.wal_entry_bytes_max}")
        if self.upload_bytes > STREAM_OBJECTS_MAX * self.stream_object_bytes:
            text = f"an upload has at most {STREAM_OBJECTS_MAX} stream objects, raise stream_object_bytes"
            raise ValueError(f"{text}: upload_bytes={self.upload_bytes} stream_object_bytes={self.stream_object_bytes}")
