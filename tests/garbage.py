"""What repeated operations leave to the cycle collector.

A process that has frozen the objects of a cycle keeps it (dlog/io/cycle_collector.py), so nothing repeated may leave
one. asyncio's own transports are cycles: only objects of dlog count.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable

_OURS = ("dlog.", "actors.", "proxies.")


async def garbage_of(
    rounds: Callable[[int], Awaitable[None]], count: int, quiet: Callable[[], Awaitable[None]] | None = None
) -> Counter[str]:
    """Classes whose objects only the collector can free, after `count` rounds, by name.

    quiet: waits until the work after the last round is done; a few turns of the loop follow.
    """

    async def run(some: int) -> None:
        await rounds(some)
        if quiet is not None:
            await quiet()
        for _ in range(20):
            await asyncio.sleep(0)

    await run(10)
    gc.collect()
    gc.disable()
    try:
        await run(count)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = [type(value) for value in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    return Counter(cls.__qualname__ for cls in found if cls.__module__.startswith(_OURS))
