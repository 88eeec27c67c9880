"""The metadata of streams in objects on real proxies: operations, followers, a change of the controller, snapshots."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dlog.errors import InvalidRequestError
from dlog.events import MetadataSnapshotWritten, ObjectControllerEnded, ObjectControllerStarted
from dlog.io.stores import open_file_store
from dlog.model.ids import METADATA_STREAM, Epoch
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectStreamId
from dlog.model.segment import StreamKey
from dlog.objects.errors import NodeEpochExpiredError, OffsetMismatchError, StreamNotClosedError
from dlog.objects.operations import (
    CloseStreams,
    CreateStreams,
    Done,
    GetKey,
    KeyValue,
    NodeIsOpen,
    OpenNode,
    OpenStream,
    PutKey,
    StreamIsOpen,
    StreamsCreated,
)
from dlog.stores.contract import SegmentStore, StoreUnavailableError
from dlog.stores.file.options import FileStoreOptions
from dlog.stores.object_storage.locations import MARKER, Location
from dlog.stores.s3_direct.options import ObjectsOptions
from dlog.stores.s3_direct.store import S3DirectStore, marker_text
from dlog.wire.proxy import Create, Failed, ObjectsAsk
from proxies.write.server import WriteProxy
from tests.integration.objects.stage import PATIENCE_S, ROOT, Stage, equal, until
from tests.integration.proxies.local_proxies import LocalProxies
from tests.integration.proxies.local_proxies import local as open_local_proxies
from tests.integration.proxies.raw import Raw, RawProducer
from tests.memory_objects import MemoryObjects

NODE, ONE = NodeId("n"), NodeEpoch(1)


@pytest.fixture
async def local() -> AsyncIterator[LocalProxies]:
    async with open_local_proxies() as built:
        yield built


async def test_operations_come_through_any_proxy_and_refusals_with_what_they_tell(local: LocalProxies) -> None:
    stage = Stage(local)
    await local.write_proxy()
    await local.write_proxy()
    async with (
        stage.follower(stage.accesses[0].sender) as first,
        stage.follower(stage.accesses[1].sender) as second,
        stage.follower() as third,
    ):
        created = await first.ask(CreateStreams("records/a", 2))
        assert isinstance(created, StreamsCreated)
        assert created.is_new
        again = await second.ask(CreateStreams("records/a", 2))
        assert again == StreamsCreated(created.streams, is_new=False)
        opened = await third.ask(OpenNode(NODE, ONE, is_failover=False, nonce=b"1"))
        assert isinstance(opened, NodeIsOpen)
        stream = created.streams[0]
        assert await first.ask(OpenStream(NODE, ONE, stream, Epoch(1))) == StreamIsOpen(0, 0)
        with pytest.raises(StreamNotClosedError):
            await second.ask(OpenStream(NODE, ONE, stream, Epoch(2)))
        with pytest.raises(NodeEpochExpiredError) as expired:
            await third.ask(OpenNode(NODE, ONE, is_failover=True, nonce=b"2"))
        assert expired.value.current == 1
        done = await second.ask(CloseStreams(NODE, ONE, ((stream, Epoch(1), 7),)))
        assert isinstance(done, Done)
        image = await equal([first, second, third], done.version)
        assert image.streams[stream].end == 7
        assert await third.ask(GetKey("none")) is None
        assert first.folder == second.folder == third.folder


async def test_an_offset_that_does_not_fit_is_told(local: LocalProxies) -> None:
    stage = Stage(local)
    await local.write_proxy()
    async with stage.follower() as follower:
        created = await follower.ask(CreateStreams("k", 1))
        assert isinstance(created, StreamsCreated)
        await follower.ask(OpenNode(NODE, ONE, is_failover=False, nonce=b"1"))
        await follower.ask(OpenStream(NODE, ONE, created.streams[0], Epoch(1)))
        done = await follower.ask(CloseStreams(NODE, ONE, ((created.streams[0], Epoch(1), 5),)))
        assert isinstance(done, Done)
        with pytest.raises(OffsetMismatchError) as refused:
            await follower.ask(CloseStreams(NODE, ONE, ((created.streams[0], Epoch(1), 6),)))
        assert refused.value.expected == 5


# asyncio (3.11) accepts a socket in one step of its loop and attaches it to the server in the next: if the server ends
# between the two, an assertion fails there, and the socket is left to the garbage collector. uvloop does not.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("how", ["kill", "drain", "owner"])
async def test_operations_go_on_when_the_controller_changes(local: LocalProxies, how: str) -> None:
    """Each key is put once, whatever was repeated; the followers see the same."""
    stage = Stage(local)
    await local.write_proxy()
    await local.write_proxy()
    values: dict[str, list[KeyValue]] = {}

    async def put(number: int, follower: object) -> None:
        key = f"k{number}"
        value = await follower.ask(PutKey(key, b"v%d" % number))  # type: ignore[attr-defined]  # a follower
        assert isinstance(value, KeyValue)
        values.setdefault(key, []).append(value)

    async with stage.follower() as first, stage.follower() as second:
        await put(0, first)
        async with asyncio.TaskGroup() as tasks:
            for number in range(1, 60):
                tasks.create_task(put(number, first))
                tasks.create_task(put(number, second))
                if number == 20:
                    await until(lambda: len(values) > 5)
                    owner = stage.owner()
                    if how == "kill":
                        await owner.kill()
                    elif how == "drain":
                        tasks.create_task(owner.drain())
                    else:
                        holding = owner.proxy.owned_streams.find(METADATA_STREAM)  # type: ignore[union-attr]  # a write proxy
                        assert holding is not None
                        assert holding.owner is not None
                        holding.owner.stop()
        for key, answers in values.items():
            assert [answer.value for answer in answers] == [b"v%d" % int(key[1:])] * len(answers)
        last = await first.ask(CreateStreams("last", 1))
        assert isinstance(last, StreamsCreated)
        async with stage.follower() as late:
            await until(lambda: all(await_version(f) for f in (first, second, late)))
            image = await equal([first, second, late], 62)
    assert {key for key in image.keys if key != "last"} == {f"k{number}" for number in range(60)}
    started = sum(isinstance(e, ObjectControllerStarted) for r in local.running for e in r.events)
    assert started >= 2


def await_version(follower: object) -> bool:
    try:
        return follower.image.version >= 62  # type: ignore[attr-defined, no-any-return]  # a follower
    except StoreUnavailableError:
        return False


@asynccontextmanager
async def opened(store: str, directory: Path) -> AsyncIterator[SegmentStore]:
    rng = random.Random(3)
    if store == "file":
        async with open_file_store(FileStoreOptions(directory=str(directory)), rng, creates=True) as made:
            yield made
        return

    async def find(*, creates: bool) -> Location:
        return ROOT.below("chunks")

    options = ObjectsOptions(root=str(ROOT), linger_s=0.001, poll_min_s=0.005, poll_max_s=0.02)
    objects = MemoryObjects()
    objects.objects[str(ROOT.below("chunks", MARKER))] = marker_text("chunks")
    async with S3DirectStore(objects, find, options, rng, creates=True) as chunks:
        yield chunks


@pytest.mark.parametrize("store", ["file", "s3-direct"])
async def test_the_metadata_stream_in_other_stores(local: LocalProxies, store: str, tmp_path: Path) -> None:
    stage = Stage(local, snapshot_records=15)
    stage.store = store
    async with opened(store, tmp_path / "segments") as made:
        local.other_stores[store] = made
        await local.write_proxy()
        await local.write_proxy()
        async with stage.follower() as first, stage.follower() as second:
            for number in range(20):
                await first.ask(PutKey(f"a{number}", b"x"))
            await stage.owner().kill()
            for number in range(20):
                await second.ask(PutKey(f"b{number}", b"x"))
            async with stage.follower() as late:
                await until(lambda: all(_keys(follower) == 40 for follower in (first, second, late)))
                await equal([first, second, late], late.image.version)
        for running in local.running:
            await running.kill()


async def test_a_new_controller_knows_what_the_one_before_recorded(local: LocalProxies) -> None:
    stage = Stage(local)
    one = await local.write_proxy()
    async with stage.follower() as follower:
        await follower.ask(PutKey("a", b"v1"))
        seen = await local.metadata.read(StreamKey(METADATA_STREAM))
        epoch = seen.value.owner.epoch  # type: ignore[union-attr]  # it exists
        two = await local.write_proxy()
        await one.kill()
        assert await follower.ask(PutKey("b", b"v2")) == KeyValue(b"v2", is_new=True)
        seen = await local.metadata.read(StreamKey(METADATA_STREAM))
        assert seen.value.owner.epoch > epoch  # type: ignore[union-attr]  # it exists
        assert [e.records for e in two.events if isinstance(e, ObjectControllerStarted)] == [1]
        assert await follower.ask(PutKey("a", b"other")) == KeyValue(b"v1")


async def test_snapshots_truncate_the_stream_and_a_new_follower_starts_from_one(local: LocalProxies) -> None:
    stage = Stage(local, snapshot_records=10)
    await local.write_proxy()
    writing = stage.local.running[0]
    async with stage.follower() as follower:
        for snapshot in range(1, 5):
            done = None
            for number in range(12):
                done = await follower.ask(PutKey(f"{snapshot}-{number}", b"x"))
            assert done is not None
            await writing.events.of(MetadataSnapshotWritten, snapshot)
        await until(lambda: len([key for key in stage.objects.objects if "/snapshots/" in key]) <= 2)
        await follower.ask(PutKey("last", b"x"))
        seen = await local.metadata.read(StreamKey(METADATA_STREAM))
        assert seen.value.first_dlsn > (1, 0, 0)  # type: ignore[union-attr]  # it exists
        async with stage.follower() as late:
            await until(lambda: _keys(late) == 49 and _keys(follower) == 49)
            await equal([follower, late], follower.image.version)
        # a controller that begins now starts from a snapshot, too
        await writing.drain()
        second = await local.write_proxy()
        await follower.ask(PutKey("behind", b"x"))
        (started,) = await second.events.of(ObjectControllerStarted)
        assert started.records >= 49
        assert await follower.ask(GetKey("1-0")) == KeyValue(b"x")


def _keys(follower: object) -> int:
    try:
        return len(follower.image.keys)  # type: ignore[attr-defined]  # a follower
    except StoreUnavailableError:
        return -1


async def test_the_stream_is_not_released_while_it_has_a_controller(local: LocalProxies) -> None:
    stage = Stage(local)
    proxy = await local.write_proxy(idle_s=0.1)
    async with stage.follower() as follower:
        await follower.ask(PutKey("a", b"v1"))
        async with Raw(proxy.address) as raw:
            await raw.ask(Create, "other", {"store": "memory"})
            await RawProducer(raw, "other").write([b"x"])
        write = proxy.proxy
        assert isinstance(write, WriteProxy)
        await until(lambda: write.owned_streams.retired == 1)  # the other one
        assert write.owned_streams.find("other") is None
        assert stage.owner() is proxy
        assert not [e for e in proxy.events if isinstance(e, ObjectControllerEnded)]


async def test_nothing_is_read_before_the_first_use(local: LocalProxies) -> None:
    stage = Stage(local)
    await local.write_proxy()
    async with stage.follower() as follower:
        with pytest.raises(StoreUnavailableError):
            _ = follower.image
        assert await follower.wait_version(0, PATIENCE_S)  # there is no metadata stream: nothing is in objects
        assert follower.image.version == 0
        with pytest.raises(StoreUnavailableError):
            _ = follower.folder
        assert not await follower.wait_version(1, 0.05)


async def test_without_a_controller_an_operation_fails_after_its_deadline(local: LocalProxies) -> None:
    stage = Stage(local)
    async with stage.follower(ask_deadline_s=0.2) as follower:
        with pytest.raises(StoreUnavailableError, match="no write proxy") as failed:
            await follower.ask(PutKey("a", b"v1"))
        assert not failed.value.outcome_unknown


async def test_what_is_no_operation_is_refused(local: LocalProxies) -> None:
    stage = Stage(local)
    proxy = await local.write_proxy()
    reading = await local.read_proxy()
    async with Raw(proxy.address) as raw:
        for body in (b"", b"\x01" * 50):
            refused = await raw.ask_exactly(ObjectsAsk, None, body)
            assert isinstance(refused, Failed)
            assert refused.code == 523
    async with Raw(reading.address) as raw:
        refused = await raw.ask_exactly(ObjectsAsk, None, b"")
        assert isinstance(refused, Failed)
        assert (refused.code, refused.location) == (302, proxy.address)
    async with stage.follower() as follower:
        with pytest.raises(InvalidRequestError):
            await follower.ask(OpenStream(NODE, ONE, ObjectStreamId(0), Epoch(1)))


async def test_a_proxy_without_object_storage_says_so(local: LocalProxies) -> None:
    proxy = await local.write_proxy()
    async with Raw(proxy.address) as raw:
        refused = await raw.ask_exactly(ObjectsAsk, None, b"")
        assert isinstance(refused, Failed)
        assert "objects" in refused.message
