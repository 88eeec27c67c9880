"""`python -m proxies.read`: one read proxy. Options: --help, config/README.md."""

from __future__ import annotations

import sys

from dlog.errors import ConfigError
from dlog.io import process
from proxies import parts, serving
from proxies.read.options import ReadOptions
from proxies.read.server import ReadProxy


async def main() -> int:
    """Serve until SIGTERM or SIGINT, return 0."""
    stop = process.stop_event(serving.tell)
    async with serving.metrics_endpoint(options.metrics_port), parts.opened(options) as opened:
        proxy = ReadProxy(options, opened.metadata, opened.stores)
        await proxy.run(stop, lambda name, address: process.ready("read", name, address))
    return 0


if __name__ == "__main__":
    try:
        options: ReadOptions = serving.read_arguments("read", ReadOptions, sys.argv[1:])
    except ConfigError as error:
        sys.stderr.write(f"{type(error).__name__}: {error.message}\n")
        sys.exit(2)
    sys.exit(process.run(main))
