"""Writes one segment: a table of a region that this process owns. Entry e is sequence e + 1."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dlog.errors import DLogError
from dlog.model.ids import NO_ENTRY, EntryId
from dlog.region.items import RECORD_OVERHEAD_BYTES
from dlog.region.messages import EndTable, WriteEntries
from dlog.stores.contract import (
    AppendSink,
    Buffer,
    SegmentSealedError,
    StoreError,
    StoreUnavailableError,
    append_refusal,
    copy_error,
    settle,
)
from dlog.stores.kafka.errors import writer_error
from dlog.stores.kafka.locations import TableLocation
from dlog.stores.kafka.owned import OwnedRegion


class KafkaSegmentWriter:
    """A SegmentWriter. on_confirmed: called with each new LAC. on_ended: called once."""

    def __init__(
        self,
        region: OwnedRegion,
        location: TableLocation,
        *,
        entry_bytes_max: int,
        on_confirmed: Callable[[str, EntryId], None],
        on_ended: Callable[[KafkaSegmentWriter], None],
    ) -> None:
        self.name = str(location)
        self.region = region
        self._table = location.table
        self._entry_bytes_max = entry_bytes_max
        self._on_confirmed = on_confirmed
        self._on_ended = on_ended
        self._next = 0
        self._lac = NO_ENTRY
        self._sinks: deque[AppendSink] = deque()
        self._error: StoreError | None = None
        self._seal: asyncio.Future[EntryId] | None = None

    @property
    def last_confirmed(self) -> EntryId:
        return self._lac

    def append(self, entry_id: EntryId, payload: Sequence[Buffer]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.submit(entry_id, payload, partial(settle, future))
        return future

    def submit(self, entry_id: EntryId, payload: Sequence[Buffer], sink: AppendSink) -> None:
        size = sum(map(len, payload))
        is_sealed = self._seal is not None
        refusal = append_refusal(self.name, size, self._entry_bytes_max, self._error, is_sealed=is_sealed)
        if refusal is not None:
            sink(refusal)
        else:
            assert entry_id == self._next, f"entry ids are dense: expected={self._next} got={entry_id}"
            self._next += 1
            self._sinks.append(sink)
            request = WriteEntries(((self._table, b"".join(payload)),), self._next)
            self._ask(request, RECORD_OVERHEAD_BYTES + size, self._appended)

    async def seal(self) -> EntryId:
        """See SegmentWriter.seal. Cancelling stops the wait only."""
        if self._seal is None:
            if self._error is not None:
                raise copy_error(self._error)
            self._seal = asyncio.get_running_loop().create_future()
            self._ask(EndTable(self._table), 0, self._ended)
        await asyncio.wait((self._seal,))
        return self._seal.result()

    async def abandon(self) -> None:
        self._fail(StoreUnavailableError(f"the writer was abandoned: location={self.name}", outcome_unknown=True))

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _ask(self, request: Any, size: int, sink: Callable[[Any], None]) -> None:
        try:
            self.region.submit(request, size, sink)
        except DLogError as error:
            self._fail(writer_error(error, self.name))

    def _appended(self, result: Any) -> None:
        if self._error is not None:
            return  # it has its answer
        if isinstance(result, DLogError):
            self._fail(writer_error(result, self.name))
            return
        assert result == (self._lac + 2,), f"entry e is sequence e + 1: lac={self._lac} sequences={result}"
        self._lac = EntryId(self._lac + 1)
        self._sinks.popleft()(None)
        self._on_confirmed(self.name, self._lac)

    def _ended(self, result: Any) -> None:
        if self._error is not None:
            return
        if isinstance(result, DLogError):
            self._fail(writer_error(result, self.name))
            return
        assert self._seal is not None, "it was asked for"
        self._seal.set_result(EntryId(result - 1))
        self._fail(SegmentSealedError(f"the segment is sealed: location={self.name}"))

    def _fail(self, error: StoreError) -> None:
        """End the writer. Every append that has no answer fails, and may be in the segment."""
        if self._error is not None:
            return
        self._error = error
        sinks, self._sinks = self._sinks, deque()
        for sink in sinks:
            sink(copy_error(error))
        if self._seal is not None and not self._seal.done():
            self._seal.set_exception(copy_error(error))
            self._seal.exception()
        self._on_ended(self)
