"""`make demo STORE=kafka`, on a small file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.systems.java import KAFKA
from tests.parts import need

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_the_demo_on_kafka_brings_every_line_back(tmp_path: Path) -> None:
    need(KAFKA.are_here(), "the jars of kafka", "python -m loadtest peers install kafka (needs Maven)")
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"line {number}\n" for number in range(20_000)))
    command = [sys.executable, "-m", "loadtest.kafka_demo", str(lines)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0, duplicated 0, out of order 0" in done.stdout and "SIGKILL a process of the store" in done.stdout
