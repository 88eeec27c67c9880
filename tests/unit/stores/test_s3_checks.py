"""What the store `s3` checks: the object storage before the first segment, and for `/ready` its node, the objects and
the controller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest

from dlog.errors import DLogError
from dlog.model.ids import Epoch, SegmentNumber
from dlog.objects.node_messages import NodeEndedError
from dlog.stores.contract import MisconfiguredError, StoreOutOfReachError, StoreTooSmallError, StoreUnavailableError
from dlog.stores.object_storage.probe import NONCE_HEX, probe
from dlog.stores.s3.errors import store_error
from proxies.write.store_check import StoreCheck, checks_of
from tests.object_metadata import away
from tests.unit.stores.test_s3 import FOLDER, STREAM, W1, Cluster, append, entry, read


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        cluster.check_objects = partial(probe, cluster.objects, FOLDER, "a" * NONCE_HEX)
        yield cluster


async def reason(check: StoreCheck) -> str:
    """Why a check fails; empty: it does not."""
    try:
        await check.check()
    except DLogError as error:
        return error.message
    return ""


async def test_a_storage_that_overwrites_objects_is_refused_until_it_does_not(cluster: Cluster) -> None:
    store = await cluster.store(W1)
    cluster.objects.overwrites = True
    for number in (1, 2):
        with pytest.raises(MisconfiguredError, match="choose a service with conditional writes"):
            await store.create(STREAM, SegmentNumber(number), Epoch(1), ())
    assert not cluster.metadata.image.streams
    cluster.objects.overwrites = False
    writer, ref = await cluster.segment(store)
    await append(writer, 0, 3)
    assert await read(store, ref, 3) == [entry(0), entry(1), entry(2)]
    cluster.objects.overwrites = True  # it was checked once
    await cluster.segment(store)


async def test_a_storage_that_does_not_answer_delays_no_segment_but_is_checked_when_it_does(cluster: Cluster) -> None:
    store = await cluster.store(W1)
    cluster.objects.is_full = cluster.objects.overwrites = True
    writer, _ = await cluster.segment(store)
    await append(writer, 0, 3)
    cluster.objects.is_full = False
    with pytest.raises(MisconfiguredError):
        for _ in range(1000):  # the check runs beside the first of them
            await cluster.segment(store)


async def test_the_node_serves_while_controller_and_objects_are_away(cluster: Cluster) -> None:
    store = await cluster.store(W1)
    node, objects, controller = checks_of(store)
    assert [check.is_needed for check in (node, objects, controller)] == [True, False, False]
    assert node.is_awaited and not objects.is_awaited and not controller.is_awaited
    assert [await reason(check) for check in (node, objects, controller)] == ["", "", ""]
    cluster.objects.is_full = True
    async with away(cluster.controller):
        assert await reason(node) == ""
        assert "away" in await reason(controller)
    assert [await reason(check) for check in (node, controller)] == ["", ""]


async def test_objects_are_needed_if_the_log_is_there(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.stores.test_s3.Wal.name", "s3-direct")
    store = await cluster.store(W1)
    _, objects, _ = checks_of(store)
    assert objects.is_needed


async def test_a_process_without_a_node_says_so(cluster: Cluster) -> None:
    store = await cluster.store(None)
    with pytest.raises(MisconfiguredError, match="no node"):
        await store.check_node()


async def test_objects_that_are_out_of_reach_are_told(cluster: Cluster) -> None:
    store = await cluster.store(W1)
    cluster.objects.is_full = True
    with pytest.raises(StoreUnavailableError, match="no room"):
        await store.check_objects()


def test_a_node_whose_log_is_out_of_reach_tells_so() -> None:
    """The owner tells these errors to the clients that wait."""
    for kind in (StoreOutOfReachError, StoreTooSmallError):
        ended = NodeEndedError("the node ended: why=no space left on device")
        ended.__cause__ = kind("no space left on device")
        error = store_error(ended)
        assert (type(error), error.outcome_unknown) == (kind, True)
        assert "no space left on device" in error.message
