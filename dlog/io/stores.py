"""Opens segment stores by name, from configuration: the one place that knows every kind of store.

A directory of segments has an identity, and the namespace's metadata records the one that its segments are in. Else a
proxy that is started before the disk is mounted would create the directory on the disk below it. From then on every
segment on the true disk would count as deleted, since the marker of a directory of segments is there.

Invariants:
- a directory is created only while metadata records no identity;
- a recorded identity is never replaced; a directory with another one, or without any, is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Protocol

from dlog.errors import ConfigError
from dlog.events import Event
from dlog.io.disk import RealDisk
from dlog.io.file_errors import describe_error, named_errors, remedy_for
from dlog.io.kafka_settings import KafkaOptions
from dlog.io.kafka_store import open_kafka_store
from dlog.io.ledgers import Ledgers
from dlog.io.objects import Objects
from dlog.io.reserve import SpaceReserve
from dlog.io.s3_direct_store import open_s3_direct_store
from dlog.io.s3_store import S3Access, open_cluster_s3_store
from dlog.io.settings import load
from dlog.io.threads import RealThreads
from dlog.ledger.ledger_options import LedgerOptions
from dlog.stores.cold.options import ColdOptions
from dlog.stores.cold.store import ColdStore
from dlog.stores.contract import SegmentStore
from dlog.stores.file.options import FileStoreOptions
from dlog.stores.file.store import FileStore
from dlog.stores.kafka.store import KafkaStore
from dlog.stores.kinds import SCHEMAS
from dlog.stores.ledger import LedgerStore
from dlog.stores.s3.options import NAME as S3
from dlog.stores.s3_direct.options import ObjectsOptions
from dlog.stores.s3_direct.store import S3DirectStore

WRITABLE = tuple(SCHEMAS)  # stores that segments can be created on


class StoreIdentities(Protocol):
    """Identities of stores, by name, that a namespace's metadata records. Raises MetadataUnavailableError."""

    async def read_store_identity(self, store: str) -> str | None:
        """The recorded identity; None: none is."""
        ...

    async def record_store_identity(self, store: str, identity: str) -> None:
        """Record the identity, unless one is recorded."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoresOptions:
    """Sections of a configuration that belong to stores."""

    cold: ColdOptions = field(default_factory=ColdOptions)
    file: FileStoreOptions = field(default_factory=FileStoreOptions)
    kafka: KafkaOptions = field(default_factory=KafkaOptions)
    ledger: LedgerOptions = field(default_factory=LedgerOptions)
    objects: ObjectsOptions = field(default_factory=ObjectsOptions)

    def default_stores(self) -> tuple[str, ...]:
        """The stores that segments can be created on if nothing else is configured: ledgers, and those that have a
        place."""
        placed = {
            FileStore.name: bool(self.file.directory),
            KafkaStore.name: bool(self.kafka.topics),
            S3DirectStore.name: bool(self.objects.root),
            S3: bool(self.objects.root),
        }
        return tuple(name for name in WRITABLE if placed.get(name, True))


def load_stores(config_path: str | Path | None, given: Mapping[str, str] = MappingProxyType({})) -> StoresOptions:
    """Load the stores' sections from a file, the environment and `given` (by `SECTION.OPTION`). Raises ConfigError."""

    def flags(section: str) -> dict[str, str]:
        return {key.removeprefix(f"{section}."): value for key, value in given.items() if key.startswith(f"{section}.")}

    return StoresOptions(
        cold=load(ColdOptions, "cold", config_path, flags("cold")),
        file=load(FileStoreOptions, "file", config_path, flags("file")),
        kafka=load(KafkaOptions, "kafka", config_path, flags("kafka")),
        ledger=load(LedgerOptions, "ledger", config_path, flags("ledger")),
        objects=load(ObjectsOptions, "objects", config_path, flags("objects")),
    )


@asynccontextmanager
async def open_stores(
    ledgers: Ledgers,
    identities: StoreIdentities,
    options: StoresOptions,
    rng: Random,
    *,
    writable: Sequence[str] = (),
    creates: bool = False,
    s3: S3Access | None = None,
    on_event: Callable[[Event], None] = lambda _: None,
) -> AsyncIterator[Mapping[str, SegmentStore]]:
    """Stores by name, open in the scope. s3: without it that store is left out.

    writable: those that streams may be created on, the default first; none: see StoresOptions.default_stores. Cold
    storage follows them. creates: create the directory of the file store, the namespace of topics, or the folder of
    objects, if there never was one, as proxies do; to others it would show a wrong place as one whose segments are
    gone. Raises ConfigError, MetadataUnavailableError.
    """
    names = tuple(writable) or options.default_stores()
    unknown = [name for name in names if name not in WRITABLE]
    if S3 in names and S3DirectStore.name not in names:  # for what they share, and for the log where it is one
        names = (*names, S3DirectStore.name)
    if unknown:
        raise ConfigError(f"no such segment store, choose from {', '.join(WRITABLE)}: stores={','.join(names)}")
    async with AsyncExitStack() as stack:
        stores: dict[str, SegmentStore] = {}
        for name in names:
            if name == FileStore.name:
                recorded = await identities.read_store_identity(name)
                opening = open_file_store(options.file, rng, creates=creates and recorded is None, on_event=on_event)
                stores[name] = store = await stack.enter_async_context(opening)
                if creates and recorded is None:
                    await identities.record_store_identity(name, store.identity)
                    recorded = await identities.read_store_identity(name)
                if recorded not in (None, store.identity):
                    raise ConfigError(
                        "the directory of the file store is not the one with this namespace's segments, mount its disk "
                        f"or correct the path: directory={options.file.directory} recorded={recorded} "
                        f"found={store.identity[:40] or 'none'}"
                    )
            elif name == KafkaStore.name:
                opening_topics = open_kafka_store(
                    options.kafka,
                    partial(identities.read_store_identity, name),
                    partial(identities.record_store_identity, name),
                    rng,
                    creates=creates,
                    on_event=on_event,
                )
                stores[name] = await stack.enter_async_context(opening_topics)
            elif name == S3DirectStore.name:
                opening_objects = open_s3_direct_store(
                    options.objects,
                    partial(identities.read_store_identity, name),
                    partial(identities.record_store_identity, name),
                    rng,
                    creates=creates,
                    on_event=on_event,
                )
                stores[name] = direct = await stack.enter_async_context(opening_objects)
            elif name == LedgerStore.name:
                stores[name] = LedgerStore(ledgers)
                stack.push_async_callback(stores[name].close)
        if S3 in names and s3 is not None:
            opening_s3 = open_cluster_s3_store(s3, direct, stores, options.objects, rng, on_event)
            on_objects = await stack.enter_async_context(opening_s3)
            stores = {name: on_objects if name == S3 else stores[name] for name in names}
        objects = await stack.enter_async_context(Objects(options.cold))
        cold = await stack.enter_async_context(ColdStore(objects, options.cold))
        yield {**stores, cold.name: cold}


@asynccontextmanager
async def open_file_store(
    options: FileStoreOptions, rng: Random, *, creates: bool = False, on_event: Callable[[Event], None] = lambda _: None
) -> AsyncIterator[FileStore]:
    """The file store, open in the scope. creates: see `open_stores`. Raises ConfigError."""
    if not options.directory:
        raise ConfigError("the file store needs a directory: set `directory` in [file], or DLOG_FILE_DIRECTORY")
    disk = RealDisk()
    reserve = SpaceReserve(disk, options.directory, options.reserve_bytes)
    store = FileStore(disk, RealThreads(asyncio.get_running_loop()), rng, options, reserve, on_event=on_event)
    try:
        with named_errors(options.directory):
            await store.open(creates=creates)
    except OSError as error:
        raise ConfigError(
            f"cannot use the directory of the file store, {remedy_for(error)}: {describe_error(error)}"
        ) from error
    try:
        yield store
    finally:
        await store.close()
