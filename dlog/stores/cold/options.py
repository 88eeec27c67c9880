"""Configuration of cold storage, access and cache: section [cold], `DLOG_COLD_*`.

Every process that reads cold segments needs it: proxies, and programs with Spark. An empty option means the storage's
usual default: for S3 its own environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, AWS_REGION, AWS_PROFILE, ...) and files.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog.options import MiB, check_positive, option
from dlog.stores.cold.locations import Location, parse_root

S3_ADDRESSING = ("auto", "path", "virtual")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdOptions:
    """Memory is bounded by cache_bytes_max plus fetches_max x extent_bytes in flight.

    roots: locations such as `s3://bucket/prefix` below which objects may be read and deleted; none: anywhere.
    s3_addressing: bucket in the path or in the host name. webhdfs_user: user name, for clusters without authentication;
    webhdfs_token: delegation token, for clusters with it. webhdfs_replication: copies of new objects, 0: the cluster's
    default.
    """

    roots: tuple[str, ...] = option(
        (), "locations below which objects may be read and deleted, as s3://bucket/prefix; none: any"
    )
    extent_bytes: int = option(4 * MiB, "bytes read at once from an object that is read in sequence")
    cache_bytes_max: int = option(64 * MiB, "memory for what was read and may be asked for again")
    fetches_max: int = option(8, "requests at a time")
    timeout_s: float = option(60.0, "time for each request")
    s3_endpoint: str = option("", "URL of the S3 service; empty: AWS_ENDPOINT_URL, or Amazon's")
    s3_region: str = option("", "region; empty: AWS_REGION")
    s3_access_key: str = option("", "access key; empty: as AWS's own tools find it")
    s3_secret_key: str = option("", "secret key; goes with s3_access_key", repr=False)
    s3_session_token: str = option("", "token of temporary keys", repr=False)
    s3_addressing: str = option("auto", "where the bucket's name is put: auto, path or virtual (in the host's name)")
    webhdfs_user: str = option("", "user, for a cluster that asks for no proof")
    webhdfs_token: str = option("", "delegation token, for a cluster that asks for one", repr=False)
    webhdfs_replication: int = option(0, "copies of each object; 0: the cluster's own number")

    def __post_init__(self) -> None:
        check_positive(self, "extent_bytes", "cache_bytes_max", "fetches_max", "timeout_s")
        if self.s3_addressing not in S3_ADDRESSING:
            raise ValueError(f"s3_addressing must be one of {', '.join(S3_ADDRESSING)}: {self.s3_addressing!r}")
        if bool(self.s3_access_key) != bool(self.s3_secret_key):
            raise ValueError("s3_access_key and s3_secret_key must be set together")
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
