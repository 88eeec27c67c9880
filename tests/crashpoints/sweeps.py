"""The sweeps: power cut at every operation, a failure of each sync, no space at each write; each counted.

DLOG_CRASH_SEEDS: how many seeds of each script (default 1); DLOG_CRASH_SAMPLES: random subsets of each point with too
many uncertain sectors to try all (default 4).
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Iterator

from dlog.bookie.journal import JournalMarks, padded
from dlog.bookie.manifest import decode
from dlog.bookie.messages import SpaceSeen
from dlog.errors import DLogError, UnavailableError
from tests.crashpoints.history import History, Script, judge
from tests.crashpoints.states import states
from tests.crashpoints.station import TWO_JOURNALS, Station
from tests.crashpoints.stories import Story, mixed
from tests.simulation.disk import Image, Name, SimulatedDisk, Write, all_kept, all_lost, coin

SEEDS = int(os.environ.get("DLOG_CRASH_SEEDS", "1"))
SAMPLES = int(os.environ.get("DLOG_CRASH_SAMPLES", "4"))


def sweep_power(story: Story, seed: int, samples: int = SAMPLES, share: float = 1.0) -> Counter[str]:
    """J1-J4: check every state that a power cut may leave. share: of the states, drawn; enough to look for one
    defect."""
    script = story.live(seed)
    rng = random.Random(seed)
    counts = reached(script)
    for after, image in states(script.station.disk, rng, max(samples, story.samples)):
        if share < 1 and rng.random() > share:
            continue
        judge(Station(SimulatedDisk(image), story.options, paths=story.paths), script.history, after)
        counts["power cuts"] += 1
    return counts


def sweep_second_life(story: Story, seed: int, points: int = 3, samples: int = 1) -> Counter[str]:
    """Check power cuts during a restart, which writes too, and during the work that follows it."""
    first = story.live(seed)
    rng = random.Random(seed)
    disk = first.station.disk
    counts: Counter[str] = Counter()
    for after in rng.sample(range(len(disk.operations) // 3, len(disk.operations) + 1), points):
        image = disk.cut(after, coin(rng, 0.5))
        past = first.history.known_at(after)
        second = Script(
            Station(SimulatedDisk(image), story.options, paths=story.paths), past, rng, may_refuse=story.may_refuse
        )
        mixed(second, 3, 50_000)
        for again, left in states(second.station.disk, rng, samples):
            judge(Station(SimulatedDisk(left), story.options, paths=story.paths), past, again)
            counts["power cuts in a second life"] += 1
    return counts


class FailingDisk(SimulatedDisk):
    """Counts syncs and writes, and fails one of them."""

    def __init__(self, *, sync: int = -1, write: int = -1, writes: int = 1, rng: random.Random | None = None) -> None:
        super().__init__()
        self.syncs = self.written = 0
        self._sync, self._write = sync, range(write, write + writes)
        self._rng = rng or random.Random(0)

    def heal(self) -> None:
        self._write = range(0)

    def _may_fail_sync(self) -> None:
        self.syncs += 1
        if self.syncs - 1 == self._sync:
            self.syncs_failed += 1
            raise OSError(errno.EIO, "sync failed")
        super()._may_fail_sync()

    def write(self, inode: int, offset: int, data: bytes) -> None:
        self.written += 1
        if self.written - 1 in self._write:
            part = data[: self._rng.choice((0, len(data) // 2, len(data), self._rng.randint(0, len(data))))]
            super().write(inode, offset, part)
            raise OSError(errno.ENOSPC, "no space")
        super().write(inode, offset, data)


def sweep_syncs(story: Story, seed: int) -> Counter[str]:
    """J7: each sync in turn fails once and drops the pages; the bookie ends there, and the next start finds the rest.

    Whether the page cache survives (the dropped pages are still shown) or the medium is read, what was acknowledged
    before is there.
    """
    counts: Counter[str] = Counter()
    healthy = FailingDisk()
    story.live(seed, healthy)
    for number in range(healthy.syncs):
        disk = FailingDisk(sync=number)
        past = History()
        error = _tell_until_it_fails(story, seed, disk, past)
        assert isinstance(error, OSError) and error.errno == errno.EIO, f"sync {number} failed and the bookie went on"
        at = len(disk.operations)
        rng = random.Random(number)
        for image in (disk.image, disk.cut(at, all_kept), disk.cut(at, all_lost), disk.cut(at, coin(rng, 0.5))):
            judge(Station(SimulatedDisk(image), story.options, paths=story.paths), past, at)
            counts["failed syncs"] += 1
    return counts


def sweep_room(story: Story, seed: int) -> Counter[str]:
    """J10: each write in turn finds no space and writes a part; the bookie goes on, and works fully afterwards."""
    counts: Counter[str] = Counter()
    healthy = FailingDisk()
    story.live(seed, healthy)
    for number in range(healthy.written):
        rng = random.Random(f"{story.name}/{seed}/{number}")
        disk = FailingDisk(write=number, writes=rng.choice((1, 1, 2, 5)), rng=rng)
        past = History()
        error = _tell_until_it_fails(story, seed, disk, past, may_refuse=True)
        at = len(disk.operations)
        assert error is None or isinstance(error, UnavailableError), f"write {number}: {error!r}"
        for image in (disk.image, disk.cut(at, all_lost), disk.cut(at, coin(rng, 0.5))):
            judge(Station(SimulatedDisk(image), story.options, paths=story.paths), past, at)
            counts["writes without room"] += 1
    return counts


def _tell_until_it_fails(
    story: Story, seed: int, disk: SimulatedDisk, past: History, *, may_refuse: bool = False
) -> OSError | DLogError | None:
    """Run the script until it fails. `past` is the history up to there. Also checks the process itself, if it goes
    on."""
    rng = random.Random(f"{story.name}/{seed}")
    try:
        station = Station(disk, story.options, paths=story.paths)
        script = Script(station, past, rng, may_refuse=may_refuse or story.may_refuse)
        story.tell(script)
    except (OSError, DLogError) as error:
        return error
    if may_refuse:
        if isinstance(disk, FailingDisk):
            disk.heal()
        station.checkpoint()
        station.handle(SpaceSeen(1 << 40))
        script.note()
        assert not station.machine.read_only, "there is room again and it does not come back"
    judge(station, past, len(disk.operations))
    return None


def audit(disk: SimulatedDisk) -> Counter[str]:
    """J6 in one process: marks never move back, and a journal file is deleted only when every durable mark is past
    it."""
    counts: Counter[str] = Counter()
    marks: dict[str, JournalMarks] = {}
    drafts: dict[int, bytes] = {}
    for number, operation in enumerate(disk.operations):
        if isinstance(operation, Write):
            drafts[operation.inode] = operation.data
        if not isinstance(operation, Name):
            continue
        directory, _, name = operation.path.rpartition("/")
        if name == "MANIFEST" and operation.inode is not None:
            found = decode(drafts[operation.inode]).marks
            before = marks.get(directory, found)
            assert all(new >= old for new, old in zip(found, before, strict=False)), "a mark moved back"
            marks[directory] = found
            counts["marks"] += 1
        gone = operation.gone or (operation.path if operation.inode is None else "")
        if "/journal-" in gone:
            journal = TWO_JOURNALS.journals.index(gone.rpartition("/")[0])
            durable = [padded(decode(data).marks, 2)[journal] for data in _manifests(disk.cut(number, all_lost))]
            assert min(durable).file > int(gone[-16:], 16), f"{gone} was given free before the marks were past it"
            counts["journal files given free"] += 1
    return counts


def _manifests(image: Image) -> Iterator[bytes]:
    for directory in ("/ledgers0", "/ledgers1"):
        yield bytes(image.contents[image.names[f"{directory}/MANIFEST"]])


def reached(script: Script) -> Counter[str]:
    """What a script did, so that one that does nothing is noticed."""
    names = [op for op in script.station.disk.operations if isinstance(op, Name)]
    made = [op.path.rpartition("/")[2] for op in names if op.inode is not None]
    return Counter(
        acknowledged=len(script.history.added),
        fenced=len(script.history.fenced),
        refused=script.history.refused,
        rolled_logs=sum(name.startswith("entries-") for name in made),
        runs=sum(name.startswith("index-") for name in made),
        merged=sum("index-" in op.path for op in names if op.inode is None),
        recycled=sum("spare-" in op.path and "journal-" in (op.gone or "") for op in names),
        buried=len(script.history.buried),
        collected=sum("/entries-" in op.path for op in names if op.inode is None),
        dropped=sum("/journal-" in op.path for op in names if op.inode is None),
    )
