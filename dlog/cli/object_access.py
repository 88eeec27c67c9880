"""Opens the objects of a cluster and their metadata for a command, which needs no proxy: it reads the metadata stream
itself, and asks the controller for the newest state only where there is one."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlog.cli.discovery import Cluster
from dlog.cli.output import CommandError, note
from dlog.errors import StreamNotFoundError
from dlog.machine import Missing, Versioned
from dlog.model.ids import METADATA_STREAM, StreamName
from dlog.model.segment import StreamKey, StreamMetadata
from dlog.objects.image import Image
from dlog.stores.contract import StoreUnavailableError
from dlog.stores.object_storage.locations import Location

if TYPE_CHECKING:
    from dlog.io.zookeeper_metadata import ZooKeeperMetadata
    from dlog.stores.s3.store import S3Store
    from dlog.stores.s3_direct.store import S3DirectStore

FRESH_S = 10.0  # for the controller to answer


@dataclass(frozen=True, slots=True)
class ObjectAccess:
    """What a command uses. has_metadata: there is a metadata stream; else no stream has ever been in the store `s3`."""

    metadata: ZooKeeperMetadata
    direct: S3DirectStore
    store: S3Store
    has_metadata: bool
    has_proxies: bool

    async def image(self) -> Image:
        """The metadata as the metadata stream has them; an image that goes on. Raises StoreError."""
        return await self.store.metadata.read() if self.has_metadata else Image()

    async def fresh(self) -> Image:
        """As `newest`; if no controller answers, as `image`, with a note that says why. Raises StoreError."""
        try:
            return await self.newest()
        except StoreUnavailableError as error:
            image = await self.image()
            shown = f"this is what the metadata stream shows, which may lag (version {image.version})"
            note(f"{shown}: {error.message}")
            return image

    async def newest(self) -> Image:
        """As `image`, with everything that was recorded before this call. Raises StoreError: StoreUnavailableError if
        no controller answers, with the controller's refusal as its cause."""
        if not self.has_metadata:
            return Image()
        if not self.has_proxies:
            raise StoreUnavailableError("no controller answers: no write proxy runs")
        try:
            async with asyncio.timeout(FRESH_S):
                return await self.store.metadata.fresh()
        except TimeoutError:
            raise StoreUnavailableError(f"no controller answers within {FRESH_S:g} s") from None

    async def root(self) -> Location:
        """Where objects of the store `s3` are, below the names of incarnations. Raises StoreError."""
        from dlog.io.s3_store import FOLDER

        return (await self.direct.cluster_folder(creates=False)).below(FOLDER)

    async def folder(self) -> str:
        """The name of this incarnation of the metadata stream; empty without one."""
        if not self.has_metadata:
            return ""
        await self.image()
        port: Any = self.store.metadata.port
        folder: str = port.folder
        return folder

    async def has_objects(self) -> bool:
        """Whether anything of this cluster was ever put below the root. Raises StoreError."""
        from dlog.stores.s3_direct.store import NoSegmentsYetError

        try:
            await self.direct.cluster_folder(creates=False)
        except NoSegmentsYetError:
            return False
        return True

    async def stream(self, name: StreamName) -> StreamMetadata:
        """A stream's metadata. Raises StreamNotFoundError, StoreUnavailableError."""
        outcome = await self.metadata.read(StreamKey(name))
        match outcome:
            case Versioned(value):
                found: StreamMetadata = value
                return found
            case Missing():
                raise StreamNotFoundError(f"no such stream: stream={name}")
        raise StoreUnavailableError(f"metadata cannot be read now: {outcome}")


@asynccontextmanager
async def open_objects(cluster: Cluster) -> AsyncIterator[ObjectAccess]:
    """The objects of a cluster, and their metadata, open in the scope. Raises CommandError, ConfigError,
    MetadataUnavailableError."""
    from dlog.client.operation_sender import operation_sender
    from dlog.io.bookie_client import BookieClient, BookieClientOptions
    from dlog.io.ledgers import Ledgers, LedgersOptions, resolver
    from dlog.io.s3_store import S3Access
    from dlog.io.stores import open_stores
    from dlog.io.zookeeper_metadata import ZooKeeperMetadata
    from dlog.stores.s3.store import S3Store
    from dlog.stores.s3_direct.store import S3DirectStore

    options = cluster.stores()
    if not options.objects.root:
        raise CommandError(
            "it is not known where this cluster's objects are", "set DLOG_OBJECTS_ROOT to the root of the objects"
        )
    rng = random.Random(os.urandom(8))
    names = ["ledger", *(["file"] if options.file.directory else []), "s3-direct", "s3"]
    async with (
        await ZooKeeperMetadata.connect(cluster.zookeeper, cluster.namespace, rng=rng) as metadata,
        BookieClient(resolver(metadata), rng=rng, options=BookieClientOptions().configured(options.ledger)) as bookies,
        Ledgers(metadata, bookies, rng=rng, options=LedgersOptions(placement=options.ledger)) as ledgers,
    ):
        access = S3Access(metadata, lambda *_: operation_sender(metadata, rng))
        async with open_stores(ledgers, metadata, options, rng, writable=names, s3=access) as stores:
            direct, store = stores["s3-direct"], stores["s3"]
            assert isinstance(direct, S3DirectStore) and isinstance(store, S3Store)
            has_metadata = isinstance(await metadata.read(StreamKey(METADATA_STREAM)), Versioned)
            has_proxies = bool((await metadata.members()).write_proxies)
            yield ObjectAccess(metadata, direct, store, has_metadata, has_proxies)
