"""J1-J4, J6: the power goes after each disk operation in turn, and everything that was acknowledged is there again.

A script of adds, fences, commits, checkpoints and file rolls runs once; then for every prefix of its disk operations a
bookie is started on what a power cut may have left: all of it, none of what was not synced, and seeded random parts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from dlog.bookie.bookie import Bookie
from dlog.bookie.cache import Half
from dlog.bookie.index import LedgerRow
from dlog.bookie.journal import Mark
from dlog.bookie.messages import CheckpointDue
from dlog.bookie.options import BookieOptions
from dlog.errors import DLogError
from dlog.io.bookie_store import LedgerDirs
from dlog.io.journal_files import JournalFiles
from dlog.machine import Peer, Send
from dlog.wire.bookie import Code, EntryAdded, EntryRead, ReadEntry
from tests.simulation.disk import Image, SimulatedDisk, SimulatedFile, all_kept, all_lost, coin
from tests.unit.bookie.station import Station, add, fence, packet

OPTIONS = BookieOptions(journal_file_bytes=16 * 1024, entry_log_bytes=3000, read_cache_bytes=0)


@dataclass
class History:
    """What was asked, and what was acknowledged after how many disk operations."""

    sent: dict[tuple[int, int], bytes] = field(default_factory=dict)
    added: list[tuple[int, int, int]] = field(default_factory=list)  # operations, ledger, entry
    fenced: list[tuple[int, int]] = field(default_factory=list)  # operations, ledger
    fences_sent: set[int] = field(default_factory=set)


class Script:
    """Runs a story and keeps its history."""

    def __init__(self, station: Station, history: History, rng: random.Random) -> None:
        self.station = station
        self.history = history
        self.rng = rng

    def add(self, ledger: int, entry: int) -> None:
        body = self.rng.randbytes(self.rng.choice((0, 10, 600, 5000)))
        self.history.sent[ledger, entry] = packet(ledger, entry, body)
        self.station.ask(add(ledger, entry, body, recovery=True))
        self._note()

    def fence(self, ledger: int) -> None:
        self.history.fences_sent.add(ledger)
        self.station.ask(fence(ledger, -1))
        self._note()

    def commit(self) -> None:
        self.station.commit()
        self._note()

    def _note(self) -> None:
        now = len(self.station.disk.operations)
        for answer in self.station.take_answers():
            if isinstance(answer, EntryAdded):
                assert answer.code is Code.OK
                self.history.added.append((now, answer.ledger, answer.entry))
            elif isinstance(answer, EntryRead) and answer.fence:
                assert answer.code in (Code.OK, Code.NO_ENTRY)
                self.history.fenced.append((now, answer.ledger))


def story(script: Script, steps: int, first_entry: int) -> None:
    rng, station = script.rng, script.station
    entries = dict.fromkeys(range(1, 5), first_entry)
    for step in range(steps):
        ledger = rng.randint(1, 4)
        for _ in range(rng.randint(1, 3)):
            script.add(ledger, entries[ledger])
            entries[ledger] += rng.choice((1, 1, 2))
        if step % 7 == 3:
            script.fence(rng.choice((4, 100 + step)))
        if rng.random() < 0.8:
            script.commit()
        if step % 5 == 1:
            station.handle(CheckpointDue())
        if step % 5 == 4:
            station.flush()  # of what was there three steps ago
        if rng.random() < 0.3:
            station.prepare()
        if rng.random() < 0.1:
            script.commit()
            station.mark_idle()
    script.commit()


def check(image: Image, history: History, after: int) -> Station:
    """Start on the image; J3: acknowledged is a subset of served, served a subset of what was sent, bytes equal."""
    station = Station(SimulatedDisk(image), OPTIONS)
    acked = {(ledger, entry) for at, ledger, entry in history.added if at <= after}
    for (ledger, entry), sent in history.sent.items():
        found = station.stored(ledger, entry)
        if (ledger, entry) in acked:
            assert found == sent, f"acknowledged and not there: ledger={ledger} entry={entry} found={found!r}"
        else:
            assert found == sent or found in (Code.NO_ENTRY, Code.NO_LEDGER), f"ledger={ledger} entry={entry}"
    for at, ledger in history.fenced:
        if at <= after:
            station.take_answers()
            station.ask(add(ledger, 10_000))
            codes = [answer.code for answer in station.take_answers()]
            assert codes == [Code.FENCED], f"a fence was forgotten: ledger={ledger} codes={codes}"
    for ledger in range(1, 4):
        if ledger not in history.fences_sent:
            assert station.stored(ledger, 9_999) in (Code.NO_ENTRY, Code.NO_LEDGER)
    return station


def cuts(rng: random.Random) -> Iterator[Callable[[], bool]]:
    yield all_kept
    yield all_lost
    yield coin(rng, 0.5)
    yield coin(rng, 0.9)


@pytest.mark.parametrize("seed", range(3))
def test_every_crash_point_keeps_what_was_acknowledged(seed: int) -> None:
    rng = random.Random(seed)
    history = History()
    first = Station(SimulatedDisk(), OPTIONS)
    story(Script(first, history, rng), 22, 0)
    assert len(history.added) > 25 and history.fenced, "a run that acknowledges little proves little"
    operations = len(first.disk.operations)
    cases = 0
    for after in range(operations + 1):
        for keep in cuts(rng):
            check(first.disk.cut(after, keep), history, after)
            cases += 1
    assert cases >= 500


@pytest.mark.parametrize("seed", range(2))
def test_a_crash_during_the_restart_after_a_crash(seed: int) -> None:
    """The restart itself writes: a checkpoint, a new journal file. The power goes during that, too, and after it."""
    rng = random.Random(1000 + seed)
    history = History()
    first = Station(SimulatedDisk(), OPTIONS)
    story(Script(first, history, rng), 14, 0)
    operations = len(first.disk.operations)
    for after in rng.sample(range(operations // 3, operations + 1), 6):
        image = first.disk.cut(after, coin(rng, 0.5))
        second = check(image, history, after)
        known = {key for key in history.sent if second.stored(*key) is not Code.NO_LEDGER}
        later = History(dict(history.sent), [], [], set(history.fences_sent))
        settled = len(second.disk.operations)
        story(Script(second, later, rng), 3, 500)
        earlier = [(0, ledger, entry) for at, ledger, entry in history.added if at <= after]
        fences = [(0, ledger) for at, ledger in history.fenced if at <= after]
        both = History(later.sent, earlier + later.added, fences + later.fenced, later.fences_sent)
        for again in range(len(second.disk.operations) + 1):
            for keep in (all_lost, coin(rng, 0.5)):
                check(second.disk.cut(again, keep), both, again)
        assert known and settled < len(second.disk.operations)


def test_marks_never_move_back_and_no_file_is_given_free_before_its_mark() -> None:
    """J6, over a long life with many checkpoints and rolls."""
    rng = random.Random(7)
    station = Station(SimulatedDisk(), OPTIONS)
    script = Script(station, History(), rng)
    marks: list[Mark] = []
    for _ in range(12):
        story(script, 6, len(marks) * 100)
        marks.append(station.opened.dirs.mark)
        kept = [int(name[8:], 16) for name in station.disk.names("/journal") if name.startswith("journal-")]
        assert min(kept) >= 1 and station.opened.dirs.mark.file in kept
        assert station.opened.dirs.mark <= station.opened.journal.mark
    assert marks == sorted(marks) and marks[-1].file > marks[0].file + 3


def test_a_failed_sync_is_the_last_thing_the_journal_does() -> None:
    """J7: the error leaves `commit`, nothing was acknowledged by it, and a restart finds all that was before."""
    station = Station(SimulatedDisk(), OPTIONS)
    station.ask(add(1, 0, b"before"))
    station.commit()
    station.take_answers()
    station.ask(add(1, 1, b"during"))
    station.disk.sync_fails = True
    with pytest.raises(OSError, match="sync failed"):
        station.commit()
    assert station.take_answers() == []
    again = Station(SimulatedDisk(station.disk.cut(len(station.disk.operations), all_lost)), OPTIONS)
    assert again.stored(1, 0) == packet(1, 0, b"before")
    assert again.stored(1, 1) is Code.NO_ENTRY


# ---- planted defects: each must be caught by `check` at some crash point ---------------------------------------------


def _journal_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    def datasync(file: SimulatedFile) -> None:
        """Says that it did."""

    monkeypatch.setattr(SimulatedFile, "datasync", datasync)


def _names_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedDisk, "sync_dir", lambda disk, directory: None)


def _mark_runs_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark of a flush is taken when it is written, not when its entries were chosen."""
    flush = LedgerDirs.flush

    def early(dirs: LedgerDirs, entries: Half, rows: list[LedgerRow], mark: Mark, *, limbo: bool = False) -> None:
        ahead = STATIONS[-1].opened.journal.mark if STATIONS else mark
        flush(dirs, {}, [], max(mark, ahead), limbo=limbo)
        flush(dirs, entries, rows, max(mark, ahead), limbo=limbo)

    monkeypatch.setattr(LedgerDirs, "flush", early)


def _files_are_given_free_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    release = JournalFiles.release

    def eager(files: JournalFiles, mark: Mark) -> None:
        release(files, files.mark)

    monkeypatch.setattr(JournalFiles, "release", eager)


def _fence_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fence_of = Bookie._fence

    def hasty(machine: Bookie, peer: Peer, m: ReadEntry, out: list[Any]) -> Code | None:
        code = fence_of(machine, peer, m, out)
        if code is None:
            out.append(Send(peer, EntryRead(m.ledger, m.entry, Code.NO_ENTRY, b"", True)))
        return code

    monkeypatch.setattr(Bookie, "_fence", hasty)


def _stale_groups_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recycled files are not told apart from new ones."""
    monkeypatch.setattr("dlog.io.journal_files.seed_of", lambda header, file_id, owner: 1)


Plant = Callable[[pytest.MonkeyPatch], None]
MUTANTS: list[Plant] = [
    _journal_is_not_synced,
    _names_are_not_synced,
    _mark_runs_ahead,
    _files_are_given_free_too_early,
    _fence_is_answered_at_once,
    _stale_groups_count,
]
STATIONS: list[Station] = []


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_defect_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    STATIONS.clear()
    plant(monkeypatch)
    with pytest.raises((AssertionError, DLogError)):
        for seed in range(4):
            rng = random.Random(seed)
            history = History()
            first = Station(SimulatedDisk(), OPTIONS)
            STATIONS.append(first)
            story(Script(first, history, rng), 40, 0)
            STATIONS.clear()
            points = range(len(first.disk.operations) + 1)
            for after in rng.sample(points, min(150, len(points))):
                for keep in (all_lost, coin(rng, 0.5), all_kept):
                    check(first.disk.cut(after, keep), history, after)
