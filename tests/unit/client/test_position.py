"""Tests where a read begins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest

import dlog
from dlog.client.position import begin_of, position
from dlog.client.record import Record, RecordBatch
from dlog.errors import InvalidRequestError
from dlog.model.dlsn import of


class Nowhere(tzinfo):
    """A time zone without an offset: such a datetime is as naive as one without a zone."""

    def utcoffset(self, when: datetime | None) -> timedelta | None:
        return None

    def dst(self, when: datetime | None) -> timedelta | None:
        return None

    def tzname(self, when: datetime | None) -> str | None:
        return None


@pytest.mark.parametrize("when", [datetime(2026, 11, 20, 8), datetime(2026, 11, 20, 8, tzinfo=Nowhere())])
def test_a_datetime_without_a_zone_is_no_point_in_time(when: datetime) -> None:
    for use in (dlog.at_time, position):
        with pytest.raises(InvalidRequestError, match="astimezone"):
            use(when)


@pytest.mark.parametrize(
    "when",
    [20261120, 1795987202511, 0, -1, 999_999_999, float("nan"), float("inf"), datetime(9000, 1, 1, tzinfo=UTC)],
)
def test_a_time_that_no_record_has_is_refused(when: datetime | float) -> None:
    """A date or milliseconds, taken for seconds, would read every record or none."""
    with pytest.raises(InvalidRequestError, match="between 2001-09-09 and 2100"):
        dlog.at_time(when)


def test_a_datetime_with_a_zone_is_the_same_everywhere() -> None:
    eight = datetime(2026, 11, 20, 8, tzinfo=UTC)
    assert dlog.at_time(eight) == dlog.at_time(eight.astimezone(timezone(timedelta(hours=5, minutes=30))))
    assert dlog.at_time(eight) == position(eight) == dlog.at_time(eight.timestamp())


@pytest.mark.parametrize("incarnation", ["", "a1"])
def test_reading_after_a_record_leaves_out_that_record_and_no_other_however_it_is_named(incarnation: str) -> None:
    record = Record(of(3, 17, 2), 5, b"x", 0, incarnation)
    following = (3, 17, 3)
    place = dlog.at_dlsn(record.dlsn, incarnation)
    for after in (record.position, str(record.position), record.dlsn, str(record.dlsn), place):
        assert begin_of(None, after).value == following, after
    for start in (record.position, str(record.position)):
        assert begin_of(start, None).value == following, start
    for token in (record.position, str(record.position), place):
        assert begin_of(None, token).incarnation == incarnation, "a stream that was created again is told apart"
    batch = RecordBatch(of(3, 17, 2), 5, 0, [b"x", b"y"], incarnation)
    assert begin_of(None, batch.position).value == (3, 17, 4)


@pytest.mark.parametrize("after", [dlog.START, dlog.TAIL, dlog.at_txid(5), "yesterday", "!@1:0:0", 17, "tail"])
def test_only_a_record_is_a_place_to_read_after(after: object) -> None:
    with pytest.raises(InvalidRequestError):
        begin_of(None, after)  # type: ignore[arg-type]


def test_a_read_begins_at_one_place() -> None:
    with pytest.raises(InvalidRequestError, match="not both"):
        begin_of("start", of(1, 0, 0))
