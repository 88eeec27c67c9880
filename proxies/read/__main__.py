"""`python -m proxies.read` runs one read proxy. Options: --help."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dlog.io import process
from proxies import parts, serving
from proxies.read import running
from proxies.read.options import ReadOptions
from proxies.read.server import ReadProxy


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    flags = serving.parse("read", ReadOptions, arguments)

    async def serve() -> int:
        options = serving.configure("read", ReadOptions, flags)
        tuning = parts.tuned(flags["config"])
        stop = process.stop_event(serving.report_event)

        def ready(proxy: ReadProxy) -> None:
            proxy.meters().expose()
            process.ready("read", proxy.id, proxy.address)

        await running.run(options, stop, ready, tuning=tuning)
        return 0

    return process.run(serve)


if __name__ == "__main__":
    sys.exit(main())
