"""Runs a bookie on a given environment, from locking its directories to its last checkpoint.

In this order: lock the directories, check their cookies against ZooKeeper, replay the journal, listen, register,
report ready. Each registration, also that of a later session, checks the cookie in ZooKeeper again: a decommission
deletes it. Nothing is kept afterwards. Flags, signals and logs of the process are in __main__.py, so that the
simulation can run the same code.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

from actors.bookie.moved_copies import OtherCopies
from actors.bookie.server import BookieMetadata, BookieServer, DiskFailedError, Listen
from dlog.bookie.events import BookieStarted, JournalsRemoved
from dlog.bookie.garbage_collection import GarbageCollector
from dlog.bookie.manifest import IndexKind
from dlog.bookie.options import BookieOptions
from dlog.events import Event
from dlog.hostport import split_host_port
from dlog.io.bookie_dirs import LockedDirs, check_cookies, check_still_known, lock_dirs, paths_of, stored_id
from dlog.io.bookie_store import OpenedStorage, open_storage
from dlog.io.disk import Disk
from dlog.io.gc_mark_file import read_mark_record
from dlog.io.journal_removal import remove_journals
from dlog.io.metadata import BookieInfo
from dlog.io.metadata_contact import connection_events
from dlog.io.threads import Threads
from dlog.machine import Versioned
from dlog.model.ids import BookieId, bookie_id
from dlog.model.location import NetworkLocation
from dlog.wire.bookie_info import Cookie


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieEnvironment:
    """Environment of a bookie: disk, threads, metadata and network.

    connect: opens the metadata store, after the directories are locked. listen: see server.py; address: its host:port
    as advertised. tls: the bookie's certificate, if it has one. others: opens the look at copies on other bookies, for
    the bookie of this id; None: copies that were moved there are kept here, too.
    """

    disk: Disk
    threads: Threads
    connect: Callable[[], AbstractAsyncContextManager[BookieMetadata]]
    listen: Listen
    address: str
    tls: ssl.SSLContext | None = None
    random_bits: Callable[[int], int] = secrets.randbits
    others: Callable[[BookieId], AbstractAsyncContextManager[OtherCopies]] | None = None


async def run(
    options: BookieOptions,
    environment: BookieEnvironment,
    stopping: asyncio.Event,
    *,
    on_event: Callable[[Event], None],
    on_ready: Callable[[BookieInfo], None],
) -> None:
    """Run until `stopping` is set. Raises ConfigError, CookieError, DamagedError, MetadataUnavailableError,
    UnavailableError before it serves; DiskFailedError when it must stop, CookieError when a decommission took it out of
    the cluster while it had no ZooKeeper session. Cancelling ends it without a checkpoint.
    """
    paths = paths_of(options, environment.disk)
    dirs = await environment.threads.run(lock_dirs, paths, environment.disk)
    try:
        bookie = await environment.threads.run(_id, options, dirs, environment.address)
        async with environment.connect() as metadata:
            cookie = await check_cookies(
                dirs,
                bookie,
                metadata,
                environment.threads,
                may_have_moved=options.dirs_moved,
                index=IndexKind(options.index),
            )
            opened = await environment.threads.run(_open, options, environment, dirs, bookie, on_event)
            if dirs.left_out:
                await _remove_journals(dirs, opened, cookie, metadata, environment.threads, on_event)
                opened = await environment.threads.run(_open, options, environment, dirs, bookie, on_event)
            collector = None
            if options.gc_s:
                record = await environment.threads.run(read_mark_record, environment.disk, dirs.all[-1])
                collector = GarbageCollector(
                    await metadata.instance_id(), record, lambda: f"{environment.random_bits(128):032x}"
                )
            server = BookieServer(
                options, environment.disk, opened, dirs.all, environment.threads, on_event=on_event, tls=environment.tls
            )
            location = NetworkLocation(options.region, options.rack)
            info = BookieInfo(bookie, *split_host_port(environment.address), location, summaries=True)

            async def known() -> Versioned:
                return await check_still_known(cookie, metadata)

            def ready() -> None:
                on_event(BookieStarted(bookie, environment.address, server.machine.ledgers))
                on_ready(info)

            async with AsyncExitStack() as stack:
                stack.enter_context(connection_events(metadata, on_event))
                others = None
                if environment.others is not None and options.gc_moved_s:
                    others = await stack.enter_async_context(environment.others(bookie))
                await server.run(
                    environment.listen,
                    stopping,
                    metadata=metadata,
                    info=info,
                    collector=collector,
                    others=others,
                    known=known,
                    on_ready=ready,
                )
    finally:
        dirs.close()


def _open(
    options: BookieOptions,
    environment: BookieEnvironment,
    dirs: LockedDirs,
    bookie: BookieId,
    on_event: Callable[[Event], None],
) -> OpenedStorage:
    try:
        return open_storage(environment.disk, options, dirs.stored, bookie, on_event, environment.random_bits)
    except OSError as error:
        raise DiskFailedError(f"storage cannot be opened: {error.strerror or error}: file={error.filename}") from error


async def _remove_journals(
    dirs: LockedDirs,
    opened: OpenedStorage,
    cookie: Cookie,
    metadata: BookieMetadata,
    threads: Threads,
    on_event: Callable[[Event], None],
) -> None:
    left_out = dirs.left_out
    try:
        await remove_journals(dirs, opened, cookie, metadata, threads)
    except OSError as error:
        raise DiskFailedError(f"journal cannot be removed: {error.strerror or error}: file={error.filename}") from error
    on_event(JournalsRemoved(",".join(left_out)))


def _id(options: BookieOptions, dirs: LockedDirs, address: str) -> BookieId:
    """The configured id; else, if the kernel chose the port, the id stored in the directories; else the address."""
    if options.bookie_id:
        return bookie_id(options.bookie_id)
    known = stored_id(dirs) if options.port == 0 else None
    host, port = split_host_port(address)
    return known or bookie_id(f"{host}:{port}")  # BookKeeper's syntax has no brackets
