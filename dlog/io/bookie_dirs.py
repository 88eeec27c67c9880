"""Prepares a bookie's directories: creates and locks them, and checks by their cookies that they are this bookie's.

Invariants:
- Nothing is written into a directory before its lock is held, and only VERSION and an empty MANIFEST before the cookies
  agree.
- A first start writes these files first and the cookie in ZooKeeper last. So an interrupted one leaves no data and can
  be repeated, and a directory that lacks its MANIFEST later has lost it.
- A change of the list of journals is written to journals that are added first, then to the other directories, then to
  ZooKeeper.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from dlog.bookie.cookie import (
    Found,
    Verdict,
    check_left_out,
    check_registered,
    check_stored,
    journals_left_out,
    judge,
)
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
_JOURNAL_DATA = ("journal-", "spare-")
_DATA = (*_JOURNAL_DATA, "index-", "entries-", "database-")


def paths_of(options: BookieOptions, disk: Disk) -> StoragePaths:
    """Absolute paths. Raises ConfigError if two are equal or one is not allowed."""

    def listed(dirs: str, default: str) -> tuple[str, ...]:
        named = [part.strip() for part in dirs.split(",") if part.strip()]
        return tuple(disk.real_path(path) for path in named or [os.path.join(options.dir, default)])

    paths = StoragePaths(listed(options.journal_dirs, "journal"), listed(options.ledger_dirs, "ledgers"))
    if len(set(paths.all)) != len(paths.all):
        raise ConfigError(f"journal and ledger directories must all differ: dirs={','.join(paths.all)}")
    if any("," in path or "\t" in path or "\n" in path for path in paths.all):
        raise ConfigError("paths of a bookie's directories may not contain commas, tabs or line ends; choose others")
    return paths


@dataclass(slots=True)
class LockedDirs:
    """Directories locked by this process until `close`. left_out: journals that are not in the list any more, and must
    be emptied before the bookie serves (dlog/io/journal_removal.py)."""

    disk: Disk
    paths: StoragePaths
    locks: list[DirectoryLock]
    left_out: tuple[str, ...] = ()

    def close(self) -> None:
        for lock in self.locks:
            lock.close()

    @property
    def all(self) -> tuple[str, ...]:
        return self.paths.all

    @property
    def stored(self) -> StoragePaths:
        """The directories that hold what is stored, those of journals that were left out included."""
        return StoragePaths((*self.paths.journals, *self.left_out), self.paths.ledgers)


def lock_dirs(paths: StoragePaths, disk: Disk) -> LockedDirs:
    """Create missing directories and lock all. Raises CookieError if another bookie runs there, ConfigError on
    OSError."""
    locks: list[DirectoryLock] = []
    try:
        for directory in paths.all:
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
    versions = [_read_version(disk, directory) for directory in paths.all]
    check_stored(paths.all, [None if text is None else text.decode(errors="replace") for text in versions])
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
    """Check that the directories are this bookie's; on a first start, or if journals were added, write the cookies.
    may_have_moved: if all were moved together, rewrite their cookies. If journals were left out, lock them, set
    `dirs.left_out` and write nothing. index: of new ledger directories. Returns the bookie's cookie. Raises
    CookieError, MetadataUnavailableError."""
    paths = dirs.paths
    expected = Cookie(bookie, paths.journals, paths.ledgers, await metadata.instance_id())
    seen = await metadata.read_cookie(bookie)
    registered = str(seen.value) if isinstance(seen, Versioned) else None
    found = await threads.run(_look, dirs)
    verdict = judge(expected, registered, found, may_have_moved=may_have_moved)
    if verdict is Verdict.LEAVE_OUT:
        assert registered is not None
        await threads.run(_lock_left_out, dirs, expected, journals_left_out(expected, registered, found))
    if verdict in (Verdict.SERVE, Verdict.LEAVE_OUT):
        return expected
    text = encode_cookie(expected)
    if verdict is Verdict.STAMP:
        await threads.run(_stamp, dirs, text, index)
    else:
        await threads.run(write_version, dirs, text)
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


def _lock_left_out(dirs: LockedDirs, expected: Cookie, left_out: tuple[str, ...]) -> None:
    versions = [_read_version(dirs.disk, directory) for directory in left_out]
    check_left_out(expected, left_out, [None if text is None else text.decode(errors="replace") for text in versions])
    for directory in left_out:
        try:
            dirs.locks.append(dirs.disk.lock(directory))
        except OSError as error:
            raise ConfigError(
                f"directory cannot be used: {error.strerror}: dir={directory}; {remedy_for(error)}"
            ) from error
    dirs.left_out = left_out


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
    write_version(dirs, text)
    for directory in dirs.paths.ledgers:
        replace_file(dirs.disk, directory, MANIFEST, encode(Manifest(kind=index)))


def write_version(dirs: LockedDirs, text: str) -> None:
    """Write the cookie to all directories, first to the journal that was added last. Blocks. Raises OSError."""
    for directory in (*reversed(dirs.paths.journals), *dirs.paths.ledgers):
        replace_file(dirs.disk, directory, VERSION, text.encode())


def clear_left_out(dirs: LockedDirs) -> None:
    """Delete what is left in journals that were left out, when no cookie names them any more. Blocks. Raises
    OSError."""
    for directory in dirs.left_out:
        for name in dirs.disk.names(directory):
            if name.startswith(_JOURNAL_DATA):
                dirs.disk.unlink(f"{directory}/{name}")
        dirs.disk.unlink(f"{directory}/{VERSION}")
        dirs.disk.sync_dir(directory)
    dirs.left_out = ()
