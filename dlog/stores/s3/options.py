"""The store `s3`: its name, its settings, and the options of its machines, from the section [objects]."""

from __future__ import annotations

from dlog.objects.compaction import CompactionOptions
from dlog.objects.node_options import STREAM_OBJECTS_MAX, NodeOptions
from dlog.stores.s3_direct.options import ObjectsOptions
from dlog.stores.settings import SettingsSchema
from dlog.wire.node_wal import ENTRY_BYTES_MAX as ENTRY_OVERHEAD
from dlog.wire.node_wal import FRAME_BYTES, HEAD_BYTES

NAME = "s3"
S3_SETTINGS = SettingsSchema(NAME)  # a stream has none
ENTRIES_IN_FLIGHT = 8  # of a segment; the log gathers those of all segments
WAL_OVERHEAD_BYTES = HEAD_BYTES + FRAME_BYTES + ENTRY_OVERHEAD  # of one entry, in a WAL entry of its own


def node_options(options: ObjectsOptions, wal_entry_bytes_max: int) -> NodeOptions:
    """Options of a node. wal_entry_bytes_max: of the store of its write-ahead log."""
    return NodeOptions(
        upload_bytes=options.upload_bytes,
        upload_interval_s=options.upload_s,
        stream_object_bytes=max(options.stream_object_bytes, -(-options.upload_bytes // STREAM_OBJECTS_MAX)),
        cache_bytes_max=max(options.node_cache_bytes_max, wal_entry_bytes_max),
        wal_entry_bytes_max=wal_entry_bytes_max,
        wal_segment_bytes=options.wal_segment_bytes,
    )


def compaction_options(options: ObjectsOptions) -> CompactionOptions:
    """When a node compacts, and how much."""
    return CompactionOptions(
        force_split_after_ms=int(options.split_after_s * 1000),
        split_bytes=options.stream_object_bytes,
        minor_bytes=options.minor_bytes,
        major_bytes=options.major_bytes,
    )
