"""Kills a process inside of a Spark job, at a planned point."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[3]


def environment() -> dict[str, str]:
    """The driver's environment, in which its executors find this module too, wherever they run."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def kill(who: str, group: int) -> NoReturn:
    """End the driver, whose process group this is; or, called in a worker, its executor or the worker itself."""
    if who == "driver":
        os.killpg(group, signal.SIGKILL)
    elif who == "executor":
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        os.kill(int(daemon[1]), signal.SIGKILL)
    else:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    raise AssertionError("killed, and alive")
