"""Proxies of several regions: which of them serve a client, and what they tell of regions, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import dlog
from dlog.model.location import NetworkLocation
from dlog.wire.proxy import Cancel, Create, Failed, GetOwner, Read, ReaderEvent, Start
from dlog.wire.proxy import ReaderEventKind as Kind
from proxies.read.server import ReadProxy
from tests.integration.proxies.local_proxies import LocalProxies
from tests.integration.proxies.raw import ANYTHING, Raw

MEMORY: dict[str, Any] = {"store": "memory"}
EU, US, AP = NetworkLocation("eu", "r1"), NetworkLocation("us", "r1"), NetworkLocation("ap")


async def serving(raw: Raw, stream: str, region: str | None) -> str:
    """The address at which a read ends that is opened here."""
    number = raw.next_request()
    raw.say(Read(number, stream, Start.START, None, 1 << 20, False, region=region))
    event = await raw.hear(ReaderEvent, request=number)
    return str(event.detail["location"]) if event.kind is Kind.MOVED else raw.address


async def test_the_ring_of_read_proxies_is_per_region_and_of_all_where_a_region_has_none(local: LocalProxies) -> None:
    writer = await local.write_proxy(EU)
    readers = [await local.read_proxy(location=location) for location in (EU, EU, US)]
    by_region: dict[str, set[str]] = {"eu": {r.address for r in readers[:2]}, "us": {readers[2].address}}
    everywhere = set().union(*by_region.values())
    async with Raw(writer.address) as w, Raw(readers[0].address) as e, Raw(readers[2].address) as u:
        for stream in map(str, range(10)):
            assert await w.ask(Create, stream, MEMORY)
            for region, own in by_region.items():
                ends = {await serving(raw, stream, region) for raw in (w, e, u)}
                assert len(ends) == 1 and ends <= own
            for raw, region in ((w, "eu"), (e, "eu"), (u, "us")):
                assert await serving(raw, stream, None) in by_region[region], "a client that names no region"
            fallback = {await serving(raw, stream, "ap") for raw in (w, e, u)}
            assert len(fallback) == 1 and fallback <= everywhere
            for raw in (w, e, u):
                bad = raw.next_request()
                raw.say(Read(bad, stream, Start.START, None, 1, False, region="e/u"))
                refused: Any = await raw.hear(ANYTHING, request=bad)
                assert isinstance(refused, Failed) and refused.code == 400
                assert "a region is named with" in refused.message


async def test_a_client_writes_and_reads_in_its_region_and_follows_an_owner_elsewhere(local: LocalProxies) -> None:
    writers = {region: await local.write_proxy(region) for region in (EU, US)}
    readers = {region: await local.read_proxy(location=region) for region in (EU, US)}
    for region in (EU, US):
        assert local.metadata.known_members().write_proxies[writers[region].proxy.id].location == region
    async with dlog.connect(writers[EU].address, region="us") as us, dlog.connect(writers[EU].address) as other:
        await us.create("orders", **MEMORY)
        await us.append("orders", b"1")
        assert (await other.owner("orders")).location == writers[US].address
        assert await opened_at(us, "orders") == readers[US].address
        assert await opened_at(other, "orders") == readers[EU].address
        await other.create("bills", **MEMORY)
        await other.append("bills", b"1")
        assert (await us.owner("bills")).location == writers[EU].address
        await us.append("bills", b"2")
        assert (await us.owner("bills")).location == writers[EU].address, "the owner keeps it"
        assert us._router is not None
        assert us._router.pool.candidates("write")[0] == writers[US].address, "the next question is asked near"
        async with Raw(writers[EU].address) as raw:
            told = await raw.ask(GetOwner, "bills", None, "us")
            assert isinstance(told, dict)
            regions = {running.address: location.region for location, running in (*writers.items(), *readers.items())}
            assert told["regions"] == regions and sorted(told["proxies"]) == sorted(regions)
            bad = await raw.ask(GetOwner, "bills", None, "")
            assert isinstance(bad, Failed) and bad.code == 400


async def test_a_region_whose_only_write_proxy_leaves_is_served_by_another(local: LocalProxies) -> None:
    eu, us = await local.write_proxy(EU), await local.write_proxy(US)
    await local.read_proxy()
    async with dlog.connect(f"{us.address},{eu.address}", region="eu") as client:
        await client.create("orders", **MEMORY)
        await client.append("orders", b"1")
        assert (await client.owner("orders")).location == eu.address
        await eu.drain()
        await client.append("orders", b"2")
        assert (await client.owner("orders")).location == us.address
        assert [bytes(record.payload) async for record in client.read("orders")] == [b"1", b"2"]


async def test_readers_that_come_from_other_regions_are_counted(local: LocalProxies) -> None:
    writer, reader = await local.write_proxy(EU), await local.read_proxy(location=EU)
    assert isinstance(reader.proxy, ReadProxy)
    async with Raw(writer.address) as w, Raw(reader.address) as raw:
        assert await w.ask(Create, "orders", MEMORY)
        for number, (region, far) in enumerate((("us", 1), ("eu", 1), (None, 1), ("ap", 2)), 1):
            raw.say(Read(number, "orders", Start.START, None, 1 << 20, True, region=region))
            await raw.hear(ReaderEvent, request=number)
            assert far_readers(reader.proxy) == far
        raw.say(Cancel(1), Read(9, "orders", Start.START, None, 1 << 20, True))
        await raw.hear(ReaderEvent, request=9)
        while far_readers(reader.proxy) == 2:  # noqa: ASYNC110 - no event tells that a reader has ended
            await asyncio.sleep(0)
        assert (far_readers(reader.proxy), reader.proxy.readers) == (1, 4)


def far_readers(proxy: ReadProxy) -> float:
    """The gauge, as a scrape reads it."""
    families = {family.name: family for family in proxy.meters().collect()}
    return float(families["dlog_read_readers_far"].samples[0].value)


async def opened_at(client: dlog.Client, stream: str) -> str:
    """The address of the read proxy that serves a read of this client."""
    reader = client.read(stream, follow=True)
    await anext(reader)
    session = reader._progress.session
    assert session is not None and session._connection is not None
    address = session._connection.address
    await reader.aclose()
    return address
