"""Racks and regions as text."""

from __future__ import annotations

import pytest

from dlog.bookie.options import BookieOptions
from dlog.errors import InvalidRequestError
from dlog.model.location import DEFAULT_LOCATION, NetworkLocation, parse_location


def test_a_location_is_bookkeepers_path() -> None:
    assert str(DEFAULT_LOCATION) == "/default-region/default-rack"
    for location in (DEFAULT_LOCATION, NetworkLocation("eu-1", "r.7")):
        assert parse_location(str(location)) == location
    assert parse_location("/r7") == NetworkLocation(rack="r7"), "a rack of the default region"


@pytest.mark.parametrize("text", ["", "/", "rack", "/a/b/c", "/a//", "//rack", "/a b", "/é", "/-r", "/" + "r" * 64])
def test_what_is_no_location_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"/region/rack|such as"):
        parse_location(text)


@pytest.mark.parametrize("option", ["rack", "region"])
def test_a_bookie_refuses_a_name_that_metadata_cannot_carry(option: str) -> None:
    BookieOptions(**{option: "r" * 63})  # type: ignore[arg-type]  # mypy cannot see which option it is
    for wrong in ("", "a/b", "a b", "r" * 64):
        with pytest.raises(ValueError, match=f"such as {option}-1"):
            BookieOptions(**{option: wrong})  # type: ignore[arg-type]
