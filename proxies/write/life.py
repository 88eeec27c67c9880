"""One life of a write proxy: its parts opened, its server run, its parts closed.

The law of this file: it is the whole composition and nothing else. What a process has beside that (flags, signals,
logs) is __main__.py's, so that the same life can be lived in a simulation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from dlog.events import Event
from proxies import parts, serving
from proxies.write.options import WriteOptions
from proxies.write.server import WriteProxy


async def live(
    options: WriteOptions,
    stop: asyncio.Event,
    on_ready: Callable[[WriteProxy], None],
    *,
    tell: Callable[[Event], None] = serving.tell,
    rng: random.Random | None = None,
    tuning: parts.Tuning = parts.TUNING,
) -> None:
    """Serve until `stop`, then hand over. on_ready: called once clients may come. Raises as WriteProxy.run does."""
    rng = rng or serving.seeded()
    async with parts.opened(options, tell=tell, rng=rng, tuning=tuning) as opened:
        proxy = WriteProxy(options, opened.metadata, opened.stores, tell=tell, rng=rng)
        await proxy.run(stop, lambda name, address: on_ready(proxy))
