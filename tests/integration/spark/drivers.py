"""Commands of dlog that are a Spark driver, and are ended while they run."""

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
    """Runs as the leader of a process group, which includes its Java; Spark's workers have a group of their own, and
    may end a moment later. room: directory for its output."""

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
        """Wait until a condition holds while it runs."""
        wait_until(lambda: condition() or self.process.poll() is not None, otherwise)
        assert self.process.poll() is None, f"it was over before: {self.told.read_text()}"

    def interrupt(self) -> None:
        """Interrupt it as a terminal does: Python and the JVM both get the signal. It must end without an error."""
        os.killpg(self.process.pid, signal.SIGINT)
        assert self.process.wait(PATIENCE_S) == 0, self.told.read_text()


@contextlib.contextmanager
def driver(*arguments: str, directory: Path, room: Path) -> Iterator[Driver]:
    """`dlog` with these arguments, on the cluster in this directory. At the end its whole group is killed (SIGKILL)."""
    running = Driver(arguments, directory, room)
    try:
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()
