"""The client on a real cluster while its parts are killed: everything acknowledged is read back, once and in order."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import dlog
from tests.integration.cli.up import Up, up_for_many

BATCHES = 400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up_for_many(tmp_path_factory, "client") as running:
        yield running


def batch(writer: int, n: int) -> list[bytes]:
    return [b"%d.%d.%d " % (writer, n, i) + b"x" * 100 for i in range(50)]


async def written(client: dlog.Client, stream: str) -> list[bytes]:
    return [record.payload async for record in client.read(stream)]


async def test_two_clients_on_one_stream_through_the_death_of_its_owner(cluster: Up) -> None:
    target = cluster.running.connect
    async with dlog.connect(target) as one, dlog.connect(target) as two:
        await one.create("both")
        told: list[tuple[int, int, dlog.DLSN]] = []

        async def write(client: dlog.Client, writer: int) -> None:
            for n in range(BATCHES):
                result = await client.append_batch("both", batch(writer, n))
                told.append((writer, n, result.first))
                if writer == 0 and n == BATCHES // 3:
                    owner = await client.owner("both")
                    cluster.kill_part("write", owner.location)

        async with asyncio.TaskGroup() as group:
            group.create_task(write(one, 0))
            group.create_task(write(two, 1))

        places = {}
        per_writer: dict[int, list[bytes]] = {0: [], 1: []}
        async for found in one.read_batches("both"):
            places[found.dlsn] = found.payloads[0]
            per_writer[int(found.payloads[0].split(b".")[0])] += found.payloads
    for writer in (0, 1):
        assert per_writer[writer] == [p for n in range(BATCHES) for p in batch(writer, n)]
    for writer, n, place in told:
        assert places[place] == batch(writer, n)[0], "it lies where its acknowledgement said"


async def test_a_reader_at_the_tail_through_everything(cluster: Up) -> None:
    async with dlog.connect(cluster.running.connect) as client:
        await client.create("tail")
        expected = [p for n in range(60) for p in batch(0, n)]
        seen: list[bytes] = []

        async def follow() -> None:
            async for record in client.read("tail", follow=True, limit=len(expected)):
                seen.append(record.payload)

        async with asyncio.TaskGroup() as group:
            group.create_task(follow())
            for n in range(60):
                await client.append_batch("tail", batch(0, n))
                if n == 15:
                    owner = await client.owner("tail")
                    cluster.wait_restarted(await asyncio.to_thread(cluster.kill_part, "write", owner.location))
                if n in (25, 35):
                    readers = [p for p in cluster.running.parts if p.role == "read"]
                    part = readers[n == 35]
                    await asyncio.to_thread(cluster.kill_part, "read", part.address)
                if n == 45:
                    await asyncio.to_thread(cluster.kill_part, "bookie")
        assert seen == expected


async def test_single_appends_of_many_tasks_keep_the_order_of_each(cluster: Up) -> None:
    async with dlog.connect(cluster.running.connect) as client:
        await client.create("tasks")

        async def write(writer: int) -> list[dlog.DLSN]:
            return [await client.append("tasks", b"%d.%d" % (writer, n)) for n in range(50)]

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(write(w)) for w in range(20)]
        by_place = {r.dlsn: r.payload async for r in client.read("tasks")}
        assert len(by_place) == 1000
        for writer, task in enumerate(tasks):
            assert [by_place[place] for place in task.result()] == [b"%d.%d" % (writer, n) for n in range(50)]
            assert task.result() == sorted(task.result())


async def test_positions(cluster: Up) -> None:
    async with dlog.connect(cluster.running.connect) as client:
        await client.create("positions")
        for txid in (10, 20, 30):
            await client.append_batch("positions", [b"%d.%d" % (txid, i) for i in range(3)], txid=txid)

        async def first(start: object) -> bytes | None:
            async for record in client.read("positions", start, limit=1):  # type: ignore[arg-type]
                return record.payload
            return None

        assert await first(dlog.START) == b"10.0"
        assert await first(dlog.at_txid(11)) == b"20.0"
        assert await first(dlog.at_txid(20)) == b"20.0"
        assert await first(dlog.at_txid(31)) is None
        place = (await client.stat("positions")).last_dlsn
        assert place is not None
        assert await first("1:0:1") == b"10.1"
        assert await first("1:0:99") == b"20.0", "a place that holds no record: the next that does"
        assert await first(dlog.TAIL) is None
        with pytest.raises(dlog.TxidOutOfOrderError):
            await client.append("positions", b"x", txid=5)
        assert await client.append("positions", b"on it goes", txid=30)


async def test_a_planned_handover_is_not_seen(cluster: Up) -> None:
    async with dlog.connect(cluster.running.connect) as client:
        await client.create("handed")
        for n in range(30):
            await client.append("handed", b"%d" % n)
            if n % 10 == 5:
                await client.hand_over("handed")
        assert await written(client, "handed") == [b"%d" % n for n in range(30)]


def _in_child(client: dlog.SyncClient, answers: multiprocessing.Queue[object]) -> None:
    client.append("forked", b"child")
    answers.put([r.payload for r in client.read("forked")])


def test_the_synchronous_face_and_a_fork(cluster: Up) -> None:
    with dlog.connect_sync(cluster.running.connect) as client:
        client.create("forked")
        client.append("forked", b"parent")
        context = multiprocessing.get_context("fork")
        answers: multiprocessing.Queue[object] = context.Queue()
        child = context.Process(target=_in_child, args=(client, answers))
        child.start()
        assert answers.get(timeout=180) == [b"parent", b"child"]
        child.join(180)
        assert child.exitcode == 0
        client.append("forked", b"again")
        assert [r.payload for r in client.read("forked")] == [b"parent", b"child", b"again"]
        assert os.getpid() != child.pid


async def test_a_file_larger_than_every_window(cluster: Up, tmp_path: Path) -> None:
    async with dlog.connect(cluster.running.connect) as client:
        await client.create("large")
        records = [os.urandom(64).hex().encode() * 8 for _ in range(20_000)]
        summary = await client.append_many("large", records)
        assert summary.count == len(records)
        assert await written(client, "large") == records
