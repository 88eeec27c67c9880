"""Tests that the S3 client is made outside the event loop (it imports 70 MB of code and reads a service model), and the
pace of requests."""

from __future__ import annotations

import asyncio
import gc
import random
import threading

import pytest

from dlog.io import s3_objects
from dlog.io.s3_objects import RequestPace, S3Objects
from dlog.stores.object_storage.options import ObjectStorageOptions

OPTIONS = ObjectStorageOptions(s3_endpoint="http://127.0.0.1:1", s3_region="r", s3_access_key="a", s3_secret_key="b")


async def test_the_first_use_of_s3_does_not_import_it_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    load = s3_objects._session

    def noted() -> object:
        imported.append(threading.current_thread().name)
        return load()

    monkeypatch.setattr(s3_objects, "_session", noted)
    objects = S3Objects(OPTIONS)
    try:
        await objects._client()
    finally:
        await objects.close()
    assert imported and threading.main_thread().name not in imported


async def test_a_first_use_that_is_cancelled_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    loading, go_on, load = threading.Event(), threading.Event(), s3_objects._session

    def held() -> object:
        loading.set()
        go_on.wait()
        return load()

    monkeypatch.setattr(s3_objects, "_session", held)
    objects = S3Objects(OPTIONS)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await objects._client()
    assert loading.is_set()
    go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    gc.collect()  # a coroutine that was never awaited would warn here, which is an error
    await objects.close()


def test_requests_slow_down_while_the_service_is_busy_and_speed_up_when_it_serves() -> None:
    pace = RequestPace(random.Random(1))
    assert pace.next_delay_s() == 0.0
    delays = []
    for _ in range(20):
        pace.slow_down()
        delays.append(pace.next_delay_s())
    assert 0.0 < delays[0] <= s3_objects._DELAY_FIRST_S
    assert s3_objects._DELAY_MAX_S / 2 <= delays[-1] <= s3_objects._DELAY_MAX_S
    for _ in range(10):
        pace.speed_up()
    assert pace.next_delay_s() == 0.0
