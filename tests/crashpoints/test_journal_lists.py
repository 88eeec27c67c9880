"""J3 and J11 while the list of a bookie's journals changes: power cuts, interrupted changes, disks that are wrong."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from dlog.bookie.journal import ForeignJournalError
from dlog.bookie.options import BookieOptions
from dlog.errors import CookieError, DamagedError
from dlog.model.ids import BookieId
from tests.crashpoints.bookie_start import BOOKIE, OPTIONS, begin, stepped
from tests.crashpoints.history import History, Script, judge
from tests.crashpoints.states import states
from tests.crashpoints.station import PATHS, TWO_JOURNALS, Station
from tests.memory_metadata import MemoryMetadata
from tests.simulation.disk import Image, SimulatedDisk

ONE = OPTIONS
TWO = replace(OPTIONS, journal_dirs=",".join(TWO_JOURNALS.journals))
FIRST, SECOND = TWO_JOURNALS.journals


class Registering(MemoryMetadata):
    """Remembers after how many operations of the disk each cookie was written."""

    def __init__(self) -> None:
        super().__init__()
        self.disk: SimulatedDisk | None = None
        self.cookies: list[tuple[int, str]] = []  # those written before it watched the disk: after -1

    async def write_cookie(self, bookie: BookieId, text: str, version: object) -> None:
        await super().write_cookie(bookie, text, version)
        self.cookies.append((len(self.disk.operations) if self.disk else -1, text))

    def at(self, after: int) -> list[MemoryMetadata]:
        """What ZooKeeper may hold when the power is cut after so many operations."""
        held: list[tuple[str, MemoryMetadata]] = []
        for known in ([at <= after for at, _ in self.cookies], [at < after for at, _ in self.cookies]):
            text = [text for (_, text), is_there in zip(self.cookies, known, strict=True) if is_there][-1]
            if all(text != other for other, _ in held):
                metadata = MemoryMetadata()
                stepped(metadata.write_cookie(BOOKIE, text, None))
                held.append((text, metadata))
        return [metadata for _, metadata in held]


@dataclass
class Bookie:
    """A bookie's disk, metadata and history over several starts."""

    image: Image = field(default_factory=lambda: SimulatedDisk().image)
    metadata: Registering = field(default_factory=Registering)
    history: History = field(default_factory=History)
    entry: int = 0

    def live(self, options: BookieOptions) -> None:
        """One life with every kind of record, which the power ends after the journals' last sync."""
        disk = SimulatedDisk(self.image)
        script = Script(begin(disk, self.metadata, options), self.history, random.Random(self.entry))
        for step in range(3):
            for ledger in (1, 2, 3, 4):
                script.add(
                    ledger, self.entry, bytes(5000 if step < 2 else 5)
                )  # journals roll, and lose their first files
                script.write_lac(ledger, self.entry)
                self.entry += 1
            if step < 2:
                script.commit()
                script.station.checkpoint()
        script.fence(10 + self.entry)
        script.fence(11 + self.entry)
        script.commit()
        self.history = self.history.known_at(len(disk.operations))
        self.image = disk.image

    def started(self, options: BookieOptions) -> Station:
        return begin(SimulatedDisk(self.image.copy()), self.metadata, options)


def lived(*options: BookieOptions) -> Bookie:
    bookie = Bookie()
    for one in options:
        bookie.live(one)
    return bookie


@pytest.mark.parametrize(("old", "new"), [(ONE, TWO), (TWO, ONE)], ids=["added", "left out"])
def test_a_change_that_is_cut_off_anywhere_loses_nothing_and_can_be_made_again(
    old: BookieOptions, new: BookieOptions
) -> None:
    bookie = lived(old)
    disk = bookie.metadata.disk = SimulatedDisk(bookie.image.copy())
    judge(begin(disk, bookie.metadata, new), bookie.history, 0)
    cases = back = 0
    for after, image in states(disk, random.Random(1), 1):
        for metadata in bookie.metadata.at(after):
            again = SimulatedDisk(image.copy())
            judge(begin(again, metadata, new), bookie.history, 0)
            cases += 1
            try:
                judge(begin(SimulatedDisk(image.copy()), metadata, old), bookie.history, 0)
                back += 1
            except CookieError as error:
                assert "must be empty" in error.message
                _emptied(image, SECOND)
                with suppress(CookieError):  # the older directories may still name it
                    judge(begin(SimulatedDisk(image), metadata, old), bookie.history, 0)
    assert cases > 40 and back > 10
    print("changes cut off", cases)


def test_journals_come_and_go_and_come_again() -> None:
    """A directory that was left out is empty afterwards. Marks of its earlier life do not count when it comes back."""
    bookie = Bookie()
    for options in (ONE, TWO, TWO, ONE, TWO, TWO, ONE, ONE):
        bookie.live(options)
        names = SimulatedDisk(bookie.image).names(SECOND)
        assert any(name.startswith("journal-") for name in names) is (options is TWO), names
    judge(bookie.started(ONE), bookie.history, 0)


def test_a_ledgers_records_are_in_one_journal() -> None:
    bookie = lived(TWO)
    paths = [path for path in bookie.image.names if path.startswith(f"{SECOND}/journal-")]
    for path in paths:
        bookie.image.contents[bookie.image.names[path]][4096:] = b""
    with pytest.raises(DamagedError):
        bookie.started(TWO)
    station = bookie.started(replace(TWO, salvage=True))
    left = {ledger: station.stored(ledger, at) for ledger, at in bookie.history.sent if at >= 8}
    sent = {ledger: packet for (ledger, at), packet in bookie.history.sent.items() if at >= 8}
    assert {ledger for ledger in left if left[ledger] == sent[ledger]} == {2, 4}


@pytest.mark.parametrize(
    ("journals", "words"),
    [
        ((SECOND, FIRST), "in that order"),
        ((SECOND,), "in that order"),
        ((FIRST, "/other"), "in that order"),
        (("/other", SECOND), "in that order"),
    ],
    ids=["reordered", "the first left out", "replaced", "the first replaced"],
)
def test_another_list_is_refused_and_nothing_is_touched(journals: tuple[str, ...], words: str) -> None:
    bookie = lived(TWO)
    disk = SimulatedDisk(bookie.image.copy())
    with pytest.raises(CookieError, match=words):
        begin(disk, bookie.metadata, replace(OPTIONS, journal_dirs=",".join(journals)))
    assert not disk.operations


def _emptied(image: Image, directory: str) -> None:
    for path in [path for path in image.names if path.startswith(f"{directory}/")]:
        del image.names[path]


def _copied(image: Image, source: Image, old: str, new: str) -> None:
    _emptied(image, new)
    for path, inode in source.names.items():
        if path.startswith(f"{old}/"):
            number = image.names[new + path[len(old) :]] = 1000 + len(image.contents)
            image.contents[number] = bytearray(source.contents[inode])


@pytest.mark.parametrize("directory", TWO_JOURNALS.journals)
@pytest.mark.parametrize("options", [TWO, ONE], ids=["used", "left out"])
def test_a_journal_that_was_lost_is_refused(directory: str, options: BookieOptions) -> None:
    bookie = lived(TWO)
    _emptied(bookie.image, directory)
    disk = SimulatedDisk(bookie.image)
    with pytest.raises(CookieError, match="mount"):
        begin(disk, bookie.metadata, options)
    assert not disk.operations


def test_journals_whose_disks_were_swapped_are_refused() -> None:
    """Their VERSION files are equal; the headers of their files tell them apart. --salvage does not help."""
    bookie = lived(TWO)
    before = bookie.image.copy()
    _copied(bookie.image, before, FIRST, SECOND)
    _copied(bookie.image, before, SECOND, FIRST)
    for salvage in (False, True):
        with pytest.raises(ForeignJournalError, match="mount the right disk"):
            bookie.started(replace(TWO, salvage=salvage))


def test_an_added_journal_must_be_empty() -> None:
    """One that was left out before may hold records that are older than what the bookie acknowledged since."""
    bookie = lived(TWO)
    old = bookie.image.copy()
    bookie.live(ONE)
    _copied(bookie.image, old, SECOND, SECOND)
    disk = SimulatedDisk(bookie.image.copy())
    with pytest.raises(CookieError, match="must be empty"):
        begin(disk, bookie.metadata, TWO)
    assert not disk.operations
    _emptied(bookie.image, SECOND)
    judge(bookie.started(TWO), bookie.history, 0)


def test_a_restored_zookeeper_that_knows_an_older_list_is_believed_only_with_the_directories() -> None:
    bookie = lived(ONE, TWO)
    (_, older), _ = bookie.metadata.cookies
    image = bookie.image.copy()
    _emptied(image, SECOND)
    for options in (ONE, TWO):
        restored = MemoryMetadata()
        stepped(restored.write_cookie(BOOKIE, older, None))
        with pytest.raises(CookieError, match="mount"):
            begin(SimulatedDisk(image.copy()), restored, options)
        judge(begin(SimulatedDisk(bookie.image.copy()), restored, options), bookie.history, 0)


def test_paths_are_listed_in_the_cookie() -> None:
    bookie = lived(TWO)
    (cookie,) = bookie.metadata.cookies
    assert f'journalDir: "{FIRST},{SECOND}"' in cookie[1] and PATHS.ledgers[1] in cookie[1]
