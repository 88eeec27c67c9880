"""Options of a read proxy."""

from __future__ import annotations

from dataclasses import dataclass

from actors.feed_options import FeedOptions
from dlog.options import KiB, MiB, check_positive, option
from proxies.read.owner_connections import UpstreamOptions
from proxies.serving import ServingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(ServingOptions):
    """Memory is limited to the sum of cache_bytes_max, fetches_max * fetch_bytes, 512 KiB unsent and one frame per
    reader for each connection, and process_bytes_max for batches forwarded to their owners and not replied to."""

    cache_bytes_max: int = option(64 * MiB, "memory for entries", sim=(0, 64 * KiB))
    fetch_bytes: int = option(MiB, "bytes asked of a store at once", sim=(256, 64 * KiB))
    chunk_bytes: int = option(256 * KiB, "bytes pushed to a reader at once; one entry may exceed it", sim=(1, 4 * KiB))
    fetches_max: int = option(16, "fetches at a time, of the process", sim=(1, 4))
    readers_max: int = option(10_000, "readers of the process; a further one is refused (517)", sim=(1, 8))
    readers_per_connection_max: int = option(1000, "readers of one connection", sim=(1, 4))
    streams_max: int = option(10_000, "streams followed at once", sim=(1, 4))
    connection_bytes_max: int = option(
        4 * MiB, "unanswered bytes of batches forwarded for a connection", sim=(KiB, MiB)
    )
    stream_bytes_max: int = option(16 * MiB, "unanswered bytes of batches forwarded to one stream", sim=(KiB, MiB))
    process_bytes_max: int = option(
        64 * MiB, "unanswered bytes of batches forwarded by the process", sim=(4 * KiB, 4 * MiB)
    )
    idle_s: float = option(30.0, "time without a reader, after which a stream is followed no more", sim=(0.1, 1.0))
    doubt_every_s: float = option(
        10.0, "time after which the metadata of a quiet stream is read again", sim=(1.0, 10.0)
    )
    contact_every_s: float = option(0.5, "time between two checks that ZooKeeper answers", sim=(0.1, 0.5))
    contact_patience_s: float = option(
        1.0, "time without ZooKeeper, after which readers are sent to another proxy", sim=(0.5, 1.0)
    )
    doubts_per_s_max: int = option(
        50, "streams of which metadata is read again for being quiet, of the process", sim=(1, 50)
    )
    connect_timeout_s: float = option(1.0, "time to connect to an owner", sim=(0.05, 1.0))
    ping_every_s: float = option(0.5, "time between pings of an owner that is followed", sim=(0.05, 1.0))
    ping_timeout_s: float = option(
        1.0, "time without an answer of an owner, after which the connection is given up", sim=(0.05, 1.0)
    )

    def __post_init__(self) -> None:
        ServingOptions.__post_init__(self)
        check_positive(self, "fetch_bytes", "chunk_bytes", "fetches_max", "readers_max", "readers_per_connection_max")
        check_positive(self, "connection_bytes_max", "stream_bytes_max", "process_bytes_max")
        check_positive(self, "streams_max", "idle_s", "doubt_every_s", "doubts_per_s_max")
        check_positive(self, "contact_every_s", "contact_patience_s")
        check_positive(self, "connect_timeout_s", "ping_every_s", "ping_timeout_s")

    @property
    def tailer(self) -> FeedOptions:
        """A fetch takes at most a quarter of the cache; otherwise entries are evicted before use and fetched again."""
        return FeedOptions(fetch_bytes=max(1, min(self.fetch_bytes, self.cache_bytes_max // 4)))

    @property
    def upstream(self) -> UpstreamOptions:
        return UpstreamOptions(
            connect_timeout_s=self.connect_timeout_s,
            ping_every_s=self.ping_every_s,
            ping_timeout_s=self.ping_timeout_s,
        )
