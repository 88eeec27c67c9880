"""Runs the load test of regions, and of streams on Kafka, on three brokers: every result is green.

No figure is checked, because a busy machine proves nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping

import pytest

from loadtest.report import figures
from loadtest.runfile import Run
from loadtest.systems.java import KAFKA
from tests.integration.loadtest.rounds import green_round
from tests.parts import need

pytestmark = [pytest.mark.peers, pytest.mark.slow]
CHANGES = {"seconds": "0.5", "warmup_s": "0.2", "patience_s": "60", "backlog_mb": "1", "faults": "1", "rate": "500"}


async def ran(workloads: str, names: tuple[str, ...], changes: Mapping[str, str]) -> Run:
    """Run one round on the same brokers; every result is green."""
    need(shutil.which("java") is not None, "a JRE", "apt-get install openjdk-17-jre-headless")
    need(KAFKA.are_here(), "the jars of kafka", "python -m loadtest peers install kafka (needs Maven)")
    options = {name: {"brokers.heap_mib" if name == "dlog-kafka" else "heap_mib": "256"} for name in names}
    return await green_round(workloads, names, {**CHANGES, **changes}, options)


async def test_regions_beside_a_bare_client() -> None:
    run = await ran("W23,W24,W25", ("dlog-region", "kafka-aiokafka"), {"tables": "7", "batch_bytes": "16384"})
    found = figures.collect(run)
    for system in ("dlog-region", "kafka-aiokafka"):
        written = found.where("W23", system, tables=7)
        scanned = found.where("W24", system)
        assert written is not None and written.value("mb_per_s"), system
        assert scanned is not None and scanned.value("scan_mb_per_s"), system
    opened = found.where("W25", "dlog-region")
    assert opened is not None and opened.value("records") == 10_000
    assert run.systems["dlog-region"]["versions"]["Apache Kafka"]
    bare = found.where("W25", "kafka-aiokafka")
    assert bare is not None and bare.why == "not applicable: its logs have no snapshots"


async def test_streams_on_kafka_while_their_owner_and_the_leader_die() -> None:
    run = await ran("W3,W10,W27", ("dlog-kafka",), {"record_bytes": "1024", "window": "512"})
    found = figures.collect(run)
    for workload in ("W10", "W27"):
        result = found.where(workload, "dlog-kafka")
        assert result is not None and len(result.gaps_ms) == 1, workload
    assert {"write", "read", "broker", "generator"} <= set(run.results[0]["usage"])
