"""Object storage keeps its interface: a directory, a real S3 and a real HDFS.

The S3 server is also reached through a proxy that drops, repeats and refuses requests.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from dlog.io.object_requests import ObjectRequests
from dlog.io.objects import Objects
from dlog.io.settings import load
from dlog.stores.cold.options import ColdOptions
from dlog.stores.contract import MisconfiguredError, SegmentNotFoundError, StoreUnavailableError
from dlog.stores.object_storage.locations import Location, parse_root
from dlog.stores.object_storage.port import Buffer, Creation
from dlog.stores.object_storage.prices import RequestKind
from dlog.stores.object_storage.probe import NONCE_HEX, probe
from tests.integration.storage import Storage, options_of
from tests.integration.stores.s3_fault_proxy import Fault, S3FaultProxy
from tests.ports import free_port

HEAD_BYTES = 8


def text_of(number: int) -> bytes:
    """An object's bytes: a head of its own, and a body."""
    return b"%08d" % number + b" body" * number


async def create(objects: Objects, place: Location, number: int) -> Creation:
    return await objects.create_if_absent(place, (text_of(number),), head_bytes=HEAD_BYTES)


async def names(objects: Objects, folder: Location, **how: object) -> list[str]:
    """The names of what is listed, below the folder."""
    found = objects.list(folder, **how)  # type: ignore[arg-type]  # of two kinds
    return [one.location.removeprefix(f"{folder}/") async for one in found]


class TestObjects:
    """Tests of each kind of storage."""

    @pytest.fixture
    async def objects(self, kept: Storage) -> AsyncIterator[Objects]:
        async with Objects(options_of(kept)) as objects:
            yield objects

    @pytest.fixture
    def folder(self, kept: Storage) -> Location:
        return parse_root(kept.root).below(os.urandom(6).hex())

    async def test_an_object_is_there_when_it_is_finished_and_not_before(
        self, objects: Objects, folder: Location
    ) -> None:
        place = folder.below("a", "one")
        writer = await objects.create(place)
        await writer.write((b"some ", memoryview(b"bytes"), bytearray(b"")))
        await writer.write(())
        assert [found async for found in objects.list(folder)] == []
        with pytest.raises((SegmentNotFoundError, StoreUnavailableError)):
            await objects.read_end(place, 10)
        await writer.write((b" more",))
        await writer.finish()
        assert await objects.read_end(place, 4) == (b"more", 15)
        assert await objects.read_end(place, 1000) == (b"some bytes more", 15)
        assert await objects.read(place, 5, 5) == b"bytes"
        assert await objects.read(place, 12, 100) == b"ore"
        assert await objects.read(place, 15, 5) == b""
        assert await objects.read(place, 3, 0) == b""
        (found,) = [found async for found in objects.list(folder)]
        assert (found.location, found.bytes) == (str(place), 15)
        assert found.modified_unix_ms > 1_600_000_000_000

    async def test_an_object_of_many_megabytes_in_many_parts(self, objects: Objects, folder: Location) -> None:
        """More than one part of an upload to S3, more than one packet to a DataNode."""
        place, block = folder.below("large"), os.urandom(1 << 20)
        writer = await objects.create(place)
        for number in range(40):
            await writer.write((number.to_bytes(4, "big"), block, b"x" * number))
        await writer.finish()
        size = sum(4 + len(block) + number for number in range(40))
        end, whole = await objects.read_end(place, 39 + 8)
        assert (whole, end[-39:]) == (size, b"x" * 39)
        at = sum(4 + len(block) + number for number in range(33))
        assert await objects.read(place, at, 4 + len(block)) == (33).to_bytes(4, "big") + block

    async def test_writing_again_puts_another_in_its_place(self, objects: Objects, folder: Location) -> None:
        place = folder.below("twice")
        for text in (b"first", b"second"):
            writer = await objects.create(place)
            await writer.write((text,))
            await writer.finish()
        assert await objects.read_end(place, 100) == (b"second", 6)
        assert len([found async for found in objects.list(folder)]) == 1

    async def test_what_is_aborted_leaves_nothing(self, objects: Objects, folder: Location) -> None:
        writer = await objects.create(folder.below("aborted"))
        await writer.write((b"x" * (17 << 20),))
        await writer.abort()
        await writer.abort()
        assert [found async for found in objects.list(folder)] == []
        assert [found async for found in objects.unfinished(folder)] == []

    async def test_what_a_killed_writer_left_is_found_and_discarded(self, objects: Objects, folder: Location) -> None:
        writer = await objects.create(folder.below("deep", "left"))
        await writer.write((b"x" * (17 << 20),))  # larger than a part: S3 knows of it
        await writer.write((b"y" * (17 << 20),))
        left = [found async for found in objects.unfinished(folder)]
        assert len(left) == 1 and left[0].modified_unix_ms > 1_600_000_000_000
        await objects.discard(left[0])
        await objects.discard(left[0])
        assert [found async for found in objects.unfinished(folder)] == []
        with suppress(StoreUnavailableError, SegmentNotFoundError):
            await writer.write((b"z" * (17 << 20),))
            await writer.finish()
            pytest.fail("what was discarded cannot be finished")
        await writer.abort()
        assert [found async for found in objects.list(folder)] == []

    async def test_deleting_what_is_not_there_is_no_error(self, objects: Objects, folder: Location) -> None:
        writer = await objects.create(folder.below("here"))
        await writer.finish()
        await objects.delete(folder.below("not-here"))
        await objects.delete(folder.below("here"))
        await objects.delete(folder.below("here"))
        assert [found async for found in objects.list(folder)] == []
        with pytest.raises(SegmentNotFoundError):
            await objects.read(folder.below("here"), 0, 1)

    async def test_many_are_deleted_at_once(self, objects: Objects, folder: Location) -> None:
        for name in ("a", "deep/b", "c"):
            writer = await objects.create(folder.below(*name.split("/")))
            await writer.finish()
        await objects.delete_many([folder.below("a"), folder.below("not-here"), folder.below("deep", "b")])
        assert await names(objects, folder) == ["c"]
        await objects.delete_many([])

    async def test_objects_are_listed_in_order_and_behind_a_name(self, objects: Objects, folder: Location) -> None:
        there = ["a-1", "a/1", "a/2", "a/deep/1", "a0", "b"]
        for name in there:
            writer = await objects.create(folder.below(*name.split("/")))
            await writer.finish()
        assert await names(objects, folder) == there
        for behind in [*there, "0", "a", "a/15", "c"]:
            after = [name for name in there if name > behind]
            assert await names(objects, folder, behind=folder.below(behind)) == after
            assert await names(objects, folder, behind=folder.below(behind), limit=2) == after[:2]
        assert await names(objects, folder.below("a"), behind=folder.below("a-1")) == ["1", "2", "deep/1"]
        assert await names(objects, folder.below("a"), behind=folder.below("b")) == []
        assert await names(objects, folder, limit=0) == []

    async def test_the_storage_has_a_time_of_its_own(self, objects: Objects, folder: Location) -> None:
        writer = await objects.create(folder.below("x"))
        await writer.finish()
        (found,) = [found async for found in objects.list(folder)]
        assert await objects.now_unix_ms(folder) > found.modified_unix_ms - 2000

    async def test_a_folder_that_is_not_there_is_empty(self, objects: Objects, folder: Location) -> None:
        assert [found async for found in objects.list(folder)] == []
        assert [found async for found in objects.unfinished(folder)] == []


async def test_of_several_name_nodes_the_one_that_answers_is_asked(hdfs: Storage) -> None:
    root = parse_root(hdfs.root)
    both = Location(root.scheme, f"127.0.0.1:{free_port()},{root.authority}", root.path)
    options = load(ColdOptions, "cold", None, {"timeout_s": 5.0}, environ=hdfs.environment)
    async with Objects(options) as objects:
        place = both.below("here")
        writer = await objects.create(place)
        await writer.write((b"bytes",))
        await writer.finish()
        assert await objects.read_end(place, 10) == (b"bytes", 5)


async def test_a_bucket_that_is_not_there_and_a_key_that_is_wrong_are_told(s3: Storage) -> None:
    for root, changes, hint in (
        ("s3://another/logs", {}, "NoSuchBucket"),
        (s3.root, {"s3_secret_key": "wrong"}, "SignatureDoesNotMatch"),
        (s3.root, {"s3_endpoint": "no endpoint"}, "S3 client cannot be made"),
    ):
        options = load(ColdOptions, "cold", None, changes, environ=s3.environment)
        async with Objects(options) as objects:
            with pytest.raises(MisconfiguredError, match=hint):
                await objects.read_end(parse_root(root).below("x"), 1)


async def test_without_its_package_s3_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("aiobotocore.config", "aiobotocore.session"):
        monkeypatch.setitem(sys.modules, name, None)
    async with Objects(ColdOptions()) as objects:
        with pytest.raises(MisconfiguredError, match=r"pip install 'dlogd\[s3\]'"):
            await objects.read_end(parse_root("s3://bucket/x"), 1)


class TestCreateIfAbsent:
    """Kinds of storage that create an object only where there is none."""

    @pytest.fixture(params=("directory", "s3"))
    async def objects(self, request: pytest.FixtureRequest) -> AsyncIterator[Objects]:
        self.kept: Storage = request.getfixturevalue(request.param)
        async with Objects(options_of(self.kept)) as objects:
            yield objects

    @pytest.fixture
    def folder(self, objects: Objects) -> Location:
        return parse_root(self.kept.root).below(os.urandom(6).hex())

    async def test_the_second_object_at_a_location_is_refused(self, objects: Objects, folder: Location) -> None:
        place = folder.below("a", "one")
        assert objects.can_create_if_absent(place)
        assert await create(objects, place, 1) is Creation.MADE
        assert await create(objects, place, 2) is Creation.EXISTS
        assert await create(objects, place, 1) is Creation.MADE, "the same bytes again: it is ours"
        assert await objects.read(place, 0, 100) == text_of(1)
        assert await names(objects, folder) == ["a/one"]
        assert [found async for found in objects.unfinished(folder)] == []

    async def test_an_object_of_several_megabytes(self, objects: Objects, folder: Location) -> None:
        parts: list[Buffer] = [os.urandom(3 << 20), memoryview(os.urandom(2 << 20)), bytearray(b"end")]
        assert await objects.create_if_absent(folder.below("x"), parts, head_bytes=16) is Creation.MADE
        assert await objects.read_end(folder.below("x"), 6 << 20) == (b"".join(parts), (5 << 20) + 3)

    async def test_of_forty_racers_one_wins(self, objects: Objects, folder: Location) -> None:
        place = folder.below("race")
        async with asyncio.TaskGroup() as group:
            racers = [group.create_task(create(objects, place, n), name=f"racer {n}") for n in range(40)]
        winners = [n for n, racer in enumerate(racers) if racer.result() is Creation.MADE]
        assert len(winners) == 1 and await objects.read(place, 0, 1000) == text_of(winners[0])

    async def test_the_storage_passes_the_probe_and_nothing_is_left(self, objects: Objects, folder: Location) -> None:
        for number in range(2):
            await probe(objects, folder, f"{number:0{NONCE_HEX}x}")
        assert await names(objects, folder) == []


class TestFaults:
    """S3 behind a proxy with faults. Requests are counted by their method."""

    @pytest.fixture
    async def proxy(self, s3: Storage) -> AsyncIterator[S3FaultProxy]:
        async with S3FaultProxy(s3.environment["DLOG_COLD_S3_ENDPOINT"]) as proxy:
            yield proxy

    @pytest.fixture
    async def objects(self, s3: Storage, proxy: S3FaultProxy) -> AsyncIterator[Objects]:
        async with Objects(options_of(s3, s3_endpoint=proxy.endpoint)) as objects:
            yield objects

    @pytest.fixture
    def folder(self, s3: Storage) -> Location:
        return parse_root(s3.root).below(os.urandom(6).hex())

    @pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.DROP_REQUEST, Fault.REPEAT, Fault.CONFLICT, Fault.BUSY])
    async def test_a_single_fault_is_resolved(
        self, fault: Fault, objects: Objects, proxy: S3FaultProxy, folder: Location
    ) -> None:
        for warm, number in ((False, 1), (True, 2)):  # on a connection that was used before, the library repeats
            proxy.faults["PUT"] = [fault]
            place = folder.below(f"{warm}")
            assert await create(objects, place, number) is Creation.MADE
            assert await objects.read(place, 0, 100) == text_of(number)
            assert not proxy.faults["PUT"]

    async def test_the_object_of_another_is_not_taken_for_ours(
        self, objects: Objects, proxy: S3FaultProxy, folder: Location
    ) -> None:
        assert await create(objects, folder.below("x"), 1) is Creation.MADE
        for fault in (Fault.DROP_ANSWER, Fault.DROP_REQUEST, Fault.CONFLICT, Fault.BUSY):
            proxy.faults["PUT"] = [fault]
            assert await create(objects, folder.below("x"), 2) is Creation.EXISTS

    async def test_what_stays_unclear_is_told(self, objects: Objects, proxy: S3FaultProxy, folder: Location) -> None:
        proxy.faults["PUT"] = [Fault.DROP_REQUEST] * 12
        with pytest.raises(StoreUnavailableError) as raised:
            await create(objects, folder.below("x"), 1)
        assert raised.value.outcome_unknown
        proxy.faults.clear()
        assert await create(objects, folder.below("x"), 1) is Creation.MADE

    async def test_a_busy_service_is_asked_until_it_serves(
        self, objects: Objects, proxy: S3FaultProxy, folder: Location
    ) -> None:
        await create(objects, folder.below("x"), 1)
        proxy.faults["GET"] = [Fault.BUSY] * 3
        assert await objects.read(folder.below("x"), 0, 8) == b"00000001"
        proxy.faults["GET"] = [Fault.BUSY] * 3
        assert await names(objects, folder) == ["x"]
        proxy.faults["DELETE"] = [Fault.BUSY] * 3
        await objects.delete(folder.below("x"))
        assert await names(objects, folder) == []

    async def test_a_service_that_stays_busy_is_given_up(
        self, s3: Storage, proxy: S3FaultProxy, folder: Location
    ) -> None:
        async with Objects(options_of(s3, s3_endpoint=proxy.endpoint, s3_busy_s=0.01)) as objects:
            proxy.faults["GET"] = [Fault.BUSY] * 50
            with pytest.raises(StoreUnavailableError, match="SlowDown"):
                await objects.read(folder.below("x"), 0, 8)

    async def test_requests_refusals_and_busy_answers_are_counted(
        self, objects: Objects, proxy: S3FaultProxy, folder: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        requests = ObjectRequests()
        monkeypatch.setattr("dlog.io.s3_objects.REQUESTS", requests)
        await create(objects, folder.below("x"), 1)
        await objects.delete(folder.below("x"))
        assert (requests.sent[RequestKind.PUT], requests.sent[RequestKind.DELETE]) == (1, 1)
        proxy.faults["PUT"] = [Fault.BUSY, Fault.BUSY, None]
        await create(objects, folder.below("x"), 1)
        assert (requests.sent[RequestKind.PUT], requests.busy) == (4, 2)
        assert (requests.refused_own, requests.refused_foreign) == (0, 0)
        proxy.faults["PUT"] = [Fault.REPEAT]
        assert await create(objects, folder.below("y"), 1) is Creation.MADE
        assert (requests.refused_own, requests.refused_foreign) == (1, 0)
        assert await create(objects, folder.below("y"), 2) is Creation.EXISTS
        assert (requests.refused_own, requests.refused_foreign) == (1, 1)
        assert await names(objects, folder) == ["x", "y"]
        await objects.now_unix_ms(folder)
        sent = {kind.value: number for kind, number in requests.sent.items()}
        assert sent == {"put": 6, "get": 2, "head": 1, "list": 1, "delete": 1}

    async def test_a_cancelled_request_may_be_repeated(
        self, objects: Objects, proxy: S3FaultProxy, folder: Location
    ) -> None:
        place = folder.below("x")
        proxy.faults["PUT"] = [Fault.HOLD_ANSWER]
        async with asyncio.TaskGroup() as group:
            task = group.create_task(create(objects, place, 1), name="to be cancelled")
            await proxy.held.wait()
            task.cancel()
        assert await create(objects, place, 1) is Creation.MADE
        assert await create(objects, place, 2) is Creation.EXISTS

    async def test_a_body_that_is_cut_short_is_read_again(
        self, objects: Objects, proxy: S3FaultProxy, folder: Location
    ) -> None:
        await create(objects, folder.below("x"), 50)
        proxy.faults["GET"] = [Fault.CUT_ANSWER]
        assert await objects.read(folder.below("x"), 0, 1000) == text_of(50)


async def test_a_storage_that_cannot_create_if_absent_is_refused() -> None:
    async with Objects() as objects:
        root = parse_root("webhdfs://127.0.0.1:1/x")
        assert not objects.can_create_if_absent(root)
        with pytest.raises(MisconfiguredError, match="choose s3"):
            await probe(objects, root, "0" * NONCE_HEX)
        with pytest.raises(MisconfiguredError, match="use s3"):
            await create(objects, root.below("x"), 1)
