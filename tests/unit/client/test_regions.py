"""Tests regions as programs use them, on topics of a directory."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest

from dlog.client.regions import Region, Regions, RegionView
from dlog.errors import (
    ClosedError,
    ConfigError,
    DLogError,
    InvalidRequestError,
    RecordTooLargeError,
    TruncatedError,
    UnavailableError,
)
from dlog.events import (
    Event,
    RegionAppendInDoubt,
    RegionCleaned,
    RegionFailed,
    RegionFenced,
    RegionOpened,
    RegionRecordIgnored,
    TablePinsRegion,
)
from dlog.io.file_topics import DirectoryTopics, FileTopics
from dlog.io.region_topics import READ_BYTES
from dlog.io.topics import open_topics
from dlog.region.messages import LostEntries
from dlog.region.names import region_number
from dlog.region.options import RegionOptions
from dlog.region.owner import RegionFencedError
from dlog.region.topics import OffsetOutOfRangeError, RecordBytes, Stored, TopicNotFoundError
from dlog.wire.region import RecordKind

T, U = 7, 8
DATA, META = "app.data.orders", "app.meta.orders"


class Gate:
    """Stops a call until it is opened."""

    def __init__(self) -> None:
        self.is_reached = asyncio.Event()
        self.is_open = asyncio.Event()


class WatchedTopics:
    """Topics of a directory that note each call, and let a test act before and after one.

    before, after: called with the name of the call and the topic; what they raise is raised to the owner.
    """

    def __init__(self, path: Path) -> None:
        self.calls: list[tuple[str, str]] = []
        self.reads: list[tuple[str, int]] = []  # topic and offset
        self.read_bytes = 0
        self.before: Callable[[str, str], None] = lambda call, topic: None
        self.after: Callable[[str, str], None] = lambda call, topic: None
        self._gates: dict[tuple[str, str], Gate] = {}
        self._topics = FileTopics(DirectoryTopics(str(path)))

    def gate(self, call: str, topic: str) -> Gate:
        """Stop these calls from now on."""
        return self._gates.setdefault((call, topic), Gate())

    async def _call(self, call: str, topic: str, work: Any) -> Any:
        self.calls.append((call, topic))
        try:
            if gate := self._gates.get((call, topic)):
                gate.is_reached.set()
                await gate.is_open.wait()
            self.before(call, topic)
        except BaseException:
            work.close()
            raise
        result = await work
        self.after(call, topic)
        return result

    async def create(self, topic: str) -> None:
        await self._call("create", topic, self._topics.create(topic))

    async def exists(self, topic: str) -> bool:
        found: bool = await self._call("exists", topic, self._topics.exists(topic))
        return found

    async def topic_id(self, topic: str) -> str | None:
        found: str | None = await self._call("topic_id", topic, self._topics.topic_id(topic))
        return found

    async def names(self, prefix: str) -> list[str]:
        return await self._topics.names(prefix)

    async def check(self, topic: str) -> None:
        await self._call("check", topic, self._topics.check(topic))

    async def append(self, topic: str, records: Sequence[RecordBytes], *, topic_id: str = "") -> int:
        kind = RecordKind(records[0][0][0]).name.lower()
        offset: int = await self._call(f"append {kind}", topic, self._topics.append(topic, records, topic_id=topic_id))
        return offset

    async def read(self, topic: str, offset: int, bytes_max: int) -> list[Stored]:
        self.reads.append((topic, offset))
        found: list[Stored] = await self._call("read", topic, self._topics.read(topic, offset, bytes_max))
        self.read_bytes += sum(len(one.key) + len(one.value) for one in found)
        return found

    async def offsets(self, topic: str) -> tuple[int, int]:
        found: tuple[int, int] = await self._call("offsets", topic, self._topics.offsets(topic))
        return found

    async def delete_before(self, topic: str, offset: int, *, topic_id: str = "") -> None:
        await self._call("delete_before", topic, self._topics.delete_before(topic, offset, topic_id=topic_id))

    async def delete(self, topic: str, topic_id: str = "") -> None:
        await self._call("delete", topic, self._topics.delete(topic, topic_id))


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"file://{tmp_path}/wal"


def regions(topics: Any, on_event: Callable[[Event], None] = lambda event: None, **options: Any) -> Regions:
    clean_every_s = options.pop("clean_every_s", None)
    return Regions(topics, "app", options=RegionOptions(**options), clean_every_s=clean_every_s, on_event=on_event)


@pytest.fixture
def watched(tmp_path: Path) -> WatchedTopics:
    return WatchedTopics(tmp_path / "wal")


async def listed(source: Region | RegionView, starts: Mapping[int, int] | None = None, **more: Any) -> list[Any]:
    """Tables, sequences and payloads of what is read."""
    return [(one.table, one.sequence, one.payload) async for one in source.read(starts, **more)]


# ---- the whole life -------------------------------------------------------------------------------------------------


async def test_write_read_mark_clean_drop_and_open_again(address: str) -> None:
    async with Regions(address, "app") as made:
        region = await made.open("orders", create=True)
        assert await region.write(T, [b"a", b"b"]) == (1, 2)
        assert await region.write_many([(U, b"c"), (T, b"d"), (U, b"")]) == (1, 3, 2)
        everything = [(T, 1, b"a"), (T, 2, b"b"), (U, 1, b"c"), (T, 3, b"d"), (U, 2, b"")]
        assert await listed(region) == everything
        await region.mark_deleted(T, 3)
        assert await region.clean() == 1, "one mapped offset for so few records"
        assert await listed(region) == everything[2:]
        await region.drop_table(U)
        assert await listed(region) == [(T, 3, b"d")]
    async with Regions(address, "app") as made:
        region = await made.open("orders")
        assert await listed(region) == [(T, 3, b"d")]
        assert region.tables[U].is_all_deleted
        assert await region.write_many([(U, b"e"), (T, b"f")]) == (3, 4), "no number is given out twice"
        await made.delete("orders")
        with pytest.raises(TopicNotFoundError):
            await made.open("orders")
        await made.delete("orders")


async def test_a_region_in_which_everything_is_flushed_opens_and_reads_as_empty(watched: WatchedTopics) -> None:
    async with regions(watched) as made:
        region = await made.open("orders", create=True)
        for _ in range(50):
            await region.write_many([(T, bytes(100)), (U, bytes(100))])
        await region.mark_deleted(T, 51)
        await region.mark_deleted(U, 51)
        assert await region.clean() == 101
    end = (await watched.offsets(DATA))[1]
    watched.reads.clear()
    async with regions(watched) as made:
        region = await made.open("orders")
        assert await listed(region) == []
        assert [read for read in watched.reads if read[0] == DATA] == [(DATA, end)], "its own fence only"
        assert await region.clean() is None
        assert await region.write(T, [b"x"]) == (51,)


async def test_closing_saves_a_snapshot_so_that_the_next_opening_scans_nothing(watched: WatchedTopics) -> None:
    async with regions(watched) as made:
        region = await made.open("orders", create=True)
        for number in range(20):
            await region.write(T, [b"%d" % number])
        await region.mark_deleted(T, 5)
    end = (await watched.offsets(DATA))[1]
    watched.reads.clear()
    async with regions(watched) as made:
        region = await made.open("orders")
        assert [offset for topic, offset in watched.reads if topic == DATA] == [end], "its own fence only"
        assert [one[1] for one in await listed(region)] == list(range(5, 21)), "with the mark"


async def test_a_table_that_is_never_flushed_does_not_make_an_opening_scan_the_log(watched: WatchedTopics) -> None:
    """Snapshots are made by bytes of log, so an opening after a crash scans little, whatever a table keeps."""
    async with regions(watched, snapshot_bytes=20_000) as made:
        region = await made.open("orders", create=True)
        await region.write(T, [b"never flushed"])
        for number in range(1, 301):
            await region.write(U, [bytes(1000)])
            await region.mark_deleted(U, number + 1)
            if number == 290:
                assert await region.clean() == 1, "the table keeps all but the fence in front of it"

        def crash(call: str, topic: str) -> None:
            if topic == META:
                raise UnavailableError("no meta topic")

        watched.before = crash
    watched.before = lambda call, topic: None
    first, end = await watched.offsets(DATA)
    assert first <= 1 and end > 300
    watched.reads.clear()
    async with regions(watched) as made:
        region = await made.open("orders")
        scanned = [offset for topic, offset in watched.reads if topic == DATA]
        assert min(scanned) >= end - 25, "at most 20,000 bytes and what was under way"
        assert (await listed(region))[0] == (T, 1, b"never flushed")


async def test_after_a_crash_everything_that_was_acknowledged_is_there(watched: WatchedTopics) -> None:
    async with regions(watched) as made:
        region = await made.open("orders", create=True)
        await region.write(T, [b"a", b"b"])

        def fail(call: str, topic: str) -> None:
            if topic == META:
                raise UnavailableError("no meta topic")

        watched.before = fail
    watched.before = lambda call, topic: None
    async with regions(watched) as made:
        assert await listed(await made.open("orders")) == [(T, 1, b"a"), (T, 2, b"b")]


@pytest.mark.parametrize("error", [ZeroDivisionError, InvalidRequestError, asyncio.CancelledError])
async def test_a_callback_for_events_that_raises_ends_no_region(
    address: str, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: Event) -> None:
        raise error("of the user")

    async with regions(address, fail) as made:
        region = await made.open("orders", create=True)
        assert await region.write(T, [b"a"]) == (1,)
        async with regions(address) as others:
            await others.open("orders")
            with pytest.raises(RegionFencedError):
                await region.write(T, [b"b"])
    assert {record.getMessage() for record in caplog.records} == {
        "on_event raised, the region goes on: event=RegionOpened",
        "on_event raised, the region goes on: event=RegionFenced",
    }
    assert all(record.exc_info is not None and record.exc_info[0] is error for record in caplog.records)


async def test_nothing_is_kept_of_regions_that_have_ended(watched: WatchedTopics) -> None:
    def fail(call: str, topic: str) -> None:
        if (call, topic) == ("append fence", "app.data.failed"):
            raise TopicNotFoundError("deleted")

    watched.before = fail
    async with regions(watched) as made:
        before = len(asyncio.all_tasks())
        ended = []
        for name in ("closed", "deleted"):
            region = await made.open(name, create=True)
            await region.write(T, [b"a"])
            ended.append(weakref.ref(region))
            await (region.close() if name == "closed" else made.delete(name))
            del region
        with pytest.raises(TopicNotFoundError):
            await made.open("failed", create=True)
        gc.collect()
        assert [one() for one in ended] == [None, None]
        assert not made._opened and not made._opening
        assert len(asyncio.all_tasks()) == before


class FreezingTopics(WatchedTopics):
    """Freezes the caller behind call number `freeze_after` from when it is set, while `meanwhile` runs."""

    freeze_after = 0
    meanwhile: Callable[[], Awaitable[None]]

    async def _call(self, call: str, topic: str, work: Any) -> Any:
        found = await super()._call(call, topic, work)
        self.freeze_after -= 1
        if self.freeze_after == 0:
            await self.meanwhile()
        return found


@pytest.mark.parametrize("freeze_after", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("is_opened", [True, False])
async def test_a_deletion_that_is_frozen_leaves_the_next_region_alone(
    tmp_path: Path, address: str, freeze_after: int, is_opened: bool
) -> None:
    topics = FreezingTopics(tmp_path / "wal")
    async with regions(topics) as made, regions(address) as others:
        await (await (made if is_opened else others).open("orders", create=True)).write(T, [b"old"])
        heirs = []

        async def recreate() -> None:
            await others.delete("orders")
            heirs.append(await others.open("orders", create=True))
            assert await heirs[0].write(T, [b"new"]) == (1,)

        topics.meanwhile, topics.freeze_after = recreate, freeze_after
        await made.delete("orders")
        assert await heirs[0].write(T, [b"newer"]) == (2,)
        await heirs[0].save()
        await heirs[0].close()
        heir = await others.open("orders")
        assert await listed(heir) == [(T, 1, b"new"), (T, 2, b"newer")]


async def test_a_write_by_an_owner_whose_region_was_recreated_is_never_acknowledged(address: str) -> None:
    async with regions(address) as made, regions(address) as others:
        region = await made.open("orders", create=True)
        await region.write(T, [b"old"] * 5)
        await others.delete("orders")
        heir = await others.open("orders", create=True)
        await heir.write(T, [b"new"] * 5)  # the topic ends where the old one ended
        with pytest.raises((TopicNotFoundError, RegionFencedError)):
            await region.write(T, [b"late"])
        assert await heir.write(T, [b"newer"]) == (6,)
        assert [payload for _, _, payload in await listed(heir)] == [b"new"] * 5 + [b"newer"]


@pytest.mark.parametrize("call", ["save", "clean", "write", "drop_table", "close"])
async def test_an_owner_whose_region_was_recreated_does_not_touch_the_next_one(
    watched: WatchedTopics, address: str, call: str
) -> None:
    async with regions(watched) as made, regions(address) as others:
        region = await made.open("orders", create=True)
        await region.write(T, [b"old"] * 5)
        await region.mark_deleted(T, 6)
        await others.delete("orders")
        heir = await others.open("orders", create=True)
        payloads = [b"new %d" % number for number in range(20)]
        await heir.write(T, payloads)
        arguments = {"write": (T, [b"old"]), "drop_table": (T,)}
        with suppress(DLogError):
            await getattr(region, call)(*arguments.get(call, ()))
        with suppress(DLogError):
            await region.write(T, [b"old"])
        with suppress(DLogError):
            await region.save()
        assert [payload for _, _, payload in await listed(await others.view("orders"))] == payloads
        await heir.close()
        assert [payload for _, _, payload in await listed(await others.open("orders"))] == payloads


async def test_a_cleaning_that_is_frozen_deletes_nothing_of_the_next_region(tmp_path: Path, address: str) -> None:
    async with regions(WatchedTopics(tmp_path / "wal"), map_every=1) as made, regions(address) as others:
        topics = made.topics
        assert isinstance(topics, WatchedTopics)
        region = await made.open("orders", create=True)
        for _ in range(5):
            await region.write(T, [b"old"])
        await region.mark_deleted(T, 6)
        gate = topics.gate("delete_before", DATA)
        async with asyncio.TaskGroup() as group:
            cleaning = group.create_task(_outcome(region.clean()))
            await gate.is_reached.wait()
            await others.delete("orders")
            heir = await others.open("orders", create=True)
            payloads = [b"new %d" % number for number in range(20)]
            await heir.write(T, payloads)
            gate.is_open.set()
            assert isinstance(await cleaning, TopicNotFoundError)
        assert [payload for _, _, payload in await listed(heir)] == payloads


async def _outcome(call: Awaitable[Any]) -> Any:
    """What the call returns, or its error."""
    try:
        return await call
    except DLogError as error:
        return error


async def test_what_is_left_of_a_region_that_was_deleted_half_is_deleted(watched: WatchedTopics) -> None:
    def fail(call: str, topic: str) -> None:
        if (call, topic) == ("delete", META):
            raise UnavailableError("not now")

    async with regions(watched) as made:
        await made.open("orders", create=True)
        watched.before = fail
        with pytest.raises(UnavailableError):
            await made.delete("orders")
        assert (await watched.exists(DATA), await watched.exists(META)) == (False, True)
        watched.before = lambda call, topic: None
        for _ in range(2):
            await made.delete("orders")
        assert not await watched.exists(META)


async def test_a_region_that_is_created_during_a_deletion_keeps_its_topics(
    watched: WatchedTopics, address: str
) -> None:
    async with regions(watched) as made, regions(address) as others:
        await (await made.open("orders", create=True)).write(T, [b"old"])
        gate = watched.gate("delete", META)
        async with asyncio.TaskGroup() as group:
            group.create_task(made.delete("orders"))
            await gate.is_reached.wait()
            assert not await watched.exists(DATA)
            heir = await others.open("orders", create=True)
            assert await heir.write(T, [b"new"]) == (1,)
            gate.is_open.set()
        await heir.save()
        assert await listed(await made.view("orders")) == [(T, 1, b"new")]
        assert await listed(await made.open("orders")) == [(T, 1, b"new")]


async def test_a_region_that_is_being_created_keeps_its_topics(tmp_path: Path, address: str) -> None:
    """A deletion that was frozen behind its first question meets a meta topic that has no data topic yet."""
    deleting, creating = FreezingTopics(tmp_path / "wal"), WatchedTopics(tmp_path / "wal")
    async with regions(deleting) as made, regions(creating) as others, asyncio.TaskGroup() as group:
        await (await others.open("orders", create=True)).write(T, [b"old"])
        gate = creating.gate("create", DATA)
        opening: list[asyncio.Task[Region]] = []

        async def recreate() -> None:
            await others.delete("orders")
            opening.append(group.create_task(others.open("orders", create=True)))
            await gate.is_reached.wait()

        deleting.meanwhile, deleting.freeze_after = recreate, 1
        await made.delete("orders")
        assert await creating.exists(META)
        gate.is_open.set()
        heir = await opening[0]
        assert await heir.write(T, [b"new"]) == (1,)
        await heir.save()


async def test_snapshots_of_an_earlier_region_are_not_taken(watched: WatchedTopics) -> None:
    def fail(call: str, topic: str) -> None:
        if (call, topic) == ("delete", META):
            raise UnavailableError("not now")

    async with regions(watched) as made:
        region = await made.open("orders", create=True)
        await region.write(T, [b"old"])
        await region.save()
        watched.before = fail
        with pytest.raises(UnavailableError):
            await made.delete("orders")
        with pytest.raises(UnavailableError):
            await made.open("orders", create=True)
        assert not await watched.exists(DATA)
        watched.before = lambda call, topic: None
        heir = await made.open("orders", create=True)
        assert await heir.write(T, [b"new"]) == (1,)
        await heir.save()
        assert await listed(heir) == [(T, 1, b"new")]


@pytest.mark.parametrize("rounds", [1, 99])
async def test_a_region_that_is_recreated_while_it_is_opened_has_topics_of_one_time(
    tmp_path: Path, address: str, rounds: int
) -> None:
    async with regions(address) as others:
        await others.open("orders", create=True)
        left = rounds

        class Recreating(WatchedTopics):
            async def topic_id(self, topic: str) -> str | None:
                nonlocal left
                found = await super().topic_id(topic)
                if topic == DATA and left and self.calls[-2:] == [("topic_id", META), ("topic_id", DATA)]:
                    left -= 1
                    await others.delete("orders")
                    await others.open("orders", create=True)
                return found

        topics = Recreating(tmp_path / "wal")
        async with regions(topics) as made:
            if rounds > 5:
                with pytest.raises(
                    UnavailableError, match="created or deleted while it is opened, try again: region=a"
                ):
                    await made.open("orders")
                return
            region = await made.open("orders")
            assert region._topics._ids == {
                topic: await topics.topic_id(path) for topic, path in region._topics.paths.items()
            }
            await region.write(T, [b"new"])
            await region.save()


# ---- opening --------------------------------------------------------------------------------------------------------


async def test_openings_at_the_same_time_share_one_region(watched: WatchedTopics) -> None:
    async with regions(watched) as made:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(made.open("orders", create=True)) for _ in range(5)]
        assert len({id(task.result()) for task in tasks}) == 1
        assert await made.open("orders") is tasks[0].result()
        assert watched.calls.count(("append fence", DATA)) == 1


async def test_a_closed_region_is_opened_anew(address: str) -> None:
    async with regions(address) as made:
        first = await made.open("orders", create=True)
        await first.write(T, [b"a"])
        await first.close()
        await first.close()
        assert first.has_ended
        with pytest.raises(ClosedError):
            await first.write(T, [b"b"])
        second = await made.open("orders")
        assert second is not first
        assert await second.write(T, [b"b"]) == (2,)


async def test_a_region_that_does_not_exist(address: str) -> None:
    async with regions(address) as made:
        for attempt in (made.open, made.view):
            with pytest.raises(TopicNotFoundError, match="create it first: region=app/orders"):
                await attempt("orders")
        await made.open("orders", create=True)


@pytest.mark.parametrize("create", [False, True])
async def test_a_missing_meta_topic_costs_nothing_and_is_made_again(address: str, create: bool) -> None:
    async with regions(address) as made:
        region = await made.open("orders", create=True)
        await region.write(T, [b"a", b"b"])
    await open_topics(address).delete(META)
    async with regions(address) as made:
        view = await made.view("orders")
        assert await listed(view) == [(T, 1, b"a"), (T, 2, b"b")]
        assert not await open_topics(address).exists(META)
        region = await made.open("orders", create=create)
        assert await region.write(T, [b"c"]) == (3,)
        assert await listed(region) == [(T, 1, b"a"), (T, 2, b"b"), (T, 3, b"c")]
        await region.save()


async def test_two_processes_create_a_region_at_the_same_time(watched: WatchedTopics, tmp_path: Path) -> None:
    other = DirectoryTopics(str(tmp_path / "wal"))

    def come_first(call: str, topic: str) -> None:
        if call == "create":
            other.create(topic)

    watched.before = come_first
    async with regions(watched) as made:
        region = await made.open("orders", create=True)
        assert await region.write(T, [b"a"]) == (1,)


async def test_an_opening_that_failed_can_be_tried_again(watched: WatchedTopics) -> None:
    def fail(call: str, topic: str) -> None:
        if call == "offsets":
            raise UnavailableError("no broker")

    async with regions(watched, retry_s=0.001, open_attempts=2) as made:
        watched.before = fail
        with pytest.raises(UnavailableError, match="no broker"):
            await made.open("orders", create=True)
        assert watched.calls.count(("offsets", META)) == 2
        watched.before = lambda call, topic: None
        region = await made.open("orders")
        assert await region.write(T, [b"a"]) == (1,)


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "..", "ä", "x" * 101, "a\n"])
async def test_names_that_no_topic_could_have_are_refused(address: str, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="a namespace has 1 to 100"):
        Regions(address, name)
    async with regions(address) as made:
        for attempt in (made.open, made.view, made.delete):
            with pytest.raises(InvalidRequestError, match="a region has 1 to 100"):
                await attempt(name)


@pytest.mark.parametrize("address", ["", "/var/lib/wal", "file://wal", "file:wal", "http://host", "kafka:host"])
def test_an_address_of_no_topics_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="file:///path or kafka://"):
        Regions(address, "app")


def test_the_number_of_a_region() -> None:
    assert region_number("17") == 17
    assert region_number(str((1 << 64) - 1)) == (1 << 64) - 1
    hashed = {region_number(name) for name in ("orders", "Orders", str(1 << 64), "-1", "1_0")}
    assert len(hashed) == 5
    assert all(0 <= number < 1 << 64 for number in hashed)


# ---- writing --------------------------------------------------------------------------------------------------------


async def test_writes_that_cannot_be_made_are_refused(address: str) -> None:
    async with regions(address, batch_bytes_max=1000) as made:
        region = await made.open("orders", create=True)
        with pytest.raises(RecordTooLargeError):
            await region.write(T, [bytes(1000)])
        with pytest.raises(RecordTooLargeError, match="at least one record"):
            await region.write(T, [])
        for table in (-1, 1 << 64):
            with pytest.raises(InvalidRequestError, match=f"table={table}"):
                await region.write(table, [b"x"])
        assert await region.write((1 << 64) - 1, [b"x"]) == (1,)
        for table, below in ((99, 1), ((1 << 64) - 1, 3)):
            with pytest.raises(InvalidRequestError):
                await region.mark_deleted(table, below)


@pytest.mark.parametrize("payloads", [b"abc", [7], ["text"], [None]])
async def test_payloads_that_are_not_bytes_are_refused(address: str, payloads: Any) -> None:
    """bytes(7) are seven zeros, so a payload where a list of payloads belongs must not be written as numbers."""
    async with regions(address) as made:
        region = await made.open("orders", create=True)
        with pytest.raises(TypeError):
            await region.write(T, payloads)
        like_bytes: list[Any] = [b"a", bytearray(b"b"), memoryview(b"c")]
        assert await region.write(T, like_bytes) == (1, 2, 3)
        assert [one[2] for one in await listed(region)] == [b"a", b"b", b"c"]


async def test_writes_of_many_callers_are_each_there_once(address: str) -> None:
    async with regions(address) as made:
        region = await made.open("orders", create=True)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(region.write_many([(T, b"%d" % n), (U, b"%d" % n)])) for n in range(100)]
        found = await listed(region)
        kept = {(table, sequence): payload for table, sequence, payload in found}
        assert len(found) == len(kept) == 200
        for number, task in enumerate(tasks):
            first, second = task.result()
            assert kept[(T, first)] == kept[(U, second)] == b"%d" % number


@pytest.mark.parametrize("is_made", [False, True])
async def test_every_write_is_there_once_though_appends_fail(watched: WatchedTopics, is_made: bool) -> None:
    """Each third append of entries fails: before it is made, or after."""
    events: list[Event] = []
    counts = {"append entry": 0, "append fence": 0}

    def fail(call: str, topic: str) -> None:
        if topic == DATA and call in counts:
            counts[call] += 1
            if counts[call] % 3 == 0:
                raise UnavailableError("no answer")

    async with regions(watched, events.append, retry_s=0.001) as made:
        region = await made.open("orders", create=True)
        if is_made:
            watched.after = fail
        else:
            watched.before = fail
        for number in range(30):
            assert await region.write_many([(T, b"%d" % number), (U, b"%d" % number)]) == (number + 1, number + 1)
        assert sum(isinstance(event, RegionAppendInDoubt) for event in events) >= 10
        expected = [(table, number + 1, b"%d" % number) for number in range(30) for table in (T, U)]
        assert await listed(region) == expected
        assert await listed(await made.view("orders")) == expected


async def test_a_defect_ends_the_region_and_is_told(watched: WatchedTopics) -> None:
    events: list[Event] = []

    def fail(call: str, topic: str) -> None:
        if call == "append entry":
            raise RuntimeError("a defect of these topics")

    async with regions(watched, events.append) as made:
        region = await made.open("orders", create=True)
        watched.after = fail
        with pytest.raises(UnavailableError) as error:
            await region.write(T, [b"a"])
        assert error.value.outcome_unknown
        assert region.has_ended
        (failed,) = [event for event in events if isinstance(event, RegionFailed)]
        assert "a defect of these topics" in failed.error
        watched.after = lambda call, topic: None
        again = await made.open("orders")
        assert await listed(again) == [(T, 1, b"a")]
        assert await again.write(T, [b"b"]) == (2,)


async def test_a_cancelled_write_may_still_be_made(watched: WatchedTopics) -> None:
    async with regions(watched) as made:
        region = await made.open("orders", create=True)
        gate = watched.gate("append entry", DATA)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(region.write(T, [b"a"]))
            await gate.is_reached.wait()
            task.cancel()
        gate.is_open.set()
        assert await region.write(T, [b"b"]) == (2,)
        assert await listed(region) == [(T, 1, b"a"), (T, 2, b"b")]


async def test_closing_waits_for_the_writes_under_way(watched: WatchedTopics) -> None:
    async with regions(watched) as made:
        region = await made.open("orders", create=True)
        gate = watched.gate("append entry", DATA)
        async with asyncio.TaskGroup() as group:
            writes = [group.create_task(region.write(T, [b"%d" % number])) for number in range(3)]
            await gate.is_reached.wait()
            closing = group.create_task(region.close())
            await asyncio.sleep(0)
            gate.is_open.set()
        assert closing.done()
        assert sorted(write.result() for write in writes) == [(1,), (2,), (3,)]
        end = (await watched.offsets(DATA))[1]
        watched.reads.clear()
        region = await made.open("orders")
        assert [offset for topic, offset in watched.reads if topic == DATA] == [end], "the snapshot has them"


# ---- two owners -----------------------------------------------------------------------------------------------------


async def test_the_last_to_open_a_region_owns_it(address: str) -> None:
    events: list[Event] = []
    async with regions(address, events.append) as one, regions(address) as other:
        first = await one.open("orders", create=True)
        assert await first.write(T, [b"a"]) == (1,)
        second = await other.open("orders")
        with pytest.raises(RegionFencedError) as error:
            await first.write(T, [b"lost"])
        assert not error.value.outcome_unknown
        assert any(isinstance(event, RegionFenced) for event in events)
        assert first.has_ended
        for attempt in (first.save, first.clean, lambda: first.mark_deleted(T, 1), lambda: listed(first)):
            with pytest.raises(RegionFencedError):
                await attempt()
        assert await second.write(T, [b"b"]) == (2,)
        assert await listed(second) == [(T, 1, b"a"), (T, 2, b"b")]
        again = await one.open("orders")
        assert again is not first
        assert await again.write(T, [b"c"]) == (3,)
        with pytest.raises(RegionFencedError):
            await second.write(T, [b"lost"])
        assert await listed(again) == [(T, 1, b"a"), (T, 2, b"b"), (T, 3, b"c")]


async def test_a_view_takes_the_region_from_nobody(address: str) -> None:
    async with regions(address) as one, regions(address) as other:
        region = await one.open("orders", create=True)
        await region.write(T, [b"a"])
        view = await other.view("orders")
        assert view.tables[T].next_seq_num == 2
        assert await region.write(T, [b"b"]) == (2,)
        assert await listed(view) == [(T, 1, b"a")], "as it was when it was opened"
        assert await listed(await other.view("orders"), {T: 2}) == [(T, 2, b"b")]
        assert not region.has_ended
        assert view.problems == []


async def test_a_view_of_a_region_that_is_cleaned_while_it_is_opened(watched: WatchedTopics, tmp_path: Path) -> None:
    async with regions(FileTopics(DirectoryTopics(str(tmp_path / "wal")))) as one, regions(watched) as other:
        region = await one.open("orders", create=True)
        await region.write(T, [b"a", b"b"])
        await region.write(U, [b"c"])
        await region.mark_deleted(T, 3)
        gate = watched.gate("read", DATA)
        async with asyncio.TaskGroup() as group:
            opening = group.create_task(other.view("orders"))
            await gate.is_reached.wait()
            assert await region.clean() == 3
            gate.is_open.set()
        assert await listed(opening.result()) == [(U, 1, b"c")]


# ---- reading --------------------------------------------------------------------------------------------------------


async def test_tables_are_read_from_a_sequence(address: str) -> None:
    async with regions(address) as made:
        region = await made.open("orders", create=True)
        for number in range(1, 6):
            await region.write_many([(T, b"t%d" % number), (U, b"u%d" % number)])
        assert await listed(region, {T: 4}) == [(T, 4, b"t4"), (T, 5, b"t5")]
        assert await listed(region, {T: 5, U: 5}) == [(T, 5, b"t5"), (U, 5, b"u5")]
        assert await listed(region, {T: 6}) == []
        assert await listed(region, {}) == []
        for starts in ({T: 7}, {99: 0}):
            with pytest.raises(InvalidRequestError):
                await listed(region, starts)
        await region.mark_deleted(T, 4)
        assert await listed(region, {T: 0}) == [(T, 4, b"t4"), (T, 5, b"t5")]
        with pytest.raises(TruncatedError, match="table=7 first=2 kept_from=4") as error:
            await listed(region, {T: 2})
        assert error.value.first == "4"
        lost: list[LostEntries] = []
        assert await listed(region, {T: 2}, on_lost=lost.append) == [(T, 4, b"t4"), (T, 5, b"t5")]
        assert lost == [LostEntries(T, 2, 4)]


@pytest.mark.parametrize("reader", ["owner", "view"])
async def test_one_table_is_read_with_little_of_the_others(watched: WatchedTopics, reader: str) -> None:
    async with regions(watched) as made:
        region = await made.open("orders", create=True)
        for _ in range(4):
            await region.write(T, [b"x" * 100] * 64)
            for _ in range(30):
                await region.write(U, [bytes(100_000)])
        source = region if reader == "owner" else await made.view("orders")
        watched.read_bytes = 0
        found = await listed(source, {T: 0})
        assert found == [(T, sequence, b"x" * 100) for sequence in range(1, 257)]
        assert watched.read_bytes < 8 * READ_BYTES, "of 12 MB; each of four places takes two reads at most"
        watched.read_bytes = 0
        assert await listed(source, {T: 193}) == found[192:]
        assert watched.read_bytes < 3 * READ_BYTES, "nothing is read behind the last one"
        whole = [one for one in await listed(source) if one[0] == T]
        assert whole == found == [one for one in await listed(source, {T: 0, U: 0}) if one[0] == T]


async def _rest(entries: AsyncIterator[Any]) -> list[tuple[int, int]]:
    return [(one.table, one.sequence) async for one in entries]


@pytest.mark.parametrize("reader", ["owner", "view"])
async def test_a_reading_goes_on_when_the_region_is_cleaned_meanwhile(
    address: str, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.client.regions.READ_BYTES", 1)  # one record at once
    async with regions(address, map_every=1) as made:
        region = await made.open("orders", create=True)
        for number in range(1, 11):
            await region.write_many([(T, b"%d" % number), (U, b"%d" % number)])
        lost: list[LostEntries] = []
        source = region if reader == "owner" else await made.view("orders")
        async with aclosing(source.read(on_lost=lost.append)) as entries:
            seen = [(one.table, one.sequence) async for one in _some(entries, 4)]
            assert seen == [(T, 1), (U, 1), (T, 2), (U, 2)]
            await region.write(T, [b"later"])
            await region.mark_deleted(T, 7)
            await region.mark_deleted(U, 6)
            assert await region.clean() is not None
            rest = await _rest(entries)
        ahead = rest[:1] == [(T, 3)]  # it may have been asked for before the cleaning
        expected = [(U, 6), *[(table, n) for n in range(7, 11) for table in (T, U)]]
        assert rest[ahead:] == expected, "up to what was written when the reading began"
        assert sorted(lost, key=lambda one: one.table) == [LostEntries(T, 3 + ahead, 7), LostEntries(U, 3, 6)]


async def _some(entries: AsyncIterator[Any], count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield await anext(entries)


async def test_a_reading_goes_on_when_all_of_the_region_is_cleaned_meanwhile(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.client.regions.READ_BYTES", 1)
    async with regions(address, map_every=1) as made:
        region = await made.open("orders", create=True)
        for number in range(9):
            await region.write(T, [b"%d" % number])
        lost: list[LostEntries] = []
        async with aclosing(region.read(on_lost=lost.append)) as entries:
            assert (await anext(entries)).sequence == 1
            await region.mark_deleted(T, 10)
            assert await region.clean() == 10
            rest = await _rest(entries)
        assert rest in ([], [(T, 2)]), "the next one may have been asked for before"
        assert lost == [LostEntries(T, 2 + len(rest), 10)]


async def test_the_front_that_another_program_deleted_is_told(address: str) -> None:
    async with regions(address, map_every=1) as made:
        region = await made.open("orders", create=True)
        await region.write(T, [b"a", b"b"])
        await region.write(U, [b"c"])
        await open_topics(address).delete_before(DATA, 2)
        with pytest.raises(TruncatedError, match="table=7 first=1 kept_from=2"):
            await listed(region)
        lost: list[LostEntries] = []
        assert await listed(region, on_lost=lost.append) == [(T, 2, b"b"), (U, 1, b"c")]
        assert lost == [LostEntries(T, 1, 2)]
        assert await listed(region, {U: 0}) == [(U, 1, b"c")]


async def test_a_view_leaves_out_records_of_another_program(address: str) -> None:
    async with regions(address) as made:
        region = await made.open("orders", create=True)
        await region.write(T, [b"a"])
        await open_topics(address).append(DATA, [(b"foreign", b"x")])
        assert await region.write(T, [b"b"]) == (2,), "the owner passes over it"
        with pytest.raises(DLogError, match="offset=2"):
            await made.view("orders")
        view = await made.view("orders", skip_damaged=True)
        assert await listed(view) == [(T, 1, b"a"), (T, 2, b"b")]
        assert view.problems == ["data topic: not a record of a region: key_bytes=7 value_bytes=1 offset=2"]


async def test_a_region_with_records_of_another_program_is_opened_without_them(address: str) -> None:
    events: list[Event] = []
    async with regions(address) as made:
        region = await made.open("orders", create=True)
        await region.write(T, [b"a"])
        await open_topics(address).append(DATA, [(b"foreign", b"x")])
    wal = Path(address.removeprefix("file://"))
    (wal / "app%2Emeta%2Eorders").rename(wal / "no-snapshots")
    async with regions(address, events.append) as made:
        with pytest.raises(DLogError, match="offset=2"):
            await made.open("orders", create=True)
        region = await made.open("orders", create=True, skip_damaged=True)
        assert [type(event) for event in events] == [RegionRecordIgnored, RegionOpened]
        assert await region.write(T, [b"b"]) == (2,)
        assert await listed(region) == [(T, 1, b"a"), (T, 2, b"b")]


async def test_a_region_whose_topic_is_deleted_ends_with_the_reason(address: str) -> None:
    async with regions(address) as made:
        region = await made.open("orders", create=True)
        await region.write(T, [b"a"])
        await open_topics(address).delete(DATA)
        with pytest.raises(TopicNotFoundError):
            await region.write(T, [b"a"])
        await open_topics(address).create(DATA)
        with pytest.raises(TopicNotFoundError, match="created again, close and open the region"):
            await region.write(T, [b"a"])


# ---- following ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("starts", [None, {T: 2}])
async def test_a_follower_goes_on_after_a_change_of_owner(address: str, starts: Mapping[int, int] | None) -> None:
    async with regions(address) as one, regions(address) as two:
        region = await one.open("orders", create=True)
        await region.write_many([(T, b"a"), (T, b"b"), (U, b"c")])
        view = await two.view("orders")
        entries = view.read(starts, follow=True)
        old = [(await anext(entries)).payload for _ in range(1 if starts else 3)]
        assert old == ([b"b"] if starts else [b"a", b"b", b"c"])
        await region.write_many([(U, b"d"), (T, b"e")])
        heir = await two.open("orders")
        with pytest.raises(RegionFencedError):
            await region.write(T, [b"lost"])
        await heir.write(T, [b"f"])
        new = [(await anext(entries)).payload for _ in range(2 if starts else 3)]
        assert new == ([b"e", b"f"] if starts else [b"d", b"e", b"f"])
        await entries.aclose()


# ---- cleaning -------------------------------------------------------------------------------------------------------


async def test_a_region_is_cleaned_in_the_background(address: str) -> None:
    cleaned = asyncio.Event()

    def heard(event: Event) -> None:
        if isinstance(event, RegionCleaned) and event.offset == 3:  # the own fence may go before
            cleaned.set()

    async with regions(address, heard, clean_every_s=0.01) as made:
        region = await made.open("orders", create=True)
        await region.write(T, [b"a", b"b"])
        await region.mark_deleted(T, 3)
        await cleaned.wait()
        first, _ = await made.topics.offsets(DATA)
        assert first == 3
        assert await region.write(T, [b"c"]) == (3,)
        assert await listed(region) == [(T, 3, b"c")]


async def test_cleaning_in_the_background_survives_failures(watched: WatchedTopics) -> None:
    cleaned = asyncio.Event()
    failures: list[str] = []

    def heard(event: Event) -> None:
        if isinstance(event, RegionCleaned):
            cleaned.set()

    def fail(call: str, topic: str) -> None:
        if call == "delete_before" and topic == DATA and len(failures) < 2:
            failures.append(call)
            raise UnavailableError("not now")

    watched.before = fail
    async with regions(watched, heard, clean_every_s=0.01) as made:
        region = await made.open("orders", create=True)
        await region.write(T, [b"a"])
        await region.mark_deleted(T, 2)
        await cleaned.wait()
        assert len(failures) == 2


async def test_a_table_that_keeps_many_records_is_told(address: str) -> None:
    events: list[Event] = []
    async with regions(address, events.append, pinned_records=10, map_every=1) as made:
        region = await made.open("orders", create=True)
        await region.write(T, [b"old"])
        await region.write(U, [b"x"] * 20)
        await region.mark_deleted(U, 21)
        await region.clean()
        told = [event for event in events if isinstance(event, TablePinsRegion)]
        assert told == [TablePinsRegion(region_number("orders"), T, 21)]


async def test_an_error_in_the_block_closes_the_regions_and_comes_out_as_it_is(address: str) -> None:
    region: Region | None = None
    with pytest.raises(OffsetOutOfRangeError, match="of the caller"):
        async with regions(address, clean_every_s=1000.0) as made:
            region = await made.open("orders", create=True)
            raise OffsetOutOfRangeError("of the caller")
    assert region is not None
    assert region.has_ended


async def test_a_reader_asks_for_the_next_records_while_the_last_ones_are_looked_at(
    watched: WatchedTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.client.regions.READ_BYTES", 1)  # one record at once
    async with regions(watched) as made:
        region = await made.open("orders", create=True)
        for payload in (b"a", b"b", b"c"):
            await region.write(T, [payload])
        watched.reads.clear()
        async with aclosing(region.read()) as entries:
            first = await anext(entries)
            assert watched.reads[-1] == (DATA, first.offset + 1), "it is asked though this test waited for nothing"
            assert [entry.payload async for entry in entries] == [b"b", b"c"]
        assert [offset for _, offset in watched.reads] == [first.offset, first.offset + 1, first.offset + 2]


async def test_a_reader_that_is_closed_gives_up_what_it_asked_for(
    watched: WatchedTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.client.regions.READ_BYTES", 1)
    async with regions(watched) as made:
        region = await made.open("orders", create=True)
        for payload in (b"a", b"b", b"c"):
            await region.write(T, [payload])
        before = len(asyncio.all_tasks())
        async with aclosing(region.read()) as entries:
            await anext(entries)
            gate = watched.gate("read", DATA)
            await anext(entries)
            assert gate.is_reached.is_set()
        assert len(asyncio.all_tasks()) == before


async def test_an_error_of_what_was_read_ahead_comes_when_it_is_needed(
    watched: WatchedTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.client.regions.READ_BYTES", 1)
    async with regions(watched) as made:
        region = await made.open("orders", create=True)
        for payload in (b"a", b"b", b"c"):
            await region.write(T, [payload])

        def fail(call: str, topic: str) -> None:
            if (call, topic) == ("read", DATA) and len(watched.reads) > 2:
                raise UnavailableError("no answer")

        watched.reads.clear()
        watched.before = fail
        async with aclosing(region.read()) as entries:
            assert [(await anext(entries)).payload, (await anext(entries)).payload] == [b"a", b"b"]
            with pytest.raises(UnavailableError, match="no answer"):
                await anext(entries)
