"""`python -m loadtest growth` on real clusters: every curve comes to a cost, and every record is judged.

What it costs is printed and not judged: a busy machine is no proof.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.zookeeper, pytest.mark.long]
ROOT = Path(__file__).parents[3]
SIZE = 6


def test_every_curve_comes_to_a_cost_and_is_checked(tmp_path: Path) -> None:
    out = tmp_path / "growth.json"
    command = [sys.executable, "-m", "loadtest", "growth", "--sizes", str(SIZE), "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=ROOT)
    print(done.stdout)
    assert out.exists(), done.stdout + done.stderr
    kept = json.loads(out.read_text())
    assert kept["green"], done.stdout + done.stderr
    assert done.returncode == (0 if kept["met"] else 1)
    told = {one["curve"]: one for one in kept["curves"]}
    assert set(told) == {"truncate", "roll", "drop", "takeover", "outage", "streams", "names"}
    for one in told.values():
        assert one["sizes"] == [SIZE] and one["costs"][0] > 0
        (verdict,) = one["verdicts"]
        assert verdict["read"] >= verdict["acknowledged"] == verdict["sent"] > 0 and not verdict["failed"]
    assert told["roll"]["figures"][0]["rolls"] >= 1
    assert told["takeover"]["figures"][0]["takes"] == SIZE
    assert told["names"]["figures"][0]["missing"] == 0
    assert told["drop"]["figures"][0]["cached_mib"] > SIZE / 2
