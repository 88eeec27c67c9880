"""Disk space of deleted ledgers is freed, and no data of a ledger that exists in metadata is deleted."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.io.zookeeper import ZooKeeper
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.machine import Versioned
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import Fragment, LedgerKey, LedgerMetadata
from dlog.model.quorum import Quorum
from tests.integration.bookie.conftest import new_cluster
from tests.integration.bookie.process import BookieProcess
from tests.integration.bookie.raw import RECOVERY, Raw, add_frame, collect_frame, packet
from tests.integration.bookie.test_disks import members, small_disk, until

__all__ = ["small_disk"]

pytestmark = pytest.mark.zookeeper
Make = Callable[..., BookieProcess]
T = TypeVar("T")
OK, NO_LEDGER, NO_ENTRY, BAD_REQUEST, FENCED = 0, 1, 2, 100, 104
STARTED, RUNNING, DONE = 1, 2, 3
BODY = bytes(20_000)
OFTEN = {"gc_s": 0.5, "gc_look_s": 0.1}
SELDOM = {"gc_s": 3600.0, "gc_look_s": 3600.0}


@pytest.fixture
def cluster(zookeeper: EmbeddedZooKeeper) -> str:
    """A cluster for each test, because their ledgers have the same ids."""
    return new_cluster(zookeeper)


def with_metadata(hosts: str, work: Callable[[ZooKeeperMetadata], Awaitable[T]]) -> T:
    async def run() -> T:
        async with await ZooKeeperMetadata.connect(hosts, "/dlog") as metadata:
            return await work(metadata)

    return asyncio.run(run())


def mark(hosts: str, bookie: str) -> int:
    """The version of the bookie's mark, -1 if it has none."""
    found = with_metadata(hosts, lambda metadata: metadata.read_gc_mark(BookieId(bookie)))
    return int(found.version) if isinstance(found, Versioned) else -1


def create(hosts: str, bookie: str, ledger: int) -> None:
    value = LedgerMetadata(
        quorum=Quorum(ensemble=1, write=1, ack=1), fragments=(Fragment(EntryId(0), (BookieId(bookie),)),)
    )
    with_metadata(hosts, lambda metadata: metadata.compare_and_set(LedgerKey(LedgerId(ledger)), value, None))


def delete(hosts: str, ledger: int) -> None:
    with_metadata(hosts, lambda metadata: metadata.delete(LedgerKey(LedgerId(ledger))))


def begin(bookie: BookieProcess, raw: Raw, hosts: str, ledger: int) -> None:
    """Write a ledger's first entry and wait until the bookie has seen its metadata."""
    before = mark(hosts, bookie.id)
    create(hosts, bookie.id, ledger)
    assert raw.add(ledger, 0, BODY) == OK
    until(lambda: mark(hosts, bookie.id) > before)


def logs(bookie: BookieProcess) -> list[Path]:
    return sorted((bookie.directory / "ledgers").glob("entries-*"))


def events(bookie: BookieProcess, name: str) -> Iterator[dict[str, object]]:
    for line in bookie.log.read_text().splitlines():
        told = json.loads(line)
        if told.get("event") == name:
            yield told


def test_a_deleted_ledger_goes_and_its_fence_stays(make_bookie: Make, cluster: str) -> None:
    bookie = make_bookie(**OFTEN).start()
    with bookie.connect() as raw:
        for ledger in (1, 2):
            begin(bookie, raw, cluster, ledger)
            for entry in range(1, 60):
                assert raw.add(ledger, entry, BODY) == OK
        until(lambda: len(logs(bookie)) >= 3)
        delete(cluster, 1)
        until(lambda: raw.read(1, 0)[0] == NO_LEDGER)
        assert all(raw.read(2, entry) == (OK, packet(2, entry, BODY)) for entry in range(60))
    bookie.kill()
    bookie.start()
    with bookie.connect() as raw:
        assert raw.read(1, 0)[0] == NO_LEDGER and raw.add(1, 60, BODY) == FENCED
        assert raw.ask(add_frame(1, 60, BODY, flags=RECOVERY)).rc == NO_LEDGER
        assert raw.fence(1).rc == NO_ENTRY, "its id is not free"
        assert all(raw.read(2, entry) == (OK, packet(2, entry, BODY)) for entry in range(60))


def test_a_log_in_which_little_lives_is_compacted_under_a_reader(make_bookie: Make, cluster: str) -> None:
    bookie = make_bookie(**OFTEN, gc_bytes_s=200_000).start()
    with bookie.connect() as raw:
        begin(bookie, raw, cluster, 1)
        begin(bookie, raw, cluster, 2)
        kept = range(20)
        for entry in range(1, 200):
            assert raw.add(1, entry, BODY) == OK
            if entry % 10 == 0:
                assert raw.add(2, entry // 10, BODY) == OK
        until(lambda: len(logs(bookie)) >= 7)
        delete(cluster, 1)

        def few_logs() -> bool:
            assert all(raw.read(2, entry) == (OK, packet(2, entry, BODY)) for entry in kept)
            return len(logs(bookie)) <= 3

        until(few_logs)
    bookie.kill()
    bookie.start()
    with bookie.connect() as raw:
        assert all(raw.read(2, entry) == (OK, packet(2, entry, BODY)) for entry in kept)


def test_a_full_bookie_collects_and_is_writable_again(make_bookie: Make, small_disk: Path, cluster: str) -> None:
    """The limit of its options is reached."""
    limit = 2 << 20
    bookie = make_bookie("small/bookie", disk_free_min_bytes=limit, **OFTEN).start()
    with bookie.connect() as raw:
        begin(bookie, raw, cluster, 2)
        begin(bookie, raw, cluster, 1)
        ledger, taken = 1, 1
        while shutil.disk_usage(small_disk).free >= limit and raw.add(ledger, taken, BODY) == OK:
            taken += 1
        until(lambda: bookie.id in members(cluster).readonly)
        delete(cluster, 1)
        until(lambda: bookie.id in members(cluster).writable)
        assert raw.add(2, 1, b"room again") == OK
        assert raw.read(2, 0) == (OK, packet(2, 0, BODY))
    assert sum(int(str(told["reclaimed_bytes"])) for told in events(bookie, "ledgers.collected")) > 1 << 20


def test_a_bookie_without_a_free_byte_collects_and_is_writable_again(
    make_bookie: Make, small_disk: Path, cluster: str
) -> None:
    """Another file on the disk takes all the space, and stays."""
    bookie = make_bookie("small/bookie", disk_free_min_bytes=1 << 20, entry_log_bytes=1 << 20, **OFTEN).start()
    with bookie.connect() as raw:
        begin(bookie, raw, cluster, 1)
        for entry in range(1, 200):
            assert raw.add(1, entry, BODY) == OK
        until(lambda: len(logs(bookie)) >= 2)
        with (small_disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(bytes(4096))
        assert shutil.disk_usage(small_disk).free == 0
        until(lambda: bookie.id in members(cluster).readonly)
        delete(cluster, 1)
        until(lambda: raw.read(1, 0)[0] == NO_LEDGER)
        until(lambda: bookie.id in members(cluster).writable)
        create(cluster, bookie.id, 2)
        assert raw.add(2, 0, b"room again") == OK
    bookie.kill()
    bookie.start()
    with bookie.connect() as raw:
        assert raw.read(2, 0) == (OK, packet(2, 0, b"room again"))
        assert raw.read(1, 0)[0] == NO_LEDGER


def test_a_disk_that_becomes_full_is_collected_at_once(make_bookie: Make, small_disk: Path, cluster: str) -> None:
    """Both intervals are an hour: a collection here is due because of the disk."""
    limit = 4 << 20
    bookie = make_bookie("small/bookie", disk_free_min_bytes=limit, **SELDOM).start()
    for ledger in (1, 2):
        create(cluster, bookie.id, ledger)
    with bookie.connect() as raw:
        assert raw.add(2, 0, BODY) == OK
        entry = 0
        while shutil.disk_usage(small_disk).free >= limit * 5 // 4:
            assert raw.add(1, entry, BODY) == OK
            entry += 1
        until(lambda: mark(cluster, bookie.id) >= 0)
        delete(cluster, 1)
        while shutil.disk_usage(small_disk).free >= limit and raw.add(1, entry, BODY) == OK:
            entry += 1
        until(lambda: raw.read(1, 0)[0] == NO_LEDGER)
        until(lambda: bookie.id in members(cluster).writable)
        assert raw.read(2, 0) == (OK, packet(2, 0, BODY))


def test_who_asks_for_a_collection_that_runs_joins_it(make_bookie: Make, cluster: str) -> None:
    bookie = make_bookie(**SELDOM).start()
    with bookie.connect() as raw:
        raw.send(collect_frame(0) * 2 + collect_frame(1))
        first, second, third = raw.answers(3)
        assert [(a.rc, a.ledger, a.entry) for a in (first, second, third)] == [
            (OK, 1, STARTED),
            (OK, 1, RUNNING),
            (OK, 1, RUNNING),
        ]
        until(lambda: raw.ask(collect_frame(1)).entry == DONE)
        assert (raw.ask(collect_frame(0)).ledger, raw.ask(collect_frame(-1)).rc) == (2, BAD_REQUEST)


def test_a_ledger_that_is_deleted_a_moment_after_its_first_entry_goes(make_bookie: Make, cluster: str) -> None:
    """Only requested rounds run, and each ledger is deleted before one."""
    bookie = make_bookie(**SELDOM).start()

    def collected(raw: Raw) -> None:
        number = raw.ask(collect_frame(0)).ledger
        until(lambda: raw.ask(collect_frame(number)).entry == DONE)

    def is_any_gone() -> bool:
        ledger = next(numbers)
        create(cluster, bookie.id, ledger)
        assert raw.add(ledger, 0, BODY) == OK
        delete(cluster, ledger)
        collected(raw)
        return raw.read(ledger, 0)[0] == NO_LEDGER

    numbers = itertools.count(1)
    with bookie.connect() as raw:
        until(is_any_gone)  # a read of metadata may be slower than the deletion, though not each time


def gc(hosts: str, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run `dlog bookie gc`; returns exit code, rows by bookie, stderr."""
    command = [sys.executable, "-m", "dlog", "bookie", "gc", *arguments, "--zookeeper", hosts, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout or "[]"), done.stderr


def test_gc_deletes_what_metadata_does_not_name_and_nothing_else(make_bookie: Make, cluster: str) -> None:
    bookies = [make_bookie(name, gc_s=3600.0, gc_look_s=0.1).start() for name in ("one", "two")]
    with bookies[0].connect() as raw:
        begin(bookies[0], raw, cluster, 2)
        begin(bookies[0], raw, cluster, 1)
        for entry in range(1, 100):
            assert raw.add(1, entry, BODY) == OK
        until(lambda: len(logs(bookies[0])) >= 4)
        delete(cluster, 1)
        assert raw.add(3, 0, BODY) == OK, "no metadata of it was ever seen"
        code, rows, _ = gc(cluster, "--wait")
        told = {row["bookie"]: row for row in rows}
        one, two = told[bookies[0].id], told[bookies[1].id]
        assert code == 0 and len(told) == 2
        assert (one["state"], one["removed"], one["ledgers"], one["unseen"], one["reason"]) == ("done", 1, 2, 1, "")
        assert one["reclaimed_bytes"] > 1 << 20
        assert (two["state"], two["removed"], two["reclaimed_bytes"], two["ledgers"]) == ("done", 0, 0, 0)
        assert raw.read(1, 0)[0] == NO_LEDGER
        assert raw.read(2, 0) == (OK, packet(2, 0, BODY)) and raw.read(3, 0) == (OK, packet(3, 0, BODY))
        code, (row,), _ = gc(cluster, bookies[0].id, bookies[0].id)
        assert code == 0 and row["state"] == "started" and row["removed"] is None


def test_gc_names_a_bookie_that_is_unknown_or_does_not_answer(make_bookie: Make, cluster: str) -> None:
    code, _, said = gc(cluster)
    assert code == 1 and "no bookie is registered" in said
    bookies = [make_bookie(name, **SELDOM).start() for name in ("one", "two")]
    code, rows, said = gc(cluster, bookies[0].id, "nobody:1", "--wait")
    assert code == 1 and not rows and "bookie=nobody:1" in said
    assert not any(events(bookies[0], "ledgers.collected"))
    bookies[1].kill()  # its registration ends with its session, a while later
    assert len(members(cluster).writable) == 2
    code, rows, _ = gc(cluster, "--wait")
    told = {row["bookie"]: row for row in rows}
    assert code == 1 and told[bookies[0].id]["state"] == "done"
    assert told[bookies[1].id]["state"] == "no answer" and "Connect call failed" in told[bookies[1].id]["reason"]


def test_gc_says_why_nothing_may_be_deleted(make_bookie: Make, cluster: str) -> None:
    bookie = make_bookie(gc_s=3600.0, gc_look_s=0.1).start()

    async def lose_the_mark() -> None:
        async with await ZooKeeper.connect(cluster) as client:
            await client.delete(f"/dlog/.bookies/{bookie.id}", -1)

    with bookie.connect() as raw:
        begin(bookie, raw, cluster, 1)
        delete(cluster, 1)
        asyncio.run(lose_the_mark())
        code, (row,), _ = gc(cluster, "--wait")
        assert code == 0 and row["removed"] == 0 and "lacks this bookie's last mark" in row["reason"]
        assert raw.read(1, 0) == (OK, packet(1, 0, BODY))
    bookie.terminate()
    bookie.options["gc_s"] = 0.0
    bookie.start()
    code, (row,), _ = gc(cluster, "--wait")
    assert code == 1 and row["state"] == "refused" and "gc_s is 0" in row["reason"]


def test_metadata_that_was_restored_costs_no_ledger(make_bookie: Make, cluster: str) -> None:
    """The znodes of ledger and mark are restored to their state before the ledger was created."""
    bookie = make_bookie(**OFTEN).start()

    async def restore() -> None:
        async with await ZooKeeper.connect(cluster) as client:
            path = f"/dlog/.bookies/{bookie.id}"
            await client.delete(path, -1)
            await client.create(path, old_mark)

    async def read_gc_mark() -> bytes:
        async with await ZooKeeper.connect(cluster) as client:
            return (await client.get(f"/dlog/.bookies/{bookie.id}"))[0]

    with bookie.connect() as raw:
        begin(bookie, raw, cluster, 1)
        old_mark = asyncio.run(read_gc_mark())
        begin(bookie, raw, cluster, 2)
        bookie.terminate()
        delete(cluster, 2)
        asyncio.run(restore())
    bookie.start()
    with bookie.connect() as raw:
        until(lambda: any(events(bookie, "collection.metadata_went_back")))
        until(lambda: mark(cluster, bookie.id) > 0)  # the new chain has begun: the next mark is that of ledger 3
        begin(bookie, raw, cluster, 3)
        delete(cluster, 3)
        until(lambda: raw.read(3, 0)[0] == NO_LEDGER)
        assert raw.read(2, 0) == (OK, packet(2, 0, BODY)), "it is in no metadata, and nobody deleted it"
        assert raw.read(1, 0) == (OK, packet(1, 0, BODY))
