"""`make demo STORE=s3-direct` or `STORE=s3`: the demo on an S3 server, which is installed if needed, started, stopped.

    python -m loadtest.s3_demo [--store s3-direct|s3] [FILE]

The server is versitygw. The demo kills it at half of the records; a second later it runs again.
Exit 0: every record came back; 1: one did not, or something is missing or failed; 2: wrong usage.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dlog.io.children import die_with_parent, module_environment, python_module
from loadtest.systems import versitygw
from loadtest.systems.base import CannotRunError

AWAY_S = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if versitygw.install():
            print("versitygw, an S3 server, is installed in .cache/peers", flush=True)
        return asyncio.run(_demo(given))
    except CannotRunError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1


async def _demo(arguments: Sequence[str]) -> int:
    server = versitygw.S3Server()
    with tempfile.TemporaryDirectory(prefix="dlog-s3-", ignore_cleanup_errors=True) as room:
        try:
            print("starting an S3 server, versitygw", flush=True)
            await server.start(Path(room), {})
            flags = ("--objects", f"s3://{versitygw.BUCKET}/demo", "--victim", str(server.pid), *arguments)
            process = await asyncio.create_subprocess_exec(
                *python_module("dlog.cli.demo", *flags),
                env=module_environment(**server.environment),
                preexec_fn=die_with_parent(),
            )
            async with asyncio.TaskGroup() as group:
                keeping = group.create_task(_keep_running(server), name="keep the S3 server running")
                status = await process.wait()
                keeping.cancel()
            return status
        finally:
            await server.stop()


async def _keep_running(server: versitygw.S3Server) -> None:
    """Start the server again a second after it was killed, until cancelled."""
    while True:
        await asyncio.sleep(AWAY_S)
        await server.restart()


if __name__ == "__main__":
    sys.exit(main())
