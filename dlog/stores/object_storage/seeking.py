"""Searches sorted objects for a txid or time: several at once, since a request takes long and costs little."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from dlog.wire.stream_object import ANY_SPAN, Buffer, Span

PROBES = 8  # at once

#: the span of an entry's payload; None: it has no record; ANY_SPAN: it cannot be read. Raises nothing
SpanOf = Callable[[Buffer], Span | None]


def is_span_before(span: Span | None, least: int, *, by_time: bool) -> bool | None:
    """Whether all records have a txid, or a time, below `least`. None: that is unknown, or there is no record."""
    if span is None or span == ANY_SPAN:
        return None
    return (span.last_ms if by_time else span.last_txid) < least


async def search(low: int, high: int, is_before: Callable[[int], Coroutine[Any, Any, bool | None]]) -> tuple[int, int]:
    """Find the first of the numbers low..high-1 that is not before a target; high if there is none.

    is_before: finds out whether a number is; None: it cannot. Returns (low, high): the numbers below low are before,
    high is not, or is what it was; they differ only if it is unknown of the numbers from low to high - 1. Takes
    about log(high - low) / log(9) rounds of requests.
    """
    while low < high:
        known = low, high
        numbers = _spread(low, high)
        async with asyncio.TaskGroup() as group:
            probes = [group.create_task(is_before(number), name=f"probe of {number}") for number in numbers]
        for number, probe in zip(numbers, probes, strict=True):
            if probe.result() is False:
                high = number
                break
            if probe.result():
                low = number + 1
        if (low, high) == known:
            break
    return low, high


def _spread(low: int, high: int) -> list[int]:
    """Numbers that divide low..high-1 into parts of about the same length; all of them if they are few."""
    count = high - low
    if count <= PROBES:
        return list(range(low, high))
    return [low + count * at // (PROBES + 1) for at in range(1, PROBES + 1)]
