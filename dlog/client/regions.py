"""Regions: write-ahead logs that many tables share, on Kafka or in a directory.

    async with dlog.Regions("file:///var/lib/wal", "app") as regions:
        region = await regions.open("orders", create=True)
        sequences = await region.write(7, [b"...", b"..."])
        async for entry in region.read():
            print(entry.table, entry.sequence, entry.payload)
        await region.mark_deleted(7, sequences[-1])  # everything below is flushed

One process owns a region: the last one that opened it. `view` reads a region without owning it. With
`RegionOptions(format=0)` records are written in HoraeDB's format, and no fence ends the owner before: the caller must
ensure that there is one.
Source: HoraeDB's write-ahead log on Kafka.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any
from weakref import WeakValueDictionary

from dlog.errors import (
    DLogError,
    InvalidRequestError,
    TruncatedError,
    UnavailableError,
)
from dlog.events import Event
from dlog.io.driver import Driver
from dlog.io.kafka_settings import KafkaTopicsOptions
from dlog.io.kafka_topics import KafkaTopics
from dlog.io.region_topics import READ_BYTES, RegionTopics, region_driver, report_failure
from dlog.io.topics import open_topics
from dlog.region.loading import UNUSABLE, RegionLoader
from dlog.region.messages import (
    AwaitWrites,
    CleanRegion,
    DropTable,
    FindStart,
    LostEntries,
    MarkDeleted,
    OffsetsFound,
    OpenRegion,
    ReadingStart,
    ReadRecords,
    RecordsRead,
    SaveSnapshot,
    Topic,
    WriteEntries,
)
from dlog.region.names import region_number, topic_names
from dlog.region.options import RegionOptions
from dlog.region.owner import RegionOwner
from dlog.region.reading import EntryScan, RegionEntry, TailScan, find_start
from dlog.region.state import RegionState
from dlog.region.tables import TableMeta
from dlog.region.topics import OffsetOutOfRangeError, Stored, TopicExistsError, TopicNotFoundError, Topics
from dlog.wire.region import NONCE_BYTES

FOLLOW_S, FOLLOW_MAX_S = 0.005, 0.2  # how often a reader looks for new records
CLOSE_S = 5.0  # how long closing waits for what is under way
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,100}\Z")
_U64_END = 1 << 64
_log = logging.getLogger(__name__)

OnLost = Callable[[LostEntries], None]


class Regions:
    """The regions of one namespace. Use it as an async context manager, in one event loop.

    topics: file:///path, or kafka://host:port,host:port, or an object of the protocol Topics. clean_every_s:
    how often each opened region deletes what no table needs; None: only `Region.clean` does. on_event: gets events of
    regions (dlog/events.py); what it raises is logged, and the region goes on. Raises ConfigError, InvalidRequestError
    for a name.
    """

    def __init__(
        self,
        topics: str | Topics,
        namespace: str,
        *,
        options: RegionOptions | None = None,
        kafka: KafkaTopicsOptions | None = None,
        clean_every_s: float | None = 600.0,
        on_event: Callable[[Event], None] = lambda event: None,
    ) -> None:
        check_name("namespace", namespace)
        self.topics = open_topics(topics, kafka=kafka) if isinstance(topics, str) else topics
        self.namespace = namespace
        self.on_event = _guarded(on_event)
        self._options = options or RegionOptions()
        self._clean_every_s = clean_every_s
        self._rng = random.SystemRandom()
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # kept by the calls of `open`
        self._opened: dict[str, Region] = {}  # regions whose driver has not ended

    async def __aenter__(self) -> Regions:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            for region in list(self._opened.values()):
                await region.close()
        finally:
            if isinstance(self.topics, KafkaTopics):
                await self.topics.close()

    async def open(self, name: str, *, create: bool = False, skip_damaged: bool = False) -> Region:
        """Own a region; who owned it before gets RegionFencedError. Opened ones are shared: callers at the same time
        get the same object. create: make it if its data topic does not exist. skip_damaged: leave out records that
        cannot be decoded, which other programs wrote (event `region.record_ignored`), instead of raising.

        Raises TopicNotFoundError, UnsafeTopicError, DamagedError, UnavailableError.
        """
        opening = self._opening.setdefault(name, asyncio.Lock())
        async with opening:
            found = self._opened.get(name)
            if found is not None and not found.has_ended:
                return found
            if found is not None:
                await found.close()
            paths = self._paths(name)
            ids = await self._topics_to_open(name, paths, creates=create)
            await self._check(name, paths)
            region = self._opened[name] = Region(
                name,
                RegionTopics(self.topics, paths, is_owner=True, ids=ids),
                self._options,
                self._rng,
                self.on_event,
                skip_damaged,
                self._forget,
            )
            try:
                await region.begin()
            except BaseException:
                await region.close()
                raise
            if self._clean_every_s is not None:
                region.begin_cleaning(self._clean_every_s)
            return region

    async def view(self, name: str, *, skip_damaged: bool = False) -> RegionView:
        """Read a region as it is now, without owning it. skip_damaged: leave out records that cannot be decoded. The
        meta topic may be missing.

        Raises TopicNotFoundError, DamagedError, UnavailableError.
        """
        paths = self._paths(name)
        await self._check(name, paths, needs_meta=False)
        topics = RegionTopics(self.topics, paths)
        number = region_number(name)
        next_number = itertools.count().__next__
        skipped = UNUSABLE if skip_damaged else ()
        for _ in range(self._options.open_attempts):
            loader = RegionLoader(number, next_number, map_every=self._options.map_every, skipped=skipped)
            try:
                state = await _load(loader, topics)
            except OffsetOutOfRangeError:
                continue  # its owner cleans the region: a newer snapshot has the state
            return RegionView(number, topics, state, loader.first, tuple(loader.problems), skip_damaged)
        raise UnavailableError(
            f"the region is cleaned again and again while it is read: region={self.namespace}/{name}"
        )

    async def delete(self, name: str) -> None:
        """Delete the region that is there when the call begins, with all its records. If there is none, delete what an
        interrupted deletion left. Idempotent: a region of the name that is created later is left alone, however long
        this call takes. Only with Kafka before 2.8, which has no topic ids, it may be deleted in its place.

        Raises UnavailableError. After that, or if it is cancelled, a part may be deleted: call it again.
        """
        paths = self._paths(name)
        region = self._opened.get(name)
        data = await self.topics.topic_id(paths[Topic.DATA])
        meta = await self.topics.topic_id(paths[Topic.META])
        if await self.topics.topic_id(paths[Topic.DATA]) != data:
            meta = None  # that of another region of the name, which is or was there
        if region is not None:
            await region._close(saves=False)
        if data is not None:
            await self.topics.delete(paths[Topic.DATA], data)
        if meta is not None and await self.topics.topic_id(paths[Topic.DATA]) is None:
            await self.topics.delete(paths[Topic.META], meta)  # a process that creates the region now makes another one

    def _forget(self, region: Region) -> None:
        """Keep a region that has ended no longer."""
        if self._opened.get(region.name) is region:
            del self._opened[region.name]

    def _paths(self, name: str) -> dict[Topic, str]:
        check_name("region", name)
        return topic_names(self.namespace, name)

    async def _topics_to_open(self, name: str, paths: Mapping[Topic, str], *, creates: bool) -> dict[Topic, str]:
        """The ids of the region's topics. Makes a meta topic that is missing, and the region if `creates`.

        A region is there if its data topic is, so that is created last. A meta topic without a data topic may be of an
        earlier region, and its deletion under way: another one is created in its place. Raises TopicNotFoundError.
        """
        data, meta = paths[Topic.DATA], paths[Topic.META]
        for _ in range(self._options.open_attempts):
            is_there = await self.topics.exists(data)
            if not is_there and not creates:
                raise self._not_found(name, data)
            meta_id = await self.topics.topic_id(meta)
            if meta_id is not None and not is_there:
                await self.topics.delete(meta, meta_id)
                meta_id = None
            for path, is_missing in ((meta, meta_id is None), (data, not is_there)):
                if is_missing:
                    with suppress(TopicExistsError):  # another process creates it, too
                        await self.topics.create(path)
            data_id, meta_id = await self.topics.topic_id(data), await self.topics.topic_id(meta)
            if data_id is not None and meta_id is not None and data_id == await self.topics.topic_id(data):
                return {Topic.DATA: data_id, Topic.META: meta_id}  # both were there at one time
        raise self._changing(name)

    def _changing(self, name: str) -> UnavailableError:
        return UnavailableError(
            f"the region is created or deleted while it is opened, try again: region={self.namespace}/{name}"
        )

    def _not_found(self, name: str, path: str) -> TopicNotFoundError:
        return TopicNotFoundError(
            f"there is no such region, create it first: region={self.namespace}/{name} topic={path}"
        )

    async def _check(self, name: str, paths: Mapping[Topic, str], *, needs_meta: bool = True) -> None:
        """Raise TopicNotFoundError or UnsafeTopicError unless the topics are there and keep what they have. The meta
        topic may be missing, unless `needs_meta`: then UnavailableError."""
        for topic, path in paths.items():
            try:
                await self.topics.check(path)
            except TopicNotFoundError:
                if topic is Topic.META and not needs_meta:
                    continue
                if topic is Topic.META:
                    raise self._changing(name) from None
                raise self._not_found(name, path) from None


def _guarded(on_event: Callable[[Event], None]) -> Callable[[Event], None]:
    """Wrap `on_event` so that its exceptions are logged: it runs inside the region's driver, which they would end."""

    def guarded(event: Event) -> None:
        try:
            on_event(event)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - a CancelledError of it cancels nothing; callers would wait for ever
            _log.exception("on_event raised, the region goes on: event=%s", type(event).__name__)

    return guarded


async def _load(loader: RegionLoader, topics: RegionTopics) -> RegionState:
    """Find the state of a region; without its meta topic by the data topic alone, which leads to the same state.
    Raises OffsetOutOfRangeError if its front is deleted meanwhile."""
    asking = loader.begin()
    while True:
        topic, question = asking
        try:
            reply = await topics.ask(topic, question)
        except TopicNotFoundError:
            if topic is not Topic.META:
                raise
            is_read = isinstance(question, ReadRecords)
            reply = RecordsRead(question.number, ()) if is_read else OffsetsFound(question.number, 0, 0)
        following = loader.handle(reply)
        if following is None:
            assert loader.state is not None, "the loader is done"
            return loader.state
        asking = following


class RegionView:
    """A region as it was when it was opened for reading. Made by `Regions.view`.

    problems: records that were left out, one line each.
    """

    def __init__(
        self,
        number: int,
        topics: RegionTopics,
        state: RegionState,
        first: int,
        problems: Sequence[str],
        skip_damaged: bool,
    ) -> None:
        self.problems = list(problems)
        self.first = first
        self.next = state.offset
        self._number = number
        self._topics = topics
        self._state = state
        self._skip_damaged = skip_damaged

    @property
    def format(self) -> int:
        """Version of the records that the region has, and takes unless another one is asked for. 0: without fences."""
        return 0 if self._state.is_plain else 1

    @property
    def tables(self) -> Mapping[int, TableMeta]:
        """What is known of each table. Read only."""
        return self._state.meta.tables

    def read(
        self, starts: Mapping[int, int] | None = None, *, on_lost: OnLost | None = None, follow: bool = False
    ) -> AsyncGenerator[RegionEntry, None]:
        """See Region.read."""

        async def find(request: FindStart) -> ReadingStart:
            return find_start(self._state, self.first, request)

        return _read(self._number, self._topics, find, starts, on_lost, self.problems, self._skip_damaged, follow)


class Region:
    """A region that this process owns. Made by `Regions.open`."""

    def __init__(
        self,
        name: str,
        topics: RegionTopics,
        options: RegionOptions,
        rng: random.Random,
        on_event: Callable[[Event], None],
        skip_damaged: bool,
        on_end: Callable[[Region], None],
    ) -> None:
        self.name = name
        self._skip_damaged = skip_damaged
        self._is_closing = False
        self._number = region_number(name)
        self._topics = topics
        self._on_event = on_event
        self._on_end = on_end
        self._owner = RegionOwner(self._number, lambda: rng.randbytes(NONCE_BYTES), options, skips=skip_damaged)
        self._driver = region_driver(self._owner, f"region {name}", topics, on_event)

    async def begin(self) -> None:
        """Open it. Called once."""
        self._driver.begin(self._driver_ended)
        await self._driver.ask(OpenRegion())

    def _driver_ended(self, driver: Driver, error: Exception | None) -> None:
        self._on_end(self)
        report_failure(self._on_event, self._number, error)

    def begin_cleaning(self, every_s: float) -> None:
        """Clean it from time to time, until it ends. Called at most once."""
        self._driver.start(self._clean(every_s), name=f"clean region {self.name}")

    async def _clean(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            if self._is_closing or self.has_ended:
                return
            try:
                await self.clean()
            except DLogError:
                continue  # the next time may do

    @property
    def has_ended(self) -> bool:
        """Whether it is closed, or another process owns it."""
        return self._driver.ended or self._owner.is_deposed

    @property
    def tables(self) -> Mapping[int, TableMeta]:
        """What is known of each table. Read only; it changes while the region is open."""
        return self._owner.state.meta.tables

    async def write(self, table: int, payloads: Iterable[bytes]) -> tuple[int, ...]:
        """Append records of one table together, all or none; see write_many."""
        return await self.write_many((table, payload) for payload in payloads)

    async def write_many(self, entries: Iterable[tuple[int, bytes]]) -> tuple[int, ...]:
        """Append records of one table or several together, all or none: pairs of a table, an unsigned 64-bit number,
        and a payload. Returns the sequence of each, once they are durable.

        Raises RegionFencedError (not written), OverCapacityError (not written), RecordTooLargeError, ClosedError
        (outcome unknown), TypeError for a payload that is not bytes. Cancelling stops the wait only.
        """
        given = tuple(
            [  # bytes(7) would be zeros
                (table, payload if type(payload) is bytes else bytes(memoryview(payload))) for table, payload in entries
            ]
        )
        for table, _ in given:
            if not 0 <= table < _U64_END:
                raise InvalidRequestError(f"a table is an unsigned 64-bit number: table={table}")
        sequences: tuple[int, ...] = await self._driver.ask(WriteEntries(given))
        return sequences

    def read(
        self, starts: Mapping[int, int] | None = None, *, on_lost: OnLost | None = None, follow: bool = False
    ) -> AsyncGenerator[RegionEntry, None]:
        """Read all records in order, from the marks of their tables up to what is written now. starts: only these
        tables, each from a sequence on (0: from its mark).

        on_lost: gets what was deleted (below the mark of its table, or by another program); without it that raises
        TruncatedError. follow: go on for ever with what is written from now on, by any owner; OffsetOutOfRangeError if
        records are deleted before they are read. Raises InvalidRequestError, DamagedError, UnavailableError.
        """

        async def find(request: FindStart) -> ReadingStart:
            start: ReadingStart = await self._driver.ask(request)
            return start

        return _read(self._number, self._topics, find, starts, on_lost, [], self._skip_damaged, follow)

    async def mark_deleted(self, table: int, below: int) -> None:
        """Mark everything of a table below a sequence as deletable: it is flushed elsewhere. Kept in memory up to the
        next snapshot (`save`), so a crash may bring an earlier mark back. Raises InvalidRequestError: beyond the next
        record, or below an earlier mark."""
        await self._driver.ask(MarkDeleted(table, below))

    async def drop_table(self, table: int) -> None:
        """Mark a whole table as deletable. Returns once that is durable."""
        await self._driver.ask(DropTable(table))

    async def save(self) -> None:
        """Append a snapshot to the meta topic, so that the next opening has little to scan."""
        await self._driver.ask(SaveSnapshot())

    async def clean(self) -> int | None:
        """Delete what no table needs. Returns the offset below which all is deleted; None: there was nothing to gain.
        Raises UnavailableError, RegionFencedError."""
        offset: int | None = await self._driver.ask(CleanRegion())
        return offset

    async def close(self) -> None:
        """Wait for the writes under way, for CLOSE_S seconds at most, save a snapshot, and end. Idempotent."""
        await self._close(saves=True)

    async def _close(self, *, saves: bool) -> None:
        """As `close`. saves: whether a snapshot is saved before the end; `delete` leaves it out."""
        self._is_closing = True
        if not self._driver.ended:
            if not self.has_ended:
                try:
                    async with asyncio.timeout(CLOSE_S):
                        await self._driver.ask(AwaitWrites())
                        if saves:
                            await self.save()
                except (DLogError, TimeoutError):
                    pass  # the next opening scans more
            self._driver.stop()
            await self._driver.wait_ended()


class ReadAhead:
    """Reads records of a topic in order, and asks for the next ones while the caller looks at the last ones.

    end: nothing is asked for from there on. Call `close` in the end.
    """

    def __init__(self, topics: Topics, path: str, end: int) -> None:
        self._topics = topics
        self._path = path
        self._end = end
        self._at = -1  # where the request under way begins
        self._asked: asyncio.Task[Sequence[Stored]] | None = None

    async def read(self, offset: int) -> Sequence[Stored]:
        """See Topics.read."""
        asked, self._asked = self._asked, None
        if asked is None or self._at != offset:
            await _give_up(asked)
            asked = self._ask(offset)
        try:
            records = await asked
        finally:
            await _give_up(asked)  # if this call was cancelled
        if records and records[-1].offset + 1 < self._end:
            self._at = records[-1].offset + 1
            self._asked = self._ask(self._at)
            await asyncio.sleep(0)  # the request goes out: the caller may look at the records without waiting
        return records

    async def close(self) -> None:
        """Give up the request under way. Idempotent."""
        asked, self._asked = self._asked, None
        await _give_up(asked)

    def _ask(self, offset: int) -> asyncio.Task[Sequence[Stored]]:
        read = self._topics.read(self._path, offset, READ_BYTES)
        return asyncio.get_running_loop().create_task(read, name=f"read {self._path}")


async def _give_up(task: asyncio.Task[Sequence[Stored]] | None) -> None:
    """Cancel a task, unless it has ended, and wait for its end; its error is of no interest."""
    if task is None:
        return
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()


async def _read(
    number: int,
    topics: RegionTopics,
    find: Callable[[FindStart], Any],
    starts: Mapping[int, int] | None,
    on_lost: OnLost | None,
    problems: list[str],
    skip_damaged: bool,
    follow: bool,
) -> AsyncGenerator[RegionEntry, None]:
    """Read what counts, from where `find` says; again from behind what was read, if that was deleted meanwhile."""
    start: ReadingStart = await find(FindStart(None if starts is None else tuple(starts.items())))
    wanted, end = start.ends, start.end
    while True:
        # all that is damaged is reported, and costs no other record, so no record is passed over
        scan = EntryScan(number, replace(start, seeks=None) if skip_damaged else start, skips=skip_damaged)
        reading = ReadAhead(topics.topics, topics.paths[Topic.DATA], start.end)
        try:
            is_done = False
            while not is_done:
                is_done = scan.is_done
                records: Sequence[Stored] = ()
                if not is_done:
                    records = await reading.read(scan.offset)
                for one in scan.feed(records):
                    if isinstance(one, RegionEntry):
                        yield one
                    elif on_lost is not None:
                        on_lost(one)
                    else:
                        raise _truncated(one)
            problems += [problem for problem in scan.problems if problem not in problems]
            break
        except OffsetOutOfRangeError as error:  # deleted while this reads
            problems += [problem for problem in scan.problems if problem not in problems]
            left = tuple((table, at) for table, at in scan.next.items() if at < wanted[table][1])
            found: ReadingStart = await find(FindStart(left, error.first))
            if found.begin <= scan.offset:
                raise UnavailableError(
                    f"the data topic cannot be read: offset={scan.offset}: {error.message}"
                ) from None
            ends = {table: (max(at, found.ends[table][0]), *wanted[table][1:]) for table, at in left}
            start = replace(found, end=end, ends=ends, rule=start.rule)
        finally:
            await reading.close()
    if follow:
        tail = TailScan(number, start, None if starts is None else frozenset(starts), skips=skip_damaged)
        wait_s = FOLLOW_S
        while True:
            news = await topics.topics.read(topics.paths[Topic.DATA], tail.offset, READ_BYTES)
            for entry in tail.feed(news):
                yield entry
            if news:
                wait_s = FOLLOW_S
                continue
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, FOLLOW_MAX_S)


def state_of(view: RegionView) -> RegionState:
    """The state that a view found. Read only."""
    return view._state


def _truncated(lost: LostEntries) -> TruncatedError:
    return TruncatedError(
        f"records of a table were deleted, read from a later sequence: table={lost.table} first={lost.first} "
        f"kept_from={lost.end}",
        first=str(lost.end),
    )


def check_name(what: str, name: str) -> None:
    """Raises InvalidRequestError for a name that no namespace or region (`what`) can have."""
    if not _NAME.match(name):
        raise InvalidRequestError(f"a {what} has 1 to 100 of a-z A-Z 0-9 _ -: {what}={name[:120]!r}")
