"""Configuration of the file store: section [file], `DLOG_FILE_*`. Every process that reads its segments needs it."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.options import MiB, check_positive, option
from dlog.stores.settings import SettingsSchema

NAME = "file"
FILE_SETTINGS = SettingsSchema(NAME)  # a stream has none


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStoreOptions:
    """directory: on a local file system of the one machine on which all processes of the cluster run; not on a network
    file system, where one process may not see at once that another has removed a file."""

    directory: str = option("", "directory of segments in files, on a local file system; empty: no such store")
    poll_min_s: float = option(0.005, "first wait for entries that another process appends; doubles up to poll_max_s")
    poll_max_s: float = option(0.25, "longest wait before the file is looked at again")
    append_bytes_max: int = option(8 * 1024 * 1024, "bytes of entries written and synced together, of one segment")
    threads: int = option(4, "segments that are written at a time")
    reserve_bytes: int = option(4 * MiB, "space for ending segments on a full disk, some 8 KiB each; 0: none")

    def __post_init__(self) -> None:
        check_positive(self, "poll_min_s", "poll_max_s", "append_bytes_max", "threads")
        if self.reserve_bytes < 0:
            raise ValueError(f"reserve_bytes must not be negative: value={self.reserve_bytes}")
