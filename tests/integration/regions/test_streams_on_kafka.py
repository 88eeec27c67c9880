"""A cluster without bookies whose streams are on three real brokers, as a user runs it.

tests/integration/cli/test_kafka_store.py does more on topics in a directory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.up import Up, dlog, up
from tests.integration.regions.kafka_cluster import KafkaCluster

LINES = b"".join(b"line %d\n" % n for n in range(20_000))


@pytest.fixture(scope="module")
def on_kafka(brokers: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    directory = tmp_path_factory.mktemp("on-kafka") / "cluster"
    with up(directory, "--bookies", "0", "--kafka", brokers.bootstrap, "--read-proxies", "1") as running:
        yield running


def ok(cluster: Up, *arguments: str, given: bytes = b"") -> bytes:
    code, out, err = dlog(*arguments, directory=cluster.directory, given=given)
    assert code == 0, err
    return out


def told(cluster: Up, *arguments: str) -> Any:
    return json.loads(ok(cluster, *arguments, "--json"))


def test_a_file_comes_back_after_its_owner_was_killed(on_kafka: Up, brokers: KafkaCluster, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_bytes(LINES)
    ok(on_kafka, "create", "s")
    ok(on_kafka, "append", "s", str(lines))
    assert ok(on_kafka, "read", "s", "--from-start") == LINES
    shown = told(on_kafka, "show", "s")
    assert (shown["settings"]["store"], shown["durability"]) == ("kafka", "synced")
    on_kafka.kill_part("write", shown["owner"]["location"])
    ok(on_kafka, "append", "s", given=b"more\n")
    assert ok(on_kafka, "read", "s", "--from-start") == LINES + b"more\n"
    assert [segment["completed"] for segment in told(on_kafka, "show", "s")["segments"]] == [True, False]

    explained = told(on_kafka, "explain", "s", "1:0:0")
    topic, _, address = explained["topic"].partition(" at ")
    assert address == brokers.address and explained["table"].partition("(")[2].startswith("ended")
    described = brokers.tool("org.apache.kafka.tools.TopicCommand", "--describe", "--topic", topic)
    assert (
        "ReplicationFactor: 3" in described and "flush.messages=1" in described and "min.insync.replicas=2" in described
    )


def test_a_stream_is_written_on_while_a_broker_is_gone(on_kafka: Up, brokers: KafkaCluster) -> None:
    ok(on_kafka, "append", "t", "--create", given=LINES)
    asyncio.run(brokers.kill(1))
    try:
        ok(on_kafka, "append", "t", given=LINES)
        assert ok(on_kafka, "read", "t", "--from-start") == LINES + LINES
    finally:
        asyncio.run(brokers.revive())
