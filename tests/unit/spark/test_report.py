"""Tests the rows of a report, and the page that shows them."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import ConfigError
from dlog.io.metadata import Members, ProxyInfo
from dlog.model.ids import Epoch, ProxyId, StreamName
from dlog.model.segment import Owner, StreamMetadata, StreamSettings
from dlog.spark.jobs import report_page
from dlog.spark.jobs.report import (
    POINTS_MAX,
    ReportOptions,
    _write,
    proxy_rows,
    reader_rows,
    stream_row,
    thinned,
)
from dlog.spark.jobs.report_page import PALETTE, Bar, Series, bars, growth, page, spark_points
from dlog.spark.offsets import StreamOffset, StreamPosition
from dlog.spark.options import SourceOptions
from dlog.spark.planning import SegmentView, StreamView
from dlog.spark.readers import Reader
from dlog.spark.views import Seen

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
CHOSEN = SourceOptions(zookeeper="h:1", pattern=".*")


def seen(
    name: str = "s", *, owner: Owner | None = None, first: int = 1, sizes: tuple[int, ...] = (100, 300, 50)
) -> Seen:
    """A stream of segments of ten entries, a day apart; the last one is open."""
    segments = []
    for number, size in enumerate(sizes, first):
        is_last = number == first + len(sizes) - 1
        segments.append(
            SegmentView(
                number=number,
                name=str(number),
                store="ledger",
                last=9,
                bytes=size,
                records=size // 10,
                is_completed=not is_last,
                completed_unix_ms=0 if is_last else NOW_MS - (len(sizes) - 1 - (number - first)) * DAY_MS,
            )
        )
    settings = StreamSettings(retention_s=72 * 3600)
    value = StreamMetadata(name=StreamName(name), owner=owner or Owner(), settings=settings)
    return Seen(value, StreamView(name, tuple(segments)))


def reader(**places: tuple[int, ...]) -> Reader:
    return Reader("r", {}, {name: StreamPosition(*place) for name, place in places.items()}, NOW_MS)


def test_a_stream_in_numbers() -> None:
    row = stream_row(seen(), NOW_MS)
    assert (row["segments"], row["segments_in_progress"], row["first_segment"], row["last_segment"]) == (3, 1, 1, 3)
    assert (row["entries"], row["records"], row["bytes"]) == (30, 45, 450)
    assert row["growth"] == [[NOW_MS - 2 * DAY_MS, 100], [NOW_MS - DAY_MS, 400], [NOW_MS, 450]]
    assert row["growth_bytes_a_day"] == 175
    assert row["owner"] is None and row["retention_s"] == 72 * 3600  # as the stream was created


def test_of_a_stream_whose_first_segment_has_not_ended_no_growth_is_known() -> None:
    row = stream_row(seen(sizes=(50,)), NOW_MS)
    assert (row["growth"], row["growth_bytes_a_day"]) == ([[NOW_MS, 50]], None)
    assert stream_row(seen(sizes=()), NOW_MS)["growth"] == []


def test_a_clock_that_went_back_makes_no_line_go_back() -> None:
    one = seen()
    late = replace(one.view.segments[0], completed_unix_ms=NOW_MS + DAY_MS)
    row = stream_row(Seen(one.value, replace(one.view, segments=(late, *one.view.segments[1:]))), NOW_MS)
    times = [point[0] for point in row["growth"]]
    assert times == sorted(times) and row["growth_bytes_a_day"] is None


@pytest.mark.parametrize(
    ("position", "state", "entries", "records", "size"),
    [
        ((0, 0), "reads", 30, 45, 450),
        ((1, 0), "reads", 30, 45, 450),
        ((2, 5), "reads", 15, 20, 200),
        ((3, 10), "reads", 0, 0, 0),
        ((3, 11), "beyond", 0, 0, 0),
        ((9, 0), "beyond", 0, 0, 0),
    ],
)
def test_how_far_a_reader_is_behind(
    position: tuple[int, int], state: str, entries: int, records: int, size: int
) -> None:
    (row,) = reader_rows(reader(s=position), {"s": seen()}, CHOSEN, True)
    told = (row["state"], row["behind_entries"], row["behind_records"], row["behind_bytes"])
    assert told == (state, entries, records, size)


def test_what_befell_a_reader() -> None:
    streams = {"s": seen(first=4)}
    (row,) = reader_rows(reader(s=(2, 5)), streams, CHOSEN, True)
    assert (row["state"], row["behind_entries"]) == ("truncated", 30)
    (row,) = reader_rows(reader(t=(2, 5)), streams, CHOSEN, True)
    assert (row["state"], row["behind_records"]) == ("gone", None)
    ended = StreamOffset(StreamPosition(3, 10), ended=True)
    read = Reader("r", {}, {"s": ended.position}, NOW_MS, {"s": ended})
    assert reader_rows(read, streams, CHOSEN, True)[0]["state"] == "reads", "what was truncated had been read"
    view = replace(streams["s"].view, incarnation="b")
    other = Reader("r", {}, {"s": StreamPosition(4, 0)}, NOW_MS, {"s": StreamOffset(StreamPosition(4, 0), "a")})
    assert reader_rows(other, {"s": replace(streams["s"], view=view)}, CHOSEN, True)[0]["state"] == "beyond"
    begun = Reader("r", {"s": StreamPosition(4, 0)}, {}, NOW_MS)
    assert reader_rows(begun, streams, CHOSEN, True)[0]["state"] == "begun"
    # of the selected streams only these are reported
    assert reader_rows(reader(t=(2, 5)), streams, replace(CHOSEN, streams=("s",)), False) == []


def test_proxies_and_what_they_own() -> None:
    owner = Owner(epoch=Epoch(3), address="h:1")
    streams = [
        stream_row(seen("small", owner=owner, sizes=(5,)), NOW_MS),
        stream_row(seen("large", owner=owner), NOW_MS),
        stream_row(seen("elsewhere", owner=replace(owner, address="h:9")), NOW_MS),
        stream_row(seen("released", owner=replace(owner, released=True)), NOW_MS),
    ]
    info = {ProxyId(a): ProxyInfo(ProxyId(a), "write", a) for a in ("h:1", "h:2")}
    rows = proxy_rows(Members({}, {}, info, {}), streams)
    assert [(row["address"], row["registered"], row["streams"]) for row in rows] == [
        ("h:1", True, ["large", "small"]),
        ("h:2", True, []),
        ("h:9", False, ["elsewhere"]),
    ]
    assert rows[0]["bytes"] == 455


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=900))
def test_growth_is_thinned_but_for_its_ends(numbers: list[int]) -> None:
    points = [[i, number] for i, number in enumerate(numbers)]
    thin = thinned(points)
    assert len(thin) <= POINTS_MAX and (thin[0], thin[-1]) == (points[0], points[-1])
    assert len({tuple(point) for point in thin}) == len(thin)


# ---- plots ----------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60)  # names are ASCII
lines = st.lists(st.tuples(st.integers(0, 2**45), st.integers(0, 2**55)), max_size=8).map(
    lambda points: [
        list(point) for point in zip(sorted(t for t, _ in points), sorted(v for _, v in points), strict=True)
    ]
)


def check(drawn: str, *names: str) -> None:
    """Check that it is XML that runs nothing, fetches nothing and shows these names, and that its numbers are
    numbers."""
    root = ET.fromstring(drawn)
    for element in root.iter():
        assert element.tag.rpartition("}")[2] not in ("script", "image", "foreignObject", "a")
        for name, value in element.attrib.items():
            assert not name.startswith("on") and not {"nan", "inf"} & set(re.split(r"[^a-z]+", value.lower()))
            assert not name.endswith("href") or value.startswith("#")
    said = "".join(root.itertext())
    assert all(name in said for name in names)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(texts, lines), max_size=4))
def test_growth_of_any_names_and_times_is_drawn(told: list[tuple[str, list[list[int]]]]) -> None:
    drawn = growth([Series(name, points, PALETTE[0]) for name, points in told])
    if drawn:
        check(drawn)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(texts, st.integers(0, 2**60), texts), min_size=1, max_size=5))
def test_bars_of_any_names_and_sizes_are_drawn(rows: list[tuple[str, int, str]]) -> None:
    check(bars([Bar(name, value, text, PALETTE[0]) for name, value, text in rows]))


def test_plots_show_names_as_they_are() -> None:
    points = [[NOW_MS - DAY_MS, 1 << 20], [NOW_MS, 5 << 20]]
    check(growth([Series("_hidden$x$", points, PALETTE[0])]), "_hidden$x$", "MiB")
    check(
        bars([Bar("<b>&$^$", 5, "5 B", PALETTE[0]), Bar("n" * 60, 0, "0 B", PALETTE[1])]), "<b>&$^$", "5 B", "nnn…nnn"
    )
    assert growth([]) == bars([]) == "" == growth([Series("s", [[NOW_MS, 5]], PALETTE[0])])


@given(lines)
def test_small_lines_are_drawn_within_their_frame(points: list[list[int]]) -> None:
    drawn = spark_points(points, 0, 2**45 + 1)
    assert bool(drawn) == (len(points) > 1)
    for x, y in (pair.split(",") for pair in drawn.split()):
        assert 2 <= float(x) <= 118 and 3 <= float(y) <= 23


def test_a_series_is_known_between_its_points() -> None:
    one = Series("one", [[0, 0], [100, 50]], PALETTE[0])
    two = Series("two", [[50, 10], [100, 30]], PALETTE[1])
    assert list(one.at([-1, 50, 100, 500])) == [0, 25, 50, 50]
    assert list(two.at([49, 50, 75])) == [0, 10, 20]


# ---- the page -------------------------------------------------------------------------------------------------------

EVIL = "<script>alert('x')</script>\"&"


def items(streams: int = 3, name: str = "s") -> list[dict[str, Any]]:
    owner = Owner(epoch=Epoch(3), address="h:1")
    rows = [stream_row(seen(f"{name}{n}", owner=owner, sizes=(10 * n, 20, 30)), NOW_MS) for n in range(streams)]
    info = {ProxyId("p"): ProxyInfo(ProxyId("p"), "write", "h:1")}
    kept = {row["stream"]: seen(row["stream"]) for row in rows}
    behind = Reader(EVIL, {}, {f"{name}0": StreamPosition(1, 0), "gone": StreamPosition(1, 0)}, NOW_MS)
    return [*rows, *reader_rows(behind, kept, CHOSEN, True), *proxy_rows(Members({}, {}, info, {}), rows)]


COUNTS = {
    "streams": 3,
    "segments": 9,
    "records": 12_345_678,
    "bytes": 5 << 30,
    "growth_bytes_a_day": 1 << 20,
    "behind_records_max": 45,
}


class Tags(HTMLParser):
    """The tags that a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_needs_nothing_and_runs_nothing() -> None:
    text = page(COUNTS, items(), [{"stream": EVIL, "reader": None, "error": EVIL}], EVIL, NOW_MS)
    tags = Tags(text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & set(tags.tags)
    assert not {name for name, _ in tags.attributes} & {"src", "href", "srcset", "onload"}
    assert all(value and value.startswith("#") for name, value in tags.attributes if name == "xlink:href")
    assert not any(name.startswith("on") for name, _ in tags.attributes)
    known = r"http-equiv|http://www.w3.org/(2000/svg|1999/xlink)|url\(#"  # namespaces, and clip paths of the page
    assert not any(word in re.sub(known, "", text) for word in ("url(", "@import", "http"))
    assert "default-src 'none'" in text
    assert "<script" not in text and tags.text.count(EVIL) >= 3
    assert "prefers-color-scheme:dark" in text
    pictures = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(pictures) == 3 + 3, "growth, sizes, lags, and a line for each stream"
    for drawn in pictures:
        check(drawn)


def test_the_page_says_the_numbers_of_the_rows() -> None:
    text = Tags(page(COUNTS, items(), [], "/dlog", NOW_MS)).text
    for said in ("12.3 M", "5.0 GiB", "+1.0 MiB", "2027-01-15 08:00:00Z", "✕ no such stream", "h:1", "3 d"):
        assert said in text, said
    assert "Not reported" not in text


def test_an_empty_namespace_has_a_page_too() -> None:
    text = Tags(page(dict.fromkeys(COUNTS, 0), [], [], "/dlog", NOW_MS)).text
    for said in ("No segment has ended yet", "There are no streams", "No reader has reported", "No write proxy"):
        assert said in text


def test_a_page_of_very_many_streams_is_bounded_and_says_what_it_leaves_out() -> None:
    many = items(3000)
    text = page(COUNTS, many, [], "/dlog", NOW_MS)
    assert len(text) < 3_000_000
    said = Tags(text).text
    assert f"{3000 - report_page.STREAMS_MAX:,} more streams are in the JSON report" in said
    assert f"{3000 - len(PALETTE):,} other streams" in said


# ---- the file -------------------------------------------------------------------------------------------------------


def test_the_page_takes_the_place_of_the_one_before_whole(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    _write(str(out), "one")
    _write(str(out), "two")
    assert out.read_text() == "two" and [p.name for p in tmp_path.iterdir()] == ["page.html"]
    (tmp_path / "full").mkdir()
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        _write(str(tmp_path / "full"), "three")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full", "page.html"]


def test_a_page_without_a_directory_is_refused_before_anything_is_looked_at(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory, create it"):
        ReportOptions(out=str(tmp_path / "none" / "page.html"))


def test_rows_are_json() -> None:
    assert json.loads(json.dumps(items())) == items()
