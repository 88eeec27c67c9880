"""`python -m proxies.write` runs one write proxy. Options: --help."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dlog.io import process
from proxies import parts, serving
from proxies.write import running
from proxies.write.options import WriteOptions
from proxies.write.server import WriteProxy


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, hand streams over; returns the exit code."""
    flags = serving.parse("write", WriteOptions, arguments)

    async def serve() -> int:
        options = serving.configure("write", WriteOptions, flags)
        tuning = parts.tuned(flags["config"])
        stop = process.stop_event(serving.report_event)

        def ready(proxy: WriteProxy) -> None:
            proxy.meters().expose()
            process.ready("write", proxy.id, proxy.address)

        await running.run(options, stop, ready, tuning=tuning)
        return 0

    return process.run(serve)


if __name__ == "__main__":
    sys.exit(main())
