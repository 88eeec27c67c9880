"""A bookie's directories before it serves: made, locked, and judged to be its own.

The law of this file: nothing is written into a directory before its lock is held, and nothing but VERSION before the
cookies agree. VERSION is written to the directories first and to ZooKeeper last, so an interrupted first start leaves
directories without data, which the next start may take.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from dlog.bookie.cookie import Found, Verdict, judge
from dlog.bookie.options import BookieOptions
from dlog.errors import ConfigError, CookieError
from dlog.io.bookie_store import StoragePaths
from dlog.io.disk import DirectoryLock, Disk, RealDisk, make_dir, read_whole, write_whole
from dlog.io.metadata import Metadata
from dlog.machine import Versioned
from dlog.model.ids import BookieId
from dlog.wire.bookie_info import Cookie, decode_cookie, encode_cookie

VERSION = "VERSION"
_DATA = ("journal-", "spare-", "index-", "entries-", "MANIFEST")


def paths_of(options: BookieOptions) -> StoragePaths:
    """Absolute paths. Raises ConfigError if two directories are the same."""
    journal = options.journal_dir or os.path.join(options.dir, "journal")
    ledgers = [part.strip() for part in options.ledger_dirs.split(",") if part.strip()]
    ledgers = ledgers or [os.path.join(options.dir, "ledgers")]
    paths = StoragePaths(os.path.realpath(journal), tuple(os.path.realpath(path) for path in ledgers))
    if len({paths.journal, *paths.ledgers}) != 1 + len(paths.ledgers):
        raise ConfigError(f"journal and ledger directories must all differ: dirs={paths.journal},{paths.ledgers}")
    if any("," in path or "\t" in path or "\n" in path for path in (paths.journal, *paths.ledgers)):
        raise ConfigError("paths of a bookie's directories may not hold commas, tabs or line ends")
    return paths


@dataclass(slots=True)
class LockedDirs:
    """Directories this process has to itself until `close`."""

    paths: StoragePaths
    locks: list[DirectoryLock]

    def close(self) -> None:
        for lock in self.locks:
            lock.close()

    @property
    def all(self) -> tuple[str, ...]:
        return (self.paths.journal, *self.paths.ledgers)


def lock_dirs(paths: StoragePaths) -> LockedDirs:
    """Make what is missing and lock all. Raises CookieError if another bookie runs there, ConfigError if they cannot
    be made or written."""
    locks: list[DirectoryLock] = []
    try:
        for directory in (paths.journal, *paths.ledgers):
            make_dir(directory)
            locks.append(DirectoryLock(directory))
    except OSError as error:
        for lock in locks:
            lock.close()
        raise ConfigError(f"directory cannot be used: {error.strerror}: dir={error.filename}") from error
    except CookieError:
        for lock in locks:
            lock.close()
        raise
    return LockedDirs(paths, locks)


def stored_id(dirs: LockedDirs) -> BookieId | None:
    """The id these directories were stamped with, if any."""
    for directory in dirs.all:
        version = read_whole(RealDisk(), directory, VERSION)
        if version is not None:
            return decode_cookie(version).bookie
    return None


async def check_cookies(dirs: LockedDirs, bookie: BookieId, metadata: Metadata) -> None:
    """Serve only on our own disks. Raises CookieError, or MetadataUnavailableError."""
    disk: Disk = RealDisk()
    paths = dirs.paths
    expected = Cookie(bookie, (paths.journal,), paths.ledgers, await metadata.instance_id())
    seen = await metadata.read_cookie(bookie)
    registered = str(seen.value) if isinstance(seen, Versioned) else None
    found = [_look(disk, directory) for directory in dirs.all]
    if judge(expected, registered, found) is Verdict.STAMP:
        text = encode_cookie(expected)
        for directory in dirs.all:
            write_whole(disk, directory, VERSION, text.encode())
        await metadata.write_cookie(bookie, text, None)


def _look(disk: Disk, directory: str) -> Found:
    version = read_whole(disk, directory, VERSION)
    has_data = any(name.startswith(_DATA) for name in disk.names(directory))
    return Found(directory, None if version is None else version.decode(errors="replace"), has_data)
