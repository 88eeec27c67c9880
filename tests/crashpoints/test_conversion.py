"""`dlog bookie convert`: crashes at every operation of a conversion, both ways, with two ledger directories.

A crash leaves the old or the new index in each directory, each whole; a second run converts the rest.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest

from dlog.bookie.index import EntryLocation, LedgerRow
from dlog.bookie.index_findings import is_clean
from dlog.bookie.journal import JournalMark, JournalMarks
from dlog.bookie.manifest import IndexKind, Manifest
from dlog.errors import ConfigError, DamagedError, UnavailableError
from dlog.io.bookie_store import LedgerDirs
from dlog.io.index_conversion import Conversion, convert_dirs
from dlog.io.index_repair import check_dir, repair_dir
from dlog.io.index_runs import OURS, is_named
from dlog.io.ledger_dir import LedgerDir, read_manifest
from tests.crashpoints.history import judge
from tests.crashpoints.station import PATHS, Station
from tests.crashpoints.stories import STORIES
from tests.simulation.disk import Image, SimulatedDisk, all_kept, all_lost, coin
from tests.unit.bookie.test_ledger_dir import half, row

DIRS = ("/l0", "/l1")
BOTH = [(IndexKind.SORTED, IndexKind.DB), (IndexKind.DB, IndexKind.SORTED)]
both_ways = pytest.mark.parametrize(("old", "new"), BOTH, ids=["to-db", "to-sorted"])
Content = list[tuple[Manifest, bytes, dict[int, LedgerRow], dict[tuple[int, int], EntryLocation | None]]]


def _marks(group: int) -> JournalMarks:
    return (JournalMark(group, 4096, group, group), JournalMark(0, 4096, 0, 0))


@cache
def _world(kind: IndexKind) -> Image:
    """Three flushes; ledgers 4 and 5 are deleted; entries were written twice; an interrupted flush of the index db
    left `unindexed` in the second directory."""
    disk = SimulatedDisk()
    dirs = LedgerDirs(disk, DIRS, 3000, kind=kind)
    dirs.load(lambda event: None)
    for step in range(2):
        ids = [(ledger, entry) for ledger in range(1, 6) for entry in range(step * 4, step * 4 + 4)]
        dirs.flush(half(*ids, body=b"x" * 40), [row(ledger, step * 4 + 3) for ledger in range(1, 6)], _marks(step + 1))
    dirs.bury([4, 5])
    rows = [
        row(1, 9, fenced=True)._replace(seen=77),
        row(2, 7)._replace(explicit_lac=b"p" * 36, lac=6),
        LedgerRow(6, b"", False, -1, -1),
    ]
    before = len(disk.operations)
    dirs.flush(half((1, 3), (1, 9), (2, 0), (2, 2)), rows, _marks(3), limbo=True)
    dirs.close()
    if kind is IndexKind.SORTED:
        return disk.image
    for after in range(before, len(disk.operations)):
        image = disk.cut(after, all_kept)
        manifest = read_manifest(SimulatedDisk(image), DIRS[1])
        if manifest is not None and manifest.unindexed:
            return image
    raise AssertionError("no flush names its bytes first")


def _disk(kind: IndexKind) -> SimulatedDisk:
    return SimulatedDisk(_world(kind).copy())


def _content(image: Image) -> Content:
    """All that the directories hold, by the index that each of them has; loading them removes what is not named."""
    disk, found = SimulatedDisk(image), []
    for path in DIRS:
        stored = read_manifest(disk, path)
        assert stored is not None
        made = LedgerDir(disk, path, 3000, kind=stored.kind)
        rows = {one.ledger: one for one in made.load()}
        assert not _unnamed(disk, path)
        locations: dict[tuple[int, int], EntryLocation | None] = {}
        for ledger in rows:
            find = made.index.finder(ledger)
            for entries in made.entry_runs(ledger):
                locations |= {(ledger, at): find(at) for first, last in entries for at in range(first, last + 1)}
        kept = replace(stored, kind=IndexKind.SORTED, runs=(), next_file=0, database=0, database_writes=0)
        found.append((kept, made.gone.encode(), rows, locations))
        made.close()
    return found


def _unnamed(disk: SimulatedDisk, path: str) -> list[str]:
    manifest = read_manifest(disk, path)
    assert manifest is not None
    return [name for name in disk.names(path) if name.startswith(OURS) and not is_named(manifest, name)]


def _kinds(disk: SimulatedDisk) -> list[IndexKind]:
    manifests = [read_manifest(disk, path) for path in DIRS]
    return [manifest.kind for manifest in manifests if manifest is not None]


def _crashes(disk: SimulatedDisk, rng: random.Random) -> Iterator[Image]:
    """Behind each operation: all that was not synced is there, nothing of it, or some. Equal images are given once."""
    seen: set[object] = set()
    for after in range(len(disk.operations) + 1):
        for keep in (all_kept, all_lost, coin(rng, 0.5)):
            image = disk.cut(after, keep)
            files = frozenset((path, bytes(image.contents[inode])) for path, inode in image.names.items())
            if files not in seen:
                seen.add(files)
                yield image


def _load(image: Image, kind: IndexKind) -> None:
    dirs = LedgerDirs(SimulatedDisk(image), DIRS, 3000, kind=kind)
    dirs.load(lambda event: None)
    dirs.close()


def _convert(disk: SimulatedDisk, kind: IndexKind) -> list[Conversion]:
    return list(convert_dirs(disk, DIRS, kind))


def _failing_at(number: int, failure: OSError) -> Callable[[], None]:
    left = number

    def fail() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise failure

    return fail


@both_ways
def test_everything_is_kept_and_a_second_run_has_nothing_to_do(old: IndexKind, new: IndexKind) -> None:
    disk = _disk(old)
    before = _content(disk.image)
    results = _convert(disk, new)
    assert [(one.is_changed, one.before) for one in results] == [(True, old)] * 2
    assert sum(one.entries for one in results) == sum(len(locations) for *_, locations in before) > 20
    assert _kinds(disk) == [new, new]
    assert not any(_unnamed(disk, path) for path in DIRS), "the old index is removed"
    assert _content(disk.image) == before
    assert all(is_clean(check_dir(disk, path).findings) for path in DIRS)
    operations = len(disk.operations)
    assert not any(one.is_changed for one in _convert(disk, new))
    assert len(disk.operations) == operations
    _load(disk.image, new)
    assert before[1][0].marks[0].group >= 2 and len(before[1][0].marks) == 2
    if old is IndexKind.DB:
        assert before[1][0].unindexed, "the interrupted flush"


@both_ways
def test_a_crash_at_every_operation_leaves_the_old_or_the_new_index(old: IndexKind, new: IndexKind) -> None:
    disk = _disk(old)
    before = _content(disk.image)
    _convert(disk, new)
    counts: Counter[str] = Counter()
    for image in _crashes(disk, random.Random(1)):
        kinds = _kinds(SimulatedDisk(image))
        assert _content(image) == before
        if len(set(kinds)) == 1:
            _load(image, kinds[0])
        else:
            assert kinds == [new, old]
            for kind in (old, new):
                with pytest.raises(ConfigError, match="dlog bookie convert DIR --to db"):
                    _load(image, kind)
        counts[" ".join(kinds)] += 1
        again = SimulatedDisk(image)
        assert [one.is_changed for one in _convert(again, new)] == [kind is old for kind in kinds]
        assert _kinds(again) == [new, new] and not any(_unnamed(again, path) for path in DIRS)
        if len(set(kinds)) > 1:
            assert _content(again.image) == before
    assert len(counts) == 3 and min(counts.values()) >= 5, counts


@both_ways
def test_an_error_at_every_operation_leaves_the_old_or_the_new_index(old: IndexKind, new: IndexKind) -> None:
    healthy = _disk(old)
    before = _content(healthy.image)
    _convert(healthy, new)
    for after in range(len(healthy.operations)):
        disk = _disk(old)
        disk.on_operation = _failing_at(after, OSError((errno.ENOSPC, errno.EIO)[after % 2], "failed"))
        with pytest.raises(OSError):
            _convert(disk, new)
        disk.on_operation = None
        if _kinds(disk) == [old, old]:
            assert not any(_unnamed(disk, path) for path in DIRS), "what was written for nothing is removed"
        assert _content(disk.image) == before
        _convert(disk, new)
        assert _kinds(disk) == [new, new]
        assert _content(disk.image) == before


@both_ways
def test_a_damaged_index_is_not_converted(old: IndexKind, new: IndexKind) -> None:
    disk = _disk(old)
    manifest = read_manifest(disk, DIRS[0])
    assert manifest is not None
    path = f"database-{manifest.database:08x}.0" if old is IndexKind.DB else f"index-{manifest.runs[0].run:08x}"
    disk.flip_bit(f"{DIRS[0]}/{path}", (32 + 16 + 5) * 8)
    names = sorted(disk.image.names)
    with pytest.raises(DamagedError, match="fsck DIR --repair"):
        _convert(disk, new)
    assert sorted(disk.image.names) == names and _kinds(disk) == [old, old]
    assert repair_dir(disk, DIRS[0]).rebuilt
    assert all(one.is_changed for one in _convert(disk, new))


@both_ways
@pytest.mark.parametrize("name", ["MANIFEST", "GONE"])
def test_nothing_is_written_if_a_list_is_damaged(old: IndexKind, new: IndexKind, name: str) -> None:
    for damage in ("flipped", "missing"):
        disk = _disk(old)
        if damage == "flipped":
            disk.flip_bit(f"{DIRS[1]}/{name}", 80)
        elif name == "MANIFEST":
            disk.unlink(f"{DIRS[1]}/{name}")
        else:
            continue
        operations = len(disk.operations)
        with pytest.raises(DamagedError, match=DIRS[1]):
            _convert(disk, new)
        assert len(disk.operations) == operations


@both_ways
def test_space_is_looked_for_first(old: IndexKind, new: IndexKind) -> None:
    disk = _disk(old)
    disk.bytes_max = disk.used + (1 << 20)
    with pytest.raises(UnavailableError, match="not enough space"):
        _convert(disk, new)
    assert not disk.operations
    disk.bytes_max = disk.used + (8 << 20)
    assert all(one.is_changed for one in _convert(disk, new))


@both_ways
@pytest.mark.parametrize("name", ["mixed", "burying"])
def test_a_bookie_with_a_converted_index_knows_what_it_acknowledged(old: IndexKind, new: IndexKind, name: str) -> None:
    """Also after a conversion that was killed and a start with the old index."""
    (story,) = [story for story in STORIES if story.name == name]
    script = replace(story, options=replace(story.options, index=str(old))).live(0)
    options = replace(story.options, index=str(new))
    whole = SimulatedDisk(script.station.disk.image)
    list(convert_dirs(whole, PATHS.ledgers, new))
    at = len(script.station.disk.operations)
    judge(Station(SimulatedDisk(whole.image), options), script.history, at)
    with pytest.raises(ConfigError, match=f'index = "{new}"'):
        Station(SimulatedDisk(whole.image), replace(options, index=str(old)))
    for after in (3, 6):
        killed = SimulatedDisk(whole.cut(after, all_kept))
        Station(killed, replace(options, index=str(old))).checkpoint()
        assert all(one.is_changed for one in convert_dirs(killed, PATHS.ledgers, new))
        judge(Station(killed, options), script.history, at)
