"""What a system under load is to the instrument: ours and every peer alike.

Two sides. A `System` lives in the runner: it starts and stops processes, makes logs, hurts nodes. A `Client` lives in a
*generator*, a process of its own, so that the load and what bears it are never counted together.

**Positions** are tuples of ints that compare as the log is ordered; the record after one lies at the same tuple with
the last number one higher, or at any greater tuple: DLSN (segment, entry, slot); BookKeeper (ledger, entry); Kafka
(partition, offset); JetStream (sequence,). An answer that names no place (a repetition, recognised) has None.

**Generators.** A generator is any program that speaks JSON lines, one object a line, on stdin and stdout (stderr is
for people and is shown when it fails):

    in   the job (below), one line
    out  {"event": "ready"}                             connected; a reader stands at its start, a producer has had one
                                                        record acknowledged in each log (counted as sent and acked)
    in   {"do": "go", "start_ns": N}                    a producer's load begins at this instant of CLOCK_MONOTONIC
                                                        (Python: monotonic_ns; Java on Linux: System.nanoTime)
    out  {"event": "tick", "acked": n, "last_ack_ns": N}    producers, every 50 ms or so while there is news
         {"event": "tick", "read": n, "last_ns": N}         readers, likewise
    in   {"do": "stop"}  (or end of file)               stop handing over, wait for answers, then tell the result
         {"do": "until", "counts": {LOG: n}}            readers that follow: stop once n records of each log were given
    out  {"event": "result", ...}                       once; then exit 0

A producer also stops by itself after `warmup_s + seconds`. Times in results are CLOCK_MONOTONIC nanoseconds.

Job, of both kinds: `kind` ("produce" or "read"), `client` ("module:Class", Python generators only), `address` (what
`System.address` said), `options` (what --option said), `logs` (names), `record_bytes`, `history` (a file to write),
`seconds`, `warmup_s`, `patience_s` (how long an answer may take before it counts as failed).
Of producers: `producer` (its number; records of it carry this), `mode`, `window` (records under way at most),
`rate` (records a second in all), `batch_records` (records in a batch of the application's own making; 1: none),
`records` (stop after so many in all; absent or 0: no bound), `tasks`, `zipf` (exponent by which records fall on the
logs; 0: evenly), `seed`. Modes:
    "window"  closed loop: as many as `window` allows are under way, handed over one by one (or by batches)
    "await"   closed loop: `tasks` tasks, each awaits each of its appends
    "open"    open loop: at every millisecond what is due is handed over, whatever is still under way; the latency of
              a record is its answer minus the instant it was *due*
Of readers: `reader` (its name), `start` ("start" or "tail"), `follow` (wait at the end for more, or stop there),
`copies` (so many readers of every log in this one process; the i-th writes its history to `history` + ".i", the counts
of the result are of all of them; a generator that cannot do more than 1 says so in `System.generator`).

**Records** are loadtest/payload.py: crc32 u32 | producer u32 | sequence u64 | due u64 (CLOCK_MONOTONIC ns, intended
start) | filler; big-endian; the CRC is of everything after it, filler first and then the 20 bytes of the head. The
sequences of a producer are dense from 0 *per log*, and per (producer, log) they are in the order of hand-over.

Result of a producer: `sent`, `acked`, `failed` (counts, whole run), `behind` (open loop: records that were due and were
not even handed over by the end; they are in `response` with as long as they had waited), `errors` (up to 10 texts),
`measured` (records acknowledged from start + warmup_s on for `seconds`), `measured_s`, `first_ack_ns`, `last_ack_ns`,
`response` (histogram: answer minus due; in closed loops minus hand-over), `service` (answer minus hand-over), `delay`
(hand-over minus due; open loop), `timeline` ([acked per 100 ms since start_ns]), `gaps` ([[from_ns, to_ns], ...] times
of 20 ms and more without an answer while some were due, each counted to the next answer), `cpu_s` (of this process
in the measured time), `rss_peak` (bytes). Result of a reader: `read`, `read_bytes`, `errors`, `measured`,
`measured_bytes`, `measured_s`, `first_ns`, `last_ns`, `delivery` (histogram: delivered minus due, of what was due in
the measured time), `cpu_s`, `rss_peak`, `ended` (true: it came to the end that it was told, false: given up).
A histogram is {"unit": "us", "counts": [[value, count], ...]}, values rounded to three significant digits at most.

**History**: text lines in the order in which things happened in that process; LOG is the index in `logs`; POS is the
position with dots between its numbers, or - ; times in ns. A run is records that follow each other densely, at
places that follow each other densely; it spans 50 ms at most.
    S LOG PRODUCER COUNT             all sequences below COUNT may have been handed over (at the end at least)
    A LOG PRODUCER FIRST COUNT POS SENT_NS          a run was acknowledged; SENT_NS: when its first was handed over
    F LOG PRODUCER FIRST COUNT 0|1   refused: 0 it is certainly not in the log, 1 it may be
    R LOG PRODUCER FIRST COUNT POS AT_NS            a run was delivered to this reader; AT_NS: when its first was
    X LOG POS TEXT                   a delivered record that does not verify
    E LOG                            this reader came to the end of the log as it was when it asked
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

Position = tuple[int, ...]
CREATES = 32  # logs that are created at once, one a request
Flavour = Literal["fast", "user"]  # the fastest client there is; the one that a Python program would use


class CannotRunError(Exception):
    """A system did not start, or cannot be measured here: the text says what to do."""


class NotApplicable(Exception):
    """This system has no such thing; the text is the reason, and is printed in the place of the figure."""


@dataclass(frozen=True, slots=True)
class Node:
    """One process (or group) of a system that can be hurt."""

    name: str
    role: str  # as in `System.processes`
    pid: int  # 0: it does not run


@dataclass(frozen=True, slots=True)
class Durability:
    """What an acknowledgement means here."""

    letter: Literal["F", "P"]  # F: fdatasync on an ack quorum came first; P: it lies in page caches of one
    sentence: str


class System(ABC):
    """A running system on this machine, loopback only. One at a time; everything it started ends with `stop`.

    Children die with the runner (PR_SET_PDEATHSIG). `options` are --option NAME.KEY=VALUE over the variant's own; an
    unknown key raises ValueError. All coroutines belong to the runner's loop.
    """

    name: ClassVar[str] = ""
    durability: Durability
    owner_role: ClassVar[str] = ""  # whose death W10 and W11 measure: the process that acknowledges a log's appends
    start_s: ClassVar[float] = 5.0  # about what a start and a stop take, for --estimate
    storage_role: ClassVar[str] = ""  # whose death W12 measures: a process that stores, and does not own the log

    def __init__(self, variant: str) -> None:
        self.variant = variant  # the name it was asked for by, such as "kafka-default"

    def lacks(self, feature: str) -> str | None:
        """Why this system cannot do something, or None. Features: those of `FEATURES`."""
        return None

    @abstractmethod
    async def start(self, room: Path, options: Mapping[str, str]) -> None:
        """Start in an empty directory; return when an append would be taken. Raises CannotRunError, ValueError."""

    @abstractmethod
    async def stop(self) -> None:
        """End everything, also after a failed start. Idempotent. The room is the runner's to delete."""

    @abstractmethod
    def processes(self) -> Mapping[str, Sequence[int]]:
        """Pids that run now, by role (bookie, write, read, broker, server, zookeeper ...)."""

    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """What was measured: {"Apache Kafka": "4.3.1", "java": ...}. After `start`."""

    @abstractmethod
    def configuration(self) -> Mapping[str, Any]:
        """What decides the figures, as it was started: replication, quorums, sync, heaps. After `start`."""

    @abstractmethod
    async def create(self, log: str) -> None:
        """A log of one partition, replicated three times, acknowledged by two at least."""

    async def create_all(self, logs: Sequence[str]) -> None:
        """As `create`, for several; a system whose clients would ask for all of them in one request does so."""
        todo = iter(logs)

        async def some() -> None:
            for log in todo:
                await self.create(log)

        async with asyncio.TaskGroup() as tasks:
            for i in range(min(CREATES, len(logs))):
                tasks.create_task(some(), name=f"create {i}")

    @abstractmethod
    def address(self) -> dict[str, Any]:
        """Where clients find it: a JSON object, the `address` of every job."""

    def generator(self, job: Mapping[str, Any], flavour: Flavour) -> tuple[Sequence[str], Mapping[str, Any]]:
        """The command of a generator for this job, and what to add to the job. Raises NotApplicable."""
        return (sys.executable, "-m", "loadtest.generator"), {"client": self.client(flavour)}

    def client(self, flavour: Flavour) -> str:
        """ "module:Class" of a `Client`, for the Python generator. Raises NotApplicable."""
        raise NotApplicable("no Python client")

    # ---- hurting it (W10-W14); only if `lacks("faults")` is None ----------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        """Every process that may be hurt, in the order in which a rolling restart takes them."""
        return ()

    async def owner(self, log: str) -> str:
        """Name of the node that acknowledges appends to this log now."""
        raise NotApplicable("it has no owner")

    async def kill(self, node: str) -> None:
        """SIGKILL."""
        raise NotApplicable("nodes cannot be hurt")

    async def revive(self, node: str) -> None:
        """Start a node again that was killed, on the data it left; return when it serves (or is up and joining)."""
        raise NotApplicable("nodes cannot be hurt")

    async def pause(self, node: str) -> None:
        """SIGSTOP."""
        raise NotApplicable("nodes cannot be hurt")

    async def resume(self, node: str) -> None:
        """SIGCONT."""
        raise NotApplicable("nodes cannot be hurt")

    async def restart(self, node: str) -> None:
        """A planned restart: ask it to end, wait, start it again; return when it serves."""
        raise NotApplicable("nodes cannot be hurt")

    async def whole(self) -> None:
        """Return once every node runs and serves, and every log has all its replicas again, as far as can be known."""
        raise NotApplicable("nodes cannot be hurt")

    async def kill_all(self) -> None:
        """SIGKILL every process at once, coordination service included."""
        raise NotApplicable("nodes cannot be hurt")

    async def start_all(self) -> None:
        """Start all again on what they left; return when the processes run, before they need serve."""
        raise NotApplicable("nodes cannot be hurt")

    async def hand_over(self, log: str) -> None:
        """A planned change of owner (G10). Feature "handover"."""
        raise NotApplicable("it has no planned hand-over")

    async def soak(self, load: Load) -> Soaked:
        """A load with retention while streams and readers come and go (W22)."""
        raise NotApplicable("retention by streams that come and go is asked of dlog only")


FEATURES = (
    "batch",  # the application's own batches travel as one (W4)
    "many-logs",  # thousands of logs (W5, W19)
    "tail",  # readers that follow (W6, W7)
    "catch-up",  # reading from the start (the checker needs it: every system has it)
    "faults",  # kill, freeze, restart of nodes (W10-W14)
    "storage",  # there are nodes that store and do not own (W12)
    "handover",  # a planned change of owner (G10)
)


@dataclass(frozen=True, slots=True)
class Acked:
    """Records first..first+count-1, in this writer's order of hand-over, lie at `position` and the places after."""

    first: int
    count: int
    position: Position | None


@dataclass(frozen=True, slots=True)
class Refused:
    """Records first..first+count-1 failed; `unknown`: they may be in the log all the same."""

    first: int
    count: int
    error: str
    unknown: bool


Tell = Callable[[Acked | Refused], None]


class Writer(ABC):
    """Writes one log, in order. Indices count the records given to this writer, from 0, those of `append` included."""

    @abstractmethod
    async def hand_over(self, records: Sequence[bytes]) -> None:
        """Take single records without waiting for answers; they travel as the client does when set up for speed.

        Returns when they are taken (waits for room if the client has a bound). Answers go to `tell`, in any grouping.
        """

    @abstractmethod
    async def hand_over_batch(self, records: Sequence[bytes]) -> None:
        """As `hand_over`, for a batch of the application's own: it travels as one. Raises NotApplicable."""

    @abstractmethod
    async def append(self, record: bytes) -> Position | None:
        """Append one record and await its answer: what a program does. Not told to `tell`. Raises on failure."""

    @abstractmethod
    async def flush(self) -> None:
        """Wait until everything handed over was told."""

    @abstractmethod
    async def close(self) -> None:
        """Let go; what is not told may be lost."""


class Client(ABC):
    """A client of one system inside a generator process; made by `connect`."""

    @classmethod
    @abstractmethod
    async def connect(cls, address: Mapping[str, Any], options: Mapping[str, str]) -> Client:
        """Connected and ready."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def writer(self, log: str, tell: Tell) -> Writer:
        """A writer of one log, at full durability of the system's class."""

    @abstractmethod
    def read(self, log: str, *, tail: bool, follow: bool) -> AsyncGenerator[tuple[Position, Sequence[bytes]], None]:
        """Records in order: (position of the first, payloads that lie densely from there on).

        tail: from the end as of now, else from the first record. follow: wait for more at the end, else stop
        there. May yield an empty sequence (with any position) once it stands at its start; other empties mean nothing.
        """


@dataclass(frozen=True, slots=True)
class Variant:
    """A system under a name, with options of its own. A module of this package lists its variants in VARIANTS."""

    make: Callable[[str], System]
    preset: Mapping[str, str]
    says: str  # one line for --help and for the report


# A module loadtest/systems/X.py has `VARIANTS: Mapping[str, Variant]` with the names X and X-anything.
