"""Tests what a process remembers of a stream's metadata, and its reaction to metadata that is older."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlog.errors import MetadataWentBackError
from dlog.io.seen_versions import DELETED_MAX, MARKS_MAX, SeenVersions
from dlog.io.stream_metadata import StreamVersion
from dlog.model.ids import Epoch, StreamName
from dlog.model.segment import Owner, StreamMetadata

STREAM = StreamName("orders")


def version(
    owner: int | None, *, epoch: int = 1, ledgers: int = 3, max_txid: int = 2, incarnation: str = "a"
) -> StreamVersion:
    value = StreamMetadata(name=STREAM, owner=Owner(epoch=Epoch(epoch)), incarnation=incarnation)
    return StreamVersion(value, ledgers, max_txid, None, owner, None, None, incarnation)


def deleted(owner: int, *, incarnation: str = "a") -> StreamVersion:
    value = StreamMetadata(name=STREAM, owner=Owner(epoch=Epoch(1), deleted=True), incarnation=incarnation)
    return replace(version(owner, incarnation=incarnation), value=value)


def read(marks: SeenVersions, shown: StreamVersion) -> None:
    marks.check(STREAM, marks.before(STREAM), shown)


@pytest.mark.parametrize(
    "older", [version(6), version(7, ledgers=2), version(7, max_txid=1), version(8, epoch=0), version(6, epoch=2)]
)
def test_any_version_that_is_lower_is_refused_from_then_on(older: StreamVersion) -> None:
    marks = SeenVersions()
    read(marks, version(7))
    with pytest.raises(MetadataWentBackError):
        read(marks, older)
    with pytest.raises(MetadataWentBackError):
        marks.before(STREAM)
    assert marks.before(StreamName("another")) is None


def test_what_was_written_here_counts_as_seen() -> None:
    marks = SeenVersions()
    read(marks, version(7))
    marks.saw(STREAM, version(9))
    with pytest.raises(MetadataWentBackError):
        read(marks, version(8))


def test_a_reading_that_began_before_is_not_behind() -> None:
    marks = SeenVersions()
    read(marks, version(7))
    before = marks.before(STREAM)
    marks.saw(STREAM, version(9))
    marks.check(STREAM, before, version(8))
    with pytest.raises(MetadataWentBackError):
        read(marks, version(8))


def test_another_life_and_a_stream_of_java_begin_anew() -> None:
    marks = SeenVersions()
    read(marks, version(7))
    read(marks, version(None, incarnation=""))
    read(marks, version(0, incarnation="b"))
    read(marks, version(0, incarnation="b"))


def test_what_is_remembered_has_a_bound() -> None:
    marks = SeenVersions()
    for number in range(MARKS_MAX + 10):
        marks.saw(StreamName(f"s{number}"), replace(version(1), value=version(1).value))
    assert marks.before(StreamName("s9")) is None
    assert marks.before(StreamName("s10")) is not None


def test_deleted_streams_have_a_bound_of_their_own_and_push_out_none_that_is_there() -> None:
    marks = SeenVersions()
    read(marks, version(7))
    for number in range(2 * MARKS_MAX):
        name = StreamName(f"s{number}")
        marks.saw(name, version(0))
        marks.check(name, marks.before(name), version(1))
        marks.saw(name, deleted(2))
    assert len(marks._marks) == 1
    assert len(marks._deleted) == DELETED_MAX
    with pytest.raises(MetadataWentBackError):
        read(marks, version(6))


def test_a_deleted_stream_that_comes_back_is_refused() -> None:
    marks = SeenVersions()
    read(marks, version(7))
    before = marks.before(STREAM)
    marks.saw(STREAM, deleted(8))
    marks.check(STREAM, before, version(7))  # it began before, and is not taken for newer
    with pytest.raises(MetadataWentBackError):
        read(marks, version(7))


def test_a_stream_that_was_made_again_is_one_that_is_there() -> None:
    marks = SeenVersions()
    for number in range(1000):
        incarnation = f"life {number}"
        marks.saw(STREAM, version(0, incarnation=incarnation))
        assert (len(marks._marks), len(marks._deleted)) == (1, 0)
        marks.saw(STREAM, deleted(1, incarnation=incarnation))
        assert (len(marks._marks), len(marks._deleted)) == (0, 1)
