"""Planted defects of a bookie's storage: each must be caught by the sweep that it names."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dlog.bookie.bookie import Bookie
from dlog.bookie.cache import Half
from dlog.bookie.index import LedgerRow, MergeSource
from dlog.bookie.journal import JournalMark, JournalMarks, Kind, Record, padded
from dlog.bookie.journal_queues import JournalQueues, LacWaiting, Waiting
from dlog.bookie.journal_replay import Restored
from dlog.bookie.ledgers import Ledger
from dlog.bookie.manifest import LogFile, Manifest
from dlog.bookie.messages import PersistRefused
from dlog.io.bookie_store import LedgerDirs
from dlog.io.db_index import DbIndex
from dlog.io.disk import Disk, replace_file
from dlog.io.journal_files import JournalFiles
from dlog.io.ledger_dir import LedgerDir
from dlog.io.reserve import SpaceReserve
from dlog.machine import Peer, Persisted, Send
from dlog.model.ids import LedgerId
from dlog.wire.bookie import Code, EntryAdded, EntryRead, ReadEntry
from dlog.wire.bookie_v3_messages import ForceLedger, LacWritten, LedgerForced, WriteLac
from tests.crashpoints.station import Station
from tests.simulation.database import SimulatedDatabase
from tests.simulation.disk import SimulatedDisk, SimulatedFile

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True)
class Mutant:
    """story: the script to run; empty: all of them."""

    name: str
    invariant: str
    plant: Callable[[Patch], None]
    sweep: str = "power"
    story: str = ""


def _answered_before_the_sync(patch: Patch) -> None:
    patch.setattr(SimulatedFile, "datasync", lambda file: None)


def _names_are_not_synced(patch: Patch) -> None:
    patch.setattr(SimulatedDisk, "sync_dir", lambda disk, directory: None)


def _manifest_is_renamed_without_a_sync_of_the_directory(patch: Patch) -> None:
    def replace_file(disk: Disk, directory: str, name: str, data: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(f"{directory}/{name}.new")
        file = disk.create(f"{directory}/{name}.new")
        file.pwritev([data], 0)
        file.datasync()
        disk.rename(f"{directory}/{name}.new", f"{directory}/{name}")

    patch.setattr("dlog.io.ledger_dir.replace_file", replace_file)


def _manifest_is_written_over_in_place(patch: Patch) -> None:
    def replace_file(disk: Disk, directory: str, name: str, data: bytes) -> None:
        there = name in disk.names(directory)
        file = disk.open(f"{directory}/{name}") if there else disk.create(f"{directory}/{name}")
        file.pwritev([data.ljust(file.size(), b" ")], 0)
        file.datasync()
        disk.sync_dir(directory)

    patch.setattr("dlog.io.ledger_dir.replace_file", replace_file)


def _manifest_is_renamed_before_it_is_synced(patch: Patch) -> None:
    def replace_file(disk: Disk, directory: str, name: str, data: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(f"{directory}/{name}.new")
        file = disk.create(f"{directory}/{name}.new")
        file.pwritev([data], 0)
        disk.rename(f"{directory}/{name}.new", f"{directory}/{name}")
        disk.sync_dir(directory)

    patch.setattr("dlog.io.ledger_dir.replace_file", replace_file)


def _fence_is_answered_at_once(patch: Patch) -> None:
    fence_of = Bookie._fence

    def hasty(machine: Bookie, peer: Peer, m: ReadEntry, out: list[Any]) -> Code | None:
        code = fence_of(machine, peer, m, out)
        if code is None:
            out.append(Send(peer, EntryRead(m.ledger, m.entry, Code.NO_ENTRY, b"", True)))
        return code

    patch.setattr(Bookie, "_fence", hasty)


def _checkpoint_forgets_fences(patch: Patch) -> None:
    flush = LedgerDirs.flush

    def forgetful(
        dirs: LedgerDirs, entries: Half, rows: Iterable[LedgerRow], marks: JournalMarks, *, limbo: bool = False
    ) -> None:
        flush(dirs, entries, [row._replace(fenced=False) for row in rows], marks, limbo=limbo)

    patch.setattr(LedgerDirs, "flush", forgetful)


def _checkpoint_forgets_keys(patch: Patch) -> None:
    flush = LedgerDirs.flush

    def forgetful(
        dirs: LedgerDirs, entries: Half, rows: Iterable[LedgerRow], marks: JournalMarks, *, limbo: bool = False
    ) -> None:
        flush(dirs, entries, [row._replace(master_key=b"") for row in rows], marks, limbo=limbo)

    patch.setattr(LedgerDirs, "flush", forgetful)


def _replay_takes_the_first_of_each_group(patch: Patch) -> None:
    apply = Restored.apply
    seen: list[int] = []

    def lazy(restored: Restored, record: Record, *, salvage: bool) -> None:
        seen.append(1)
        if record.kind == 2 or len(seen) % 3:
            apply(restored, record, salvage=salvage)

    patch.setattr(Restored, "apply", lazy)


def _journal_is_not_checked(patch: Patch) -> None:
    patch.setattr("dlog.bookie.journal.crc32c", lambda *_: 0)
    patch.setattr("dlog.bookie.bookie.crc32c", lambda *_: 0)
    patch.setattr("dlog.io.ledger_dir.check_entry", lambda *_: None)


def _stale_groups_count(patch: Patch) -> None:
    """Generations of a journal file are not told apart, nor data that a client wrote from journal groups."""
    patch.setattr("dlog.io.journal_files.seed_of", lambda header, file_id, owner, size: 1)


def _restart_writes_behind_a_torn_tail(patch: Patch) -> None:
    """The mark is not moved to the new file before the first write there."""
    patch.setattr(JournalFiles, "start", _start_without_a_new_mark)


_start = JournalFiles.start


def _start_without_a_new_mark(files: JournalFiles, after: JournalMark) -> JournalMark:
    _start(files, after)
    return after


def _mark_runs_ahead(patch: Patch) -> None:
    """The mark of a flush is durable before its entries are."""
    flush = LedgerDirs.flush

    def early(
        dirs: LedgerDirs, entries: Half, rows: Iterable[LedgerRow], marks: JournalMarks, *, limbo: bool = False
    ) -> None:
        flush(dirs, {}, [], marks, limbo=limbo)
        flush(dirs, entries, rows, marks, limbo=limbo)

    patch.setattr(LedgerDirs, "flush", early)


def _mark_is_taken_when_it_is_written(patch: Patch) -> None:
    """The mark is taken when it is written, not when the entries of the flush were chosen: entries in between are in no
    index."""
    init = Station._flush_one

    def late(station: Station) -> bool:
        station.flushes[0] = (station.flushes[0][0], station.opened.marks)
        return init(station)

    patch.setattr(Station, "_flush_one", late)


def _files_are_given_free_too_early(patch: Patch) -> None:
    release = JournalFiles.release
    patch.setattr(JournalFiles, "release", lambda files, mark: release(files, files.mark))


def _replay_begins_at_the_newest_mark(patch: Patch) -> None:
    """Of the marks of the directories, the newest is used instead of the oldest."""
    patch.setattr(
        LedgerDirs,
        "marks",
        lambda dirs, count: tuple(map(max, zip(*(padded(d.manifest.marks, count) for d in dirs._dirs), strict=True))),
    )


def _failed_sync_is_tried_again(patch: Patch) -> None:
    datasync = SimulatedFile.datasync

    def stubborn(file: SimulatedFile) -> None:
        try:
            datasync(file)
        except OSError:
            datasync(file)

    patch.setattr(SimulatedFile, "datasync", stubborn)


def _failed_sync_is_taken_for_no_room(patch: Patch) -> None:
    datasync = SimulatedFile.datasync

    def mistaken(file: SimulatedFile) -> None:
        try:
            datasync(file)
        except OSError as error:
            raise OSError(errno.ENOSPC, "no space") from error

    patch.setattr(SimulatedFile, "datasync", mistaken)


def _merge_drops_the_runs_first(patch: Patch) -> None:
    install = LedgerDir._install

    def hasty(directory: LedgerDir, manifest: Any, *, frees: bool = False) -> None:
        kept = {run.run for run in manifest.runs}
        for run in directory.manifest.runs:
            if run.run not in kept:
                directory._disk.unlink(f"{directory._directory}/index-{run.run:08x}")
                directory._disk.sync_dir(directory._directory)
                directory._disk.create(f"{directory._directory}/index-{run.run:08x}")
        install(directory, manifest, frees=frees)

    patch.setattr(LedgerDir, "_install", hasty)


def _merge_forgets_the_oldest(patch: Patch) -> None:
    def short(sources: Sequence[MergeSource], gone: Any) -> Any:
        return merge(sources[1:], gone)

    from dlog.bookie.index import merge

    patch.setattr("dlog.io.sorted_index.merge", short)


def _no_room_is_answered_as_done(patch: Patch) -> None:
    refused = Bookie._persist_refused

    def lying(machine: Bookie, fact: PersistRefused, out: list[Any]) -> None:
        first = len(out)
        refused(machine, fact, out)
        for at in range(first, len(out)):
            message = getattr(out[at], "message", None)
            if isinstance(message, EntryAdded):
                out[at] = Send(out[at].peer, EntryAdded(message.ledger, message.entry, Code.OK))

    patch.setattr(Bookie, "_persist_refused", lying)


def _refused_group_is_left_behind(patch: Patch) -> None:
    """The group number goes on although its group is torn."""
    write = JournalFiles.write

    def careless(files: JournalFiles, records: Sequence[Record]) -> JournalMark:
        try:
            return write(files, records)
        except OSError:
            plan = files._plan
            assert plan is not None
            file, offset, group, sequence = plan.mark
            plan.mark = JournalMark(file, offset + 4096, group + 1, sequence + len(records))
            raise

    patch.setattr(JournalFiles, "write", careless)


def _what_is_gone_is_not_written_down(patch: Patch) -> None:
    def bury(directory: LedgerDir, ledgers: Iterable[int]) -> None:
        directory.gone = directory.gone.union(ledgers)

    patch.setattr(LedgerDir, "bury", bury)


def _a_full_disk_buries_without_a_word(patch: Patch) -> None:
    bury_of = LedgerDir.bury

    def bury(directory: LedgerDir, ledgers: Iterable[int]) -> None:
        ledgers = tuple(ledgers)
        if directory._disk.free_bytes(directory._directory):
            bury_of(directory, ledgers)
        directory.gone = directory.gone.union(ledgers)

    patch.setattr(LedgerDir, "bury", bury)


def _the_reserve_is_written_over_in_place(patch: Patch) -> None:
    """GONE itself is overwritten where a new file does not fit: a crash leaves neither the old list nor the new one."""

    def write(reserve: SpaceReserve, name: str, data: bytes) -> None:
        try:
            replace_file(reserve._disk, reserve._directory, name, data)
        except OSError:
            assert reserve.give_up()
            path = f"{reserve._directory}/{name}"
            there = name in reserve._disk.names(reserve._directory)
            file = reserve._disk.open(path) if there else reserve._disk.create(path)
            file.pwritev([data], 0)
            file.datasync()
            reserve._disk.sync_dir(reserve._directory)

    patch.setattr(SpaceReserve, "replace_file", write)


def _the_reserve_is_given_up_for_good(patch: Patch) -> None:
    hold = SpaceReserve.hold
    given_up: set[str] = set()

    def give_up(reserve: SpaceReserve) -> bool:
        given_up.add(reserve._directory)
        return give_up_of(reserve)

    def hold_once(reserve: SpaceReserve, small_files_bytes: int) -> None:
        if reserve._directory not in given_up:
            hold(reserve, small_files_bytes)

    give_up_of = SpaceReserve.give_up
    patch.setattr(SpaceReserve, "give_up", give_up)
    patch.setattr(SpaceReserve, "hold", hold_once)


def _replay_brings_back_what_is_gone(patch: Patch) -> None:
    patch.setattr(LedgerDirs, "is_gone", lambda dirs, ledger: False)


def _start_forgets_what_is_gone(patch: Patch) -> None:
    patch.setattr(LedgerDirs, "gone", lambda dirs: iter(()))


def _a_log_is_judged_by_its_last_section(patch: Patch) -> None:
    contents = LedgerDir._contents

    def short(directory: LedgerDir, log: LogFile) -> Any:
        last = next(contents(directory, log))
        return iter((last,))

    patch.setattr(LedgerDir, "_contents", short)


def _compaction_deletes_the_log_first(patch: Patch) -> None:
    move = LedgerDir._entries_to_move

    def hasty(directory: LedgerDir, victim: Any, bytes_max: int) -> Any:
        moved = move(directory, victim, bytes_max)
        directory._drop_logs([victim.log])
        return moved

    patch.setattr(LedgerDir, "_entries_to_move", hasty)


def _compaction_ends_with_its_first_part(patch: Patch) -> None:
    move = LedgerDir._entries_to_move

    def short(directory: LedgerDir, victim: Any, bytes_max: int) -> Any:
        moved = move(directory, victim, bytes_max)
        victim.ledgers.clear()
        return moved

    patch.setattr(LedgerDir, "_entries_to_move", short)


def _compaction_goes_on_behind_what_it_failed_to_copy(patch: Patch) -> None:
    compact = LedgerDir.compact

    def forgetful(directory: LedgerDir, below: float, bytes_max: int) -> int | None:
        victim = directory._victim or directory._choose_victim(below)
        directory._victim = victim
        try:
            return compact(directory, below, bytes_max)
        except OSError:
            directory._victim = victim
            raise

    patch.setattr(LedgerDir, "compact", forgetful)


def _restart_forgets_explicit_lacs(patch: Patch) -> None:
    apply = Restored.apply

    def forgetful(restored: Restored, record: Record, *, salvage: bool) -> None:
        if record.kind != Kind.LAC:
            apply(restored, record, salvage=salvage)

    patch.setattr(Restored, "apply", forgetful)


def _checkpoint_forgets_explicit_lacs(patch: Patch) -> None:
    row = Ledger.row
    patch.setattr(Ledger, "row", lambda ledger: row(ledger)._replace(explicit_lac=b""))


def _explicit_lac_is_answered_at_once(patch: Patch) -> None:
    write, persisted = Bookie._try_write_lac, Bookie._lac_persisted

    def hasty(machine: Bookie, peer: Peer, m: WriteLac, out: list[Any]) -> Code:
        code = write(machine, peer, m, out)
        return Code.OK if code is None else code

    def silent(machine: Bookie, w: Any, out: list[Any]) -> None:
        persisted(machine, w, out)
        assert isinstance(out.pop().message, LacWritten)

    patch.setattr(Bookie, "_try_write_lac", hasty)
    patch.setattr(Bookie, "_lac_persisted", silent)


def _force_is_answered_at_once(patch: Patch) -> None:
    def hasty(machine: Bookie, peer: Peer, m: ForceLedger, out: list[Any]) -> None:
        out.append(Send(peer, LedgerForced(m.ledger, Code.OK)))

    patch.setattr(Bookie, "_force", hasty)


def _only_the_first_journal_is_replayed(patch: Patch) -> None:
    replay = JournalFiles.replay

    def short(files: JournalFiles, mark: JournalMark, on_damage: Any) -> Any:
        return replay(files, mark, on_damage) if files._directory == "/journal" else iter(())

    patch.setattr(JournalFiles, "replay", short)


def _all_journals_have_the_marks_of_the_first(patch: Patch) -> None:
    marks = LedgerDirs.marks
    patch.setattr(LedgerDirs, "marks", lambda dirs, count: marks(dirs, 1) * count)


def _groups_are_compared_with_the_first_mark(patch: Patch) -> None:
    has = LedgerDirs.has
    patch.setattr(LedgerDirs, "has", lambda dirs, ledger, journal, group: has(dirs, ledger, 0, group))


def _a_fence_goes_to_another_journal(patch: Patch) -> None:
    append = JournalQueues.append

    def lost(queues: JournalQueues, w: Waiting) -> int:
        if w.stored is not None or isinstance(w, LacWaiting):
            return append(queues, w)
        ledger = w.ledger
        w.ledger = replace(ledger, ledger=LedgerId(ledger.ledger + 1))
        token = append(queues, w)
        w.ledger = ledger
        return token

    patch.setattr(JournalQueues, "append", lost)


def _a_durable_group_counts_for_all_journals(patch: Patch) -> None:
    persisted = Bookie._persisted

    def hasty(machine: Bookie, fact: Persisted, out: list[Any]) -> None:
        for journal in range(machine._waiting.journals):
            queue = machine._waiting.queue_of(journal)
            if queue:
                persisted(machine, Persisted(queue[-1].token), out)

    patch.setattr(Bookie, "_persisted", hasty)


def _database_is_not_flushed(patch: Patch) -> None:
    patch.setattr(SimulatedDatabase, "flush", lambda database: None)


def _moved_entries_keep_their_rows(patch: Patch) -> None:
    write = DbIndex.write

    def only_states(index: DbIndex, locations: Any, rows: Iterable[LedgerRow], manifest: Manifest) -> Manifest:
        rows = list(rows)
        return write(index, locations if rows else [], rows, manifest)

    patch.setattr(DbIndex, "write", only_states)


def _lost_rows_are_not_noticed(patch: Patch) -> None:
    """The database loses the last half of each flush, as after damage at the end of its list of files."""

    def half(database: SimulatedDatabase) -> None:
        database._flush_part(database._fresh[: len(database._fresh) // 2])
        database._fresh = []

    patch.setattr(SimulatedDatabase, "flush", half)
    patch.setattr("dlog.io.db_index.last_write", lambda database: 1 << 60)


#: of the index db; caught by its story in test_crash_points.py
DATABASE_MUTANTS = [
    Mutant("database is not flushed", "J3", _database_is_not_flushed),
    Mutant("moved entries keep their rows", "J9", _moved_entries_keep_their_rows),
    Mutant("lost rows of the database are not noticed", "J3", _lost_rows_are_not_noticed),
]

MUTANTS = [
    Mutant("answered before the sync", "J1", _answered_before_the_sync),
    Mutant("names are not synced", "J1", _names_are_not_synced),
    Mutant("fence is answered at once", "J2", _fence_is_answered_at_once),
    Mutant("checkpoint forgets fences", "J2", _checkpoint_forgets_fences),
    Mutant("checkpoint forgets keys", "J3", _checkpoint_forgets_keys),
    Mutant("replay leaves records out", "J3", _replay_takes_the_first_of_each_group),
    Mutant("journal is not checked", "J4", _journal_is_not_checked),
    Mutant("stale groups count", "J4", _stale_groups_count, story="hostile"),
    Mutant("restart writes behind a torn tail", "J4", _restart_writes_behind_a_torn_tail),
    Mutant("mark runs ahead of the flush", "J6", _mark_runs_ahead),
    Mutant("mark is taken when it is written", "J6", _mark_is_taken_when_it_is_written),
    Mutant(
        "manifest is renamed without a sync of the directory",
        "J6",
        _manifest_is_renamed_without_a_sync_of_the_directory,
    ),
    Mutant("manifest is written over in place", "J6", _manifest_is_written_over_in_place),
    Mutant("manifest is renamed before it is synced", "J6", _manifest_is_renamed_before_it_is_synced),
    Mutant("journal files are given free too early", "J6", _files_are_given_free_too_early),
    Mutant("replay begins at the newest mark", "J6", _replay_begins_at_the_newest_mark),
    Mutant("failed sync is tried again", "J7", _failed_sync_is_tried_again, "syncs"),
    Mutant("failed sync is taken for no room", "J7", _failed_sync_is_taken_for_no_room, "syncs"),
    Mutant("merge drops the runs first", "J9", _merge_drops_the_runs_first, story="merging"),
    Mutant("merge forgets the oldest run", "J9", _merge_forgets_the_oldest, story="merging"),
    Mutant("what is gone is not written down", "J12", _what_is_gone_is_not_written_down, story="burying"),
    *[
        Mutant(name, invariant, plant, story="burying without room")
        for name, invariant, plant in (
            ("a full disk buries without writing it down", "J12", _a_full_disk_buries_without_a_word),
            ("what does not fit is written over in place", "J12", _the_reserve_is_written_over_in_place),
            ("the reserve is given up for good", "J13", _the_reserve_is_given_up_for_good),
        )
    ],
    Mutant("replay brings back what is gone", "J12", _replay_brings_back_what_is_gone, story="burying"),
    Mutant("start forgets what is gone", "J12", _start_forgets_what_is_gone, story="burying"),
    Mutant("a log is judged by its last section", "J12", _a_log_is_judged_by_its_last_section, story="burying"),
    Mutant("compaction deletes the log first", "J12", _compaction_deletes_the_log_first, story="compacting"),
    Mutant("compaction ends with its first part", "J12", _compaction_ends_with_its_first_part, story="compacting"),
    Mutant(
        "compaction goes on behind what it failed to copy",
        "J12",
        _compaction_goes_on_behind_what_it_failed_to_copy,
        "room",
        story="compacting",
    ),
    *[
        Mutant(name, invariant, plant, story="confirming")
        for name, invariant, plant in (
            ("restart forgets explicit LACs", "J14", _restart_forgets_explicit_lacs),
            ("checkpoint forgets explicit LACs", "J14", _checkpoint_forgets_explicit_lacs),
            ("explicit LAC is answered at once", "J14", _explicit_lac_is_answered_at_once),
            ("force is answered before the sync", "J15", _force_is_answered_at_once),
        )
    ],
    *[
        Mutant(name, invariant, plant, story="apart")
        for name, invariant, plant in (
            ("only the first journal is replayed", "J3", _only_the_first_journal_is_replayed),
            ("all journals have the marks of the first", "J6", _all_journals_have_the_marks_of_the_first),
            ("groups are compared with the first journal's mark", "J3", _groups_are_compared_with_the_first_mark),
            ("a fence goes to another journal", "J2", _a_fence_goes_to_another_journal),
            ("a durable group counts for all journals", "J1", _a_durable_group_counts_for_all_journals),
        )
    ],
    Mutant("no room is answered as done", "J10", _no_room_is_answered_as_done, "room"),
    Mutant("refused group is left behind", "J10", _refused_group_is_left_behind, "room"),
]
