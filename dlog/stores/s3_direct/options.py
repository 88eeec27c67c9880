"""Configuration of segments in objects: section [objects], `DLOG_OBJECTS_*`. Every process that reads them needs it."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.options import MiB, check_positive, option
from dlog.stores.object_storage.locations import parse_root
from dlog.stores.object_storage.options import ObjectStorageOptions
from dlog.stores.settings import SettingsSchema

NAME = "s3-direct"
S3_DIRECT_SETTINGS = SettingsSchema(NAME)  # a stream has none


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsOptions(ObjectStorageOptions):
    """root: a location such as `s3://bucket/prefix`. Each cluster has a folder of its own below it.

    A writer of a segment needs memory for eight objects of chunk_bytes_max on their way. puts_per_s: of all segments of
    this process together; where more would be needed, objects become larger, and appends wait longer.
    """

    root: str = option(
        "", "where segments are kept as objects: s3://bucket/prefix or file:///directory; empty: no such store"
    )
    chunk_bytes_max: int = option(8 * MiB, "bytes of entries in an object; then the next one begins")
    linger_s: float = option(0.05, "how long an entry waits for others of its segment while an object is on its way")
    puts_per_s: float = option(100.0, "objects of entries created in a second, at most, of all segments together")
    retry_s: float = option(30.0, "how long an object is tried to be created; then a new segment begins")
    poll_min_s: float = option(0.05, "first wait for entries that another process appends; doubles up to poll_max_s")
    poll_max_s: float = option(2.0, "longest wait before the storage is asked again")
    fetches_max: int = option(16, "reads at a time")
    extent_bytes: int = option(2 * MiB, "bytes read at once from an object")
    reads_ahead: int = option(8, "reads that are begun before a sequential reader needs them")
    merges: bool = option(True, "merge the objects of a segment that has ended into one")
    merged_grace_s: float = option(900.0, "how long the objects of a segment stay after they were merged into one")
    cache_bytes_max: int = option(64 * MiB, "memory for what was read and may be asked for again")

    def __post_init__(self) -> None:
        ObjectStorageOptions.__post_init__(self)
        check_positive(self, "chunk_bytes_max", "puts_per_s", "retry_s", "poll_min_s", "poll_max_s")
        check_positive(self, "fetches_max", "extent_bytes", "reads_ahead", "cache_bytes_max")
        if self.merged_grace_s < 0:
            raise ValueError(f"merged_grace_s must not be negative: {self.merged_grace_s}")
        if self.root:
            parse_root(self.root)  # raises ConfigError
