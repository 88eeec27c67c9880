"""Runs minutes of chaos: parts are killed, frozen, cut off, filled, expired and unplugged; every promise is kept.

One plan for every run of the tests, so that two runs can be compared; DLOG_CHAOS_SEED takes another.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlog.io.embedded_zookeeper import JavaNotFoundError, ZooKeeperJarsNotFoundError, find_jars, find_java
from tests.integration.storage import need_storage
from tests.parts import MISSING, need

pytestmark = [pytest.mark.zookeeper, pytest.mark.long]

#: enough to check; recorded runs (tests/simulation/record.json) show how many a machine does in two minutes
RECORDS_MIN = 20_000
_PATIENCE_S = 2400.0
SEED = "61"
#: kinds that nothing on a machine can prevent; the others may be left out, and the report says why
ALWAYS = {"kill", "pause", "cut", "cut-requests", "cut-replies", "isolate", "lose", "reset", "slow", "restart"}


def chaos(*more: str) -> dict[str, Any]:
    """Run it, check what is true of every run, and return the report."""
    try:
        find_java()
        find_jars()
    except (JavaNotFoundError, ZooKeeperJarsNotFoundError) as error:
        need(False, "a real ZooKeeper", str(error))
    seed = os.environ.get("DLOG_CHAOS_SEED", SEED)
    command = [sys.executable, "-m", "tests.chaos", "--json", "--seed", seed, *more]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
    )
    assert done.stdout.startswith("{"), done.stderr[-5000:]
    report: dict[str, Any] = json.loads(done.stdout)
    print(json.dumps(report, indent=1))
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert not any(report["verdict"]["breaches"].values())
    assert report["takeovers"] >= 1
    assert not [what for what in report["left_out"] if "no session was seen" in what], "the links see every session"
    for what in report["not_run"]:
        MISSING["filesystems of our own in the chaos run"] = what
    return report


def kinds(report: dict[str, Any]) -> set[str]:
    return {kind.partition(" ")[0] for kind in report["faults"]}


def test_two_minutes_of_chaos_break_no_promise() -> None:
    report = chaos("--minutes", "2")
    assert report["verdict"]["acknowledged"] >= RECORDS_MIN
    assert kinds(report) >= (ALWAYS if report["seed"] == int(SEED) else set())


def test_chaos_with_streams_in_objects_breaks_no_promise_and_every_object_is_named() -> None:
    need_storage("s3")
    report = chaos("--store", "s3", "--minutes", "0.35", "--every", "1", "--rate", "4000")
    assert "storage" in kinds(report)
    assert report["objects"]["objects_listed"] > 0 and not report["objects"]["findings"]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["s3", "s3-direct"])
def test_a_minute_of_chaos_with_streams_in_objects(store: str) -> None:
    need_storage("s3")
    report = chaos("--store", store, "--minutes", "1", "--every", "1.5", "--rate", "4000")
    assert report["verdict"]["acknowledged"] >= RECORDS_MIN // 10
    assert kinds(report) >= {"storage", "kill", "pause", "cut"}
