"""Whom a follower asks, for how long it listens, and when an owner's LAC is the tail for a new reader."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from actors.owner_feed import OwnerListener
from actors.owner_follower import OwnerFollower
from actors.retrying import ChangeSignal, RetryBackoff
from actors.segment_readers import segment_key
from actors.tail_finder import TailFinder
from dlog.errors import ConnectionLostError, DLogError, MetadataUnavailableError, OwnedElsewhereError
from dlog.model.ids import EntryId, Epoch, ProxyId, SegmentNumber, StreamName, Txid
from dlog.model.segment import Owner, Segment
from dlog.stores.contract import SegmentCorruptError, StoreUnavailableError

A, B = "a:1", "b:1"


def segment(number: int = 1, **given: Any) -> Segment:
    return Segment(number=SegmentNumber(number), name=f"ledger {number}", first_txid=Txid(0), **given)


class Metadata:
    """What the newest read of the stream's metadata has shown. `see` is a read."""

    stream = StreamName("s")

    def __init__(self, changed: ChangeSignal) -> None:
        self._changed = changed
        self.owner: Owner | None = None
        self.epoch: Epoch | None = None
        self.incarnation = "1"
        self.newest_read = 0
        self.value: object = object()
        self.segments = {1: segment()}
        self.tail: Segment | None = None
        self.asked = 0  # reads that were asked for
        self.error: DLogError | None = None
        self.next: tuple[str, int] | None = None  # what the next `refreshed` sees

    def see(self, address: str, epoch: int, incarnation: str = "1") -> None:
        self.newest_read += 1
        self.incarnation, self.epoch = incarnation, Epoch(epoch)
        self.owner = Owner(epoch=self.epoch, proxy=ProxyId("p"), address=address)
        self._changed.notify()

    def read_again(self) -> None:
        self.asked += 1

    def refresh(self, then: Callable[[DLogError | None], None]) -> None:
        then(self.error)

    async def refreshed(self) -> DLogError | None:
        if self.next is not None:
            self.see(*self.next)
        return self.error

    def listed(self, number: int) -> Segment | None:
        return self.segments.get(number)


class Owners:
    """Owners that a test speaks for. asked: addresses; `end` ends the connection that was opened last."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.listener: OwnerListener | None = None
        self.pings = 0
        self.mute: set[str] = set()  # addresses that answer no ping
        self._ended: asyncio.Future[DLogError] = asyncio.get_running_loop().create_future()
        self._opened = asyncio.Event()

    async def follow(
        self, address: str, stream: StreamName, listener: OwnerListener, on_open: Callable[[], None]
    ) -> None:
        self.asked.append(address)
        self.listener = listener
        self._ended = asyncio.get_running_loop().create_future()
        on_open()
        self._opened.set()
        raise await self._ended

    async def sync(self, listener: OwnerListener) -> None:
        self.pings += 1
        if self.asked[-1] in self.mute:
            await asyncio.Event().wait()

    def end(self, error: DLogError) -> None:
        self._ended.set_result(error)

    def say(self, lac: int, number: int = 1, *, ended: bool = False) -> None:
        assert self.listener is not None
        self.listener(number, lac, ended)

    async def opened(self) -> str:
        """The address of the next connection."""
        await self._opened.wait()
        self._opened.clear()
        return self.asked[-1]


class Fetches:
    def __init__(self) -> None:
        self.kept: list[tuple[str, int]] = []

    def keep(self, of: Segment, first: int, payloads: Sequence[bytes]) -> None:
        self.kept.append((of.name, first))


class Lacs:
    """LACs by segment. No reader waits."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def __len__(self) -> int:
        return 0

    def learn(self, of: Segment, lac: int, ended: bool) -> None:
        self.known[of.name] = lac

    def knows_lac(self, of: Segment) -> bool:
        return of.name in self.known


class Following:
    """A follower that runs, with what it uses."""

    def __init__(self, wait_s: float, tasks: asyncio.TaskGroup) -> None:
        self.tasks = tasks
        changed = ChangeSignal()
        self.metadata, self.owners, self.fetches = Metadata(changed), Owners(), Fetches()
        self.lacs = Lacs()
        pauses = RetryBackoff(0.0, 0.0, random.Random(1))
        self.follower = OwnerFollower(
            cast(Any, self.metadata),
            cast(Any, self.lacs),
            cast(Any, self.fetches),
            self.owners,
            wait_s,
            pauses,
            changed,
        )
        self.finder = TailFinder(
            cast(Any, self.metadata), cast(Any, self.lacs), self.follower, cast(Any, self), 0.0, pauses, changed
        )
        self.store_tail = EntryId(99)

    async def find_tail(self, of: Segment) -> EntryId:
        """The store's answer."""
        return self.store_tail


@asynccontextmanager
async def following(wait_s: float = 30.0) -> AsyncIterator[Following]:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        made = Following(wait_s, tasks)
        running = tasks.create_task(made.follower.run(tasks), name="run")
        yield made
        running.cancel()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_nobody_is_asked_while_no_reader_waits() -> None:
    async with following() as on:
        on.metadata.see(A, 1)
        await settled()
        assert on.owners.asked == []
        with on.follower.wanted():
            assert await on.owners.opened() == A


async def test_another_owner_is_asked_as_soon_as_metadata_names_it() -> None:
    async with following() as on:
        with on.follower.wanted():
            on.metadata.see(A, 1)
            assert await on.owners.opened() == A
            on.metadata.see(A, 1)
            await settled()
            assert on.owners.asked == [A], "nothing changed"
            on.metadata.see(B, 2)
            assert await on.owners.opened() == B
            on.metadata.see(B, 2, incarnation="2")
            assert await on.owners.opened() == B, "the same owner is asked about the next stream of that name"


async def test_a_redirect_is_followed_unless_metadata_has_changed_since() -> None:
    async with following() as on:
        with on.follower.wanted():
            on.metadata.see(A, 1)
            await on.owners.opened()
            on.owners.end(OwnedElsewhereError("moved", location=B))
            assert await on.owners.opened() == B and on.metadata.asked == 1
            on.owners.end(ConnectionLostError("lost"))
            assert await on.owners.opened() == A, "metadata still names it"
            on.owners.end(OwnedElsewhereError("moved", location="old:1"))
            on.metadata.see(B, 2)
            assert await on.owners.opened() == B, "the redirect is older than metadata"


async def test_lacs_and_entries_are_passed_on_and_not_after_the_stream_was_created_again() -> None:
    async with following() as on:
        with on.follower.wanted():
            on.metadata.see(A, 1)
            await on.owners.opened()
            on.owners.say(4)
            assert on.follower.is_receiving and on.lacs.known[segment().name] == 4
            assert on.owners.listener is not None
            on.owners.listener.entries(1, 3, [b"x"])
            assert on.fetches.kept == [("ledger 1", 3)]
            on.metadata.incarnation = "2"
            on.owners.say(7, number=2)
            assert not on.lacs.knows_lac(segment(2))
        on.owners.end(ConnectionLostError("lost"))
        await settled()
        assert not on.follower.is_receiving


async def test_an_owner_tells_the_tail_once_metadata_read_since_names_its_epoch() -> None:
    """A deposed owner may not know that another one has confirmed more."""
    async with following() as on:
        with on.follower.wanted():
            on.metadata.see(A, 1)
            await on.owners.opened()
            on.owners.say(4)
            before = on.metadata.newest_read
            assert await on.follower.confirms_tail(before), "no newer metadata: any owner counts"
            on.metadata.see(A, 1)
            assert await on.follower.confirms_tail(before)
            asking = on.tasks.create_task(on.follower.confirms_tail(before), name="ask")
            on.metadata.see(B, 2)
            await on.owners.opened()
            on.owners.say(5)
            assert await asking and on.owners.pings == 3, "the one of epoch 2"


@pytest.mark.parametrize("has_owner", [True, False])
async def test_an_owner_that_is_mute_tells_nothing(has_owner: bool) -> None:
    async with following(wait_s=0.05) as on:
        with on.follower.wanted():
            if has_owner:
                on.metadata.see(A, 1)
                await on.owners.opened()
                on.owners.mute = {A}
            assert not await on.follower.confirms_tail(0)


# ---- the tail for a new reader (actors/tail_finder.py) --------------------------------------------------------------


async def test_the_tail_comes_from_the_owner_and_from_the_store_without_one() -> None:
    async with following(wait_s=0.05) as on:
        await on.finder.find(segment(), 0)
        assert on.lacs.known[segment().name] == 99, "nobody owns the stream"
        on.metadata.see(A, 1)
        finding = on.tasks.create_task(on.finder.find(segment(2), 0), name="find")
        await on.owners.opened()
        on.metadata.segments[2] = segment(2)
        on.owners.say(4, number=2)
        await finding
        assert on.lacs.known[segment(2).name] == 4


async def test_the_next_owner_is_asked_before_the_store() -> None:
    async with following(wait_s=0.05) as on:
        on.metadata.see(A, 1)
        on.owners.mute = {A}
        on.metadata.next = (B, 2)
        finding = on.tasks.create_task(on.finder.find(segment(), 0), name="find")
        assert await on.owners.opened() == A
        assert await on.owners.opened() == B
        on.owners.say(6)
        await finding
        assert on.lacs.known[segment().name] == 6


async def test_a_tail_that_cannot_be_found_is_an_error() -> None:
    async with following(wait_s=0.05) as on:
        on.metadata.error = MetadataUnavailableError("away")
        with pytest.raises(MetadataUnavailableError):
            await on.finder.find(segment(), 0)


async def test_a_completed_segment_needs_no_tail() -> None:
    async with following(wait_s=0.05) as on:
        on.metadata.segments[1] = segment(completed=True)
        await on.finder.find(segment(), 0)
        assert not on.lacs.knows_lac(segment())


async def test_readers_at_the_tail_hear_of_damage_that_a_poll_of_the_store_finds() -> None:
    heard: list[tuple[DLogError, str | None]] = []
    failures = [StoreUnavailableError("not now"), SegmentCorruptError("a chunk is damaged")]
    over = asyncio.Event()

    class WaitedFor(Lacs):
        def waits_for(self, of: Segment) -> bool:
            return True

        def lac(self, of: Segment) -> int:
            return 3

        def fail(self, error: DLogError, key: str | None = None) -> None:
            heard.append((error, key))
            over.set()

    class Readers:
        async def open(self, of: Segment) -> None:
            raise failures.pop(0) if failures else StoreUnavailableError("not now")

        def drop(self, key: str) -> None:
            """There is none."""

    async with following() as on:
        on.metadata.tail = segment()
        pauses, changed = RetryBackoff(0.0, 0.0, random.Random(1)), ChangeSignal()
        metadata, lacs, readers = cast(Any, on.metadata), cast(Any, WaitedFor()), cast(Any, Readers())
        finder = TailFinder(metadata, lacs, on.follower, readers, 0.0, pauses, changed)
        polling = on.tasks.create_task(finder.poll_store(), name="poll")
        await over.wait()
        polling.cancel()
    assert [(type(error), key) for error, key in heard] == [(SegmentCorruptError, segment_key(segment()))]
