"""Registrations and cookies of bookies."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import CookieError, DamagedError
from dlog.model.ids import BookieId
from dlog.model.location import DEFAULT_LOCATION, NetworkLocation
from dlog.wire.bookie_info import (
    BookieServiceInfo,
    Cookie,
    Endpoint,
    address_of,
    decode_cookie,
    decode_service_info,
    encode_address,
    encode_cookie,
    encode_service_info,
    has_summaries,
    location_of,
)

BOOKIE = BookieId("127.0.0.1:3181")
TEXT = st.text(max_size=20)
endpoints = st.builds(Endpoint, TEXT, TEXT, st.integers(-(2**31), 2**31), TEXT, st.lists(TEXT, max_size=2).map(tuple))
infos = st.builds(
    BookieServiceInfo,
    st.lists(endpoints, max_size=3).map(tuple),
    st.lists(st.tuples(TEXT, TEXT), max_size=2).map(tuple),
)


@settings(max_examples=60)
@given(infos)
def test_a_registration_reads_back(info: BookieServiceInfo) -> None:
    assert decode_service_info(encode_service_info(info)) == info


@settings(max_examples=100)
@given(st.binary(max_size=80))
def test_hostile_registrations_end_in_one_or_damage(garbage: bytes) -> None:
    with contextlib.suppress(DamagedError):
        decode_service_info(garbage)
    with contextlib.suppress(DamagedError):
        address_of(BOOKIE, garbage)


def test_the_address_is_that_of_the_bookie_protocol() -> None:
    http = Endpoint("httpserver", "10.0.0.1", 8080, "http")
    rpc = Endpoint("bookie", "10.0.0.2", 3181, "bookie-rpc")
    assert address_of(BOOKIE, encode_service_info(BookieServiceInfo((http, rpc)))) == ("10.0.0.2", 3181)
    assert address_of(BOOKIE, encode_address("::1", 3182)) == ("::1", 3182)
    with pytest.raises(DamagedError, match="endpoint"):
        address_of(BOOKIE, encode_service_info(BookieServiceInfo((http,))))


def test_rack_and_region_are_a_property_and_the_default_ones_are_none() -> None:
    place = NetworkLocation("eu", "r7")
    data = encode_address("10.0.0.2", 3181, place)
    assert location_of(data) == place and address_of(BOOKIE, data) == ("10.0.0.2", 3181)
    assert decode_service_info(data).properties == (("networkLocation", "/eu/r7"),)
    assert encode_address("h", 1) == encode_address("h", 1, DEFAULT_LOCATION)
    assert decode_service_info(encode_address("h", 1)).properties == ()


@pytest.mark.parametrize("text", ["", "r7", "/a/b/c", "/a b/c"])
def test_a_registration_whose_location_cannot_be_read_counts_as_the_default_one(text: str) -> None:
    assert location_of(encode_service_info(BookieServiceInfo((), (("networkLocation", text),)))) == DEFAULT_LOCATION
    assert location_of(b"") == location_of(b"\xff") == DEFAULT_LOCATION


def test_without_data_the_id_is_the_address() -> None:
    assert address_of(BOOKIE, b"") == ("127.0.0.1", 3181)
    for odd in ("bookie-1", "host:", ":3181", "host:0", "host:65536", "host:٣"):
        with pytest.raises(DamagedError, match="address"):
            address_of(BookieId(odd), b"")


COOKIE = Cookie(BOOKIE, ("/j1", "/j2"), ("/a", "/b"), "0e0e-1")


def test_a_cookie_is_the_text_java_writes() -> None:
    assert encode_cookie(COOKIE) == (
        '5\nbookieHost: "127.0.0.1:3181"\njournalDir: "/j1,/j2"\nledgerDirs: "2\\t/a\\t/b"\ninstanceId: "0e0e-1"\n'
    )


@pytest.mark.parametrize("cookie", [COOKIE, Cookie(BOOKIE, ("/j",), ('/a b"\\\n\u00e9',), "", ("/i", "/k"))])
def test_a_cookie_reads_back(cookie: Cookie) -> None:
    assert decode_cookie(encode_cookie(cookie)) == cookie
    assert decode_cookie(encode_cookie(cookie).encode()) == cookie


@pytest.mark.parametrize(
    "text",
    ["", "5", "6\n", "x\n", "5\nbookieHost: 1", '5\nbookieHost: "b"\n', "5\n}",
     '5\nbookieHost: "b" journalDir: "/j" ledgerDirs: "2\t/a"', '5\nbookieHost: "b" journalDir: "/j" ledgerDirs: "/a"'],
)  # fmt: skip
def test_what_is_no_cookie_is_told(text: str) -> None:
    with pytest.raises(CookieError):
        decode_cookie(text)


@settings(max_examples=100)
@given(st.data())
def test_a_broken_cookie_ends_in_a_cookie_or_a_typed_error(data: st.DataObject) -> None:
    text = bytearray(encode_cookie(COOKIE).encode())
    text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CookieError):
        decode_cookie(bytes(text))


def test_a_registration_says_whether_the_bookie_serves_summaries() -> None:
    location = NetworkLocation("eu", "r1")
    for told in (encode_address("h", 1, location, summaries=True), encode_address("h", 1, summaries=True)):
        assert has_summaries(told) and address_of(BookieId("b"), told) == ("h", 1)
    assert location_of(encode_address("h", 1, location, summaries=True)) == location
    for told in (encode_address("h", 1, location), b"", b"\xff"):
        assert not has_summaries(told)
