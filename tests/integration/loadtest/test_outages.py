"""Measures, by command, the death of a proxy with many streams and an outage of ZooKeeper: no loss, no error.

The cost is printed and not checked, because a busy machine proves nothing. `python -m loadtest heirs` and `away` check
it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.outages import Heirs, as_text, away, starved
from tests.integration.cli.up import up
from tests.simulation.record import load, render, save, set_owners

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]
STREAMS = 12


async def test_each_stream_of_a_dead_proxy_is_taken_once_and_acknowledges_again(tmp_path: Path) -> None:
    report = await Heirs(STREAMS).go()
    print(json.dumps(report))
    assert report["green"], report["failed"]
    assert report["streams"] == STREAMS
    assert report["takes"] >= STREAMS
    assert 1 <= report["takes_peak"] <= 16
    assert report["zookeeper_requests"] > STREAMS
    assert 0 < report["p50_ms"] <= report["p99_ms"] <= report["max_ms"]
    assert "12 streams" in as_text(report)
    kept = tmp_path / "record.json"
    save(kept, load(kept))
    set_owners(kept, report)
    assert "heirs, 12 streams: p99" in render(load(kept))["owners"]


async def test_acknowledgements_go_on_while_zookeeper_is_away(tmp_path: Path) -> None:
    with up(tmp_path / "cluster") as cluster:
        report = await away(cluster.running, seconds=3.0, after_s=1.0)
    print(json.dumps(report))
    assert report["green"], report["failed"]
    assert report["max_ms"] == max(report["away_ms"], report["after_ms"]) > 0
    assert "ZooKeeper frozen for 3 s" in as_text(report)


async def test_acknowledgements_go_on_where_processes_have_little_cpu(tmp_path: Path) -> None:
    with up(tmp_path / "cluster") as cluster:
        report = await starved(cluster.running, seconds=3.0)
    print(json.dumps(report))
    assert report["green"], report["failed"]
    assert report["max_ms"] > 0
    assert report["acks"] > 0
    assert "5% of a CPU" in as_text(report)


@pytest.mark.parametrize("flags", [("away",), ("starved",), ("heirs", "--streams", "0")])
def test_the_command_says_what_it_needs(flags: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtest", *flags, "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 2
    assert "dlog up" in done.stderr or "--streams" in done.stderr
