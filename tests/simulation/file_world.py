"""The simulation `files`: processes of one machine that write, end, read and delete one segment in files, step by step.

Each process runs the code of dlog/stores/file/segment_files.py in a thread of its own. One thread runs at a time, and
yields before every operation on the disk; the plan's seed chooses the next one. A process may pause for any number of
steps, or die; a sync may fail; the disk may be full; a power cut keeps a random part of what was not synced.

Styles of plan:
- "swarm": a writer, processes that end the segment, readers, and others that look for its tail;
- "power": as swarm, with a power cut;
- "sync": as power, and syncs fail before it;
- "delete": as swarm, and the segment is deleted, ended or not;
- "full": the writer writes until it is refused or done, then the segment is ended, while the disk may be full.

The invariants F1 to F7 are in invariants.py; those of the store contract are checked by
tests/integration/stores/checker.py.
"""

from __future__ import annotations

import _thread
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dlog.errors import DLogError
from dlog.io.disk import Disk
from dlog.io.reserve import RESERVE, SpaceReserve
from dlog.model.ids import StreamName
from dlog.stores.contract import SegmentFencedError, SegmentNotFoundError
from dlog.stores.file.format import Header, encode_entry_head
from dlog.stores.file.segment_files import Appender, EntryOffsets, SegmentFiles, read_entries
from dlog.stores.file.space import Space
from tests.integration.stores.checker import BREACHES, History
from tests.simulation.disk import Died, Mount, SimulatedDisk, coin
from tests.simulation.kernel import Violation, judged
from tests.simulation.mutants import planting
from tests.simulation.plan import Plan
from tests.simulation.worlds import Outcome, Room

STYLES = ("swarm", "power", "sync", "delete", "full")
MUST_REACH = (
    "ack",
    "recovered",
    "sealed",
    "fenced",
    "read",
    "tail",
    "power",
    "sync_failed",
    "disk_full",
    "died",
    "deleted",
    "reserve_used",
)
PROGRESS = {"acks": ("ack",), "recoveries": ("recovered",), "entries read": ("read",)}
ROOT, LOCATION, NONCE = "segments", "0123456789abcdef" * 2, b"n0n0n0n0"
STEPS_MAX = 4000
RESERVE_BYTES = 600  # in style "full"


def draw_plan(seed: int, style: str = "swarm") -> Plan:
    """Draw the plan of a seed."""
    rng = random.Random(f"files/{style}/{seed}/plan")
    config: dict[str, Any] = {
        "style": style,
        "groups": [[rng.choice((0, 1, 20, 600)) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(1, 5))],
        "seal": rng.random() < 0.4,
        "recoverers": rng.choice((1, 1, 2, 3)),
        "readers": rng.randint(0, 2),
        "finders": rng.randint(0, 2),
        "deaths": rng.choice((0, 0, 1)),  # of processes that end the segment
        "disk_bytes": rng.choice((1 << 40, 1 << 40, 9_000, 11_000)) if style == "swarm" else 1 << 40,
        "syncs_fail": rng.choice((0, 1, 2)) if style == "sync" else 0,
        "power_at": rng.randint(5, 120) if style in ("power", "sync") else 0,
        "kept": rng.choice((0.0, 0.5, 1.0)),
        "late": rng.choice((0, 10, 40)),  # steps before the first process ends the segment
        "sleepy": rng.choice((0.0, 0.05, 0.2)),  # how often a process pauses for a while
    }
    if style == "full":
        config |= {"disk_bytes": rng.choice((9_800, 10_400, 12_000)), "seal": False}
    return Plan(seed=seed, config=config)


class SteppedMount(Mount):
    """A disk of one process, which yields before each operation."""

    def __init__(self, disk: SimulatedDisk, hand_over: Callable[[], None]) -> None:
        super().__init__(disk)
        self._hand_over = hand_over

    def look(self) -> None:
        self._hand_over()
        super().look()


def space_of(disk: Disk, reserve_bytes: int) -> Space:
    """The space of ROOT as one process sees it."""
    return Space(SpaceReserve(disk, ROOT, reserve_bytes), reserve_bytes, partial(disk.free_bytes, ROOT))


class Process:
    """A process with one thread. asleep: steps of the world for which it pauses."""

    def __init__(self, world: FileWorld, name: str, work: Callable[[Process], None]) -> None:
        self.name = name
        self.mount = SteppedMount(world.disk, self._hand_over)
        world.disk.adopt(self.mount)
        self.asleep = 0
        self.done = False
        self.error: BaseException | None = None
        self._world = world
        self._work = work
        self._go = _thread.allocate_lock()
        self._go.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Run until its next operation."""
        self._go.release()
        self._world.back.acquire()

    def files(self) -> SegmentFiles:
        self._world.drafts += 1
        return SegmentFiles(
            self.mount, ROOT, LOCATION, str(self._world.drafts), space_of(self.mount, self._world.reserve)
        )

    def _hand_over(self) -> None:
        self._world.back.release()
        self._go.acquire()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._work(self)
        except Died:
            self._world.reached["died"] += self.mount.left == 0
        except BaseException as error:  # noqa: BLE001 - passed to the world's thread
            self.error = error
        self.done = True
        self._world.back.release()


class FileWorld:
    """One segment, its disk and the processes that use it."""

    def __init__(self, plan: Plan) -> None:
        self.config = config = plan.config
        self.rng = random.Random(f"files/{config['style']}/{plan.seed}/run")
        self.disk = SimulatedDisk(bytes_max=config["disk_bytes"])
        self.reserve = RESERVE_BYTES if config["style"] == "full" else 0
        self.history = History()
        self.tails: list[tuple[int, int]] = []  # (acknowledged before the tail was requested, tail)
        self.reached: Counter[str] = Counter()
        self.back = _thread.allocate_lock()
        self.back.acquire()
        self.drafts = self.steps = self.trace_hash = 0
        self.created = self.ended = self.deleting = self.deleted = False
        self.processes: list[Process] = []

    # ---- what the processes do --------------------------------------------------------------------------------------

    def write(self, process: Process) -> None:
        history, files = self.history, process.files()
        header = Header(NONCE, 1, 1, StreamName("s"))
        try:
            appender = Appender(files, files.create(header), NONCE)
        except OSError:
            return
        self.created = True
        for sizes in self.config["groups"]:
            late, parts, framed, first = self.ended, [], [], len(history.submitted)
            for size in sizes:
                body = b"%d " % len(history.submitted) + b"." * size
                head = encode_entry_head(NONCE, len(history.submitted), [body])
                history.submitted.append(body)
                parts += [head, body]
                framed.append(len(head) + len(body))
            try:
                appender.append(parts, framed)
            except SegmentFencedError:
                self.reached["fenced"] += 1
                return
            except OSError as error:
                self.reached["disk_full" if "space" in str(error) else "sync_failed"] += 1
                return
            self.reached["ack"] += len(sizes)
            (history.acked_after_fence if late else history.acked).extend(range(first, first + len(sizes)))
        if self.config["seal"]:
            try:
                history.sealed.append(appender.seal())
                self.reached["sealed"] += 1
            except (SegmentFencedError, SegmentNotFoundError, OSError):
                self.reached["fenced"] += 1

    def recover(self, process: Process) -> None:
        for _ in range(5):
            try:
                end = process.files().decide_end()
            except SegmentNotFoundError:
                return
            except OSError as error:
                if self.reserve:
                    raise Violation("F7", f"{process.name} cannot end the segment: {error}") from error
                self.reached["recovery_failed"] += 1
                continue
            self.history.recovered.append(end.last_entry)
            self.reached["recovered"] += 1
            self.reached["reserve_used"] += bool(self.reserve) and not self.disk.exists(f"{ROOT}/{RESERVE}")
            self.ended = True
            return

    def find(self, process: Process) -> None:
        for _ in range(2):
            before = max(self.history.acked, default=-1)
            try:
                self.tails.append((before, process.files().find_tail()))
                self.reached["tail"] += 1
            except (SegmentNotFoundError, OSError):
                self.reached["tail_failed"] += 1

    def follow(self, process: Process) -> None:
        files, position = process.files(), 0
        try:
            file, header = files.open()
        except (SegmentNotFoundError, OSError):
            return
        offsets = EntryOffsets()
        for _ in range(40):
            try:
                end, entries = files.read_progress(file, header.nonce)
            except (SegmentNotFoundError, OSError):
                return
            lac = entries - 1 if end is None else end.last_entry
            self.history.lacs.append((process.name, lac))
            if end is not None:
                offsets.add(end.points)
            while position <= lac:
                offset = offsets.find(file, position)
                assert offset is not None, "a head below the LAC is damaged"
                found, offset = read_entries(file, header.nonce, offset, position, lac, 100)
                if not found:
                    raise Violation("F2", f"{process.name} cannot read entry {position} below its LAC {lac}")
                self.history.read(process.name, position, [bytes(view) for view in found])
                self.reached["read"] += len(found)
                position += len(found)
                offsets.read_upto(position, offset)
            if end is not None:
                self.history.ends.append((process.name, end.last_entry))
                return

    def delete(self, process: Process) -> None:
        self.deleting = True
        process.files().delete()
        self.deleted = self.ended = True
        self.reached["deleted"] += 1

    # ---- the run ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the history. Raises Violation."""
        config = self.config
        self._start("writer", self.write)
        while not self.processes[0].done and not self.created:
            self._step(self.processes[0])  # no other process knows the segment before
        if not self.created:
            return
        while self.reserve and not self.processes[0].done:
            self._step(self.processes[0])  # what it has begun to write may need all space, the reserve's too
        self.disk.syncs_to_fail = config["syncs_fail"] and self.rng.randint(0, config["syncs_fail"])
        for number in range(config["readers"]):
            self._start(f"reader {number}", self.follow)
        for number in range(config["finders"]):
            self._start(f"finder {number}", self.find)
        for number in range(config["recoverers"]):
            self._start(f"recoverer {number}", self.recover, asleep=config["late"])
        if config["style"] == "delete":
            self._start("deleter", self.delete, asleep=self.config["late"])
        dying = self.rng.sample(self.processes[1:], min(config["deaths"], len(self.processes) - 1))
        for process in dying:
            process.mount.left = self.rng.randint(0, 12)
        while (awake := [p for p in self.processes if not p.done]) and self.steps < STEPS_MAX:
            if config["power_at"] and self.steps >= config["power_at"]:
                self._fail_power()
                break
            ready = [p for p in awake if p.asleep <= self.steps] or awake
            process = self.rng.choice(ready)
            if self.rng.random() < config["sleepy"]:
                process.asleep = self.steps + self.rng.randint(5, 60)
            self._step(process)
        self._conclude()

    def close(self) -> None:
        """End every thread."""
        for process in self.processes:
            process.mount.dead = True
            while not process.done:
                process.step()

    def _start(self, name: str, work: Callable[[Process], None], *, asleep: int = 0) -> Process:
        process = Process(self, name, work)
        process.asleep = self.steps + asleep
        self.processes.append(process)
        return process

    def _step(self, process: Process) -> None:
        self.steps += 1
        self.trace_hash = hash((self.trace_hash, len(self.disk.operations), self.processes.index(process)))
        process.step()
        if isinstance(process.error, Violation):
            raise process.error
        if process.error is not None:
            raise Violation("assert", f"{process.name}: {process.error!r}")

    def _fail_power(self) -> None:
        self.reached["power"] += 1
        self.disk.power_cut(coin(self.rng, self.config["kept"]))
        for process in self.processes:
            process.mount.dead = True

    def _conclude(self) -> None:
        has_died = bool(self.reached["died"])
        self.close()
        self.disk.sync_fails, self.disk.syncs_to_fail, self.disk.bytes_max = False, 0, 1 << 40
        left = self.disk.names(f"{ROOT}/{LOCATION[:2]}")
        if self.deleted:
            if left and not has_died:
                raise Violation("F6", f"left of a deleted segment: {left}")
        elif not self.deleting:
            self._end_and_read()
        for invariant, check in BREACHES:
            for text in check(self.history):
                raise Violation(invariant, text)

    def _end_and_read(self) -> None:
        """End and read the segment as a process that starts last."""
        history = self.history
        files = SegmentFiles(self.disk, ROOT, LOCATION, "last", space_of(self.disk, 0))
        try:
            end = files.decide_end()
            file, header = files.open()
        except DLogError as error:
            raise Violation("F2", f"the segment cannot be ended: {error}") from error
        history.recovered.append(end.last_entry)
        offsets, history.final = EntryOffsets(), []
        offsets.add(end.points)
        while len(history.final) <= end.last_entry:
            first = len(history.final)
            offset = offsets.find(file, first)
            found = (
                [] if offset is None else read_entries(file, header.nonce, offset, first, end.last_entry, 1 << 20)[0]
            )
            if not found:
                raise Violation("F2", f"entry {first} below the end {end.last_entry} cannot be read")
            history.final += map(bytes, found)
        for before, tail in self.tails:
            if not before <= tail <= end.last_entry:
                raise Violation("F5", f"a tail of {tail}: acknowledged before {before}, the end is {end.last_entry}")


def run_plan(plan: Plan, parts: Mapping[str, Any] | None = None, *, trace: bool = False) -> Outcome:
    """Run one plan to its end or to the first violation. parts["planted"]: pairs of a class and its mutant."""
    with planting((parts or {}).get("planted", ())):
        world = FileWorld(plan)
        try:
            violation, text = judged(world.run, trace=trace)
        finally:
            world.close()
    return Outcome(
        plan=plan,
        violation=violation,
        text=text,
        reached=world.reached,
        trace_hash=world.trace_hash & 0xFFFFFFFF,
        events=world.steps,
        lines=[text] if trace and text else None,
    )


def room() -> Room:
    """The simulation `files` of `python -m tests.simulation`."""
    from tests.simulation.mutants.files import MUTANTS

    return Room(
        name="files",
        styles=STYLES,
        draw=draw_plan,
        run=run_plan,
        must_reach=MUST_REACH,
        mutants=MUTANTS,
        progress=PROGRESS,
    )
