"""Places as Spark keeps them: one spelling, and nothing that is none."""

from __future__ import annotations

import json

import pytest

from dlog.errors import ConfigError
from dlog.spark.places import Place, offsets_json, offsets_of, place_of


def test_offsets_have_one_spelling() -> None:
    """Trap 20: Spark compares the text; an order of keys that changes makes empty batches for ever."""
    one = json.dumps(offsets_json({"b": Place(1, 2), "a": Place(3, 4, 5)}))
    other = json.dumps(offsets_json({"a": Place(3, 4, 5), "b": Place(1, 2, 0)}))
    assert one == other == '{"a": [3, 4, 5], "b": [1, 2]}'
    assert json.dumps(offsets_json(offsets_of(one, "x"))) == one


@pytest.mark.parametrize("value", [None, 3, "3", [], [1], [1, 2, 3, 4], [1, -1], [1, True], [1, 2.0], [1, 2**63]])
def test_what_is_no_place_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigError, match=r"startingOffsets of a: a place is \[segment, entry\]"):
        place_of(value, "startingOffsets of a")


@pytest.mark.parametrize("told", ["{", "[]", "3", '{"a":[1]}', "[" * 100_000])
def test_what_are_no_offsets_is_refused(told: str) -> None:
    with pytest.raises(ConfigError, match="offsets"):
        offsets_of(told, "offsets")
