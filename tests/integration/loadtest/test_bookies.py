"""Ledgers and bookies without proxies in the load test, at a small size: dlog's, and Java's. No speed is checked."""

from __future__ import annotations

import shutil

import pytest

from loadtest.report import figures
from loadtest.runfile import Run
from loadtest.systems.java import BOOKKEEPER
from tests.integration.loadtest.rounds import green_round
from tests.parts import need

LEDGER = {"seconds": "1", "warmup_s": "0.5", "record_bytes": "100,16384", "window": "256"}


def need_java() -> None:
    need(shutil.which("javac") is not None, "a JDK", "apt-get install openjdk-17-jdk-headless")
    need(BOOKKEEPER.are_here(), "the jars of bookkeeper", "python -m loadtest peers install bookkeeper")


def value(run: Run, workload: str, system: str, name: str, **cell: int) -> float:
    result = figures.collect(run).where(workload, system, **cell)
    assert result is not None
    found = result.value(name)
    assert found is not None, name
    return found


@pytest.mark.zookeeper
@pytest.mark.slow
async def test_one_ledger_is_written_and_read_back() -> None:
    run = await green_round("W36", ("dlog-ledger-client",), LEDGER, {})
    for record_bytes in (100, 16384):
        assert value(run, "W36", "dlog-ledger-client", "records_per_s", record_bytes=record_bytes, window=256) > 0
    assert all(one["verdict"]["read"] == one["verdict"]["sent"] > 256 for one in run.results)


@pytest.mark.peers
@pytest.mark.slow
async def test_one_ledger_of_java_is_written_and_read_back() -> None:
    need_java()
    run = await green_round("W36", ("bookkeeper",), LEDGER | {"record_bytes": "1024"}, {})
    assert value(run, "W36", "bookkeeper", "mb_per_s", record_bytes=1024, window=256) > 0


BOOKIE = {"backlog_mb": "5", "ledgers": "500", "record_bytes": "2000"}


def check_restart(run: Run, system: str) -> None:
    assert value(run, "W37", system, "entries") == 2500
    assert 500 < value(run, "W37", system, "read_back_entries") <= 1000
    for name in ("restart_s", "full_rss_bytes", "restarted_rss_bytes"):
        assert value(run, "W37", system, name) > 0, name


@pytest.mark.zookeeper
@pytest.mark.slow
async def test_a_bookie_with_many_ledgers_is_killed_and_started() -> None:
    check_restart(await green_round("W37", ("dlog-bookie",), BOOKIE, {}), "dlog-bookie")


@pytest.mark.peers
@pytest.mark.slow
async def test_a_bookie_of_java_with_many_ledgers_is_killed_and_started() -> None:
    need_java()
    run = await green_round("W37", ("bookkeeper-bookie",), BOOKIE, {})
    check_restart(run, "bookkeeper-bookie")
    assert "DbLedgerStorage" in run.systems["bookkeeper-bookie"]["configuration"]["ledgerStorageClass"]
