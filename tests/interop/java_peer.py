"""The Java clients as a peer of tests: one JVM per test process, many commands (tests/interop/java/Peer.java).

    lines = await java.ask("ledger.read", handle=3, first=0, last=9)

Commands run concurrently; an answer is matched to its request by number. A Java exception is raised here as a
JavaError. The JVM dies with pytest.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from dlog.model.dlsn import DLSN, of
from loadtest.systems.java import BOOKKEEPER, Jars
from tests.integration.cluster import _die_with_parent
from tests.parts import need

SOURCES = Path(__file__).parent / "java"
DEADLINE_S = 120.0
#: for a JVM that runs for a minute: it starts fast and stays small
FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def need_java(jars: Jars = BOOKKEEPER) -> None:
    """Skip (or, in CI, fail) where the JDK or the jars are missing."""
    need(shutil.which("javac") is not None, "a JDK", "apt-get install openjdk-17-jdk-headless")
    need(jars.are_here(), f"Apache's jars of {jars.peer}", "make peers (apt-get install maven)")


class JavaError(Exception):
    """An exception of the Java side. kind: its class; code: BookKeeper's or DistributedLog's number, 0 for any
    other."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(f"{told['kind']} {told['code']}: {told['message']}")
        self.kind: str = told["kind"]
        self.code: int = told["code"]


class JavaRecord(NamedTuple):
    """A record as a Java reader delivered it."""

    dlsn: DLSN
    txid: int
    payload: bytes
    sequence: int
    position: int


class JavaPeer:
    """A JVM with the Java clients in it. Made by `start`; close it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="java peer", daemon=True)
        self._reader.start()

    @classmethod
    def start(cls, directory: Path, jars: Jars = BOOKKEEPER) -> JavaPeer:
        """Compile and start it, with its log in `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        sources = sorted(map(str, SOURCES.glob("*.java")))
        command = ["javac", "-nowarn", "-cp", jars.class_path(), "-d", str(directory), *sources]
        compiled = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert compiled.returncode == 0, compiled.stderr[-3000:]
        log = directory / "log"
        with log.open("ab") as errors:
            process = subprocess.Popen(
                ["java", *FLAGS, "-XX:MaxDirectMemorySize=256m", "-cp", jars.class_path(directory), "Peer"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                preexec_fn=_die_with_parent(),
            )
        return cls(process, log)

    async def ask(self, command: str, **arguments: Any) -> Any:
        """The result of a command. Raises JavaError; fails with the JVM's log if no answer comes."""
        answer: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = answer
        line = json.dumps({"id": number, "do": command, **arguments}) + "\n"
        await asyncio.to_thread(self._write, line.encode())
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise AssertionError(f"no answer to {command}\n{self.log()}") from None

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def close(self) -> None:
        """End the JVM, and wait until it has ended."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self._lock:
                answer = self._waiting.pop(told["id"])
            if answer.cancelled():
                continue
            if "error" in told:
                answer.set_exception(JavaError(told["error"]))
            else:
                answer.set_result(told.get("result"))
        with self._lock:
            left, self._waiting = self._waiting, {}
        for answer in left.values():
            answer.set_exception(AssertionError(f"the JVM ended\n{self.log()}"))


def packed(payloads: Iterable[bytes]) -> list[str]:
    """Payloads as arguments of a command."""
    return [base64.b64encode(payload).decode() for payload in payloads]


def unpacked(payloads: Iterable[str]) -> list[bytes]:
    """Payloads from the answer of a command."""
    return [base64.b64decode(payload) for payload in payloads]


class JavaLedgers:
    """The Java BookKeeper client on one cluster. v3: on that wire, which is its default, instead of v2. tls: its
    certificate, key and authorities, as PEM files; None: plain connections."""

    def __init__(
        self, java: JavaPeer, hosts: str, *, v3: bool = False, tls: tuple[Path, Path, Path] | None = None
    ) -> None:
        self.java = java
        self.uri = f"zk+hierarchical://{hosts}/ledgers"
        self._client: dict[str, Any] = {"uri": self.uri, "v3": v3}
        if tls is not None:
            self._client["tls"] = list(map(str, tls))

    async def create(self, **arguments: Any) -> JavaLedger:
        made = await self.java.ask("ledger.create", **self._client, **arguments)
        return JavaLedger(self, made["ledger"], made["handle"])

    async def open(self, ledger: int, *, recover: bool = False, **arguments: Any) -> JavaLedger:
        told = await self.java.ask("ledger.open", **self._client, ledger=ledger, recover=recover, **arguments)
        found = JavaLedger(self, ledger, told["handle"])
        found.lac, found.closed, found.length = told["lac"], told["closed"], told["length"]
        return found

    async def read_all(self, ledger: int, *, recover: bool = False, **arguments: Any) -> list[bytes]:
        """All entries up to the LAC that this reader sees."""
        return await (await self.open(ledger, recover=recover, **arguments)).read_all()

    async def metadata(self, ledger: int) -> dict[str, Any]:
        found: dict[str, Any] = await self.java.ask("ledger.metadata", **self._client, ledger=ledger)
        return found

    async def delete(self, ledger: int) -> None:
        await self.java.ask("ledger.delete", **self._client, ledger=ledger)

    async def list_entries(self, ledger: int, bookie: str, below: int) -> tuple[list[int], int]:
        """Ids below `below` that a bookie says it has, and how many it has in all."""
        told = await self.java.ask("ledger.list", **self._client, ledger=ledger, bookie=bookie, below=below)
        return told["ids"], told["count"]

    async def space(self) -> dict[str, list[int]]:
        """Total and free bytes of each bookie."""
        found: dict[str, list[int]] = await self.java.ask("bookies.space", **self._client)
        return found


class JavaLedger:
    """A handle of the Java client: the writer of a ledger, or a reader (lac, closed, length: as it was opened)."""

    def __init__(self, ledgers: JavaLedgers, ledger: int, handle: int) -> None:
        self.id = ledger
        self.lac, self.closed, self.length = -1, False, 0
        self._ask = ledgers.java.ask
        self._handle = handle

    async def add(self, payloads: Sequence[bytes]) -> list[int | dict[str, Any]]:
        """Add all payloads at once; returns for each its entry id, or the error."""
        told: list[int | dict[str, Any]] = await self._ask("ledger.add", handle=self._handle, payloads=packed(payloads))
        return told

    async def read(self, first: int, last: int, *, how: str = "plain", **arguments: Any) -> list[bytes]:
        told = await self._ask("ledger.read", handle=self._handle, first=first, last=last, how=how, **arguments)
        return unpacked(told)

    async def read_all(self, **arguments: Any) -> list[bytes]:
        return await self.read(0, self.lac, **arguments) if self.lac >= 0 else []

    async def read_lac(self, how: str = "read") -> int:
        lac: int = await self._ask("ledger.lac", handle=self._handle, how=how)
        return lac

    async def poll(self, entry: int, ms: int) -> tuple[int, bytes | None]:
        """Wait until the LAC passes; returns it, and the entry if it came with it."""
        told = await self._ask("ledger.poll", handle=self._handle, entry=entry, ms=ms)
        return told["lac"], unpacked([told["payload"]])[0] if told["payload"] is not None else None

    async def force(self) -> int:
        """Returns the LAC after it."""
        lac: int = await self._ask("ledger.force", handle=self._handle)
        return lac

    async def close(self) -> int:
        lac: int = await self._ask("ledger.close", handle=self._handle)
        return lac


class JavaLogs:
    """The Java DistributedLog library on one namespace."""

    def __init__(self, java: JavaPeer, hosts: str, namespace: str) -> None:
        servers, _, chroot = hosts.partition("/")
        self.java = java
        self.uri = f"distributedlog://{servers}/{chroot}{namespace}"

    async def create(self, log: str) -> None:
        await self.java.ask("log.create", uri=self.uri, log=log)

    async def describe(self, log: str, *, records: bool = False) -> dict[str, Any]:
        """Describe the stream's segments; records: also the end, count, last position and txid, which requires reading
        them."""
        found: dict[str, Any] = await self.java.ask("log.describe", uri=self.uri, log=log, records=records)
        return found

    async def seek(self, log: str, txid: int) -> DLSN:
        return of(*await self.java.ask("log.seek", uri=self.uri, log=log, txid=txid))

    async def writer(self, log: str, **conf: Any) -> JavaWriter:
        """Open a writer. conf: properties of DistributedLogConfiguration. Raises JavaError when the stream is
        locked."""
        return JavaWriter(self, await self.java.ask("writer.open", uri=self.uri, log=log, conf=_texts(conf)))

    async def reader(self, log: str, start: DLSN | int | None = None, **conf: Any) -> JavaReader:
        """Open a reader. start: a position, a txid, or None for the first record."""
        arguments: dict[str, Any] = {}
        if isinstance(start, DLSN):
            arguments["dlsn"] = list(start)
        elif start is not None:
            arguments["txid"] = start
        handle = await self.java.ask("reader.open", uri=self.uri, log=log, conf=_texts(conf), **arguments)
        return JavaReader(self, handle)

    async def read(self, log: str, count: int, start: DLSN | int | None = None, **conf: Any) -> list[JavaRecord]:
        """Read `count` records from `start`.

        Java's reader may stop for ever without an error (apache/distributedlog issue 244). A second one goes on where
        the first stopped; it must find what is missing.
        """
        found: list[JavaRecord] = []
        for is_last in (False, True):
            reader = await self.reader(log, found[-1].dlsn.next_slot() if found else start, **conf)
            try:
                missing = count - len(found)
                found += await reader.take(missing) if is_last else (await reader.next(missing, 30.0))[0]
            finally:
                await reader.close()
            if len(found) == count:
                break
        return found


class JavaWriter:
    """An AsyncLogWriter of the Java library."""

    def __init__(self, logs: JavaLogs, handle: int) -> None:
        self._ask = logs.java.ask
        self._handle = handle

    async def try_write(self, records: Sequence[tuple[int, bytes]]) -> list[DLSN | JavaError]:
        """Write all (txid, payload) at once; returns for each record its position or the error."""
        told = await self._ask(
            "writer.write",
            handle=self._handle,
            records=[[txid, base64.b64encode(payload).decode()] for txid, payload in records],
        )
        return [of(*item) if isinstance(item, list) else JavaError(item) for item in told]

    async def write(self, records: Sequence[tuple[int, bytes]]) -> list[DLSN]:
        """As above, and each must be acknowledged."""
        places = await self.try_write(records)
        taken = [place for place in places if isinstance(place, DLSN)]
        assert len(taken) == len(places), [place for place in places if isinstance(place, JavaError)]
        return taken

    async def write_set(self, txid: int, payloads: Sequence[bytes], codec: str = "NONE") -> list[DLSN]:
        """Write one record set."""
        told = await self._ask(
            "writer.write_set", handle=self._handle, txid=txid, payloads=packed(payloads), codec=codec
        )
        return [of(*item) for item in told]

    async def truncate(self, dlsn: DLSN) -> bool:
        done: bool = await self._ask("writer.truncate", handle=self._handle, dlsn=list(dlsn))
        return done

    async def seal(self) -> None:
        await self._ask("writer.seal", handle=self._handle)

    async def close(self) -> None:
        """Complete the segment and release the lock."""
        await self._ask("writer.close", handle=self._handle)

    async def abort(self) -> None:
        """Leave the segment in progress, as a writer that dies."""
        await self._ask("writer.abort", handle=self._handle)


class JavaReader:
    """An AsyncLogReader of the Java library."""

    def __init__(self, logs: JavaLogs, handle: int) -> None:
        self._ask = logs.java.ask
        self._handle = handle

    async def take(self, count: int, patience_s: float = 60.0) -> list[JavaRecord]:
        """Take exactly `count` records; fails if the stream ends or no more come."""
        records, ended = await self.next(count, patience_s)
        assert len(records) == count, f"{len(records)} of {count} records came, ended={ended}"
        return records

    async def next(self, count: int, patience_s: float) -> tuple[list[JavaRecord], bool]:
        """Take up to `count` records, fewer if none came for this long or the stream ended; returns whether it ended,
        too."""
        told = await self._ask("reader.next", handle=self._handle, count=count, ms=int(patience_s * 1000))
        records = [JavaRecord(of(*r[0]), r[1], base64.b64decode(r[2]), r[3], r[4]) for r in told["records"]]
        return records, told["ended"]

    async def close(self) -> None:
        await self._ask("reader.close", handle=self._handle)


def _texts(conf: dict[str, Any]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in conf.items()}
