"""The segment store `s3-direct`: the contract of dlog/stores/contract.py on the machines of dlog/objects/chain.py.

    <root>/<cluster>/marker                            shows that the cluster's segments are here
    <root>/<cluster>/segments/<segment>/<number>       chunks; the segment is a random name that is never used again
    <root>/<cluster>/segments/<segment>/index          where the chunks with entries are, once they are merged
    <root>/<cluster>/segments/<segment>/data-<nonce>   merged chunks

Visible entries are final, since a chunk that counts is never dropped.

Invariants:
- A segment exists as long as its BEGIN chunk does: each call that opens one reads that chunk, past the cache.
- What is missing is reported as not found only if the cluster's marker is there: else the root is a wrong one, or is
  not mounted. Nothing is created without the marker, either.
- `delete` removes BEGIN first. A crash behind that leaves chunks that no call reads; `list` finds them, and a
  repetition removes them.
- Where there is an index, it has the end and the entries (dlog/objects/merge.py): chunks may be missing. It is
  looked for after the last listing of a search, and where a chunk is missing.
- FENCEs outlive the deletion (dlog/objects/deletion.py). A fenced writer that wakes up later, with entries to append,
  must find its number taken: else they would be acknowledged, and nobody would ever read them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from random import Random
from types import TracebackType
from typing import Protocol, TypeVar

from dlog.errors import ConfigError, DamagedError, DLogError
from dlog.events import Event
from dlog.model.ids import WAL_STREAM, EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.segment import StoreSettings
from dlog.objects.chain import (
    PAGE,
    ChainTail,
    ChunkPut,
    CreateChunk,
    GivenUp,
    HeadsRead,
    ListBehind,
    Listed,
    NoChain,
    Put,
    ReadHeads,
    TailFound,
)
from dlog.objects.deletion import (
    AllListed,
    ChainDeletion,
    ChunksDeleted,
    DeleteChunks,
    DeletionFact,
    Ending,
    EndingTried,
    EndSegment,
    KindsRead,
    ListAll,
    ReadKinds,
    SegmentDeleted,
)
from dlog.objects.merge import (
    BeginSought,
    ChunksCopied,
    CopyChunks,
    CopyRead,
    CreateIndex,
    DeleteCopy,
    DeleteMerged,
    EndSought,
    IndexPut,
    IndexSought,
    Merged,
    MergeFact,
    MergeOver,
    ReadCopy,
    Removed,
    SeekBegin,
    SeekEnd,
    SeekIndex,
    SegmentMerge,
)
from dlog.options import MiB
from dlog.stores.contract import (
    STAGE,
    Buffer,
    Capabilities,
    MisconfiguredError,
    ReaderClosedError,
    RecoveredSegment,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentRef,
    SegmentStat,
    StoreError,
    StoreOutOfReachError,
    StoreUnavailableError,
    Verification,
    copy_error,
)
from dlog.stores.object_storage.async_lru_cache import AsyncLruCache
from dlog.stores.object_storage.locations import MARKER, Location, parse_location
from dlog.stores.object_storage.port import Creation, Objects
from dlog.stores.object_storage.probe import NONCE_HEX, probe
from dlog.stores.object_storage.seeking import SpanOf
from dlog.stores.s3_direct.chunks import (
    Chain,
    ChunkReads,
    ChunkStart,
    Description,
    Extent,
    Key,
    check_name,
    is_merged,
    number_of,
    parse_description,
    segment_of,
)
from dlog.stores.s3_direct.merger import SegmentMerger
from dlog.stores.s3_direct.options import NAME, S3_DIRECT_SETTINGS, ObjectsOptions
from dlog.stores.s3_direct.put_budget import PutBudget
from dlog.stores.s3_direct.reader import ChainView, S3DirectReader
from dlog.stores.s3_direct.writer import S3DirectWriter
from dlog.wire.chunk import (
    HEAD_BYTES,
    NONCE_BYTES,
    ChunkHead,
    ChunkKind,
    decode_body,
    decode_head,
    encode_chunk,
)
from dlog.wire.chunk_index import INDEX_HEAD_BYTES, ChunkIndex, encode_index, make_index

ENTRY_BYTES_MAX = 1 * MiB
PUTS_IN_FLIGHT = 8  # of a segment, see IN_FLIGHT_MAX of the chain
LAST_PAYLOADS = 3  # that a recovery returns, if they are at hand
SEGMENTS = "segments"
_RETRY_FIRST_S, _RETRY_MAX_S = 0.05, 2.0

T = TypeVar("T")


class FindFolder(Protocol):
    """Finds the folder with this cluster's objects."""

    async def __call__(self, *, creates: bool) -> Location:
        """creates: make one, with its marker, if there never was one. Raises NoSegmentsYetError and other store errors,
        ConfigError, MetadataUnavailableError."""
        ...


class NoSegmentsYetError(StoreOutOfReachError):
    """No process of this cluster has created a segment in objects yet."""


def marker_text(cluster: str) -> bytes:
    """The content of the object that marks a cluster's folder."""
    return f"The objects of a dlog cluster: {cluster}\n".encode()


class S3DirectStore:
    """A SegmentStore: `async with S3DirectStore(...) as store`. The caller closes the objects.

    find_folder: asked at the first use. creates: this process may make the folder. rng: gives names of segments and
    nonces, which must never repeat. span_of: the txids and times of an entry, for `locate`.
    """

    name = NAME
    settings = S3_DIRECT_SETTINGS

    def __init__(
        self,
        objects: Objects,
        find_folder: FindFolder,
        options: ObjectsOptions,
        rng: Random,
        *,
        creates: bool = False,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
        span_of: SpanOf = lambda _: None,
        on_event: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self.capabilities = Capabilities(
            visible_is_final=True,
            entry_bytes_max=entry_bytes_max,
            entries_in_flight=PUTS_IN_FLIGHT,
            bytes_in_flight=PUTS_IN_FLIGHT * options.chunk_bytes_max,
            reads_ahead=options.reads_ahead,
        )
        self.options = options
        self.objects = objects
        self.span_of = span_of
        self.budget = PutBudget(options.puts_per_s)
        self.cache: AsyncLruCache[Key, ChunkStart | Extent | ChunkIndex] = AsyncLruCache(options.cache_bytes_max)
        self.reads = ChunkReads(objects, options, self.cache)
        self._merger = (
            SegmentMerger(self.merge, options.merged_grace_s, on_event) if creates and options.merges else None
        )
        self._find_folder = find_folder
        self._creates = creates
        self._rng = rng
        self._folder: Location | None = None
        self._probing = asyncio.Lock()
        self._is_probed = False
        self._is_open = False
        self._writers: set[S3DirectWriter] = set()
        self._readers: set[S3DirectReader] = set()
        self._views: dict[str, ChainView] = {}

    async def __aenter__(self) -> S3DirectStore:
        await self.cache.__aenter__()
        self._is_open = True
        if self._merger is not None:
            self.cache.start(self._merger.run, "merges of segments")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        finally:
            await self.cache.__aexit__(kind, error, trace)

    def check_capacity(self, settings: StoreSettings) -> None:
        """Does nothing: a segment needs no members."""

    async def check_root(self) -> None:
        """Check that the storage answers, has this cluster's marker, and does what segments need. Raises StoreError."""
        folder = await self.cluster_folder(creates=self._creates)
        await self._check_marker(folder)
        if self._creates:
            await self._probe(folder)

    async def create(
        self, stream: StreamName, number: SegmentNumber, epoch: Epoch, settings: StoreSettings
    ) -> S3DirectWriter:
        self.settings.complete(dict(settings))
        folder = await self._reach(self._fit_folder)
        chain = Chain(folder.below(SEGMENTS), f"{self._rng.getrandbits(128):032x}")
        description = Description(stream, number, epoch)
        writer = S3DirectWriter(self, chain, description, self._rng.randbytes(NONCE_BYTES))
        self._writers.add(writer)
        await writer.begin()
        return writer

    async def recover(self, ref: SegmentRef) -> RecoveredSegment:
        chain = await self._reach(partial(self._chain, ref.name))
        found = await self._find(chain, is_recovery=True)
        self.ended(ref.stream, chain.name)
        return RecoveredSegment(EntryId(found.end - 1), await self._last_payloads(chain, found))

    async def open_reader(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> S3DirectReader:
        chain = await self._chain(ref.name)
        found = await self._decided(chain, sealed_at)
        view = self._views.get(chain.name)
        if view is None:
            view = self._views[chain.name] = ChainView(self, chain)
        view.advance(found)
        if found.is_ended:
            self.ended(ref.stream, chain.name)
        reader = S3DirectReader(self, view)
        self._readers.add(reader)
        return reader

    async def stat(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> SegmentStat:
        found = await self._decided(await self._chain(ref.name), sealed_at)
        return SegmentStat(EntryId(found.end - 1), found.payload_bytes) if found.is_ended else SegmentStat()

    async def stage_of(self, name: str) -> StreamName | None:
        found = await self.describe(name)
        return found.stream if found.number == STAGE else None

    async def folder_of(self, name: str) -> Location:
        """The folder with the objects of a segment, for tools. Raises StoreError."""
        return (await self._chain(name)).folder

    async def age_s(self, name: str) -> float:
        """How long ago, by the storage's clock, an object of a segment was created last, for tools. Raises
        SegmentNotFoundError if it has none, and other store errors."""
        chain = await self._chain(name)
        created = [one.modified_unix_ms async for one in self.objects.list(chain.folder)]
        if not created:
            raise SegmentNotFoundError(f"no such segment, it was deleted: folder={chain.folder}")
        return (await self.objects.now_unix_ms(chain.segments) - max(created)) / 1000

    async def describe(self, name: str) -> Description:
        """What BEGIN says of a segment, for tools. Raises StoreError."""
        return await self._begin(await self._chain(name))

    async def tail(self, name: str) -> TailFound:
        """How far a segment reaches, for tools. Raises StoreError."""
        return await self._decided(await self._chain(name), None)

    async def find_tail(self, ref: SegmentRef) -> EntryId:
        return EntryId((await self.tail(ref.name)).end - 1)

    async def delete(self, ref: SegmentRef) -> None:
        """See SegmentStore.delete. FENCEs stay, of some 170 bytes, as does an object near the end that cannot be
        read."""
        try:
            chain = await self._chain(ref.name)
        except SegmentNotFoundError:
            return
        nonce = self._rng.randbytes(NONCE_BYTES)
        machine, effects = ChainDeletion().begin()
        while True:
            [effect] = effects
            fact: DeletionFact
            match effect:
                case EndSegment():
                    fact = EndingTried(await self._try_to_end(chain))
                case ListAll():
                    fact = await self._list_all(chain)
                case ReadKinds(numbers):
                    fact = KindsRead(await self.reads.kinds(chain, numbers))
                case CreateChunk(number):
                    fact = ChunkPut(number, await self._create_fence(chain, effect, nonce, 0))
                case DeleteChunks(numbers):
                    await self.objects.delete_many([chain.place(number) for number in numbers])
                    fact = ChunksDeleted()
                case GivenUp():
                    raise self._unclear_end(chain)
                case SegmentDeleted():
                    break
            machine, effects = machine.after(fact)
        merged = [one async for one in self.objects.list(chain.folder) if is_merged(chain.folder, one)]
        await self.objects.delete_many([location for one in merged if (location := parse_location(one.location))])
        async for left in self.objects.unfinished(chain.folder):
            await self.objects.discard(left)

    async def merge(self, name: str) -> Merged:
        """Merge the chunks of a segment that has ended into one object; at a later call, delete them.

        Raises StoreError; nothing is lost then, and it may be called again."""
        chain = await self._chain(name)
        nonce = self._rng.randbytes(NONCE_BYTES)
        machine, effects = SegmentMerge().begin()
        try:
            while True:
                [effect] = effects
                fact: MergeFact
                match effect:
                    case SeekIndex():
                        fact = await self._seek_index(chain)
                    case SeekEnd():
                        fact = EndSought(await self._find(chain, is_recovery=False))
                    case CopyChunks(first, end):
                        fact = ChunksCopied(await self._copy_chunks(chain, nonce, first, end))
                    case ReadCopy():
                        fact = CopyRead(await self._read_copy(chain, nonce, machine.heads))
                    case CreateIndex(heads):
                        fact = IndexPut(await self._create_index(chain, encode_index(make_index(nonce, heads))))
                    case SeekBegin():
                        fact = BeginSought(await self._exists(chain))
                    case DeleteCopy(with_index):
                        if with_index:
                            await self.objects.delete(chain.index)
                        await self.objects.delete(chain.data(nonce))
                        fact = Removed()
                    case DeleteMerged(first, end):
                        await self._delete_merged(chain, first, end)
                        fact = Removed()
                    case MergeOver(result):
                        return result
                machine, effects = machine.after(fact)
        except DamagedError as error:
            raise SegmentCorruptError(f"{error.message}: folder={chain.folder}") from error

    async def list(self) -> AsyncIterator[str]:
        """See SegmentStore.list. Also yields deleted segments of which more than FENCEs is left."""
        try:
            folder = await self.cluster_folder(creates=False)
        except NoSegmentsYetError:
            return
        segments = folder.below(SEGMENTS)
        yielded = ""
        async for found in self.objects.list(segments):
            at = segment_of(segments, found)
            if at is not None and at != yielded and found.bytes != HEAD_BYTES:  # FENCEs have no body
                yielded = at
                yield at

    async def verify(self, ref: SegmentRef) -> Verification:
        """Read every chunk and check every byte. The storage keeps its own replicas."""
        chain = await self._chain(ref.name)
        found = await self._decided(chain, None)
        known, damaged = 0, list[tuple[EntryId, str]]()  # of the entries below `known` it is known whether they verify
        reason = ""
        for number in range(1, found.next_number):
            try:
                start = await self.reads.load_start(chain, number)
                damaged += [(EntryId(entry), reason) for entry in range(known, start.head.first)]
                known = start.head.end
                await self.reads.whole(chain, number)
            except SegmentCorruptError as error:  # its entries are those up to the next chunk
                reason = error.message
            except SegmentNotFoundError:
                await self._begin(chain)
                reason = f"a chunk is missing: number={number}"
            except DamagedError:
                damaged += await self._damaged_in(chain, start)
        damaged += [(EntryId(entry), reason) for entry in range(known, found.end)]
        return Verification(found.end, tuple(damaged))

    async def close(self) -> None:
        """Abandon every writer and close every reader; the objects remain."""
        self._is_open = False
        for writer in tuple(self._writers):
            await writer.abandon()
        for reader in tuple(self._readers):
            await reader.close()

    # ---- for writers and readers -------------------------------------------------------------------------------------

    async def create_chunk(self, chain: Chain, number: int, parts: Sequence[Buffer], *, waits: bool) -> Put:
        """Create a chunk; the same bytes are sent again until it is certain whether it was, up to a deadline.

        waits: for the budget. Raises MisconfiguredError, StoreOutOfReachError (outcome unknown). Cancelling stops the
        wait only.
        """
        if waits:
            await self.budget.take()
        else:
            self.budget.take_nowait()
        return await self._create(chain, chain.place(number), parts, HEAD_BYTES)

    async def _create(self, chain: Chain, location: Location, parts: Sequence[Buffer], head_bytes: int) -> Put:
        marker = chain.segments.parent.below(MARKER)
        creating = partial(self.objects.create_if_absent, location, parts, head_bytes=head_bytes, marker=marker)
        try:
            created = await self._reach(creating, repeats=True)
        except SegmentNotFoundError:
            return Put.EXISTS  # another process's chunk was there, and was deleted with the segment
        except StoreOutOfReachError as error:
            raise copy_error(error, outcome_unknown=True) from error
        return Put.MADE if created is Creation.MADE else Put.EXISTS

    async def _create_index(self, chain: Chain, data: bytes) -> Put:
        try:
            return await self._create(chain, chain.index, [data], INDEX_HEAD_BYTES)
        except StoreOutOfReachError:
            return Put.UNKNOWN

    async def _reach(self, request: Callable[[], Awaitable[T]], *, repeats: bool = False) -> T:
        """Send a request with a deadline. repeats: again until then, while the storage cannot be reached. Raises
        StoreOutOfReachError with the last failure if it cannot, and what the request raises otherwise."""
        delay_s, why = _RETRY_FIRST_S, "it does not answer, or says that it is busy"
        try:
            async with asyncio.timeout(self.options.retry_s):
                while True:
                    try:
                        return await request()
                    except (StoreOutOfReachError, ReaderClosedError):
                        raise
                    except StoreUnavailableError as error:
                        why = error.message
                    if not repeats:
                        break
                    await asyncio.sleep(delay_s * self._rng.uniform(0.5, 1.0))
                    delay_s = min(2 * delay_s, _RETRY_MAX_S)
        except TimeoutError:
            pass
        raise StoreOutOfReachError(f"the object storage cannot be used, mend it: {why}: root={self.options.root}")

    async def find_tail_of(self, chain: Chain) -> TailFound:
        """The tail, in O(log n) requests. Raises StoreError."""
        return await self._find(chain, is_recovery=False)

    async def missing(self, chain: Chain) -> StoreError:
        """What it means that the storage lacks a chunk that was there."""
        try:
            await self._begin(chain)
        except StoreError as error:
            return error
        return SegmentCorruptError(f"a chunk of the segment is missing: folder={chain.folder}")

    async def cluster_folder(self, *, creates: bool) -> Location:
        """The folder of this cluster's objects, for the store `s3` as well. creates: make it if there never was one.
        Raises StoreError."""
        if not self._is_open:
            raise ReaderClosedError(f"the store is closed, open another one: store={NAME}")
        if self._folder is None:
            try:
                self._folder = await self._find_folder(creates=creates)
            except StoreError:
                raise
            except ConfigError as error:
                raise MisconfiguredError(error.message) from error
            except DLogError as error:
                raise StoreUnavailableError(error.message) from error
        return self._folder

    def confirmed(self, name: str, lac: EntryId) -> None:
        """Pass the LAC on to this process's readers of a segment."""
        view = self._views.get(name)
        if view is not None:
            view.learn_lac(lac)

    def ended(self, stream: StreamName, name: str) -> None:
        """Merge a segment that has ended, in the background; but not one of a node's log, which is deleted soon."""
        if self._merger is not None and stream != WAL_STREAM:
            self._merger.add(name)

    def writer_ended(self, writer: S3DirectWriter) -> None:
        self._writers.discard(writer)
        view = self._views.get(writer.name)
        if view is not None:
            view.wake()

    def reader_closed(self, reader: S3DirectReader, view: ChainView) -> None:
        self._readers.discard(reader)
        if not view.readers and self._views.get(view.chain.name) is view:
            del self._views[view.chain.name]

    # ---- internal ---------------------------------------------------------------------------------------------------

    async def _fit_folder(self) -> Location:
        """The cluster's folder, once it is certain that segments can be created there. Raises StoreError."""
        folder = await self.cluster_folder(creates=self._creates)
        await self._check_marker(folder)
        await self._probe(folder)
        return folder

    async def _check_marker(self, folder: Location) -> None:
        """Raise StoreOutOfReachError unless this cluster's marker is there."""
        text = marker_text(folder.name)
        try:
            found = await self.objects.read(folder.below(MARKER), 0, len(text) + 1)
        except SegmentNotFoundError:
            found = b""
        except StoreUnavailableError as error:
            if folder.scheme != "file":
                raise
            raise StoreOutOfReachError(f"{wrong_root(folder)} ({error.message})") from error
        if found != text:
            raise StoreOutOfReachError(wrong_root(folder))

    async def _probe(self, folder: Location) -> None:
        """Check once what the storage can do. Raises MisconfiguredError, StoreUnavailableError."""
        async with self._probing:
            if not self._is_probed:
                await probe(self.objects, folder, f"{self._rng.getrandbits(4 * NONCE_HEX):0{NONCE_HEX}x}")
                self._is_probed = True

    async def _chain(self, name: str) -> Chain:
        """Raises SegmentNotFoundError if the name is none of this store's."""
        check_name(name)
        return Chain((await self.cluster_folder(creates=False)).below(SEGMENTS), name)

    async def _begin(self, chain: Chain) -> Description:
        """Read BEGIN. Raises SegmentNotFoundError, SegmentCorruptError, StoreUnavailableError."""
        try:
            start = await self.reads.load_start(chain, 0)
            if start.head.kind is not ChunkKind.BEGIN:
                raise DamagedError("the first chunk of a segment is none that begins one")
            return parse_description(start.data[HEAD_BYTES:])
        except DamagedError as error:
            raise SegmentCorruptError(f"{error.message}: object={chain.place(0)}") from error
        except SegmentNotFoundError:
            pass
        except StoreUnavailableError:  # of a directory: it is missing, too
            if await self.reads.numbers_behind(chain, -1, 1):
                raise
        await self._check_marker(chain.segments.parent)
        raise SegmentNotFoundError(f"no such segment, it was deleted: folder={chain.folder}")

    async def _decided(self, chain: Chain, sealed_at: EntryId | None) -> TailFound:
        """The tail of a segment. sealed_at: the list has it as completed, so no writer may append: if its end is not
        decided, decide it."""
        found = await self._find(chain, is_recovery=False)
        if sealed_at is not None and not found.is_ended:
            if sealed_at >= found.end:  # an end is listed only once the store has decided it
                raise SegmentCorruptError(
                    f"a chunk of the completed segment is missing: number={found.next_number} folder={chain.folder}"
                )
            found = await self._find(chain, is_recovery=True)
        return found

    async def _find(self, chain: Chain, *, is_recovery: bool) -> TailFound:
        """Run the state machine that finds the tail; as a recovery it ends the segment there, and each of its requests
        has a deadline. Raises StoreError."""
        nonce = self._rng.randbytes(NONCE_BYTES)
        reach = self._reach if is_recovery else _once
        machine, effects = ChainTail(is_recovery).begin()
        try:
            while True:
                [effect] = effects
                fact: Listed | HeadsRead | ChunkPut
                match effect:
                    case ListBehind(number):
                        fact = Listed(number, await reach(partial(self.reads.numbers_behind, chain, number, PAGE)))
                    case ReadHeads(numbers):
                        heads = await reach(partial(self._read_heads, chain, numbers))
                        if isinstance(heads, ChunkIndex):
                            return tail_of(heads)
                        fact = HeadsRead(heads)
                    case CreateChunk(number):
                        made = await self._create_fence(chain, effect, nonce, machine.payload_bytes)
                        fact = ChunkPut(number, made)
                    case NoChain():
                        raise await self.missing(chain)
                    case GivenUp():
                        raise self._unclear_end(chain)
                    case TailFound():
                        return effect
                machine, effects = machine.after(fact)
        except DamagedError as error:
            await self._begin(chain)  # deleted meanwhile?
            if (index := await self.reads.index(chain)) is not None:
                return tail_of(index)
            raise SegmentCorruptError(f"{error.message}: folder={chain.folder}") from error
        except SegmentNotFoundError as error:
            raise await self.missing(chain) from error

    async def _read_heads(self, chain: Chain, numbers: Sequence[int]) -> tuple[ChunkHead, ...] | ChunkIndex:
        """The heads of chunks; the index instead, if the segment is merged. Checks that it exists."""
        reading = self.cache.start(partial(self.reads.heads, chain, numbers), f"heads of {chain.name}")
        seeking = self.cache.start(partial(self.reads.index, chain), f"index of {chain.name}")
        await self._begin(chain)
        if (index := await seeking) is not None:
            return index
        return await reading

    async def _create_fence(self, chain: Chain, effect: CreateChunk, nonce: bytes, bytes_before: int) -> Put:
        parts = encode_chunk(
            effect.kind,
            (),
            nonce=nonce,
            segment=chain.segment,
            number=effect.number,
            epoch=0,  # a recovery does not know it
            contiguous=effect.contiguous,
            first=effect.first,
            bytes_before=bytes_before,
        )
        return await self.create_chunk(chain, effect.number, parts, waits=False)

    def _unclear_end(self, chain: Chain) -> StoreUnavailableError:
        return StoreUnavailableError(f"it is unknown whether the segment was ended: folder={chain.folder}")

    async def _try_to_end(self, chain: Chain) -> Ending:
        """Recover a segment that is to be deleted."""
        try:
            await self._find(chain, is_recovery=True)
        except SegmentNotFoundError:
            return Ending.MISSING
        except SegmentCorruptError:
            return Ending.DAMAGED
        return Ending.ENDED

    async def _list_all(self, chain: Chain) -> AllListed:
        """The chunks of a segment."""
        found = [one async for one in self.objects.list(chain.folder)]
        sizes = {number: one.bytes for one in found if (number := number_of(chain.folder, one)) is not None}
        return AllListed(tuple(sizes), frozenset(number for number, size in sizes.items() if size == HEAD_BYTES))

    async def _seek_index(self, chain: Chain) -> IndexSought:
        index = await self.reads.index(chain)
        if index is None:
            return IndexSought(None)
        found = [one async for one in self.objects.list(chain.folder) if one.location == str(chain.index)]
        if not found:
            raise await self.missing(chain)
        age_ms = await self.objects.now_unix_ms(chain.segments) - found[0].modified_unix_ms
        return IndexSought(index.end_number, age_ms >= 1000 * self.options.merged_grace_s)

    async def _copy_chunks(self, chain: Chain, nonce: bytes, first: int, end: int) -> tuple[ChunkHead, ...]:
        """Copy chunks to a data object, one after another, each checked."""
        heads: list[ChunkHead] = []
        writing = await self.objects.create(chain.data(nonce), marker=chain.segments.parent.below(MARKER))
        try:
            for number in range(first, end):
                head, data = await self.reads.whole(chain, number)
                heads.append(head)
                await writing.write([data])
            await writing.finish()
        except BaseException:
            await writing.abort()
            raise
        return tuple(heads)

    async def _read_copy(self, chain: Chain, nonce: bytes, heads: Sequence[ChunkHead]) -> tuple[ChunkHead, ...]:
        """The heads of the chunks in a data object, all of which is checked. Raises DamagedError."""
        found: list[ChunkHead] = []
        at = 0
        for head in heads:
            size = HEAD_BYTES + head.body_bytes
            data = await self.objects.read(chain.data(nonce), at, size)
            found.append(decode_head(data))
            decode_body(found[-1], data[HEAD_BYTES:])
            at += size
        return tuple(found)

    async def _exists(self, chain: Chain) -> bool:
        try:
            await self._begin(chain)
        except SegmentNotFoundError:
            return False
        return True

    async def _delete_merged(self, chain: Chain, first: int, end: int) -> None:
        """Delete merged chunks in their order, and data objects that the index does not name."""
        index = await self.reads.index(chain)
        assert index is not None, "an index is never deleted before its segment"
        kept = {str(chain.index), str(chain.data(index.nonce))}
        found = [one async for one in self.objects.list(chain.folder)]
        numbers = [number for one in found if (number := number_of(chain.folder, one)) is not None]
        chunks = sorted(number for number in numbers if first <= number < end)
        for at in range(0, len(chunks), PAGE):
            await self.objects.delete_many([chain.place(number) for number in chunks[at : at + PAGE]])
        others = [one.location for one in found if is_merged(chain.folder, one) and one.location not in kept]
        await self.objects.delete_many([place for other in others if (place := parse_location(other)) is not None])

    async def _last_payloads(self, chain: Chain, found: TailFound) -> tuple[bytes, ...]:
        """Payloads of the last entries, if the recovery has read them."""
        start = self.cache.find((chain.name, found.next_number - 1, -1))
        if not isinstance(start, ChunkStart) or not start.is_whole or start.damaged or start.head.end != found.end:
            return ()
        first = max(start.head.first, found.end - LAST_PAYLOADS)
        if first >= found.end:
            return ()
        payloads = await self.reads.payloads(chain, start, first, found.end - 1, len(start.data))
        return tuple(map(bytes, payloads))

    async def _damaged_in(self, chain: Chain, start: ChunkStart) -> Sequence[tuple[EntryId, str]]:
        """The damaged entries of a chunk whose head and rows verify."""
        reason = "the payload's checksum does not match"
        entries = range(start.head.first, start.head.end)
        return [(EntryId(one), reason) for one in entries if not await self.reads.payloads(chain, start, one, one, 0)]


async def _once(request: Callable[[], Awaitable[T]]) -> T:
    return await request()


def tail_of(index: ChunkIndex) -> TailFound:
    """The tail of a merged segment."""
    return TailFound(index.entries, index.end_number, index.payload_bytes, True)


def wrong_root(folder: Location) -> str:
    """The message for a root without the marker of a cluster."""
    return (
        f"this cluster's objects are not at this root, mount it, or correct --objects of `dlog up`, or `root` in "
        f"[objects]: missing={folder.below(MARKER)}"
    )
