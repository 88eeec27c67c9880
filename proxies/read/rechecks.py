"""Checks the metadata of quiet streams again, one after the other, in case a watch was missed.

Invariants:
- a change that no watch reported is found, late;
- the rate of checks is limited per process, however many streams it follows; a stream without readers costs nothing.
"""

from __future__ import annotations

import asyncio
import random

from actors.registry import Registry
from actors.stream_feed import StreamFeed


async def recheck_periodically(
    tailers: Registry[StreamFeed], *, every_s: float, per_s_max: float, rng: random.Random
) -> None:
    """Call `StreamFeed.doubt` of each tailer once a round, for ever.

    every_s: a round takes this to 1.5 times this. per_s_max: most calls in a second; with more than every_s * per_s_max
    tailers a round takes longer.
    """
    while True:
        names = tailers.names()
        round_s = max(every_s, len(names) / per_s_max) * rng.uniform(1.0, 1.5)
        for name in names:
            await asyncio.sleep(round_s / len(names))
            if (tailer := tailers.living(name)) is not None:
                tailer.doubt()
        if not names:
            await asyncio.sleep(round_s)
