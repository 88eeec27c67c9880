"""Tests the envelope of a region's records, and regions that are streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError, DamagedError, InvalidRequestError
from dlog.spark.jobs import wal
from dlog.spark.jobs.frame import Selection
from dlog.spark.jobs.wal import MAGIC, NUMBER_MAX, SCHEMA, RegionPiece, StreamWal, decode, encode

number = st.one_of(st.integers(0, 9), st.integers(0, NUMBER_MAX))
PIECE = RegionPiece(region="r", number=0, bytes=1, records=1, told=())


@given(st.lists(st.one_of(st.tuples(number, number, st.binary(max_size=9)), st.binary(max_size=40))), st.integers(0, 3))
def test_what_is_encoded_is_decoded_and_nothing_else(told: list[Any], skipped: int) -> None:
    """Decoding also works on an array that is a slice of another one."""
    values = [one if isinstance(one, bytes) else encode(*one) for one in told]
    array = pa.array([b"0123"] * skipped + values, pa.binary()).slice(skipped)
    tables, sequences, is_ours = decode(array)
    assert len(tables) == len(sequences) == len(is_ours) == len(values)
    for one, table, sequence, ours in zip(told, tables, sequences, is_ours, strict=True):
        if isinstance(one, bytes):
            assert not ours or (one.startswith(MAGIC) and len(one) >= 20)
        else:
            assert ours and (table, sequence) == one[:2]


@pytest.mark.parametrize("numbers", [(-1, 0), (0, -1), (NUMBER_MAX + 1, 0), (0, NUMBER_MAX + 1)])
def test_numbers_out_of_bounds_are_refused(numbers: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequestError, match="from 0 to"):
        encode(*numbers, b"")


def test_numbers_that_no_encoder_writes_are_no_record() -> None:
    above = MAGIC + (NUMBER_MAX + 1).to_bytes(8, "little") + bytes(8)
    assert not decode(pa.array([above], pa.binary()))[2][0]


def stream_wal(**source: str) -> StreamWal:
    return StreamWal(Selection(zookeeper="h:1", streams=("r",)), source)


def some(values: list[bytes]) -> pa.RecordBatch:
    rows = range(len(values))
    schema = wal._READ
    columns: dict[str, Any] = {"segment": [1] * len(values), "entry": rows, "slot": [0] * len(values), "txid": rows}
    columns |= {"timestamp": rows, "value": values}
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in schema], schema=schema)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    values = [encode(7, 1, b"a"), b"a letter", encode(8, 1, b""), b""]

    def batches(*_: Any, **__: Any) -> Iterator[pa.RecordBatch]:
        yield some(values)

    monkeypatch.setattr(wal, "batches", batches)
    return values


def test_a_record_that_is_not_of_a_region_is_damage_with_its_place(stream: list[bytes]) -> None:
    with pytest.raises(DamagedError, match=r"not a record of a region.*stream=r segment=1 entry=1 slot=0"):
        list(stream_wal().read(PIECE, (), print))


def test_or_is_left_out_and_told_of_if_that_was_asked_for(stream: list[bytes]) -> None:
    told: list[str] = []
    (batch,) = stream_wal(onCorruption="skip-entry").read(PIECE, (), told.append)
    assert batch.schema.equals(SCHEMA)
    rows = [(r["entry"], r["table"], r["sequence"], r["payload"]) for r in batch.to_pylist()]
    assert rows == [(0, 7, 1, b"a"), (2, 8, 1, b"")]
    assert len(told) == 1 and "entry=1 slot=0 records=2, left out" in told[0]


def test_regions_are_named_and_options_of_the_source_are_judged() -> None:
    with pytest.raises(ConfigError, match="name the streams that are regions"):
        StreamWal(Selection(zookeeper="h:1"), {})
    for name in ("metadata", "stream", "pushdown", "zookeeper"):
        with pytest.raises(ConfigError, match=f"option={name}|exactly one of"):
            stream_wal(**{name: "x"})
    with pytest.raises(ConfigError, match="did you mean startingTxid"):
        stream_wal(startingTxidd="7")
    assert stream_wal(startingTxid="7").identity()["startingtxid"] == "7"
