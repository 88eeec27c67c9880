"""One start of a bookie on a simulated disk through the production start code: locks, cookies, storage; no event loop.

The metadata store is the one in memory; its coroutines never really wait, so they are stepped by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple, cast

from dlog.bookie.manifest import IndexKind
from dlog.bookie.options import BookieOptions
from dlog.events import Event
from dlog.io.bookie_dirs import check_cookies, lock_dirs, paths_of
from dlog.io.bookie_store import OpenedStorage, open_storage
from dlog.io.journal_removal import remove_journals
from dlog.io.threads import Threads
from dlog.model.ids import BookieId
from tests.crashpoints.station import PATHS, Station
from tests.memory_metadata import MemoryMetadata
from tests.simulation.disk import SimulatedDisk

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

OPTIONS = BookieOptions(
    journal_dirs=",".join(PATHS.journals),
    ledger_dirs=",".join(PATHS.ledgers),
    journal_file_bytes=16 * 1024,
    entry_log_bytes=400,
    read_cache_bytes=0,
    disk_free_min_bytes=0,
    disk_free_reserve_bytes=0,
    gc_reserve_bytes=300,
)
BOOKIE = BookieId("bookie:1")


class _Here:
    """Runs blocking work at once."""

    async def run(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        return work(*args)


def stepped(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that only yields."""
    while True:
        try:
            work.send(None)
        except StopIteration as done:
            return cast(T, done.value)


def begin(
    disk: SimulatedDisk, metadata: MemoryMetadata, options: BookieOptions = OPTIONS, bookie: BookieId = BOOKIE
) -> Station:
    """Start the bookie. Raises the error of a bookie that must not serve."""
    dirs = lock_dirs(paths_of(options, disk), disk)
    try:
        threads = cast(Threads, _Here())
        cookie = stepped(check_cookies(dirs, bookie, metadata, threads, index=IndexKind(options.index)))
        events: list[Event] = []
        opened: OpenedStorage = open_storage(disk, options, dirs.stored, bookie, events.append)
        if dirs.left_out:
            stepped(remove_journals(dirs, opened, cookie, metadata, threads))
            opened = open_storage(disk, options, dirs.stored, bookie, events.append)
        return Station(disk, options, opened, events)
    finally:
        dirs.close()
