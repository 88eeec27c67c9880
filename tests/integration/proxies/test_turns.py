"""A client that sends thousands of messages at once is served in turns: all of them, in order, and others in
between."""

from __future__ import annotations

import asyncio

from dlog.wire.proxy import Done, Ping
from dlog.wire.proxy_codec import encode
from proxies.connection import TURN_MESSAGES_MAX
from tests.integration.proxies.local_proxies import LocalProxies
from tests.integration.proxies.raw import Raw


async def test_a_chunk_of_many_questions_is_answered_whole_and_in_order(local: LocalProxies) -> None:
    proxy = await local.write_proxy()
    count = TURN_MESSAGES_MAX * 8 + 1
    async with Raw(proxy.address) as raw:
        assert raw.transport is not None
        raw.transport.write(b"".join(bytes(part) for n in range(1000, 1000 + count) for part in encode(Ping(n))))
        raw.transport.write_eof()
        answers: list[int] = []
        while len(answers) < count:
            answers.append((await raw.hear(Done)).request)
        assert answers == list(range(1000, 1000 + count))
        await raw.closed.wait()


async def test_others_are_heard_between_the_turns(local: LocalProxies) -> None:
    proxy = await local.write_proxy()
    flood = b"".join(bytes(part) for part in encode(Ping(7))) * 20_000
    async with Raw(proxy.address) as greedy, Raw(proxy.address) as modest:
        assert greedy.transport is not None
        greedy.transport.write(flood)
        await greedy.hear(Done, request=7)
        assert await modest.ask(Ping) == {}
        heard_meanwhile = len(greedy.heard)
        assert heard_meanwhile < 19_999, "the modest one did not wait for all of it"
        async with asyncio.timeout(90):
            while len(greedy.heard) < 19_999:
                await greedy.more()
