"""Positions as Spark keeps them: one spelling, and other text is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError
from dlog.spark.offsets import (
    BEGINNING,
    StreamOffset,
    StreamPosition,
    offsets_as_json,
    parse_offsets,
    parse_positions,
    position_of,
)


def test_offsets_have_one_spelling() -> None:
    """Trap 20: Spark compares the text; an order of keys that changes makes empty batches for ever."""
    one = json.dumps(
        offsets_as_json(
            {"b": StreamOffset(StreamPosition(1, 2), "x", 3), "a": StreamOffset(StreamPosition(3, 4, 5), ended=True)}
        )
    )
    other = json.dumps(
        offsets_as_json(
            {
                "a": StreamOffset(StreamPosition(3, 4, 5), ended=True),
                "b": StreamOffset(StreamPosition(1, 2, 0), read=3, incarnation="x"),
            }
        )
    )
    expected = (
        '{"streams": {"a": {"at": [3, 4, 5], "ended": true}, "b": {"at": [1, 2], "life": "x", "read": 3}}, "v": 1}'
    )
    assert one == other == expected
    assert json.dumps(offsets_as_json(parse_offsets(one, "x"))) == one


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.builds(
            StreamOffset,
            st.builds(StreamPosition, st.integers(0, 2**63 - 1), st.integers(0, 9), st.integers(0, 9)),
            st.sampled_from(("", "a", "0f-3")),
            st.integers(-1, 2**63 - 1),
            st.integers(-1, 5),
            st.booleans(),
        ),
    )
)
def test_what_is_known_of_places_comes_back(marks: dict[str, StreamOffset]) -> None:
    told = json.dumps(offsets_as_json(marks))
    assert parse_offsets(told, "x") == marks == parse_offsets(json.loads(told), "x")


def test_offsets_of_before_are_read_whatever_streams_are_called() -> None:
    assert parse_offsets('{"a": [3, 4], "v": [1, 2], "streams": [0, 0]}', "x") == {
        "a": StreamOffset(StreamPosition(3, 4)),
        "v": StreamOffset(StreamPosition(1, 2)),
        "streams": StreamOffset(BEGINNING),
    }
    assert parse_positions({"streams": {"a": {"at": [3, 4]}}, "v": 1}, "x") == {"a": StreamPosition(3, 4)}


@pytest.mark.parametrize("value", [None, 3, "3", [], [1], [1, 2, 3, 4], [1, -1], [1, True], [1, 2.0], [1, 2**63]])
def test_what_is_no_place_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigError, match=r"startingOffsets of a: a position is \[segment, entry\]"):
        position_of(value, "startingOffsets of a")


@pytest.mark.parametrize(
    "told",
    [
        *(
            "{",
            "[]",
            "3",
            '{"a":[1]}',
            "[" * 100_000,
            '{"v":2,"streams":{}}',
            '{"v":1}',
            '{"v":1,"streams":{"a":[1,2]}}',
        ),
        *('{"v":1,"streams":{"a":{"at":[1,2],"read":-2}}}', '{"v":1,"streams":{"a":{"at":[1,2],"life":1}}}'),
        *('{"v":1,"streams":{"a":{"at":[1,2],"ended":1}}}', '{"v":1,"streams":{"a":{"life":"x"}}}'),
    ],
)
def test_what_are_no_offsets_is_refused(told: str) -> None:
    with pytest.raises(ConfigError, match="offsets"):
        parse_positions(told, "offsets")
