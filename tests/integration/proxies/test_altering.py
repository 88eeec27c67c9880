"""Settings are altered while a stream is written: by its owner, without a take-over, through any proxy."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

import dlog
from dlog.model.quorum import Quorum
from dlog.stores.ledger import Ledgers, LedgerStore
from dlog.wire.proxy import Alter, Create, Failed
from tests.integration.proxies.local_proxies import LocalProxies
from tests.integration.proxies.processes import ProxyCluster
from tests.integration.proxies.raw import Raw

MEMORY: dlog.SettingsChanges = {"store": "memory"}


async def test_settings_are_altered_under_load_and_the_owner_stays(local: LocalProxies) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with dlog.connect(f"dlog://{writer.address},{reader.address}") as client:
        await client.create("orders", **MEMORY)
        await client.append("orders", b"first")
        epoch = (await client.owner("orders")).epoch
        is_over = asyncio.Event()

        async def write() -> int:
            count = 0
            while not is_over.is_set():
                await client.append("orders", b"x" * 10_000)
                count += 1
            return count

        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write())
            for retention_s in (60.0, 0.0, 3600.0):
                assert (await client.alter("orders", retention_s=retention_s)).retention_s == retention_s
            await client.alter("orders", segment_bytes=64 * 1024)
            await client.hand_over("orders")  # ends the segment that has the former size
            while len((await client.stat("orders")).segments) < 4:
                await client.append("orders", b"more")
            is_over.set()
        found = await client.stat("orders")
        assert (found.settings.retention_s, found.settings.segment_bytes) == (3600.0, 64 * 1024)
        assert found.owner is not None and found.owner.epoch <= epoch + 1, "the release only changed it"
        assert len([None async for _ in client.read("orders")]) >= writing.result() + 1


class NoBookies:
    def known_bookies(self) -> int:
        return 0


async def test_a_store_without_enough_bookies_is_refused(local: LocalProxies) -> None:
    local.other_stores["ledger"] = LedgerStore(cast(Ledgers, NoBookies()))
    writer = await local.write_proxy()
    async with dlog.connect(writer.address) as client:
        await client.create("orders", **MEMORY)
        with pytest.raises(dlog.InvalidRequestError, match="not enough bookies"):
            await client.alter("orders", store="ledger")
        with pytest.raises(dlog.InvalidRequestError, match="ensemble=1 bookies=0"):
            await client.create("more", store="ledger", ensemble=1, write_quorum=1, ack_quorum=1)


class Bookies:
    def known_bookies(self) -> int:
        return 9

    def placement_refusal(self, quorum: Quorum, min_regions: int = 1) -> str:
        return ""


async def test_a_stream_has_the_settings_of_its_store_only(local: LocalProxies) -> None:
    local.other_stores["ledger"] = LedgerStore(cast(Ledgers, Bookies()))
    writer = await local.write_proxy()
    async with dlog.connect(writer.address) as client:
        made = await client.create("orders", **MEMORY)
        assert made.settings.store_settings == {}
        with pytest.raises(dlog.InvalidRequestError, match="those of this store are none: store=memory setting=ens"):
            await client.create("files", store="memory", ensemble=3)
        with pytest.raises(dlog.InvalidRequestError, match="those of this store are none: store=memory setting=ack"):
            await client.alter("orders", ack_quorum=1)
        with pytest.raises(dlog.InvalidRequestError, match="store=memory setting=ensemble"):
            await client.create("orders", exist_ok=True, ensemble=3)
        with pytest.raises(dlog.StreamExistsError, match="store='memory' wanted='ledger'"):
            await client.create("orders", exist_ok=True, store="ledger", ensemble=3)
        moved = await client.alter("orders", store="ledger", ensemble=5)
        assert moved.store_settings == {"ensemble": 5, "write_quorum": 3, "ack_quorum": 2, "min_regions": 1}
        assert (await client.stat("orders")).settings == moved
        with pytest.raises(dlog.InvalidRequestError, match="ack_quorum, min_regions: store=ledger"):
            await client.alter("orders", partitions=1)  # type: ignore[call-arg]
        assert (await client.alter("orders", store="memory")).store_settings == {}


async def test_settings_are_checked_as_those_of_a_new_stream(local: LocalProxies) -> None:
    writer = await local.write_proxy()
    async with dlog.connect(writer.address) as client, Raw(writer.address) as raw:
        await client.create("orders", **MEMORY)
        wrong: list[dict[str, object]] = [
            {"store": "floppy"},
            {"segment_bytes": 1},
            {"segment_age_s": 0},
            {"ack_quorum": 4},
            {"retention_s": -1},
            {"colour": "red"},
        ]
        for settings in wrong:
            created = await raw.ask(Create, "other", {**MEMORY, **settings})
            altered = await raw.ask(Alter, "orders", 0, settings)
            assert isinstance(created, Failed) and isinstance(altered, Failed), settings
            assert (altered.code, altered.message) == (created.code, created.message), settings
        assert (await client.stat("orders")).settings.store == "memory"


async def test_a_request_that_was_made_from_older_settings_is_refused_and_a_repetition_is_not(
    local: LocalProxies,
) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with dlog.connect(writer.address) as client, Raw(writer.address) as raw, Raw(reader.address) as through:
        await client.create("orders", **MEMORY)
        assert isinstance(await through.ask(Alter, "orders", 0, {"retention_s": 60}), dict), "any proxy hands it on"
        assert isinstance(await raw.ask(Alter, "orders", 0, {"retention_s": 60}), dict), "it is so already"
        refused = await raw.ask(Alter, "orders", 0, {"retention_s": 70})
        assert isinstance(refused, Failed) and refused.code == dlog.StaleRequestError.code
        assert (await raw.incarnation("orders"))["settings_version"] == 1
        await client.alter("orders", retention_s=0.0)
        late = await raw.ask(Alter, "orders", 0, {"retention_s": 60})
        assert isinstance(late, Failed), "the values that it was made from are there again, and it was made before"
        await client.seal("orders")
        assert (await client.alter("orders", retention_s=5.0)).retention_s == 5.0


@pytest.mark.zookeeper
async def test_altered_settings_are_there_after_the_owner_has_died(cluster: ProxyCluster) -> None:
    async with dlog.connect(cluster.target) as client:
        await client.create("altered")
        await client.append("altered", b"1")
        async with asyncio.TaskGroup() as tasks:
            for number in range(1, 4):
                tasks.create_task(client.alter("altered", retention_s=float(number)))
        now = await client.alter("altered", segment_bytes=1 << 20)
        assert now.retention_s in (1.0, 2.0, 3.0)
        cluster.writer_at((await client.owner("altered")).location).kill()
        await client.append("altered", b"2")
        assert (await client.stat("altered")).settings == now
        again = await client.create("altered", exist_ok=True, segment_bytes=1 << 20)
        assert again.settings == now
