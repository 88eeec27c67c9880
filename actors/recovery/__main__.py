"""`python -m actors.recovery` gives ledgers the copies again that they lost with a bookie.

The process takes part in the election of the auditor, and runs workers. It keeps nothing: it may be killed at any
moment, and any number of them may run, beside BookKeeper's AutoRecovery processes too. SIGTERM: exit 0; what is being
copied is copied again by another process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import re
import socket
import sys
from collections.abc import Sequence

from actors.recovery.auditing import Auditing
from actors.recovery.comparing import COMPARE_TIMEOUT_S, Comparing
from actors.recovery.options import RecoveryOptions
from actors.recovery.workers import RepairWorkers
from dlog.events import Event, VariablesIgnored
from dlog.io import logs, metrics, process, settings
from dlog.io.bookie_client import BookieClient, BookieClientOptions
from dlog.io.ledgers import Ledgers, LedgersOptions, resolver
from dlog.io.metadata import SessionState
from dlog.io.metadata_contact import connection_events
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.ledger.ledger_options import LedgerOptions
from dlog.ledger.repair import RepairOptions

_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9._-]")


def main(arguments: Sequence[str] | None = None) -> int:
    flags = vars(_parser().parse_args(arguments))
    config, log_format = flags.pop("config"), flags.pop("log_format")

    async def run() -> int:
        options = settings.load(RecoveryOptions, "recovery", config, flags)
        name = options.id or f"{_NOT_IN_ID.sub('-', socket.gethostname())[:200]}:{os.getpid()}"
        logs.setup(log_format, role="recovery", id=name)
        logs.tell(settings.configured("recovery", options, config))
        section = settings.load(LedgerOptions, "ledger", config, {})
        logs.tell(settings.configured("ledger", section, config))
        if ignored := settings.ignored_variables():
            _tell(VariablesIgnored(ignored))
        await serve(options, section, name)
        return 0

    return process.run(run)


async def serve(options: RecoveryOptions, section: LedgerOptions, name: str) -> None:
    """Run until SIGTERM. section: [ledger], for the choice of replacements. name: of this process, in votes and locks.
    Raises ConfigError, ClusterNotFoundError, MetadataUnavailableError, UnsupportedVersionError before it is ready."""
    stopping = process.stop_event(_tell)
    rng = random.Random(os.urandom(8))
    async with contextlib.AsyncExitStack() as stack:
        metadata = await stack.enter_async_context(
            await ZooKeeperMetadata.connect(options.zookeeper, options.namespace)
        )
        stack.enter_context(connection_events(metadata, _tell))
        await metadata.instance_id()
        marks = metadata.underreplication(name)
        await marks.prepare()
        bookies = await stack.enter_async_context(BookieClient(resolver(metadata), rng=rng))
        limits = LedgersOptions(repair=RepairOptions(rate_bytes_per_s=options.worker_bytes_s)).configured(section)
        ledgers = await stack.enter_async_context(Ledgers(metadata, bookies, rng=rng, options=limits, on_event=_tell))
        auditing = Auditing(options, metadata, marks, metadata.auditor_election(name), _tell)
        # comparisons have connections of their own: slow summaries never close those of repairs
        slow = BookieClientOptions(request_timeout_s=COMPARE_TIMEOUT_S)
        compared = await stack.enter_async_context(BookieClient(resolver(metadata), rng=rng, options=slow))
        comparable = await stack.enter_async_context(Ledgers(metadata, compared, rng=rng, on_event=_tell))
        comparing = Comparing(options, comparable, marks, lambda: auditing.is_auditor, _tell)
        workers = RepairWorkers(options, marks, ledgers, _tell, rng)

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
        process.ready("recovery", name, address)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(auditing.run(), name="auditor"),
                tasks.create_task(comparing.run(), name="comparisons"),
                tasks.create_task(workers.run(), name="repair workers"),
            ]
            await stopping.wait()
            for task in running:
                task.cancel()


def _tell(event: Event) -> None:
    logs.tell(event)
    metrics.count(event)


def _parser() -> argparse.ArgumentParser:
    """One flag for each option; options without a flag come from the environment, the file or the defaults."""
    parser = argparse.ArgumentParser(
        prog="python -m actors.recovery",
        description="Give ledgers the copies again that they lost with a bookie.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file; its sections [recovery] and [ledger] are used")
    parser.add_argument("--log-format", choices=("json", "text"))
    settings.add_flags(parser, RecoveryOptions)
    return parser


if __name__ == "__main__":
    sys.exit(main())
