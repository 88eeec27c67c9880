"""Opens the segment store `s3`, and runs the machines of its node as actors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from dlog.events import Event, WorkFailed
from dlog.io.driver import Driver
from dlog.io.metadata import Membership, VersionedStore
from dlog.io.metadata_stream import FindRoot, choose_metadata_store
from dlog.io.object_metadata import ObjectMetadataClient, OperationSender
from dlog.log.contents import entry_span
from dlog.machine import Machine
from dlog.model.object_streams import NodeId
from dlog.stores.contract import SegmentStore
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.port import Objects
from dlog.stores.s3.ports import FindObjects, ObjectMetadata, Processes, StartMachine
from dlog.stores.s3.store import S3Store
from dlog.stores.s3_direct.options import WAL_STORES, ObjectsOptions
from dlog.stores.s3_direct.store import S3DirectStore

FOLDER = "streams"  # below that of the cluster
REQUESTS_MAX = 1_000_000  # of one machine; appends are bounded where they are admitted, and by the node's memory


#: gives the way to the controller. Arguments: the objects, their root, and the store of metadata; the root is found at
#: the first use
JoinController = Callable[[Objects, FindRoot, str], OperationSender]


@dataclass(frozen=True, slots=True)
class S3Access:
    """What the store `s3` needs of its process. node: the id of a write proxy; None: of a process that creates no
    segments. members: for a process that may have the controller."""

    metadata: VersionedStore
    join: JoinController
    node: NodeId | None = None
    members: Membership | None = None


def machine_starter(on_event: Callable[[Event], None]) -> StartMachine:
    """Starts machines with the driver of this package. on_event: gets WorkFailed for one that a defect ended."""

    def start(
        name: str,
        machine: Machine,
        *,
        send: Callable[[Any, Any], None],
        on_event: Callable[[Event], None],
        on_end: Callable[[], None],
    ) -> Driver:
        driver = Driver(machine, name=name, send=send, on_event=on_event, requests_max=REQUESTS_MAX)
        driver.begin(partial(_ended, on_event, on_end))
        return driver

    return start


def _ended(
    on_event: Callable[[Event], None], on_end: Callable[[], None], driver: Driver, error: Exception | None
) -> None:
    if error is not None:
        on_event(WorkFailed(driver.name, "\n".join([repr(error), *getattr(error, "__notes__", ())])))
    on_end()


@asynccontextmanager
async def open_s3_store(
    metadata: ObjectMetadata,
    objects: Objects,
    find_objects: FindObjects,
    stores: Mapping[str, SegmentStore],
    options: ObjectsOptions,
    rng: Random,
    *,
    node: NodeId | None = None,
    processes: Processes | None = None,
    check_objects: Callable[[], Awaitable[None]] | None = None,
    on_event: Callable[[Event], None] = lambda _: None,
) -> AsyncIterator[S3Store]:
    """The store, open in the scope. See S3Store. stores: those of this process, by name, which may have logs of nodes.

    node: the id of a write proxy; None: of a process that creates no segments. Raises ConfigError.
    """
    chosen = stores[choose_metadata_store(stores, options.wal)]
    wal = chosen if chosen.capabilities.is_written else None
    wals = {name: store for name, store in stores.items() if name in WAL_STORES}
    start = machine_starter(on_event)
    async with S3Store(
        metadata,
        objects,
        find_objects,
        wal,
        wals,
        options,
        start,
        entry_span,
        rng,
        node=node,
        processes=processes,
        check_objects=check_objects,
        on_event=on_event,
    ) as store:
        yield store


class _Processes:
    """Processes of the cluster, by the registrations of write proxies: a proxy's id is that of its node."""

    def __init__(self, members: Membership, sender: OperationSender) -> None:
        self._members = members
        self._sender = sender

    @property
    def has_controller(self) -> bool:
        return self._sender.has_controller

    async def live_nodes(self) -> frozenset[NodeId]:
        return frozenset(map(NodeId, (await self._members.members()).write_proxies))


@asynccontextmanager
async def open_cluster_s3_store(
    access: S3Access,
    direct: S3DirectStore,
    stores: Mapping[str, SegmentStore],
    options: ObjectsOptions,
    rng: Random,
    on_event: Callable[[Event], None],
) -> AsyncIterator[S3Store]:
    """The store on the metadata stream of the cluster, open in the scope.

    direct: the store `s3-direct`, which has the same objects. stores: as of open_s3_store. Raises ConfigError.
    """
    creates, objects = access.node is not None, direct.objects

    async def find_root() -> Location:
        return (await direct.cluster_folder(creates=creates)).below(FOLDER)

    sender = access.join(objects, find_root, choose_metadata_store(stores, options.wal))
    processes = None if access.members is None else _Processes(access.members, sender)
    async with (
        ObjectMetadataClient(access.metadata, stores, objects, find_root, sender, rng) as metadata,
        open_s3_store(
            metadata,
            objects,
            metadata.find_folder,
            stores,
            options,
            rng,
            node=access.node,
            processes=processes,
            check_objects=direct.check_root,
            on_event=on_event,
        ) as store,
    ):
        yield store
