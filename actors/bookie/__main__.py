"""`python -m actors.bookie`: one bookie, from its flags to its last checkpoint.

Order: bind (so that the port is known, though nobody can connect yet), lock the directories, ask ZooKeeper whose they
are, replay the journal, listen, register, say `ready`. SIGTERM: stop listening, answer what was taken, checkpoint, 0.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import socket
import sys
from collections.abc import Sequence

from actors.bookie.server import BookieServer, DiskFailedError
from dlog.bookie.events import BookieStarted
from dlog.bookie.options import BookieOptions
from dlog.errors import ConfigError
from dlog.events import Event
from dlog.io import logs, metrics, process, settings
from dlog.io.bookie_dirs import LockedDirs, check_cookies, lock_dirs, paths_of, stored_id
from dlog.io.bookie_store import Opened, open_storage
from dlog.io.disk import RealDisk
from dlog.io.metadata import BookieInfo
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.model.ids import BookieId, bookie_id


def main(arguments: Sequence[str] | None = None) -> int:
    flags = vars(_parser().parse_args(arguments))
    config, log_format = flags.pop("config"), flags.pop("log_format")

    async def live() -> int:
        options = settings.load(BookieOptions, "bookie", config, flags)
        logs.setup(log_format, role="bookie", port=options.port)
        logs.tell(settings.configured("bookie", options, config))
        await serve(options)
        return 0

    return process.run(live)


async def serve(options: BookieOptions) -> None:
    """Live until SIGTERM. Raises ConfigError, CookieError, DamagedError, MetadataUnavailableError before it serves;
    DiskFailedError when it may not go on."""
    stopping = process.stop_event(_tell)
    listener = _bind(options.host, options.port)
    address = options.advertise or f"{options.host}:{listener.getsockname()[1]}"
    dirs = lock_dirs(paths_of(options))
    try:
        bookie = _id(options, dirs, address)
        async with await ZooKeeperMetadata.connect(options.zookeeper, options.namespace) as metadata:
            await check_cookies(dirs, bookie, metadata)
            opened = await asyncio.to_thread(_open, options, dirs, bookie)
            endpoint = metrics.serve(options.metrics_port or None, options.host)
            server = BookieServer(options, RealDisk(), opened, dirs.all, tell=_tell)

            def on_ready() -> None:
                _tell(BookieStarted(bookie, address, server.machine.ledgers))
                process.ready("bookie", bookie, address)

            host, _, port = address.rpartition(":")
            info = BookieInfo(bookie, host.strip("[]"), int(port))
            try:
                await server.run(listener, stopping, metadata=metadata, info=info, on_ready=on_ready)
            finally:
                if endpoint is not None:
                    endpoint.close()
    finally:
        listener.close()
        dirs.close()


def _open(options: BookieOptions, dirs: LockedDirs, bookie: BookieId) -> Opened:
    try:
        return open_storage(RealDisk(), options, dirs.paths, bookie, _tell)
    except OSError as error:
        raise DiskFailedError(f"storage cannot be opened: {error!r}") from error


def _id(options: BookieOptions, dirs: LockedDirs, address: str) -> BookieId:
    """As configured; else, with a port of the kernel's choice, the id the directories have; else the address."""
    if options.bookie_id:
        return bookie_id(options.bookie_id)
    known = stored_id(dirs) if options.port == 0 else None
    return known or bookie_id(address)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"host cannot be resolved: {error.strerror}: host={host}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(f"port cannot be bound, choose another: {error.strerror}: address={host}:{port}") from error
    listener.setblocking(False)
    return listener


def _tell(event: Event) -> None:
    logs.tell(event)
    metrics.count(event)


def _parser() -> argparse.ArgumentParser:
    """A flag for every option, --file-of-option; what is not given comes from elsewhere."""
    parser = argparse.ArgumentParser(
        prog="python -m actors.bookie", description="A bookie of dlog.", allow_abbrev=False
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file; the section [bookie] is read")
    parser.add_argument("--log-format", choices=("json", "text"))
    for field in dataclasses.fields(BookieOptions):
        name = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(name, action="store_const", const=True)
        else:
            parser.add_argument(name, metavar=type(field.default).__name__.upper(), help=f"default {field.default}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
