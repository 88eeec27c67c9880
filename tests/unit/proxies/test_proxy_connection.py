"""A proxy that refuses a connection, for whatever reason, is one that cannot be reached."""

from __future__ import annotations

import asyncio

import pytest

from dlog.errors import UnavailableError
from dlog.events import Event, ProxySuspected
from dlog.io.metadata import ProxyInfo
from dlog.model.ids import ProxyId
from dlog.wire import proxy
from proxies.detector import Detector, DetectorOptions
from proxies.dialling import Dialler
from proxies.proxy_connection import ProxyConnection
from tests.memory_metadata import MemoryMetadata
from tests.unit.client.proxy_double import Double, Peer, Script

US = "127.0.0.1:1"


def refusing(code: int) -> Script:
    """Refuse every Hello, as a proxy of another protocol version does with code 521."""

    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Hello):
            peer.send(proxy.Failed(message.request, code, "refused by the script"))
        return True

    return script


@pytest.mark.parametrize("code", [400, 403, 500, 503, 521, 999])
async def test_a_refusal_of_the_hello_is_raised_as_a_proxy_out_of_reach(code: int) -> None:
    async with Double(script=refusing(code)) as double:
        with pytest.raises(UnavailableError, match=r"refused by the script.*address="):
            await ProxyConnection.open(double.address, role="write-proxy", name="us", timeout_s=30.0)


async def test_a_proxy_of_another_protocol_version_is_suspected_and_does_not_end_the_detector() -> None:
    metadata = MemoryMetadata()
    suspected = asyncio.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, ProxySuspected):
            suspected.set()

    async def reaches(what: str) -> bool:
        return True

    async with Double(script=refusing(521)) as double, asyncio.timeout(60.0):
        for name, address in (("us", US), ("peer", double.address)):
            await metadata.register_proxy(ProxyInfo(ProxyId(name), "write", address))
        dialler = Dialler("write-proxy", "us", metadata)
        options = DetectorOptions(ping_every_s=0.0)
        detector = Detector(ProxyId("us"), US, metadata, options, dialler, reaches=reaches, on_event=on_event)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(detector.run(), name="detector")
            await suspected.wait()
            assert detector.suspects(double.address)
            running.cancel()
