"""Runs two minutes of chaos: parts are killed, frozen, cut off, filled, expired and unplugged; every promise is kept.

One plan for every run of the tests, so that two runs can be compared; DLOG_CHAOS_SEED takes another.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlog.io.embedded_zookeeper import JavaNotFoundError, ZooKeeperJarsNotFoundError, find_jars, find_java
from tests.parts import MISSING, need

pytestmark = [pytest.mark.zookeeper, pytest.mark.long]

#: enough to check; recorded runs (tests/simulation/record.json) show how many a machine does in two minutes
RECORDS_MIN = 20_000
_PATIENCE_S = 2400.0
SEED = "61"
#: kinds that nothing on a machine can prevent; the others may be left out, and the report says why
ALWAYS = {"kill", "pause", "cut", "cut-requests", "cut-replies", "reset", "slow", "restart"}


def test_two_minutes_of_chaos_break_no_promise() -> None:
    try:
        find_java()
        find_jars()
    except (JavaNotFoundError, ZooKeeperJarsNotFoundError) as error:
        need(False, "a real ZooKeeper", str(error))
    seed = os.environ.get("DLOG_CHAOS_SEED", SEED)
    command = [sys.executable, "-m", "tests.chaos", "--minutes", "2", "--json", "--seed", seed]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
    )
    assert done.stdout.startswith("{"), done.stderr[-5000:]
    report = json.loads(done.stdout)
    print(json.dumps(report, indent=1))
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    verdict = report["verdict"]
    assert not any(verdict["breaches"].values())
    assert verdict["acknowledged"] >= RECORDS_MIN
    assert report["takeovers"] >= 1
    assert {kind.partition(" ")[0] for kind in report["faults"]} >= (ALWAYS if seed == SEED else set())
    assert not [what for what in report["left_out"] if "no session was seen" in what], "the links see every session"
    for what in report["not_run"]:
        MISSING["filesystems of our own in the chaos run"] = what
