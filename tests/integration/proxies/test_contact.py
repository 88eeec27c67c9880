"""A read proxy that does not reach ZooKeeper redirects its readers to one that does, and to no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dlog.errors import MetadataUnavailableError
from dlog.machine import Key, Outcome, OutcomeUnknown
from dlog.wire.proxy import Create, HandOver, ReaderEventKind, Start
from proxies.read.server import ReadProxy
from tests.integration.proxies.local_proxies import LocalProxies
from tests.integration.proxies.raw import Raw, RawProducer
from tests.integration.proxies.test_reading import MEMORY, Reading

SOON = {"contact_every_s": 0.01, "contact_patience_s": 0.05}


class Cut:
    """Shared metadata that one proxy reaches until it is cut off; then it gets no answer, or errors."""

    def __init__(self, local: LocalProxies, *, is_mute: bool) -> None:
        self.is_off = False
        self._is_mute = is_mute
        self._true = local.metadata

    def __getattr__(self, name: str) -> Any:
        return getattr(self._true, name)

    async def read(self, key: Key) -> Outcome:
        return await self._true.read(key) if await self._answers() else OutcomeUnknown("out of reach")

    async def instance_id(self) -> str:
        if not await self._answers():
            raise MetadataUnavailableError("out of reach")
        return await self._true.instance_id()

    async def _answers(self) -> bool:
        if self.is_off and self._is_mute:
            await asyncio.Event().wait()
        return not self.is_off


@pytest.mark.parametrize("is_mute", [True, False])
async def test_a_reader_at_the_tail_goes_on_at_a_proxy_that_reaches_zookeeper(
    local: LocalProxies, is_mute: bool
) -> None:
    cut = Cut(local, is_mute=is_mute)
    writer, well = await local.write_proxy(), await local.read_proxy(**SOON)
    off = await local.read_proxy(cut, **SOON)
    async with Raw(writer.address) as raw, Raw(off.address) as ro, Raw(well.address) as rw:
        await raw.ask(Create, "orders", MEMORY)
        producer = RawProducer(raw, "orders")
        await producer.write([b"before"])
        reading = Reading(ro, "orders", Start.START, follow=True, forwarded=True)
        assert [(await reading.event()).kind for _ in range(2)] == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]
        cut.is_off = True
        await raw.ask(HandOver, "orders")
        await producer.write([b"in another segment"])
        moved = await reading.event()
        while moved.kind is ReaderEventKind.CAUGHT_UP:
            moved = await reading.event()
        assert (moved.kind, moved.detail) == (ReaderEventKind.MOVED, {"location": well.address})
        again = Reading(rw, "orders", Start.START, forwarded=True)
        await again.until(2)
        assert again.records == [b"before", b"in another segment"]
        newcomer = Reading(ro, "orders", Start.START)
        assert (await newcomer.event()).detail == {"location": well.address}, "new ones are sent there at once"


async def test_readers_stay_where_nobody_reaches_zookeeper(local: LocalProxies) -> None:
    one, two = Cut(local, is_mute=False), Cut(local, is_mute=True)
    first, second = await local.read_proxy(one, **SOON), await local.read_proxy(two, **SOON)
    assert isinstance(first.proxy, ReadProxy) and isinstance(second.proxy, ReadProxy)
    contact = first.proxy._contact
    there = [(second.proxy.id, second.address)]
    found = await contact._who_reaches_it("orders")
    assert [(proxy, info.address) for proxy, info in found.items()] == there, (
        "that there is no such stream is an answer"
    )
    one.is_off = two.is_off = True
    assert not await contact._is_reached()
    assert await contact._who_reaches_it("orders") == {}
