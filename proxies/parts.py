"""The parts behind a proxy: metadata on ZooKeeper, bookies, ledgers, segment stores by name.

The law of this room: each part is opened here, once, and closed here, in the reverse order, whatever happens between.
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
from dlog.io.metadata_contact import contact_told
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
    """What a proxy stands on. stores: by the name that a stream's settings and segments use."""

    metadata: Metadata
    stores: Mapping[str, SegmentStore]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Bounds of the parts that no flag tells. cold: a section of its own, see `tuned`."""

    session_timeout_s: float = 10.0
    bookies: BookieClientOptions = field(default_factory=BookieClientOptions)
    ledgers: LedgersOptions = field(default_factory=LedgersOptions)
    members: MemberOptions = field(default_factory=MemberOptions)
    cold: ColdOptions = field(default_factory=ColdOptions)


TUNING = Tuning()


def tuned(config_path: str | None) -> Tuning:
    """As a process has it: with the section [cold] of its file and environment, which is told. Raises ConfigError."""
    cold = load(ColdOptions, "cold", config_path, {})
    serving.tell(configured("cold", cold, config_path))
    return replace(TUNING, cold=cold)


@asynccontextmanager
async def opened(
    options: serving.ServingOptions, *, tell: Callable[[Event], None], rng: random.Random, tuning: Tuning = TUNING
) -> AsyncIterator[Parts]:
    """All parts, open while the scope lasts. Raises MetadataUnavailableError, ConfigError."""
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
            with contact_told(metadata, tell):
                yield Parts(metadata, {store.name: store, cold.name: cold})
        finally:
            await store.close()
