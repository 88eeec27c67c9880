"""Two runs of `offload` at once, stopped between two steps, and requests of theirs that take effect much later."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from dlog.client.client import Client
from dlog.errors import InvalidRequestError, UnavailableError
from dlog.spark.jobs import offload_settle
from dlog.spark.jobs.frame import Report, Verdict
from dlog.spark.jobs.offload_records import OffloadRecords
from dlog.stores.ledger import LedgerStore
from tests.integration.spark.offloading import Yard

WAIT_S = 120.0  # for something that takes a second


class Gate:
    """Stops the first call of an asynchronous method until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch, cls: type, name: str) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()
        self._work = getattr(cls, name)
        patch.setattr(cls, name, self._passing())

    def _passing(self) -> Any:
        async def passed(*given: Any, **more: Any) -> Any:
            if not self._reached.is_set():
                self._reached.set()
                await asyncio.to_thread(self._open.wait, WAIT_S)
            return await self._work(*given, **more)

        return passed

    def wait_reached(self) -> None:
        assert self._reached.wait(WAIT_S)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


async def _refused(*_: object) -> str:
    return "no proxy reads there"


def check(yard: Yard, name: str, rows: list[Any]) -> None:
    """Check that everything metadata names can be read, and that further runs complete."""
    assert yard.rows(name) == rows and yard.spark_rows(name) == rows
    for _ in range(4):
        yard.offload(name, grace_s=0.0, orphan_age_s=0.0)
    assert yard.offload(name, grace_s=0.0, orphan_age_s=0.0).items == []
    assert yard.rows(name) == rows


def test_a_run_that_takes_segments_back_while_another_is_about_to_delete_their_hot_copies(
    files: Yard, monkeypatch: pytest.MonkeyPatch, aside: ThreadPoolExecutor
) -> None:
    name = files.written()
    rows, hot = files.rows(name), files.hot(name)
    files.offload(name)
    with monkeypatch.context() as patch:
        gate = Gate(patch, LedgerStore, "delete")
        deleting: Future[Report] = aside.submit(files.offload, name, grace_s=0.0)
        gate.wait_reached()
        patch.setattr(offload_settle, "_try_out", _refused)
        other = files.offload(name, grace_s=0.0, fails=True)
        gate.open()
        assert deleting.result(WAIT_S).verdict is Verdict.OK
    assert all("has begun to delete its hot copy" in finding["text"] for finding in other.findings)
    files.check_over(name, rows, hot)


def test_a_run_that_has_noted_that_it_takes_segments_back_keeps_their_hot_copies(
    files: Yard, monkeypatch: pytest.MonkeyPatch, aside: ThreadPoolExecutor
) -> None:
    """The other run has read the records and the objects before; it deletes nothing."""
    name = files.written()
    rows, hot = files.rows(name), files.hot(name)
    files.offload(name)
    with monkeypatch.context() as patch:
        gate = Gate(patch, OffloadRecords, "change")
        deleting: Future[Report] = aside.submit(files.offload, name, grace_s=0.0)
        gate.wait_reached()
        patch.setattr(offload_settle, "_try_out", _refused)
        files.offload(name, grace_s=0.0, fails=True)
        gate.open()
        deleting.result(WAIT_S)
    assert any(files.has_ledger(place) for place in hot.values())
    check(files, name, rows)


def test_a_request_to_take_a_segment_back_that_comes_when_its_hot_copy_is_gone(
    files: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was held up on its way to the stream's owner, and its sender has given up."""
    name = files.written()
    rows, hot = files.rows(name), files.hot(name)
    files.offload(name)
    stuck: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    async def frozen(_: Client, *given: Any, **more: Any) -> None:
        stuck.append((given, more))
        raise UnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(Client, "move_segment", frozen)
        patch.setattr(offload_settle, "_try_out", _refused)
        files.offload(name, grace_s=0.0, fails=True)
    assert stuck and len(files.cold_segments(name)) > 1
    for _ in range(4):
        files.offload(name, grace_s=0.0, orphan_age_s=0.0)
    for given, more in stuck:
        with pytest.raises(InvalidRequestError):
            files.client.move_segment(*given, **more)
    files.check_over(name, rows, hot)
