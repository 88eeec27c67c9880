"""Tests stream metadata: segments of every version, the binding, and dlog's own owner and settings."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import DamagedError, InvalidRequestError, UnsupportedVersionError
from dlog.model.ids import NO_ENTRY, NO_TXID, EntryId, Epoch, ProxyId, SegmentNumber, Txid
from dlog.model.segment import Location, Owner, Segment, StreamSettings, Truncation
from dlog.model.sink import SinkBatch, SinkRecord
from dlog.stores.kinds import SCHEMAS, stored_settings
from dlog.wire.stream_metadata import (
    Binding,
    decode_binding,
    decode_incarnation,
    decode_number,
    decode_owner,
    decode_segment,
    decode_settings,
    decode_sinks,
    encode_binding,
    encode_number,
    encode_owner,
    encode_segment,
    encode_settings,
    encode_sinks,
    parse_segment_name,
    segment_name,
    settings_from_map,
    settings_to_map,
)

I63 = st.integers(0, 2**63 - 1)
IN_LEDGERS = st.builds(Location, st.just("ledger"), I63.map(str))
IN_OTHERS = st.builds(Location, st.sampled_from(["file", "a:b"]), st.text(max_size=12))


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    version = draw(st.integers(2, 5))
    completed = draw(st.booleans())
    store = draw(st.sampled_from(["ledger", "s3", "a;b"]))
    return Segment(
        number=SegmentNumber(draw(st.integers(0, 10**18 - 1))),
        name=str(draw(I63)) if store == "ledger" else draw(st.text(max_size=12)),
        store=store,
        former=None if store == "ledger" else draw(st.none() | IN_LEDGERS | IN_OTHERS),
        first_txid=Txid(draw(I63)),
        completed=completed,
        last_txid=Txid(draw(I63)) if completed else NO_TXID,
        last_entry=EntryId(draw(st.integers(-1, 2**62))) if completed else NO_ENTRY,
        last_slot=draw(st.integers(-1, 2**31)) if completed else -1,
        record_count=draw(st.integers(0, 2**32 - 1)) if completed else 0,
        completed_unix_ms=draw(I63) if completed else 0,
        truncation=draw(st.sampled_from(Truncation)),
        min_entry=EntryId(draw(I63)) if version > 2 else EntryId(0),
        min_slot=draw(I63) if version > 2 else 0,
        start_sequence_id=draw(st.integers(-1, 2**62)) if version > 4 else -1,
        region=draw(st.integers(0, 15)),
        version=version,
    )


@settings(max_examples=120)
@given(segments())
def test_segments_read_back(segment: Segment) -> None:
    assert decode_segment(segment_name(segment), encode_segment(segment)) == segment


@settings(max_examples=120)
@given(segments(), st.data())
def test_a_changed_byte_ends_in_a_segment_or_a_typed_error(segment: Segment, data: st.DataObject) -> None:
    packed = bytearray(encode_segment(segment))
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DamagedError, UnsupportedVersionError):
        decode_segment(segment_name(segment), packed)


@pytest.mark.parametrize(
    "name,data",
    [
        ("inprogress_000000000000000001", "2;9;1000;1"),
        ("inprogress_000000000000000001", "3;9;1000;1;0;0"),
        ("inprogress_000000000000000001", "4;9;1000;1;5;2"),
        ("logrecs_000000000000000001", "12884901890;9;1000;2000;77;1;8;0"),
        ("logrecs_000000000000000001", "12884901892;9;1000;2000;77;1;8;0;5;2"),
    ],
)
def test_older_versions_are_read_and_rewritten_in_their_own_form(name: str, data: str) -> None:
    assert encode_segment(decode_segment(name, data.encode())) == data.encode()


@pytest.mark.parametrize("f0", [0, 1, 6, 255])
def test_other_versions_are_unsupported(f0: int) -> None:
    with pytest.raises(UnsupportedVersionError):
        decode_segment("inprogress_000000000000000001", f"{f0};9;1000;1;0;0;-1".encode())


@pytest.mark.parametrize(
    "data",
    ["", "x", "5", "5;9;1000;1;0;0", "5;9;1000;1;0;0;-1;1", "5;9;1000;2;0;0;-1", "5;9;1 0;1;0;0;-1", "5;9;;1;0;0;-1",
     "5;9;99999999999999999999;1;0;0;-1", "773;9;1000;1;0;0;-1", "5;9;٣;1;0;0;-1", "5;9;1;2;3;1;0;0;0;0;0",
     "5;-1;1000;1;0;0;-1;s3;a;file", "5;9;1000;1;0;0;-1;s3;a;file;b",
     "5;9;1000;1;0;0;-1;ledger;8", "5;-1;1000;1;0;0;-1;s3;a;ledger;8"],
)  # fmt: skip
def test_what_is_no_segment_is_damaged(data: str) -> None:
    with pytest.raises(DamagedError):
        decode_segment("inprogress_000000000000000001", data.encode())


@pytest.mark.parametrize(
    "name", ["", "lock", "inprogress_1", "logrecs_00000000000000000x", "inprogress_ff", "logrecs_000000000000000001_2"]
)
def test_what_is_no_segment_name_is_not_parsed(name: str) -> None:
    assert parse_segment_name(name) is None
    with pytest.raises(DamagedError):
        decode_segment(name, b"5;9;1000;1;0;0;-1")


LAST = Segment(number=SegmentNumber(10**18 - 1), name="7", first_txid=Txid(0), start_sequence_id=2**63 - 1)


@pytest.mark.parametrize("field", ["number", "start_sequence_id", "record_count"])
def test_a_segment_with_a_number_that_could_not_be_read_back_is_not_written(field: str) -> None:
    last = replace(LAST, completed=True, record_count=2**32 - 1, last_txid=Txid(0), last_entry=EntryId(0), last_slot=0)
    assert decode_segment(segment_name(last), encode_segment(last)) == last
    beyond = replace(last, **{field: getattr(last, field) + 1})
    with pytest.raises(DamagedError, match=f"too large to be stored.* value={getattr(beyond, field)} limit="):
        encode_segment(beyond)


def test_numbers() -> None:
    for number in (0, 1, -1, 2**63 - 1):
        assert decode_number(encode_number(number), "maxtxid") == number
    for data in (b"", b"x", b"1 ", b"1\n", b"\xff", b"9" * 20):
        with pytest.raises(DamagedError, match=r"maxtxid|not text"):
            decode_number(data, "maxtxid")
    with pytest.raises(DamagedError, match="the number is too large to be stored"):
        encode_number(2**63)


# ---- binding --------------------------------------------------------------------------------------------------------

BINDING = Binding(bookkeeper_zookeeper="h:1", ledgers_path="/ledgers", zookeeper="h:2")


@settings(max_examples=40)
@given(
    st.builds(
        Binding,
        bookkeeper_zookeeper=st.text(),
        ledgers_path=st.text(),
        zookeeper=st.text(),
        sanity_check_txid=st.none() | st.booleans(),
        acl_root=st.none() | st.text(),
        first_segment=st.none() | I63,
        federated=st.none() | st.booleans(),
    )
)
def test_a_binding_reads_back(binding: Binding) -> None:
    assert decode_binding(encode_binding(binding)) == binding


def test_a_binding_tolerates_order_and_unknown_fields() -> None:
    data = b'1\nBKDL\n{"99":{"str":"x"},"6":{"str":"h:2"},"2":{"str":"/ledgers"},"1":{"str":"h:1"}}'
    assert decode_binding(data) == BINDING


@pytest.mark.parametrize(
    "data",
    [b"1\nBKDL\n", b"1\nBKDL\n[]", b"1\nBKDL\n{}", b'1\nBKDL\n{"1":{"i64":1}}', b'1\nBKDL\n{"1":"x"}', b"\xff",
     b"1\nBKDL\n" + b"[" * 100_000],
)  # fmt: skip
def test_a_broken_binding_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError):
        decode_binding(data)


@pytest.mark.parametrize("data", [b"", b"2\nBKDL\n{}", b"1\nOTHER\n{}"])
def test_another_kind_of_binding_is_unsupported(data: bytes) -> None:
    with pytest.raises(UnsupportedVersionError):
        decode_binding(data)


# ---- owner and settings ---------------------------------------------------------------------------------------------

OWNER = Owner(epoch=Epoch(7), proxy=ProxyId("p1"), address="h:9", claim="abc", released=True)


def test_an_owner_reads_back_whatever_else_is_there() -> None:
    assert decode_owner(encode_owner(OWNER)) == OWNER
    assert decode_owner(json.dumps(json.loads(encode_owner(OWNER)) | {"later": [1]}).encode()) == OWNER
    assert decode_owner(b"") == decode_owner(b"{}") == Owner()


def test_an_epoch_or_version_that_could_not_be_read_back_is_not_written() -> None:
    last = replace(OWNER, epoch=Epoch(2**63 - 1))
    assert decode_owner(encode_owner(last, "1f", 2**63 - 1)) == last
    with pytest.raises(DamagedError, match="the owner epoch is too large to be stored"):
        encode_owner(replace(last, epoch=Epoch(last.epoch + 1)))
    with pytest.raises(DamagedError, match="the trim point is too large to be stored"):
        encode_owner(last, "1f", 2**63)
    altered = replace(SETTINGS, version=2**63 - 1)
    assert stored(encode_settings(altered)) == altered
    with pytest.raises(DamagedError, match="the settings version is too large to be stored"):
        encode_settings(replace(altered, version=altered.version + 1))


def test_a_life_stands_beside_the_owner() -> None:
    assert decode_owner(encode_owner(OWNER, "1f")) == OWNER
    assert decode_incarnation(encode_owner(OWNER, "1f")) == "1f"
    assert decode_incarnation(encode_owner(OWNER)) == decode_incarnation(b"") == ""


@pytest.mark.parametrize("data", [b"x", b"[]", b'{"life":7}', b'{"life":"a/b"}', b'{"life":"1f\\n"}'])
def test_a_broken_life_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError):
        decode_incarnation(data)


@pytest.mark.parametrize("data", [b"x", b"[]", b'{"epoch":"7"}', b'{"epoch":true}', b'{"proxy":1}', b'{"released":0}'])
def test_a_broken_owner_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError):
        decode_owner(data)


LEDGERS = (("ensemble", 5), ("write_quorum", 3), ("ack_quorum", 2), ("min_regions", 1))
SETTINGS = StreamSettings(store="ledger", store_settings=LEDGERS, segment_bytes=1, segment_age_s=0.5)
DEFAULTS = StreamSettings(store_settings=(("ensemble", 3), ("write_quorum", 3), ("ack_quorum", 2), ("min_regions", 1)))


def requested(values: dict[str, Any], base: StreamSettings = DEFAULTS) -> StreamSettings:
    return settings_from_map(values, base, lambda store, given: SCHEMAS[store].complete(given))


def stored(data: bytes) -> StreamSettings:
    return decode_settings(data, stored_settings)


def test_settings_read_back_whatever_else_is_there() -> None:
    assert stored(encode_settings(SETTINGS)) == SETTINGS
    assert stored(json.dumps(settings_to_map(SETTINGS) | {"later": 1, "even": []}).encode()) == SETTINGS
    assert stored(b"") == stored(b"{}") == DEFAULTS
    altered = replace(SETTINGS, version=7)
    assert stored(encode_settings(altered)) == altered
    assert b"version" not in encode_settings(SETTINGS), "settings that were never altered keep their bytes"
    assert requested({"retention_s": 60}, altered).version == 7
    with pytest.raises(InvalidRequestError):
        requested({"version": 1}, altered)


def test_the_settings_of_a_stream_on_ledgers_keep_their_bytes() -> None:
    assert encode_settings(SETTINGS) == (
        b'{"store":"ledger","ensemble":5,"write_quorum":3,"ack_quorum":2,"min_regions":1,'
        b'"segment_bytes":1,"segment_age_s":0.5,"retention_s":0.0}'
    )


def test_a_store_has_its_own_settings_only_and_does_not_read_those_of_another() -> None:
    files = requested({"store": "file"})
    assert files.store_settings == (), "the settings of the store that it had before are gone"
    plain = b'"segment_bytes":268435456,"segment_age_s":7200.0,"retention_s":0.0}'
    assert encode_settings(files) == b'{"store":"file",' + plain
    earlier = json.dumps(settings_to_map(DEFAULTS) | {"store": "file"}).encode()
    assert stored(earlier) == files, "earlier versions wrote the settings of ledgers for every store"
    assert requested({"store": "ledger", "ack_quorum": 1}, files).store_settings == (
        ("ensemble", 3), ("write_quorum", 3), ("ack_quorum", 1), ("min_regions", 1))  # fmt: skip


def test_settings_of_a_store_that_is_not_known_here_are_kept() -> None:
    data = b'{"store":"tape","partitions":7,"segment_bytes":1,"segment_age_s":1.0,"retention_s":0.0}'
    assert encode_settings(stored(data)) == data


@pytest.mark.parametrize("data", [b"x", b"[]", b'{"ensemble":1}', b'{"ensemble":"3"}', b'{"store":1}',
                                  b'{"segment_age_s":NaN}', b'{"version":-1}', b'{"version":true}',
                                  b'{"version":1e3}'])  # fmt: skip
def test_broken_settings_are_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError):
        stored(data)


def test_settings_asked_for_start_from_a_base() -> None:
    for_ever = requested({"retention_s": 0})
    assert stored(encode_settings(for_ever)) == for_ever
    found = requested({"retention_s": 60, "ack_quorum": 3}, SETTINGS)
    assert (found.retention_s, dict(found.store_settings)["ack_quorum"], found.store) == (60.0, 3, "ledger")


@pytest.mark.parametrize(
    "values",
    [{"replicas": 3}, {"ensemble": "3"}, {"ensemble": True}, {"ensemble": 2.0}, {"ensemble": 0}, {"ack_quorum": 4},
     {"ensemble": 2**31}, {"segment_bytes": -1}, {"segment_bytes": 2**60}, {"retention_s": "72h"},
     {"retention_s": float("nan")}, {"store": ""}],
)  # fmt: skip
def test_settings_asked_for_in_vain_say_why(values: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        requested(values)


SINK_NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True)
COUNTS = st.integers(0, 2**63 - 1)


@given(st.lists(st.tuples(SINK_NAMES, COUNTS, SINK_NAMES, COUNTS, st.none() | st.tuples(COUNTS, COUNTS)), max_size=5))
def test_sinks_read_back(told: list[tuple[str, int, str, int, tuple[int, int] | None]]) -> None:
    by_name = {t[0]: SinkRecord(SinkBatch(*t[:4]), t[4]) for t in told}
    records = tuple(by_name[name] for name in sorted(by_name))
    assert decode_sinks(encode_sinks(records)) == records
    assert decode_sinks(b"") == ()


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b'{"s":[1,"q",2]}', b'{"s":[-1,"q",2,null]}', b'{"s":[1,"q",2,[1]]}', b'{"s":[1,2,3,null]}']
)
def test_broken_sinks_are_damaged(data: bytes) -> None:
    """Forgetting a sink would write its batches again."""
    with pytest.raises(DamagedError):
        decode_sinks(data)
