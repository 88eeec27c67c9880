"""Tests what is read of an entry for a store's index: it agrees with the search, and no bytes make it fail."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.log.contents import entry_span, read_contents
from dlog.log.dedup_trailer import MAGIC, ProducerSnapshot, ProducerTableSnapshot, encode_trailer
from dlog.log.seeking import SeekTarget
from dlog.stores.object_storage.seeking import is_span_before
from dlog.wire.entry import (
    CONTROL,
    RECORD_SET,
    Codec,
    Record,
    build_record_set,
    control_record,
    encode_entry,
    end_of_stream_record,
)
from dlog.wire.stream_object import ANY_SPAN, Span
from tests.integration.stores.seeking import START_MS, draw_entries, entry_payload

SNAPSHOT = ProducerTableSnapshot((0, -1), (ProducerSnapshot(b"p" * 16, 0, 1, ()),))


def joined(*records: Record, codec: Codec = Codec.NONE) -> bytes:
    return b"".join(encode_entry(records, codec))


def batch(txid: int) -> Record:
    return Record(RECORD_SET, 1, txid, build_record_set([b"x", b"y"]))


def trailer(unix_ms: int) -> Record:
    return Record(CONTROL, 1, 9, encode_trailer(unix_ms, 0, [(b"p" * 16, 0, 2, 1, 0)], SNAPSHOT))


@pytest.mark.parametrize("codec", list(Codec))
def test_an_entry_has_its_records_txids_and_the_time_of_its_trailer(codec: Codec) -> None:
    assert entry_span(joined(batch(5), batch(9), trailer(1000), codec=codec)) == Span(5, 9, 1000, 1000)
    assert entry_span(memoryview(joined(batch(5), batch(9), codec=codec))) == Span(5, 9, 5, 9)


def test_an_entry_without_records_has_none() -> None:
    assert entry_span(joined(control_record(3, 9))) is None
    assert entry_span(joined(trailer(1000))) is None
    assert entry_span(joined(end_of_stream_record(3))) is None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"of another program",
        joined(batch(5), trailer(1000))[:-40],
        joined(batch(5), Record(CONTROL, 1, 5, MAGIC)),
        joined(batch(5), Record(CONTROL, 1, 5, MAGIC + b"\x94\xcf")),
        joined(batch(5), Record(CONTROL, 1, 5, MAGIC + b"\x94\xcf" + b"\xff" * 8)),
        joined(batch(5), Record(CONTROL, 1, 5, MAGIC + b"\xc0")),
        joined(batch(5), Record(CONTROL, 1, 5, MAGIC + b"\x94\xa1\xff")),
    ],
)
def test_an_entry_that_cannot_be_read_may_have_anything(payload: bytes) -> None:
    assert entry_span(payload) == ANY_SPAN


@given(st.binary(max_size=80), st.integers(0, 80), st.booleans())
def test_no_bytes_make_it_fail(noise: bytes, at: int, is_entry: bool) -> None:
    payload = entry_payload([5, 6], 1000)
    entry_span(payload[:at] + noise + payload[at + len(noise) :] if is_entry else noise)


@given(st.integers(0, 2**32), st.integers(-3, 300))
def test_no_target_is_found_outside_of_a_span(seed: int, least: int) -> None:
    for payload in draw_entries(random.Random(seed), 5):
        span = entry_span(payload)
        if span == ANY_SPAN:
            continue
        contents = read_contents(payload)
        for target in (SeekTarget(False, least), SeekTarget(True, least + START_MS)):
            is_before = is_span_before(span, target.least, by_time=target.by_time)
            assert (target.slot_in(contents) is not None) == (is_before is False)
            assert is_before is not None or not contents.txids
