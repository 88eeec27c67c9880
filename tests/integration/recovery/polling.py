"""Waiting for what other processes do to ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

LIMIT_S = 120.0  # a test that waits without success fails instead of hanging


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Return once the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(LIMIT_S):
        while not await condition():  # noqa: ASYNC110 - other processes change it, no event tells
            await asyncio.sleep(0.02)
