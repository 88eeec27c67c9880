"""Tests a write proxy over real sockets: its answers to batches and requests, and its refusals."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import dlog
from dlog.client.connection import Connection
from dlog.client.options import ClientOptions
from dlog.errors import OverCapacityError, UnavailableError
from dlog.events import ConnectionRefused
from dlog.wire.digest import crc32c
from dlog.wire.entry import build_record_set
from dlog.wire.proxy import (
    PROTOCOL_VERSION,
    Create,
    Delete,
    Failed,
    GetOwner,
    GetOwners,
    HandOver,
    Hello,
    Lac,
    List,
    Ping,
    Seal,
    Stat,
    Tail,
    Truncate,
    Write,
    Written,
)
from proxies.proxy_connection import ProxyConnection
from tests.integration.proxies.local_proxies import LocalProxies, Running
from tests.integration.proxies.raw import ANYTHING, Raw, RawProducer

MEMORY = {"store": "memory"}


def said(answer: dict[str, Any] | Failed) -> dict[str, Any]:
    assert not isinstance(answer, Failed), answer
    return answer


def failed(answer: Any) -> Failed:
    assert isinstance(answer, Failed), answer
    return answer


async def test_a_welcome_says_who_answers_and_what_it_takes(local: LocalProxies) -> None:
    proxy = await local.write_proxy(batch_bytes_max=5000, connection_bytes_max=9000)
    async with Raw(proxy.address) as raw:
        assert raw.welcome is not None
        assert raw.welcome.role == "write"
        assert raw.welcome.server == proxy.address
        assert raw.welcome.limits["batch_bytes_max"] == 5000
        assert raw.welcome.limits["inflight_bytes_max"] == 9000
        assert raw.welcome.limits["frame_bytes_max"] >= 5000 + 65535


async def test_batches_sent_together_lie_back_to_back_and_are_answered_in_ranges(local: LocalProxies) -> None:
    proxy = await local.write_proxy()
    async with Raw(proxy.address) as raw:
        said(await raw.ask(Create, "orders", MEMORY))
        producer = RawProducer(raw, "orders")
        await producer.write([b"first"])
        batches = [producer.batch([b"%d" % i, b"more"], txid=5 + 2**62) for i in range(200)]
        raw.say(*batches)
        answers: list[Written] = []
        while not answers or answers[-1].last < batches[-1].request:
            answers.append(await raw.hear(Written))
    assert [answer.first for answer in answers] == [batches[0].request, *(a.last + 1 for a in answers[:-1])]
    assert len(answers) < len(batches) / 4
    places = [answer.dlsn for answer in answers]
    assert places == sorted(places)


async def test_what_is_wrong_with_a_batch_is_said_and_the_next_one_is_taken(local: LocalProxies) -> None:
    proxy = await local.write_proxy(batch_bytes_max=5000)
    async with Raw(proxy.address) as raw:
        said(await raw.ask(Create, "orders", MEMORY))
        producer = RawProducer(raw, "orders")
        body = build_record_set([b"x"])
        number = raw.next_request

        def write(**changes: Any) -> Write:
            fields: dict[str, Any] = {"stream": "orders", "count": 1, "crc": crc32c(body), "body": body, **changes}
            return Write(number(), producer=producer.producer, sequence=0, txid=None, retry=False, **fields)

        long = build_record_set([b"x" * 6000])
        for message, code in (
            (write(crc=1), 400),
            (write(count=2), 400),
            (write(body=b"not a set", crc=crc32c(b"not a set")), 400),
            (write(body=b"", crc=0), 400),
            (write(body=long, crc=crc32c(long)), 413),
            (write(stream="nobody-made-this"), 510),
            (write(stream="../../etc"), 602),
            (write(stream=""), 602),
        ):
            raw.say(message)
            assert failed(await producer.answer(message.request)).code == code
        assert isinstance(await producer.write([b"x"]), Written)


async def test_a_repeated_batch_is_answered_with_its_first_place(local: LocalProxies) -> None:
    proxy = await local.write_proxy()
    async with Raw(proxy.address) as raw:
        said(await raw.ask(Create, "orders", MEMORY))
        producer = RawProducer(raw, "orders")
        first = await producer.write([b"a", b"b"])
        again = RawProducer(raw, "orders", producer.producer)
        repeated = await again.write([b"a", b"b"], retry=True)
        assert isinstance(first, Written)
        assert isinstance(repeated, Written)
        assert repeated.duplicate
        assert repeated.dlsn == first.dlsn
        ahead = RawProducer(raw, "orders", producer.producer, sequence=10)
        gap = failed(await ahead.write([b"z"]))
        assert (gap.code, gap.detail) == (530, {"expected": 2})


async def test_what_a_producer_gave_up_is_refused_once_its_next_generation_began_also_by_the_next_owner(
    local: LocalProxies,
) -> None:
    proxy = await local.write_proxy()
    async with Raw(proxy.address) as raw:
        said(await raw.ask(Create, "orders", MEMORY))
        producer = RawProducer(raw, "orders", b"twelve bytes" + bytes(4))
        await producer.write([b"a"])
        late = producer.batch([b"given up"])
        begun = RawProducer(raw, "orders", b"twelve bytes" + bytes((0, 0, 0, 1)), sequence=2)
        first = replace(begun.batch([b"b"]), replaces=2)
        raw.say(first)
        assert isinstance(await begun.answer(first.request), Written)
        for owner in ("the one that took it", "the one after"):
            for retry in (False, True):
                again = replace(late, request=raw.next_request(), retry=retry)
                raw.say(again)
                refused = failed(await producer.answer(again.request))
                assert (refused.code, refused.outcome_unknown) == (535, retry), owner
            said(await raw.ask(HandOver, "orders"))


async def test_streams_are_made_listed_described_sealed_and_deleted(local: LocalProxies) -> None:
    proxy = await local.write_proxy()
    async with Raw(proxy.address) as raw:
        made = said(await raw.ask(Create, "b", {**MEMORY, "segment_bytes": 1 << 20, "retention_s": 60}))
        assert made["settings"]["segment_bytes"] == 1 << 20
        said(await raw.ask(Create, "a", MEMORY))
        assert failed(await raw.ask(Create, "a", MEMORY)).code == 522
        page = said(await raw.ask(List, "", 1, None))
        assert (page["streams"], page["more"]) == (["a"], True)
        assert said(await raw.ask(List, "a", 10, page["listing"])) == {"streams": ["b"], "more": False, "listing": None}
        await RawProducer(raw, "b").write([b"1", b"2"])
        told = said(await raw.ask(Stat, "b"))
        assert told["state"] == "serving"
        assert told["owner"]["location"] == proxy.address
        assert told["last_dlsn"][:2] == [1, 0]
        assert told["segments"][0]["lac"] == 0
        assert said(await raw.ask(GetOwners))["owned"] == [["b", 1, "serving"]]
        said(await raw.ask(Seal, "b"))
        assert said(await raw.ask(Stat, "b"))["sealed"]
        assert failed(await RawProducer(raw, "b").write([b"3"])).code == 512
        assert said(await raw.ask(Delete, "b"))["segments"] == 1
        assert failed(await raw.ask(Stat, "b")).code == 510
        assert said(await raw.ask(Delete, "b"))["segments"] == 0
        assert not local.state.segments
        said(await raw.ask(Ping))


async def test_settings_that_make_no_sense_are_refused(local: LocalProxies) -> None:
    proxy = await local.write_proxy()
    async with Raw(proxy.address) as raw:
        for settings in (
            {"colour": "red"},
            {"store": "tape"},
            {**MEMORY, "ensemble": 2},
            {**MEMORY, "ensemble": "3"},
            {**MEMORY, "segment_bytes": True},
            {**MEMORY, "segment_bytes": 1},
            {**MEMORY, "segment_age_s": 0},
            {**MEMORY, "retention_s": float("nan")},
        ):
            assert failed(await raw.ask(Create, "orders", settings)).code == 400, settings
        for name in ("", ".hidden", "a/b", "x" * 201, "umläut"):
            assert failed(await raw.ask(Create, name, MEMORY)).code == 602, name
        assert said(await raw.ask(List, "", 10, None))["streams"] == []


async def test_a_truncation_says_what_is_left(local: LocalProxies) -> None:
    proxy = await local.write_proxy()
    async with Raw(proxy.address) as raw:
        said(await raw.ask(Create, "orders", MEMORY))
        producer = RawProducer(raw, "orders")
        await producer.write([b"old"])
        said(await raw.ask(HandOver, "orders"))
        await producer.write([b"new"])
        assert said(await raw.ask(Truncate, "orders", (2, 0, 0)))["first"] == [2, 0, 0]
        assert failed(await raw.ask(Truncate, "orders", (9, 0, 0))).code == 561


async def test_beyond_its_share_a_stream_is_refused_and_nothing_is_lost(local: LocalProxies) -> None:
    proxy = await local.write_proxy(stream_bytes_max=100_000, connection_bytes_max=10_000_000)
    async with Raw(proxy.address) as raw:
        said(await raw.ask(Create, "orders", MEMORY))
        producers = [RawProducer(raw, "orders") for _ in range(50)]
        batches = [producer.batch([b"x" * 9000]) for producer in producers]
        raw.say(*batches)
        answers = [await producers[0].answer(batch.request) for batch in batches[:1]]
        heard: set[int] = {batches[0].request} if isinstance(answers[0], Written) else set()
        refused = 0
        while len(heard) + refused < len(batches):
            message = await raw.hear(ANYTHING)
            if isinstance(message, Written):
                heard.update(range(message.first, message.last + 1))
            else:
                assert message.code == 517
                refused += 1
        assert refused > 0
        assert len(heard) >= 10
        for producer, batch in zip(producers, batches, strict=True):
            if batch.request not in heard:
                raw.say(batch)
                assert isinstance(await producer.answer(batch.request), Written)


async def test_a_connection_with_enough_in_flight_is_not_read_until_answers_come(local: LocalProxies) -> None:
    proxy = await local.write_proxy(connection_bytes_max=50_000)
    async with Raw(proxy.address) as raw:
        said(await raw.ask(Create, "orders", MEMORY))
        producer = RawProducer(raw, "orders")
        batches = [producer.batch([b"x" * 9000]) for _ in range(100)]
        raw.say(*batches)
        while True:
            answer = await raw.hear(Written)
            assert proxy.proxy.admission.process.bytes <= 400_000
            if answer.last == batches[-1].request:
                break


async def test_who_tails_hears_the_lac_and_the_end_of_ownership(local: LocalProxies) -> None:
    owner = await local.write_proxy()
    other = await local.write_proxy()
    async with Raw(owner.address) as raw, Raw(other.address) as elsewhere:
        said(await raw.ask(Create, "orders", MEMORY))
        location = said(await raw.ask(GetOwner, "orders", None))["location"]
        at, away = (raw, elsewhere) if location == owner.address else (elsewhere, raw)
        away.say(Tail(5, "orders"))
        assert (await away.hear(Failed, request=5)).code == 515
        await RawProducer(at, "orders").write([b"1"])
        at.say(Tail(6, "orders"))
        assert (await at.hear(Lac, request=6)).lac == 0
        await RawProducer(at, "orders").write([b"2"])
        assert (await at.hear(Lac, request=6)).lac == 1
        away.say(Tail(7, "orders"))
        assert (await away.hear(Failed, request=7)).location == location
        said(await at.ask(HandOver, "orders"))
        assert (await at.hear(Failed, request=6)).code in (302, 515)


async def test_asking_for_an_owner_takes_nothing_and_two_proxies_give_the_same_answer(local: LocalProxies) -> None:
    first, second = await local.write_proxy(), await local.write_proxy()
    async with Raw(first.address) as one, Raw(second.address) as two:
        for i in range(10):
            said(await one.ask(Create, f"s{i}", MEMORY))
            told = {said(await raw.ask(GetOwner, f"s{i}", None))["location"] for raw in (one, two)}
            assert len(told) == 1
        assert said(await one.ask(GetOwners))["owned"] == []
        assert sorted(said(await one.ask(GetOwner, "s0", None))["proxies"]) == sorted([first.address, second.address])


async def test_many_connections_at_once_are_served_and_those_beyond_the_cap_are_told(local: LocalProxies) -> None:
    proxy = await local.write_proxy(connections_max=20)
    async with asyncio.TaskGroup() as tasks:
        raws = [Raw(proxy.address) for _ in range(20)]
        for raw in raws:
            tasks.create_task(raw.__aenter__())
    extra = Raw(proxy.address, hello=False)
    async with extra:
        told = await extra.hear(Failed, request=0)
        assert told.code == 517
        assert "connections_max" in told.message
        await extra.closed.wait()
    assert len(await proxy.events.of(ConnectionRefused)) == 1
    with pytest.raises(OverCapacityError, match=f"connections_max.*address={proxy.address}"):
        await Connection.open(proxy.address, ClientOptions())
    with pytest.raises(UnavailableError, match="connections_max"):
        await ProxyConnection.open(proxy.address, role="tool", name="t", timeout_s=60.0)
    async with dlog.connect(f"dlog://{proxy.address}") as client:
        with pytest.raises(OverCapacityError, match="connections_max"):
            await client.reach(0.0)
    refusals = [event for event in proxy.events if isinstance(event, ConnectionRefused)]
    assert len(refusals) == 1, "a crowd that connects again and again does not fill the log"
    for raw in raws:
        said(await raw.ask(Ping))
        await raw.__aexit__()


class Staying(Raw):
    """Keeps its side of the connection open when the proxy has closed the other."""

    def eof_received(self) -> bool:
        return True


async def until_open(proxy: Running, count: int) -> None:
    async with asyncio.timeout(90.0):
        while len(proxy.proxy.listener.connections) != count:  # noqa: ASYNC110 - a listener has no event for each
            await asyncio.sleep(0)


async def test_connections_that_are_refused_are_bounded_too(
    local: LocalProxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxies.serving.REFUSING_MAX", 2)
    proxy = await local.write_proxy(connections_max=1, hello_s=1000.0)
    async with Raw(proxy.address):
        silent = [Staying(proxy.address, hello=False) for _ in range(4)]
        for raw in silent:
            await raw.__aenter__()
            assert (await raw.hear(Failed, request=0)).code == 517
        await until_open(proxy, 3)
        silent[0].say(Hello(1, PROTOCOL_VERSION, PROTOCOL_VERSION, "tool", "raw"))
        await until_open(proxy, 2)
        for raw in silent:
            await raw.__aexit__()
    await until_open(proxy, 0)
