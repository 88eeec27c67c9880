"""Tests the test run itself: conditions that hold in every test, however the run was started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0
SIGNALS = """
import signal, subprocess, sys

def test_signals():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGQUIT) is signal.SIG_DFL
    said = "import signal; signal.raise_signal(signal.SIGINT)"
    assert subprocess.run([sys.executable, "-c", said], capture_output=True).returncode == -signal.SIGINT
    said = "import signal; signal.raise_signal(signal.SIGQUIT)"
    assert subprocess.run([sys.executable, "-c", said], capture_output=True).returncode == -signal.SIGQUIT
"""

STOOD_STILL = """
import ctypes, pathlib
import pytest
from tests import real_time

RUNS = pathlib.Path(__file__).with_name("runs")
real_time.STILL_S

@pytest.fixture
def life():
    with RUNS.open("a") as file:
        file.write("set up, ")

@pytest.mark.real_time
def test_once(life):
    with RUNS.open("a") as file:
        file.write("ran, ")
    ctypes.PyDLL(None).usleep(900_000)  # nobody else in this process runs meanwhile
    assert RUNS.read_text().count("ran") == 2
"""


def _as_in_the_background_of_a_script() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)


def run(where: Path, tiny: str, workers: str = "0", **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the tests of one small file, under the configuration of all tests here."""
    (where / "pytest.ini").write_text("[pytest]\nmarkers =\n  real_time\n")
    (where / "test_tiny.py").write_text(tiny)
    asked = ("-c", str(where / "pytest.ini"), "-p", "tests.conftest", "-p", "no:cacheprovider", "-n", workers)
    command = [sys.executable, "-m", "pytest", *asked, str(where / "test_tiny.py")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False, **options)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_signals_that_the_starter_ignored_are_heard(tmp_path: Path, workers: str) -> None:
    done = run(tmp_path, SIGNALS, workers, preexec_fn=_as_in_the_background_of_a_script)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_failed_while_the_machine_stood_still_is_run_again_from_its_fixtures_on(
    tmp_path: Path, workers: str
) -> None:
    done = run(tmp_path, STOOD_STILL, workers)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (tmp_path / "runs").read_text() == "set up, ran, set up, ran, "
    assert "run again: " in done.stdout and "stood still for" in done.stdout


def test_what_failed_while_the_machine_ran_has_failed(tmp_path: Path) -> None:
    done = run(tmp_path, STOOD_STILL.replace("real_time.STILL_S", "real_time.STILL_S = 1e9"))
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    assert (tmp_path / "runs").read_text() == "set up, ran, "


def test_what_is_not_of_real_time_is_not_run_again(tmp_path: Path) -> None:
    done = run(tmp_path, STOOD_STILL.replace("@pytest.mark.real_time", ""))
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    assert (tmp_path / "runs").read_text() == "set up, ran, "
