"""Hostile clients on the port: whatever they send closes their connection, and other clients notice nothing."""

from __future__ import annotations

import asyncio
import random
import struct

import msgpack
import pytest

from dlog.wire.proxy import (
    PROTOCOL_VERSION,
    Cancel,
    Create,
    Credit,
    Done,
    Failed,
    Hello,
    Ping,
    Read,
    Start,
    Tail,
    Welcome,
    Written,
)
from dlog.wire.proxy_codec import encode
from tests.integration.proxies.local_proxies import LocalProxies, Running
from tests.integration.proxies.raw import Raw, RawProducer

HELLO = b"".join(bytes(part) for part in encode(Hello(1, PROTOCOL_VERSION, PROTOCOL_VERSION, "tool", "x")))


def frame(header: object, body: bytes = b"") -> bytes:
    packed: bytes = msgpack.packb(header)
    return struct.pack(">IH", 2 + len(packed) + len(body), len(packed)) + packed + body


HOSTILE = {
    "a length of zero": struct.pack(">I", 0),
    "a length beyond the bound": struct.pack(">I", 2**31),
    "a negative length": struct.pack(">i", -1),
    "another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a header past its frame": struct.pack(">IH", 10, 5000) + b"x" * 8,
    "no msgpack": struct.pack(">IH", 6, 4) + b"\xc1\xc1\xc1\xc1",
    "an unknown operation": frame([63, 1]),
    "too few fields": frame([2, 1]),
    "fields of the wrong type": frame([16, "one"]),
    "a body where there is none": frame([16, 1], b"body"),
    "deep nesting": struct.pack(">IH", 2002, 2000) + b"\x91" * 2000,
    "a huge declared array": struct.pack(">IH", 7, 5) + b"\xdd\xff\xff\xff\xff",
    "an answer instead of a question": frame([67, 1]),
}


async def start(local: LocalProxies, role: str) -> Running:
    return await (local.write_proxy() if role == "write" else local.read_proxy())


@pytest.mark.parametrize("role", ["write", "read"])
@pytest.mark.parametrize("greeted", [False, True], ids=["before hello", "after hello"])
@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
async def test_bytes_that_are_no_question_close_their_connection_only(
    local: LocalProxies, role: str, greeted: bool, data: bytes
) -> None:
    proxy = await start(local, role)
    async with Raw(proxy.address) as bystander, Raw(proxy.address, hello=greeted) as stranger:
        assert stranger.transport is not None
        stranger.transport.write(data)
        if greeted and data == HOSTILE["an answer instead of a question"]:
            assert (await stranger.hear(Failed)).code == 400  # well formed, and no request for this proxy
        else:
            await stranger.closed.wait()
        assert await bystander.ask(Ping) == {}


@pytest.mark.parametrize("role", ["write", "read"])
async def test_noise_is_survived(local: LocalProxies, role: str) -> None:
    proxy = await start(local, role)
    rng = random.Random(5)
    for _ in range(50):
        async with Raw(proxy.address, hello=False) as stranger:
            assert stranger.transport is not None
            noise = bytearray(HELLO + frame([16, 1]) + rng.randbytes(rng.randint(0, 300)))
            for _ in range(rng.randint(0, 6)):
                noise[rng.randrange(len(noise))] ^= 1 << rng.randrange(8)
            stranger.transport.write(bytes(noise))
            stranger.transport.write_eof()
            await stranger.closed.wait()
    async with Raw(proxy.address) as bystander:
        assert await bystander.ask(Ping) == {}


async def test_who_does_not_say_hello_is_put_out(local: LocalProxies) -> None:
    proxy = await local.write_proxy(hello_s=0.05)
    async with Raw(proxy.address, hello=False) as silent:
        await silent.closed.wait()
        assert not silent.heard
    async with Raw(proxy.address, hello=False) as slow:
        assert slow.transport is not None
        slow.transport.write(HELLO[:7])
        await slow.closed.wait()


async def test_a_version_we_do_not_speak_is_refused_by_name(local: LocalProxies) -> None:
    proxy = await local.write_proxy()
    async with Raw(proxy.address, hello=False) as raw:
        raw.say(Hello(7, PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 5, "client", "from the future"))
        told = await raw.hear(Failed, request=7)
        assert told.code == 521
        await raw.closed.wait()
    async with Raw(proxy.address, hello=False) as raw:
        raw.say(Hello(8, 0, PROTOCOL_VERSION + 5, "client", "flexible"))
        assert (await raw.hear(Welcome, request=8)).version == PROTOCOL_VERSION


async def test_frames_in_pieces_and_many_in_one_piece_are_the_same(local: LocalProxies) -> None:
    proxy = await local.write_proxy()
    async with Raw(proxy.address, hello=False) as raw:
        assert raw.transport is not None
        data = HELLO + b"".join(frame([16, n]) for n in range(2, 30))
        for byte in data:
            raw.transport.write(bytes([byte]))
            await asyncio.sleep(0)
        for n in range(2, 30):
            await raw.hear(Done, request=n)


async def test_numbers_that_name_nothing_are_ignored_and_those_used_twice_refused(local: LocalProxies) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with Raw(writer.address) as raw, Raw(reader.address) as reading:
        assert await raw.ask(Create, "orders", {"store": "memory"})
        assert isinstance(await RawProducer(raw, "orders").write([b"x"]), Written)
        for connection in (raw, reading):
            connection.say(Cancel(99), Credit(99, 5), Cancel(99))
            assert await connection.ask(Ping) == {}
        raw.say(Tail(5, "orders"), Tail(5, "orders"))
        assert (await raw.hear(Failed, request=5)).code == 400
        read = Read(6, "orders", Start.START, None, 100, True)
        reading.say(read, read)
        assert (await reading.hear(Failed, request=6)).code == 400
        reading.say(Read(7, "../etc/passwd", Start.START, None, 100, True))
        assert (await reading.hear(Failed, request=7)).code == 602


async def test_who_asks_and_never_listens_is_not_listened_to(local: LocalProxies) -> None:
    """A peer that does not read its answers costs a bounded amount of memory."""
    proxy = await local.write_proxy()
    async with Raw(proxy.address) as raw:
        assert raw.transport is not None
        raw.transport.pause_reading()
        question = frame([10, 5, "no-such-stream" + "x" * 100])
        (connection,) = proxy.proxy.listener.connections
        while not connection.is_paused:
            raw.transport.write(question * 100)
            await asyncio.sleep(0)
        assert connection.unsent_bytes < 4 * 1024 * 1024


async def test_half_frames_are_kept_up_to_a_bound_for_all_connections_together(local: LocalProxies) -> None:
    """Buffers of one frame count as the whole frame once an eighth of it has arrived."""
    proxy = await local.write_proxy(receive_bytes_max=2 << 20)
    half = struct.pack(">I", 900_000) + b"x" * 400_000
    async with Raw(proxy.address) as bystander, Raw(proxy.address) as one, Raw(proxy.address) as two:
        async with Raw(proxy.address) as three:
            for raw in (one, two, three):
                assert raw.transport is not None
                raw.transport.write(half)
                assert await bystander.ask(Ping) == {}
            await three.closed.wait()
        assert 0 < proxy.proxy.listener.incomplete_bytes <= 2 << 20
        assert not one.closed.is_set()
        assert not two.closed.is_set()
