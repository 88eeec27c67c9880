"""Tests listing streams in pages: how often the names are read, and what a page may leave out."""

from __future__ import annotations

import pytest

from dlog.model.ids import METADATA_STREAM, EntryId, SegmentNumber, StreamName, Txid
from dlog.model.segment import Segment, StreamMetadata
from dlog.model.segment_list import SegmentList
from proxies.catalog import LISTINGS_MAX, SEGMENTS_MAX, Listings, describe, with_tail
from tests.memory_metadata import MemoryMetadata
from tests.operations import operations


class Counted(MemoryMetadata):
    """Metadata that knows names only, and counts how often they are read."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.known = [StreamName(f"s{i:05}") for i in range(count)]
        self.readings = 0

    async def streams(self) -> list[StreamName]:
        self.readings += 1
        return list(reversed(self.known))


async def listed(listings: Listings, limit: int) -> list[str]:
    names: list[str] = []
    listing: str | None = None
    while True:
        page = await listings.page(names[-1] if names else "", limit, listing)
        names += page["streams"]
        if not page["more"]:
            assert page["listing"] is None
            return names
        listing = page["listing"]


async def test_a_listing_reads_the_names_once_however_many_pages_it_has() -> None:
    for count in (10, 1_000, 5_000):
        metadata = Counted(count)
        assert await listed(Listings(metadata), 10) == metadata.known
        assert metadata.readings == 1


async def test_listings_that_were_left_are_bounded_and_one_that_was_dropped_goes_on() -> None:
    metadata = Counted(30)
    listings = Listings(metadata)
    begun = [(await listings.page("", 10, None))["listing"] for _ in range(LISTINGS_MAX + 1)]
    assert metadata.readings == LISTINGS_MAX + 1
    for listing in begun[1:]:
        assert (await listings.page("s00009", 10, listing))["streams"][0] == "s00010"
    assert metadata.readings == LISTINGS_MAX + 1
    assert (await listings.page("s00009", 10, begun[0]))["streams"][0] == "s00010"
    assert metadata.readings == LISTINGS_MAX + 2


async def test_a_later_listing_never_goes_on_in_an_earlier_reading() -> None:
    metadata = Counted(20)
    listings = Listings(metadata)
    old = await listings.page("", 10, None)
    metadata.known.append(StreamName("s99999"))
    new = await listings.page("", 10, None)
    assert (await listings.page("s00009", 50, old["listing"]))["streams"][-1] == "s00019"
    assert (await listings.page("s00009", 50, new["listing"]))["streams"][-1] == "s99999"


async def test_a_page_that_is_asked_for_again_is_read_anew() -> None:
    metadata = Counted(40)
    listings = Listings(metadata)
    first = await listings.page("", 10, None)
    second = await listings.page("s00009", 10, first["listing"])
    again = await listings.page("s00009", 10, first["listing"])
    assert again["streams"] == second["streams"]
    assert metadata.readings == 2


async def test_a_page_of_no_names_does_not_end_the_listing() -> None:
    metadata = Counted(5)
    listings = Listings(metadata)
    none = await listings.page("", 0, None)
    assert none["streams"] == []
    assert none["more"]
    assert (await listings.page("", 10, none["listing"]))["streams"] == metadata.known
    assert metadata.readings == 1


def stream(count: int) -> StreamMetadata:
    segments = [
        Segment(
            number=SegmentNumber(n),
            name=str(n),
            first_txid=Txid(n),
            completed=n < count,
            last_txid=Txid(n if n < count else -1),
            last_entry=EntryId(n if n < count else -1),
            record_count=(n % 3) * (n < count - 1),  # the last one that is completed holds no record
        )
        for n in range(1, count + 1)
    ]
    return StreamMetadata(name=StreamName("s"), segments=SegmentList(segments))


def costs_of_steps(value: StreamMetadata) -> list[int]:
    """The instructions that a description executes between two yields to the loop."""
    describing = describe(value)
    is_done = False

    def step() -> None:
        nonlocal is_done
        try:
            describing.send(None)
        except StopIteration:
            is_done = True

    costs: list[int] = []
    while not is_done:
        costs.append(operations(step))
    return costs


def test_a_description_gives_way_as_often_as_the_stream_is_long() -> None:
    few, many = costs_of_steps(stream(1_000)), costs_of_steps(stream(20_000))
    assert len(many) == 20 * len(few) and max(many) <= 1.2 * max(few)


@pytest.mark.parametrize("count", [3, 1_000, SEGMENTS_MAX + 1_001])
async def test_a_long_stream_is_described_like_a_short_one(count: int) -> None:
    value = stream(count)
    told = await describe(value)
    assert told["records"] == sum(s.record_count for s in value.segments)
    held = [s for s in value.segments if s.completed and s.record_count]
    assert (told["last_txid"], told["last_dlsn"]) == (held[-1].last_txid, list(held[-1].last_dlsn))
    assert [s["number"] for s in told["segments"]] == [s.number for s in value.segments[-SEGMENTS_MAX:]]
    assert told["segments_left_out"] == max(0, count - SEGMENTS_MAX)
    assert with_tail(told, count, 7, None)["segments"][-1]["lac"] == 7
    assert all("lac" not in s for s in with_tail(told, 1, 7, None)["segments"][:-1])


async def test_a_listing_does_not_show_the_streams_that_dlog_keeps_for_itself() -> None:
    metadata = Counted(3)
    metadata.known.append(METADATA_STREAM)
    assert await listed(Listings(metadata), 2) == ["s00000", "s00001", "s00002"]
