"""Servers of a peer as child processes: start, readiness, faults, stop, logs.

Invariants:
- every server dies with the process that started it (PR_SET_PDEATHSIG), however that ends;
- a server that ignores SIGTERM is killed;
- ports are below the kernel's range for clients and reserved by a lock file, so that a killed server finds its port
  free when it restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, ClassVar

from dlog.io.children import die_with_parent
from loadtest.systems.base import CannotRunError, Node, NotApplicable, System

HOST = "127.0.0.1"
READY_S = 120.0
STOP_S = 10.0
START_TRIES = 3
STEP_S = 0.05
PORTS = range(15000, 31000)  # below the range that Linux gives to clients (ip_local_port_range)


class ServerFailedError(CannotRunError):
    """A server of a peer did not start, or has ended; the message has the end of its log."""


class Ports:
    """Reserves ports of this machine against other runs. Use as a context manager, or `close`."""

    def __init__(self) -> None:
        self._locks: dict[int, IO[bytes]] = {}
        self._random = random.Random()
        self._directory = Path(tempfile.gettempdir()) / f"dlog-ports-{os.getuid()}"

    def take(self, count: int) -> list[int]:
        """Reserve free ports until `close`. Raises ServerFailedError if there are none."""
        return [self._take() for _ in range(count)]

    def close(self) -> None:
        """Release all of them. Idempotent."""
        while self._locks:
            self._locks.popitem()[1].close()

    def __enter__(self) -> Ports:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> int:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        for _ in range(1000):
            port = self._random.choice(PORTS)
            if port in self._locks:
                continue
            lock = (self._directory / str(port)).open("ab")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                socket.create_server((HOST, port)).close()
            except OSError:
                lock.close()
                continue
            self._locks[port] = lock
            return port
        raise ServerFailedError(f"no free port found: range={PORTS.start}-{PORTS.stop - 1}")


class Server:
    """One server process, its directory and its log.

    role: as in `System.processes`. ready: polled after a start. environment: added to ours.
    """

    def __init__(
        self,
        name: str,
        role: str,
        address: str,
        command: Sequence[str],
        directory: Path,
        ready: Callable[[], Awaitable[bool]],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.role = role
        self.address = address
        self.command = tuple(command)
        self.directory = directory
        self.log = directory / f"{name}.log"
        self.log_begin = 0  # size of the log at the last start
        self.is_paused = False
        self._ready = ready
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """None if it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def is_running(self) -> bool:
        return self.pid is not None

    async def start(self, within_s: float = READY_S) -> None:
        """Start; return once it serves. Raises ServerFailedError. Cancelling kills it."""
        self.spawn()
        await self.wait_ready(within_s)

    def spawn(self) -> None:
        """Start without waiting until it serves. Raises ServerFailedError."""
        assert not self.is_running, f"{self.name} already runs"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log_begin = self.log.stat().st_size if self.log.exists() else 0
        self.is_paused = False
        try:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    self.command,
                    cwd=self.directory,
                    env={**os.environ, **self._environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C in a terminal reaches only us; we stop servers in order
                    preexec_fn=die_with_parent(),
                )
        except OSError as error:
            raise ServerFailedError(f"{self.name} cannot be started: {error}") from error

    async def wait_ready(self, within_s: float = READY_S) -> None:
        """Wait until it serves; kill it if it does not in time. Raises ServerFailedError."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    if not self.is_running:
                        raise ServerFailedError(f"{self.name} ended before it served: {self.last_words()}")
                    if await self._ready():
                        return
                    await asyncio.sleep(STEP_S)
        except TimeoutError:
            self.kill()
            raise ServerFailedError(f"{self.name} did not serve within {within_s:g} s: {self.last_words()}") from None
        except BaseException:
            self.kill()
            raise

    async def stop(self, grace_s: float = STOP_S) -> None:
        """SIGTERM, and SIGKILL after `grace_s`. Idempotent; cancelling kills."""
        process = self._process
        if process is None:
            return
        try:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            deadline_s = time.monotonic() + grace_s
            while process.poll() is None and time.monotonic() < deadline_s:  # noqa: ASYNC110 - Popen has no event
                await asyncio.sleep(0.02)
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL; `start` restarts it on its data. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: it keeps its sockets but does not respond."""
        self.is_paused = True
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.is_paused = False
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def last_words(self) -> str:
        """The end of its log, on one line."""
        text = ""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 4000))
            text = file.read().decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f"log={self.log} last lines={' | '.join(lines[-6:])[-1200:] or 'none'}"

    def has_logged(self, text: str, since: int = 0) -> bool:
        """Whether its log contains this text after `since` bytes."""
        try:
            with self.log.open("rb") as file:
                file.seek(since)
                return text.encode() in file.read()
        except OSError:
            return False


async def start_together(servers: Iterable[Server], within_s: float = READY_S) -> None:
    """Start servers that need each other to get ready. If one fails, kill all. Raises ServerFailedError."""
    servers = list(servers)
    try:
        for server in servers:
            server.spawn()
        async with asyncio.timeout(within_s):
            for server in servers:
                await server.wait_ready(within_s)
    except BaseException as error:
        for server in servers:
            server.kill()
        if isinstance(error, TimeoutError):
            words = "; ".join(server.last_words() for server in servers)
            raise ServerFailedError(f"not all servers were ready within {within_s:g} s: {words}") from None
        raise


async def stop_together(servers: Iterable[Server], grace_s: float = STOP_S) -> None:
    """SIGTERM all; SIGKILL those that remain. Idempotent; cancelling kills."""
    servers = list(servers)
    try:
        async with asyncio.TaskGroup() as group:
            for server in servers:
                group.create_task(server.stop(grace_s), name=f"stop {server.name}")
    finally:
        for server in servers:
            server.kill()


class ServerSystem(System):
    """Base of peers that are a set of servers. Subclasses fill `_servers` by `_plan`.

    _coordinators: roles that are stopped and started with everything, and never killed or frozen alone.
    """

    _coordinators: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._servers: list[Server] = []
        self._ports: Ports | None = None

    # ---- implemented by each peer ------------------------------------------------------------------------------------

    @abstractmethod
    def _choose(self, options: Mapping[str, str]) -> None:
        """Apply options. Raises ValueError."""

    @abstractmethod
    async def _plan(self, room: Path, ports: Ports) -> list[Server]:
        """Write configuration files; return the servers, not yet started."""

    @abstractmethod
    async def _first_start(self) -> None:
        """Start them on empty directories. Raises ServerFailedError."""

    async def _prepare_stop(self) -> None:
        """Close the runner's own connections."""

    # ---- start and stop ----------------------------------------------------------------------------------------------

    async def start(self, room: Path, options: Mapping[str, str]) -> None:
        self._choose(options)
        for attempt in range(1, START_TRIES + 1):
            self._ports = Ports()
            try:
                self._servers = await self._plan(room / f"start-{attempt}", self._ports)
                await self._first_start()
            except BaseException as error:
                clash = isinstance(error, ServerFailedError) and any(map(_lost_its_port, self._servers))
                await self.stop()
                if not clash or attempt == START_TRIES:
                    raise
            else:
                return

    async def stop(self) -> None:
        servers, self._servers = self._servers, []
        try:
            await self._prepare_stop()
            await stop_together([server for server in servers if server.role not in self._coordinators])
        finally:
            await stop_together(servers)
            if self._ports is not None:
                self._ports.close()

    def processes(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        for server in self._servers:
            if server.pid is not None:
                found.setdefault(server.role, []).append(server.pid)
        return found

    def describe(self) -> list[str]:
        """One line per server: name, address, pid, log."""
        return [f"{server.name} {server.address} pid={server.pid} log={server.log}" for server in self._servers]

    # ---- faults ------------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        return [Node(s.name, s.role, s.pid or 0) for s in self._servers if s.role not in self._coordinators]

    async def kill(self, node: str) -> None:
        self._server(node).kill()

    async def revive(self, node: str) -> None:
        server = self._server(node)
        if server.is_running:
            server.kill()
        await self._before_start([server])
        await server.start()

    async def pause(self, node: str) -> None:
        self._server(node).pause()

    async def resume(self, node: str) -> None:
        self._server(node).resume()

    async def restart(self, node: str) -> None:
        server = self._server(node)
        await server.stop()
        await self._before_start([server])
        await server.start()

    async def kill_all(self) -> None:
        for server in self._servers:
            server.signal(signal.SIGKILL)
        for server in self._servers:
            server.kill()

    async def start_all(self) -> None:
        for server in self._servers:
            if not server.is_running:
                server.spawn()

    async def whole(self) -> None:
        for server in self._servers:
            if not server.is_running:
                await self._before_start([server])
                server.spawn()
        for server in self._servers:
            await server.wait_ready()

    async def _before_start(self, servers: Sequence[Server]) -> None:
        """Record what `Server.ready` must not mistake for the new start."""

    def _server(self, name: str) -> Server:
        for server in self._servers:
            if server.name == name:
                return server
        raise NotApplicable(f"no such node: {name} (nodes: {', '.join(s.name for s in self._servers)})")


def option_int(options: Mapping[str, str], key: str, otherwise: int, least: int = 1) -> int:
    """An integer option. Raises ValueError."""
    text = options.get(key, str(otherwise))
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"option {key} must be a whole number: {text[:40]!r}") from None
    if value < least:
        raise ValueError(f"option {key} must be at least {least}: {value}")
    return value


def option_bool(options: Mapping[str, str], key: str, otherwise: bool) -> bool:
    """A boolean option. Raises ValueError."""
    text = options.get(key, "true" if otherwise else "false").lower()
    if text not in ("true", "false"):
        raise ValueError(f"option {key} must be true or false: {text[:40]!r}")
    return text == "true"


def known_options(system: str, options: Mapping[str, str], known: Iterable[str]) -> None:
    """Raises ValueError that names the known options."""
    known = sorted(known)
    for key in options:
        if key not in known:
            raise ValueError(f"{system} has no option {key[:40]!r}; choose from {', '.join(known)}")


def _lost_its_port(server: Server) -> bool:
    return any(server.has_logged(text) for text in ("Address already in use", "address already in use"))


async def listens(port: int) -> bool:
    """Whether a process accepts connections there."""
    try:
        async with asyncio.timeout(2.0):
            _, writer = await asyncio.open_connection(HOST, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
