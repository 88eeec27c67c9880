"""Supervises the processes of a local cluster ("parts"): starts, watches, restarts and stops them.

Invariants:
- each part has its own session: a terminal's Ctrl-C reaches only `dlog up`, which stops the parts in order;
- a part dies with `dlog up`, however that ends (PR_SET_PDEATHSIG);
- a part logs to its log file, and prints one line on stdout when it serves: `ready ROLE ID ADDRESS`.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import enum
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from dlog.cli.output import CommandError
from dlog.hostport import join_host_port
from dlog.io.children import die_with_parent, module_environment, python_module
from dlog.io.clock import monotonic_s
from dlog.io.embedded_zookeeper import OUTPUT, EmbeddedZooKeeper
from dlog.io.file_errors import describe_error
from dlog.io.settings import HELD

READY_TIMEOUT_S = 120.0
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.1, 5.0
STEADY_S = 10.0  # a part that lived longer than this is restarted without back-off

OnChange = Callable[["SupervisedProcess"], None]


class State(enum.Enum):
    """State of a part."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "died, waiting for restart"
    STOPPING = "stopping"
    STOPPED = "stopped"


class PartFailedError(CommandError):
    """A process of `dlog up` ended, or did not become ready, at its first start."""


class SupervisedProcess(abc.ABC):
    """One supervised process. Subclasses start and stop it."""

    role = "part"

    def __init__(self, name: str, address: str, on_change: OnChange) -> None:
        self.name = name
        self.address = address
        self.id = address
        self.state = State.STARTING
        self.restarts = 0
        self.pid: int | None = None
        self.last_exit: int | None = None
        self.last_words = ""  # end of its output before it died, if worth showing
        self._on_change = on_change
        self._ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()
        self._stopped.set()  # until `run` begins

    async def run(self) -> None:
        """Run until `stop` or `kill`; restart the process when it dies. Raises PartFailedError if the first start
        fails. Cancelling kills the part."""
        failures = 0
        self._stopped.clear()
        try:
            while not self._stopping.is_set():
                begun_s = monotonic_s()
                self._become(State.STARTING)
                self.last_words = ""
                try:
                    await self._start()
                    self._ready.set()
                    self._become(State.READY)
                    self.last_exit = await self._wait()
                except CommandError as error:
                    if not self._ready.is_set():
                        raise
                    self.last_words = error.message
                except OSError as error:  # such as its log, which cannot be opened
                    if not self._ready.is_set():
                        raise
                    self.last_words = describe_error(error)
                if self._stopping.is_set():
                    break
                failures = 0 if monotonic_s() - begun_s > STEADY_S else failures + 1
                self.pid = None
                self.restarts += 1
                self._become(State.WAITING)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2**failures)):
                        await self._stopping.wait()
        finally:
            self._kill()
            self.pid = None
            self._become(State.STOPPED)
            self._stopped.set()

    async def wait_ready(self) -> None:
        """Wait until it has been ready once."""
        await self._ready.wait()

    async def wait_stopped(self) -> None:
        """Wait until `run` has returned."""
        await self._stopped.wait()

    def stop(self) -> None:
        """Ask the process to end in order; `run` then returns."""
        self._stopping.set()
        if self.state is not State.STOPPED:
            self._become(State.STOPPING)
        self._terminate()

    def kill(self) -> None:
        """Kill the process for good."""
        self._stopping.set()
        self._kill()

    @abc.abstractmethod
    async def wait_killed(self) -> None:
        """After `kill`: wait until the process and its event loop resources are gone."""

    def death(self) -> str:
        """Describe the last death."""
        last_output = f"; its last output: {self.last_words}" if self.last_words else ""
        return f"died (exit code {self.last_exit}) and is restarted{last_output}"

    def rss_bytes(self) -> int | None:
        """Resident memory; None if it does not run or this is not Linux."""
        if self.pid is None:
            return None
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")

    @abc.abstractmethod
    async def _start(self) -> None:
        """Return once it serves. Raises CommandError."""

    @abc.abstractmethod
    async def _wait(self) -> int:
        """Return the exit code when the process has ended."""

    @abc.abstractmethod
    def _terminate(self) -> None:
        """Ask the process to end."""

    @abc.abstractmethod
    def _kill(self) -> None:
        """Kill the process."""

    def _become(self, state: State) -> None:
        if self._stopping.is_set() and state not in (State.STOPPING, State.STOPPED):
            return
        self.state = state
        self._on_change(self)


class ProcessPart(SupervisedProcess):
    """A bookie or a proxy, run as `python -m MODULE FLAGS`."""

    def __init__(
        self,
        role: str,
        name: str,
        address: str,
        module: str,
        flags: list[str],
        log: Path,
        on_change: OnChange,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, address, on_change)
        self.role = role
        self._module = module
        self._flags = flags
        self._log = log
        self._environment = environment or {}
        self._log_start = 0  # size of the log when the process was spawned
        self._process: asyncio.subprocess.Process | None = None
        self._is_held = False  # spawned by `load` and not started yet

    async def load(self) -> None:
        """Spawn the process early: it imports its code and waits for the start."""
        self._process = await self._spawn()
        self._is_held = True

    async def wait_killed(self) -> None:
        if self._process is not None:
            await self._process.communicate()

    async def _spawn(self) -> asyncio.subprocess.Process:
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            return await asyncio.create_subprocess_exec(
                *python_module(self._module, *self._flags),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=module_environment(**self._environment, **{HELD: "1"}),
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )

    async def _start(self) -> None:
        process = self._process
        if process is None or not self._is_held:
            process = await self._spawn()
        self._is_held = False
        self._process, self.pid = process, process.pid
        if self._stopping.is_set():
            self._terminate()
        assert process.stdin is not None and process.stdout is not None
        log_start = self._log_start
        process.stdin.write(b"\n")
        process.stdin.close()
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while line := await process.stdout.readline():
                    if line.startswith(b"ready "):
                        _, _, self.id, self.address = line.decode().split()
                        return
        except (TimeoutError, ValueError) as error:
            self._kill()
            await process.wait()
            raise self._failed(f"not ready within {READY_TIMEOUT_S:g} s", log_start) from error
        self.last_exit = await process.wait()
        if not self._stopping.is_set():
            raise self._failed(f"it exited with code {self.last_exit}", log_start)

    async def _wait(self) -> int:
        process = self._process
        assert process is not None and process.stdout is not None
        while await process.stdout.read(4096):
            pass  # discard further output, so that the process never blocks on a full pipe
        return await process.wait()

    def _terminate(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _failed(self, why: str, log_start: int) -> PartFailedError:
        return PartFailedError(
            f"{self.name} did not start: {why}; its last output: {last_words(self._log, log_start)}",
            f"see its log, {self._log}",
            misused=self.last_exit == 2,
        )


class ZooKeeperPart(SupervisedProcess):
    """Apache ZooKeeper, on a JVM."""

    role = "zookeeper"

    def __init__(self, directory: Path, host: str, port: int, heap_mib: int, on_change: OnChange) -> None:
        super().__init__("zookeeper", join_host_port(host, port), on_change)
        self._server = EmbeddedZooKeeper(directory, port=port, host=host, heap_mib=heap_mib)

    async def _start(self) -> None:
        from dlog.errors import DLogError

        try:
            await self._server.start()
        except DLogError as error:
            if isinstance(error, CommandError):
                raise
            raise PartFailedError(
                f"zookeeper did not start: {error.message}", f"see its log, {self._server.directory / OUTPUT}"
            ) from error
        self.pid = self._server.pid

    async def _wait(self) -> int:
        async with asyncio.TaskGroup() as group:
            ended = group.create_task(self._server.wait_exit(), name="zookeeper exit")
            stopping = group.create_task(self._stopping.wait(), name="zookeeper stop")
            await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
            code = ended.result() if ended.done() else 0
            ended.cancel()
            stopping.cancel()
        self.last_words = self._server.last_words()
        await self._server.stop()
        return code

    def _terminate(self) -> None:
        """`_wait` does it when `_stopping` is set."""

    async def wait_killed(self) -> None:
        """`kill` waits."""

    def _kill(self) -> None:
        self._server.kill()


def last_words(log: Path, since: int) -> str:
    """The last lines of a part's log after offset `since`, on one line; events of level info only if there is nothing
    else."""
    try:
        with log.open("rb") as file:
            file.seek(since)
            text = file.read()[-8000:].decode(errors="replace").strip()
    except OSError:
        return "nothing"
    lines = [line for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if '"level": "info"' not in line] or lines
    return " | ".join(lines[-3:])[-2000:] or "nothing"
