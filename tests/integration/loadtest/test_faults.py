"""Measures a running cluster with the commands for it: nothing is lost, no error is reported, and it goes on running.

The cost is printed and not checked, because a busy machine proves nothing. `python -m loadtest failover --strict`
checks it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dlog
from loadtest import attached
from tests.integration.cli.up import Up, up_for_many

pytestmark = pytest.mark.zookeeper
ROUNDS = {"failover": 3, "freeze": 1, "handover": 4}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up_for_many(tmp_path_factory, "faults") as running:
        yield running


def loadtest(cluster: Up, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "loadtest", *arguments, "--json", "--dir", str(cluster.directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("name", sorted(ROUNDS))
def test_a_change_of_owner_loses_repeats_and_refuses_nothing(cluster: Up, name: str) -> None:
    told = loadtest(cluster, name, "--rounds", str(ROUNDS[name]), "--set", "rate=500")
    assert told["failed"] == [] and told["green"], told["verdict"]
    assert told["rounds"] == len(told["gaps_ms"]) == ROUNDS[name]
    assert told["verdict"]["unanswered"] == 0
    assert {figure: goal["at_most"] for figure, goal in told["goals"].items()} == attached.goals_of(name) != {}


@pytest.mark.parametrize("name", ["append", "await", "fan"])
def test_a_load_on_it_is_checked_and_leaves_no_stream(cluster: Up, name: str) -> None:
    told = loadtest(cluster, name, "--seconds", "1")
    assert told["green"] and told["verdict"]["acknowledged"] > 100 and told["records_per_s"] > 0
    assert ("delivered_mb_per_s" in told) == (name == "fan")
    with dlog.connect_sync(cluster.running.connect) as client:
        assert list(client.streams()) == []


def test_the_command_says_what_it_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtest", "failover", "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 2
    assert "dlog up" in done.stderr
