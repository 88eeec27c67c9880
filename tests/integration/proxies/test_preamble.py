"""Headers of the PROXY protocol at a proxy's port: accepted from permitted senders, refused otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dlog.events import ConnectionOpened, ConnectionRefused
from dlog.wire.proxy import PROTOCOL_VERSION, Create, Failed, Hello, Ping, Stat, Welcome, Written
from dlog.wire.proxy_codec import encode
from dlog.wire.proxy_protocol import SIGNATURE, encode_v1, encode_v2
from tests.integration.proxies.local_proxies import LocalProxies
from tests.integration.proxies.raw import Raw, RawProducer

MEMORY = {"store": "memory"}
CLIENT = ("203.0.113.9", 40001)
HELLO = b"".join(bytes(part) for part in encode(Hello(1, PROTOCOL_VERSION, PROTOCOL_VERSION, "tool", "x")))
V1, V2 = encode_v1(CLIENT, ("10.0.0.1", 7400)), encode_v2(CLIENT, ("10.0.0.1", 7400))


async def begin(address: str, *pieces: bytes) -> Raw:
    """A connection that sends these bytes unchanged, each piece by itself."""
    raw = Raw(address, hello=False)
    await raw.__aenter__()
    assert raw.transport is not None
    for piece in pieces:
        raw.transport.write(piece)
        await asyncio.sleep(0)
    return raw


@pytest.mark.parametrize("header", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize("mode", ["optional", "required"])
async def test_the_client_is_who_the_header_names(local: LocalProxies, mode: str, header: bytes) -> None:
    proxy = await local.write_proxy(proxy_protocol=mode, proxy_protocol_from="127.0.0.0/8")
    for pieces in ([header + HELLO], [header[:7], header[7:] + HELLO], [bytes((b,)) for b in header] + [HELLO]):
        raw = await begin(proxy.address, *pieces)
        await raw.hear(Welcome)
        await raw.__aexit__()
    opened = await proxy.events.of(ConnectionOpened, 3)
    assert {event.peer for event in opened} == {"203.0.113.9:40001"}
    assert all(event.via.startswith("127.0.0.1:") for event in opened)


@pytest.mark.parametrize(("mode", "sources"), [("optional", ""), ("required", "10.0.0.0/8")])
async def test_without_a_header_a_client_speaks_for_itself_where_that_is_allowed(
    local: LocalProxies, mode: str, sources: str
) -> None:
    proxy = await local.write_proxy(proxy_protocol=mode, proxy_protocol_from=sources)
    async with Raw(proxy.address) as raw:
        assert await raw.ask(Ping) == {}
    (opened,) = await proxy.events.of(ConnectionOpened)
    assert opened.peer == opened.via


@pytest.mark.parametrize(
    ("options", "data", "code"),
    [
        ({"proxy_protocol": "off"}, V1 + HELLO, 403),
        ({"proxy_protocol": "off"}, V2 + HELLO, 403),
        ({"proxy_protocol": "optional", "proxy_protocol_from": "10.0.0.0/8"}, V2 + HELLO, 403),
        ({"proxy_protocol": "required"}, HELLO, 403),
        ({"proxy_protocol": "optional"}, b"PROXY TCP4 not an address\r\n", 532),
        ({"proxy_protocol": "optional"}, b"PROXY " + b"x" * 5000, 532),
        ({"proxy_protocol": "required"}, SIGNATURE + b"\x21\x11\xff\xff", 532),
        ({"proxy_protocol": "required"}, SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12), 532),
    ],
)
async def test_a_header_that_is_false_or_not_allowed_is_told_and_the_connection_closed(
    local: LocalProxies, options: dict[str, Any], data: bytes, code: int
) -> None:
    proxy = await local.write_proxy(**options)
    raw = await begin(proxy.address, data)
    assert (await raw.hear(Failed, request=0)).code == code
    await raw.closed.wait()
    assert len(await proxy.events.of(ConnectionRefused)) == 1
    assert proxy.proxy.listener.incomplete_bytes == 0


async def test_a_header_that_does_not_end_is_cut_with_the_hello_that_does_not_come(local: LocalProxies) -> None:
    proxy = await local.write_proxy(proxy_protocol="optional", hello_s=0.2)
    raw = await begin(proxy.address, V2[:20])
    await raw.closed.wait()
    assert proxy.proxy.listener.incomplete_bytes == 0


async def test_connections_are_counted_by_the_host_that_the_balancer_names(local: LocalProxies) -> None:
    proxy = await local.write_proxy(proxy_protocol="optional", connections_per_host_max=2)
    others = encode_v2(("203.0.113.10", 1), ("10.0.0.1", 7400))
    held = [await begin(proxy.address, V2 + HELLO) for _ in range(2)]
    for raw in held:
        await raw.hear(Welcome)
    third = await begin(proxy.address, V2 + HELLO)
    assert (await third.hear(Failed, request=0)).code == 517
    other = await begin(proxy.address, others + HELLO)
    await other.hear(Welcome)
    await held[0].__aexit__()
    async with asyncio.timeout(90.0):
        while len(proxy.proxy.listener.connections) > 2:
            other.say(Ping(other.next_request()))
            await other.more()
    again = await begin(proxy.address, V2 + HELLO)
    await again.hear(Welcome)
    for raw in (held[1], other, again):
        await raw.__aexit__()


async def test_proxies_that_demand_a_header_of_everybody_reach_one_another(local: LocalProxies) -> None:
    """Each sends the header for a local connection to the others: streams are watched, taken over, and read."""
    writers = [await local.write_proxy(proxy_protocol="required") for _ in range(2)]
    reader = await local.read_proxy(proxy_protocol="required")
    raws = []
    for running in (*writers, reader):
        raw = await begin(running.address, V2 + HELLO)
        await raw.hear(Welcome)
        raws.append(raw)
    assert isinstance(await raws[2].ask(Create, "orders", MEMORY), dict)  # forwarded by the read proxy
    for raw, running in zip(raws[:2], writers, strict=True):
        answer = await RawProducer(raw, "orders").write([b"x"])
        if isinstance(answer, Written):
            told = await raws[2].ask(Stat, "orders")
            assert isinstance(told, dict)
            assert told["owner"]["location"] == running.address
    for raw in raws:
        await raw.__aexit__()
