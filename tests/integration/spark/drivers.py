"""Commands of ours that are a driver of Spark, and are ended in the midst of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from dlog.io.children import die_with_parent
from tests.integration.cli.up import PATIENCE_S, wait_until


class Driver:
    """Runs as the leader of a process group, which its Java is in too; Spark's workers have one of their own, and live
    on for a moment. room: where it writes what it says."""

    def __init__(self, arguments: tuple[str, ...], directory: Path, room: Path) -> None:
        self.said, self.told = room / "said", room / "told"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DLOG_")}
        with self.said.open("wb") as said, self.told.open("wb") as told:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dlog", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=told,
                start_new_session=True,
                preexec_fn=die_with_parent(),
                env={**environment, "DLOG_DIR": str(directory)},
            )

    def wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        """Until something is so while it runs."""
        wait_until(lambda: condition() or self.process.poll() is not None, otherwise)
        assert self.process.poll() is None, f"it was over before: {self.told.read_text()}"

    def interrupt(self) -> None:
        """As a terminal does: Python and the JVM both hear it. It ends well."""
        os.killpg(self.process.pid, signal.SIGINT)
        assert self.process.wait(PATIENCE_S) == 0, self.told.read_text()


@contextlib.contextmanager
def driver(*arguments: str, directory: Path, room: Path) -> Iterator[Driver]:
    """`dlog` with these arguments, of the cluster in this directory. At the end its whole group is killed (SIGKILL)."""
    running = Driver(arguments, directory, room)
    try:
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()
