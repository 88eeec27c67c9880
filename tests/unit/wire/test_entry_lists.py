"""Lists of entries, as a client decodes them."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.bookie.listing import list_of
from dlog.errors import ProtocolError
from dlog.model.ids import LedgerId
from dlog.wire.bookie import Code
from dlog.wire.bookie_availability import EntryList
from dlog.wire.bookie_v3 import V3Request, decode_v3
from dlog.wire.bookie_v3_asking import (
    decode_list_response,
    decode_space_response,
    encode_list_request,
    encode_space_request,
)
from dlog.wire.bookie_v3_messages import EntriesListed, GetSpace, ListEntries, SpaceReply
from dlog.wire.bookie_v3_responses import encode_v3_response

REFUSED = Code.IO_ERROR


@settings(max_examples=80)
@given(st.lists(st.integers(0, 120)), st.integers(1, 5))
def test_a_list_reads_back(entries: list[int], step: int) -> None:
    held = {entry * step for entry in entries}
    found = EntryList(list_of([], sorted(held)) or b"")
    assert {entry for entry in range(700) if entry in found} == held


def test_no_bytes_are_an_empty_list() -> None:
    assert 0 not in EntryList()


@settings(max_examples=80)
@given(st.binary(max_size=200))
def test_hostile_lists_end_in_a_list_or_a_protocol_error(garbage: bytes) -> None:
    for data in (garbage, struct.pack(">ii56x", 0, len(garbage) // 24) + garbage):
        with contextlib.suppress(ProtocolError):
            assert 5 in EntryList(data) or True


@pytest.mark.parametrize("code", [Code.OK, Code.NO_LEDGER, Code.IO_ERROR])
def test_request_and_response_are_those_of_a_bookie(code: Code) -> None:
    request = decode_v3(memoryview(encode_list_request(ListEntries(LedgerId(7)), 5)[4:]))
    assert isinstance(request, V3Request) and request.message == ListEntries(LedgerId(7))
    listed = list_of([], [1, 2, 3]) or b""
    answer = EntriesListed(LedgerId(7), code, listed if code is Code.OK else b"")
    frame = b"".join(encode_v3_response(request.call, answer))
    assert decode_list_response(frame[4:]) == answer


@settings(max_examples=80)
@given(st.binary(max_size=60))
def test_hostile_responses_end_in_a_response_or_a_protocol_error(garbage: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode_list_response(garbage)


@pytest.mark.parametrize("asked", [GetSpace(), GetSpace(total=False), GetSpace(free=False)])
def test_the_question_for_space_is_that_of_a_bookie(asked: GetSpace) -> None:
    request = decode_v3(memoryview(encode_space_request(asked, 5)[4:]))
    assert isinstance(request, V3Request) and request.message == asked
    for answer in (
        SpaceReply(Code.OK, 10**15 if asked.total else None, 7 if asked.free else None),
        SpaceReply(REFUSED),
    ):
        frame = b"".join(encode_v3_response(request.call, answer))
        assert decode_space_response(frame[4:]) == answer


@settings(max_examples=80)
@given(st.binary(max_size=60))
def test_hostile_answers_for_space_end_in_an_answer_or_a_protocol_error(garbage: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode_space_response(garbage)
