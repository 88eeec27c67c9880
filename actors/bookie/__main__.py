"""`python -m actors.bookie` runs one bookie.

Start: bind (the port is known, but connections are not accepted yet), lock the directories, check their cookies in
ZooKeeper, replay the journal, listen, register, print `ready`. SIGTERM: stop listening, answer accepted requests,
checkpoint, exit 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence

from actors.bookie.connection import Connection
from actors.bookie.other_copies import ClusterCopies, cluster_copies
from actors.bookie.readiness import BookieReadiness
from actors.bookie.running import BookieEnvironment
from actors.bookie.running import run as run_bookie
from actors.bookie.server import BookieMetadata
from dlog.bookie.options import BookieOptions
from dlog.errors import ConfigError
from dlog.events import Event, VariablesIgnored
from dlog.hostport import join_host_port
from dlog.io import local_transport, logs, metrics, process, settings, tls
from dlog.io.disk import RealDisk
from dlog.io.listening import listening_socket
from dlog.io.metadata import BookieInfo
from dlog.io.server_arguments import ServerArgumentParser
from dlog.io.threads import RealThreads
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.ledger.ledger_options import LedgerOptions
from dlog.model.ids import BookieId


def main(arguments: Sequence[str] | None = None) -> int:
    flags = _parser().parse_flags(arguments)
    config, log_format = flags.pop("config"), flags.pop("log_format")

    async def run() -> int:
        options = settings.load(BookieOptions, "bookie", config, flags)
        logs.setup(log_format, role="bookie", port=options.port)
        logs.log_event(settings.configured("bookie", options, config))
        if ignored := settings.ignored_variables():
            _report_event(VariablesIgnored(ignored))
        section = settings.load(LedgerOptions, "ledger", config, {})
        logs.log_event(settings.configured("ledger", section, config))
        await serve(options, section)
        return 0

    process.use_batch_scheduling()
    return process.run(run)


async def serve(options: BookieOptions, section: LedgerOptions) -> None:
    """Run until SIGTERM. section: [ledger], for connections to other bookies. Raises the errors of `running.run`, and
    ConfigError if the port cannot be bound or the certificate cannot be used."""
    stopping = process.stop_event(_report_event)
    context = (
        tls.server_context(options.tls_certificate, options.tls_key, options.tls_client_ca)
        if options.tls_certificate
        else None
    )
    listener = _bind(options.host, options.port)
    address = options.advertise or join_host_port(process.reachable_host(options.host), listener.getsockname()[1])
    loop = asyncio.get_running_loop()
    readiness = BookieReadiness(stopping)
    zookeeper: ZooKeeperMetadata | None = None

    async def listen(connect: Callable[[], Connection]) -> local_transport.ServerGroup:
        server = await loop.create_server(connect, sock=listener, backlog=1024)
        return local_transport.ServerGroup(
            server, [] if options.tcp_only else await local_transport.unix_servers(connect, server.sockets)
        )

    @contextlib.asynccontextmanager
    async def metadata() -> AsyncIterator[BookieMetadata]:
        nonlocal zookeeper
        async with await ZooKeeperMetadata.connect(options.zookeeper, options.namespace) as connected:
            readiness.metadata = zookeeper = connected
            yield connected

    @contextlib.asynccontextmanager
    async def others(bookie: BookieId) -> AsyncIterator[ClusterCopies]:
        assert zookeeper is not None, "it is connected first"
        async with cluster_copies(zookeeper, bookie, section, random.Random(os.urandom(8))) as copies:
            yield copies

    def on_ready(info: BookieInfo) -> None:
        readiness.bookie = info.bookie
        process.ready("bookie", info.bookie, address)

    environment = BookieEnvironment(
        disk=RealDisk(),
        threads=RealThreads(loop),
        connect=metadata,
        listen=listen,
        address=address,
        tls=context,
        others=others,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(listener.close)
        if options.http_port:
            from dlog.io.http_server import HttpServer  # loads h11

            server = HttpServer({"/ready": readiness.answer})
            stack.callback(server.close)
            await server.listen(options.host, options.http_port)
        await run_bookie(options, environment, stopping, on_event=_report_event, on_ready=on_ready)


def _bind(host: str, port: int) -> socket.socket:
    try:
        listener = listening_socket(host, port)
    except socket.gaierror as error:
        raise ConfigError(f"host cannot be resolved: {error.strerror}: host={host}") from error
    except OSError as error:
        raise ConfigError(
            f"port cannot be bound, choose another: {error.strerror or error}: address={join_host_port(host, port)}"
        ) from error
    listener.setblocking(False)
    return listener


def _report_event(event: Event) -> None:
    logs.log_event(event)
    metrics.count(event)


def _parser() -> ServerArgumentParser:
    """One flag for each option; options without a flag come from the environment, the file or the defaults."""
    parser = ServerArgumentParser("python -m actors.bookie", "Run a dlog bookie (storage server).")
    parser.add_argument("--config", metavar="FILE", help="TOML file; its sections [bookie] and [ledger] are used")
    parser.add_argument("--log-format", choices=("json", "text"))
    settings.add_flags(parser, BookieOptions)
    return parser


if __name__ == "__main__":
    sys.exit(main())
