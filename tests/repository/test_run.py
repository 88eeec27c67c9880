"""The test run itself: what every test may count on, however the run was started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = """
import signal, subprocess, sys

def test_signals():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGQUIT) is signal.SIG_DFL
    said = "import signal; signal.raise_signal(signal.SIGINT)"
    assert subprocess.run([sys.executable, "-c", said], capture_output=True).returncode == -signal.SIGINT
    said = "import signal; signal.raise_signal(signal.SIGQUIT)"
    assert subprocess.run([sys.executable, "-c", said], capture_output=True).returncode == -signal.SIGQUIT
"""


def _as_in_the_background_of_a_script() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_signals_that_the_starter_ignored_are_heard(tmp_path: Path, workers: str) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    tiny = tmp_path / "test_tiny.py"
    tiny.write_text(TINY)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            str(tmp_path / "pytest.ini"),
            "-p",
            "tests.conftest",
            "-n",
            workers,
            tiny,
        ],
        cwd=ROOT,
        preexec_fn=_as_in_the_background_of_a_script,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
