"""Topics in a directory: the power fails behind every operation on the disk, and at each of them in a second life."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from dlog.errors import DLogError, UnavailableError
from dlog.io.disk import Disk
from dlog.io.file_topics import DirectoryTopics
from dlog.region.topics import RecordBytes, Stored
from tests.simulation.disk import Image, Keep, SimulatedDisk, all_kept, all_lost, coin
from tests.simulation.mutants import edited

TOPIC = "app.data.1"
FILE_BYTES_MAX = 700  # a topic of several files
KEEPS = ("kept", "lost", "some")


@contextmanager
def _no_lock(_: str) -> Iterator[None]:
    yield  # one process has the disk


def opened(disk: Disk, made: type[DirectoryTopics] = DirectoryTopics) -> DirectoryTopics:
    return made("/t", disk, random.Random(1), file_bytes_max=FILE_BYTES_MAX, lock=_no_lock)


@dataclass
class TopicRun:
    """The appends and deletions of one topic, and after how many operations of the disk each was confirmed."""

    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    appends: list[list[RecordBytes]] = field(default_factory=list)
    confirmed: list[int] = field(default_factory=list)  # by append: operations of the disk until then
    created: int = 0
    deleted: list[tuple[int, int]] = field(default_factory=list)  # operations until then, offset

    @property
    def records(self) -> list[RecordBytes]:
        return [record for append in self.appends for record in append]


def run_topic(seed: int, made: type[DirectoryTopics] = DirectoryTopics) -> TopicRun:
    rng, run = random.Random(seed), TopicRun()
    topics = opened(run.disk, made)
    topics.create(TOPIC)
    run.created = len(run.disk.operations)
    for number in range(12):
        count, size = rng.choice((1, 1, 3)), rng.choice((0, 40, 600))
        append = [(b"%d" % number, bytes([number]) * size) for _ in range(count)]
        run.appends.append(append)
        topics.append(TOPIC, append)
        run.confirmed.append(len(run.disk.operations))
        if rng.random() < 0.2:
            first, end = topics.offsets(TOPIC)
            at = rng.randint(first, end)
            topics.delete_before(TOPIC, at)
            run.deleted.append((len(run.disk.operations), at))
    return run


def all_of(topics: DirectoryTopics) -> list[Stored]:
    offset, end = topics.offsets(TOPIC)
    found: list[Stored] = []
    while offset < end:
        some = topics.read(TOPIC, offset, 100)
        assert some and some[0].offset == offset
        found += some
        offset = found[-1].offset + 1
    assert topics.read(TOPIC, end, 100) == []
    return found


def check_after_power_cut(
    run: TopicRun, image: Image, operations: int, made: type[DirectoryTopics] = DirectoryTopics
) -> None:
    """Check the topic as a power cut left it."""
    disk = SimulatedDisk(image)
    topics = opened(disk, made)
    if not topics.exists(TOPIC):
        assert operations < run.created, "a topic that was created is there"
        topics.create(TOPIC)
        assert topics.append(TOPIC, [(b"", b"new")]) == 0
        return
    found = all_of(topics)
    first, end = topics.offsets(TOPIC)
    sure = sum(len(a) for a, at in zip(run.appends, run.confirmed, strict=True) if at <= operations)
    bounds = {0}
    for append in run.appends:
        bounds.add(max(bounds) + len(append))
    assert end in bounds, "all of an append or nothing"
    assert end >= sure, f"{sure} records were confirmed, {end} are there"
    assert [(r.key, r.value) for r in found] == run.records[first:end]
    assert [r.offset for r in found] == list(range(first, end))
    deletions = [at for done, at in run.deleted if done <= operations]
    assert first >= max(deletions, default=0)
    assert first in {0, *(at for _, at in run.deleted)}
    assert topics.append(TOPIC, [(b"k", b"after"), (b"k", b"wards")]) == end
    assert [r.value for r in all_of(topics)][-2:] == [b"after", b"wards"]


def _keep(name: str, seed: int) -> Keep:
    return {"kept": all_kept, "lost": all_lost, "some": coin(random.Random(seed), 0.5)}[name]


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("seed", range(4))
def test_every_crash_point_keeps_what_was_confirmed(seed: int, keep: str) -> None:
    run = run_topic(seed)
    count = len(run.disk.operations)
    assert count > 60
    for operations in range(count + 1):
        check_after_power_cut(run, run.disk.cut(operations, _keep(keep, operations)), operations)


def check_deletion(keep: str, made: type[DirectoryTopics] = DirectoryTopics) -> None:
    """The power fails behind each operation of a deletion, and of the creation of another topic of that name."""
    run = run_topic(1, made)
    topics = opened(run.disk, made)
    begun = len(run.disk.operations)
    topics.delete(TOPIC)
    deleted = len(run.disk.operations)
    topics.create(TOPIC)
    created = len(run.disk.operations)
    for operations in range(begun, created + 1):
        left = opened(SimulatedDisk(run.disk.cut(operations, _keep(keep, operations))), made)
        is_there = left.exists(TOPIC)
        if is_there and operations < deleted:
            first, _ = left.offsets(TOPIC)
            assert [(r.key, r.value) for r in all_of(left)] == run.records[first:], "all of it, if any"
        elif is_there:
            assert left.offsets(TOPIC) == (0, 0), "what was deleted is not in the next topic"
        else:
            assert begun < operations < created
            left.create(TOPIC)
        end = left.offsets(TOPIC)[1]
        assert left.append(TOPIC, [(b"", b"new")]) == end
        left.delete(TOPIC)
        assert not left.exists(TOPIC)


@pytest.mark.parametrize("keep", KEEPS)
def test_every_crash_point_of_a_deletion_leaves_all_of_a_topic_or_nothing(keep: str) -> None:
    check_deletion(keep)


@pytest.mark.parametrize("seed", range(2))
def test_the_power_fails_again_while_a_topic_is_opened(seed: int) -> None:
    run = run_topic(seed)
    for operations in range(0, len(run.disk.operations), 3):
        second = SimulatedDisk(run.disk.cut(operations, coin(random.Random(operations), 0.5)))
        topics = opened(second)
        if topics.exists(TOPIC):
            topics.offsets(TOPIC)
        for again in range(len(second.operations) + 1):
            check_after_power_cut(run, second.cut(again, coin(random.Random(again), 0.5)), operations)


def sync_failures(seed: int, made: type[DirectoryTopics] = DirectoryTopics) -> None:
    rng, disk = random.Random(seed), SimulatedDisk()
    topics = opened(disk, made)
    topics.create(TOPIC)
    confirmed: dict[int, bytes] = {}
    for number in range(12):
        disk.syncs_to_fail = int(rng.random() < 0.4)
        try:
            offset = topics.append(TOPIC, [(b"", b"%d" % number * rng.choice((1, 200)))])
        except UnavailableError:
            continue
        finally:
            disk.syncs_to_fail = 0
        confirmed[offset] = topics.read(TOPIC, offset, 1)[0].value
    left = {r.offset: r.value for r in all_of(opened(SimulatedDisk(disk.cut(len(disk.operations), all_lost))))}
    assert confirmed
    assert left.items() >= confirmed.items()


@pytest.mark.parametrize("seed", range(60))
def test_what_is_confirmed_after_a_failed_sync_is_durable(seed: int) -> None:
    """A failed sync marks pages as clean: what is left of the append is written again, or counts as nothing."""
    sync_failures(seed)


DEFECTS: dict[str, tuple[str, str, str]] = {
    "frames are not synced": ("append", "file.datasync()", "pass"),
    "the last watermark of a file is not synced": ("append", "self._finish(path, end)", "pass"),
    "the last watermark of a file is not written again": ("_finish", "_write_watermark(file, end)", "pass"),
    "what is left of a failed append is not written again": ("_recover", "file.pwritev(", "(lambda *_: None)("),
    "what lies behind the watermark is not looked for": ("_recover", "end = frame.after", "pass"),
    "files are deleted before the new first offset is durable": ("delete_before", "if offset > first:", "if False:"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(name: str) -> None:
    method, old, new = DEFECTS[name]
    made = edited(DirectoryTopics, (method, old, new))
    with pytest.raises((AssertionError, DLogError)):
        for seed in range(4):
            run = run_topic(seed, made)
            for operations in range(len(run.disk.operations) + 1):
                check_after_power_cut(run, run.disk.cut(operations, all_lost), operations, made)
        for seed in range(60):
            sync_failures(seed, made)
