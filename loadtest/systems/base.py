"""Interfaces of a system under load, implemented by dlog and each peer: `System` (runner), `Client` (generators).

A `System` lives in the runner: it starts and stops processes, creates logs, kills and freezes nodes. A `Client` lives
in a *generator*, a separate process, so that the resource usage of load and system are counted separately.

**Positions** are tuples of ints that compare in the order of the log; the next record has the same tuple with the last
number one higher, or any greater tuple: DLSN (segment, entry, slot); BookKeeper (ledger, entry); Kafka (partition,
offset); JetStream (sequence,). An acknowledgement without a position (of a recognised duplicate) has None.

**Generators.** A generator is any program that speaks JSON lines, one object per line, on stdin and stdout (stderr is
for people and is shown when it fails):

    in   the job (below), one line
    out  {"event": "ready"}                             connected; a reader is at its start, a producer has had one
                                                        record acknowledged in each log (counted as sent and acked)
    in   {"do": "go", "start_ns": N}                    a producer's load begins at this instant of CLOCK_MONOTONIC
                                                        (Python: monotonic_ns; Java on Linux: System.nanoTime)
    out  {"event": "tick", "acked": n, "last_ack_ns": N}    producers, about every 50 ms if the count has changed
         {"event": "tick", "read": n, "last_ns": N}         readers, likewise
    in   {"do": "stop"}  (or end of file)               hand over no more, wait for answers, then send the result
         {"do": "until", "counts": {LOG: n}}            followers: stop once n records of each log are read
    out  {"event": "result", ...}                       once; then exit 0

A producer also stops by itself after `warmup_s + seconds`. Times in results are CLOCK_MONOTONIC nanoseconds.

Job, of both kinds: `kind` ("produce" or "read"), `client` ("module:Class", Python generators only), `address` (from
`System.address`), `options` (from --option), `logs` (names), `record_bytes`, `history` (a file to write), `seconds`,
`warmup_s`, `patience_s` (how long an answer may take before it counts as failed).
Of producers: `producer` (its number, which its records carry), `mode`, `window` (pending records at most), `rate`
(records per second in all), `batch_records` (records in a batch that the application makes; 1: none), `records` (stop
after so many; absent or 0: no limit), `tasks`, `zipf` (exponent of the distribution of records over logs; 0: even),
`seed`. `options` has `tables` (of a region, to which records go in turns) where that is not 1. Modes:
    "window"  closed loop: keeps up to `window` records pending, handed over one by one (or in batches)
    "await"   closed loop: `tasks` tasks, each of which awaits each of its appends
    "open"    open loop: every millisecond, hands over all records that are due, whatever is pending; the latency of
              a record is its acknowledgement minus the instant at which it was *due*
Of readers: `reader` (its name), `start` ("start" or "tail"), `follow` (wait for more at the end, or stop there),
`copies` (number of readers of every log in this process; the i-th writes its history to `history` + ".i"; counts in
the result are of all of them; a generator that supports only 1 says so in `System.generator`).

**Records** are loadtest/payload.py: crc32 u32 | producer u32 | sequence u64 | due u64 (CLOCK_MONOTONIC ns, intended
start) | filler; big-endian; the CRC covers everything after it, filler first and then the 20 bytes of the head. The
sequences of a producer are dense from 0 *per log*, in the order of hand-over per (producer, log).

Result of a producer: `sent`, `acked`, `failed` (counts, whole run), `behind` (open loop: records that were due but not
handed over by the end; `response` has them with the time that they had waited), `errors` (up to 10 texts), `measured`
(records acknowledged in the `seconds` after start + warmup_s), `measured_s`, `first_ack_ns`, `last_ack_ns`, `response`
(histogram: acknowledgement minus due; in closed loops minus hand-over), `service` (acknowledgement minus hand-over),
`delay` (hand-over minus due; open loop), `timeline` ([acked per 100 ms since start_ns]), `gaps` ([[from_ns, to_ns],
...] times of 20 ms and more without an acknowledgement while records were due, each counted to the next one), `cpu_s`
(of this process in the measured time), `rss_peak` (bytes). Result of a reader: `read`, `read_bytes`, `errors`,
`measured`, `measured_bytes`, `measured_s`, `first_ns`, `last_ns`, `delivery` (histogram: delivery minus due, of records
due in the measured time), `cpu_s`, `rss_peak`, `ended` (true: it reached its end, false: given up).
A histogram is {"unit": "us", "counts": [[value, count], ...]}, values rounded to three significant digits at most.

**History**: text lines in the order of events in that process; LOG is the index in `logs`; POS is the position with
dots between its numbers, or - ; times in ns. A run is consecutive records at consecutive positions, 50 ms at most.
    S LOG PRODUCER COUNT             all sequences below COUNT may have been handed over (at least once, at the end)
    A LOG PRODUCER FIRST COUNT POS SENT_NS          a run was acknowledged; SENT_NS: its first record was handed over
    F LOG PRODUCER FIRST COUNT 0|1   refused: 0 it is certainly not in the log, 1 it may be
    R LOG PRODUCER FIRST COUNT POS AT_NS            a run was delivered to this reader; AT_NS: its first record was
    X LOG POS TEXT                   a record was delivered whose CRC does not match
    E LOG                            this reader reached the end that the log had when it asked
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from loadtest.soaking import Load, Soaked
    from loadtest.spec import Shape
    from loadtest.systems.nodes import Server

Position = tuple[int, ...]
CREATES = 32  # logs created concurrently, one per request
Flavour = Literal["fast", "user"]  # the fastest client; the client that a Python program would use


class CannotRunError(Exception):
    """A system did not start or cannot be measured here; the message says what to do."""


class NotApplicable(Exception):
    """This system lacks the feature; the message is printed instead of figures."""


@dataclass(frozen=True, slots=True)
class Node:
    """One process (or group) that can be killed or frozen."""

    name: str
    role: str  # as in `System.processes`
    pid: int  # 0: not running


@dataclass(frozen=True, slots=True)
class Durability:
    """What an acknowledgement guarantees."""

    letter: Literal["F", "P"]  # F: fdatasync on an ack quorum came first; P: the record is in page caches of one
    sentence: str


@dataclass(frozen=True, slots=True)
class Reopened:
    """A log that was opened after a crash. state: a digest of everything known of it."""

    seconds: float
    state: str


class System(ABC):
    """A system on this machine, loopback only. One runs at a time; `stop` ends all its processes.

    Children die with the runner (PR_SET_PDEATHSIG). `options` are the variant's, changed by --option NAME.KEY=VALUE; an
    unknown key raises ValueError. All coroutines run on the runner's loop.
    """

    name: ClassVar[str] = ""
    durability: Durability
    owner_role: ClassVar[str] = ""  # role of the process that acknowledges a log's appends (killed in W10, W11)
    start_s: ClassVar[float] = 5.0  # estimated duration of start and stop, for --estimate
    storage_role: ClassVar[str] = ""  # role of processes that store (killed in W12, if not the log's owner)
    backlog_bytes: ClassVar[int] = 0  # pending while a backlog is written, at least; for systems that need many

    def __init__(self, variant: str) -> None:
        self.variant = variant  # its full name, such as "kafka-default"

    def lacks(self, feature: str) -> str | None:
        """Why this system lacks one of `FEATURES`; None if it has it."""
        return None

    @abstractmethod
    async def start(self, room: Path, options: Mapping[str, str]) -> None:
        """Start in an empty directory; return when it accepts appends. Raises CannotRunError, ValueError."""

    @abstractmethod
    async def stop(self) -> None:
        """End all processes, also after a failed start. Idempotent. The runner deletes the directory."""

    async def end_run(self) -> None:  # noqa: B027 - most systems share nothing
        """End what turns of one run share; called once after the last turn. Idempotent."""

    @abstractmethod
    def processes(self) -> Mapping[str, Sequence[int]]:
        """Pids of running processes, by role (bookie, write, read, broker, server, zookeeper ...)."""

    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """Versions: {"Apache Kafka": "4.3.1", "java": ...}. After `start`."""

    @abstractmethod
    def configuration(self) -> Mapping[str, Any]:
        """Settings that affect figures: replication, quorums, sync, heaps. After `start`."""

    @abstractmethod
    async def create(self, log: str) -> None:
        """Create a log of one partition with three replicas, acknowledged by at least two."""

    async def create_all(self, logs: Sequence[str]) -> None:
        """As `create`, for several; in one request where the system's clients would do so."""
        todo = iter(logs)

        async def some() -> None:
            for log in todo:
                await self.create(log)

        async with asyncio.TaskGroup() as tasks:
            for i in range(min(CREATES, len(logs))):
                tasks.create_task(some(), name=f"create {i}")

    @abstractmethod
    def address(self) -> dict[str, Any]:
        """Where clients connect: a JSON object, the `address` of every job."""

    def generator(self, job: Mapping[str, Any], flavour: Flavour) -> tuple[Sequence[str], Mapping[str, Any]]:
        """The command of a generator for this job, and additions to the job. Raises NotApplicable."""
        return (sys.executable, "-m", "loadtest.generator"), {"client": self.client(flavour)}

    def client(self, flavour: Flavour) -> str:
        """ "module:Class" of a `Client`, for the Python generator. Raises NotApplicable."""
        raise NotApplicable("no Python client")

    # ---- faults (W10-W14); only if `lacks("faults")` is None --------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        """Every process that may be killed or frozen, in the order of a rolling restart."""
        return ()

    async def owner(self, log: str) -> str:
        """Name of the node that now acknowledges appends to this log."""
        raise NotApplicable("its logs have no owner")

    async def leader(self, log: str) -> str:
        """Name of the storage node through which all appends to this log go (killed in W27)."""
        raise NotApplicable("no storage node leads its logs")

    async def kill(self, node: str) -> None:
        """SIGKILL."""
        raise NotApplicable("faults are not supported")

    async def revive(self, node: str) -> None:
        """Start a killed node again on its data; return when it serves (or is up and joining)."""
        raise NotApplicable("faults are not supported")

    async def pause(self, node: str) -> None:
        """SIGSTOP."""
        raise NotApplicable("faults are not supported")

    async def resume(self, node: str) -> None:
        """SIGCONT."""
        raise NotApplicable("faults are not supported")

    async def restart(self, node: str) -> None:
        """A planned restart: ask it to end, wait, start it again; return when it serves."""
        raise NotApplicable("faults are not supported")

    async def whole(self) -> None:
        """Return once every node serves and every log has all its replicas again, as far as can be known."""
        raise NotApplicable("faults are not supported")

    async def kill_all(self) -> None:
        """SIGKILL every process at once, coordination service included."""
        raise NotApplicable("faults are not supported")

    async def start_all(self) -> None:
        """Start all again on their data; return when the processes run, possibly before they serve."""
        raise NotApplicable("faults are not supported")

    async def hand_over(self, log: str) -> None:
        """A planned change of owner (G10). Feature "handover"."""
        raise NotApplicable("no planned hand-over")

    async def reopen(self, log: str, *, with_snapshot: bool) -> Reopened:
        """Take over a log whose owner crashed, in a process of its own, which then ends without closing it (W25).
        with_snapshot: else delete the snapshots before."""
        raise NotApplicable("its logs have no snapshots")

    def requests(self) -> Mapping[str, int]:
        """Requests to the object storage so far, by the name of S3's operation (W29)."""
        raise NotApplicable("it makes no requests to an object storage")

    def zookeeper(self) -> str:
        """Addresses of the ZooKeeper that has the metadata of its ledgers (W35, W37)."""
        raise NotApplicable("it has no ledgers")

    def bookie(self) -> Server:
        """A bookie that nothing but `restart` or `revive` starts again (W35, W37)."""
        raise NotApplicable("no bookie of it can be lost")

    async def examine(self, shape: Shape) -> Mapping[str, Any]:
        """Measure a part of the system by itself: shape.subject (W30-W34); its figures."""
        raise NotApplicable(f"it has no part such as this: {shape.subject}")

    async def soak(self, load: Load) -> Soaked:
        """A load with retention while streams and readers come and go (W22)."""
        raise NotApplicable("the soak runs on dlog only")


FEATURES = (
    "batch",  # a batch that the application makes is sent as one unit (W4)
    "many-logs",  # thousands of logs (W5, W19)
    "tail",  # tail readers (W6, W7)
    "catch-up",  # reading from the start (the checker needs it: every system has it)
    "faults",  # kill, freeze, restart of nodes (W10-W14)
    "storage",  # has storage nodes that do not own the log (W12)
    "handover",  # a planned change of owner (G10)
)


@dataclass(frozen=True, slots=True)
class Acked:
    """Records first..first+count-1, in this writer's order of hand-over, are at `position` and the positions after."""

    first: int
    count: int
    position: Position | None


@dataclass(frozen=True, slots=True)
class Refused:
    """Records first..first+count-1 failed. unknown: they may still be in the log."""

    first: int
    count: int
    error: str
    unknown: bool


OnAnswer = Callable[[Acked | Refused], None]


class Writer(ABC):
    """Writes one log, in order. Indices count the records given to this writer, from 0, including those of `append`."""

    @abstractmethod
    async def hand_over(self, records: Sequence[bytes]) -> None:
        """Accept single records without waiting for answers; the client sends them as it does when set up for speed.

        Returns when they are accepted (waits if the client has a limit). Answers go to `on_answer`, in any grouping.
        """

    @abstractmethod
    async def hand_over_batch(self, records: Sequence[bytes]) -> None:
        """As `hand_over`, for a batch that the application made: sent as one unit. Raises NotApplicable."""

    @abstractmethod
    async def append(self, record: bytes) -> Position | None:
        """Append one record and await its acknowledgement. Does not call `on_answer`. Raises on failure."""

    @abstractmethod
    async def flush(self) -> None:
        """Wait until everything handed over was answered."""

    @abstractmethod
    async def close(self) -> None:
        """Close; records without an answer may be lost."""


class Client(ABC):
    """A client of one system inside a generator process; created by `connect`."""

    @classmethod
    @abstractmethod
    async def connect(cls, address: Mapping[str, Any], options: Mapping[str, str]) -> Client:
        """Connect; return when ready."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def writer(self, log: str, on_answer: OnAnswer) -> Writer:
        """A writer of one log, with the full durability of the system's class."""

    @abstractmethod
    def read(self, log: str, *, tail: bool, follow: bool) -> AsyncGenerator[tuple[Position, Sequence[bytes]], None]:
        """Read records in order: (position of the first, payloads at consecutive positions from there on).

        tail: start at the present end, else at the first record. follow: wait for more at the end, else stop there.
        May yield an empty sequence (with any position) once it is at its start; other empty ones are ignored.
        """


@dataclass(frozen=True, slots=True)
class Variant:
    """A system with preset options, under a name. Each module of this package lists its variants in VARIANTS."""

    make: Callable[[str], System]
    preset: Mapping[str, str]
    says: str  # one line for --help and for the report


# A module loadtest/systems/X.py has `VARIANTS: Mapping[str, Variant]` with the names X and X-anything.
