"""`dlog up` as a user runs it: a process of its own, watched through its output and the run file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from dlog.cli.discovery import RunningCluster, RunningPart, read_run_file
from dlog.io.children import die_with_parent, module_environment, python_module
from tests.integration.leftovers import remove_data

PATIENCE_S = 180.0


class Up:
    """A running `dlog up` on one directory. cwd: where it is started. ignored: signals that it is started to ignore."""

    def __init__(
        self, directory: Path, *flags: str, cwd: Path | None = None, ignored: Sequence[signal.Signals] = ()
    ) -> None:
        self.directory = directory
        self.printed = directory.parent / f"{directory.name}.printed"
        with self.printed.open("ab") as out:
            self.process = subprocess.Popen(
                python_module("dlog", "up", "--dir", str(directory), *flags),
                cwd=cwd,
                env=module_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=before_exec(ignored),
            )

    @property
    def running(self) -> RunningCluster:
        running = read_run_file(self.directory)
        assert running is not None, self.printed.read_text()
        return running

    def part(self, role: str, address: str | None = None) -> RunningPart:
        return next(p for p in self.running.parts if p.role == role and address in (None, p.address))

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; fails with the output so far at the time limit."""
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, self.printed.read_text()
            assert self.process.poll() is None or condition(), self.printed.read_text()
            time.sleep(0.02)

    def wait_up(self) -> None:
        self.wait(self._is_up)

    def _is_up(self) -> bool:
        """Whether the run file is that of this process; one of a killed process may be left."""
        running = read_run_file(self.directory)
        return running is not None and running.pid == self.process.pid

    def kill_part(self, role: str, address: str | None = None) -> RunningPart:
        """Send SIGKILL to one part, once it runs; returns its state before."""
        self.wait(lambda: self.part(role, address).pid != 0)
        part = self.part(role, address)
        os.kill(part.pid, signal.SIGKILL)
        return part

    def wait_restarted(self, was: RunningPart) -> RunningPart:
        """Wait until the part has another pid; returns its new state."""

        def found() -> RunningPart | None:
            return next((p for p in self.running.parts if p.id == was.id and p.pid not in (0, was.pid)), None)

        self.wait(lambda: found() is not None)
        part = found()
        assert part is not None
        return part

    def end(self, number: int = signal.SIGINT) -> int:
        """Signal it and wait for the end."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


def before_exec(ignored: Sequence[signal.Signals]) -> Callable[[], None]:
    die = die_with_parent()  # no cluster outlives a killed test run

    def before_exec() -> None:
        die()
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    return before_exec


def ignores(pid: int, number: signal.Signals) -> bool:
    """Whether a process ignores a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    """Return once the condition holds; polled often, since no event reports it."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, otherwise
        time.sleep(0.02)


@contextmanager
def up(directory: Path, *flags: str, cwd: Path | None = None, ignored: Sequence[signal.Signals] = ()) -> Iterator[Up]:
    """Start a cluster, wait until it is up, and end it in any case."""
    started = Up(directory, *flags, cwd=cwd, ignored=ignored)
    try:
        started.wait_up()
        yield started
    finally:
        if started.process.poll() is None:
            started.process.send_signal(signal.SIGTERM)
        try:
            started.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            started.process.kill()
            started.process.wait()


@contextmanager
def up_for_many(factory: pytest.TempPathFactory, name: str, *flags: str) -> Iterator[Up]:
    """A cluster shared by many tests, in a directory of its own, which is removed with it."""
    directory = factory.mktemp(name) / "cluster"
    with up(directory, *flags) as running:
        yield running
    remove_data(directory)


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def dlog(
    *arguments: str, directory: Path, given: bytes = b"", timeout_s: float = PATIENCE_S, prefix: Sequence[str] = ()
) -> tuple[int, bytes, str]:
    """Run one command; exit code, stdout, stderr. prefix: the words before the command."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DLOG_")}
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "dlog", *arguments],
        input=given,
        capture_output=True,
        timeout=timeout_s,
        env={**environment, "DLOG_DIR": str(directory)},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr.decode()
