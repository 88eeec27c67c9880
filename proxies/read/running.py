"""Runs a read proxy: opens its backends, runs its server, closes the backends.

Flags, signals and logs of the process are in __main__.py, so that the simulation can run the same code.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from dlog.events import Event
from proxies import parts, serving
from proxies.read.options import ReadOptions
from proxies.read.server import ReadProxy


async def run(
    options: ReadOptions,
    stop: asyncio.Event,
    on_ready: Callable[[ReadProxy], None],
    *,
    on_event: Callable[[Event], None] = serving.report_event,
    rng: random.Random | None = None,
    tuning: parts.BackendLimits = parts.TUNING,
) -> None:
    """Serve until `stop`, then close the readers. on_ready: clients may connect. Raises as ReadProxy.run does."""
    rng = rng or serving.seeded()
    async with parts.opened(options, on_event=on_event, rng=rng, tuning=tuning) as opened:
        here = parts.location_of(tuning)
        proxy = ReadProxy(options, opened.metadata, opened.stores, location=here, on_event=on_event, rng=rng)
        await proxy.run(stop, lambda name, address: on_ready(proxy))
