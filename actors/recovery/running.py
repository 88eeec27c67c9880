"""Runs one recovery process from its options: the auditor, its comparisons and the workers, over one metadata session.

Metadata and connections to bookies come from a RecoveryEnvironment: `python -m actors.recovery` gives ZooKeeper and
sockets, the simulation gives its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from actors.recovery.auditing import Auditing
from actors.recovery.comparing import COMPARE_TIMEOUT_S, Comparing
from actors.recovery.options import RecoveryOptions
from actors.recovery.workers import RepairWorkers
from dlog.events import Event
from dlog.io.bookie_client import BookieClient, BookieClientOptions
from dlog.io.ledgers import Ledgers, LedgersOptions
from dlog.io.metadata import SessionState
from dlog.io.metadata_contact import connection_events
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.ledger.ledger_options import LedgerOptions
from dlog.ledger.repair import RepairOptions


@dataclass(frozen=True, slots=True)
class RecoveryEnvironment:
    """Where a recovery process runs. connect: opens its metadata session. bookies: opens connections to bookies, whose
    addresses are in that metadata."""

    connect: Callable[[], AbstractAsyncContextManager[ZooKeeperMetadata]]
    bookies: Callable[[ZooKeeperMetadata, BookieClientOptions], AbstractAsyncContextManager[BookieClient]]


async def run(
    options: RecoveryOptions,
    section: LedgerOptions,
    name: str,
    environment: RecoveryEnvironment,
    stopping: asyncio.Event,
    *,
    on_event: Callable[[Event], None],
    rng: random.Random,
    on_ready: Callable[[str], None],
) -> None:
    """Run until `stopping` is set. section: [ledger]. name: of this process, in votes and locks. on_ready: gets the
    address of its HTTP server, "-" if it has none. Cancelling is safe: what is being copied is copied again by another
    process. Raises ClusterNotFoundError, MetadataUnavailableError, UnsupportedVersionError before it is ready."""
    async with contextlib.AsyncExitStack() as stack:
        metadata = await stack.enter_async_context(environment.connect())
        stack.enter_context(connection_events(metadata, on_event))
        await metadata.instance_id()
        marks = metadata.underreplication(name)
        await marks.prepare()
        bookies = await stack.enter_async_context(
            environment.bookies(metadata, BookieClientOptions().configured(section))
        )
        limits = LedgersOptions(repair=RepairOptions(rate_bytes_per_s=options.worker_bytes_s)).configured(section)
        ledgers = await stack.enter_async_context(
            Ledgers(metadata, bookies, rng=rng, options=limits, on_event=on_event)
        )
        auditing = Auditing(options, metadata, marks, metadata.auditor_election(name), on_event)
        # comparisons have connections of their own: slow summaries never close those of repairs
        # and v2, which alone has summaries
        slow = replace(BookieClientOptions(request_timeout_s=COMPARE_TIMEOUT_S).configured(section), protocol="v2")
        compared = await stack.enter_async_context(environment.bookies(metadata, slow))
        comparable = await stack.enter_async_context(Ledgers(metadata, compared, rng=rng, on_event=on_event))
        comparing = Comparing(options, comparable, marks, lambda: auditing.is_auditor, on_event)
        workers = RepairWorkers(options, marks, ledgers, on_event, rng)

        def ready() -> tuple[int, dict[str, object]]:
            if stopping.is_set() or metadata.state is SessionState.LOST:
                return 503, {"ready": False, "because": "stopping" if stopping.is_set() else "metadata out of reach"}
            return 200, {"ready": True, "auditor": auditing.is_auditor, "repairing": workers.repairing}

        address = "-"  # it serves nothing else
        if options.http_port:
            from dlog.io.http_server import HttpServer  # loads h11

            server = HttpServer({"/ready": ready})
            stack.callback(server.close)
            await server.listen(options.host, options.http_port)
            address = server.address
        on_ready(address)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(auditing.run(), name="auditor"),
                tasks.create_task(comparing.run(), name="comparisons"),
                tasks.create_task(workers.run(), name="repair workers"),
            ]
            await stopping.wait()
            for task in running:
                task.cancel()
