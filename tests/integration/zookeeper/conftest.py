"""The ensemble of a module. A test here that waits without success fails after minutes instead of hanging."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlog.io.embedded_zookeeper import JavaNotFoundError, ZooKeeperJarsNotFoundError
from tests.integration.conftest import missing_part
from tests.integration.zookeeper.ensemble import ZooKeeperEnsemble

LIMIT_S = 300.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        here = item.path.parent == Path(__file__).parent
        if here:
            item.add_marker("real_time")  # sessions end after a second of silence, or after ten
        if here and isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _bounded(item.obj)


def _bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def bounded(**fixtures: Any) -> None:
        async with asyncio.timeout(LIMIT_S):
            await test(**fixtures)

    return bounded


@pytest.fixture(scope="module")
def one_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Three members, for all tests of a module."""
    ensemble = ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble"))
    try:
        asyncio.run(ensemble.start())
    except (JavaNotFoundError, ZooKeeperJarsNotFoundError) as error:
        missing_part(str(error))
    yield ensemble
    ensemble.kill()
