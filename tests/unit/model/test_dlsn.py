"""Tests DLSNs: order, DistributedLog's bytes and text, and the forms that a user may type."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import InvalidRequestError
from dlog.model.dlsn import DLSN, DLSN_BEFORE_ALL, DLSN_FIRST, DLSN_INVALID, from_bytes, of, parse

I64 = st.integers(-(2**63), 2**63 - 1)
dlsns = st.builds(of, I64, I64, I64)


@settings(max_examples=60)
@given(dlsns)
def test_every_form_reads_back(dlsn: DLSN) -> None:
    assert from_bytes(dlsn.to_bytes()) == dlsn
    assert parse(dlsn.to_base64()) == dlsn
    assert parse(str(dlsn)) == dlsn
    assert parse(f"({dlsn.segment},{dlsn.entry},{dlsn.slot})") == dlsn


@settings(max_examples=60)
@given(st.lists(st.builds(of, *[st.integers(0, 3)] * 3), max_size=8))
def test_order_is_segment_then_entry_then_slot(found: list[DLSN]) -> None:
    assert sorted(found) == sorted(found, key=lambda d: d.segment * 100 + d.entry * 10 + d.slot)


def test_constants_stand_in_order() -> None:
    assert DLSN_INVALID < DLSN_BEFORE_ALL < DLSN_FIRST < DLSN_FIRST.next_slot() == of(1, 0, 1)


@pytest.mark.parametrize("text,dlsn", [("3", of(3, 0, 0)), ("3:17", of(3, 17, 0)), (" 3:17:2 ", of(3, 17, 2))])
def test_parts_may_be_left_out(text: str, dlsn: DLSN) -> None:
    assert parse(text) == dlsn


@pytest.mark.parametrize("text", ["", "x", "1:2:3:4", "1::2", "1:2:x", "99999999999999999999", "AQAA", "AQAA=", "1.5"])
def test_what_is_no_dlsn_is_told_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="segment:entry:slot"):
        parse(text)


def test_version_0_is_padded() -> None:
    padded = b"\0" + of(3, 17, 2).to_bytes()[1:] + bytes(175)
    assert from_bytes(padded) == of(3, 17, 2)


@settings(max_examples=100)
@given(st.binary(max_size=40))
def test_hostile_bytes_end_in_a_dlsn_or_a_typed_error(data: bytes) -> None:
    with contextlib.suppress(InvalidRequestError):
        from_bytes(data)


@settings(max_examples=100)
@given(st.text(max_size=40))
def test_hostile_text_ends_in_a_dlsn_or_a_typed_error(text: str) -> None:
    with contextlib.suppress(InvalidRequestError):
        parse(text)
