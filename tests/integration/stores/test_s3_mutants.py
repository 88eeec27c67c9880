"""Tests the suite with the store `s3` that is wrong in one way each: each defect must fail one of its tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from dlog.log.contents import entry_span
from dlog.model.ids import EntryId
from dlog.model.object_streams import WalSegment
from dlog.objects.image import Range
from dlog.objects.node_messages import CloseStreamsHere, ObjectWritten, SliceData, WriteObject
from dlog.stores.contract import Buffer, SegmentRef, StoreError
from dlog.stores.object_storage.locations import parse_root
from dlog.stores.s3.object_writes import ObjectWrites
from dlog.stores.s3.places import Place
from dlog.stores.s3.reader import EntryReads
from dlog.stores.s3.store import S3Store
from dlog.stores.s3.views import SegmentView
from dlog.stores.s3.wal_follower import WalFollower
from dlog.stores.s3.wal_segments import WalSegments, wal_ref, wal_store
from dlog.stores.s3_direct.options import ObjectsOptions
from tests.integration.stores.contract import OpenStore, StoreContract
from tests.integration.stores.test_s3 import EAGER, LAZY, Processes, memory_wal
from tests.memory_objects import MemoryObjects

Story = Callable[[OpenStore], Awaitable[None]]
suite = StoreContract()

_recover, _append, _write, _find_tail = WalSegments.recover, WalSegments.append, ObjectWrites.write, S3Store.find_tail
_read, _locate = WalFollower.read, EntryReads.locate


async def never(_: WalSegment) -> None:
    await asyncio.Event().wait()


async def drops_the_end_of_the_log(self: WalSegments, segment: WalSegment) -> int:
    return max(0, await _recover(self, segment) - 1)


async def does_not_fence_the_log(self: WalSegments, segment: WalSegment) -> int:
    self.__dict__["delete"] = never  # without its log the old node would stop, too
    return await wal_store(self._stores, segment.store).find_tail(wal_ref(segment)) + 1


def confirms_before_the_log_does(
    self: WalSegments,
    segment: WalSegment,
    entry: int,
    parts: tuple[Buffer, ...],
    sink: Callable[[StoreError | None], None],
) -> None:
    sink(None)
    _append(self, segment, entry, parts, lambda _: None)


async def uploads_entries_in_another_order(self: ObjectWrites, request: WriteObject) -> ObjectWritten:
    slices = tuple(SliceData(one.slice, one.entries[::-1]) for one in request.slices)
    return await _write(self, WriteObject(request.object, request.node_epoch, slices))


async def marks_entries_with_what_those_before_have(self: ObjectWrites, request: WriteObject) -> ObjectWritten:
    slices = []
    for one in request.slices:
        spans = [None, *(entry_span(entry.payload) for entry in one.entries)]
        marked = (replace(entry, span=span) for entry, span in zip(one.entries, spans, strict=False))
        slices.append(SliceData(one.slice, tuple(marked)))
    return await _write(self, WriteObject(request.object, request.node_epoch, tuple(slices)))


async def leaves_the_entries_after_the_first_one(self: EntryReads, *args: Any, **target: Any) -> tuple[int, int]:
    low, high = await _locate(self, *args, **target)
    return min(low + 1, high), high


async def takes_what_is_committed_for_the_tail(self: S3Store, ref: SegmentRef) -> EntryId:
    async def catch_up(_: WalFollower) -> None:
        return None

    with mock.patch.object(WalFollower, "catch_up", catch_up):
        return await _find_tail(self, ref)


async def closes_nothing_that_is_open_elsewhere(self: S3Store, place: Place, found: Range, _: float) -> None:
    """Takes what is committed for the end of a range of another node."""
    if self.node is not None and found.node == self.node.node:
        running = await self.node.serving(10.0)
        await running.actor.ask(CloseStreamsHere((place.stream,)))
    else:
        found.end = found.committed


def reads_behind_the_lac(self: SegmentView, lac: int) -> None:
    if self.end is None:
        self.lac = EntryId(max(self.lac, lac + 1))


async def loses_the_first_entry_of_each_read(self: WalFollower, *args: Any) -> list[Buffer]:
    found = await _read(self, *args)
    return found[1:] or found


async def locates(stores: OpenStore) -> None:
    for seed in range(20):
        await suite.test_locate_leaves_the_first_entry_that_a_search_must_find(stores, seed)


fenced = suite.test_a_fenced_writer_gets_nothing_acknowledged
MUTANTS: dict[Callable[..., Any], tuple[type, str, Story, bool]] = {
    drops_the_end_of_the_log: (WalSegments, "recover", fenced, False),
    does_not_fence_the_log: (WalSegments, "recover", fenced, False),
    confirms_before_the_log_does: (WalSegments, "append", fenced, False),
    uploads_entries_in_another_order: (
        ObjectWrites,
        "write",
        suite.test_appends_resolve_in_order_and_are_read_back,
        True,
    ),
    marks_entries_with_what_those_before_have: (ObjectWrites, "write", locates, True),
    leaves_the_entries_after_the_first_one: (EntryReads, "locate", locates, True),
    takes_what_is_committed_for_the_tail: (
        S3Store,
        "find_tail",
        suite.test_the_tail_is_found_beside_a_writer_and_disturbs_nobody,
        False,
    ),
    closes_nothing_that_is_open_elsewhere: (S3Store, "_close_range", fenced, False),
    reads_behind_the_lac: (SegmentView, "learn", suite.test_wait_lac_returns_what_stands_after_its_time, False),
    loses_the_first_entry_of_each_read: (
        WalFollower,
        "read",
        suite.test_appends_resolve_in_order_and_are_read_back,
        False,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("is_planted", [False, True])
async def test_the_suite_catches_each_defect_and_passes_the_original(
    mutant: Callable[..., Any], is_planted: bool
) -> None:
    where, name, story, is_eager = MUTANTS[mutant]
    options = ObjectsOptions(root="s3://bucket/logs", **{**(EAGER if is_eager else LAZY), "retry_s": 1.0})
    caught: BaseException | None = None
    folder = parse_root("s3://bucket/logs/objects")
    # a process that learns at once of every take-over would stop before its log refuses it
    async with Processes(MemoryObjects(), folder, memory_wal(), options, is_lagging=True) as processes:
        with mock.patch.object(where, name, mutant if is_planted else getattr(where, name)):
            try:
                async with asyncio.timeout(30):
                    await story(processes.open_segment_store)
            except (AssertionError, IndexError, StoreError, TimeoutError, ExceptionGroup) as error:
                caught = error
            except pytest.fail.Exception as error:
                caught = error
    assert (caught is not None) is is_planted, f"{mutant.__name__}: {caught!r}"
