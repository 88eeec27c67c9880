"""One stream as a source for its readers on this process, however many: metadata, the LAC, entries.

The law of this room:
- one read of metadata, one upstream at the tail and one fetch of a block serve all who wait for them;
- a LAC, or an entry that an owner sends along, is believed for a place only once metadata that was read after hearing
  the LAC names that place, and names the stream that its owner was asked about: one made again has the old numbers;
- where the tail is, at a reader's open, an owner tells only together with metadata that was read after that open and
  names its epoch: one that was deposed may not know it yet. Only who is cut off from metadata goes by what it knows;
- where a completed segment ends its store says, and the list, which may state it wrongly, is not asked;
- a watch is a hint: of a stream whose readers hear nothing new metadata is looked at again all the same (`doubt`);
- many readers at a tail are told of it in their turn: the more were told, the later the next telling, and what is
  confirmed until then goes to them in one piece;
- errors and absences are told to those who asked and kept for nobody: what failed is asked again;
- a question held back (its reader is slow) costs its few bytes and nothing else.

Questions and answers are those of dlog/log/read_messages.py; the LAC comes from the owner while there is one, and from
the store itself otherwise. Source: segment stores 6.7.
"""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from actors.entry_cache import EntryCache
from actors.fetches import Fetches
from actors.patience import Patience, Pauses, Stale
from actors.segment_readers import SegmentReaders, segment_key
from actors.source_view import View
from actors.tailer_options import TailerOptions
from actors.turns import Turns
from actors.upstream import Heard, Upstream
from dlog.errors import DamagedError, DLogError, MetadataUnavailableError, OwnedElsewhereError, Remedy
from dlog.io.metadata import Metadata, SessionState
from dlog.log.read_messages import (
    SOURCE,
    GetEntries,
    GetStream,
    LacSeen,
    SourceFailed,
    SourceQuestion,
    StreamSeen,
    WatchLac,
)
from dlog.machine import Fact, Missing, Outcome, Received, Versioned
from dlog.model.ids import NO_ENTRY, EntryId, Epoch, StreamName
from dlog.model.segment import Owner, Segment, StreamKey, StreamMetadata
from dlog.stores.contract import SegmentStore


class StreamTailer:
    """The source of one stream; `run` is its life. Attach readers while it lives."""

    def __init__(
        self,
        stream: StreamName,
        *,
        metadata: Metadata,
        stores: Mapping[str, SegmentStore],
        cache: EntryCache,
        fetches: asyncio.Semaphore,
        upstream: Upstream,
        options: TailerOptions,
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
        self._views: dict[View, None] = {}  # in the order they came
        self._value: StreamMetadata | None = None
        self._tail: Segment | None = None  # of the value: the one in progress
        self._is_known = False
        self._defect: DLogError | None = None  # of the stream's metadata: nothing is served from it
        self._has_news = False  # since the last doubt
        self._is_alone = False  # a reader's open waited in vain for metadata, and nothing could be read since
        self._stale = Stale()  # metadata, as it is known
        self._changed = asyncio.Event()  # metadata, or who waits for what; replaced each time it is set
        self._fresh: list[Callable[[DLogError | None], None]] = []  # called after the next read that begins from now on
        self._lacs: dict[str, int] = {}  # by segment key
        self._ends: dict[str, EntryId] = {}  # of segments that are known to have ended
        self._seeking: set[str] = set()  # segments whose end the store is asked for
        self._watching: list[tuple[View, WatchLac]] = []
        weak = weakref.proxy(self)  # for parts that act while it lives only, so that it is freed at its end
        self._turns = Turns(lambda: weak._settle_watches(), options.told_s, options.telling_max_s)
        self._fetches = Fetches(weak, cache, self._readers, fetches, options.fetch_bytes)
        self._is_heard = False  # an owner said something
        self._following: Heard | None = None  # whom we have asked to speak
        self._seekers = 0  # readers that wait for an owner's word
        self._stopping = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._errands: set[asyncio.Task[None]] = set()  # what somebody asked for and waits for

    @property
    def value(self) -> StreamMetadata | None:
        """The stream as last read; None: not read yet, or it does not exist."""
        return self._value

    def lac(self, segment: Segment) -> int:
        """What is known to be confirmed of a segment."""
        return self._lacs.get(segment_key(segment), -1)

    def listed(self, number: int) -> Segment | None:
        """The segment as the list has it now, unless it is truncated."""
        return self._value.segment(number) if self._value is not None else None

    async def run(self) -> None:
        """Live until stopped."""
        self._stopping.clear()
        self._stale.set()
        unsubscribes = self._metadata.watch(self._key, self._stale.hint), self._metadata.on_state(self._contact)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                lives = [
                    self._tasks.create_task(self._keep_metadata(), name=f"metadata of {self.stream}"),
                    self._tasks.create_task(self._hear_owners(), name=f"upstream of {self.stream}"),
                    self._tasks.create_task(self._ask_store(), name=f"store's lac of {self.stream}"),
                ]
                await self._stopping.wait()
                # an errand may wait for one of the lives; whoever waits for the errand is told that we are lost
                for task in (*lives, *self._errands):
                    task.cancel()
        finally:
            for unsubscribe in unsubscribes:
                unsubscribe()
            self._begin_anew()
            await self._readers.close()

    def stop(self) -> None:
        self._stopping.set()

    def doubt(self) -> None:
        """Some time has passed since the last call. If somebody reads, and nothing new was heard since, metadata is
        looked at, for a change that no watch told of: another owner, another segment, the end of one."""
        if self._views and self._tasks is not None and not self._has_news:
            self._stale.set()
        self._has_news = False

    def _begin_anew(self) -> None:
        """This life is over: what it was asked is not answered any more, and the next one knows nothing."""
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

    def attach(self, post: Callable[[Fact], None], on_lost: Callable[[], None]) -> View:
        """A new reader's door; close it at the end."""
        view = View(self, post, on_lost)
        self._views[view] = None
        return view

    def detach(self, view: View) -> None:
        self._views.pop(view, None)
        self._watching = [(v, q) for v, q in self._watching if v is not view]

    def answer(self, view: View, question: SourceQuestion) -> None:
        """Answer a question, now or when the answer is known."""
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
        """Do what somebody asked for; whoever waits for it is told if this life ends before."""
        assert self._tasks is not None, "questions come while the tailer lives"
        task = self._tasks.create_task(errand, name=name)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    # ---- metadata ---------------------------------------------------------------------------------------------------

    def _get_stream(self, view: View, question: GetStream, fresh: bool) -> None:
        if self._is_known and not fresh and (view.has_seen or self._is_cut_off):
            view.has_seen = True
            view.say(StreamSeen(self._value, fresh=False))
        elif self._tail is None or fresh:
            self._refresh(lambda error: self._show(view, question, error))
        else:
            self.run_errand(self._show_first(view, question), f"first look at {self.stream}")

    def _show(self, view: View, question: GetStream, error: DLogError | None) -> None:
        if error is None:
            view.has_seen = True
            view.say(StreamSeen(self._value, fresh=True))
        else:
            view.say(SourceFailed(question, error))

    async def _show_first(self, view: View, question: GetStream) -> None:
        """A reader has just come: metadata is read anew. Contact that was lost is waited for, as it may be back in a
        moment; after that the stream is served as it is known. Whoever was frozen has lost it, and waits anew."""
        patience = Patience(self._options.metadata_wait_s)
        looked = self._look()
        while not view.is_sure:
            if looked.done():
                looked = self._look()
            await patience.wait(looked)
            if view not in self._views:
                return  # it left, and nobody will make it sure
            if self._defect is not None:
                view.say(SourceFailed(question, self._defect))
                return
            is_late = patience.is_over and not view.is_sure
            if is_late and self._metadata.state is not SessionState.CONNECTED and self._tail is not None:
                self._is_alone = True
                break
        view.has_seen = True
        view.say(StreamSeen(self._value, fresh=view.is_sure))

    @property
    def _is_cut_off(self) -> bool:
        """Whether a stream whose tail its owner can tell is served as it is known."""
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
                    view.is_sure = True
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
        """The outcome, or what asking again will hardly mend: it is this stream's alone."""
        try:
            return await self._metadata.read(self._key)
        except DLogError as error:
            return error
        except Exception as error:  # noqa: BLE001 - whatever a reader of znodes did not foresee
            return DamagedError(f"metadata of the stream cannot be read: stream={self.stream} {error!r}")

    def _contact(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._stale.wake()

    def _refuse(self, defect: DLogError | None) -> None:
        """If metadata is not to be relied on any more, whoever waits is told, and so is whoever asks."""
        self._defect = defect
        if defect is not None:
            watching, self._watching = self._watching, []
            for view, question in watching:
                view.say(SourceFailed(question, defect))

    def _saw(self, value: StreamMetadata | None) -> None:
        before = self._value
        if self._is_known and value == before and (value is None or before is None or value.life == before.life):
            return
        self._value, self._is_known, self._has_news = value, True, True
        in_progress = value.in_progress if value is not None else ()
        self._tail = in_progress[-1] if in_progress else None
        if before is not None:
            self._forget(before, value)
        for view in tuple(self._views):
            if view.has_seen:
                view.say(StreamSeen(value, fresh=False))
        if self._following is not None:
            self._following.moved(self.listed)
        self._settle_watches()
        self._signal()

    def _forget(self, before: StreamMetadata, now: StreamMetadata | None) -> None:
        """What is truncated, deleted or differently ended than before leaves cache and readers."""
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
                self._readers.drop(key)  # opened again as what it is now
            if new.min_entry > old.min_entry:
                self._cache.drop(key, new.min_entry)

    # ---- the LAC ----------------------------------------------------------------------------------------------------

    def _watch(self, view: View, question: WatchLac) -> None:
        reply = self._lac_seen(question) if self._is_known else None
        is_in_turn = reply is not None and not reply.ended and question.known >= NO_ENTRY and self._turns.must_wait
        if reply is not None and not is_in_turn:
            view.say(reply)
            return
        self._watching.append((view, question))
        if is_in_turn:
            self._turns.ask()
        if len(self._watching) == 1 or not self._is_heard:
            self._signal()  # else an owner is listened to already, and nobody asks the store

    async def _find_tail(self, view: View, question: WatchLac) -> None:
        """A reader has just come: what is confirmed by now, it must see.

        The owner knows. Without one that answers, metadata must be read anew, since it may name another by now; only
        if it does not, the store finds the tail by itself: what was heard of an owner before may be long behind that.
        A tail that cannot be known now is an error, and the reader asks again.
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
            # what the store said earlier is as old as that
            if not (told and key in self._lacs) and not self._is_settled(question.segment):
                self._learn(question.segment, await self._readers.find_tail(question.segment), False)
        except DLogError as error:
            view.say(SourceFailed(question, error))
            return
        finally:
            self._seekers -= 1
        self._watch(view, question)

    async def _owner_says(self, view: View) -> bool:
        """Whether the owner has told, since now, how far it is confirmed.

        Who owned the stream when this reader came, or later, says metadata that was read since; a claim after that
        reading has not confirmed anything before. Cut off from metadata, whoever calls itself the owner is believed.
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

    def _is_to_be_asked(self, following: Heard | None, view: View) -> bool:
        if following is None or not view.is_sure:
            return following is not None
        return following.epoch is not None and following.epoch == self._epoch

    async def _look_again(self) -> None:
        """Read metadata, beginning now. Raises MetadataUnavailableError."""
        error = await self._look()
        if error is not None:
            raise error

    def _look(self) -> asyncio.Future[DLogError | None]:
        """The outcome of a reading of metadata that begins from now on."""
        looked: asyncio.Future[DLogError | None] = asyncio.get_running_loop().create_future()
        self._refresh(lambda error: looked.set_result(error) if not looked.done() else None)
        return looked

    def _is_settled(self, segment: Segment) -> bool:
        """Whether the segment's end is known from metadata, or it is gone."""
        now = self.listed(segment.number)
        return now is None or now.completed or segment_key(now) != segment_key(segment)

    def _settle_watches(self) -> None:
        """Answer everybody whose wait is over, from what is known now: who asked the same is told the same."""
        self._turns.cancel()
        if not self._watching or not self._is_known or self._stopping.is_set():
            return
        left: list[tuple[View, WatchLac]] = []
        answered: list[tuple[View, Fact]] = []
        facts: dict[tuple[str, str, int, int], Fact | None] = {}
        for view, question in self._watching:
            asked = question.segment
            same = (asked.store, asked.place, asked.number, question.known)
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

    def _lac_seen(self, question: WatchLac) -> LacSeen | None:
        asked = question.segment
        key = segment_key(asked)
        now = self.listed(asked.number)
        if now is None or segment_key(now) != key:
            return LacSeen(asked.number, asked.place, question.known, True)
        end = self._ends.get(key)
        if now.completed:
            if end is None:
                self._seek_end(now)
                return None
            return LacSeen(asked.number, asked.place, end, True)
        lac = self._lacs.get(key)
        if lac is not None and (lac > question.known or end is not None):
            return LacSeen(asked.number, asked.place, EntryId(max(lac, question.known)), end is not None)
        return None

    def _seek_end(self, segment: Segment) -> None:
        """Have the store asked for the end of a completed segment, once."""
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

    # ---- the LAC, as owners tell it ---------------------------------------------------------------------------------

    async def _hear_owners(self) -> None:
        pauses = self._pauses()
        redirect: str | None = None
        asked: object = None  # the claim that metadata named when we asked whoever redirected us
        while True:
            named = self._owner.address if self._owner is not None else None
            before, asked = asked, (self._life(), self._epoch)
            address = redirect if redirect and before == asked else named
            if address is None or not (self._watching or self._seekers):
                await self._changed.wait()
                redirect = None
                continue
            heard = Heard(self, address, self._life(), self._epoch if address == named else None)
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
        """Whom metadata, as it is known, names."""
        owner = self._value.owner if self._value is not None else None
        return owner if owner is not None and owner.epoch and not owner.released else None

    @property
    def _epoch(self) -> Epoch | None:
        return self._owner.epoch if self._owner is not None else None

    def _life(self) -> str:
        return self._value.life if self._value is not None else ""

    def _is_of_this_life(self, heard: Heard) -> bool:
        """Whether the stream is still the one that the owner was asked about; one without a life may be given one."""
        return not heard.life or heard.life == self._life()

    async def _follow(self, address: str, heard: Heard) -> DLogError | None:
        """Listen until the owner stops talking (the error) or metadata names another owner or stream (None)."""
        assert self._tasks is not None, "alive"
        following = self._tasks.create_task(self._listen(address, heard), name=f"listen to {address} {self.stream}")
        try:
            while not following.done():
                changed = self._tasks.create_task(self._changed.wait(), name="change")
                try:
                    await asyncio.wait((following, changed), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                if self._value is None or not self._is_of_this_life(heard):
                    return None
                if self._owner is not None and self._epoch != heard.epoch and not following.done():
                    return None
        finally:
            following.cancel()
        return following.result()

    async def _listen(self, address: str, heard: Heard) -> DLogError:
        try:
            await self._upstream.follow(address, self.stream, heard, lambda: self._asked(heard))
        except DLogError as error:
            return error
        raise AssertionError("an upstream ends with an error")

    def _asked(self, heard: Heard) -> None:
        self._following = heard
        self._signal()

    def believe(self, heard: Heard, number: int) -> None:
        """A LAC of segment `number` is heard for the first time on this connection: look where it lies, then use it."""
        self._refresh(partial(self._place, heard, number))

    def _place(self, heard: Heard, number: int, error: DLogError | None) -> None:
        if error is None:
            if self._is_of_this_life(heard):  # if not, what was heard is nobody's, and listening ends
                heard.place(number, self.listed(number))
        elif not heard.is_over:
            self.believe(heard, number)

    def heard(self, segment: Segment, lac: int, ended: bool) -> None:
        """The owner says so, and the place is certain; it may have said so before its connection was lost."""
        self._is_heard = self._following is not None
        if not segment.completed:
            self._learn(segment, lac, ended)

    def unheard(self, heard: Heard) -> None:
        """The connection to the owner is over: until another one is open nobody says what is confirmed."""
        self._is_heard, self._following = False, None
        self._signal()

    def brought(self, segment: Segment, first: int, payloads: Sequence[bytes]) -> None:
        """The owner sent confirmed entries along, and the place is certain."""
        self._fetches.keep(segment, first, payloads)

    # ---- the LAC, as the store tells it -----------------------------------------------------------------------------

    async def _ask_store(self) -> None:
        """While no owner is heard and somebody waits at the tail: long polls of the store."""
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
                self._stale.set()  # recovered: the list will say so
            self._learn(segment, lac, ended)
            if ended:
                await asyncio.sleep(pauses.longest_s())

    def _waits_for(self, segment: Segment) -> bool:
        key = segment_key(segment)
        return any(segment_key(question.segment) == key for _, question in self._watching)

    def _pauses(self) -> Pauses:
        return Pauses(self._options.retry_min_s, self._options.retry_max_s, self._rng)
