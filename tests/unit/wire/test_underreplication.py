"""Text of the under-replication tree's znodes: the bytes that Java's auditor and workers wrote, and bad input."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.model.ids import BookieId
from dlog.wire.underreplication import (
    LAYOUT,
    MARK_BYTES_MAX,
    Mark,
    Pause,
    check_layout,
    decode_delay_s,
    decode_holder,
    decode_mark,
    decode_pause,
    encode_holder,
    encode_mark,
    encode_pause,
)

A, B = BookieId("127.0.0.1:3181"), BookieId("bookie-2.example:3181")

#: as BookKeeper wrote them (shared specification, 2.10, marked as read from a live cluster)
JAVA_MARK = b'replica: "127.0.0.1:3181"\nreplica: "bookie-2.example:3181"\nctime: 1764342625123\n'
JAVA_HOLDER = b'bookieId: "127.0.0.1:3181"\n'
JAVA_LAYOUT = b'type: "BASIC"\nversion: 1\n'


def test_a_pause_is_written_and_read() -> None:
    pause = Pause(300, -(2**62))
    assert encode_pause(pause) == b"seconds: 300\nsession: -4611686018427387904\n"
    assert decode_pause(encode_pause(pause) + b"later: 1\n") == pause


@pytest.mark.parametrize(
    "data", [b"", b"seconds: 5\n", b"seconds: -1\nsession: 1\n", b"seconds: 604801\nsession: 1\n", b"\xff"]
)
def test_what_is_no_pause_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedError, match="planned restart"):
        decode_pause(data)


def test_a_mark_is_the_text_that_java_writes() -> None:
    mark = Mark((A, B), 1_764_342_625_123)
    assert encode_mark(mark) == JAVA_MARK
    assert decode_mark(JAVA_MARK) == mark
    assert encode_mark(Mark((A,))) == b'replica: "127.0.0.1:3181"\n', "storing the time is an option of Java's"
    assert decode_mark(b"") == Mark(())


def test_a_mark_has_each_bookie_once_and_skips_unknown_fields() -> None:
    text = b'replica: "b:1" later { x: 1 } replica: "a:1" replica: "b:1" more: "y" ctime: 5'
    assert decode_mark(text) == Mark((BookieId("b:1"), BookieId("a:1")), 5)


def test_merging_keeps_the_order_and_the_time_unless_a_bookie_is_new() -> None:
    mark = Mark((B,), 5)
    assert mark.merge([B], 9) is mark
    assert mark.merge([A, B], 9) == Mark((B, A), 9)
    assert Mark(()).merge([B, A], 9) == Mark((A, B), 9), "several new ones are sorted"


def test_locks_and_votes_name_their_process() -> None:
    assert encode_holder(A) == JAVA_HOLDER
    assert decode_holder(JAVA_HOLDER) == A
    assert decode_holder(b"") == ""


def test_only_the_layout_that_we_write_is_accepted() -> None:
    assert LAYOUT == JAVA_LAYOUT
    check_layout(JAVA_LAYOUT)
    for other in (b'type: "BASIC"\nversion: 2\n', b'type: "NEW"\nversion: 1\n'):
        with pytest.raises(UnsupportedVersionError, match="another layout"):
            check_layout(other)
    for damaged in (b"", b"type: 1 version: 1", b'type: "BASIC"', b"\xff"):
        with pytest.raises(DamagedError, match="layout"):
            check_layout(damaged)


def test_the_delay_is_a_number_of_seconds() -> None:
    assert (decode_delay_s(b"0"), decode_delay_s(b"300\n")) == (0, 300)
    for damaged in (b"", b"-1", b"5m", b"1.5", b"99999999999"):
        with pytest.raises(DamagedError, match="lostBookieRecoveryDelay"):
            decode_delay_s(damaged)


@pytest.mark.parametrize(
    "data",
    [
        b"replica: 1",
        b'replica: "a/b"',
        b'replica: "\xff"',
        b'replica: "readonly"',
        b'ctime: "now"',
        b"ctime: -1",
        b"ctime: 9223372036854775808",
        b'replica: "a:1',
        b"\x00",
        b" " * (MARK_BYTES_MAX + 1),
    ],
)
def test_a_damaged_mark_is_a_typed_error(data: bytes) -> None:
    with pytest.raises(DamagedError, match="mark"):
        decode_mark(data)


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_hostile_bytes_end_in_a_value_or_in_damage(data: bytes) -> None:
    for decode in (decode_mark, decode_holder, decode_delay_s):
        with contextlib.suppress(DamagedError):
            decode(data)
    with contextlib.suppress(DamagedError, UnsupportedVersionError):
        check_layout(data)


BOOKIES = st.lists(st.sampled_from([A, B, BookieId("c"), BookieId("d_1.x-y")]), unique=True).map(tuple)


@settings(max_examples=50)
@given(BOOKIES, st.none() | st.integers(0, 2**63 - 1))
def test_a_mark_reads_back(bookies: tuple[BookieId, ...], ctime_ms: int | None) -> None:
    assert decode_mark(encode_mark(Mark(bookies, ctime_ms))) == Mark(bookies, ctime_ms)
