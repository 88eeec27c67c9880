"""Stream metadata in ZooKeeper: read as a whole, changed by one multi, watched as a tree. R is a stream's root znode.

Invariants:
- A value returned was true at one instant: a read is discarded if the owner's or the segment list's znode changed
  during it.
- Segments are cached; a persistent watch on the stream says which to read again. After anything that may have hidden an
  event the whole list is read again.
- That watch is only a hint: the children it reported must agree with the list znode's cversion, and the owner changes
  it reported with the owner znode's version. A segment that Java changed in place without an event is found by a
  conflict, or when the cached list is too old.
- Reads are fresh (zookeeper.py): readers check an owner's messages against metadata.
- Every change checks `R/life-<nonce>`, which identifies the incarnation: versions restart when a stream is deleted and
  created again. A stream that Java created gets one before our first change, which is made only if nothing has changed.
- A stream is deleted by one change of its owner's znode: from then on it reads as Missing, and `remove` deletes the
  znodes of that incarnation, now or when they are found later. The same change counts the deletion, and a creation
  names the count at the time of its request: a late one creates no second incarnation.
- The multi that raises the epoch replaces all lock members by ours, so that Java writers see the lock taken. Safety
  does not depend on that znode: the epoch and the fence decide.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from dlog.errors import DamagedError, InvalidStreamNameError, MetadataUnavailableError, UnsupportedVersionError
from dlog.io import stream_metadata
from dlog.io.metadata import AbsentStream, SessionState, StreamHead, Unsubscribe
from dlog.io.seen_versions import SeenVersions
from dlog.io.stream_metadata import StreamVersion
from dlog.io.stream_rechecks import PAUSE_S, ZNODE_BYTES, StreamRechecks
from dlog.io.zookeeper import ANY_VERSION, GET_AT_ONCE_MAX, Check, Create, Delete, Set, Stat, ZooKeeper
from dlog.io.zookeeper_layout import StreamPaths, lock_member, parents_of
from dlog.io.zookeeper_protocol import (
    BadVersionError,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    NoRightsError,
    NotEmptyError,
    Op,
    ReadResult,
    ZnodeError,
)
from dlog.machine import Conflict, Missing, Outcome, OutcomeUnknown, Versioned, unknown
from dlog.model.ids import SegmentNumber, StreamName, Txid, stream_name
from dlog.model.segment import Owner, Segment, StreamMetadata, StreamSettings, Truncation
from dlog.model.segment_list import EMPTY, SegmentList
from dlog.stores.kinds import stored_settings
from dlog.wire.stream_metadata import (
    decode_incarnation,
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
MIRROR_S = 60.0  # a cached list older than this is read again, even without a watch event
MIRROR_SEGMENT_S = (
    0.05  # ... or than this for each of its segments, if longer: reading long lists takes a small share of the time
)
READ_TRIES = 200  # of a stream that changes while it is read
LOCK_TRIES = 10
DELETE_TRIES = 20
DELETE_AT_ONCE = 500
RETRY_S = 0.5
CLAIMS_AT_ONCE = GET_AT_ONCE_MAX  # lock members created again with one read and one multi

_HEADS = ("ledgers", "owner", "maxtxid", "allocation", "settings", "sinks")


@dataclass(slots=True)
class _CachedSegments:
    """Cached segment list of one stream, and the changes reported since it was read. root: the stream's R."""

    root: str
    nodes: dict[str, Segment | None] = field(default_factory=dict)  # None: not a segment's znode
    touched: dict[str, None] = field(default_factory=dict)  # used as a set: an empty set is three times as large
    complete: bool = False  # nodes and touched together name every child
    listed_s: float = 0.0  # when the whole list was last read
    moves: int = 0  # children created or deleted ever, as far as known here; compared with cversion
    owner: int = -1  # version of the owner's znode, as far as its changes are known here
    incarnation: str = ""  # incarnation at that read: counts and versions may be equal in the next one
    epoch: int = 0  # counts invalidations
    segments: SegmentList = EMPTY
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    unsubscribe: Unsubscribe = lambda: None

    def close(self) -> None:
        """End the watch and drop the reference to it: its callback refers to this mirror."""
        self.unsubscribe()
        self.unsubscribe = lambda: None

    def invalidate(self) -> None:
        self.complete = False
        self.epoch += 1

    def is_old(self, now_s: float) -> bool:
        """Whether to read the whole list again, even without a reported change."""
        return now_s - self.listed_s > max(MIRROR_S, MIRROR_SEGMENT_S * len(self.nodes))

    def named(self, names: Iterable[str]) -> set[str]:
        """Those of the names that are cached as existing."""
        return {name for name in names if name in self.nodes}

    def put(self, name: str, found: tuple[bytes, Stat] | None, known: Segment | None) -> None:
        """Store a znode below R/ledgers as just read; None: it is gone. known: its segment as read before, kept if
        equal, so that lists can be compared by reference."""
        if found is None:
            self.nodes.pop(name, None)
            return
        if parse_segment_name(name) is None:
            self.nodes[name] = None
            return
        segment = _segment(name, *found)
        self.nodes[name] = known if known is not None and _given(known) == _given(segment) else segment

    def update_segments(self, names: list[str], *, all_of_them: bool) -> None:
        """Update `segments` from the znodes of these names, or from all. If a number exists twice, the completed
        segment counts: it is the later one."""
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
        """Callback of the watch; None: it may have missed any change."""
        if path is None:
            self.invalidate()
            return
        what, _, segment = path[len(self.root) :].removeprefix("/").partition("/")
        if not what:
            self.invalidate()  # the stream was created or deleted
        elif what == "ledgers" and segment:
            self.touched[segment] = None
        elif what == "owner" and not segment:
            self.owner += 1


@dataclass(slots=True)
class _OwnClaim:
    """A claim that this process has, or may have, and the session of its lock member, which Java writers see."""

    owner: Owner
    generation: int


class _StreamWatch:
    """Calls `callback` for changes in a stream other than of its lock members. `close` ends it."""

    __slots__ = ("_callback", "_rechecks", "_root", "_stream", "_unsubscribe", "_zk")

    def __init__(
        self, zk: ZooKeeper, rechecks: StreamRechecks, stream: StreamName, root: str, callback: Callable[[], None]
    ) -> None:
        self._zk = zk
        self._rechecks = rechecks
        self._stream = stream
        self._root = root
        self._callback = callback
        self._unsubscribe: Unsubscribe = zk.watch_tree(root, self._tree_changed)

    def close(self) -> None:
        """End the watch and drop the reference to it: its callback refers to this object."""
        self._unsubscribe()
        self._unsubscribe = _nothing
        self._rechecks.forget(self._stream, self)

    def __call__(self) -> None:
        """The stream changed, or may have."""
        if self._unsubscribe is not _nothing:
            self._callback()

    def _tree_changed(self, path: str | None) -> None:
        """Callback of the tree's watch; None: a change may have been missed."""
        if path is not None:
            if not path.startswith(("/lock/", "/readLock/"), len(self._root)):
                self()
        elif self._unsubscribe is not _nothing:
            self._rechecks.doubt(self._stream, self._zk.tree_reported_zxid(self._root), self)


class ZooKeeperStreams:
    """The streams' part of the metadata port."""

    def __init__(self, zk: ZooKeeper, paths: StreamPaths, rng: random.Random) -> None:
        self._zk = zk
        self._paths = paths
        self._rng = rng
        self._mirrors: OrderedDict[StreamName, _CachedSegments] = OrderedDict()
        self._marks = SeenVersions()
        self._rechecks = StreamRechecks(zk, paths, self._marks, rng)
        self._held: dict[StreamName, _OwnClaim] = {}
        self._new_session = asyncio.Event()
        self._unsubscribe = zk.on_state(self._state_changed)

    async def read(self, stream: StreamName) -> Versioned | Missing | OutcomeUnknown:
        """Read a stream. Raises DamagedError or UnsupportedVersionError if we cannot decode it, MetadataWentBackError
        if it is older than this process has seen."""
        mirror = self._mirror(stream)
        async with mirror.reading:
            if self._mirrors.get(stream) is not mirror:  # dropped while this waited: changes are not reported to it
                return await self.read(stream)
            before = self._marks.before(stream)
            try:
                for _ in range(READ_TRIES):
                    found = await self._read_once(stream, mirror)
                    if found is not None:
                        break
                else:
                    return OutcomeUnknown(f"the stream's metadata changed during every read: stream={stream}")
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
            del self._held[stream]  # another process has claimed it since: do not create the lock member again
        return Missing(left=found) if found.value.owner.deleted else found

    async def compare_and_set(self, stream: StreamName, value: StreamMetadata, version: object) -> Outcome:
        """Change a stream. Raises RequestTooLargeError if a multi cannot hold the changes (about 5,000 segments)."""
        assert value.name == stream
        try:
            if version is None or isinstance(version, AbsentStream):
                return await self._create(stream, value, version)
            assert isinstance(version, StreamVersion)
            return await self._change(stream, value, version)
        except MetadataUnavailableError as error:
            return unknown(error)

    async def remove(self, stream: StreamName, incarnation: str) -> None:
        """Remove the znodes of a stream that was marked as deleted in this incarnation; another one is not touched."""
        root = self._paths.root(stream)
        for _ in range(DELETE_TRIES):
            below = await self._descendants(self._paths.stream(stream), fresh=True)
            if stream_metadata.incarnation_path(root, incarnation) not in below:
                return
            try:
                data, stat = await self._zk.get(f"{root}/owner")
            except NoNodeError:
                continue
            if decode_incarnation(data) != incarnation or not decode_owner(data).deleted:
                return
            try:
                for ops in stream_metadata.plan_removal(root, incarnation, stat.version, below, DELETE_AT_ONCE):
                    await self._zk.multi(ops)
            except MultiFailedError as failed:
                if not isinstance(failed.error, (NoNodeError, NotEmptyError, BadVersionError)):
                    raise
            else:
                return
        raise MetadataUnavailableError(f"the deleted stream's znodes keep changing; try again: stream={stream}")

    async def deletions(self) -> int:
        """How many streams of the namespace were deleted so far: the version of a znode that every deletion sets."""
        while True:
            stat = await self._zk.exists(self._paths.deletions, fresh=True)
            if stat is not None:
                return stat.version
            with suppress(NodeExistsError):
                await self._zk.create(self._paths.deletions, parents=True)

    def watch(self, stream: StreamName, callback: Callable[[], None]) -> Unsubscribe:
        """Changes of lock members are not reported. After a loss of contact, certainly unchanged streams are not."""
        return _StreamWatch(self._zk, self._rechecks, stream, self._paths.root(stream), callback).close

    async def names(self) -> list[StreamName]:
        """Names in order, without those that are not valid stream names."""
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
        """See StreamMetadataStore.stream_heads."""
        roots = [self._paths.root(stream) for stream in streams]
        found = await self._zk.get_each([f"{root}/{name}" for root in roots for name in ("owner", "settings")])
        return [_head(owner, settings) for owner, settings in zip(found[::2], found[1::2], strict=True)]

    async def run(self) -> None:
        """After a reconnect recheck watched streams; in a new session create lock members again. Never returns."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._rechecks.run(), name="stream rechecks")
            tasks.create_task(self._restore_lock_members(), name="stream locks")

    async def _restore_lock_members(self) -> None:
        while True:
            await self._new_session.wait()
            self._new_session.clear()
            await self._zk.wait_connected()
            behind = [item for item in self._held.items() if item[1].generation != self._zk.generation]
            while behind:
                some, behind = behind[:CLAIMS_AT_ONCE], behind[CLAIMS_AT_ONCE:]
                try:
                    alone = await self._restore_many(some)
                except MetadataUnavailableError:
                    await self._retry_later(some)
                    continue
                for stream, held in alone:
                    try:
                        await self._restore_one(stream)
                    except (MetadataUnavailableError, DamagedError):
                        await self._retry_later([(stream, held)])
                if behind:
                    await asyncio.sleep(PAUSE_S * self._rng.uniform(0.0, 2.0))

    async def _retry_later(self, some: list[tuple[StreamName, _OwnClaim]]) -> None:
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

    def _mirror(self, stream: StreamName) -> _CachedSegments:
        mirror = self._mirrors.get(stream)
        if mirror is not None:
            self._mirrors.move_to_end(stream)
            return mirror
        mirror = self._mirrors[stream] = _CachedSegments(self._paths.root(stream))
        mirror.unsubscribe = self._zk.watch_tree(mirror.root, partial(self._changed, stream, mirror))
        while len(self._mirrors) > CACHED_STREAMS_MAX:
            self._mirrors.popitem(last=False)[1].close()
        return mirror

    def _changed(self, stream: StreamName, mirror: _CachedSegments, path: str | None) -> None:
        """A mirror's callback. The mirror of a deleted stream is dropped, at the latest by the read that uses it."""
        mirror.changed(path)
        if path == mirror.root and self._mirrors.get(stream) is mirror and not mirror.reading.locked():
            self._forget(stream)

    def _forget(self, stream: StreamName) -> None:
        mirror = self._mirrors.pop(stream, None)
        if mirror is not None:
            mirror.close()

    async def _read_once(self, stream: StreamName, mirror: _CachedSegments) -> Versioned | Missing | None:
        """None: it changed during the read."""
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
        incarnation = decode_incarnation(first[1][0]) if first[1] is not None else ""
        if listed:
            mirror.owner, mirror.incarnation = owner, incarnation
        for name, item in zip(names, segments, strict=True):
            mirror.put(name, item, former.get(name))
        if listed or names:
            mirror.update_segments(
                names, all_of_them=listed
            )  # now: if this read is discarded, the next finds no change
        mirror.moves += len(before ^ mirror.named(names))
        if first[0] is None:
            return Missing()
        if epoch != mirror.epoch:
            return None
        known = len(mirror.nodes) + len(mirror.touched) - len(mirror.named(mirror.touched))
        mirror.complete = self._zk.tree_is_watched(root) and known == first[0][1].children
        if mirror.touched or [_stat(item) for item in first[:2]] != [_stat(item) for item in last]:
            return None
        mirrored = len(mirror.nodes), mirror.moves, mirror.owner, mirror.incarnation
        if mirrored != (first[0][1].children, first[0][1].cversion, owner, incarnation):
            mirror.complete = False
            return None
        return _versioned(stream, first, mirror)

    # ---- changing --------------------------------------------------------------------------------------------------

    async def _create(self, stream: StreamName, value: StreamMetadata, version: AbsentStream | None) -> Outcome:
        root = self._paths.root(stream)
        claims = value.owner.epoch > 0 and not value.owner.released
        incarnation = value.incarnation or self._new_incarnation()
        same: list[Op] = []
        if version is not None:
            if await self.deletions() != version.deletions:
                return Missing()
            same = [Check(self._paths.deletions, version.deletions)]
        for _ in range(LOCK_TRIES):
            if await self._zk.exists(root, fresh=True) is not None:
                return Conflict()
            above: list[Op] = [Create(path) for path in parents_of(root) if await self._zk.exists(path) is None]
            ops = same + above + stream_metadata.plan_creation(root, value, incarnation)
            if claims:
                ops.append(self._member(root, value))
            if claims:
                self._hold(stream, value.owner)
            try:
                results = await self._zk.multi(ops)
            except MultiFailedError as failed:
                if isinstance(failed.error, BadVersionError):
                    return Missing()  # a stream was deleted since the request's count
                if isinstance(failed.error, (NodeExistsError, NoNodeError)):
                    continue  # another process created or removed part of it; look again
                raise
            value = replace(value, incarnation=incarnation).stamped(stream_metadata.time_of(results))
            made = stream_metadata.version_of_creation(value, incarnation)
            return Versioned(made.value, made)
        return Conflict()

    async def _change(self, stream: StreamName, value: StreamMetadata, version: StreamVersion) -> Outcome:
        root = self._paths.root(stream)
        if not version.incarnation:
            given = await self._add_incarnation(stream, version)
            if not isinstance(given, Versioned):
                return given
            version = given.version
        value = replace(value, incarnation=version.incarnation)
        ops = stream_metadata.plan_change(root, version, value)
        claims = value.owner.epoch > version.value.owner.epoch and not value.owner.released
        releases = value.owner.released and not version.value.owner.released
        if value.owner.deleted:
            await self.deletions()  # creates the counter if it is missing
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
                    continue  # a lock member was created or deleted meanwhile
                if ops[failed.index].path.startswith(f"{root}/ledgers/"):
                    self._mirror(stream).invalidate()  # the watch may have missed this segment's change
                return await self._refused(stream, failed)
            if value.owner.released or value.owner.deleted:
                self._held.pop(stream, None)
            changed = stream_metadata.version_after(root, version, value, ops, results[: len(ops)])
            self._marks.saw(stream, changed)
            return Versioned(changed.value, changed)
        return OutcomeUnknown(f"the stream's lock members changed during every try: stream={stream}")

    async def _add_incarnation(self, stream: StreamName, version: StreamVersion) -> Outcome:
        """Assign an incarnation id; return the stream as read before, with a version unique to the incarnation."""
        incarnation = self._new_incarnation()
        try:
            await self._zk.multi(stream_metadata.plan_incarnation(self._paths.root(stream), version, incarnation))
        except MultiFailedError as failed:
            return await self._refused(stream, failed)
        found = await self.read(stream)
        if isinstance(found, Versioned) and (found.value.incarnation != incarnation or found.value != version.value):
            return Conflict()
        return found

    def _new_incarnation(self) -> str:
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
        """Called before the multi: if its reply is lost, the claim may still be ours."""
        self._held[stream] = _OwnClaim(owner, self._zk.generation)

    def _state_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._new_session.set()

    async def _restore_many(self, some: list[tuple[StreamName, _OwnClaim]]) -> list[tuple[StreamName, _OwnClaim]]:
        """`_restore_one` for many streams, with one read and one multi. Returns those to do one by one: if ZooKeeper
        refuses one operation it refuses all."""
        roots = [self._paths.root(stream) for stream, _ in some]
        try:
            found = await self._zk.get_many([f"{root}/owner" for root in roots], like_bytes=ZNODE_BYTES)
        except ZnodeError:
            return some
        alone: list[tuple[StreamName, _OwnClaim]] = []
        shown: list[tuple[StreamName, _OwnClaim]] = []
        ops: list[Op] = []
        for (stream, held), root, item in zip(some, roots, found, strict=True):
            if self._held.get(stream) is not held:
                continue  # claimed again or released meanwhile
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

    def _plan_member(self, stream: StreamName, root: str, held: _OwnClaim, item: tuple[bytes, Stat] | None) -> list[Op]:
        """Operations that create a claim's lock member if the owner's znode is still as read; none if the claim is no
        longer ours. Raises DamagedError."""
        if item is None:
            return []
        data, stat = item
        owner = decode_owner(data)
        if owner.released or owner.deleted or (owner.epoch, owner.claim) != (held.owner.epoch, held.owner.claim):
            return []
        incarnation = decode_incarnation(data)
        same: list[Op] = [Check(stream_metadata.incarnation_path(root, incarnation), 0)] if incarnation else []
        value = StreamMetadata(name=stream, owner=owner)
        return [*same, Check(f"{root}/owner", stat.version), self._member(root, value)]

    async def _restore_one(self, stream: StreamName) -> None:
        """Our lock member ended with the session; create another if the claim is still ours."""
        held = self._held.get(stream)
        if held is None:
            return
        root = self._paths.root(stream)
        found = await self._zk.get_many([f"{root}/owner"])
        if self._held.get(stream) is not held:
            return  # claimed again or released meanwhile
        plan = self._plan_member(stream, root, held, found[0])
        if not plan:
            del self._held[stream]
            return
        self._hold(stream, held.owner)
        await self._zk.multi(plan)

    async def _descendants(self, path: str, *, fresh: bool = False) -> list[str]:
        """The znode and all below it; empty if it does not exist."""
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
    """Placeholder for an ended watch."""


def _segment(name: str, data: bytes, stat: Stat) -> Segment:
    """Decode a segment; a completed segment's znode was created when it was completed."""
    segment = decode_segment(name, data)
    made_ms = stat.ctime_ms if segment.completed else 0
    return replace(segment, metadata_unix_ms=made_ms, metadata_version=stat.version)


def _given(segment: Segment) -> tuple[Segment, int, int]:
    """All that is known of a segment, for comparison."""
    return segment, segment.metadata_unix_ms, segment.metadata_version


def _stat(item: tuple[bytes, Stat] | None) -> Stat | None:
    return item[1] if item is not None else None


def _at_trim_point(segments: SegmentList, trim: int) -> tuple[SegmentList, SegmentList]:
    """The truncated segments, and the readable ones. Java has no trim point; it marks segments one by one."""
    at = segments.index_of(trim)
    while at < len(segments) and segments[at].truncation is Truncation.TRUNCATED:
        at += 1
    first_open = segments.in_progress[:1]
    return segments.split(min(at, segments.index_of(first_open[0].number)) if first_open else at)


def _head(owner: ReadResult, settings: ReadResult) -> StreamHead | None:
    if not isinstance(owner, tuple) or isinstance(settings, NoRightsError):
        return None
    try:
        chosen = _settings(settings)
        return StreamHead(decode_owner(owner[0]), chosen.retention_s, decode_trim(owner[0]) > 0)
    except (DamagedError, UnsupportedVersionError):
        return None


def _settings(item: tuple[bytes, Stat] | None) -> StreamSettings:
    """Java creates streams without settings."""
    return decode_settings(item[0] if item is not None else b"", stored_settings)


def _allocated(data: bytes, stream: StreamName) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DamagedError(f"R/allocation is not UTF-8: stream={stream}") from None


def _versioned(stream: StreamName, heads: list[tuple[bytes, Stat] | None], mirror: _CachedSegments) -> Versioned:
    ledgers, owner, max_txid, allocation, settings, sinks = heads
    assert ledgers is not None
    if max_txid is None:
        raise DamagedError(f"R/maxtxid is missing: stream={stream}")
    truncated, segments = _at_trim_point(mirror.segments, decode_trim(owner[0]) if owner else 0)
    value = StreamMetadata(
        name=stream,
        segments=segments,
        truncated=truncated,
        max_segment=SegmentNumber(decode_number(ledgers[0], f"{stream}/ledgers")),
        max_txid=Txid(decode_number(max_txid[0], f"{stream}/maxtxid")),
        allocated=_allocated(allocation[0], stream) if allocation else "",
        owner=decode_owner(owner[0]) if owner else Owner(),
        settings=_settings(settings),
        sinks=decode_sinks(sinks[0]) if sinks else (),
        incarnation=decode_incarnation(owner[0]) if owner else "",
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
        incarnation=value.incarnation,
    )
    return Versioned(value, version)
