"""Tests the identity of a directory of segments."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple, cast

from dlog.io.reserve import SpaceReserve
from dlog.stores.file.options import FileStoreOptions
from dlog.stores.file.store import FileStore
from tests.simulation.disk import SimulatedDisk, all_lost

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ROOT = "/segments"


class AtOnce:
    """Runs blocking work at once."""

    def pool(self, name: str, size: int, on_error: object) -> None:
        return None

    async def run(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        return work(*args)


async def opened(disk: SimulatedDisk, *, creates: bool) -> FileStore:
    options = FileStoreOptions(directory=ROOT)
    reserve = SpaceReserve(disk, ROOT, options.reserve_bytes)
    store = FileStore(disk, cast(Any, AtOnce()), random.Random(1), options, reserve)
    await store.open(creates=creates)
    return store


async def test_an_identity_that_metadata_records_next_outlives_a_power_failure() -> None:
    disk = SimulatedDisk()
    identity = (await opened(disk, creates=True)).identity
    assert len(identity) == 32
    disk.power_cut(all_lost)
    assert (await opened(disk, creates=False)).identity == identity
