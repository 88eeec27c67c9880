"""Runs a write proxy: opens its backends, runs its server, closes the backends.

Flags, signals and logs of the process are in __main__.py, so that the simulation can run the same code.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from dlog.events import Event
from proxies import parts, serving
from proxies.write.options import WriteOptions
from proxies.write.server import WriteProxy


async def run(
    options: WriteOptions,
    stop: asyncio.Event,
    on_ready: Callable[[WriteProxy], None],
    *,
    tell: Callable[[Event], None] = serving.tell,
    rng: random.Random | None = None,
    tuning: parts.BackendLimits = parts.TUNING,
) -> None:
    """Serve until `stop`, then hand streams over. on_ready: clients may connect. Raises as WriteProxy.run does."""
    rng = rng or serving.seeded()
    async with parts.opened(options, tell=tell, rng=rng, tuning=tuning) as opened:
        proxy = WriteProxy(options, opened.metadata, opened.stores, tell=tell, rng=rng)
        await proxy.run(stop, lambda name, address: on_ready(proxy))
