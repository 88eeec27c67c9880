"""Tests options: built from text, refused by name, drawn by simulations within their range."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import ConfigError
from dlog.options import GiB, KiB, MiB, build, draw, option, parse_bytes, parse_duration_s, parse_unix_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One of each kind."""

    segment_bytes: int = option(256 * MiB, sim=(1, 4096))
    roll_s: float = option(2.0, sim=(0.0, 0.5))
    host: str = "127.0.0.1"
    on: bool = True
    id: str | None = None
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.segment_bytes <= 0:
            raise ValueError("segment_bytes is positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needy:
    name: str


def test_defaults_stand_where_nothing_is_said() -> None:
    assert build(Sample, {}) == Sample()


@pytest.mark.parametrize(
    "values,wanted",
    [
        ({"segment_bytes": "64KiB"}, Sample(segment_bytes=64 * KiB)),
        ({"segment_bytes": 5}, Sample(segment_bytes=5)),
        ({"roll_s": "3m"}, Sample(roll_s=180.0)),
        ({"roll_s": 3}, Sample(roll_s=3.0)),
        ({"on": "no", "host": "h"}, Sample(on=False, host="h")),
        ({"on": False}, Sample(on=False)),
        ({"id": "x"}, Sample(id="x")),
        ({"hosts": ["a", "b"]}, Sample(hosts=("a", "b"))),
        ({"hosts": "a,b"}, Sample(hosts=("a", "b"))),
    ],
)
def test_values_as_people_write_them(values: dict[str, Any], wanted: Sample) -> None:
    assert build(Sample, values) == wanted


@pytest.mark.parametrize(
    "values",
    [
        {"segment_byte": 1},
        {"segment_bytes": 1.5},
        {"segment_bytes": True},
        {"segment_bytes": "many"},
        {"segment_bytes": 0},
        {"roll_s": "soon"},
        {"roll_s": None},
        {"host": 1},
        {"on": 1},
        {"on": "maybe"},
        {"hosts": [1]},
        {"hosts": 1},
    ],
)
def test_what_is_wrong_is_refused_by_name_and_source(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"bookie\.toml") as caught:
        build(Sample, values, where="bookie.toml")
    assert next(iter(values)).removesuffix("s") in str(caught.value)


def test_what_has_no_default_must_be_said() -> None:
    with pytest.raises(ConfigError, match="name"):
        build(Needy, {})
    assert build(Needy, {"name": "x"}).name == "x"


@pytest.mark.parametrize(
    "text,size", [("0", 0), ("7", 7), ("7B", 7), ("2KiB", 2 * KiB), (" 3 MiB ", 3 * MiB), ("1GiB", GiB)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "KiB", "-1", "1.5MiB", "1MB", "1 kib", "x", "1KiBB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "unix_ms"),
    [
        ("2026-11-20T08:00Z", 1_795_161_600_000),
        ("2026-11-20 09:00:00.123+01:00", 1_795_161_600_123),
        ("20261120T080000Z", 1_795_161_600_000),
        (" 1795161600 ", 1_795_161_600_000),
        ("1795161600.25", 1_795_161_600_250),
        ("1795161600123", 1_795_161_600_123),
        ("2001-09-09T01:46:40Z", 1_000_000_000_000),
        ("2099-12-31T23:59:59Z", 4_102_444_799_000),
    ],
)
def test_times(text: str, unix_ms: int) -> None:
    assert parse_unix_ms(text) == unix_ms


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("20261120", "ten digits for unix seconds"),
        ("0", "ten digits"),
        ("1000", "ten digits"),
        ("17951616001234", "ten digits"),
        ("1795161600123000", "ten digits"),
        ("2026-11-20", "which time zone"),
        ("2026-11-20T08:00", "which time zone"),
        ("1970-01-01T00:00Z", "between 2001"),
        ("2206-11-20T08:00Z", "between 2001"),
        ("0001-01-01T00:00+14:00", "between 2001"),
        ("9999999999", "between 2001"),
        ("9999999999999", "between 2001"),
        ("0999999999", "between 2001"),
        ("", "a time is"),
        ("yesterday", "a time is"),
        ("nan", "a time is"),
        ("-1795161600", "a time is"),
        ("1e9", "a time is"),
        ("1_795_161_600", "a time is"),
        ("\u0661" * 10, "a time is"),
        ("2026-13-20T08:00Z", "a time is"),
        ("9" * 5000, "a time is"),
    ],
)
def test_a_time_that_may_be_another_one_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_unix_ms(text)


@pytest.mark.parametrize(
    "text,seconds", [("250ms", 0.25), ("1.5", 1.5), ("2s", 2), ("2m", 120), ("72h", 259200), ("1d", 86400)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "-1s", "soon", "1w", "nan", "1 2", "1e3h", "1_0m", "\u0661m", "+1h", "inf", "36600d"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="duration"):
        parse_duration_s(text)


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_a_simulation_draws_within_the_range_and_the_same_from_the_same_seed(seed: int) -> None:
    drawn = draw(Sample, random.Random(seed))
    assert drawn.segment_bytes == 256 * MiB or 1 <= drawn.segment_bytes <= 4096
    assert drawn.roll_s == 2.0 or 0.0 <= drawn.roll_s <= 0.5
    assert drawn.host == "127.0.0.1" and drawn == draw(Sample, random.Random(seed))
