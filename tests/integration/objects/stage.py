"""A cluster in the test's process whose write proxies can host the controller, and processes that follow it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from actors.object_controller import ObjectControllerOptions
from dlog.client.operation_sender import operation_sender
from dlog.io.object_metadata import ObjectMetadataClient, ObjectMetadataOptions
from dlog.objects.image import Image
from dlog.objects.image_snapshot import contents_of
from dlog.objects.options import ControllerOptions
from dlog.stores.object_storage.locations import Location, parse_root
from dlog.wire.object_snapshot import encode_snapshot
from proxies.write.object_controllers import ObjectStorageAccess
from tests.integration.proxies.local_proxies import LocalProxies, Running
from tests.memory_objects import MemoryObjects

PATIENCE_S = 90.0
ROOT = parse_root("file:///objects/test")


async def find_root() -> Location:
    return ROOT


class Stage:
    """Proxies, an object storage, and followers."""

    def __init__(self, local: LocalProxies, **options: Any) -> None:
        self.local = local
        self.objects = MemoryObjects()
        self.store = "memory"  # of the metadata stream
        self.options = ObjectControllerOptions(
            tick_s=0.05,
            replay_wait_s=0.05,
            controller=ControllerOptions(**{"snapshot_records": 1_000_000, "retention_ms": 0, **options}),
        )
        self.accesses: list[ObjectStorageAccess] = []
        local.object_storage = self._access

    def _access(self) -> ObjectStorageAccess:
        access = ObjectStorageAccess(objects=self.objects, find_root=find_root, store=self.store, options=self.options)
        self.accesses.append(access)
        return access

    @asynccontextmanager
    async def follower(self, sender: Any = None, **options: Any) -> AsyncIterator[ObjectMetadataClient]:
        """Another process. sender: of a write proxy; None: it asks proxies over sockets."""
        rng = random.Random(2)
        sender = operation_sender(self.local.metadata, rng) if sender is None else sender
        given = ObjectMetadataOptions(
            **{"ask_deadline_s": PATIENCE_S, "retry_max_s": 0.05, "poll_s": 0.05, "recheck_s": 0.2, **options}
        )
        stores = self.local._stores()
        async with ObjectMetadataClient(
            self.local.metadata, stores, self.objects, find_root, sender, rng, given
        ) as metadata:
            yield metadata
        if hasattr(sender, "close"):
            await sender.close()

    def owner(self) -> Running:
        """The proxy that has the controller."""
        return next(
            running
            for running in self.local.running
            if not running.task.done() and running.proxy.object_controllers.hosts("_dlog.objects")  # type: ignore[union-attr]  # write proxies only
        )


def contents(image: Image) -> bytes:
    """Equal for equal images."""
    return encode_snapshot(contents_of(image))


async def equal(followers: list[ObjectMetadataClient], version: int) -> Image:
    """Wait until all followers have this version; their images are equal then."""
    for follower in followers:
        assert await follower.wait_version(version, PATIENCE_S)
    found = {contents(follower.image) for follower in followers if follower.image.version == version}
    assert len(found) == 1
    return followers[0].image


async def until(condition: Any) -> None:
    """Wait for a condition that other tasks bring about."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - many parts bring it about
            await asyncio.sleep(0.01)
