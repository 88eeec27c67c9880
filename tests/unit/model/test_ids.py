"""Tests which names may become identifiers, and which not."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import InvalidRequestError, InvalidStreamNameError
from dlog.model.ids import METADATA_STREAM, bookie_id, escape_name, is_reserved, stream_name, user_stream_name


@pytest.mark.parametrize("name", ["a", "orders-2024.eu_1", "_x", "-", "9", "a..b", "a" * 200])
def test_stream_names(name: str) -> None:
    assert stream_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "a/b", "a b", "a\n", "\n", "<default>", "a\0", "\u00e9", "a" * 201, "a,b", "a%2F"],
)
def test_stream_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidStreamNameError) as caught:
        stream_name(name)
    assert caught.value.code == 602


@pytest.mark.parametrize("name", ["127.0.0.1:3181", "bookie-1", "a_b.c"])
def test_bookie_ids(name: str) -> None:
    assert bookie_id(name) == name


@pytest.mark.parametrize("name", ["", "readonly", "a b", "a/b", "b\n", "[::1]:3181", "\u00e9", "x" * 256])
def test_bookie_ids_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        bookie_id(name)


@given(st.text().filter(str.isprintable))
def test_any_text_is_escaped_to_a_part_of_a_name(text: str) -> None:
    escaped = escape_name(text)
    assert unquote(escaped) == text
    assert not set(escaped) & set("/-. ")


def test_ids_of_ledgers_and_names_of_files_are_not_changed() -> None:
    assert escape_name("4711") == "4711"
    assert escape_name("00ff" * 8) == "00ff" * 8


def test_names_that_dlog_keeps_for_itself() -> None:
    assert stream_name(METADATA_STREAM) == METADATA_STREAM  # it may be read
    for name in (METADATA_STREAM, "_dlog.", "_dlog.x"):
        assert is_reserved(name)
        with pytest.raises(InvalidStreamNameError, match="reserved"):
            user_stream_name(name)
    for name in ("_dlog", "dlog.x", "__dlog.x", "a_dlog."):
        assert not is_reserved(name)
        assert user_stream_name(name) == name
    with pytest.raises(InvalidStreamNameError, match="empty"):
        user_stream_name("")
