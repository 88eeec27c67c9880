"""Where a read begins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest

import dlog
from dlog.client.position import position
from dlog.errors import InvalidRequestError


class Nowhere(tzinfo):
    """A zone that does not know its offset: such a datetime is as naive as one without."""

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


def test_a_datetime_with_a_zone_is_the_same_everywhere() -> None:
    eight = datetime(2026, 11, 20, 8, tzinfo=UTC)
    assert dlog.at_time(eight) == dlog.at_time(eight.astimezone(timezone(timedelta(hours=5, minutes=30))))
    assert dlog.at_time(eight) == position(eight) == dlog.at_time(eight.timestamp())
