"""The parts behind a proxy: metadata on ZooKeeper, bookies, ledgers, segment stores by name.

The law of this room: each part is opened here, once, and closed here, in the reverse order, whatever happens between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from dlog.io.bookie_client import BookieClient
from dlog.io.ledgers import Ledgers, resolver
from dlog.io.metadata import Metadata
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.stores.contract import SegmentStore
from dlog.stores.ledger import LedgerStore
from proxies import serving


@dataclass(frozen=True, slots=True)
class Parts:
    """What a proxy stands on. stores: by the name that a stream's settings and segments use."""

    metadata: Metadata
    stores: Mapping[str, SegmentStore]


@asynccontextmanager
async def opened(options: serving.ServingOptions) -> AsyncIterator[Parts]:
    """All parts, open while the scope lasts. Raises MetadataUnavailableError, ConfigError."""
    rng = serving.seeded()
    async with (
        await ZooKeeperMetadata.connect(options.zookeeper, options.namespace, rng=rng) as metadata,
        BookieClient(resolver(metadata), rng=rng, on_event=serving.tell) as bookies,
        Ledgers(metadata, bookies, rng=rng, on_event=serving.tell) as ledgers,
    ):
        store = LedgerStore(ledgers)
        try:
            yield Parts(metadata, {store.name: store})
        finally:
            await store.close()
