"""Appends to one segment: drives the state machine ChainWriter of dlog/objects/chain.py.

Invariants:
- The bytes of a chunk are made once; every request to create it sends them.
- Sinks are called in entry order, once the chunks up to theirs exist.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from dlog.model.ids import NO_ENTRY, EntryId
from dlog.objects.chain import (
    Begun,
    ChainWriter,
    ChunkPut,
    Confirmed,
    CreateChunk,
    EntryAppended,
    Fenced,
    GivenUp,
    LingerOver,
    Put,
    SealAsked,
    Sealed,
    WriterEffect,
)
from dlog.options import KiB
from dlog.stores.contract import (
    AppendSink,
    Buffer,
    SegmentFencedError,
    SegmentSealedError,
    StoreError,
    StoreUnavailableError,
    append_refusal,
    copy_error,
    settle,
)
from dlog.stores.s3_direct.chunks import Chain, Description
from dlog.wire.chunk import ChunkKind, encode_chunk

if TYPE_CHECKING:
    from dlog.stores.s3_direct.store import S3DirectStore

THREAD_BYTES = 256 * KiB  # from here on checksums are computed in a thread


class S3DirectWriter:
    """A SegmentWriter. An entry that is too large is refused; the writer goes on."""

    def __init__(self, store: S3DirectStore, chain: Chain, description: Description, nonce: bytes) -> None:
        self.name = chain.name
        self._store = store
        self._chain = chain
        self._description = description
        self._nonce = nonce
        self._machine = ChainWriter(store.options.chunk_bytes_max)
        self._payloads: deque[Buffer] = deque()  # of the entries that are not in a chunk yet
        self._bytes_cut = 0  # of all entries in chunks
        self._sinks: deque[AppendSink] = deque()
        self._lac = NO_ENTRY
        self._linger: asyncio.TimerHandle | None = None
        self._creating: dict[asyncio.Future[Put], None] = {}
        self._effects: deque[WriterEffect] = deque()  # to be performed
        self._performs = False
        self._error: StoreError | None = None
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._seal: asyncio.Future[EntryId] | None = None

    @property
    def last_confirmed(self) -> EntryId:
        return self._lac

    async def begin(self) -> None:
        """Create the first chunk. Raises StoreUnavailableError, MisconfiguredError; then the writer has ended."""
        self._machine, effects = self._machine.begin()
        self._perform(effects)
        try:
            await asyncio.wait((self._begun,))
        except asyncio.CancelledError:
            await self.abandon()
            raise
        self._begun.result()

    def append(self, entry_id: EntryId, payload: Sequence[Buffer]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.submit(entry_id, payload, partial(settle, future))
        return future

    def submit(self, entry_id: EntryId, payload: Sequence[Buffer], sink: AppendSink) -> None:
        size = sum(map(len, payload))
        limit = self._store.capabilities.entry_bytes_max
        refusal = append_refusal(self.name, size, limit, self._error, is_sealed=self._seal is not None)
        if refusal is not None:
            sink(refusal)
            return
        assert entry_id == self._machine.appended, f"entry ids are dense: next={self._machine.appended} got={entry_id}"
        self._payloads.append(payload[0] if len(payload) == 1 else b"".join(payload))
        self._sinks.append(sink)
        self._handle(EntryAppended(size))

    async def seal(self) -> EntryId:
        """See SegmentWriter.seal. Cancelling stops the wait only."""
        if self._seal is None:
            if self._error is not None:
                raise copy_error(self._error)
            self._seal = asyncio.get_running_loop().create_future()
            self._handle(SealAsked())
        await asyncio.wait((self._seal,))
        return self._seal.result()

    async def abandon(self) -> None:
        self._fail(StoreUnavailableError(f"the writer was abandoned: location={self.name}", outcome_unknown=True))

    # ---- internal ---------------------------------------------------------------------------------------------------

    def _handle(self, fact: EntryAppended | LingerOver | SealAsked | ChunkPut) -> None:
        if self._error is None:
            self._machine, effects = self._machine.after(fact)
            self._perform(effects)

    def _perform(self, effects: Sequence[WriterEffect]) -> None:
        """Perform effects in the order in which the machine returned them: a sink may append the next entry."""
        self._effects.extend(effects)
        if self._performs:
            return
        self._performs = True
        while self._effects and self._error is None:
            self._perform_one(self._effects.popleft())
        self._performs = False
        if self._payloads and self._linger is None and self._error is None:
            self._linger_for(self._store.options.linger_s)

    def _perform_one(self, effect: WriterEffect) -> None:
        match effect:
            case CreateChunk():
                self._create(effect)
            case Begun():
                self._begun.set_result(None)
            case Confirmed(end):
                self._confirm(end)
            case Sealed(end):
                assert self._seal is not None
                self._seal.set_result(EntryId(end - 1))
                self._store.ended(self._description.stream, self.name)
                self._fail(SegmentSealedError(f"the segment is sealed: location={self.name}"))
            case Fenced():
                self._fail(SegmentFencedError(f"another process recovered the segment: location={self.name}"))
            case GivenUp():
                message = f"it is unknown whether an object was created: folder={self._chain.folder}"
                self._fail(StoreUnavailableError(message, outcome_unknown=True))

    def _create(self, effect: CreateChunk) -> None:
        number, kind = effect.number, effect.kind
        payloads: list[Buffer] = [self._payloads.popleft() for _ in range(effect.end - effect.first)]
        size = sum(map(len, payloads))
        if kind is ChunkKind.BEGIN:
            payloads = [self._description.encode()]
        encode = partial(
            encode_chunk,
            kind,
            payloads,
            nonce=self._nonce,
            segment=self._chain.segment,
            number=number,
            epoch=self._description.epoch,
            contiguous=effect.contiguous,
            first=effect.first,
            bytes_before=self._bytes_cut,
        )
        self._bytes_cut += size
        self._stop_linger()
        put = partial(self._put, number, encode, is_large=size >= THREAD_BYTES, waits=kind is ChunkKind.DATA)
        creating = self._store.cache.start(put, f"chunk {number} of {self.name}")
        self._creating[creating] = None
        creating.add_done_callback(partial(self._created, number))

    async def _put(self, number: int, encode: partial[list[Buffer]], *, is_large: bool, waits: bool) -> Put:
        parts = await asyncio.to_thread(encode) if is_large else encode()
        return await self._store.create_chunk(self._chain, number, parts, waits=waits)

    def _created(self, number: int, creating: asyncio.Future[Put]) -> None:
        self._creating.pop(creating, None)
        if creating.cancelled() or self._error is not None:
            return
        error = creating.exception()
        if error is None:
            self._handle(ChunkPut(number, creating.result()))
        elif isinstance(error, StoreError):
            self._fail(copy_error(error, outcome_unknown=True))
        else:
            self._fail(StoreUnavailableError(f"{error!r}: location={self.name}", outcome_unknown=True))

    def _confirm(self, end: int) -> None:
        count = end - 1 - self._lac
        sinks = [self._sinks.popleft() for _ in range(count)]
        self._lac = EntryId(end - 1)
        for sink in sinks:
            sink(None)
        self._store.confirmed(self.name, self._lac)

    def _linger_for(self, delay_s: float) -> None:
        self._linger = asyncio.get_running_loop().call_later(delay_s, self._linger_over)

    def _linger_over(self) -> None:
        """Cut a chunk, unless the budget does not allow one now: a larger one is cut later instead."""
        self._linger = None
        if (delay_s := self._store.budget.delay_s) > 0:
            self._linger_for(delay_s)
        else:
            self._handle(LingerOver())

    def _stop_linger(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def _fail(self, error: StoreError) -> None:
        """End the writer. Every append that has no answer fails, and may be in the segment."""
        if self._error is not None:
            return
        self._error = error
        self._stop_linger()
        self._payloads.clear()
        sinks = tuple(self._sinks)
        self._sinks.clear()
        for creating in tuple(self._creating):
            creating.cancel()
        for sink in sinks:
            sink(copy_error(error))
        for waiting in (self._begun, self._seal):
            if waiting is not None and not waiting.done():
                waiting.set_exception(copy_error(error))
                waiting.exception()
        self._store.writer_ended(self)
