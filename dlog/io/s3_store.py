"""Opens the segment store `s3`, and runs the machines of its node as actors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

from dlog.errors import ConfigError
from dlog.events import Event, WorkFailed
from dlog.io.driver import Driver
from dlog.machine import Machine
from dlog.model.object_streams import NodeId
from dlog.stores.contract import SegmentStore
from dlog.stores.object_storage.port import Objects
from dlog.stores.s3.ports import FindObjects, ObjectMetadata, StartMachine
from dlog.stores.s3.store import S3Store
from dlog.stores.s3_direct.options import WAL_STORES, ObjectsOptions

REQUESTS_MAX = 1_000_000  # of one machine; appends are bounded where they are admitted, and by the node's memory


def machine_starter(tell: Callable[[Event], None]) -> StartMachine:
    """Starts machines with the driver of this package. tell: gets WorkFailed for one that a defect ended."""

    def start(
        name: str,
        machine: Machine,
        *,
        send: Callable[[Any, Any], None],
        on_event: Callable[[Event], None],
        on_end: Callable[[], None],
    ) -> Driver:
        driver = Driver(machine, name=name, send=send, on_event=on_event, requests_max=REQUESTS_MAX)
        driver.begin(partial(_ended, tell, on_end))
        return driver

    return start


def _ended(tell: Callable[[Event], None], on_end: Callable[[], None], driver: Driver, error: Exception | None) -> None:
    if error is not None:
        tell(WorkFailed(driver.name, "\n".join([repr(error), *getattr(error, "__notes__", ())])))
    on_end()


def choose_wal(wanted: str, stores: Mapping[str, SegmentStore]) -> SegmentStore | None:
    """The store of this process's log: the wanted one, else the first that there is. None: this process has none.

    Raises ConfigError if the wanted one is not there, or is not written here.
    """
    names = [wanted] if wanted else [name for name in WAL_STORES if name]
    for name in names:
        if name in stores and stores[name].capabilities.is_written:
            return stores[name]
    if wanted:
        raise ConfigError(f"the store of the write-ahead log is not configured here, see `wal` in [objects]: {wanted}")
    return None


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
    tell: Callable[[Event], None] = lambda _: None,
) -> AsyncIterator[S3Store]:
    """The store, open in the scope. See S3Store. stores: those of this process, by name, which may have logs of nodes.

    node: the id of a write proxy; None: of a process that creates no segments. Raises ConfigError.
    """
    wal = choose_wal(options.wal, stores)
    wals = {name: store for name, store in stores.items() if name in WAL_STORES or name == options.wal}
    start = machine_starter(tell)
    async with S3Store(metadata, objects, find_objects, wal, wals, options, start, rng, node=node, tell=tell) as store:
        yield store
