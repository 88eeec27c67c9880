"""`python -m loadtest.generator`: a process that produces or reads for a runner (protocol: loadtest/systems/base.py).

It ends when the runner closes the pipe. Errors are printed on stderr; the exit code is then 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import sys
from typing import Any

import uvloop

from loadtest.lines import Orders, job_from, say, standard_input
from loadtest.producing import Producing
from loadtest.reading import Reading
from loadtest.systems.base import CannotRunError, Client


def client_class(name: str) -> type[Client]:
    """Import the class "module:Class". Raises CannotRunError."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise CannotRunError(f"client class cannot be imported: {name}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Client)):
        raise CannotRunError(f"not a subclass of loadtest.systems.base.Client: {name}")
    return found


async def generate() -> None:
    """Read one job from standard input, run it, print the result."""
    lines = await standard_input()
    job = job_from(await lines.readline())
    orders = Orders()
    async with asyncio.TaskGroup() as group:
        listening = group.create_task(orders.listen(lines), name="orders")
        client = await client_class(job["client"]).connect(job["address"], job.get("options", {}))
        try:
            result = await work(job, client, orders)
        finally:
            with contextlib.suppress(Exception):
                await client.close()
        say("result", **result)
        listening.cancel()


async def work(job: dict[str, Any], client: Client, orders: Orders) -> dict[str, Any]:
    """Produce or read."""
    task = Producing(job, client, orders) if job["kind"] == "produce" else Reading(job, client, orders)
    gc.collect()
    gc.freeze()
    return await task.run()


def main() -> int:
    failed: list[BaseException] = []
    try:
        uvloop.run(generate())
    except* (CannotRunError, asyncio.CancelledError, KeyError) as errors:
        failed.extend(errors.exceptions)
    for error in failed:
        print(f"generator: {error!r}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
