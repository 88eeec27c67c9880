"""The real cluster of the ledger store's tests, real object storage, and the service's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop

from tests.integration.cluster import bookies
from tests.integration.storage import Storage, storage

__all__ = ["bookies"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    with storage("file", tmp_path_factory.mktemp("storage")) as started:
        yield started


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    with storage("s3", tmp_path_factory.mktemp("s3")) as started:
        yield started


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    with storage("webhdfs", tmp_path_factory.mktemp("hdfs")) as started:
        yield started


@pytest.fixture(scope="module", params=("directory", "s3", "hdfs"))
def kept(request: pytest.FixtureRequest) -> Storage:
    started: Storage = request.getfixturevalue(request.param)
    return started


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}
