"""Which proxy owns a stream: two proxies must not redirect a client to each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dlog.io.metadata import ProxyInfo
from dlog.model.ids import Epoch, ProxyId, StreamName
from dlog.model.location import DEFAULT_LOCATION, NetworkLocation
from dlog.model.segment import Owner, StreamKey, StreamMetadata
from proxies.write.ownership_advisor import ClaimHere, GoElsewhere, OwnershipAdvisor
from tests.memory_metadata import MemoryMetadata

NAMES = ("one", "two", "three")


class AllWell:
    """A detector that suspects nobody."""

    def suspects(self, address: str) -> bool:
        return False

    async def is_gone(self, address: str) -> bool:
        return False


ALL_WELL = AllWell()


class Dead(AllWell):
    """A detector that knows that one proxy is gone."""

    def __init__(self, address: str) -> None:
        self._address = address

    def suspects(self, address: str) -> bool:
        return address == self._address

    async def is_gone(self, address: str) -> bool:
        return address == self._address


async def placings(
    metadata: MemoryMetadata, names: Iterable[str], regions: Mapping[str, str] = {}, detector: AllWell = ALL_WELL
) -> dict[str, OwnershipAdvisor]:
    locations = {name: NetworkLocation(regions[name]) if name in regions else DEFAULT_LOCATION for name in names}
    for name, location in locations.items():
        await metadata.register_proxy(ProxyInfo(ProxyId(name), "write", f"{name}:1", location=location))
    return {
        name: OwnershipAdvisor(
            ProxyId(name),
            f"{name}:1",
            metadata,
            detector,  # type: ignore[arg-type]  # a stand-in
            drains=lambda: False,
            location=location,
        )
        for name, location in locations.items()
    }


async def claimer(judges: dict[str, OwnershipAdvisor], asked: str, stream: StreamName, region: str = "") -> str:
    """The proxy that a client ends at: it asks one, naming its region, and writes where it is sent."""
    advice = await judges[asked].judge(stream, client=NetworkLocation(region) if region else None)
    hops = 0
    while isinstance(advice, GoElsewhere):
        hops += 1
        assert hops <= 2, "redirected in a circle"
        asked = advice.address.partition(":")[0]
        advice = await judges[asked].judge(stream)
    return asked


async def test_a_proxy_that_came_back_takes_what_it_had_though_the_ring_prefers_another() -> None:
    """To the others this proxy is the registered owner and alive: if it redirected clients to them, they would redirect
    them back."""
    metadata = MemoryMetadata()
    judges = await placings(metadata, NAMES)
    sent_round = 0
    for number in range(30):
        stream = StreamName(f"stream-{number}")
        owner = Owner(epoch=Epoch(3), proxy=ProxyId("one"), address="one:1")
        await metadata.compare_and_set(
            StreamKey(stream), StreamMetadata(name=stream, owner=owner, incarnation="a1"), None
        )
        sent_round += judges["one"].preferred(stream) is not None
        assert isinstance(await judges["one"].judge(stream), ClaimHere)
        for other in ("two", "three"):
            assert await judges[other].judge(stream) == GoElsewhere("one:1", Epoch(3), True, "a1")
    assert sent_round > 5, "the ring must prefer others for some, or this proves nothing"


async def test_a_stream_that_was_handed_back_goes_where_the_ring_says() -> None:
    metadata = MemoryMetadata()
    judges = await placings(metadata, NAMES)
    stream = StreamName("orders")
    owner = Owner(epoch=Epoch(3), proxy=ProxyId("one"), address="one:1", released=True)
    await metadata.compare_and_set(StreamKey(stream), StreamMetadata(name=stream, owner=owner), None)
    advice = [await judge.judge(stream) for judge in judges.values()]
    assert sum(isinstance(one, ClaimHere) for one in advice) == 1
    assert len({one.address for one in advice if isinstance(one, GoElsewhere)}) == 1


PLACES = {"e1": "eu", "e2": "eu", "u1": "us", "u2": "us", "old": "default-region"}


async def test_a_stream_without_an_owner_goes_to_the_region_of_its_client() -> None:
    metadata = MemoryMetadata()
    judges = await placings(metadata, PLACES, PLACES)
    claimed = set()
    for number in range(20):
        stream = StreamName(f"stream-{number}")
        released = Owner(epoch=Epoch(3), proxy=ProxyId("old"), address="old:1", released=True)
        value = StreamMetadata(name=stream, owner=released, incarnation="a1")
        await metadata.compare_and_set(StreamKey(stream), value, None)
        for region in ("eu", "us"):
            ends = {await claimer(judges, asked, stream, region) for asked in PLACES}
            assert len(ends) == 1 and PLACES[min(ends)] == region
            claimed |= ends
        for asked, region in PLACES.items():
            assert PLACES[await claimer(judges, asked, stream)] == region, "the client names none: that of the proxy"
        fallback = {await claimer(judges, asked, stream, "ap") for asked in PLACES}
        assert len(fallback) == 1, "a region without a proxy: the ring of all"
        assert sum(judges[name].maintainer(stream) is None for name in PLACES) == 1, "one proxy of all maintains it"
    assert claimed == {"e1", "e2", "u1", "u2"}, "the ring spreads the streams of a region"


async def test_a_stream_whose_owner_died_stays_in_its_region_whoever_asks() -> None:
    metadata = MemoryMetadata()
    judges = await placings(metadata, PLACES, PLACES, Dead("e1:1"))
    stream = StreamName("orders")
    owner = Owner(epoch=Epoch(3), proxy=ProxyId("e1"), address="e1:1")
    await metadata.compare_and_set(StreamKey(stream), StreamMetadata(name=stream, owner=owner), None)
    asked = [name for name in PLACES if name != "e1"]
    assert {await claimer(judges, name, stream, region) for name in asked for region in ("", "us")} == {"e2"}
    await metadata.unregister_proxy(ProxyId("e2"))
    ends = {await claimer(judges, name, stream, "us") for name in asked if name != "e2"}
    assert len(ends) == 1 and PLACES[min(ends)] == "us", "its region has no other proxy"


async def test_a_live_owner_keeps_its_stream_whatever_region_asks() -> None:
    metadata = MemoryMetadata()
    judges = await placings(metadata, PLACES, PLACES)
    stream = StreamName("orders")
    owner = Owner(epoch=Epoch(3), proxy=ProxyId("e1"), address="e1:1")
    await metadata.compare_and_set(StreamKey(stream), StreamMetadata(name=stream, owner=owner), None)
    for name in PLACES:
        assert await claimer(judges, name, stream, "us") == "e1"


async def test_the_region_of_an_owner_that_was_not_told_one_does_not_count() -> None:
    """A proxy of an older version stands in no region, chooses among all, and would send the client back."""
    places = {**PLACES, "older": "default-region"}
    metadata = MemoryMetadata()
    judges = await placings(metadata, places, places, Dead("old:1"))
    stream = StreamName("orders")
    owner = Owner(epoch=Epoch(3), proxy=ProxyId("old"), address="old:1")
    await metadata.compare_and_set(StreamKey(stream), StreamMetadata(name=stream, owner=owner), None)
    ends = {await claimer(judges, asked, stream, "us") for asked in ("e1", "e2", "u1", "u2")}
    assert len(ends) == 1 and places[min(ends)] == "us"
