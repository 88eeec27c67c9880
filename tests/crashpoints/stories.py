"""Scripts of a bookie's work: each brings another part of its storage to a point where a crash could do harm.

A script runs once; tests/crashpoints/states.py then cuts the power at every operation it made.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from dlog.bookie.journal import BLOCK, encode_group
from dlog.bookie.messages import CheckpointDue, SpaceSeen
from dlog.bookie.options import BookieOptions
from dlog.io.bookie_store import StoragePaths
from tests.crashpoints.history import History, Script
from tests.crashpoints.station import PATHS, TWO_JOURNALS, Station
from tests.simulation.disk import SimulatedDisk

SMALL = BookieOptions(
    journal_file_bytes=16 * 1024,
    entry_log_bytes=3000,
    read_cache_bytes=0,
    disk_free_min_bytes=0,
    disk_free_reserve_bytes=0,
    gc_reserve_bytes=0,
)
LOG_ROLLS = BookieOptions(
    journal_file_bytes=64 * 1024,
    entry_log_bytes=200,
    entry_logs_open_max=1,
    read_cache_bytes=0,
    disk_free_min_bytes=0,
    disk_free_reserve_bytes=0,
    gc_reserve_bytes=300,
)


@dataclass(frozen=True, slots=True)
class Story:
    name: str
    tell: Callable[[Script], None]
    options: BookieOptions = SMALL
    may_refuse: bool = False
    paths: StoragePaths = PATHS
    samples: int = 0  # at least so many, for a script in which few of the states matter

    def live(self, seed: int, disk: SimulatedDisk | None = None) -> Script:
        """Run the script of one bookie from its first start, and return its history."""
        rng = random.Random(f"{self.name}/{seed}")
        script = Script(
            Station(disk or SimulatedDisk(), self.options, paths=self.paths), History(), rng, may_refuse=self.may_refuse
        )
        self.tell(script)
        return script


def mixed(script: Script, steps: int = 18, first_entry: int = 0) -> None:
    """Adds, fences, commits, checkpoints that finish late, files made in advance, idle marks."""
    rng, station = script.rng, script.station
    entries = dict.fromkeys(range(1, 5), first_entry)
    for step in range(steps):
        ledger = rng.randint(1, 4)
        for _ in range(rng.randint(1, 3)):
            script.add(ledger, entries[ledger])
            entries[ledger] += rng.choice((1, 1, 2))
        if step % 7 == 3:
            script.fence(rng.choice((4, 100 + first_entry + step)))
        if rng.random() < 0.8:
            script.commit()
        if step % 5 == 1:
            station.handle(CheckpointDue())
        if step % 5 == 4:
            station.flush()  # of the state three steps ago
        if rng.random() < 0.3:
            station.prepare()
        if rng.random() < 0.1:
            script.commit()
            station.mark_idle()
    script.commit()


def together(script: Script) -> None:
    """As `mixed`, with groups written between the operations of flushes and merges, as another thread would."""
    station, rng = script.station, script.rng
    flush = station.flush
    at = 10_000

    def between() -> None:
        nonlocal at
        if rng.random() < 0.4:
            station.disk.on_operation = None
            script.add(rng.randint(1, 4), at)
            at += 1
            script.commit()
            station.disk.on_operation = between

    def interrupted() -> None:
        station.disk.on_operation = between
        station.flush_only()
        station.disk.on_operation = None
        flush()

    station.flush = interrupted  # type: ignore[method-assign]
    mixed(script, 14)


def recycling(script: Script) -> None:
    """The journal rolls again and again, files are released, kept as spares, dropped when there are many."""
    for step in range(8):
        for entry in range(3):
            script.add(step % 2 + 1, step * 10 + entry, script.rng.randbytes(3000))
            script.commit()
        if step in (2, 7):
            script.station.checkpoint()
        if step % 2:
            script.station.prepare()
            script.station.mark_idle()


def merging(script: Script) -> None:
    """Every checkpoint makes a run and fills a log; runs merge, logs roll, and states of ledgers move into the merged
    run."""
    for step in range(6):
        for ledger in (1, 2):
            script.add(ledger, step, b"step %d" % step)
        if step == 1:
            script.fence(1)
        script.commit()
        script.station.checkpoint()


def large(script: Script) -> None:
    """A group larger than a journal file gets a file that grows."""
    script.add(1, 0, b"small")
    script.commit()
    script.add(1, 1, bytes(20 * 1024))
    script.add(2, 0, b"with it")
    script.commit()
    script.add(1, 2, b"behind it")
    script.commit()


def hostile(script: Script) -> None:
    """A client's payload looks like a later group, at an offset where a replay would look for one."""
    header = encode_group(1, 10**6, 10**9, [])[0][0]
    script.add(1, 0, b"")
    script.commit()
    script.add(1, 1, (bytes(BLOCK - 32 - 24 - 32) + header).ljust(2 * BLOCK, b"\0"))
    script.commit()
    script.add(1, 2, b"")
    script.commit()


def filling(script: Script) -> None:
    """The disk is full for a while, and for a while even overwriting fails."""
    station, disk = script.station, script.station.disk
    mixed(script, 5)
    disk.bytes_max = disk.used + script.rng.randint(0, 3000)
    mixed(script, 5, 100)
    station.flush()
    disk.copy_on_write = True
    mixed(script, 3, 200)
    script.add(1, 290, script.rng.randbytes(9000))
    script.commit()
    disk.copy_on_write, disk.bytes_max = False, 1 << 40
    station.checkpoint()
    script.note()
    station.handle(SpaceSeen(1 << 40))
    script.may_refuse = False
    mixed(script, 5, 300)


def burying(script: Script) -> None:
    """Ledgers are created and buried: fenced or not, flushed or not, with whole logs, with a part of the index."""
    station = script.station
    for step in range(6):
        for ledger in (200 + 2 * step, 201 + 2 * step, 300):
            for entry in range(2):
                script.add(ledger, 10 * step + entry, script.rng.randbytes(script.rng.choice((10, 300, 2000))))
        if step % 3 == 1:
            script.fence(200 + 2 * step)
        script.commit()
        if step % 3 != 2:
            station.checkpoint()
        if step:
            script.bury(198 + 2 * step, *((199 + 2 * step,) if step % 2 else ()))
    script.bury(210)  # entries that only the journal and the cache hold
    station.checkpoint()
    script.bury()


def burying_without_room(script: Script) -> None:
    """No byte is free when ledgers are buried, again and again; their logs are deleted, and entries are accepted
    again."""
    station, disk = script.station, script.station.disk
    for step in range(3):
        for ledger in (200 + 2 * step, 201 + 2 * step):
            for entry in range(2):
                script.add(ledger, entry, script.rng.randbytes(2000))
        script.add(300, step, b"lives on")
        script.commit()
        station.checkpoint()
        script.add(200 + 2 * step, 2, script.rng.randbytes(4000))
        script.add(201 + 2 * step, 2, script.rng.randbytes(4000))
        script.commit()
        station.checkpoint()
        disk.copy_on_write = bool(step % 2)
        disk.bytes_max = before = disk.used
        script.bury(200 + 2 * step, 201 + 2 * step)
        assert not {200 + 2 * step, 201 + 2 * step} & station.machine.known().keys(), "a full disk buries nothing"
        assert disk.used < before - 4000, "a full disk frees nothing"
        script.add(301, step, b"room again")
        script.commit()
        station.checkpoint()
        disk.bytes_max, disk.copy_on_write = 1 << 40, False
    assert not station.machine.read_only


def compacting(script: Script) -> None:
    """A ledger stays among buried ones, and moves from log to log in small parts while entries arrive."""
    station = script.station
    for step in range(5):
        for entry in range(3):
            script.add(300, 10 * step + entry, script.rng.randbytes(200))
            script.add(303, 10 * step + entry, script.rng.randbytes(200))
        for ledger in (200 + 2 * step, 201 + 2 * step):
            script.add(ledger, 0, script.rng.randbytes(3000))
        script.commit()
        station.checkpoint()
        script.bury(200 + 2 * step, 201 + 2 * step)
        if step % 2:
            more = True
            while more:
                more = station.compact_some(0.9, 300)
                script.add(301, 100 * step + len(script.history.sent), b"meanwhile")
                script.commit()
    station.checkpoint()


def confirming(script: Script) -> None:
    """Explicit LACs and forces among adds: of ledgers with and without entries, fenced, checkpointed, buried."""
    station = script.station
    script.write_lac(9, 5)  # it creates the ledger
    script.commit()
    for step in range(6):
        for ledger in (1, 2):
            script.add(ledger, step, b"step %d" % step)
            script.write_lac(ledger, step if step != 4 else 0)  # the newest counts, even if it is lower
            script.add(ledger, 100 + step, bytes(600))
        script.force(1 + step % 2)
        if step == 2:
            script.fence(2)
        script.commit()
        if step % 2:
            station.checkpoint()
    script.force(1)
    script.bury(9)
    script.write_lac(1, 7)
    script.commit()
    station.checkpoint()


def apart(script: Script) -> None:
    """Two journals, each written at its own pace: adds, fences, explicit LACs and forces wait in one while the other
    goes on, rolls and is checkpointed."""
    rng, station = script.rng, script.station
    entries = dict.fromkeys(range(1, 5), 0)
    for step in range(10):
        for ledger in rng.sample(range(1, 5), 2):
            script.add(ledger, entries[ledger])
            entries[ledger] += 1
            if step % 4 == 2:
                script.write_lac(ledger, step)
        if step % 4 == 3:
            script.fence(rng.choice((3, 4)))
            script.fence(100 + step)
            script.add(100 + step, 0, b"recovered")  # needs the key that came with the fence
            script.commit((100 + step) % 2)
        if step % 3 == 1:
            script.force(rng.randint(1, 2))
        script.commit(*rng.choice(((0,), (0,), (0, 1))))  # so the other journal has fewer groups
        if step % 4 == 1:
            station.handle(CheckpointDue())
        if step % 4 == 3:
            station.flush()  # of the state two steps ago
        if rng.random() < 0.3:
            station.prepare()
    script.commit()
    station.mark_idle()


STORIES = [
    Story("mixed", mixed),
    Story("together", together),
    Story("recycling", recycling),
    Story("merging", merging, LOG_ROLLS),
    Story("burying", burying, LOG_ROLLS),
    Story("burying without room", burying_without_room, LOG_ROLLS, may_refuse=True),
    Story("compacting", compacting, LOG_ROLLS),
    Story("large", large),
    Story("hostile", hostile, samples=40),
    Story("confirming", confirming, LOG_ROLLS),
    Story("filling", filling, may_refuse=True),
    Story("apart", apart, paths=TWO_JOURNALS),
]
