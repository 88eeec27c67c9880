"""Streams in ZooKeeper: read whole, changed by one multi, watched as a tree.

The law of this room: a value handed out is one that stood at one instant: what was read is thrown away if the owner's
or the segment list's znode changed meanwhile. Segments once read are kept, and a persistent watch on the stream says
which of them to read again; after anything that may have hidden an event the whole list is. That watch is a hint too:
what it told of must add up to what came and went by the count of the list's znode, and to the changes of an owner by
the version of its own, which each of them moves. A segment that Java changed in its place, untold, shows in a conflict,
or after a minute. Reads are fresh (zookeeper.py): a reader believes what the owner tells by what metadata says of the
place.

Each life of a stream has a znode of its own, `R/life-<nonce>`, that every change checks: versions alone begin anew when
a stream is deleted and made again. A stream that Java made is given one before we change it for the first time, and is
changed only if it is then what it was when read.

A stream is deleted by one change of its owner's znode, which says so from then on: it is Missing to whoever reads, and
`remove` takes the znodes away under that life, now or when somebody finds them left. The same change counts the
deletion, and a creation names the count that it was asked under: one that comes late makes no second life.

The claim of a stream takes the place of every lock member in the multi that raises the epoch, so that Java writers see
the lock taken. Safety does not rest on that node: the epoch and the fence decide.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from dlog.errors import DamagedError, InvalidStreamNameError, MetadataUnavailableError, UnsupportedVersionError
from dlog.io import stream_metadata
from dlog.io.metadata import Absent, SessionState, StreamHead, Unsubscribe
from dlog.io.stream_marks import StreamMarks
from dlog.io.stream_metadata import StreamVersion
from dlog.io.stream_rechecks import PAUSE_S, ZNODE_BYTES, StreamRechecks
from dlog.io.zookeeper import ANY_VERSION, GET_AT_ONCE_MAX, Check, Create, Delete, Set, Stat, ZooKeeper
from dlog.io.zookeeper_layout import StreamPaths, lock_member, parents_of
from dlog.io.zookeeper_protocol import (
    BadVersionError,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Op,
    ZnodeError,
)
from dlog.machine import Conflict, Missing, Outcome, OutcomeUnknown, Versioned, unknown
from dlog.model.ids import SegmentNumber, StreamName, Txid, stream_name
from dlog.model.segment import Owner, Segment, StreamMetadata, StreamSettings, Truncation
from dlog.model.segment_list import EMPTY, SegmentList
from dlog.wire.stream_metadata import (
    decode_life,
    decode_number,
    decode_owner,
    decode_segment,
    decode_settings,
    decode_sinks,
    decode_trim,
    parse_segment_name,
    segment_names,
)

CACHED_STREAMS_MAX = 4096
MIRROR_S = 60.0  # after which a list is read anew by the next reading, whatever its watch told
MIRROR_SEGMENT_S = (
    0.05  # ... and so much for each of its segments, so that reading them costs a small share of the time
)
READ_TRIES = 200  # of a stream that changes while it is read
LOCK_TRIES = 10
DELETE_TRIES = 20
DELETE_AT_ONCE = 500
RETRY_S = 0.5
CLAIMS_AT_ONCE = GET_AT_ONCE_MAX  # shown with one reading and one multi

_HEADS = ("ledgers", "owner", "maxtxid", "allocation", "settings", "sinks")


@dataclass(slots=True)
class _Mirror:
    """The segment list of one stream as last read, and what has happened to it since. root: path of the stream."""

    root: str
    nodes: dict[str, Segment | None] = field(default_factory=dict)  # None: not a segment's znode
    touched: dict[str, None] = field(default_factory=dict)  # a set; an empty one has three times the size
    complete: bool = False  # nodes and touched together name every child there is
    listed_s: float = 0.0  # when the whole list was read
    moves: int = 0  # children that came or went, ever, as far as they are known here
    owner: int = -1  # version of the owner's znode, as far as changes of it are known here
    life: str = ""  # that the list was read in; counts and versions may be the same in the next one
    epoch: int = 0  # counts invalidations
    segments: SegmentList = EMPTY
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    unsubscribe: Unsubscribe = lambda: None

    def close(self) -> None:
        """End the watch, and let go of it: its callback refers to this mirror."""
        self.unsubscribe()
        self.unsubscribe = lambda: None

    def invalidate(self) -> None:
        self.complete = False
        self.epoch += 1

    def is_old(self, now_s: float) -> bool:
        """Whether the whole list is to be read again, though nothing told of a change."""
        return now_s - self.listed_s > max(MIRROR_S, MIRROR_SEGMENT_S * len(self.nodes))

    def named(self, names: Iterable[str]) -> set[str]:
        """Those of the names that are known to be there."""
        return {name for name in names if name in self.nodes}

    def put(self, name: str, found: tuple[bytes, Stat] | None, known: Segment | None) -> None:
        """Take a znode below R/ledgers as it was just read; None: it is gone. known: the segment that it was before; if
        nothing has changed it stays the same object, so that lists are compared by reference."""
        if found is None:
            self.nodes.pop(name, None)
            return
        if parse_segment_name(name) is None:
            self.nodes[name] = None
            return
        segment = _segment(name, *found)
        self.nodes[name] = known if known is not None and _given(known) == _given(segment) else segment

    def take_up(self, names: list[str], *, all_of_them: bool) -> None:
        """Bring `segments` up to the znodes of these names, or to all there are. Should a number be there twice, the
        completed segment counts: it is the later."""
        if all_of_them:
            found = [s for s in self.nodes.values() if s is not None]
            by_number = {s.number: s for s in sorted(found, key=lambda s: s.completed)}
            self.segments = SegmentList(by_number[number] for number in sorted(by_number))
            return
        numbers = {named[1] for named in map(parse_segment_name, names) if named is not None}
        self.segments = self.segments.updated({number: self._of_number(number) for number in numbers})

    def _of_number(self, number: SegmentNumber) -> Segment | None:
        completed, in_progress = segment_names(number)
        return self.nodes.get(completed) or self.nodes.get(in_progress)

    def changed(self, path: str | None) -> None:
        """The watch fired; None: it may have missed anything."""
        if path is None:
            self.invalidate()
            return
        what, _, segment = path[len(self.root) :].removeprefix("/").partition("/")
        if what == "ledgers" and segment:
            self.touched[segment] = None
        elif what == "owner" and not segment:
            self.owner += 1


@dataclass(slots=True)
class _Held:
    """A stream this process has claimed (or may have), and the session under which a lock member shows it to Java."""

    owner: Owner
    generation: int


class _StreamWatch:
    """Calls back for what changes in a stream, but for the members of its locks. `close` ends it."""

    __slots__ = ("_callback", "_rechecks", "_root", "_stream", "_unsubscribe", "_zk")

    def __init__(
        self, zk: ZooKeeper, rechecks: StreamRechecks, stream: StreamName, root: str, callback: Callable[[], None]
    ) -> None:
        self._zk = zk
        self._rechecks = rechecks
        self._stream = stream
        self._root = root
        self._callback = callback
        self._unsubscribe: Unsubscribe = zk.watch_tree(root, self._heard)

    def close(self) -> None:
        """The watch refers to its callback, and that to us: let go of it."""
        self._unsubscribe()
        self._unsubscribe = _nothing
        self._rechecks.forget(self._stream, self)

    def __call__(self) -> None:
        """The stream changed, or may have."""
        if self._unsubscribe is not _nothing:
            self._callback()

    def _heard(self, path: str | None) -> None:
        """None: a change may have been missed."""
        if path is not None:
            if not path.startswith(("/lock/", "/readLock/"), len(self._root)):
                self()
        elif self._unsubscribe is not _nothing:
            self._rechecks.doubt(self._stream, self._zk.tree_heard_zxid(self._root), self)


class StreamTree:
    """The part of the metadata port that concerns streams."""

    def __init__(self, zk: ZooKeeper, paths: StreamPaths, rng: random.Random) -> None:
        self._zk = zk
        self._paths = paths
        self._rng = rng
        self._mirrors: OrderedDict[StreamName, _Mirror] = OrderedDict()
        self._marks = StreamMarks()
        self._rechecks = StreamRechecks(zk, paths, self._marks, rng)
        self._held: dict[StreamName, _Held] = {}
        self._new_session = asyncio.Event()
        self._unsubscribe = zk.on_state(self._heard_state)

    async def read(self, stream: StreamName) -> Versioned | Missing | OutcomeUnknown:
        """Raises DamagedError or UnsupportedVersionError for metadata we cannot read, MetadataWentBackError for what is
        older than this process has seen."""
        mirror = self._mirror(stream)
        async with mirror.reading:
            before = self._marks.before(stream)
            try:
                for _ in range(READ_TRIES):
                    found = await self._read_once(stream, mirror)
                    if found is not None:
                        break
                else:
                    return OutcomeUnknown(f"the stream changes faster than it can be read: stream={stream}")
            except MetadataUnavailableError as error:
                mirror.invalidate()
                return unknown(error)
            except BaseException:
                mirror.invalidate()
                raise
        if isinstance(found, Missing):
            self._forget(stream)
            return found
        self._marks.check(stream, before, found.version)
        held = self._held.get(stream)
        if held is not None and found.value.owner.epoch > held.owner.epoch:
            del self._held[stream]  # another has claimed it since: the lock member is not shown again
        return Missing(left=found) if found.value.owner.deleted else found

    async def compare_and_set(self, stream: StreamName, value: StreamMetadata, version: object) -> Outcome:
        """Raises RequestTooLargeError for more changes at once than a multi can hold (about 5,000 segments)."""
        assert value.name == stream
        try:
            if version is None or isinstance(version, Absent):
                return await self._create(stream, value, version)
            assert isinstance(version, StreamVersion)
            return await self._change(stream, value, version)
        except MetadataUnavailableError as error:
            return unknown(error)

    async def remove(self, stream: StreamName, life: str) -> None:
        """Remove what is left of a stream that was marked as deleted in this life; another one is not touched."""
        root = self._paths.root(stream)
        for _ in range(DELETE_TRIES):
            below = await self._descendants(self._paths.stream(stream), fresh=True)
            if stream_metadata.life_path(root, life) not in below:
                return
            try:
                data, stat = await self._zk.get(f"{root}/owner")
            except NoNodeError:
                continue
            if decode_life(data) != life or not decode_owner(data).deleted:
                return
            try:
                for ops in stream_metadata.plan_removal(root, life, stat.version, below, DELETE_AT_ONCE):
                    await self._zk.multi(ops)
            except MultiFailedError as failed:
                if not isinstance(failed.error, (NoNodeError, NotEmptyError, BadVersionError)):
                    raise
            else:
                return
        raise MetadataUnavailableError(f"znodes are made as fast as they are deleted: stream={stream}")

    async def deletions(self) -> int:
        """How many streams of the namespace were deleted so far: the version of a znode that each deletion sets."""
        while True:
            stat = await self._zk.exists(self._paths.deletions, fresh=True)
            if stat is not None:
                return stat.version
            with suppress(NodeExistsError):
                await self._zk.create(self._paths.deletions, parents=True)

    def watch(self, stream: StreamName, callback: Callable[[], None]) -> Unsubscribe:
        """Lock members come and go without being told. After a loss of contact a stream that is certainly unchanged is
        not told of either."""
        return _StreamWatch(self._zk, self._rechecks, stream, self._paths.root(stream), callback).close

    async def names(self) -> list[StreamName]:
        """Names in order; those that this service could not have made are left out."""
        try:
            names = (await self._zk.children(self._paths.namespace, fresh=True))[0]
        except NoNodeError:
            return []
        streams: list[StreamName] = []
        for name in sorted(names):
            try:
                streams.append(stream_name(name))
            except InvalidStreamNameError:
                continue
        return streams

    async def heads(self, streams: Sequence[StreamName]) -> list[StreamHead | None]:
        """See Metadata.stream_heads."""
        roots = [self._paths.root(stream) for stream in streams]
        found = await self._zk.get_many([f"{root}/{name}" for root in roots for name in ("owner", "settings")])
        return [_head(owner, settings) for owner, settings in zip(found[::2], found[1::2], strict=True)]

    async def run(self) -> None:
        """Look after a reconnect at what is watched, and in every new session show again that we hold what we hold; for
        ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._rechecks.run(), name="stream rechecks")
            tasks.create_task(self._show_claims(), name="stream locks")

    async def _show_claims(self) -> None:
        while True:
            await self._new_session.wait()
            self._new_session.clear()
            await self._zk.wait_connected()
            behind = [item for item in self._held.items() if item[1].generation != self._zk.generation]
            while behind:
                some, behind = behind[:CLAIMS_AT_ONCE], behind[CLAIMS_AT_ONCE:]
                try:
                    alone = await self._show_many(some)
                except MetadataUnavailableError:
                    await self._show_later(some)
                    continue
                for stream, held in alone:
                    try:
                        await self._show_again(stream)
                    except (MetadataUnavailableError, DamagedError):
                        await self._show_later([(stream, held)])
                if behind:
                    await asyncio.sleep(PAUSE_S * self._rng.uniform(0.0, 2.0))

    async def _show_later(self, some: list[tuple[StreamName, _Held]]) -> None:
        for stream, held in some:
            self._held.setdefault(stream, held).generation = -1
        await asyncio.sleep(RETRY_S)
        self._new_session.set()

    def close(self) -> None:
        self._unsubscribe()
        for mirror in self._mirrors.values():
            mirror.close()
        self._mirrors.clear()

    # ---- reading ---------------------------------------------------------------------------------------------------

    def _mirror(self, stream: StreamName) -> _Mirror:
        mirror = self._mirrors.get(stream)
        if mirror is not None:
            self._mirrors.move_to_end(stream)
            return mirror
        mirror = self._mirrors[stream] = _Mirror(self._paths.root(stream))
        mirror.unsubscribe = self._zk.watch_tree(mirror.root, mirror.changed)
        while len(self._mirrors) > CACHED_STREAMS_MAX:
            self._mirrors.popitem(last=False)[1].close()
        return mirror

    def _forget(self, stream: StreamName) -> None:
        mirror = self._mirrors.pop(stream, None)
        if mirror is not None:
            mirror.close()

    async def _read_once(self, stream: StreamName, mirror: _Mirror) -> Versioned | Missing | None:
        """None: it changed under our hands."""
        root = self._paths.root(stream)
        epoch = mirror.epoch
        now_s = asyncio.get_running_loop().time()
        listed = not mirror.complete or mirror.is_old(now_s)
        former = mirror.nodes
        if listed:
            try:
                names, stat = await self._zk.children(f"{root}/ledgers", fresh=True)
            except NoNodeError:
                return Missing()
            mirror.moves = stat.cversion
            mirror.nodes = {}
            mirror.touched = dict.fromkeys(names)
            mirror.listed_s = now_s
        names, mirror.touched = sorted(mirror.touched), {}
        heads = [f"{root}/{name}" for name in _HEADS]
        below = (f"{root}/ledgers/{name}" for name in names)
        before = set(names) if listed else mirror.named(names)
        found = await self._zk.get_many([*heads, *below, *heads[:2]], fresh=not listed)
        first, segments, last = found[: len(heads)], found[len(heads) : -2], found[-2:]
        owner = first[1][1].version if first[1] is not None else -1
        life = decode_life(first[1][0]) if first[1] is not None else ""
        if listed:
            mirror.owner, mirror.life = owner, life
        for name, item in zip(names, segments, strict=True):
            mirror.put(name, item, former.get(name))
        if listed or names:
            mirror.take_up(names, all_of_them=listed)  # now: if this reading is thrown away, the next finds no change
        mirror.moves += len(before ^ mirror.named(names))
        if first[0] is None:
            return Missing()
        if epoch != mirror.epoch:
            return None
        known = len(mirror.nodes) + len(mirror.touched) - len(mirror.named(mirror.touched))
        mirror.complete = self._zk.tree_is_watched(root) and known == first[0][1].children
        if mirror.touched or [_stat(item) for item in first[:2]] != [_stat(item) for item in last]:
            return None
        told = len(mirror.nodes), mirror.moves, mirror.owner, mirror.life
        if told != (first[0][1].children, first[0][1].cversion, owner, life):
            mirror.complete = False
            return None
        return _versioned(stream, first, mirror)

    # ---- changing --------------------------------------------------------------------------------------------------

    async def _create(self, stream: StreamName, value: StreamMetadata, version: Absent | None) -> Outcome:
        root = self._paths.root(stream)
        claims = value.owner.epoch > 0 and not value.owner.released
        life = value.life or self._new_life()
        same: list[Op] = []
        if version is not None:
            if await self.deletions() != version.deletions:
                return Missing()
            same = [Check(self._paths.deletions, version.deletions)]
        for _ in range(LOCK_TRIES):
            if await self._zk.exists(root, fresh=True) is not None:
                return Conflict()
            above: list[Op] = [Create(path) for path in parents_of(root) if await self._zk.exists(path) is None]
            ops = same + above + stream_metadata.plan_creation(root, value, life)
            if claims:
                ops.append(self._member(root, value))
            if claims:
                self._hold(stream, value.owner)
            try:
                results = await self._zk.multi(ops)
            except MultiFailedError as failed:
                if isinstance(failed.error, BadVersionError):
                    return Missing()  # a stream was deleted since it was counted
                if isinstance(failed.error, (NodeExistsError, NoNodeError)):
                    continue  # somebody made (or removed) part of it; look again
                raise
            value = replace(value, life=life).stamped(stream_metadata.time_of(results))
            made = stream_metadata.version_of_creation(value, life)
            return Versioned(made.value, made)
        return Conflict()

    async def _change(self, stream: StreamName, value: StreamMetadata, version: StreamVersion) -> Outcome:
        root = self._paths.root(stream)
        if not version.life:
            given = await self._give_life(stream, version)
            if not isinstance(given, Versioned):
                return given
            version = given.version
        value = replace(value, life=version.life)
        ops = stream_metadata.plan_change(root, version, value)
        claims = value.owner.epoch > version.value.owner.epoch and not value.owner.released
        releases = value.owner.released and not version.value.owner.released
        if value.owner.deleted:
            await self.deletions()  # there is something to count with
            ops.append(Set(self._paths.deletions, b"", ANY_VERSION))
            releases = True
        for _ in range(LOCK_TRIES):
            lock_ops = await self._lock_ops(stream, value, claims=claims, releases=releases)
            if claims:
                self._hold(stream, value.owner)
            try:
                results = await self._zk.multi(ops + lock_ops)
            except MultiFailedError as failed:
                if failed.index >= len(ops):
                    continue  # a lock member came or went meanwhile
                if ops[failed.index].path.startswith(f"{root}/ledgers/"):
                    self._mirror(stream).invalidate()  # of this segment's change no watch may have told
                return await self._refused(stream, failed)
            if value.owner.released or value.owner.deleted:
                self._held.pop(stream, None)
            changed = stream_metadata.version_after(root, version, value, ops, results[: len(ops)])
            self._marks.saw(stream, changed)
            return Versioned(changed.value, changed)
        return OutcomeUnknown(f"lock members come and go faster than they can be replaced: stream={stream}")

    async def _give_life(self, stream: StreamName, version: StreamVersion) -> Outcome:
        """The stream as read before, under a version that no other life of it can have."""
        life = self._new_life()
        try:
            await self._zk.multi(stream_metadata.plan_life(self._paths.root(stream), version, life))
        except MultiFailedError as failed:
            return await self._refused(stream, failed)
        found = await self.read(stream)
        if isinstance(found, Versioned) and (found.value.life != life or found.value != version.value):
            return Conflict()
        return found

    def _new_life(self) -> str:
        return f"{self._rng.getrandbits(96):024x}"

    async def _refused(self, stream: StreamName, failed: MultiFailedError) -> Outcome:
        if isinstance(failed.error, NoNodeError) and await self._zk.exists(self._paths.root(stream)) is None:
            return Missing()
        if isinstance(failed.error, (NoNodeError, NodeExistsError, BadVersionError)):
            return Conflict()
        raise failed.error

    async def _lock_ops(self, stream: StreamName, value: StreamMetadata, *, claims: bool, releases: bool) -> list[Op]:
        if not claims and not releases:
            return []
        root = self._paths.root(stream)
        try:
            members = sorted((await self._zk.children(f"{root}/lock"))[0])
        except NoNodeError:
            return []
        paths = [f"{root}/lock/{name}" for name in members]
        if releases:
            mine = self._member(root, value).path
            return [Delete(path) for path in paths if path.startswith(mine)]
        return [*(Delete(path) for path in paths), self._member(root, value)]

    def _member(self, root: str, value: StreamMetadata) -> Create:
        client = stream_metadata.lock_client(value)
        path = f"{root}/lock/{lock_member(client, self._zk.session_id)}"
        return Create(path, client.encode(), ephemeral=True, sequential=True)

    def _hold(self, stream: StreamName, owner: Owner) -> None:
        """Noted before the multi: should its reply be lost, the claim may be ours all the same."""
        self._held[stream] = _Held(owner, self._zk.generation)

    def _heard_state(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._new_session.set()

    async def _show_many(self, some: list[tuple[StreamName, _Held]]) -> list[tuple[StreamName, _Held]]:
        """`_show_again` for many streams, with one reading and one multi. Returns those that have to be shown one by
        one: what one of them refuses, ZooKeeper refuses for all."""
        roots = [self._paths.root(stream) for stream, _ in some]
        try:
            found = await self._zk.get_many([f"{root}/owner" for root in roots], like_bytes=ZNODE_BYTES)
        except ZnodeError:
            return some
        alone: list[tuple[StreamName, _Held]] = []
        shown: list[tuple[StreamName, _Held]] = []
        ops: list[Op] = []
        for (stream, held), root, item in zip(some, roots, found, strict=True):
            if self._held.get(stream) is not held:
                continue  # claimed again, or given up, meanwhile
            try:
                plan = self._plan_member(stream, root, held, item)
            except DamagedError:
                alone.append((stream, held))
                continue
            if not plan:
                del self._held[stream]
                continue
            self._hold(stream, held.owner)
            shown.append((stream, held))
            ops += plan
        try:
            await self._zk.multi(ops)
        except MultiFailedError:
            return alone + shown
        return alone

    def _plan_member(self, stream: StreamName, root: str, held: _Held, item: tuple[bytes, Stat] | None) -> list[Op]:
        """What makes a lock member for a claim, as long as the owner's znode is as read; nothing if the claim is not
        ours any more. Raises DamagedError."""
        if item is None:
            return []
        data, stat = item
        owner = decode_owner(data)
        if owner.released or owner.deleted or (owner.epoch, owner.claim) != (held.owner.epoch, held.owner.claim):
            return []
        life = decode_life(data)
        same: list[Op] = [Check(stream_metadata.life_path(root, life), 0)] if life else []
        value = StreamMetadata(name=stream, owner=owner)
        return [*same, Check(f"{root}/owner", stat.version), self._member(root, value)]

    async def _show_again(self, stream: StreamName) -> None:
        """Our lock member went with the session; make another, if the claim is still ours."""
        held = self._held.get(stream)
        if held is None:
            return
        root = self._paths.root(stream)
        found = await self._zk.get_many([f"{root}/owner"])
        if self._held.get(stream) is not held:
            return  # claimed again, or given up, meanwhile
        plan = self._plan_member(stream, root, held, found[0])
        if not plan:
            del self._held[stream]
            return
        self._hold(stream, held.owner)
        await self._zk.multi(plan)

    async def _descendants(self, path: str, *, fresh: bool = False) -> list[str]:
        """The znode and all below it; empty if it is not there."""
        try:
            names = (await self._zk.children(path, fresh=fresh))[0]
        except NoNodeError:
            return []
        found = [path]
        if path.endswith("/ledgers"):
            return found + [f"{path}/{name}" for name in names]  # segments have no children
        for name in names:
            found += await self._descendants(f"{path}/{name}")
        return found


def _nothing() -> None:
    """Nobody watches."""


def _segment(name: str, data: bytes, stat: Stat) -> Segment:
    """The znode of a completed segment is made when it is completed."""
    segment = decode_segment(name, data)
    made_ms = stat.ctime_ms if segment.completed else 0
    return replace(segment, metadata_unix_ms=made_ms, metadata_version=stat.version)


def _given(segment: Segment) -> tuple[Segment, int, int]:
    """All that is known of a segment, to compare it by."""
    return segment, segment.metadata_unix_ms, segment.metadata_version


def _stat(item: tuple[bytes, Stat] | None) -> Stat | None:
    return item[1] if item is not None else None


def _at_trim_point(segments: SegmentList, trim: int) -> tuple[SegmentList, SegmentList]:
    """The truncated segments, and those that may be read. Java has no trim point, it marks the segments one by one."""
    at = segments.index_of(trim)
    while at < len(segments) and segments[at].truncation is Truncation.TRUNCATED:
        at += 1
    first_open = segments.in_progress[:1]
    return segments.split(min(at, segments.index_of(first_open[0].number)) if first_open else at)


def _head(owner: tuple[bytes, Stat] | None, settings: tuple[bytes, Stat] | None) -> StreamHead | None:
    if owner is None:
        return None
    try:
        chosen = decode_settings(settings[0]) if settings is not None else StreamSettings()
        return StreamHead(decode_owner(owner[0]), chosen.retention_s, decode_trim(owner[0]) > 0)
    except (DamagedError, UnsupportedVersionError):
        return None


def _allocated(data: bytes, stream: StreamName) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DamagedError(f"what the stream has allocated is no text: stream={stream}") from None


def _versioned(stream: StreamName, heads: list[tuple[bytes, Stat] | None], mirror: _Mirror) -> Versioned:
    ledgers, owner, max_txid, allocation, settings, sinks = heads
    assert ledgers is not None
    if max_txid is None:
        raise DamagedError(f"the stream has no maxtxid: stream={stream}")
    truncated, segments = _at_trim_point(mirror.segments, decode_trim(owner[0]) if owner else 0)
    value = StreamMetadata(
        name=stream,
        segments=segments,
        truncated=truncated,
        max_segment=SegmentNumber(decode_number(ledgers[0], f"{stream}/ledgers")),
        max_txid=Txid(decode_number(max_txid[0], f"{stream}/maxtxid")),
        allocated=_allocated(allocation[0], stream) if allocation else "",
        owner=decode_owner(owner[0]) if owner else Owner(),
        settings=decode_settings(settings[0]) if settings else StreamSettings(),
        sinks=decode_sinks(sinks[0]) if sinks else (),
        life=decode_life(owner[0]) if owner else "",
        changed_unix_ms=owner[1].mtime_ms if owner else 0,
    )
    version = StreamVersion(
        value=value,
        ledgers=ledgers[1].version,
        max_txid=max_txid[1].version,
        allocation=allocation[1].version if allocation else None,
        owner=owner[1].version if owner else None,
        settings=settings[1].version if settings else None,
        sinks=sinks[1].version if sinks else None,
        life=value.life,
    )
    return Versioned(value, version)
