"""docs/protocol.md matches the code: every operation, field, enumeration, error, limit and key."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack

from dlog.errors import DLogError
from dlog.log.dedup_trailer import BatchPosition, ProducerSnapshot, ProducerTableSnapshot, TrailerBatch, encode_trailer
from dlog.model.ids import SegmentNumber, StreamName, Txid
from dlog.model.segment import Segment, StreamMetadata
from dlog.objects.errors import BY_CODE as REFUSALS
from dlog.objects.operation_codec import OPERATION_BYTES_MAX, OPERATIONS, RESULTS
from dlog.wire import bookie, proxy_codec
from dlog.wire.bookie import Code
from dlog.wire.entry import RECORD_BYTES_MAX, SET_OVERHEAD, SET_RECORD_OVERHEAD
from dlog.wire.proxy import Op, ReaderEventKind, Start
from dlog.wire.proxy_codec import SCHEMA
from dlog.wire.stream_metadata import settings_to_map
from proxies import catalog
from tests.stream_settings import SETTINGS

TEXT = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()


def section(title: str) -> str:
    """The text from the heading that begins with `title` to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}.*?$(.*?)(?=^#+ |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"the document has no section {title}"
    return found[1]


def rows(title: str, index: int = 0) -> list[list[str]]:
    """Cells of the index-th table of a section, without its head."""
    tables = re.findall(r"(?:^\|.*\n)+", section(title), re.MULTILINE)
    lines = tables[index].strip().split("\n")[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_operation_and_its_fields() -> None:
    documented = {}
    for number, name, fields, *_ in rows("1.4"):
        documented[int(number)] = (name, re.findall(r"(\w+) `([^`]+)`", fields))
    assert documented == {
        int(op): (op.name, [(field, kind.name) for field, kind in fields]) for op, (_, fields) in SCHEMA.items()
    }


def test_the_messages_with_a_body() -> None:
    with_body = {int(row[0]) for row in rows("1.4") if len(row) > 3 and row[3]}
    assert with_body == {Op.WRITE, Op.SINK_WRITE, Op.IMPORT_SEGMENTS, Op.OBJECTS_ASK, Op.DONE, Op.ENTRIES}


def test_every_kind_is_explained() -> None:
    explained = {name for row in rows("1.1") for name in re.findall(r"`([^`]+)`", row[0])}
    used = {kind.name.removesuffix(" or nil") for _, fields in SCHEMA.values() for _, kind in fields}
    assert used <= explained


def test_enumerations() -> None:
    assert {int(row[0]): row[1] for row in rows("1.6", 0)} == {s.value: s.name for s in Start}
    assert {int(row[0]): row[1] for row in rows("1.6", 1)} == {e.value: e.name for e in ReaderEventKind}


def declared(root: type[DLogError] = DLogError) -> list[type[DLogError]]:
    own = [root] if root.__module__ == "dlog.errors" and "code" in vars(root) else []
    return own + [deep for sub in root.__subclasses__() for deep in declared(sub)]


def test_every_error_by_number() -> None:
    documented = {int(row[0]): tuple(row[1:]) for row in rows("2.")}
    assert documented == {
        cls.code: (cls.__name__, cls.remedy.value, "yes" if cls.outcome_unknown else "no") for cls in declared()
    }


def test_operations_on_metadata_and_answers() -> None:
    for index, kinds in ((1, OPERATIONS), (2, RESULTS)):
        documented = {int(row[0]): (row[1], re.findall(r"`(\w+)`", row[2])) for row in rows("1.11", index)}
        assert documented == {
            kind: ("nil", [])
            if cls is type(None)
            else (cls.__name__, [field.name for field in dataclasses.fields(cls)])
            for kind, (cls, _) in kinds.items()
        }
    refusals = {int(row[0]): row[1] for row in rows("1.11", 3)}
    assert refusals == {code: cls.__name__ for code, cls in REFUSALS.items()}
    assert f"{OPERATION_BYTES_MAX:,}" in section("1.11")


def test_numbers_that_bound() -> None:
    frames = section("1.1")
    for number in (
        proxy_codec.HELLO_LENGTH_MAX,
        proxy_codec.ARRAY_MAX,
        proxy_codec.MAP_MAX,
        proxy_codec.TEXT_MAX,
    ):
        assert f"{number:,}" in frames, number
    batches = section("1.5")
    assert f"{RECORD_BYTES_MAX:,}" in batches
    assert f"{RECORD_BYTES_MAX - SET_OVERHEAD - SET_RECORD_OVERHEAD:,}" in batches
    assert f"{bookie.REQUEST_LENGTH_MAX:,}" in section("3.")


def test_return_codes_of_bookies() -> None:
    sentence = re.search(r"rc: (0 ok.*?)\(state", section("3."), re.DOTALL)
    assert sentence
    found = {int(number) for number in re.findall(r"\b(\d+)\s", sentence[1])}
    assert found == {code.value for code in Code}


def keys_of(title: str, index: int) -> set[str]:
    return {re.findall(r"`(\w+)`", row[0])[0] for row in rows(title, index)}


def test_keys_of_a_stat() -> None:
    stream = StreamMetadata(name=StreamName("s")).with_segment(
        Segment(number=SegmentNumber(1), name="1", first_txid=Txid(0))
    )
    told = asyncio.run(catalog.describe(stream))
    assert keys_of("1.8", 1) == {*told, "durability"}, "the latter is of some stores only"
    by_key = {re.findall(r"`(\w+)`", row[0])[0]: set(re.findall(r"`(\w+)`", row[1])) for row in rows("1.8", 1)}
    assert by_key["segments"] == set(told["segments"][0])
    assert by_key["owner"] == set(told["owner"])


def test_settings_and_their_defaults() -> None:
    documented = {row[0].strip("`"): (row[1], row[2]) for row in rows("5.6")}
    defaults = settings_to_map(SETTINGS)
    assert documented == {key: (type(value).__name__, str(value)) for key, value in defaults.items()}


def test_the_note_of_an_entry() -> None:
    producer = bytes(range(16))
    place = BatchPosition(0, 5, 1, 2, 3, 77)
    snapshot = ProducerTableSnapshot((1, 2), (ProducerSnapshot(producer, 0, 5, (place,)),))
    payload = encode_trailer(1234, -1, [TrailerBatch(producer, 5, 2, 99, 0)], snapshot)
    assert payload[:5] == b"dlog1"
    written: Any = msgpack.unpackb(payload[5:])
    assert written == [
        1234,
        -1,
        [[producer, 5, 2, 99, 0]],
        [[1, 2], [[producer, 0, 5, [[0, 5, 1, 2, 3, 77]]]]],
    ]
    widened: Any = msgpack.unpackb(encode_trailer(1234, -1, [], replace(snapshot, window=16))[5:])
    assert widened[3] == [*written[3], 16]
