"""Serves metadata, the LAC and entries of one stream to all its readers in this process.

Requests and replies are those of dlog/log/source_messages.py. The LAC comes from the stream's owner while there is one,
and from the segment store otherwise. Source: segment stores 6.7.

Invariants:
- one metadata read, one connection to the owner and one fetch of a block serve all readers that wait for them;
- a LAC or entry sent by an owner is used for a location only after metadata, read after the LAC arrived, lists that
  location in the stream incarnation the owner was asked about: a re-created stream reuses segment numbers;
- when a reader opens, an owner's LAC is taken as the tail only if metadata read after the open names that owner's
  epoch, because a deposed owner may not know it yet. Only a proxy without ZooKeeper uses the metadata it has;
- the end of a completed segment comes from its store, not from the segment list, which may be wrong;
- a watch is only a hint: if readers get nothing new, metadata is read again anyway (`doubt`);
- after notifying many tail readers the next notification waits longer and carries all confirmed meanwhile;
- errors and absences go to the readers that asked and are not cached;
- a request held back for a slow reader costs only its own few bytes.
"""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from actors.block_fetcher import BlockFetcher
from actors.entry_cache import EntryCache
from actors.fanout_pacer import FanoutPacer
from actors.feed_options import FeedOptions
from actors.feed_subscription import FeedSubscription
from actors.owner_feed import OwnerFeed, OwnerSubscriptions
from actors.retrying import FreezeTolerantTimeout, RefreshSignal, RetryBackoff
from actors.segment_readers import SegmentReaders, segment_key
from dlog.errors import DamagedError, DLogError, MetadataUnavailableError, OwnedElsewhereError, Remedy
from dlog.io.metadata import SessionState, VersionedStore
from dlog.log.source_messages import (
    SOURCE,
    GetEntries,
    GetStream,
    SegmentLacSeen,
    SourceFailed,
    SourceQuestion,
    StreamSeen,
    WatchLac,
)
from dlog.machine import Fact, Missing, Outcome, Received, Versioned
from dlog.model.ids import NO_ENTRY, EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.segment import Location, Owner, Segment, StreamKey, StreamMetadata
from dlog.stores.contract import SegmentStore


class StreamFeed:
    """Source of one stream. It works while `run` runs; readers may be attached only then."""

    def __init__(
        self,
        stream: StreamName,
        *,
        metadata: VersionedStore,
        stores: Mapping[str, SegmentStore],
        cache: EntryCache,
        fetches: asyncio.Semaphore,
        upstream: OwnerSubscriptions,
        options: FeedOptions,
        rng: random.Random,
    ) -> None:
        self.stream = stream
        self.name = f"stream_tailer {stream}"
        self._key = StreamKey(stream)
        self._metadata = metadata
        self._cache = cache
        self._upstream = upstream
        self._options = options
        self._rng = rng
        self._readers = SegmentReaders(stream, stores)
        self._views: dict[FeedSubscription, None] = {}  # in order of attachment
        self._value: StreamMetadata | None = None
        self._tail: Segment | None = None  # the newest segment in progress of `_value`
        self._is_known = False
        self._defect: DLogError | None = None  # the metadata is unusable: every request gets this error
        self._has_news = False  # since the last `doubt`
        self._is_alone = False  # an open timed out waiting for metadata, and no read has succeeded since
        self._stale = RefreshSignal()  # set when metadata must be read again
        self._changed = asyncio.Event()  # metadata or the waiting readers changed; replaced each time it is set
        self._fresh: list[Callable[[DLogError | None], None]] = []  # called after the next metadata read that begins
        self._lacs: dict[str, int] = {}  # by segment key
        self._ends: dict[str, EntryId] = {}  # by segment key: last entry of segments known to have ended
        self._seeking: set[str] = set()  # keys of segments whose end is being read from the store
        self._watching: list[tuple[FeedSubscription, WatchLac]] = []
        weak = weakref.proxy(self)  # for parts with the same lifetime: no reference cycle
        self._turns = FanoutPacer(lambda: weak._settle_watches(), options.told_s, options.telling_max_s)
        self._fetches = BlockFetcher(weak, cache, self._readers, fetches, options.fetch_bytes)
        self._is_heard = False  # a connected owner has sent a LAC
        self._following: OwnerFeed | None = None  # the connection on which an owner was asked
        self._seekers = 0  # readers that wait for an owner to tell the tail
        self._stopping = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._errands: set[asyncio.Task[None]] = set()  # tasks started for a waiting reader

    @property
    def value(self) -> StreamMetadata | None:
        """The stream's metadata as last read; None: not read yet, or there is no such stream."""
        return self._value

    def lac(self, segment: Segment) -> int:
        """The segment's LAC as far as it is known here; -1 if unknown."""
        return self._lacs.get(segment_key(segment), -1)

    def listed(self, number: int) -> Segment | None:
        """The segment of this number in the current list; None if it is truncated or unknown."""
        return self._value.segment(number) if self._value is not None else None

    async def run(self) -> None:
        """Serve until `stop`."""
        self._stopping.clear()
        self._stale.set()
        unsubscribes = self._metadata.watch(self._key, self._stale.hint), self._metadata.on_state(self._contact)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                loops = [
                    self._tasks.create_task(self._keep_metadata(), name=f"metadata of {self.stream}"),
                    self._tasks.create_task(self._hear_owners(), name=f"LAC from owners of {self.stream}"),
                    self._tasks.create_task(self._ask_store(), name=f"LAC from the store of {self.stream}"),
                ]
                await self._stopping.wait()
                # errands may wait for these loops; their readers are told through `on_lost`
                for task in (*loops, *self._errands):
                    task.cancel()
        finally:
            for unsubscribe in unsubscribes:
                unsubscribe()
            self._begin_anew()
            await self._readers.close()

    def stop(self) -> None:
        self._stopping.set()

    def doubt(self) -> None:
        """Called periodically: if there are readers and nothing new came since the last call, read metadata again.
        Finds a new owner, a new segment or the end of one that no watch reported."""
        if self._views and self._tasks is not None and not self._has_news:
            self._stale.set()
        self._has_news = False

    def _begin_anew(self) -> None:
        """Forget all state and requests; tell every reader that the source is lost."""
        self._tasks = None
        self._value, self._is_known, self._is_alone = None, False, False
        self._is_heard, self._following = False, None
        self._tail = None
        self._fresh.clear()
        self._watching.clear()
        self._turns.cancel()
        self._seeking.clear()
        self._fetches.clear()
        for view in tuple(self._views):
            view.on_lost()

    def attach(self, post: Callable[[Fact], None], on_lost: Callable[[], None]) -> FeedSubscription:
        """Connect a new reader, which closes the returned view at the end."""
        view = FeedSubscription(self, post, on_lost)
        self._views[view] = None
        return view

    def detach(self, view: FeedSubscription) -> None:
        self._views.pop(view, None)
        self._watching = [(v, q) for v, q in self._watching if v is not view]

    def answer(self, view: FeedSubscription, question: SourceQuestion) -> None:
        """Reply to a request, at once or when the reply is known."""
        match question:
            case _ if self._defect is not None:
                view.say(SourceFailed(question, self._defect))
            case GetStream(fresh):
                self._get_stream(view, question, fresh)
            case _ if self._tasks is None:
                view.on_lost()
            case GetEntries():
                self._fetches.answer(view, question)
            case WatchLac(segment, known) if known < NO_ENTRY and not segment.completed:
                self.run_errand(self._find_tail(view, question), f"find the tail of {self.stream}")
            case WatchLac():
                self._watch(view, question)

    def run_errand(self, errand: Coroutine[Any, Any, None], name: str) -> None:
        """Run a task for a waiting reader; it is cancelled when `run` ends, and the reader gets `on_lost`."""
        assert self._tasks is not None, "requests come while `run` runs"
        task = self._tasks.create_task(errand, name=name)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    # ---- metadata ---------------------------------------------------------------------------------------------------

    def _get_stream(self, view: FeedSubscription, question: GetStream, fresh: bool) -> None:
        if self._is_known and not fresh and (view.has_metadata or self._is_cut_off):
            view.has_metadata = True
            view.say(StreamSeen(self._value, fresh=False))
        elif self._tail is None or fresh:
            self._refresh(lambda error: self._show(view, question, error))
        else:
            self.run_errand(self._show_first(view, question), f"metadata for a new reader of {self.stream}")

    def _show(self, view: FeedSubscription, question: GetStream, error: DLogError | None) -> None:
        if error is None:
            view.has_metadata = True
            view.say(StreamSeen(self._value, fresh=True))
        else:
            view.say(SourceFailed(question, error))

    async def _show_first(self, view: FeedSubscription, question: GetStream) -> None:
        """Send a new reader metadata that was read after it came. Without a ZooKeeper session wait
        `metadata_wait_s`, not counting time in which this process was frozen; then send the metadata known here."""
        patience = FreezeTolerantTimeout(self._options.metadata_wait_s)
        looked = self._look()
        while not view.has_fresh_metadata:
            if looked.done():
                looked = self._look()
            await patience.wait(looked)
            if view not in self._views:
                return  # the reader left
            if self._defect is not None:
                view.say(SourceFailed(question, self._defect))
                return
            is_late = patience.is_over and not view.has_fresh_metadata
            if is_late and self._metadata.state is not SessionState.CONNECTED and self._tail is not None:
                self._is_alone = True
                break
        view.has_metadata = True
        view.say(StreamSeen(self._value, fresh=view.has_fresh_metadata))

    @property
    def _is_cut_off(self) -> bool:
        """Whether readers get the metadata known here, because ZooKeeper is out of reach and an owner has the tail."""
        is_away = self._metadata.state is not SessionState.CONNECTED
        return self._is_alone and is_away and self._tail is not None

    def _refresh(self, then: Callable[[DLogError | None], None]) -> None:
        self._fresh.append(then)
        self._stale.set()

    async def _keep_metadata(self) -> None:
        pauses = self._pauses()
        while True:
            await self._stale.taken()
            waiting, self._fresh = self._fresh, []
            views = tuple(self._views)
            error: DLogError | None = None
            outcome = await self._read_metadata()
            if isinstance(outcome, Versioned | Missing):
                self._is_alone, self._defect = False, None
                for view in views:
                    view.has_fresh_metadata = True
                self._saw(outcome.value if isinstance(outcome, Versioned) else None)
            else:
                defect = outcome if isinstance(outcome, DLogError) and outcome.remedy is not Remedy.RETRY else None
                self._refuse(defect)
                error = self._defect or MetadataUnavailableError(f"metadata cannot be read now: stream={self.stream}")
            for then in waiting:
                then(error)
            if error is None:
                pauses.reset()
                continue
            await self._stale.rest(pauses.next_s())

    async def _read_metadata(self) -> Outcome | DLogError:
        """The outcome, or the error if reading again will hardly help. Such an error concerns this stream only."""
        try:
            return await self._metadata.read(self._key)
        except DLogError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a decoder of znodes may raise anything
            return DamagedError(f"metadata of the stream cannot be read: stream={self.stream} {error!r}")

    def _contact(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._stale.wake()

    def _refuse(self, defect: DLogError | None) -> None:
        """Metadata cannot be read. defect: it is unusable, fail all waits for a LAC; None: only out of reach."""
        self._defect = defect
        if defect is not None:
            watching, self._watching = self._watching, []
            for view, question in watching:
                view.say(SourceFailed(question, defect))

    def _saw(self, value: StreamMetadata | None) -> None:
        before = self._value
        if (
            self._is_known
            and value == before
            and (value is None or before is None or value.incarnation == before.incarnation)
        ):
            return
        self._value, self._is_known, self._has_news = value, True, True
        in_progress = value.in_progress if value is not None else ()
        self._tail = in_progress[-1] if in_progress else None
        if before is not None:
            self._forget(before, value)
        for view in tuple(self._views):
            if view.has_metadata:
                view.say(StreamSeen(value, fresh=False))
        if self._following is not None:
            self._following.moved(self.listed)
        self._settle_watches()
        self._signal()

    def _forget(self, before: StreamMetadata, now: StreamMetadata | None) -> None:
        """Drop truncated, deleted and changed segments from the cache and from the open segment readers."""
        changes = now.readable_changes_since(before) if now is not None else ((s, None) for s in before.segments)
        for old, new in changes:
            if old is None:
                continue
            key = segment_key(old)
            if new is None or segment_key(new) != key:
                self._cache.drop(key)
                self._readers.drop(key)
                self._lacs.pop(key, None)
                self._fetches.forget(key)
                self._ends.pop(key, None)
                continue
            if new.completed and not old.completed:
                self._readers.drop(key)  # opened again as a completed segment
            if new.min_entry > old.min_entry:
                self._cache.drop(key, new.min_entry)

    # ---- the LAC ----------------------------------------------------------------------------------------------------

    def _watch(self, view: FeedSubscription, question: WatchLac) -> None:
        reply = self._lac_seen(question) if self._is_known else None
        is_in_turn = reply is not None and not reply.ended and question.known >= NO_ENTRY and self._turns.must_wait
        if reply is not None and not is_in_turn:
            view.say(reply)
            return
        self._watching.append((view, question))
        if is_in_turn:
            self._turns.ask()
        if len(self._watching) == 1 or not self._is_heard:
            self._signal()  # otherwise the owner's LAC is already being received, and the store is not polled

    async def _find_tail(self, view: FeedSubscription, question: WatchLac) -> None:
        """Find the tail for a new reader, which must see everything confirmed by now.

        Ask the owner. If it does not answer, read metadata again, since it may name another owner. If it does not,
        have the store find the tail: the LAC that an owner sent earlier may be far behind.
        If the tail cannot be found the reader gets an error and asks again.
        """
        key = segment_key(question.segment)
        self._seekers += 1
        self._signal()
        try:
            while not (told := await self._owner_says(view)):
                before = self._owner
                await self._look_again()
                if self._owner in (None, before):
                    break
            # a LAC from an earlier poll of the store may be out of date
            if not (told and key in self._lacs) and not self._is_settled(question.segment):
                self._learn(question.segment, await self._readers.find_tail(question.segment), False)
        except DLogError as error:
            view.say(SourceFailed(question, error))
            return
        finally:
            self._seekers -= 1
        self._watch(view, question)

    async def _owner_says(self, view: FeedSubscription) -> bool:
        """Whether the owner has sent its LAC after this call began.

        Metadata read after the reader came names the owner at that time or later; an owner that claimed the stream
        after that read confirmed nothing before. Without ZooKeeper any proxy that acts as owner is believed.
        """
        try:
            async with asyncio.timeout(self._options.owner_wait_s):
                while not self._is_to_be_asked(self._following, view) and self._owner is not None:
                    await self._changed.wait()
                following = self._following
                if following is None or not self._is_to_be_asked(following, view):
                    return False
                await self._upstream.sync(following)
                await following.settle()
        except (TimeoutError, DLogError):
            return False
        return self._is_to_be_asked(following, view)

    def _is_to_be_asked(self, following: OwnerFeed | None, view: FeedSubscription) -> bool:
        if following is None or not view.has_fresh_metadata:
            return following is not None
        return following.epoch is not None and following.epoch == self._epoch

    async def _look_again(self) -> None:
        """Read metadata, beginning now. Raises MetadataUnavailableError."""
        error = await self._look()
        if error is not None:
            raise error

    def _look(self) -> asyncio.Future[DLogError | None]:
        """Resolves with the outcome of the next metadata read that begins."""
        looked: asyncio.Future[DLogError | None] = asyncio.get_running_loop().create_future()
        self._refresh(lambda error: looked.set_result(error) if not looked.done() else None)
        return looked

    def _is_settled(self, segment: Segment) -> bool:
        """Whether the segment's end is known from metadata, or it is gone."""
        now = self.listed(segment.number)
        return now is None or now.completed or segment_key(now) != segment_key(segment)

    def _settle_watches(self) -> None:
        """Answer every WatchLac whose reply is known now; equal requests share one reply."""
        self._turns.cancel()
        if not self._watching or not self._is_known or self._stopping.is_set():
            return
        left: list[tuple[FeedSubscription, WatchLac]] = []
        answered: list[tuple[FeedSubscription, Fact]] = []
        facts: dict[tuple[Location, SegmentNumber, EntryId], Fact | None] = {}
        for view, question in self._watching:
            asked = question.segment
            same = (asked.location, asked.number, question.known)
            if same not in facts:
                reply = self._lac_seen(question)
                facts[same] = None if reply is None else Received(SOURCE, reply)
            fact = facts[same]
            if fact is None:
                left.append((view, question))
            else:
                answered.append((view, fact))
        self._watching = left
        self._turns.took(len(answered))
        for view, fact in answered:
            view.hear(fact)

    def _lac_seen(self, question: WatchLac) -> SegmentLacSeen | None:
        asked = question.segment
        key = segment_key(asked)
        now = self.listed(asked.number)
        if now is None or segment_key(now) != key:
            return SegmentLacSeen(asked.number, asked.location, question.known, True)
        end = self._ends.get(key)
        if now.completed:
            if end is None:
                self._seek_end(now)
                return None
            return SegmentLacSeen(asked.number, asked.location, end, True)
        lac = self._lacs.get(key)
        if lac is not None and (lac > question.known or end is not None):
            return SegmentLacSeen(asked.number, asked.location, EntryId(max(lac, question.known)), end is not None)
        return None

    def _seek_end(self, segment: Segment) -> None:
        """Start reading a completed segment's end from its store, unless under way."""
        key = segment_key(segment)
        if key not in self._seeking:
            self._seeking.add(key)
            self.run_errand(self._find_end(segment), f"find the end of {self.stream} {key}")

    async def _find_end(self, segment: Segment) -> None:
        key = segment_key(segment)
        try:
            end = await self._readers.find_end(segment)
        except DLogError as error:
            watching, self._watching = self._watching, []
            for view, question in watching:
                if segment_key(question.segment) == key:
                    view.say(SourceFailed(question, error))
                else:
                    self._watching.append((view, question))
            return
        finally:
            self._seeking.discard(key)
        self._learn(segment, end, True)

    def _learn(self, segment: Segment, lac: int, ended: bool) -> None:
        self._has_news = True
        key = segment_key(segment)
        self._lacs[key] = max(lac, self._lacs.get(key, -1))
        if ended:
            self._ends[key] = EntryId(lac)
        self._turns.ask(at_once=ended)

    def _signal(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # ---- the LAC, from owners ---------------------------------------------------------------------------------------

    async def _hear_owners(self) -> None:
        pauses = self._pauses()
        redirect: str | None = None
        asked: object = None  # incarnation and epoch in metadata when the redirecting proxy was asked
        while True:
            named = self._owner.address if self._owner is not None else None
            before, asked = asked, (self._incarnation(), self._epoch)
            address = redirect if redirect and before == asked else named
            if address is None or not (self._watching or self._seekers):
                await self._changed.wait()
                redirect = None
                continue
            heard = OwnerFeed(self, address, self._incarnation(), self._epoch if address == named else None)
            error = await self._follow(address, heard)
            heard.end()
            redirect = None
            if heard.anything:
                pauses.reset()
            if isinstance(error, OwnedElsewhereError) and error.location not in (None, address):
                redirect = error.location
            if error is not None:
                self._stale.set()
                await asyncio.sleep(pauses.next_s())

    @property
    def _owner(self) -> Owner | None:
        """The owner that the known metadata names; None if the claim was released."""
        owner = self._value.owner if self._value is not None else None
        return owner if owner is not None and owner.epoch and not owner.released else None

    @property
    def _epoch(self) -> Epoch | None:
        return self._owner.epoch if self._owner is not None else None

    def _incarnation(self) -> str:
        return self._value.incarnation if self._value is not None else ""

    def _is_of_this_incarnation(self, heard: OwnerFeed) -> bool:
        """Whether the stream is the incarnation the owner was asked about; "" matches any, as it may be set later."""
        return not heard.incarnation or heard.incarnation == self._incarnation()

    async def _follow(self, address: str, heard: OwnerFeed) -> DLogError | None:
        """Receive from the owner until it ends (returns the error) or metadata names another owner or incarnation
        (returns None)."""
        assert self._tasks is not None, "running"
        following = self._tasks.create_task(self._listen(address, heard), name=f"receive from {address} {self.stream}")
        try:
            while not following.done():
                changed = self._tasks.create_task(self._changed.wait(), name="change")
                try:
                    await asyncio.wait((following, changed), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                if self._value is None or not self._is_of_this_incarnation(heard):
                    return None
                if self._owner is not None and self._epoch != heard.epoch and not following.done():
                    return None
        finally:
            following.cancel()
        return following.result()

    async def _listen(self, address: str, heard: OwnerFeed) -> DLogError:
        try:
            await self._upstream.follow(address, self.stream, heard, lambda: self._asked(heard))
        except DLogError as error:
            return error
        raise AssertionError("OwnerSubscriptions.follow must raise")

    def _asked(self, heard: OwnerFeed) -> None:
        self._following = heard
        self._signal()

    def believe(self, heard: OwnerFeed, number: int) -> None:
        """See Listener: the first LAC of segment `number` on this connection."""
        self._refresh(partial(self._place, heard, number))

    def _place(self, heard: OwnerFeed, number: int, error: DLogError | None) -> None:
        if error is None:
            if self._is_of_this_incarnation(heard):  # otherwise the LAC is dropped and the connection ends
                heard.place(number, self.listed(number))
        elif not heard.is_over:
            self.believe(heard, number)

    def heard(self, segment: Segment, lac: int, ended: bool) -> None:
        """See Listener. May come after the connection was lost, for a LAC received before."""
        self._is_heard = self._following is not None
        if not segment.completed:
            self._learn(segment, lac, ended)

    def unheard(self, heard: OwnerFeed) -> None:
        """See Listener: the connection is over. The store is polled until an owner sends a LAC again."""
        self._is_heard, self._following = False, None
        self._signal()

    def brought(self, segment: Segment, first: int, payloads: Sequence[bytes]) -> None:
        """See Listener: cache confirmed entries sent by the owner."""
        self._fetches.keep(segment, first, payloads)

    # ---- the LAC, from the store ------------------------------------------------------------------------------------

    async def _ask_store(self) -> None:
        """Long-poll the store for the LAC while readers wait at the tail and no owner sends it."""
        pauses = self._pauses()
        while True:
            changed = self._changed
            segment = self._tail
            if self._is_heard or segment is None or not self._waits_for(segment):
                await changed.wait()
                continue
            known = EntryId(self.lac(segment))
            try:
                reader = await self._readers.open(segment)
                lac = await reader.wait_lac(known, self._options.store_wait_s)
                ended = reader.end is not None
            except DLogError:
                self._readers.drop(segment_key(segment))
                await asyncio.sleep(pauses.next_s())
                continue
            pauses.reset()
            if ended and segment_key(segment) not in self._ends:
                self._stale.set()  # it was recovered: read the new segment list
            self._learn(segment, lac, ended)
            if ended:
                await asyncio.sleep(pauses.longest_s())

    def _waits_for(self, segment: Segment) -> bool:
        key = segment_key(segment)
        return any(segment_key(question.segment) == key for _, question in self._watching)

    def _pauses(self) -> RetryBackoff:
        return RetryBackoff(self._options.retry_min_s, self._options.retry_max_s, self._rng)
