"""A stream that our proxies wrote, seen by Apache BookKeeper's Java client: the ledgers behind its segments."""

from __future__ import annotations

import pytest

import dlog
from dlog.wire.entry import decode_entry
from tests.integration.proxies.processes import ProxyCluster
from tests.interop.java_peer import need_java, payloads, run

pytestmark = pytest.mark.java


@pytest.fixture(autouse=True)
def _java() -> None:
    need_java()


async def test_java_opens_the_ledger_that_a_proxy_wrote_and_finds_every_record(cluster: ProxyCluster) -> None:
    written = [b"record-%d" % i for i in range(500)]
    async with dlog.connect(cluster.target) as client:
        await client.create("orders")
        first = await client.append("orders", written[0])
        await client.append_many("orders", written[1:])
        (segment,) = (await client.stat("orders"))["segments"]
        await client.release("orders")  # completes the segment: its ledger is closed
        uri = f"zk+hierarchical://{cluster.bookies.hosts}/ledgers"
        lines = await run("LedgerTool", uri, "read", segment["place"], "false")
        assert lines[0]["closed"]
        records = [
            (dlog.DLSN(first.segment, entry, record.slot), record.payload)  # type: ignore[arg-type]
            for entry, payload in enumerate(payloads(lines))
            for record in decode_entry(payload)
            if record.is_user
        ]
        assert [payload for _, payload in records] == written
        assert records == [(r.dlsn, bytes(r.payload)) async for r in client.read("orders", follow=False)]
