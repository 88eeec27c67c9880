"""Configuration of cold storage, access and cache: section [cold], `DLOG_COLD_*`.

Every process that reads cold segments needs it: proxies, and programs with Spark.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog.options import MiB, check_positive, option
from dlog.stores.object_storage.locations import Location, parse_root
from dlog.stores.object_storage.options import ObjectStorageOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdOptions(ObjectStorageOptions):
    """Memory is bounded by cache_bytes_max plus fetches_max x extent_bytes in flight.

    roots: locations such as `s3://bucket/prefix` below which objects may be read and deleted; none: anywhere.
    """

    roots: tuple[str, ...] = option(
        (), "locations below which objects may be read and deleted, as s3://bucket/prefix; none: any"
    )
    extent_bytes: int = option(4 * MiB, "bytes read at once from an object that is read in sequence")
    cache_bytes_max: int = option(64 * MiB, "memory for what was read and may be asked for again")
    fetches_max: int = option(8, "requests at a time")

    def __post_init__(self) -> None:
        ObjectStorageOptions.__post_init__(self)
        check_positive(self, "extent_bytes", "cache_bytes_max", "fetches_max")
        self.allowed()

    def allowed(self) -> tuple[Location, ...]:
        """Return the parsed roots. Raises ConfigError."""
        whole: list[str] = []
        for text in self.roots:
            if "://" in text or not whole:
                whole.append(text)
            else:
                whole[-1] += f",{text}"  # hosts are separated by commas, too
        return tuple(map(parse_root, whole))
