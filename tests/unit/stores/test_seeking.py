"""Tests the search among sorted objects: it finds the first that is not before, with few rounds of requests."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from dlog.stores.object_storage.seeking import PROBES, search


@given(st.integers(0, 500), st.integers(0, 20), st.integers(0, 500), st.sets(st.integers(0, 520), max_size=30))
def test_the_first_that_is_not_before(count: int, low: int, before: int, unknown: set[int]) -> None:
    first, rounds, now = min(low + before, low + count), 0, 0

    async def is_before(number: int) -> bool | None:
        nonlocal rounds, now
        assert low <= number < low + count
        rounds += now == 0
        now += 1
        assert now <= PROBES
        await asyncio.sleep(0)
        now -= 1
        return None if number in unknown else number < first

    left = asyncio.run(search(low, low + count, is_before))
    assert low <= left[0] <= first <= left[1] <= low + count
    assert left[1] == low + count or left[1] not in unknown
    if not unknown & set(range(low, low + count)):
        assert left == (first, first)
        assert rounds <= 4


async def test_an_error_ends_the_search() -> None:
    async def is_before(number: int) -> bool | None:
        raise AssertionError(f"a defect: {number}")

    try:
        await search(0, 3, is_before)
    except* AssertionError as errors:
        assert len(errors.exceptions) >= 1
    else:
        raise AssertionError("it is passed on")
