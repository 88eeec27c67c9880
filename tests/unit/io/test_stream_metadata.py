"""Which znodes a change of a stream touches, and under which versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dlog.io.stream_metadata import (
    StreamVersion,
    incarnation_path,
    plan_change,
    plan_creation,
    plan_incarnation,
    plan_removal,
    version_after,
    version_of_creation,
)
from dlog.io.zookeeper_protocol import Check, Create, Created, Delete, Op, Set, Stat
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName, Txid
from dlog.model.segment import Owner, Segment, StreamMetadata, Truncation
from dlog.model.sink import SinkBatch, SinkRecord

R = "/ns/s/<default>"
DONE = Segment(
    number=SegmentNumber(1),
    name="9",
    first_txid=Txid(0),
    completed=True,
    last_entry=EntryId(4),
    metadata_version=1,
)
OPEN = Segment(number=SegmentNumber(2), name="10", first_txid=Txid(50), metadata_version=2)
VALUE = StreamMetadata(
    name=StreamName("s"),
    segments=(DONE, OPEN),
    max_segment=SegmentNumber(2),
    max_txid=Txid(49),
    owner=Owner(epoch=Epoch(3), claim="c"),
)
READ = StreamVersion(
    value=VALUE,
    ledgers=11,
    max_txid=12,
    allocation=13,
    owner=14,
    settings=15,
    sinks=None,
    incarnation="1f",
)
CLOSED = replace(OPEN, completed=True, last_entry=EntryId(7))

SINK = SinkRecord(SinkBatch("s", 0, "q", 1), (2, 3))
Change = Callable[[StreamMetadata], StreamMetadata]


def shape(ops: list[Op]) -> list[tuple[str, str, int | None]]:
    """(operation, path below R, version)"""
    return [(type(op).__name__, op.path.removeprefix(R + "/"), getattr(op, "version", None)) for op in ops]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda v: v, [("Check", "ledgers", 11)]),
        (lambda v: replace(v, allocated="5"), [("Check", "ledgers", 11), ("Set", "allocation", 13)]),
        (lambda v: replace(v, max_txid=Txid(60)), [("Check", "ledgers", 11), ("Set", "maxtxid", 12)]),
        (
            lambda v: v.with_segment(replace(DONE, truncation=Truncation.TRUNCATED)),
            [("Set", "ledgers/logrecs_000000000000000001", 1), ("Check", "ledgers", 11)],
        ),
        (
            lambda v: v.with_segment(CLOSED),
            [
                ("Create", "ledgers/logrecs_000000000000000002", None),
                ("Delete", "ledgers/inprogress_000000000000000002", 2),
                ("Set", "ledgers", 11),
            ],
        ),
        (
            lambda v: v.with_segment(replace(OPEN, number=SegmentNumber(3))),
            [("Create", "ledgers/inprogress_000000000000000003", None), ("Set", "ledgers", 11)],
        ),
        (
            lambda v: v.without_segment(1),
            [("Delete", "ledgers/logrecs_000000000000000001", 1), ("Set", "ledgers", 11)],
        ),
        (lambda v: replace(v, max_segment=SegmentNumber(3)), [("Set", "ledgers", 11)]),
        (lambda v: v.with_sink(SINK), [("Check", "ledgers", 11), ("Create", "sinks", None)]),
    ],
)
def test_a_change_sets_the_owner_and_guards_the_list(change: Change, expected: list[object]) -> None:
    guards = [("Check", "life-1f", 0), ("Set", "owner", 14)]
    assert shape(plan_change(R, READ, change(VALUE))) == [*guards, *expected]


def test_what_a_sink_has_written_is_changed_under_its_version() -> None:
    known = VALUE.with_sink(SINK)
    ops = plan_change(R, replace(READ, value=known, sinks=4), known.with_sink(SinkRecord(replace(SINK.last, batch=9))))
    assert shape(ops)[-1] == ("Set", "sinks", 4)


def test_znodes_java_does_not_make_are_made_with_the_first_change() -> None:
    java = replace(READ, owner=None, settings=None, allocation=None, incarnation="")
    assert shape(plan_incarnation(R, java, "2e")) == [
        ("Create", "owner", None),
        ("Create", "life-2e", None),
        ("Check", "ledgers", 11),
    ]
    ops = plan_change(R, replace(java, owner=0, incarnation="2e"), replace(VALUE, allocated="5"))
    assert [(kind, path) for kind, path, _ in shape(ops)] == [
        ("Check", "life-2e"),
        ("Set", "owner"),
        ("Check", "ledgers"),
        ("Create", "allocation"),
        ("Create", "settings"),
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda v: replace(v, name=StreamName("other")),
        lambda v: replace(v, owner=replace(v.owner, epoch=Epoch(2))),
        lambda v: v.with_segment(replace(DONE, completed=False)),
    ],
)
def test_what_no_caller_may_ask_for_is_a_bug(change: Change) -> None:
    with pytest.raises(AssertionError):
        plan_change(R, READ, change(VALUE))


def test_the_next_version_is_that_of_the_znodes_written() -> None:
    new = replace(VALUE.with_segment(CLOSED), max_txid=Txid(60), allocated="5")
    ops = plan_change(R, READ, new)
    results: list[object] = []
    for op in ops:
        match op:
            case Set():
                results.append(_stat(op.version + 1))
            case Create():
                results.append(Created(op.path, _stat(0)))
            case Delete() | Check():
                results.append(None)
    assert version_after(R, READ, new, ops, results) == StreamVersion(
        value=new,
        ledgers=12,
        max_txid=13,
        allocation=14,
        owner=15,
        settings=15,
        sinks=None,
        incarnation="1f",
    )


def test_a_creation_makes_every_znode_in_its_first_version() -> None:
    ops = plan_creation(R, VALUE, "1f")
    assert all(isinstance(op, Create) for op in ops)
    assert next(op.path for op in ops) == R, "parents come first"
    version = version_of_creation(VALUE, "1f")
    assert {s.metadata_version for s in version.value.segments} == {0}


def _stat(version: int) -> Stat:
    return Stat(0, 0, 0, 0, version, 0, 0, 0, 0, 0, 0)


class CountedPath(str):
    """Counts how often a path is hashed, or looked at by its begin."""

    looks = 0

    def __hash__(self) -> int:
        CountedPath.looks += 1
        return super().__hash__()

    def startswith(self, *args: Any) -> bool:
        CountedPath.looks += 1
        return super().startswith(*args)


def test_a_removal_names_every_znode_once_and_looks_at_each_a_few_times() -> None:
    root = "/dlog/s/<default>"
    for count in (3, 1000):
        CountedPath.looks = 0
        segments = [f"{root}/ledgers/inprogress_{number:019}" for number in range(count)]
        others = ["/dlog/s", root, f"{root}/ledgers", f"{root}/owner", incarnation_path(root, "a1"), f"{root}/lock"]
        below: list[str] = [CountedPath(path) for path in (*others, *segments)]
        plan = plan_removal(root, "a1", 7, below, 100)
        assert CountedPath.looks <= 4 * len(below)
        deleted = [op.path for ops in plan for op in ops if isinstance(op, Delete)]
        assert sorted(deleted) == sorted(map(str, below)) and deleted[:count] == segments
        assert deleted[-2:] == [root, "/dlog/s"], "what is above goes behind what is below it"
        assert all(ops[:2] == [Check(incarnation_path(root, "a1"), 0), Check(f"{root}/owner", 7)] for ops in plan)
        assert max(len(ops) for ops in plan) <= 102 and set(deleted[count:]) == set(others)
