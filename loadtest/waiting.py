"""Waits for a condition by polling."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from loadtest.systems.base import CannotRunError


async def until(
    condition: Callable[[], Awaitable[bool]], within_s: float, otherwise: str, step_s: float = 0.05
) -> None:
    """Poll until the condition holds. Raises CannotRunError after `within_s`."""
    end_s = time.monotonic() + within_s
    while not await condition():
        if time.monotonic() > end_s:
            raise CannotRunError(f"{otherwise} within {within_s:g} s")
        await asyncio.sleep(step_s)
