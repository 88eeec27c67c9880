"""Tests topics in a directory: errors, several files, deletion, damage, and several processes at once."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest

from dlog.errors import DamagedError, InvalidRequestError, UnavailableError, UnsupportedVersionError
from dlog.io.disk import File, RealDisk
from dlog.io.file_topics import FRAME_BYTES_MAX, DirectoryTopics, FileTopics
from dlog.region.topics import (
    OffsetOutOfRangeError,
    Stored,
    TopicExistsError,
    TopicNotFoundError,
    Topics,
    UnsafeTopicError,
)

TOPIC = "app/orders.data.7"


def opened(path: Path, file_bytes_max: int = 4096) -> DirectoryTopics:
    return DirectoryTopics(str(path / "topics"), file_bytes_max=file_bytes_max)


@pytest.fixture
def topics(tmp_path: Path) -> DirectoryTopics:
    made = opened(tmp_path)
    made.create(TOPIC)
    return made


def _values(topics: DirectoryTopics, first: int = 0, bytes_max: int = 1 << 30) -> list[bytes]:
    found: list[Stored] = []
    while some := topics.read(TOPIC, first, bytes_max):
        found += some
        first = found[-1].offset + 1
    return [record.value for record in found]


def _files(path: Path) -> list[Path]:
    return sorted((path / "topics").glob("*/*.records"))


def test_records_are_read_back_over_many_files(topics: DirectoryTopics, tmp_path: Path) -> None:
    for number in range(100):
        assert topics.append(TOPIC, [(b"k%d" % number, b"%d" % number * 30), (b"", b"")]) == 2 * number
    assert len(_files(tmp_path)) > 2
    assert topics.offsets(TOPIC) == (0, 200)
    for reader in (topics, opened(tmp_path)):
        assert _values(reader)[::2] == [b"%d" % number * 30 for number in range(100)]
        assert _values(reader, 151, 50)[1::2] == [b"%d" % number * 30 for number in range(76, 100)]
        assert reader.read(TOPIC, 6, 1) == [Stored(6, b"k3", b"3" * 30)]
        assert reader.read(TOPIC, 200, 10) == []


def test_what_is_asked_for_and_is_not_there_is_told(topics: DirectoryTopics) -> None:
    for ask in (
        lambda: topics.append("other", [(b"", b"")]),
        lambda: topics.read("other", 0, 1),
        lambda: topics.offsets("other"),
        lambda: topics.delete_before("other", 0),
    ):
        with pytest.raises(TopicNotFoundError, match="no such topic, create it first: topic=other"):
            ask()
    assert not topics.exists("other")
    topics.delete("other")
    with pytest.raises(TopicExistsError, match="there is a topic of this name"):
        topics.create(TOPIC)
    topics.append(TOPIC, [(b"", b"one")])
    for beyond in (lambda: topics.read(TOPIC, 2, 1), lambda: topics.delete_before(TOPIC, 2)):
        with pytest.raises(OffsetOutOfRangeError, match=r"beyond the end.*next=1") as caught:
            beyond()
        assert (caught.value.first, caught.value.next) == (0, 1)


def test_the_settings_of_another_topic_are_refused(topics: DirectoryTopics, tmp_path: Path) -> None:
    topics.check(TOPIC)
    with pytest.raises(TopicNotFoundError):
        topics.check("other")
    next((tmp_path / "topics").iterdir()).rename(tmp_path / "topics" / "other")
    with pytest.raises(UnsafeTopicError, match="settings"):
        topics.check("other")


def test_what_cannot_be_appended_is_refused(topics: DirectoryTopics) -> None:
    with pytest.raises(ValueError, match="at least one record"):
        topics.append(TOPIC, [])
    with pytest.raises(InvalidRequestError, match="too large"):
        topics.append(TOPIC, [(b"", bytes(FRAME_BYTES_MAX))])
    assert topics.offsets(TOPIC) == (0, 0)


def test_what_was_deleted_is_gone_and_its_files_too(topics: DirectoryTopics, tmp_path: Path) -> None:
    for number in range(60):
        topics.append(TOPIC, [(b"", b"%d" % number * 100)])
    before = len(_files(tmp_path))
    topics.delete_before(TOPIC, 40)
    assert len(_files(tmp_path)) < before
    for reader in (topics, opened(tmp_path)):
        assert reader.offsets(TOPIC) == (40, 60)
        with pytest.raises(OffsetOutOfRangeError, match="was deleted") as caught:
            reader.read(TOPIC, 39, 1)
        assert caught.value.first == 40
        assert _values(reader, 40) == [b"%d" % number * 100 for number in range(40, 60)]
    topics.delete_before(TOPIC, 10)
    assert topics.offsets(TOPIC) == (40, 60), "what was deleted stays deleted"
    topics.delete_before(TOPIC, 60)
    assert topics.offsets(TOPIC) == (60, 60)
    assert topics.append(TOPIC, [(b"", b"next")]) == 60


def test_a_topic_that_is_created_again_begins_anew_for_all(topics: DirectoryTopics, tmp_path: Path) -> None:
    other = opened(tmp_path)
    topics.append(TOPIC, [(b"", b"old" * 50)])
    assert _values(other) == [b"old" * 50]
    topics.delete(TOPIC)
    assert not other.exists(TOPIC)
    with pytest.raises(TopicNotFoundError):
        other.read(TOPIC, 0, 1)
    topics.create(TOPIC)
    topics.append(TOPIC, [(b"", b"new")])
    assert _values(other) == [b"new"]


def test_an_id_belongs_to_one_topic_of_a_name(topics: DirectoryTopics, tmp_path: Path) -> None:
    assert topics.topic_id("other") is None
    first = topics.topic_id(TOPIC)
    assert first and topics.topic_id(TOPIC) == opened(tmp_path).topic_id(TOPIC) == first
    topics.delete(TOPIC)
    assert topics.topic_id(TOPIC) is None
    topics.create(TOPIC)
    topics.append(TOPIC, [(b"", b"new")])
    topics.delete(TOPIC, first)
    assert _values(topics) == [b"new"], "the next topic has not got its id yet"
    second = topics.topic_id(TOPIC)
    assert second and second != first
    topics.delete(TOPIC, first)
    for refused in (
        lambda: topics.append(TOPIC, [(b"", b"late")], first),
        lambda: topics.delete_before(TOPIC, 1, first),
    ):
        with pytest.raises(TopicNotFoundError, match="was deleted and created again"):
            refused()
    assert _values(topics) == [b"new"]
    topics.delete_before(TOPIC, 1, second)
    assert topics.append(TOPIC, [(b"", b"newer")], second) == 1
    topics.delete(TOPIC, second)
    topics.delete(TOPIC, second)
    assert not topics.exists(TOPIC)


def test_an_id_that_a_deletion_left_behind_is_not_that_of_the_next_topic(
    topics: DirectoryTopics, tmp_path: Path
) -> None:
    first = topics.topic_id(TOPIC)
    next((tmp_path / "topics").glob("*/settings")).unlink()  # the process died there
    topics.create(TOPIC)
    assert topics.topic_id(TOPIC) not in (None, first)


def test_a_topic_whose_id_was_asked_for_is_still_searched_for_unconfirmed_frames(
    topics: DirectoryTopics, tmp_path: Path
) -> None:
    topics.append(TOPIC, [(b"", b"one")])
    (file,) = _files(tmp_path)
    confirmed = file.read_bytes()
    topics.append(TOPIC, [(b"", b"two")])
    written = file.read_bytes()
    file.write_bytes(confirmed[:57] + written[57:])  # the watermark of the second one was lost
    reader = opened(tmp_path)
    assert reader.topic_id(TOPIC)
    assert _values(reader) == [b"one", b"two"]


@pytest.mark.parametrize("at", [0, 5, 24, -1, -20])
def test_damage_below_the_watermark_is_told_with_the_file(topics: DirectoryTopics, tmp_path: Path, at: int) -> None:
    topics.append(TOPIC, [(b"key", b"value" * 10)])
    (file,) = _files(tmp_path)
    data = bytearray(file.read_bytes())
    data[at] ^= 0x10
    file.write_bytes(data)
    with pytest.raises((DamagedError, UnsupportedVersionError), match=file.name):
        opened(tmp_path).read(TOPIC, 0, 1)


def test_a_damaged_watermark_of_the_last_file_is_mended_and_of_another_is_told(
    topics: DirectoryTopics, tmp_path: Path
) -> None:
    for number in range(60):
        topics.append(TOPIC, [(b"", b"%d" % number * 100)])
    files = _files(tmp_path)
    for file in (files[-1], files[0]):
        data = bytearray(file.read_bytes())
        data[30] ^= 1
        file.write_bytes(data)
        if file == files[-1]:
            assert len(_values(topics)) == len(_values(opened(tmp_path))) == 60
    for offset in (0, 1):
        with pytest.raises(DamagedError, match=files[0].name):
            topics.read(TOPIC, offset, 1)


def test_an_empty_file_of_the_first_offset_is_damage(topics: DirectoryTopics, tmp_path: Path) -> None:
    topics.append(TOPIC, [(b"", b"x")])
    (_files(tmp_path)[0].parent / "first").write_bytes(b"")
    with pytest.raises(DamagedError, match="not an offset"):
        topics.offsets(TOPIC)


def test_a_file_without_a_head_is_damaged_and_stays(topics: DirectoryTopics, tmp_path: Path) -> None:
    for number in range(60):
        topics.append(TOPIC, [(b"", b"%d" % number * 100)])
    file = _files(tmp_path)[-1]
    data = file.read_bytes()
    file.write_bytes(bytes(100) + data[100:])
    with pytest.raises(DamagedError, match="the head of the file is damaged"):
        opened(tmp_path).offsets(TOPIC)
    assert file.exists()
    file.write_bytes(data)
    assert opened(tmp_path).offsets(TOPIC) == (0, 60)


class WatchedDisk(RealDisk):
    """Calls back whenever a file has been created and nothing was written to it."""

    def __init__(self, created: Callable[[], None]) -> None:
        super().__init__()
        self._created = created

    def create(self, path: str) -> File:
        file = super().create(path)
        self._created()
        return file


def test_a_reader_at_the_end_never_sees_a_file_that_is_being_created(topics: DirectoryTopics, tmp_path: Path) -> None:
    topics.offsets(TOPIC)  # so that this reader does not ask for the writer's lock
    ends: list[int] = []

    def read_at_the_end() -> None:
        at = len(topics.read(TOPIC, 0, 1 << 20))
        while some := topics.read(TOPIC, at, 1 << 20):
            at += len(some)
        ends.append(at)

    writer = DirectoryTopics(str(tmp_path / "topics"), WatchedDisk(read_at_the_end), file_bytes_max=4096)
    for number in range(60):
        writer.append(TOPIC, [(b"", b"%d" % number * 100)])
    assert len(ends) == len(_files(tmp_path)) - 1 > 1 and ends == sorted(ends) and ends[0] > 0


def test_a_torn_append_is_dropped_and_one_without_a_watermark_is_kept(topics: DirectoryTopics, tmp_path: Path) -> None:
    topics.append(TOPIC, [(b"", b"first")])
    (file,) = _files(tmp_path)
    before = file.read_bytes()
    topics.append(TOPIC, [(b"", b"second" * 10)])
    after = file.read_bytes()
    file.write_bytes(before[:100] + after[100:-3])  # the watermark is as before the second append, which is cut
    assert _values(opened(tmp_path)) == [b"first"]
    assert opened(tmp_path).append(TOPIC, [(b"", b"2")]) == 1
    assert _values(opened(tmp_path)) == [b"first", b"2"], "the rest of the longer frame is not taken for one"
    file.write_bytes(before[:57] + after[57:])
    assert _values(opened(tmp_path)) == [b"first", b"second" * 10]


def test_an_error_of_the_disk_names_the_directory(tmp_path: Path) -> None:
    (tmp_path / "topics").write_text("a file")
    with pytest.raises(UnavailableError, match=f"{tmp_path}/topics/"):
        opened(tmp_path).create(TOPIC)


def _appends(path: Path, name: int, count: int) -> None:
    mine = opened(path)
    for number in range(count):
        mine.append(TOPIC, [(b"%d" % name, b"%d" % number), (b"%d" % name, b"again")])


def test_processes_that_append_at_once_lose_and_mix_nothing(topics: DirectoryTopics, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_appends, args=(tmp_path, name, 100)) for name in range(3)]
    for process in processes:
        process.start()
    seen: list[Stored] = []
    while any(process.is_alive() for process in processes):
        seen += topics.read(TOPIC, len(seen), 500)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    while some := topics.read(TOPIC, len(seen), 1 << 20):
        seen += some
    assert [record.offset for record in seen] == list(range(600))
    assert all(one.key == two.key and two.value == b"again" for one, two in zip(seen[::2], seen[1::2], strict=True))
    for name in range(3):
        assert [r.value for r in seen[::2] if r.key == b"%d" % name] == [b"%d" % number for number in range(100)]


async def test_the_calls_of_the_port_are_those_of_the_directory(tmp_path: Path) -> None:
    topics: Topics = FileTopics(opened(tmp_path))
    await topics.create(TOPIC)
    assert await topics.exists(TOPIC)
    await topics.check(TOPIC)
    async with asyncio.TaskGroup() as group:
        appends = [group.create_task(topics.append(TOPIC, [(b"", b"x")]), name=f"append {n}") for n in range(10)]
    assert sorted(task.result() for task in appends) == list(range(10))
    assert await topics.offsets(TOPIC) == (0, 10)
    assert len(await topics.read(TOPIC, 0, 1000)) == 10
    await topics.delete_before(TOPIC, 4)
    assert await topics.offsets(TOPIC) == (4, 10)
    await topics.delete(TOPIC)
    assert not await topics.exists(TOPIC)
