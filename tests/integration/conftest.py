"""Real parts for integration tests.

`zookeeper` is a real server, one for each pytest process (so one for each xdist worker); `zookeeper_hosts` is a fresh
chroot on it, which a test may use as an ensemble of its own. With CI=true a missing part is a failure; elsewhere the
test is skipped and says how to get it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper, JavaNotFoundError, ZooKeeperJarsNotFoundError
from dlog.io.zookeeper import ZooKeeper
from tests.parts import need


def missing_part(reason: str) -> None:
    """Fail in CI, skip elsewhere."""
    need(False, "a real ZooKeeper", reason)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """The server of this pytest process. Tests that kill or freeze a server start their own (`own_zookeeper`)."""
    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    try:
        asyncio.run(server.start())
    except (JavaNotFoundError, ZooKeeperJarsNotFoundError) as error:
        missing_part(str(error))
    yield server
    server.kill()


@pytest.fixture
async def zookeeper_hosts(zookeeper: EmbeddedZooKeeper) -> str:
    """`host:port/chroot` with an empty chroot that no other test uses."""
    chroot = f"/{uuid.uuid4().hex}"
    async with await ZooKeeper.connect(zookeeper.hosts) as client:
        await client.create(chroot)
    return zookeeper.hosts + chroot


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    """A server for one test, not yet started, that it may kill, freeze and start again."""
    server = EmbeddedZooKeeper(tmp_path / "zookeeper")
    yield server
    server.kill()
