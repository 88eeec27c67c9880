"""Which proxy owns a stream: two proxies must not redirect a client to each other."""

from __future__ import annotations

from collections.abc import Iterable

from dlog.io.metadata import ProxyInfo
from dlog.model.ids import Epoch, ProxyId, StreamName
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


async def placings(metadata: MemoryMetadata, names: Iterable[str]) -> dict[str, OwnershipAdvisor]:
    for name in names:
        await metadata.register_proxy(ProxyInfo(ProxyId(name), "write", f"{name}:1"))
    detector = AllWell()
    return {
        name: OwnershipAdvisor(ProxyId(name), f"{name}:1", metadata, detector, drains=lambda: False)  # type: ignore[arg-type]
        for name in names
    }


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
