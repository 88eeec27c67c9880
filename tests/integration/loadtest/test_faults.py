"""Owners killed, frozen and told to hand over under load, by the command that measures it: nothing lost, no error told.

What a round costs is printed and not judged: a busy machine is no proof. `python -m loadtest failover` judges it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.faults import KINDS, Ordeal
from tests.integration.cli.up import Up, up_for_many

pytestmark = pytest.mark.zookeeper
ROUNDS = {"failover": 3, "freeze": 1, "handover": 4}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up_for_many(tmp_path_factory, "faults") as running:
        yield running


@pytest.mark.parametrize("name", sorted(ROUNDS))
async def test_a_change_of_owner_loses_repeats_and_refuses_nothing(cluster: Up, name: str) -> None:
    ordeal = Ordeal(kind=KINDS[name], running=cluster.running, rounds=ROUNDS[name])
    figures = await ordeal.go(f"{name}-under-load")
    told = figures.as_json(KINDS[name])
    print(json.dumps(told))
    assert figures.failed == []
    assert figures.is_green, figures.verdict
    assert len(figures.gaps_ms) == ROUNDS[name]
    assert figures.verdict.unanswered == 0


def test_the_command_prints_figures_beside_their_goals(cluster: Up) -> None:
    command = [sys.executable, "-m", "loadtest", "handover", "--rounds", "1", "--json", "--dir", str(cluster.directory)]
    done = subprocess.run(command, capture_output=True, check=True, cwd=Path(__file__).parents[3])
    told = json.loads(done.stdout)
    assert told["green"]
    assert told["goals"]["max_ms"]["at_most"] == 100.0
    assert told["rounds"] == 1


def test_the_command_says_what_it_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtest", "failover", "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 2
    assert "dlog up" in done.stderr
