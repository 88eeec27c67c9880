"""J11: crash points of a first start, disks that are not the bookie's, and salvage (limbo)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from dlog.bookie.journal import HEADER_BYTES, JournalDamaged
from dlog.bookie.options import BookieOptions
from dlog.errors import CookieError, DamagedError, DLogError
from dlog.machine import Versioned
from dlog.model.ids import BookieId
from dlog.wire.bookie import Code
from tests.crashpoints.bookie_start import BOOKIE, OPTIONS, begin, stepped
from tests.crashpoints.damage import Held, has_served, held
from tests.crashpoints.history import judge
from tests.crashpoints.states import states
from tests.crashpoints.station import PATHS, Station, add, packet
from tests.memory_metadata import MemoryMetadata
from tests.simulation.disk import Image, SimulatedDisk


class Registering(MemoryMetadata):
    """Remembers after how many disk operations the cookie was written."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__()
        self.disk = disk
        self.written = -1

    async def write_cookie(self, bookie: BookieId, text: str, version: object) -> None:
        await super().write_cookie(bookie, text, version)
        self.written = len(self.disk.operations)


def test_a_first_start_that_is_cut_off_anywhere_can_be_made_again() -> None:
    disk = SimulatedDisk()
    metadata = Registering(disk)
    station = begin(disk, metadata)
    station.ask(add(1, 0, b"first"))
    station.commit()
    acked = len(disk.operations)
    seen = stepped(metadata.read_cookie(BOOKIE))
    assert isinstance(seen, Versioned) and 0 < metadata.written < acked
    cases = 0
    for after, image in states(disk, random.Random(1), 4):
        for registered in {after > metadata.written, after >= metadata.written}:
            again = MemoryMetadata()
            if registered:
                stepped(again.write_cookie(BOOKIE, str(seen.value), None))
            found = begin(SimulatedDisk(image.copy()), again)
            if after >= acked:
                assert found.stored(1, 0) == packet(1, 0, b"first")
            assert has_served(found)
            cases += 1
    assert cases > 50
    print("first starts cut off", cases)


def _emptied(image: Image, directory: str) -> None:
    for path in [path for path in image.names if path.startswith(f"{directory}/")]:
        del image.names[path]


def _only_version_left(image: Image, directory: str) -> None:
    for path in [path for path in image.names if path.startswith(f"{directory}/") and not path.endswith("VERSION")]:
        del image.names[path]


def _without_version(image: Image, directory: str) -> None:
    del image.names[f"{directory}/VERSION"]


def _of_another_bookie(image: Image, directory: str) -> None:
    disk, metadata = SimulatedDisk(), MemoryMetadata()
    begin(disk, metadata, bookie=BookieId("other:1"))
    _emptied(image, directory)
    _mounted(image, disk.image, directory)


def _of_another_cluster(image: Image, directory: str) -> None:
    disk = SimulatedDisk()
    begin(disk, MemoryMetadata("elsewhere"))
    _emptied(image, directory)
    _mounted(image, disk.image, directory)


def _mounted(image: Image, other: Image, directory: str) -> None:
    for path, inode in other.names.items():
        if path.startswith(f"{directory}/"):
            image.names[path] = 1000 + inode
            image.contents[1000 + inode] = bytearray(other.contents[inode])


WRONG: list[Callable[[Image, str], None]] = [
    _emptied,
    _only_version_left,
    _without_version,
    _of_another_bookie,
    _of_another_cluster,
]
before = pytest.fixture(scope="module")(held)


@pytest.mark.parametrize("directory", PATHS.all)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__.strip("_"))
def test_a_directory_that_is_not_what_it_was_is_refused(
    before: Held, wrong: Callable[[Image, str], None], directory: str
) -> None:
    image = before.image.copy()
    wrong(image, directory)
    disk = SimulatedDisk(image)
    with pytest.raises((CookieError, DamagedError)):
        begin(disk, before.metadata)
    assert not disk.operations, "a refused start touches nothing"


def test_all_directories_emptied_are_refused(before: Held) -> None:
    with pytest.raises(CookieError, match="mount the right disk"):
        begin(SimulatedDisk(), before.metadata)


def test_all_but_the_versions_lost_is_refused(before: Held) -> None:
    image = before.image.copy()
    for directory in PATHS.all:
        _only_version_left(image, directory)
    with pytest.raises(CookieError, match="MANIFEST"):
        begin(SimulatedDisk(image), before.metadata)


def test_swapped_directories_are_refused(before: Held) -> None:
    options = BookieOptions(journal_dirs=PATHS.journals[0], ledger_dirs=",".join(reversed(PATHS.ledgers)))
    with pytest.raises(CookieError, match="in that order"):
        begin(SimulatedDisk(before.image.copy()), before.metadata, options)


def test_a_wiped_zookeeper_is_refused(before: Held) -> None:
    with pytest.raises(CookieError, match="knows no cookie"):
        begin(SimulatedDisk(before.image.copy()), MemoryMetadata())


def test_who_judges_nothing_serves_what_was_lost(before: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of J11: without the check some of these starts succeed and deny acknowledged entries."""
    monkeypatch.setattr("dlog.io.bookie_dirs.judge", lambda *_, **__: None)
    served = 0
    for wrong in WRONG:
        for directory in PATHS.all:
            image = before.image.copy()
            wrong(image, directory)
            try:
                begin(SimulatedDisk(image), before.metadata)
                served += 1
            except DLogError:
                pass
    assert served


def test_limbo_outlives_every_crash_of_the_start_that_found_it(before: Held) -> None:
    """A salvaged bookie denies no entry, and neither does any later start from what a power cut left of it.

    Until limbo is on stable storage a start without --salvage refuses; from then on the bookie is read-only and answers
    "unknown".
    """
    image = before.image.copy()
    path = sorted(path for path in image.names if "/journal-" in path)[1]  # wholly behind the mark
    image.flip_bit(path, (HEADER_BYTES + 100) * 8)
    with pytest.raises(JournalDamaged, match="--salvage"):
        begin(SimulatedDisk(image.copy()), before.metadata)
    salvage = BookieOptions(**{name: getattr(OPTIONS, name) for name in OPTIONS.__slots__} | {"salvage": True})
    disk = SimulatedDisk(image)
    begin(disk, before.metadata, salvage)
    history = before.history
    refused = limbo = 0
    for _, left in states(disk, random.Random(3), 4):
        for options in (OPTIONS, salvage):
            try:
                station: Station = begin(SimulatedDisk(left.copy()), before.metadata, options)
            except JournalDamaged:
                assert options is OPTIONS
                refused += 1
                continue
            limbo += 1
            judge(station, history, 0, lost=(Code.IO_ERROR, Code.READ_ONLY))
            assert station.stored(1, 9_999) is station.stored(4711, 0) is Code.IO_ERROR
    assert refused and limbo > refused
    print("salvages cut off", refused + limbo)
