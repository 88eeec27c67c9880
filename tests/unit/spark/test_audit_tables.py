"""What an audit finds in topics: segments that are gone or open, and tables that no stream names."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from dlog.io.clock import unix_ms
from dlog.io.kafka_settings import KafkaOptions
from dlog.io.kafka_store import open_kafka_store
from dlog.model.ids import EntryId, Epoch, SegmentNumber, Txid
from dlog.model.segment import Segment
from dlog.spark.jobs.audit_findings import Kind
from dlog.stores.contract import SegmentRef
from dlog.stores.kafka.segment_writer import KafkaSegmentWriter
from dlog.stores.kafka.store import KafkaStore
from tests.unit.spark.test_audit_files import NAME, PAYLOADS, Tree, kinds, read

HOUR_MS = 3_600_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[KafkaStore]:
    recorded: list[str] = []

    async def find() -> str | None:
        return recorded[0] if recorded else None

    async def record(namespace: str) -> None:
        recorded.append(namespace)

    options = KafkaOptions(topics=f"file://{tmp_path}/topics")
    async with open_kafka_store(options, find, record, random.Random(3), creates=True) as opened:
        yield opened


def tree_of(store: KafkaStore) -> Tree:
    tree = Tree(None)
    cast(dict[str, Any], tree.cluster.stores)["kafka"] = store
    return tree


async def written(store: KafkaStore, number: int) -> KafkaSegmentWriter:
    writer = await store.create(NAME, SegmentNumber(number), Epoch(1), ())
    for entry, payload in enumerate(PAYLOADS):
        await writer.append(EntryId(entry), [payload])
    return writer


def listed(place: str, number: int, **given: Any) -> Segment:
    return Segment(number=SegmentNumber(number), name=place, store="kafka", first_txid=Txid(0), **given)


def completed(place: str, number: int, **given: Any) -> Segment:
    return listed(place, number, completed=True, last_entry=EntryId(7), **given)


async def test_completed_and_open_segments_are_read_and_their_writer_goes_on(store: KafkaStore) -> None:
    one, two = await written(store, 1), await written(store, 2)
    await one.seal()
    tree = tree_of(store)
    tree.value = tree.value.with_segment(completed(one.name, 1), listed(two.name, 2))
    size = sum(map(len, PAYLOADS))
    for dry_run in (True, False):
        facts = await tree.look(dry_run=dry_run)
        assert [(s.last, s.decided_end, s.length) for s in facts.segments] == [(7, 7, size), (7, None, size)]
        assert facts.findings == [] and facts.failures == []
    for of in facts.ranges():
        assert await read(tree, of) == PAYLOADS
    await two.append(EntryId(8), [b"and on"])


async def test_what_is_gone_or_open_is_found(store: KafkaStore) -> None:
    one, two = await written(store, 1), await written(store, 2)
    await two.seal()
    tree = tree_of(store)
    tree.value = tree.value.with_segment(completed(one.name, 1), completed(two.name, 2))
    await store.delete(SegmentRef(NAME, SegmentNumber(2), two.name))
    facts = await tree.look()
    assert set(kinds(facts.findings)) == {(Kind.TABLE_OPEN, 1), (Kind.TABLE_GONE, 2)}


async def test_tables_that_nothing_names_are_orphans_when_a_later_one_is_old_enough(store: KafkaStore) -> None:
    orphan, named, allocated, young = [await written(store, number) for number in (7, 1, 2, 8)]
    tree = tree_of(store)
    tree.value = tree.value.with_segment(completed(named.name, 1, completed_unix_ms=unix_ms() - 2 * HOUR_MS))
    tree.value = replace(tree.value, allocated=f"kafka:{allocated.name}")
    for age_s, found in ((3600.0, [7]), (3 * 3600.0, []), (0.0, [7, 8])):
        orphans = await tree.orphans(age_s)
        assert orphans.tables == 4 and orphans.failures == []
        assert kinds(orphans.findings) == [(Kind.ORPHAN_TABLE, number) for number in found], age_s
    assert orphan.name in orphans.findings[0].found and young.name in orphans.findings[1].found
    assert {finding.stream for finding in orphans.findings} == {NAME}
