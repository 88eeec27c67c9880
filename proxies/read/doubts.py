"""Streams that nobody says anything new of, looked at again in turn.

The law of this room: a watch is a hint, so what it would have told is found without it, late; and what that costs is
bounded for the process, however many streams it follows. A stream that nobody reads costs nothing.
"""

from __future__ import annotations

import asyncio
import random

from actors.registry import Registry
from actors.stream_tailer import StreamTailer


async def doubt_in_turn(
    tailers: Registry[StreamTailer], *, every_s: float, per_s_max: float, rng: random.Random
) -> None:
    """Doubt each tailer once a round (StreamTailer.doubt); for ever.

    every_s: one round at least, a half more at most. per_s_max: tailers doubted in a second; with more than every_s
    times this a round takes longer.
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
