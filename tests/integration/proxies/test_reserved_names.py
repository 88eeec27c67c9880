"""Streams that dlog keeps for itself: no request of a peer changes them, at either kind of proxy; they may be read."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

import dlog
from dlog.errors import InvalidStreamNameError
from dlog.io.metadata import AbsentStream
from dlog.model.ids import METADATA_STREAM
from dlog.model.segment import StreamKey, StreamMetadata, StreamSettings
from dlog.wire import proxy
from dlog.wire.digest import crc32c
from dlog.wire.entry import build_record_set
from tests.integration.proxies.local_proxies import LocalProxies
from tests.integration.proxies.raw import Raw

NAME = str(METADATA_STREAM)
ID = "5" * 24
SET = build_record_set([b"x"])
CHANGES: list[Callable[[int], proxy.Message]] = [
    lambda n: proxy.Create(n, NAME, ID, 0, {"store": "memory"}),
    lambda n: proxy.Delete(n, NAME, ID),
    lambda n: proxy.Truncate(n, NAME, ID, (1, 0, 0)),
    lambda n: proxy.Seal(n, NAME, ID),
    lambda n: proxy.Alter(n, NAME, ID, 0, {}),
    lambda n: proxy.HandOver(n, NAME, ID),
    lambda n: proxy.ImportSegments(n, NAME, ID, "", 0, "", 0, None, None, ()),
    lambda n: proxy.SinkWrite(n, NAME, ID, "sink", 1, "q", 1, None, 1, None, crc32c(SET), SET),
    lambda n: proxy.MoveSegment(n, NAME, ID, 1, "memory", "1", "cold", "2"),
    lambda n: proxy.Write(n, NAME, os.urandom(12) + bytes(4), 0, 1, None, crc32c(SET), False, body=SET),
]


@pytest.mark.parametrize("role", ["write", "read"])
async def test_no_request_changes_them(local: LocalProxies, role: str) -> None:
    writing, reading = await local.write_proxy(), await local.read_proxy()
    async with Raw(writing.address if role == "write" else reading.address) as raw:
        for number, question in enumerate(CHANGES, 1000):
            raw.say(question(number))
            refused = await raw.hear(proxy.Failed, request=number)
            assert (refused.code, "reserved" in refused.message) == (602, True)


async def test_a_client_refuses_before_it_asks(local: LocalProxies) -> None:
    writing = await local.write_proxy()
    async with dlog.connect(f"dlog://{writing.address}") as client:
        for work in (
            client.create(NAME),
            client.append(NAME, b"x"),
            client.seal(NAME),
            client.delete(NAME),
            client.truncate(NAME, "1-0-0"),
            client.alter(NAME, retention_s=1.0),
            client.hand_over(NAME),
        ):
            with pytest.raises(InvalidStreamNameError, match="reserved"):
                await work


async def test_they_may_be_described_and_are_not_listed(local: LocalProxies) -> None:
    writing = await local.write_proxy()
    made = StreamMetadata(name=METADATA_STREAM, settings=StreamSettings(store="memory"), incarnation=ID)
    await local.metadata.compare_and_set(StreamKey(METADATA_STREAM), made, AbsentStream(0))
    async with dlog.connect(f"dlog://{writing.address}") as client:
        await client.create("a", store="memory")
        assert [name async for name in client.streams()] == ["a"]
        assert (await client.stat(NAME)).name == NAME
