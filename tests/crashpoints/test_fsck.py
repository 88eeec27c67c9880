"""`dlog bookie fsck`: a healthy directory is clean after every crash, each kind of damage is found and nothing else.

A repair, killed anywhere, leaves a directory on which J1-J5 and J12 hold.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from dlog.bookie.entry_log import section_end
from dlog.bookie.index import LOCATION_BYTES, LedgerRow, RunBuilder, location_at, merge, pack_location
from dlog.bookie.index_findings import Finding, FindingKind, is_clean
from dlog.bookie.journal import FIRST_MARKS
from dlog.bookie.manifest import IndexKind, LogFile, decode, encode
from dlog.errors import DamagedError, DLogError
from dlog.io.disk import BLOCK_BYTES, replace_file
from dlog.io.index_check import LedgerDirCheck
from dlog.io.index_repair import check_dir, repair_dir
from dlog.io.index_runs import write_run
from dlog.io.ledger_dir import LedgerDir
from tests.crashpoints.damage import Held, flips, held, judge_damaged, kind_of, wounds
from tests.crashpoints.history import judge
from tests.crashpoints.states import states
from tests.crashpoints.station import PATHS, Station, packet
from tests.crashpoints.stories import STORIES, Story
from tests.simulation.disk import Image, SimulatedDisk, coin
from tests.sorted_runs import runs_of
from tests.unit.bookie.test_ledger_dir import DIR, half, row

Told = tuple[FindingKind, str, int, int, int, int]
K = FindingKind


# ---- a healthy directory ---------------------------------------------------------------------------------------------


def test_a_directory_is_clean_at_every_crash_point() -> None:
    counts: Counter[str] = Counter()
    long_logs = replace(STORIES[0], options=replace(STORIES[0].options, entry_log_bytes=1 << 20))
    on_db = [replace(story, options=replace(story.options, index="db")) for story in STORIES[3:7]]
    for story in (*STORIES, long_logs, *on_db):
        disk = story.live(0).station.disk
        rng = random.Random(story.name)
        for _ in range(80):
            image = disk.cut(rng.randrange(len(disk.operations) + 1), coin(rng, rng.choice((0.0, 0.5, 1.0))))
            for path in PATHS.ledgers:
                if f"{path}/MANIFEST" not in image.names:
                    continue
                result = check_dir(SimulatedDisk(image), path)
                assert is_clean(result.findings), (story.name, result.findings)
                assert all(one.good == one.indexed and not one.missing for one in result.ledgers.values())
                counts["good"] += sum(one.good for one in result.ledgers.values())
                counts.update(str(one.kind) for one in result.findings)
    assert counts["good"] > 1000 and counts["tail"] > 10 and counts["file"] > 10, counts


@pytest.mark.parametrize("kind", list(IndexKind))
def test_a_directory_is_clean_at_every_crash_point_of_freeing_moved_copies(kind: IndexKind) -> None:
    disk = SimulatedDisk()
    made = LedgerDir(disk, DIR, 10_000, kind=kind)
    made.load()
    for step in range(3):
        made.flush(half((1, step), (2, step), body=bytes(6000)), [row(1, step), row(2, step)], FIRST_MARKS)
    begun = len(disk.operations)
    made.drop_entries([row(1, fenced=True)])
    made.collect()
    while made.compact(0.9, 1 << 20) is not None:
        made.collect()
    seen: Counter[int] = Counter()
    for after in range(begun, len(disk.operations) + 1):
        for share in (0.0, 0.5, 1.0):
            image = disk.cut(after, coin(random.Random(f"{after} {share}"), share))
            result = check_dir(SimulatedDisk(image), DIR)
            assert is_clean(result.findings), (after, share, result.findings)
            again = LedgerDir(SimulatedDisk(image), DIR, 10_000, kind=kind)
            rows = {found.ledger: found for found in again.load()}
            held = [bool(again.lookup(1, entry, 1, 1 << 20)) for entry in range(3)]
            assert all(held) or not any(held) or kind is IndexKind.DB, "all copies, or none"
            assert not any(held) or rows[1].last == 2, "the next look frees what is left"
            assert any(held) or rows[1].last in (-1, 2)
            assert [again.lookup(2, entry, 1, 1 << 20) for entry in range(3)] == [
                [packet(2, entry, bytes(6000))] for entry in range(3)
            ]
            seen[sum(held)] += 1
    assert seen[0] and seen[3], "some crashes were before, some after"


def test_a_check_writes_nothing() -> None:
    disk = SimulatedDisk(_world().image)
    check_dir(disk, DIR)
    assert not disk.operations


# ---- each kind of damage, once ---------------------------------------------------------------------------------------

ROWS = {1: row(1, 29, fenced=True), 2: row(2, 29), 5: row(5, 9)}


def _world() -> SimulatedDisk:
    """Two logs of two flushes each; ledger 3 is deleted and lies beside others; entry 4 of ledger 1 was added twice."""
    disk = SimulatedDisk()
    made = LedgerDir(disk, DIR, 10_000)
    made.load()
    for step in range(3):
        ids = [(ledger, entry) for ledger in (1, 2, 3) for entry in range(step * 10, step * 10 + 10)]
        made.flush(half(*ids, body=bytes(range(200))), [ROWS[1], ROWS[2], row(3, 29)], FIRST_MARKS)
    made.bury([3])
    made.flush(half((1, 4), *[(5, entry) for entry in range(10)], body=bytes(range(200))), [ROWS[5]], FIRST_MARKS)
    made.close()
    return disk


def _location(disk: SimulatedDisk, ledger: int, entry: int) -> tuple[str, int]:
    """Log and offset of an entry's newest record."""
    made = LedgerDir(disk, DIR, 1)
    made.load()
    for run in reversed(runs_of(made)):
        for number in run.table.rows_of(ledger):
            data = run.read_chunk(number)[16:]
            for at in range(len(data) // LOCATION_BYTES):
                location = location_at(data, at)
                if location.entry == entry:
                    return f"{DIR}/entries-{location.log:08x}", location.offset
    raise AssertionError("no such entry")


def _first_copy(disk: SimulatedDisk, ledger: int, entry: int) -> tuple[str, int]:
    """Log and offset of an entry's oldest record."""
    for log in decode(disk.open(f"{DIR}/MANIFEST").pread(1 << 20, 0)).logs:
        path = f"{DIR}/entries-{log.log:08x}"
        at = bytes(disk.image.contents[disk.image.names[path]]).find(packet(ledger, entry, bytes(range(200))))
        if at >= 0:
            return path, at - 8
    raise AssertionError("no such entry")


def _flip(disk: SimulatedDisk, path: str, byte: int) -> None:
    disk.image.flip_bit(path, byte * 8 + 3)


def _manifest_flipped(disk: SimulatedDisk) -> list[Told]:
    _flip(disk, f"{DIR}/MANIFEST", 20)
    return [(K.LIST, "MANIFEST", -1, -1, -1, 0)]


def _manifest_missing(disk: SimulatedDisk) -> list[Told]:
    disk.unlink(f"{DIR}/MANIFEST")
    return [(K.LIST, "MANIFEST", -1, -1, -1, 0)]


def _gone_flipped(disk: SimulatedDisk) -> list[Told]:
    _flip(disk, f"{DIR}/GONE", 10)
    return [(K.LIST, "GONE", -1, -1, -1, 0)]


def _runs(disk: SimulatedDisk) -> list[str]:
    manifest = decode(disk.open(f"{DIR}/MANIFEST").pread(1 << 20, 0))
    return [f"{DIR}/index-{run.run:08x}" for run in manifest.runs]


def _run_missing(disk: SimulatedDisk) -> list[Told]:
    path = _runs(disk)[1]
    disk.unlink(path)
    return [(K.RUN, path[3:], -1, -1, -1, 0)]


def _footer_flipped(disk: SimulatedDisk) -> list[Told]:
    path = _runs(disk)[1]
    _flip(disk, path, disk.open(path).size() - 50)
    return [(K.RUN, path[3:], -1, -1, -1, 0)]


def _chunk_flipped(disk: SimulatedDisk) -> list[Told]:
    path = _runs(disk)[1]
    _flip(disk, path, 32 + 16 + 5)
    return [(K.CHUNK, path[3:], 1, 10, 19, 10)]


def _with_row(disk: SimulatedDisk, ledger: int, entry: int, log: int, length: int, offset: int) -> None:
    """Put a wrong row on top of the index."""
    manifest = decode(disk.open(f"{DIR}/MANIFEST").pread(1 << 20, 0))
    builder = RunBuilder()
    parts = [builder.chunk(ledger, pack_location(entry, log, length, offset)), *builder.finish(())]
    run = write_run(disk, DIR, manifest.next_file, parts)
    manifest = replace(manifest, runs=(*manifest.runs, run), next_file=manifest.next_file + 1)
    replace_file(disk, DIR, "MANIFEST", encode(manifest))


def _row_to_no_log(disk: SimulatedDisk) -> list[Told]:
    _with_row(disk, 2, 7, 0x99, 232, 32)
    return [(K.NOWHERE, "entries-00000099", 2, 7, 7, 1)]


def _row_behind_the_end(disk: SimulatedDisk) -> list[Told]:
    _with_row(disk, 2, 7, 1, 232, 1 << 30)
    return [(K.NOWHERE, "entries-00000001", 2, 7, 7, 1)]


def _row_to_another_entry(disk: SimulatedDisk) -> list[Told]:
    path, offset = _location(disk, 2, 8)
    _with_row(disk, 2, 7, int(path[-8:], 16), 232, offset)
    return [(K.ELSEWHERE, path[3:], 2, 7, 7, 1)]


def _without_rows(disk: SimulatedDisk, gone: Callable[[int, int], bool], states: list[LedgerRow]) -> None:
    """Replace the index by one that lacks some rows."""
    check = LedgerDirCheck(disk, DIR)
    check.run()
    manifest = check.manifest
    assert manifest is not None
    builder = RunBuilder()
    parts: list[bytes] = []
    for ledger, data in merge(check.sources()):
        kept = [location_at(data, at) for at in range(len(data) // LOCATION_BYTES)]
        packed = b"".join(pack_location(*one) for one in kept if not gone(ledger, one.entry))
        if packed:
            parts.append(builder.chunk(ledger, packed))
    run = write_run(disk, DIR, manifest.next_file, [*parts, *builder.finish(states)])
    for path in _runs(disk):
        disk.unlink(path)
    manifest = replace(manifest, runs=(run,), next_file=manifest.next_file + 1)
    replace_file(disk, DIR, "MANIFEST", encode(manifest))


def _rows_missing(disk: SimulatedDisk) -> list[Told]:
    path, _ = _location(disk, 2, 12)
    _without_rows(disk, lambda ledger, entry: ledger == 2 and entry in (12, 14), list(ROWS.values()))
    return [(K.MISSING, path[3:], 2, 12, 14, 2)]


def _ledger_unknown(disk: SimulatedDisk) -> list[Told]:
    path, _ = _location(disk, 5, 0)
    _without_rows(disk, lambda ledger, entry: ledger == 5, [ROWS[1], ROWS[2]])
    return [(K.STATELESS, path[3:], 5, 0, 9, 10)]


def _log_missing(disk: SimulatedDisk) -> list[Told]:
    path, _ = _location(disk, 2, 12)
    disk.unlink(path)
    return [(K.LOG, path[3:], -1, -1, -1, 0)]


def _log_cut_off(disk: SimulatedDisk) -> list[Told]:
    path, offset = _location(disk, 2, 12)
    del disk.image.contents[disk.image.names[path]][offset + 20 :]
    return [(K.LOG, path[3:], -1, -1, -1, 0)]


def _packet_flipped(disk: SimulatedDisk) -> list[Told]:
    path, offset = _location(disk, 2, 12)
    _flip(disk, path, offset + 100)
    return [(K.ENTRY, path[3:], 2, 12, 12, 1)]


def _length_flipped(disk: SimulatedDisk) -> list[Told]:
    path, offset = _location(disk, 2, 12)
    _flip(disk, path, offset + 2)
    return [(K.ENTRY, path[3:], 2, 12, 12, 1)]


def _sector_unreadable(disk: SimulatedDisk) -> list[Told]:
    path, offset = _location(disk, 1, 4)
    disk.make_unreadable(path, offset + 100)
    return [(K.ENTRY, path[3:], 1, 4, 4, 1), (K.ENTRY, path[3:], 5, 0, 1, 2)]


def _contents_flipped(disk: SimulatedDisk) -> list[Told]:
    log = decode(disk.open(f"{DIR}/MANIFEST").pread(1 << 20, 0)).logs[0]
    _flip(disk, f"{DIR}/entries-{log.log:08x}", log.section + 20)
    return [(K.CONTENTS, f"entries-{log.log:08x}", -1, -1, -1, 0)]


def _contents_lack_a_ledger(disk: SimulatedDisk) -> list[Told]:
    manifest = decode(disk.open(f"{DIR}/MANIFEST").pread(1 << 20, 0))
    log = manifest.logs[0]
    data = section_end(0, [(1, 30, 5000), (3, 30, 5000)]).ljust(BLOCK_BYTES, b"\0")
    disk.open(f"{DIR}/entries-{log.log:08x}").pwritev([data], log.length)
    logs = (LogFile(log.log, log.length + BLOCK_BYTES, log.length), *manifest.logs[1:])
    replace_file(disk, DIR, "MANIFEST", encode(replace(manifest, logs=logs)))
    return [(K.CONTENTS, f"entries-{log.log:08x}", -1, -1, -1, 0)]


def _torn_tail(disk: SimulatedDisk) -> list[Told]:
    log = decode(disk.open(f"{DIR}/MANIFEST").pread(1 << 20, 0)).logs[-1]
    disk.open(f"{DIR}/entries-{log.log:08x}").pwritev([b"x" * 100], log.length)
    return [(K.TAIL, f"entries-{log.log:08x}", -1, -1, -1, 0)]


def _nobodys_file(disk: SimulatedDisk) -> list[Told]:
    disk.create(f"{DIR}/index-000000fe")
    return [(K.FILE, "index-000000fe", -1, -1, -1, 0)]


def _old_copy_flipped(disk: SimulatedDisk) -> list[Told]:
    path, offset = _first_copy(disk, 1, 4)
    _flip(disk, path, offset + 100)
    return [(K.UNUSED, path[3:], -1, -1, -1, 0)]


def _entry_of_a_deleted_ledger_flipped(disk: SimulatedDisk) -> list[Told]:
    path, offset = _first_copy(disk, 3, 4)
    _flip(disk, path, offset + 100)
    return [(K.UNUSED, path[3:], -1, -1, -1, 0)]


def _log_header_flipped(disk: SimulatedDisk) -> list[Told]:
    _flip(disk, f"{DIR}/entries-00000001", 9)
    return [(K.HEADER, "entries-00000001", -1, -1, -1, 0)]


def _run_header_flipped(disk: SimulatedDisk) -> list[Told]:
    path = _runs(disk)[0]
    _flip(disk, path, 9)
    return [(K.HEADER, path[3:], -1, -1, -1, 0)]


@dataclass(frozen=True, slots=True)
class Planted:
    """left: kinds that are still found after a repair."""

    plant: Callable[[SimulatedDisk], list[Told]]
    left: tuple[FindingKind, ...] = ()


PLANTED = [
    Planted(_manifest_flipped, (K.LIST,)),
    Planted(_manifest_missing, (K.LIST,)),
    Planted(_gone_flipped, (K.LIST,)),
    Planted(_run_missing),
    Planted(_footer_flipped),
    Planted(_chunk_flipped),
    Planted(_row_to_no_log),
    Planted(_row_behind_the_end),
    Planted(_row_to_another_entry),
    Planted(_rows_missing),
    Planted(_ledger_unknown, (K.STATELESS,)),
    Planted(_log_missing, (K.LOG,)),
    Planted(_log_cut_off, (K.LOG,)),
    Planted(_packet_flipped, (K.ENTRY,)),
    Planted(_length_flipped, (K.ENTRY,)),
    Planted(_sector_unreadable, (K.ENTRY,)),  # of one entry there is an older copy
    Planted(_contents_flipped, (K.UNUSED,)),
    Planted(_contents_lack_a_ledger),
    Planted(_torn_tail, (K.TAIL,)),
    Planted(_nobodys_file, (K.FILE,)),
    Planted(_old_copy_flipped, (K.UNUSED,)),
    Planted(_entry_of_a_deleted_ledger_flipped, (K.UNUSED,)),
    Planted(_log_header_flipped, (K.HEADER,)),
    Planted(_run_header_flipped, (K.HEADER,)),
]
each_plant = pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.plant.__name__.strip("_"))


def _told(findings: list[Finding]) -> list[Told]:
    return [(f.kind, f.file.removeprefix(f"{DIR}/"), f.ledger, f.first, f.last, f.count) for f in findings]


def test_every_kind_is_planted() -> None:
    disk = _world()
    assert not check_dir(disk, DIR).findings
    assert {told[0] for planted in PLANTED for told in planted.plant(_world())} == set(FindingKind)


@each_plant
def test_damage_is_found_and_nothing_else(planted: Planted) -> None:
    disk = _world()
    expected = planted.plant(disk)
    assert _told(check_dir(disk, DIR).findings) == expected


def _check_entries(disk: SimulatedDisk, planted: Planted) -> Counter[str]:
    """Each entry has its bytes or is damaged, none is absent; none of the deleted ledger is there."""
    made = LedgerDir(disk, DIR, 10_000)
    states = {state.ledger: state for state in made.load()}
    counts: Counter[str] = Counter()
    for ledger, last in ((1, 29), (2, 29), (5, 9)):
        if ledger == 5 and planted.plant is _ledger_unknown:
            continue
        if not made.manifest.limbo:
            assert states[ledger] == ROWS[ledger]
        for entry in range(last + 1):
            try:
                assert made.lookup(ledger, entry, 1, 1 << 20) == [packet(ledger, entry, bytes(range(200)))]
                counts["good"] += 1
            except (DamagedError, OSError):
                counts["damaged"] += 1
    assert 3 not in states
    return counts


@each_plant
def test_a_repair_rebuilds_what_the_logs_have_and_is_done_once(planted: Planted) -> None:
    disk = _world()
    planted.plant(disk)
    repaired = repair_dir(disk, DIR)
    left = check_dir(disk, DIR)
    assert tuple(one.kind for one in left.findings) == planted.left
    assert repaired.rebuilt == repaired.repairable
    assert not left.repairable
    operations = len(disk.operations)
    assert not repair_dir(disk, DIR).rebuilt and len(disk.operations) == operations, "a second one has nothing to do"
    if K.LIST in planted.left:
        with pytest.raises(DamagedError):
            LedgerDir(disk, DIR, 1).load()
        return
    counts = _check_entries(disk, planted)
    assert counts["good"] >= 30
    if not set(planted.left) & {K.LOG, K.ENTRY}:
        assert not counts["damaged"]
    limbo = decode(disk.open(f"{DIR}/MANIFEST").pread(1 << 20, 0)).limbo
    assert limbo == (planted.plant in (_run_missing, _footer_flipped)), "only lost states end the taking of adds"


@each_plant
def test_a_repair_killed_anywhere_leaves_a_directory_that_starts(
    planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.io.index_repair._SPILL_ENTRIES", 4)
    if K.LIST in planted.left:
        return
    before = _world()
    planted.plant(before)
    disk = SimulatedDisk(before.image)
    disk.unreadable = set(before.unreadable)
    repair_dir(disk, DIR)
    rng = random.Random(1)
    last = -1
    for after, image in states(disk, rng, 2):
        if after == last and rng.random() > 0.04:
            continue
        last = after
        again = SimulatedDisk(image)
        again.unreadable = set(before.unreadable)
        repair_dir(again, DIR)
        assert {one.kind for one in check_dir(again, DIR).findings} <= {*planted.left, K.FILE, K.TAIL, K.UNUSED}
        _check_entries(again, planted)
        if planted.plant in (_run_missing, _footer_flipped):
            continue  # without the repair they do not start
        plain = SimulatedDisk(image)
        plain.unreadable = set(before.unreadable)
        LedgerDir(plain, DIR, 10_000).load()


def test_a_chunk_whose_entries_are_lost_too_stays_damaged() -> None:
    """Its entries must not become absent: a recovery would take them for never written."""
    disk = _world()
    _chunk_flipped(disk)
    path, offset = _first_copy(disk, 1, 12)
    _flip(disk, path, offset + 100)
    assert repair_dir(disk, DIR).rebuilt
    (chunk, *rest) = check_dir(disk, DIR).findings
    assert (chunk.kind, chunk.first, chunk.last) == (K.CHUNK, 10, 19)
    assert [one.kind for one in rest] == [K.UNUSED]
    assert not repair_dir(disk, DIR).rebuilt
    made = LedgerDir(disk, DIR, 10_000)
    made.load()
    for entry in range(30):
        if entry == 12:
            with pytest.raises(DamagedError):
                made.lookup(1, entry, 1, 1 << 20)
        else:
            assert made.lookup(1, entry, 1, 1 << 20) == [packet(1, entry, bytes(range(200)))]
    made.flush(half((1, 12), body=bytes(range(200))), [], FIRST_MARKS)  # as a recovery writes it again
    assert repair_dir(disk, DIR).rebuilt
    assert is_clean(check_dir(disk, DIR).findings)


def _striped() -> SimulatedDisk:
    """Ledger 1 has every third entry here, in three index runs; entry 15 was added twice. The chunk of the first run
    and entry 6, which only that run leads to, are damaged."""
    disk = SimulatedDisk()
    made = LedgerDir(disk, DIR, 10_000)
    made.load()
    body = bytes(range(200))
    states = [row(1, 30, fenced=True)]
    made.flush(half(*[(1, entry) for entry in range(0, 31, 3) if entry != 15], body=body), states, FIRST_MARKS)
    made.flush(half((1, 15), body=body), states, FIRST_MARKS)
    made.flush(half((1, 15), body=body), states, FIRST_MARKS)
    made.close()
    _flip(disk, _runs(disk)[0], 32 + 16 + 5)
    path, offset = _first_copy(disk, 1, 6)
    _flip(disk, path, offset + 100)
    return disk


def _is_unknown(disk: SimulatedDisk, entry: int) -> bool:
    made = LedgerDir(disk, DIR, 10_000)
    made.load()
    try:
        found = made.lookup(1, entry, 1, 1 << 20)
    except DamagedError:
        return True
    assert found == [packet(1, entry, bytes(range(200)))]
    return False


def test_another_entry_never_stands_for_a_lost_one_of_a_chunk_with_gaps() -> None:
    """An older copy of entry 15, to which another run led, must not make up for entry 6."""
    disk = _striped()
    path, offset = _location(disk, 1, 15)
    _flip(disk, path, offset + 100)
    assert repair_dir(disk, DIR).rebuilt
    assert _is_unknown(disk, 6) and not _is_unknown(disk, 15)


def test_damaged_chunks_that_were_joined_stay_damaged() -> None:
    disk = _striped()
    made = LedgerDir(disk, DIR, 10_000)
    made.load()
    made.flush(half((1, 1), (1, 29), body=bytes(range(200))), [], FIRST_MARKS)
    made.close()
    _flip(disk, _runs(disk)[-1], 32 + 16 + 5)  # its range overlaps that of the first run
    path, offset = _first_copy(disk, 1, 29)
    _flip(disk, path, offset + 100)
    repair_dir(disk, DIR)
    assert _is_unknown(disk, 6) and _is_unknown(disk, 29)
    (chunk,) = [one for one in check_dir(disk, DIR).findings if one.kind is K.CHUNK]
    assert (chunk.first, chunk.last, chunk.count) == (0, 30, 12), "no fewer entries account for it"


def test_a_log_whose_contents_were_repaired_is_collected() -> None:
    disk = _world()
    _contents_flipped(disk)
    repair_dir(disk, DIR)
    made = LedgerDir(disk, DIR, 10_000)
    made.load()
    made.bury([1, 2, 5])
    assert not made.collect().failures
    assert not made.manifest.logs


def test_deleted_ledgers_do_not_come_back_when_states_are_lost() -> None:
    disk = _world()
    for path in _runs(disk):
        disk.unlink(path)
    assert repair_dir(disk, DIR).rebuilt
    made = LedgerDir(disk, DIR, 10_000)
    assert sorted(state.ledger for state in made.load()) == [1, 2, 5]
    assert made.manifest.limbo


# ---- a bookie, damaged, repaired and started -------------------------------------------------------------------------


def _repaired(image: Image) -> bool:
    """Repair what can be repaired; whether anything was."""
    disk = SimulatedDisk(image)
    results = [repair_dir(disk, path) for path in PATHS.ledgers]
    image.names, image.contents = disk.image.names, disk.image.contents
    return any(result.rebuilt for result in results)


@pytest.mark.long
def test_damage_repaired_gives_right_bytes_or_unknown() -> None:
    """J5 behind a repair, and what a repair gains: nothing that a damaged index alone hid stays unknown."""
    before: Held = held()
    rng = random.Random(2)
    counts: Counter[str] = Counter()
    hurts = [*wounds(before.image, random.Random(2), 60), *flips(before.image, random.Random(2), 0.01)]
    for what, hurt in hurts:
        if kind_of("/" + what.rpartition(" ")[2]) in ("journal", "spare", "VERSION") or rng.random() > 0.12:
            continue

        def hurt_and_repaired(image: Image, hurt: Callable[[Image], None] = hurt) -> None:
            hurt(image)
            try:
                counts["repaired"] += _repaired(image)
            except DLogError:
                counts["not repaired"] += 1

        unknown, refused = counts["unknown"], counts["refused"]
        judge_damaged(before, hurt_and_repaired, what, counts)
        if what == "flip index":
            assert counts["unknown"] == unknown and counts["refused"] == refused, "a rebuilt index leads to everything"
    assert counts["repaired"] > 50 and counts["served"] > 100, counts
    print(dict(counts))


@pytest.mark.parametrize("story", STORIES[:3], ids=lambda story: story.name)
def test_a_bookie_starts_as_before_when_its_index_was_rebuilt(story: Story) -> None:
    """Keys, fences, explicit LACs and deletions are those of before, whatever was rebuilt."""
    script = story.live(0)
    disk = script.station.disk
    for path in PATHS.ledgers:
        image = disk.image.copy()
        runs = [name for name in image.names if name.startswith(f"{path}/index-")]
        for name in runs:
            image.flip_bit(name, (32 + 16) * 8)
        again = SimulatedDisk(image)
        results = [repair_dir(again, one) for one in PATHS.ledgers]
        assert all(is_clean(check_dir(again, one).findings) for one in PATHS.ledgers), results
        judge(Station(again, story.options), script.history, len(disk.operations))
