"""The metadata stream in ledgers on real bookies, its list and the proxies' addresses in a real ZooKeeper."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from actors.object_controller import ObjectControllerOptions
from dlog.client.operation_sender import operation_sender
from dlog.io.bookie_client import BookieClient
from dlog.io.ledgers import Ledgers, resolver
from dlog.io.object_metadata import ObjectMetadataClient, ObjectMetadataOptions
from dlog.io.stores import StoresOptions, open_stores
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.objects.operations import CreateStreams, KeyValue, PutKey, StreamsCreated
from dlog.objects.options import ControllerOptions
from dlog.stores.contract import SegmentStore
from proxies.write.object_controllers import ObjectStorageAccess
from proxies.write.options import WriteOptions
from proxies.write.server import WriteProxy
from tests.integration.cluster import BookieCluster
from tests.integration.objects.stage import PATIENCE_S, equal, find_root, until
from tests.integration.proxies.local_proxies import Events, Running
from tests.memory_objects import MemoryObjects


class Process:
    """What one process has: a session, stores."""

    def __init__(self, metadata: ZooKeeperMetadata, stores: Mapping[str, SegmentStore]) -> None:
        self.metadata = metadata
        self.stores = stores


@asynccontextmanager
async def process(hosts: str, namespace: str) -> AsyncIterator[Process]:
    rng = random.Random()
    async with (
        await ZooKeeperMetadata.connect(hosts, namespace, rng=rng) as metadata,
        BookieClient(resolver(metadata), rng=rng) as client,
        Ledgers(metadata, client, rng=rng) as ledgers,
        open_stores(ledgers, metadata, StoresOptions(), rng) as stores,
    ):
        yield Process(metadata, stores)


async def test_a_controller_on_ledgers_is_followed_and_replaced(bookies: BookieCluster) -> None:
    namespace = f"/messaging/{uuid.uuid4().hex}"
    await cluster_init(bookies.hosts, namespace)
    objects = MemoryObjects()
    controller = ObjectControllerOptions(tick_s=0.05, controller=ControllerOptions(snapshot_records=15))
    rng = random.Random(1)
    async with (
        process(bookies.hosts, namespace) as one,
        process(bookies.hosts, namespace) as two,
        process(bookies.hosts, namespace) as three,
        asyncio.TaskGroup() as tasks,
    ):
        running: list[Running] = []
        for its in (one, two):
            access = ObjectStorageAccess(objects=objects, find_root=find_root, store="ledger", options=controller)
            events = Events()
            proxy = WriteProxy(WriteOptions(), its.metadata, its.stores, object_storage=access, on_event=events.tell)
            running.append(await Running(proxy, events, tasks).started())
        sender = operation_sender(three.metadata, rng)
        options = ObjectMetadataOptions(ask_deadline_s=PATIENCE_S)
        async with (
            ObjectMetadataClient(three.metadata, three.stores, objects, find_root, sender, rng, options) as first,
            ObjectMetadataClient(one.metadata, one.stores, objects, find_root, sender, rng, options) as second,
        ):
            for number in range(20):
                assert await first.ask(PutKey(f"a{number}", b"x")) == KeyValue(b"x", is_new=True)
            owner = next(
                its
                for its in running
                if its.proxy.object_controllers.hosts("_dlog.objects")  # type: ignore[union-attr]  # write proxies only
            )
            await owner.kill()
            for number in range(20):
                assert isinstance(await first.ask(PutKey(f"b{number}", b"x")), KeyValue)
            last = await second.ask(CreateStreams("last", 1))
            assert isinstance(last, StreamsCreated)
            await until(lambda: len(first.image.keys) == 41 and len(second.image.keys) == 41)
            await equal([first, second], first.image.version)
        await sender.close()
        for started in running:
            await started.kill()
