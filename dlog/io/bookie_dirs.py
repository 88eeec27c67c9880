"""A bookie's directories before it serves: made, locked, and judged to be its own.

The law of this file: nothing is written into a directory before its lock is held, and nothing but VERSION and an empty
MANIFEST before the cookies agree. Those are written to the directories first, and the cookie to ZooKeeper last: so an
interrupted first start leaves directories without data, which the next start may take, and a directory that lacks its
MANIFEST later has lost it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from dlog.bookie.cookie import Found, Verdict, judge
from dlog.bookie.manifest import Manifest, encode
from dlog.bookie.options import BookieOptions
from dlog.errors import ConfigError, CookieError
from dlog.io.bookie_store import StoragePaths
from dlog.io.disk import DirectoryLock, Disk, read_whole, write_whole
from dlog.io.file_errors import what_to_do
from dlog.io.ledger_dir import MANIFEST
from dlog.io.metadata import Metadata
from dlog.io.threads import Threads
from dlog.machine import Versioned
from dlog.model.ids import BookieId
from dlog.wire.bookie_info import Cookie, decode_cookie, encode_cookie

VERSION = "VERSION"
_DATA = ("journal-", "spare-", "index-", "entries-")


def paths_of(options: BookieOptions, disk: Disk) -> StoragePaths:
    """Absolute paths. Raises ConfigError if two directories are the same."""
    journal = options.journal_dir or os.path.join(options.dir, "journal")
    ledgers = [part.strip() for part in options.ledger_dirs.split(",") if part.strip()]
    ledgers = ledgers or [os.path.join(options.dir, "ledgers")]
    paths = StoragePaths(disk.real_path(journal), tuple(disk.real_path(path) for path in ledgers))
    if len({paths.journal, *paths.ledgers}) != 1 + len(paths.ledgers):
        raise ConfigError(f"journal and ledger directories must all differ: dirs={paths.journal},{paths.ledgers}")
    if any("," in path or "\t" in path or "\n" in path for path in (paths.journal, *paths.ledgers)):
        raise ConfigError("paths of a bookie's directories may not hold commas, tabs or line ends")
    return paths


@dataclass(slots=True)
class LockedDirs:
    """Directories this process has to itself until `close`."""

    disk: Disk
    paths: StoragePaths
    locks: list[DirectoryLock]

    def close(self) -> None:
        for lock in self.locks:
            lock.close()

    @property
    def all(self) -> tuple[str, ...]:
        return (self.paths.journal, *self.paths.ledgers)


def lock_dirs(paths: StoragePaths, disk: Disk) -> LockedDirs:
    """Make what is missing and lock all. Raises CookieError if another bookie runs there, ConfigError if they cannot
    be made or written."""
    locks: list[DirectoryLock] = []
    try:
        for directory in (paths.journal, *paths.ledgers):
            disk.make_dir(directory)
            locks.append(disk.lock(directory))
    except OSError as error:
        for lock in locks:
            lock.close()
        raise ConfigError(
            f"directory cannot be used: {error.strerror}: dir={error.filename}; {what_to_do(error)}"
        ) from error
    except CookieError:
        for lock in locks:
            lock.close()
        raise
    return LockedDirs(disk, paths, locks)


def stored_id(dirs: LockedDirs) -> BookieId | None:
    """The id these directories were stamped with, if any."""
    for directory in dirs.all:
        version = _read_version(dirs.disk, directory)
        if version is not None:
            return decode_cookie(version.decode(errors="replace")).bookie
    return None


async def check_cookies(
    dirs: LockedDirs, bookie: BookieId, metadata: Metadata, threads: Threads, *, may_have_moved: bool = False
) -> None:
    """Serve only on our own disks. may_have_moved: also if all of them lie elsewhere now, moved together; their cookies
    are written anew then. Raises CookieError, or MetadataUnavailableError."""
    paths = dirs.paths
    expected = Cookie(bookie, (paths.journal,), paths.ledgers, await metadata.instance_id())
    seen = await metadata.read_cookie(bookie)
    registered = str(seen.value) if isinstance(seen, Versioned) else None
    found = await threads.run(_look, dirs)
    verdict = judge(expected, registered, found, may_have_moved=may_have_moved)
    if verdict is Verdict.SERVE:
        return
    text = encode_cookie(expected)
    await threads.run(_stamp if verdict is Verdict.STAMP else _write_version, dirs, text)
    await metadata.write_cookie(bookie, text, seen.version if isinstance(seen, Versioned) else None)


def _read_version(disk: Disk, directory: str) -> bytes | None:
    """Raises CookieError for what is no file of ours."""
    try:
        return read_whole(disk, directory, VERSION)
    except OSError as error:
        raise CookieError(f"the cookie cannot be read: {error.strerror}: file={directory}/{VERSION}") from error


def _look(dirs: LockedDirs) -> list[Found]:
    found: list[Found] = []
    for directory in dirs.all:
        version = _read_version(dirs.disk, directory)
        names = dirs.disk.names(directory)
        found.append(
            Found(
                directory,
                None if version is None else version.decode(errors="replace"),
                has_data=any(name.startswith(_DATA) for name in names),
                lacks_manifest=directory in dirs.paths.ledgers and MANIFEST not in names,
            )
        )
    return found


def _stamp(dirs: LockedDirs, text: str) -> None:
    _write_version(dirs, text)
    for directory in dirs.paths.ledgers:
        write_whole(dirs.disk, directory, MANIFEST, encode(Manifest()))


def _write_version(dirs: LockedDirs, text: str) -> None:
    for directory in dirs.all:
        write_whole(dirs.disk, directory, VERSION, text.encode())
