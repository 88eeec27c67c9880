"""Configuration of the file store: section [file], `DLOG_FILE_*`. Every process that reads its segments needs it."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.options import check_positive, option


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStoreOptions:
    """directory: on a local file system of the one machine on which all processes of the cluster run; not on a network
    file system, where one process may not see at once that another has removed a file."""

    directory: str = option("", "directory of segments in files, on a local file system; empty: no such store")
    poll_min_s: float = option(0.005, "first wait for entries that another process appends; doubles up to poll_max_s")
    poll_max_s: float = option(0.25, "longest wait before the file is looked at again")
    append_bytes_max: int = option(8 * 1024 * 1024, "bytes of entries written and synced together, of one segment")
    threads: int = option(4, "segments that are written at a time")

    def __post_init__(self) -> None:
        check_positive(self, "poll_min_s", "poll_max_s", "append_bytes_max", "threads")
