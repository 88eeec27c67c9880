"""A segment store on ledgers: one ledger per segment; the segment's location is the ledger id in decimal.

Entry e of the segment is entry e of the ledger. dlog/ledger does fencing, closing and replication; this module only
maps its errors to those of the store contract. An entry readable on a bookie may still be dropped by recovery, so
visible entries are not final, and the log writes control records.

`Ledgers` is the interface of the ledger client, implemented by dlog/io/ledgers.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Protocol

from dlog.errors import (
    ClosedError,
    DamagedError,
    DLogError,
    FencedError,
    InvalidRequestError,
    LedgerNotFoundError,
    NotEnoughBookiesError,
    RecordTooLargeError,
    UnauthorizedError,
)
from dlog.model.ids import EntryId, Epoch, LedgerId, SegmentNumber, StreamName
from dlog.model.ledger import LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.model.segment import LEDGER, StoreSettings
from dlog.model.verification import BadRange, Verified
from dlog.options import MiB
from dlog.stores.contract import (
    STAGE,
    AppendSink,
    Buffer,
    Capabilities,
    EntryTooLargeError,
    MisconfiguredError,
    ReaderClosedError,
    RecoveredSegment,
    SegmentCorruptError,
    SegmentFencedError,
    SegmentNotFoundError,
    SegmentRef,
    SegmentSealedError,
    SegmentStat,
    StoreError,
    StoreTooSmallError,
    StoreUnavailableError,
    Verification,
    append_refusal,
    settle,
)
from dlog.stores.settings import SettingsSchema, WholeNumber

ENTRY_BYTES_MAX = 4 * MiB  # a bookie's frame holds 5 MiB

_STREAM, _NUMBER, _EPOCH = "dlog.stream", "dlog.segment", "dlog.epoch"  # custom metadata of the ledger, for tools


def _quorum(settings: Mapping[str, int]) -> Quorum:
    """Raises InvalidRequestError if the sizes contradict each other."""
    quorum = Quorum(ensemble=settings["ensemble"], write=settings["write_quorum"], ack=settings["ack_quorum"])
    if settings["min_regions"] > quorum.write:
        raise InvalidRequestError(
            "an entry cannot lie in more regions than it has copies, choose a larger write quorum or fewer regions: "
            f"min_regions={settings['min_regions']} write={quorum.write}"
        )
    return quorum


_DEFAULT = Quorum()
LEDGER_SETTINGS = SettingsSchema(
    LEDGER,
    {
        "ensemble": WholeNumber(_DEFAULT.ensemble),
        "write_quorum": WholeNumber(_DEFAULT.write),
        "ack_quorum": WholeNumber(_DEFAULT.ack),
        "min_regions": WholeNumber(1),
    },
    _quorum,
)


class LedgerWriting(Protocol):
    """The only writer of a ledger."""

    @property
    def ledger_id(self) -> LedgerId: ...

    @property
    def lac(self) -> EntryId: ...

    def submit(self, parts: tuple[Buffer, ...], sink: Callable[[Any], None]) -> None:
        """Add an entry; `sink` gets its EntryId or a DLogError, in order. Raises if it is not accepted."""
        ...

    async def close(self) -> EntryId:
        """Close the ledger after all submitted entries; return the last one. Idempotent."""
        ...

    async def abandon(self) -> None: ...


class LedgerReading(Protocol):
    """A reader of one ledger that does not disturb its writer."""

    @property
    def lac(self) -> EntryId: ...

    @property
    def end(self) -> EntryId | None: ...

    async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]: ...
    async def read_views(self, first: EntryId, last: EntryId, max_bytes: int) -> list[Buffer]: ...

    async def wait_lac(self, known: EntryId, timeout_s: float) -> EntryId: ...

    def learn_lac(self, lac: EntryId) -> None: ...

    async def close(self) -> None: ...


class LedgerEnd(Protocol):
    """Result of a recovery."""

    @property
    def last_entry(self) -> EntryId: ...

    @property
    def last_payloads(self) -> tuple[bytes, ...]:
        """See RecoveredSegment."""
        ...


class Ledgers(Protocol):
    """What this store needs of a ledger client. Raises errors of dlog/errors.py."""

    def known_bookies(self) -> int:
        """The number of bookies that are registered, writable or read-only, as far as this client knows."""
        ...

    def placement_refusal(self, quorum: Quorum, min_regions: int = 1) -> str:
        """Why the registered bookies cannot keep a strict placement policy; empty: they can, or none is configured.
        min_regions: as for `create`."""
        ...

    async def create(
        self,
        quorum: Quorum,
        *,
        ensemble_min: int | None = None,
        custom: tuple[tuple[str, bytes], ...] = (),
        min_regions: int = 1,
    ) -> LedgerWriting:
        """Create a ledger on `quorum.ensemble` bookies, or on as many as are writable, if at least ensemble_min.
        min_regions: regions that must hold an entry before it is confirmed."""
        ...

    async def open(self, ledger: LedgerId, *, last_entry: EntryId | None = None) -> LedgerReading:
        """Open without recovery. last_entry: of a closed ledger, if known."""
        ...

    async def recover(self, ledger: LedgerId) -> LedgerEnd:
        """Fence and close the ledger."""
        ...

    async def metadata_of(self, ledger: LedgerId) -> LedgerMetadata: ...

    async def find_tail(self, ledger: LedgerId) -> EntryId:
        """Return a tail that covers every entry confirmed before and that every recovery keeps. Does not fence."""
        ...

    async def delete(self, ledger: LedgerId) -> None: ...

    def list(self) -> AsyncIterator[LedgerId]: ...

    async def verify(self, ledger: LedgerId) -> Verified: ...


class LedgerStore:
    """A SegmentStore on ledgers. It does not close the ledger client."""

    name = LEDGER
    settings = LEDGER_SETTINGS

    def __init__(self, ledgers: Ledgers, *, entry_bytes_max: int = ENTRY_BYTES_MAX) -> None:
        self.capabilities = Capabilities(
            visible_is_final=False, entry_bytes_max=entry_bytes_max, has_foreign_writers=True
        )
        self._ledgers = ledgers
        self._writers: dict[LedgerSegmentWriter, None] = {}  # in order of creation
        self._on_end = self._forget  # one bound method for all writers

    def check_capacity(self, settings: StoreSettings) -> None:
        """Raises InvalidRequestError if the ensemble has more members than there are bookies, or they cannot keep a
        strict placement policy: the first write would fail."""
        named = dict(self.settings.complete(dict(settings)))
        quorum = _quorum(named)
        ensemble, bookies = quorum.ensemble, self._ledgers.known_bookies()
        if ensemble > bookies:
            raise InvalidRequestError(
                "not enough bookies for the ensemble, start more or choose a smaller ensemble: "
                f"ensemble={ensemble} bookies={bookies}"
            )
        if refusal := self._ledgers.placement_refusal(quorum, named["min_regions"]):
            raise InvalidRequestError(refusal)

    async def create(
        self, stream: StreamName, number: SegmentNumber, epoch: Epoch, settings: StoreSettings
    ) -> LedgerSegmentWriter:
        named = dict(self.settings.complete(dict(settings)))
        quorum, min_regions = _quorum(named), named["min_regions"]
        custom = ((_STREAM, stream.encode()), _numbered(_NUMBER, number), _numbered(_EPOCH, epoch))
        with _store_errors():
            ledger = await self._ledgers.create(
                quorum, ensemble_min=quorum.write, custom=custom, min_regions=min_regions
            )
        writer = LedgerSegmentWriter(ledger, self.capabilities.entry_bytes_max, self._on_end)
        self._writers[writer] = None
        return writer

    async def recover(self, ref: SegmentRef) -> RecoveredSegment:
        with _store_errors():
            end = await self._ledgers.recover(_ledger_of(ref))
        return RecoveredSegment(end.last_entry, end.last_payloads)

    async def open_reader(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> LedgerSegmentReader:
        ledger = _ledger_of(ref)
        with _reading_errors():
            reader = await self._ledgers.open(ledger)
            if sealed_at is not None and reader.end is None:
                await reader.close()
                await self._ledgers.recover(ledger)  # completed in the list: no writer may append
                reader = await self._ledgers.open(ledger)
            return LedgerSegmentReader(reader)

    async def stat(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> SegmentStat:
        ledger = _ledger_of(ref)
        with _store_errors():
            metadata = await self._ledgers.metadata_of(ledger)
            if not metadata.is_closed and sealed_at is not None:
                await self._ledgers.recover(ledger)  # completed in the list: no writer may append
                metadata = await self._ledgers.metadata_of(ledger)
        return SegmentStat(metadata.last_entry, metadata.length) if metadata.is_closed else SegmentStat()

    async def stage_of(self, name: str) -> StreamName | None:
        with _store_errors():
            metadata = await self._ledgers.metadata_of(_ledger_of(SegmentRef(StreamName(""), STAGE, name)))
        custom = dict(metadata.custom)
        if custom.get(_NUMBER) != b"%d" % STAGE:
            return None
        return StreamName(custom.get(_STREAM, b"").decode(errors="replace"))

    async def find_tail(self, ref: SegmentRef) -> EntryId:
        with _store_errors():
            return await self._ledgers.find_tail(_ledger_of(ref))

    async def delete(self, ref: SegmentRef) -> None:
        """Delete the ledger's metadata. Bookies notice it and free the space."""
        with _store_errors():
            await self._ledgers.delete(_ledger_of(ref))

    async def list(self) -> AsyncIterator[str]:
        with _store_errors():
            async for ledger in self._ledgers.list():
                yield str(ledger)

    async def verify(self, ref: SegmentRef) -> Verification:
        with _store_errors():
            verified = await self._ledgers.verify(_ledger_of(ref))
        return Verification(verified.entries, tuple(_damage(bad) for bad in verified.ranges if bad.kind == "damaged"))

    async def close(self) -> None:
        """Abandon every open writer."""
        for writer in list(self._writers):
            await writer.abandon()

    def _forget(self, writer: LedgerSegmentWriter) -> None:
        self._writers.pop(writer, None)


class LedgerSegmentWriter:
    """A SegmentWriter on a ledger writer. An entry that is too large is refused; the writer goes on."""

    __slots__ = ("_abandoned", "_entry_bytes_max", "_ledger", "_on_end", "_submitted", "name")

    def __init__(
        self, ledger: LedgerWriting, entry_bytes_max: int, on_end: Callable[[LedgerSegmentWriter], None]
    ) -> None:
        self.name = str(ledger.ledger_id)
        self._ledger = ledger
        self._entry_bytes_max = entry_bytes_max
        self._on_end = on_end
        self._submitted = 0
        self._abandoned = False

    @property
    def last_confirmed(self) -> EntryId:
        return self._ledger.lac

    def append(self, entry_id: EntryId, payload: Sequence[Buffer]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.submit(entry_id, payload, partial(settle, future))
        return future

    def submit(self, entry_id: EntryId, payload: Sequence[Buffer], sink: AppendSink) -> None:
        size = sum(map(len, payload))
        refusal = append_refusal(
            self.name, size, self._entry_bytes_max, None, is_sealed=False
        )  # the ledger reports the rest
        if refusal is not None:
            sink(refusal)
            return
        if self._abandoned:
            sink(StoreUnavailableError(f"the writer was abandoned, reopen the segment: location={self.name}"))
            return
        try:
            self._ledger.submit(tuple(payload), partial(_pass_result, entry_id, sink))
        except DLogError as error:
            sink(store_error(error))
            return
        assert entry_id == self._submitted, f"entry ids are dense: expected={self._submitted} got={entry_id}"
        self._submitted += 1

    async def seal(self) -> EntryId:
        """Close the ledger after all submitted entries."""
        with _store_errors():
            end = await self._ledger.close()
        self._on_end(self)
        return end

    async def abandon(self) -> None:
        self._abandoned = True
        await self._ledger.abandon()
        self._on_end(self)


class LedgerSegmentReader:
    """A SegmentReader on a ledger reader."""

    def __init__(self, ledger: LedgerReading) -> None:
        self._ledger = ledger

    @property
    def last_confirmed(self) -> EntryId:
        return self._ledger.lac

    @property
    def end(self) -> EntryId | None:
        return self._ledger.end

    async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
        with _reading_errors():
            return await self._ledger.read(first, last, max_bytes)

    async def read_views(self, first: EntryId, last: EntryId, max_bytes: int) -> list[Buffer]:
        with _reading_errors():
            return await self._ledger.read_views(first, last, max_bytes)

    async def locate(self, first: EntryId, last: EntryId, least: int, *, by_time: bool) -> tuple[EntryId, EntryId]:
        """Narrow nothing: there is no index of txids and times."""
        return first, last

    async def wait_lac(self, known: EntryId, timeout_s: float) -> EntryId:
        with _reading_errors():
            return await self._ledger.wait_lac(known, timeout_s)

    def learn_lac(self, lac: EntryId) -> None:
        self._ledger.learn_lac(lac)

    async def close(self) -> None:
        await self._ledger.close()


def store_error(error: DLogError) -> StoreError:
    """Map a ledger error to a store error, with the same message and `outcome_unknown`."""
    cls: type[StoreError] = StoreUnavailableError
    match error:
        case StoreError():
            return error
        case FencedError():
            cls = SegmentFencedError
        case LedgerNotFoundError():
            cls = SegmentNotFoundError
        case ClosedError() if not error.outcome_unknown:
            cls = SegmentSealedError
        case DamagedError():
            cls = SegmentCorruptError
        case NotEnoughBookiesError():
            cls = StoreTooSmallError
        case RecordTooLargeError():
            cls = EntryTooLargeError
        case UnauthorizedError() | InvalidRequestError():
            cls = MisconfiguredError
    return cls(error.message, outcome_unknown=error.outcome_unknown)


def _ledger_of(ref: SegmentRef) -> LedgerId:
    if not ref.name.isdigit():
        raise SegmentNotFoundError(f"not a ledger id, so no segment of this store: location={ref.name}")
    return LedgerId(int(ref.name))


def _damage(bad: BadRange) -> tuple[EntryId, str]:
    """The first entry of a range, with the reason for the range."""
    until = "" if bad.last == bad.first else f"up to entry {bad.last}: "
    return bad.first, f"{until}{bad.bookie}: {bad.why}"


@lru_cache(maxsize=1024)
def _numbered(key: str, number: int) -> tuple[str, bytes]:
    """Cached, since most segments of a cluster have low numbers and epochs."""
    return key, b"%d" % number


def _pass_result(expected: EntryId, sink: AppendSink, result: Any) -> None:
    """Pass the result of an add to the sink."""
    if isinstance(result, DLogError):
        sink(store_error(result))
        return
    assert result == expected, f"the ledger assigns the same entry ids: expected={expected} got={result}"
    sink(None)


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except DLogError as error:
        raise store_error(error) from error


@contextmanager
def _reading_errors() -> Iterator[None]:
    """Report a closed or broken reader as ReaderClosedError, since that says nothing about the segment."""
    try:
        with _store_errors():
            yield
    except SegmentSealedError as error:
        raise ReaderClosedError(error.message) from error
