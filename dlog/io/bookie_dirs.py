"""Prepares a bookie's directories: creates and locks them, and checks by their cookies that they are this bookie's.

Invariants:
- Nothing is written into a directory before its lock is held, and only VERSION and an empty MANIFEST before the cookies
  agree.
- A first start writes these files first and the cookie in ZooKeeper last. So an interrupted one leaves no data and can
  be repeated, and a directory that lacks its MANIFEST later has lost it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from dlog.bookie.cookie import Found, Verdict, check_registered, check_stored, judge
from dlog.bookie.manifest import IndexKind, Manifest, encode
from dlog.bookie.options import BookieOptions
from dlog.errors import ConfigError, CookieError
from dlog.io.bookie_store import StoragePaths
from dlog.io.disk import DirectoryLock, Disk, read_file, replace_file
from dlog.io.file_errors import remedy_for
from dlog.io.ledger_dir import MANIFEST
from dlog.io.metadata import Cookies
from dlog.io.threads import Threads
from dlog.machine import Versioned
from dlog.model.ids import BookieId
from dlog.wire.bookie_info import Cookie, decode_cookie, encode_cookie

VERSION = "VERSION"
_DATA = ("journal-", "spare-", "index-", "entries-", "database-")


def paths_of(options: BookieOptions, disk: Disk) -> StoragePaths:
    """Absolute paths. Raises ConfigError if two are equal or one is not allowed."""
    journal = options.journal_dir or os.path.join(options.dir, "journal")
    ledgers = [part.strip() for part in options.ledger_dirs.split(",") if part.strip()]
    ledgers = ledgers or [os.path.join(options.dir, "ledgers")]
    paths = StoragePaths(disk.real_path(journal), tuple(disk.real_path(path) for path in ledgers))
    if len({paths.journal, *paths.ledgers}) != 1 + len(paths.ledgers):
        raise ConfigError(f"journal and ledger directories must all differ: dirs={paths.journal},{paths.ledgers}")
    if any("," in path or "\t" in path or "\n" in path for path in (paths.journal, *paths.ledgers)):
        raise ConfigError("paths of a bookie's directories may not contain commas, tabs or line ends; choose others")
    return paths


@dataclass(slots=True)
class LockedDirs:
    """Directories locked by this process until `close`."""

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
    """Create missing directories and lock all. Raises CookieError if another bookie runs there, ConfigError on
    OSError."""
    locks: list[DirectoryLock] = []
    try:
        for directory in (paths.journal, *paths.ledgers):
            disk.make_dir(directory)
            locks.append(disk.lock(directory))
    except OSError as error:
        for lock in locks:
            lock.close()
        raise ConfigError(
            f"directory cannot be used: {error.strerror}: dir={error.filename}; {remedy_for(error)}"
        ) from error
    except CookieError:
        for lock in locks:
            lock.close()
        raise
    return LockedDirs(disk, paths, locks)


def lock_stopped(paths: StoragePaths, disk: Disk) -> LockedDirs:
    """Lock the directories of a stopped bookie; creates none. Raises CookieError if the bookie runs or these are not
    all directories of one, ConfigError on OSError."""
    directories = (paths.journal, *paths.ledgers)
    versions = [_read_version(disk, directory) for directory in directories]
    check_stored(directories, [None if text is None else text.decode(errors="replace") for text in versions])
    return lock_dirs(paths, disk)


def stored_id(dirs: LockedDirs) -> BookieId | None:
    """The bookie id in the VERSION files, if there is one."""
    for directory in dirs.all:
        version = _read_version(dirs.disk, directory)
        if version is not None:
            return decode_cookie(version.decode(errors="replace")).bookie
    return None


async def check_cookies(
    dirs: LockedDirs,
    bookie: BookieId,
    metadata: Cookies,
    threads: Threads,
    *,
    may_have_moved: bool = False,
    index: IndexKind = IndexKind.SORTED,
) -> Cookie:
    """Check that the directories are this bookie's; on a first start write the cookies. may_have_moved: if all were
    moved together, rewrite their cookies. index: of new ledger directories. Returns the bookie's cookie. Raises
    CookieError, MetadataUnavailableError."""
    paths = dirs.paths
    expected = Cookie(bookie, (paths.journal,), paths.ledgers, await metadata.instance_id())
    seen = await metadata.read_cookie(bookie)
    registered = str(seen.value) if isinstance(seen, Versioned) else None
    found = await threads.run(_look, dirs)
    verdict = judge(expected, registered, found, may_have_moved=may_have_moved)
    if verdict is Verdict.SERVE:
        return expected
    text = encode_cookie(expected)
    if verdict is Verdict.STAMP:
        await threads.run(_stamp, dirs, text, index)
    else:
        await threads.run(_write_version, dirs, text)
    await metadata.write_cookie(bookie, text, seen.version if isinstance(seen, Versioned) else None)
    return expected


async def check_still_known(expected: Cookie, metadata: Cookies) -> Versioned:
    """Check that the bookie was not taken out of the cluster since `check_cookies`, which returned its cookie. Returns
    the cookie in ZooKeeper. Raises CookieError, MetadataUnavailableError."""
    seen = await metadata.read_cookie(expected.bookie)
    check_registered(expected, str(seen.value) if isinstance(seen, Versioned) else None)
    assert isinstance(seen, Versioned)
    return seen


def _read_version(disk: Disk, directory: str) -> bytes | None:
    """The VERSION file. Raises CookieError if it cannot be read as a file."""
    try:
        return read_file(disk, directory, VERSION)
    except OSError as error:
        raise CookieError(
            f"the cookie cannot be read: {error.strerror}: file={directory}/{VERSION}; it must be a file that the "
            f"bookie's user may read"
        ) from error


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


def _stamp(dirs: LockedDirs, text: str, index: IndexKind) -> None:
    _write_version(dirs, text)
    for directory in dirs.paths.ledgers:
        replace_file(dirs.disk, directory, MANIFEST, encode(Manifest(kind=index)))


def _write_version(dirs: LockedDirs, text: str) -> None:
    for directory in dirs.all:
        replace_file(dirs.disk, directory, VERSION, text.encode())
