"""Configuration of the store on regions: a part of section [kafka], `DLOG_KAFKA_*`."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.options import GiB, MiB, check_positive, option
from dlog.stores.settings import SettingsSchema

NAME = "kafka"
KAFKA_SETTINGS = SettingsSchema(NAME)  # a stream has none


@dataclass(frozen=True, kw_only=True)
class KafkaStoreOptions:
    """Bounds of the regions that this process writes and reads."""

    region_bytes: int = option(1 * GiB, "bytes of records in a region; then the next one begins")
    region_tables: int = option(10_000, "segments in a region; then the next one begins")
    trim_bytes: int = option(128 * MiB, "bytes of deleted segments until the front of their region is deleted")
    recent_bytes: int = option(
        8 * MiB, "bytes of the newest entries of each region with readers that are kept, and as many of older ones"
    )
    poll_min_s: float = option(0.005, "first wait for entries that another process appends; doubles up to poll_max_s")
    poll_max_s: float = option(0.2, "longest wait before the topic is looked at again")
    reload_after_s: float = option(30.0, "the state of a region that nobody used for so long is read again")
    regions_max: int = option(64, "regions without a reader of which the state is kept")
    sweep_s: float = option(86_400.0, "how often regions without segments are looked for and deleted")

    def __post_init__(self) -> None:
        check_positive(self, "region_bytes", "region_tables", "trim_bytes", "recent_bytes")
        check_positive(self, "poll_min_s", "poll_max_s", "reload_after_s", "regions_max", "sweep_s")
