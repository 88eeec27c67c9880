"""Opens what a proxy uses: metadata in ZooKeeper, bookie connections, ledgers, segment stores by name.

Invariants:
- each part is opened once and closed in reverse order, also after an error.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from dlog.client.operation_sender import operation_sender
from dlog.events import Event
from dlog.io.bookie_client import BookieClient, BookieClientOptions
from dlog.io.ledgers import Ledgers, LedgersOptions, resolver
from dlog.io.metadata_contact import connection_events
from dlog.io.s3_store import JoinController, S3Access
from dlog.io.settings import configured
from dlog.io.stores import StoresOptions, load_stores, open_stores
from dlog.io.zookeeper_members import MemberOptions
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.model.location import DEFAULT_LOCATION, NetworkLocation
from dlog.model.object_streams import NodeId
from dlog.stores.contract import SegmentStore
from proxies import serving
from proxies.streams import ProxyMetadata


@dataclass(frozen=True, slots=True)
class Parts:
    """Backends of a proxy. stores: by the name that a stream's settings and segments use, the default first."""

    metadata: ProxyMetadata
    stores: Mapping[str, SegmentStore]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendLimits:
    """Limits of the backends that have no flags. stores: configuration sections, see `tuned`."""

    session_timeout_s: float = 10.0
    bookies: BookieClientOptions = field(default_factory=BookieClientOptions)
    ledgers: LedgersOptions = field(default_factory=LedgersOptions)
    members: MemberOptions = field(default_factory=MemberOptions)
    stores: StoresOptions = field(default_factory=StoresOptions)


TUNING = BackendLimits()


def tuned(config_path: str | None) -> BackendLimits:
    """A process's tuning: loads the stores' sections from file and environment, and logs them. Raises ConfigError."""
    stores = load_stores(config_path)
    serving.report_event(configured("cold", stores.cold, config_path))
    serving.report_event(configured("file", stores.file, config_path))
    serving.report_event(configured("kafka", stores.kafka, config_path))
    serving.report_event(configured("ledger", stores.ledger, config_path))
    serving.report_event(configured("objects", stores.objects, config_path))
    return replace(TUNING, stores=stores, ledgers=TUNING.ledgers.configured(stores.ledger))


def location_of(tuning: BackendLimits) -> NetworkLocation:
    """Where a proxy stands, by its section [ledger]."""
    return tuning.ledgers.placement.location or DEFAULT_LOCATION


@asynccontextmanager
async def opened(
    options: serving.ServingOptions,
    *,
    on_event: Callable[[Event], None],
    rng: random.Random,
    tuning: BackendLimits = TUNING,
    join: JoinController | None = None,
    node: NodeId | None = None,
) -> AsyncIterator[Parts]:
    """Connect a proxy to ZooKeeper and open its bookie client and segment stores; the scope closes them.

    join, node: of the store `s3`, see dlog/io/s3_store.py; without join the proxy asks other proxies.

    Raises MetadataUnavailableError, ConfigError.
    """
    async with (
        await ZooKeeperMetadata.connect(
            options.zookeeper,
            options.namespace,
            session_timeout_s=tuning.session_timeout_s,
            members=tuning.members,
            rng=rng,
        ) as metadata,
        BookieClient(
            resolver(metadata), rng=rng, options=tuning.bookies.configured(tuning.stores.ledger), on_event=on_event
        ) as bookies,
        Ledgers(metadata, bookies, rng=rng, options=tuning.ledgers, on_event=on_event) as ledgers,
        open_stores(
            ledgers,
            metadata,
            tuning.stores,
            rng,
            writable=options.stores,
            creates=True,
            s3=S3Access(metadata, join or (lambda *_: operation_sender(metadata, rng)), node, metadata),
            on_event=on_event,
        ) as stores,
    ):
        with connection_events(metadata, on_event):
            yield Parts(metadata, stores)
