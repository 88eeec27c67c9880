"""Opens what a proxy uses: metadata in ZooKeeper, bookie connections, ledgers, segment stores by name.

Invariants:
- each part is opened once and closed in reverse order, also after an error.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from dlog.events import Event
from dlog.io.bookie_client import BookieClient, BookieClientOptions
from dlog.io.ledgers import Ledgers, LedgersOptions, resolver
from dlog.io.metadata import Metadata
from dlog.io.metadata_contact import connection_events
from dlog.io.objects import Objects
from dlog.io.settings import configured, load
from dlog.io.zookeeper_members import MemberOptions
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.stores.cold.options import ColdOptions
from dlog.stores.cold.store import ColdStore
from dlog.stores.contract import SegmentStore
from dlog.stores.ledger import LedgerStore
from proxies import serving


@dataclass(frozen=True, slots=True)
class Parts:
    """Backends of a proxy. stores: by the name that a stream's settings and segments use."""

    metadata: Metadata
    stores: Mapping[str, SegmentStore]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendLimits:
    """Limits of the backends that have no flags. cold: a configuration section, see `tuned`."""

    session_timeout_s: float = 10.0
    bookies: BookieClientOptions = field(default_factory=BookieClientOptions)
    ledgers: LedgersOptions = field(default_factory=LedgersOptions)
    members: MemberOptions = field(default_factory=MemberOptions)
    cold: ColdOptions = field(default_factory=ColdOptions)


TUNING = BackendLimits()


def tuned(config_path: str | None) -> BackendLimits:
    """A process's tuning: loads the section [cold] from file and environment, and logs it. Raises ConfigError."""
    cold = load(ColdOptions, "cold", config_path, {})
    serving.tell(configured("cold", cold, config_path))
    return replace(TUNING, cold=cold)


@asynccontextmanager
async def opened(
    options: serving.ServingOptions,
    *,
    tell: Callable[[Event], None],
    rng: random.Random,
    tuning: BackendLimits = TUNING,
) -> AsyncIterator[Parts]:
    """All backends, open in the scope. Raises MetadataUnavailableError, ConfigError."""
    async with (
        await ZooKeeperMetadata.connect(
            options.zookeeper,
            options.namespace,
            session_timeout_s=tuning.session_timeout_s,
            members=tuning.members,
            rng=rng,
        ) as metadata,
        BookieClient(resolver(metadata), rng=rng, options=tuning.bookies, on_event=tell) as bookies,
        Ledgers(metadata, bookies, rng=rng, options=tuning.ledgers, on_event=tell) as ledgers,
        Objects(tuning.cold) as objects,
        ColdStore(objects, tuning.cold) as cold,
    ):
        store = LedgerStore(ledgers)
        try:
            with connection_events(metadata, tell):
                yield Parts(metadata, {store.name: store, cold.name: cold})
        finally:
            await store.close()
