"""Listing streams in pages: how often the names are read, and what a page may leave out."""

from __future__ import annotations

from dlog.io.memory_metadata import MemoryMetadata
from dlog.model.ids import StreamName
from proxies.catalog import LISTINGS_MAX, Listings


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
