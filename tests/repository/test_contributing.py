"""Runs the commands of CONTRIBUTING.md and docs/reliability.md that are typed by hand, besides make."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_seed_is_replayed_as_the_page_says() -> None:
    commands = re.findall(r"(?m)^    python (-m tests\.simulation [^#\n]*)", (ROOT / "CONTRIBUTING.md").read_text())
    assert commands
    for command in commands:
        arguments = [sys.executable, *command.split()]
        result = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
        assert result.returncode == 0, result.stderr
        assert "trace hash" in result.stdout


def test_one_test_of_a_kind_is_run_as_the_page_says() -> None:
    commands = re.findall(r"(?m)^    python (-m pytest [^#\n]*)", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(commands) == 2
    for command in commands:
        arguments = [sys.executable, *shlex.split(command)]
        result = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
        assert result.returncode == 0, result.stdout + result.stderr  # also 5: nothing was selected


#: of the page on reliability: what is run here instead, and where the whole is run
SMALLER = {
    "-m tests.simulation --seeds 1000": "-m tests.simulation ledger --seeds 60",
    "-m tests.simulation stream --seed 7 --trace": "-m tests.simulation stream --seed 7 --trace",
    "-m tests.simulation --mutants": "",  # tests/simulation/test_*.py::test_a_planted_defect_is_caught
    "-m tests.simulation.region_fencing --items 4": "-m tests.simulation.region_fencing --items 3",
    "-m tests.simulation.node_fencing --appends 2 --others w": "-m tests.simulation.node_fencing --appends 1",
    "-m tests.chaos --minutes 2 --seed 1": "",  # tests/chaos/test_chaos.py
}


def test_the_commands_that_prove_the_promise_run() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    commands = [found.strip() for found in re.findall(r"(?m)^    python (-m [^#\n]*)", page)]
    assert commands == list(SMALLER)
    for command in filter(None, SMALLER.values()):
        arguments = [sys.executable, *command.split()]
        result = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
        assert result.returncode == 0, result.stdout + result.stderr


def test_make_knows_every_target_the_documents_name() -> None:
    targets = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text()))
    for page in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "docs/operations.md"):
        assert set(re.findall(r"`make ([a-z]+)", (ROOT / page).read_text())) <= targets, page
