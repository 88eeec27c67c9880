"""`python -m actors.recovery` gives ledgers the copies again that they lost with a bookie.

The process takes part in the election of the auditor, and runs workers. It keeps nothing: it may be killed at any
moment, and any number of them may run, beside BookKeeper's AutoRecovery processes too. SIGTERM: exit 0; what is being
copied is copied again by another process.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import sys
from collections.abc import AsyncIterator, Sequence

from actors.recovery.options import RecoveryOptions
from actors.recovery.running import RecoveryEnvironment, run
from dlog.events import Event, VariablesIgnored
from dlog.io import logs, metrics, process, settings
from dlog.io.bookie_client import BookieClient, BookieClientOptions
from dlog.io.ledgers import resolver
from dlog.io.server_arguments import ServerArgumentParser
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.ledger.ledger_options import LedgerOptions

_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9._-]")


def main(arguments: Sequence[str] | None = None) -> int:
    flags = _parser().parse_flags(arguments)
    config, log_format = flags.pop("config"), flags.pop("log_format")

    async def serving() -> int:
        options = settings.load(RecoveryOptions, "recovery", config, flags)
        name = options.id or f"{_NOT_IN_ID.sub('-', socket.gethostname())[:200]}:{os.getpid()}"
        logs.setup(log_format, role="recovery", id=name)
        logs.log_event(settings.configured("recovery", options, config))
        section = settings.load(LedgerOptions, "ledger", config, {})
        logs.log_event(settings.configured("ledger", section, config))
        if ignored := settings.ignored_variables():
            _report_event(VariablesIgnored(ignored))
        await serve(options, section, name)
        return 0

    return process.run(serving)


async def serve(options: RecoveryOptions, section: LedgerOptions, name: str) -> None:
    """Run until SIGTERM. section: [ledger], for the choice of replacements. name: of this process, in votes and locks.
    Raises ConfigError, ClusterNotFoundError, MetadataUnavailableError, UnsupportedVersionError before it is ready."""
    stopping = process.stop_event(_report_event)
    rng = random.Random(os.urandom(8))

    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[ZooKeeperMetadata]:
        async with await ZooKeeperMetadata.connect(options.zookeeper, options.namespace) as metadata:
            yield metadata

    def bookies(metadata: ZooKeeperMetadata, limits: BookieClientOptions) -> BookieClient:
        return BookieClient(resolver(metadata), rng=rng, options=limits)

    environment = RecoveryEnvironment(connect, bookies)

    def ready(address: str) -> None:
        process.ready("recovery", name, address)

    await run(options, section, name, environment, stopping, on_event=_report_event, rng=rng, on_ready=ready)


def _report_event(event: Event) -> None:
    logs.log_event(event)
    metrics.count(event)


def _parser() -> ServerArgumentParser:
    """One flag for each option; options without a flag come from the environment, the file or the defaults."""
    parser = ServerArgumentParser(
        "python -m actors.recovery", "Give ledgers the copies again that they lost with a bookie."
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file; its sections [recovery] and [ledger] are used")
    parser.add_argument("--log-format", choices=("json", "text"))
    settings.add_flags(parser, RecoveryOptions)
    return parser


if __name__ == "__main__":
    sys.exit(main())
