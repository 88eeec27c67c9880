"""The ledger store keeps the contract, on three real bookies and a real ZooKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from dlog.errors import (
    ClosedError,
    ConnectionLostError,
    DLogError,
    EntryMissingError,
    EntryUnreadableError,
    LedgerFencedError,
    LedgerNotFoundError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    OverCapacityError,
    RecordTooLargeError,
    UnauthorizedError,
)
from dlog.model.ids import EntryId, Epoch, SegmentNumber
from dlog.stores.contract import (
    EntryTooLargeError,
    MisconfiguredError,
    SegmentCorruptError,
    SegmentFencedError,
    SegmentNotFoundError,
    SegmentRef,
    SegmentSealedError,
    StoreError,
    StoreTooSmallError,
    StoreUnavailableError,
)
from dlog.stores.ledger import LedgerStore, store_error
from tests.integration.cluster import BookieCluster
from tests.integration.stores.contract import STREAM, OpenStore, StoreContract


class TestLedgerStore(StoreContract):
    @pytest.fixture
    async def stores(self, bookies: BookieCluster) -> AsyncIterator[OpenStore]:
        async with AsyncExitStack() as stack:

            async def open_store() -> LedgerStore:
                ledgers = await stack.enter_async_context(bookies.ledgers())
                store = LedgerStore(ledgers, entry_bytes_max=1_000_000)
                stack.push_async_callback(store.close)
                return store

            yield open_store

    async def test_a_place_of_another_store_is_not_found(self, stores: OpenStore) -> None:
        store = await stores()
        with pytest.raises(SegmentNotFoundError):
            await store.open_reader(SegmentRef(STREAM, SegmentNumber(1), "a topic, perhaps"))

    async def test_what_was_completed_in_the_list_before_it_was_closed_is_recovered_for_its_reader(
        self, stores: OpenStore
    ) -> None:
        """Then every reader gets the same end, and none gets an entry above it."""
        store = await stores()
        writer = await store.create(STREAM, SegmentNumber(1), Epoch(1), ())
        for i in range(4):
            await writer.append(EntryId(i), (b"%d" % i,))
        ref = SegmentRef(STREAM, SegmentNumber(1), writer.name)
        reader = await (await stores()).open_reader(ref, sealed_at=EntryId(1))
        assert (reader.end, reader.last_confirmed) == (3, 3)
        assert await reader.read(EntryId(3), EntryId(3), 1) == [b"3"]
        with pytest.raises(SegmentFencedError):
            await writer.append(EntryId(4), (b"late",))
        await reader.close()


@pytest.mark.parametrize(
    "error, cls, unknown",
    [
        (LedgerFencedError("x"), SegmentFencedError, True),
        (LedgerFencedError("x", outcome_unknown=False), SegmentFencedError, False),
        (ClosedError("x"), SegmentSealedError, False),
        (ClosedError("x", outcome_unknown=True), StoreUnavailableError, True),
        (LedgerNotFoundError("x"), SegmentNotFoundError, False),
        (EntryMissingError("x"), SegmentCorruptError, False),
        (EntryUnreadableError("x"), StoreUnavailableError, False),
        (NotEnoughBookiesError("x"), StoreTooSmallError, False),
        (MetadataUnavailableError("x", outcome_unknown=True), StoreUnavailableError, True),
        (ConnectionLostError("x"), StoreUnavailableError, True),
        (OverCapacityError("x"), StoreUnavailableError, False),
        (UnauthorizedError("x"), MisconfiguredError, False),
        (RecordTooLargeError("x"), EntryTooLargeError, False),
    ],
)
def test_ledger_errors_get_their_store_names(error: DLogError, cls: type[StoreError], unknown: bool) -> None:
    named = store_error(error)
    assert type(named) is cls
    assert (named.message, named.outcome_unknown) == ("x", unknown)
