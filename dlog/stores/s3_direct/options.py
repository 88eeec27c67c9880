"""Configuration of segments in objects: section [objects], `DLOG_OBJECTS_*`. Every process that reads them needs it."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.options import MiB, check_positive, option
from dlog.stores.object_storage.locations import parse_root
from dlog.stores.object_storage.options import ObjectStorageOptions
from dlog.stores.object_storage.read_limits import ReadLimits
from dlog.stores.settings import SettingsSchema

NAME = "s3-direct"
WAL_STORES = ("", "ledger", "s3-direct", "file")
S3_DIRECT_SETTINGS = SettingsSchema(NAME)  # a stream has none


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsOptions(ObjectStorageOptions):
    """root: a location such as `s3://bucket/prefix`. Each cluster has a folder of its own below it.

    A writer of a segment needs memory for eight objects of chunk_bytes_max on their way. puts_per_s: of all segments of
    this process together; where more would be needed, objects become larger, and appends wait longer.

    The options from `wal` on are those of the store `s3`, which has its objects below the same root.
    node_cache_bytes_max should be some times upload_bytes, so that appends go on during uploads. What is merged is
    written again whole: the larger major_bytes, the fewer objects, and the more is written.
    """

    root: str = option(
        "", "where segments are kept as objects: s3://bucket/prefix or file:///directory; empty: no such store"
    )
    chunk_bytes_max: int = option(8 * MiB, "bytes of entries in an object; then the next one begins")
    linger_s: float = option(0.05, "how long an entry waits for others of its segment while an object is on its way")
    puts_per_s: float = option(100.0, "objects of entries created in a second, at most, of all segments together")
    retry_s: float = option(
        20.0, "how long a failing request is repeated; then waiting clients get the reason, and a recovery begins"
    )
    poll_min_s: float = option(0.05, "first wait for entries that another process appends; doubles up to poll_max_s")
    poll_max_s: float = option(2.0, "longest wait before the storage is asked again")
    fetches_max: int = option(16, "reads at a time")
    extent_bytes: int = option(2 * MiB, "bytes read at once from an object")
    reads_ahead: int = option(8, "reads that are begun before a sequential reader needs them")
    merges: bool = option(True, "merge the objects of a segment that has ended into one")
    merged_grace_s: float = option(900.0, "how long the objects of a segment stay after they were merged into one")
    cache_bytes_max: int = option(64 * MiB, "memory for what was read and may be asked for again")
    wal: str = option("", "store of the write-ahead log of `s3`: ledger, s3-direct or file; empty: the first there is")
    upload_bytes: int = option(64 * MiB, "entries of `s3` that are uploaded together")
    upload_s: float = option(60.0, "age at which entries of `s3` are uploaded")
    stream_object_bytes: int = option(8 * MiB, "a segment of `s3` with so much in an upload has an object of its own")
    node_cache_bytes_max: int = option(
        256 * MiB, "memory for entries of `s3` that are not uploaded; then appends wait for uploads"
    )
    wal_segment_bytes: int = option(64 * MiB, "size at which the next segment of the write-ahead log begins")
    compaction_s: float = option(600.0, "time between two looks for objects of `s3` that should be merged or split")
    split_after_s: float = option(7200.0, "age at which the streams of a shared object of `s3` get their own objects")
    minor_bytes: int = option(128 * MiB, "largest object that a frequent merge makes")
    major_bytes: int = option(1024 * MiB, "largest object that a rare merge makes")
    marked_grace_s: float = option(
        600.0, "how long an object of `s3` stays that is needed no more, for readers with older metadata"
    )

    @property
    def read_limits(self) -> ReadLimits:
        """What a reader of one stream may request at once, and before it needs it."""
        return ReadLimits.of_cache(self.extent_bytes, self.reads_ahead, self.cache_bytes_max)

    def __post_init__(self) -> None:
        ObjectStorageOptions.__post_init__(self)
        check_positive(self, "chunk_bytes_max", "puts_per_s", "retry_s", "poll_min_s", "poll_max_s")
        check_positive(self, "fetches_max", "extent_bytes", "reads_ahead", "cache_bytes_max")
        if self.merged_grace_s < 0:
            raise ValueError(f"merged_grace_s must not be negative: {self.merged_grace_s}")
        check_positive(self, "upload_bytes", "upload_s", "stream_object_bytes", "node_cache_bytes_max")
        check_positive(self, "wal_segment_bytes", "compaction_s", "split_after_s", "minor_bytes", "major_bytes")
        if self.marked_grace_s < 0:
            raise ValueError(f"marked_grace_s must not be negative: {self.marked_grace_s}")
        if self.wal not in WAL_STORES:
            raise ValueError(f"wal must be empty or one of {', '.join(filter(None, WAL_STORES))}: {self.wal!r}")
        if self.root:
            parse_root(self.root)  # raises ConfigError
