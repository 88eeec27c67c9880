"""Runs `python -m loadtest growth` on real clusters: every curve has a cost, and every record is checked.

The cost is printed and not checked, because a busy machine proves nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest import runfile

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
SIZE = 6


def measured(out: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """The result of these arguments by curve; the run must be green."""
    command = [sys.executable, "-m", "loadtest", "growth", *arguments, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=ROOT)
    print(done.stdout)
    assert out.exists(), done.stdout + done.stderr
    kept = json.loads(out.read_text())
    assert kept["green"], done.stdout + done.stderr
    assert done.returncode == (0 if kept["met"] else 1)
    return {one["curve"]: one for one in kept["curves"]}


def test_every_curve_comes_to_a_cost_and_is_checked(tmp_path: Path) -> None:
    told = measured(tmp_path / "growth.json", "--sizes", str(SIZE), "--quick")
    assert set(told) == {"truncate", "roll", "drop", "takeover", "outage", "streams", "names"}
    for one in told.values():
        assert one["sizes"] == [SIZE] and one["costs"][0] > 0
        (verdict,) = one["verdicts"]
        assert verdict["read"] >= verdict["acknowledged"] == verdict["sent"] > 0 and not verdict["failed"]
    assert told["roll"]["figures"][0]["rolls"] >= 1
    assert SIZE // 2 <= told["takeover"]["figures"][0]["takes"] <= SIZE, "at least those that somebody waits at"
    assert told["names"]["figures"][0]["missing"] == 0
    assert told["drop"]["figures"][0]["cached_mib"] > SIZE / 2


def test_a_soak_samples_disk_and_memory_while_streams_and_readers_come_and_go(tmp_path: Path) -> None:
    (told,) = measured(tmp_path / "growth.json", "disk", "--minutes", "0.15").values()
    (figures,), (verdict,) = told["figures"], told["verdicts"]
    assert figures["used_max_mb"] > figures["live_max_mb"] > 0, "copies lie in journals and entry logs"
    assert figures["read_only"] == 0 and figures["rss_ratio"] > 0
    assert sum(name.startswith("rss_ratio ") for name in figures) == 10, "also of the recovery"
    assert verdict["read"] > verdict["acknowledged"] == verdict["sent"] > 0, "by more than one reader"


def test_the_soak_is_a_workload(tmp_path: Path) -> None:
    short = ["--rounds", "1", "--voids", "0", "--wait", "0", "--seconds", "6"]
    command = [sys.executable, "-m", "loadtest", "W22", "--system", "dlog-small-disk", *short]
    out = tmp_path / "run.json"
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, timeout=600, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = runfile.read(out).results
    assert told["green"] and told["verdict"]["read"] > told["verdict"]["acknowledged"] > 0
    assert told["figures"]["used_max_mb"] > 0 and len(told["figures"]["rss_ratios"]) == 10
    assert {"bookie", "write", "read", "zookeeper"} <= set(told["usage"])
