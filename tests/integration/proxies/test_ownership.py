"""Who owns a stream: the ring, the evidence, the claim. A suspicion may be wrong; no record is written twice."""

from __future__ import annotations

import asyncio
from typing import Any

import dlog
from dlog.events import ClaimLost, ProxyDrained, ProxySuspected, ProxyTrusted, StreamOwned, StreamReady
from dlog.io.metadata import ProxyInfo
from dlog.machine import Versioned
from dlog.model.ids import ProxyId, StreamName
from dlog.model.segment import Owner, StreamKey
from dlog.wire.proxy import Create, Failed, GetOwner, GoAway, Written
from proxies.write.server import WriteProxy
from tests.integration.proxies.local_proxies import LocalProxies, Running
from tests.integration.proxies.raw import Raw, RawProducer
from tests.memory_metadata import MemoryMetadata

MEMORY = {"store": "memory"}


async def two_with_a_stream(local: LocalProxies, **options: Any) -> tuple[Running, Running]:
    """Owner and other proxy; "orders" is owned by the first."""
    one, two = await local.write_proxy(**options), await local.write_proxy(**options)
    async with Raw(one.address) as raw:
        await raw.ask(Create, "orders", MEMORY)
        told = await raw.ask(GetOwner, "orders", None)
        assert isinstance(told, dict)
    owner, other = (one, two) if told["location"] == one.address else (two, one)
    async with Raw(owner.address) as raw:
        assert isinstance(await RawProducer(raw, "orders").write([b"0"]), Written)
    return owner, other


async def owner_in(metadata: MemoryMetadata) -> Owner:
    seen = await metadata.read(StreamKey(StreamName("orders")))
    assert isinstance(seen, Versioned)
    owner: Owner = seen.value.owner
    return owner


async def test_a_doubt_about_an_owner_that_lives_moves_nothing(local: LocalProxies) -> None:
    owner, other = await two_with_a_stream(local)
    async with Raw(other.address) as raw:
        for suspect in (owner.address, "127.0.0.1:1", "nowhere", None):
            answer = await raw.ask(GetOwner, "orders", suspect)
            location = answer.location if isinstance(answer, Failed) else answer["location"]
            assert location == owner.address
    assert (await owner_in(local.metadata)).epoch == 1


async def test_a_doubt_about_an_owner_that_died_is_checked_and_its_stream_taken(local: LocalProxies) -> None:
    owner, other = await two_with_a_stream(local)
    await owner.kill()  # its registration stays, as until its session ends
    async with Raw(other.address) as raw:
        told = await raw.ask(GetOwner, "orders", owner.address)
        assert isinstance(told, dict)
        assert (told["location"], told["epoch"]) == (other.address, 2)
        assert owner.address not in told["proxies"]
        assert isinstance(await RawProducer(raw, "orders").write([b"1"]), Written)


async def test_a_dead_proxys_streams_are_left_alone_until_somebody_asks(local: LocalProxies) -> None:
    """The cost of a proxy's death depends on the streams in use, not on those the proxy owned."""
    owner, other = await two_with_a_stream(local)
    async with Raw(owner.address) as raw:
        await raw.ask(Create, "asked-for", MEMORY)
    await owner.kill()
    assert [e.peer for e in await other.events.of(ProxySuspected)] == [owner.address]
    async with Raw(other.address) as raw:
        assert isinstance(await RawProducer(raw, "asked-for").write([b"1"]), Written)
    assert [e.stream for e in other.events if isinstance(e, StreamOwned)] == ["asked-for"]
    assert (await owner_in(local.metadata)).address == owner.address


async def test_a_follower_has_the_stream_of_a_dead_owner_taken(local: LocalProxies) -> None:
    """No client writes. The owner's last confirmed records may be ones that only a recovery can show the follower."""
    owner, other = await two_with_a_stream(local)
    reading = await local.read_proxy()
    server = owner.proxy
    assert isinstance(server, WriteProxy)
    async with dlog.connect(f"dlog://{reading.address}") as client, asyncio.TaskGroup() as group:
        records = client.read("orders", follow=True)
        assert (await anext(records)).payload == b"0"
        following = group.create_task(anext(records))
        while not len(server.tails):
            await client.stat("orders")
        await owner.kill()
        (ready,) = await other.events.of(StreamReady)
        assert (ready.stream, ready.epoch, ready.recovered) == ("orders", 2, 1)
        async with Raw(other.address) as raw:
            assert isinstance(await RawProducer(raw, "orders").write([b"1"]), Written)
        assert (await following).payload == b"1"


async def test_writes_that_come_while_a_stream_is_taken_wait_in_order(local: LocalProxies) -> None:
    owner, other = await two_with_a_stream(local)
    await owner.kill()
    async with Raw(other.address) as raw:
        raw.say(GetOwner(5, "orders", owner.address))
        producer = RawProducer(raw, "orders")
        batches = [producer.batch([b"%d" % n]) for n in range(50)]
        raw.say(*batches)
        for batch in batches:
            assert isinstance(await producer.answer(batch.request), Written)


async def test_a_wrong_suspicion_costs_a_roll_and_nothing_else(local: LocalProxies) -> None:
    """The old owner lives, and gets nothing acknowledged any more; its clients are redirected."""
    owner, other = await two_with_a_stream(local)
    await local.metadata.unregister_proxy(ProxyId(owner.address))  # as when its session was lost
    async with Raw(owner.address) as raw, Raw(other.address) as elsewhere:
        producer = RawProducer(raw, "orders")
        assert isinstance(await producer.write([b"1"]), Written)
        owner.proxy.listener.close()  # no proxy can check whether it lives; connected clients are still served
        assert isinstance(await RawProducer(elsewhere, "orders").write([b"2"]), Written)
        answer = await producer.write([b"3"])
        assert isinstance(answer, Failed)
        assert answer.code in (302, 504, 507)
        while answer.code != 302:
            again = await RawProducer(raw, "orders").write([b"4"])
            assert isinstance(again, Failed)
            answer = again
        assert answer.location == other.address
    assert (await owner_in(local.metadata)).epoch == 2
    assert await owner.events.of(ClaimLost)


async def test_an_idle_owner_that_lost_its_claim_hears_of_it_though_nobody_writes(local: LocalProxies) -> None:
    owner, other = await two_with_a_stream(local)
    await local.metadata.unregister_proxy(ProxyId(owner.address))
    owner.proxy.listener.close()
    async with Raw(other.address) as elsewhere:
        assert isinstance(await RawProducer(elsewhere, "orders").write([b"1"]), Written)
    assert [event.stream for event in await owner.events.of(ClaimLost)] == ["orders"]


async def test_two_proxies_asked_at_once_agree_on_one_owner(local: LocalProxies) -> None:
    proxies = [await local.write_proxy() for _ in range(3)]
    async with Raw(proxies[0].address) as raw:
        for i in range(20):
            await raw.ask(Create, f"s{i}", MEMORY)
    raws = [await Raw(proxy.address).__aenter__() for proxy in proxies]
    for i in range(20):
        answers = await _all(*(RawProducer(raw, f"s{i}").write([b"x"]) for raw in raws))
        assert sum(isinstance(answer, Written) for answer in answers) == 1
        assert {answer.code for answer in answers if isinstance(answer, Failed)} == {302}
    for raw in raws:
        await raw.__aexit__()
    owned = [event for proxy in proxies for event in proxy.events if isinstance(event, StreamOwned)]
    assert sorted(event.stream for event in owned) == sorted(f"s{i}" for i in range(20))


async def test_draining_hands_everything_over_and_tells_clients(local: LocalProxies) -> None:
    owner, other = await two_with_a_stream(local)
    async with Raw(owner.address) as raw, Raw(other.address) as elsewhere:
        producer = RawProducer(raw, "orders")
        batches = [producer.batch([b"%d" % n]) for n in range(200)]
        raw.say(*batches)
        await owner.drain()
        answers = [await producer.answer(batch.request) for batch in batches]
        kinds = [isinstance(answer, Written) for answer in answers]
        assert kinds == sorted(kinds, reverse=True), "what came too late follows what was taken"
        assert {a.location for a in answers if isinstance(a, Failed)} <= {other.address}
        await raw.hear(GoAway)
        await raw.closed.wait()
        next_owner = RawProducer(elsewhere, "orders", producer.producer, kinds.count(True))
        assert isinstance(await next_owner.write([b"on"]), Written)
    assert owner.task.done()
    assert owner.task.exception() is None
    assert [(e.handed_over, e.left) for e in owner.events if isinstance(e, ProxyDrained)] == [(1, 0)]
    assert (await owner_in(local.metadata)).epoch == 2


async def test_draining_is_bounded_when_metadata_does_not_answer(local: LocalProxies, monkeypatch: Any) -> None:
    owner, other = await two_with_a_stream(local, drain_s=0.3)

    async def never(*_: object) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(local.metadata, "compare_and_set", never)
    await owner.drain()
    assert owner.task.exception() is None
    assert [(e.handed_over, e.left) for e in owner.events if isinstance(e, ProxyDrained)] == [(0, 1)]
    monkeypatch.undo()
    async with Raw(other.address) as raw:
        assert await raw.ask(GetOwner, "orders", owner.address)
        assert isinstance(await RawProducer(raw, "orders").write([b"1"]), Written)


async def test_a_proxy_that_keeps_silent_is_suspected_and_trusted_again_when_it_answers(local: LocalProxies) -> None:
    """The proxy behaves as a frozen process: its kernel accepts connections, and nothing is sent on them."""
    silent = True

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = proxy.address.rpartition(":")
        answers, questions = await asyncio.open_connection(host, int(port))
        try:
            while data := await reader.read(65536):
                if not silent:
                    questions.write(data)
                    writer.write(await answers.read(65536))
        finally:
            questions.close()
            writer.close()

    proxy = await local.write_proxy(ping_every_s=0.02, ping_timeout_s=0.1)
    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await local.metadata.register_proxy(ProxyInfo(ProxyId("silent"), "write", address))
    (suspected,) = await proxy.events.of(ProxySuspected)
    assert suspected.peer == address
    silent = False
    (trusted,) = await proxy.events.of(ProxyTrusted)
    assert trusted.peer == address
    await proxy.kill()
    server.close()


async def _all(*work: Any) -> list[Any]:
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(one) for one in work]
    return [task.result() for task in started]
