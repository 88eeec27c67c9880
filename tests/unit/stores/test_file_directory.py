"""Tests a directory of segments: its identity, and the errors when it cannot be used."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, TypeVarTuple, cast

import pytest

from dlog.io.reserve import SpaceReserve
from dlog.model.ids import Epoch, SegmentNumber, StreamName
from dlog.stores.contract import SegmentRef, StoreOutOfReachError
from dlog.stores.file.options import FileStoreOptions
from dlog.stores.file.store import MARKER, FileStore
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


def failing(number: int) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return call


REF = SegmentRef(StreamName("s"), SegmentNumber(1), "0" * 32)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.EACCES])
async def test_a_mount_that_is_stale_or_dead_is_out_of_reach(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner tells a StoreOutOfReachError to the clients that wait."""
    disk = SimulatedDisk()
    store = await opened(disk, creates=True)
    monkeypatch.setattr(disk, "exists", failing(number))
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.create(REF.stream, REF.number, Epoch(1), ()),
        lambda: store.recover(REF),  # its file is missing, and so may be the directory
        lambda: store.find_tail(REF),
    ]
    for name in (None, "open", "names", "make_dir", "unlink"):
        if name is not None:
            monkeypatch.setattr(disk, name, failing(number))
        for call in calls:
            with pytest.raises(StoreOutOfReachError, match=os.strerror(number).lower()):
                await call()
    with pytest.raises(StoreOutOfReachError):
        await store.delete(REF)


async def test_no_segment_is_created_below_a_mount_point_without_its_disk() -> None:
    disk = SimulatedDisk()
    store = await opened(disk, creates=True)
    disk.unlink(f"{ROOT}/{MARKER}")
    before = disk.names(ROOT)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.create(REF.stream, REF.number, Epoch(1), ()),
        lambda: store.recover(REF),
        lambda: store.delete(REF),
    ]
    for call in calls:
        with pytest.raises(StoreOutOfReachError, match="mount"):
            await call()
    assert disk.names(ROOT) == before


async def test_a_segment_whose_disk_is_lost_while_it_is_created_is_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    store = await opened(disk, creates=True)
    make_dir = disk.make_dir

    def made(path: str) -> None:
        make_dir(path)
        disk.unlink(f"{ROOT}/{MARKER}")

    monkeypatch.setattr(disk, "make_dir", made)
    with pytest.raises(StoreOutOfReachError, match="mount"):
        await store.create(REF.stream, REF.number, Epoch(1), ())
