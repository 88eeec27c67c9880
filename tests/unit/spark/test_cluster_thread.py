"""The thread that talks to a cluster: work that creates something there does not block in it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from dlog.errors import InvalidRequestError
from dlog.io.stores import StoresOptions
from dlog.spark.cluster_connection import Cluster, ClusterConnection, Feed

WITHIN_S = 60.0


class Unopened(ClusterConnection):
    """There is no cluster: requests wait."""

    async def _open(self) -> Cluster:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


async def _nothing(cluster: Cluster) -> None:
    pass


async def _items(cluster: Cluster) -> AsyncGenerator[int, None]:
    yield 1


async def _take(cluster: Cluster, given: Any) -> None:
    async for _ in given:
        pass


@pytest.mark.parametrize("way", ["ask", "pump", "a pump begun elsewhere", "feed", "the end of a feed"])
def test_a_question_in_its_own_thread_is_a_typed_error(way: str) -> None:
    reach = Unopened("127.0.0.1:1", "/nowhere", StoresOptions())
    feed: Feed[int, None] = reach.feed(_take)
    pump = reach.pump(_items)
    ways: dict[str, Callable[[], Any]] = {
        "ask": lambda: reach.ask(_nothing),
        "pump": lambda: list(reach.pump(_items)),
        "a pump begun elsewhere": lambda: next(pump),
        "feed": lambda: feed.put(1),
        "the end of a feed": feed.finish,
    }
    found: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            ways[way]()
        except BaseException as error:  # noqa: BLE001
            found.append(error)
        done.set()

    reach._loop.call_soon_threadsafe(run)
    try:
        assert done.wait(WITHIN_S), "it hangs"
        assert isinstance(found[0], InvalidRequestError)
    finally:
        feed.abandon()
        reach.end()
