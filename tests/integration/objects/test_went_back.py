"""ZooKeeper is restored to a state without the last segments of the metadata stream: a new controller notices."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dlog.errors import MetadataWentBackError
from dlog.events import ObjectControllerStarted, ObjectMetadataWentBack
from dlog.io.metadata_stream import METADATA_KEY
from dlog.machine import Versioned
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectId
from dlog.objects.keys import object_key
from dlog.objects.operations import GetKey, KeyValue, ObjectsArePrepared, OpenNode, PrepareObjects, PutKey
from tests.integration.objects.stage import ROOT, Stage
from tests.integration.proxies.local_proxies import LocalProxies
from tests.integration.proxies.local_proxies import local as open_local_proxies

NODE, ONE = NodeId("n"), NodeEpoch(1)
HOUR_MS = 3_600_000


@pytest.fixture
async def local() -> AsyncIterator[LocalProxies]:
    async with open_local_proxies() as built:
        yield built


@pytest.mark.parametrize("has_object", [True, False])
async def test_a_restored_metadata_stream_is_refused_if_an_object_of_lost_records_is_there(
    local: LocalProxies, has_object: bool
) -> None:
    stage = Stage(local)
    one = await local.write_proxy()
    async with stage.follower() as follower:
        await follower.ask(OpenNode(NODE, ONE, is_failover=False, nonce=b"1"))
        assert await follower.ask(PrepareObjects(NODE, ONE, 3, HOUR_MS)) == ObjectsArePrepared(ObjectId(1), 3)
        backup = await local.metadata.read(METADATA_KEY)
        assert isinstance(backup, Versioned)
        await one.kill()
        two = await local.write_proxy()
        assert await follower.ask(PrepareObjects(NODE, ONE, 2, HOUR_MS)) == ObjectsArePrepared(ObjectId(4), 2)
        for object in range(1, 6 if has_object else 4):
            stage.objects.objects[str(ROOT.below(object_key(follower.folder, ObjectId(object), NODE, ONE)))] = b"x"
        await two.kill()
    now = await local.metadata.read(METADATA_KEY)
    assert isinstance(now, Versioned)
    assert len(now.value.segments) > len(backup.value.segments)
    restored = await local.metadata.compare_and_set(METADATA_KEY, backup.value, now.version)
    assert isinstance(restored, Versioned)
    three = await local.write_proxy()
    async with stage.follower() as follower:
        if has_object:
            for operation in (PutKey("k", b"v"), GetKey("k"), PrepareObjects(NODE, ONE, 1, HOUR_MS)):
                with pytest.raises(MetadataWentBackError, match=r"follow docs/restore\.md"):
                    await follower.ask(operation)
            (event,) = await three.events.of(ObjectMetadataWentBack)
            assert event.next_object == 4 and "0000000000000004-1-n" in event.key
            assert not [event for event in three.events if isinstance(event, ObjectControllerStarted)]
        else:
            assert await follower.ask(PutKey("k", b"v")) == KeyValue(b"v", is_new=True)
            assert not [event for event in three.events if isinstance(event, ObjectMetadataWentBack)]
