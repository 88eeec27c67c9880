"""Options of access to object storage, shared by the sections of stores that keep objects.

An empty option means the storage's usual default: for S3 its own environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL,
AWS_REGION, AWS_PROFILE, ...) and files.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog.options import check_positive, option

S3_ADDRESSING = ("auto", "path", "virtual")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStorageOptions:
    """How object storage is reached.

    s3_addressing: bucket in the path or in the host name. webhdfs_user: user name, for clusters without authentication;
    webhdfs_token: delegation token, for clusters with it. webhdfs_replication: copies of new objects, 0: the cluster's
    default.
    """

    timeout_s: float = option(60.0, "time for each request")
    s3_endpoint: str = option("", "URL of the S3 service; empty: AWS_ENDPOINT_URL, or Amazon's")
    s3_region: str = option("", "region; empty: AWS_REGION")
    s3_access_key: str = option("", "access key; empty: as AWS's own tools find it")
    s3_secret_key: str = option("", "secret key; goes with s3_access_key", repr=False)
    s3_session_token: str = option("", "token of temporary keys", repr=False)
    s3_addressing: str = option("auto", "where the bucket's name is put: auto, path or virtual (in the host's name)")
    s3_connections_max: int = option(64, "connections to the S3 service, at most")
    s3_busy_s: float = option(20.0, "time for which a request is repeated while S3 says that it is busy")
    webhdfs_user: str = option("", "user, for a cluster that asks for no proof")
    webhdfs_token: str = option("", "delegation token, for a cluster that asks for one", repr=False)
    webhdfs_replication: int = option(0, "copies of each object; 0: the cluster's own number")

    def __post_init__(self) -> None:
        check_positive(self, "timeout_s", "s3_connections_max", "s3_busy_s")
        if self.s3_addressing not in S3_ADDRESSING:
            raise ValueError(f"s3_addressing must be one of {', '.join(S3_ADDRESSING)}: {self.s3_addressing!r}")
        if bool(self.s3_access_key) != bool(self.s3_secret_key):
            raise ValueError("s3_access_key and s3_secret_key must be set together")
