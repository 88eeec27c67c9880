"""Runs the load test on a real cluster of dlog by its command: the result is green, complete, and can be reported.

No figure is checked, because a busy machine proves nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest import runfile
from loadtest.report import figures
from tests.integration.cli.up import is_alive, wait_until

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
SHORT = ["--quick", "--rounds", "1", "--voids", "0", "--wait", "0", "--seconds", "1", "--set", "warmup_s=0.5"]


def loadtest(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def only_result(path: Path) -> dict[str, Any]:
    (told,) = runfile.read(path).results
    return told


def test_the_most_that_one_log_takes(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    said = loadtest("W3", *SHORT, "--set", "record_bytes=100", "--out", out)
    assert "W3 append-max" in said and "records/s=" in said
    told = only_result(out)
    assert told["green"] and told["verdict"]["unanswered"] == 0
    assert told["verdict"]["read"] == told["verdict"]["sent"] == told["verdict"]["acknowledged"] > 1
    assert {"bookie", "write", "read", "zookeeper", "generator"} <= set(told["usage"])
    assert told["usage"]["bookie"]["processes"] == 3 and told["usage"]["write"]["processes"] == 2
    assert told["figures"]["records_per_s"] > 0 and told["figures"]["cpu_s_per_gb"] > 0
    run = runfile.read(out)
    assert run.systems["dlog"]["durability"]["letter"] == "F"
    assert run.systems["dlog"]["configuration"]["ack_quorum"] == 2
    assert run.turns[0]["start_s"] > 0 and "fdatasync_p99_ms" in run.turns[0]["before"]
    loadtest("report", out, "--html", tmp_path / "page.html", "--markdown", tmp_path / "page.md", "--png", tmp_path)
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert "| 100 B | dlog | F |" in (tmp_path / "page.md").read_text()
    assert list(tmp_path.glob("*.png"))


def test_an_owner_that_is_killed_and_frozen_under_load(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    changes = ["--set", "faults=1", "--set", "rate=500", "--set", "frozen_s=1"]
    loadtest("kill-writer,freeze-writer", *SHORT, *changes, "--out", out)
    collected = figures.collect(runfile.read(out))
    for workload in ("W10", "W11"):
        (label,) = collected.labels(workload)
        found = collected.get(workload, label, "dlog")
        assert found is not None and not found.why, found
        assert len(found.gaps_ms) == 1
        assert found.value("failed") == 0, "an append that is refused because its owner died"


def children(pid: int) -> set[int]:
    """All descendants of a process."""
    found: set[int] = set()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if parent == pid:
            found |= {int(place.name), *children(int(place.name))}
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_everything_ends_with_the_run(tmp_path: Path, number: signal.Signals) -> None:
    whole = 10  # dlog up, ZooKeeper, three bookies, four proxies, a generator
    arguments = ["W3", "--rounds", "1", "--seconds", "600", "--set", "record_bytes=100", "--wait", "0"]
    command = [sys.executable, "-m", "loadtest", *arguments, "--out", str(tmp_path / "run.json"), "--quiet"]
    room = {**os.environ, "TMPDIR": str(tmp_path)}  # a killed run leaves its data where it was
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, env=room)
    started: set[int] = set()
    try:
        wait_until(lambda: len(children(process.pid)) >= whole, "the load did not begin")
        started = children(process.pid)
        process.send_signal(number)
        assert process.wait(60) == (-number if number == signal.SIGKILL else 1)
        wait_until(lambda: not any(map(is_alive, started)), "something outlived the run")
    finally:
        process.kill()
        process.wait()
