"""A torn tail is dropped, damage is reported, and old content of a recycled file is never read."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from fastcrc.crc32 import iscsi as crc32c

from dlog.bookie.events import StorageDamaged
from dlog.bookie.journal import (
    BLOCK,
    FIRST_MARK,
    HEADER_BYTES,
    Damage,
    ForeignJournalError,
    GroupAllocator,
    JournalDamaged,
    JournalFile,
    JournalMark,
    Kind,
    Record,
    encode_group,
    file_header,
    ledger_record,
    parse_ledger_record,
    replay,
    seed_of,
)
from dlog.bookie.options import BookieOptions
from dlog.io.disk import RealDisk, RealFile
from dlog.io.journal_files import JournalFiles
from dlog.wire.bookie import Code
from dlog.wire.framing import Buffer
from tests.crashpoints.station import Station, add, packet
from tests.simulation.disk import SimulatedDisk

OPTIONS = BookieOptions(journal_file_bytes=64 * 1024, read_cache_bytes=0)


def record(payload: bytes) -> Record:
    return Record(Kind.ADD, payload, crc32c(payload))


class Tape:
    """Journal files in memory."""

    def __init__(self, file_bytes: int = 16 * BLOCK) -> None:
        self.files: dict[int, bytearray] = {}
        self._file_bytes = file_bytes
        self.plan = GroupAllocator(JournalMark(1, HEADER_BYTES, 0, 0), file_bytes, self._make(1))

    def _make(self, file_id: int) -> int:
        header = file_header(file_id, 5, 1000 + file_id, self._file_bytes)
        self.files[file_id] = bytearray(header.ljust(self._file_bytes, b"\0"))
        return seed_of(header, file_id, 5, self._file_bytes)

    def write(self, *payloads: bytes) -> JournalMark:
        if self.plan.must_roll(sum(map(len, payloads)), len(payloads)):
            file_id = self.plan.mark.file + 1
            self.plan.rolled(file_id, self._make(file_id))
        before = self.plan.mark
        buffers, offset = self.plan.group([record(payload) for payload in payloads])
        data = b"".join(buffers)
        assert offset == before.offset and len(data) % BLOCK == 0
        self.files[before.file][offset : offset + len(data)] = data
        return self.plan.mark

    def read(self, mark: JournalMark = FIRST_MARK, damages: list[Damage] | None = None) -> list[bytes]:
        def on_damage(damage: Damage) -> None:
            if damages is None:
                raise JournalDamaged(str(damage))
            damages.append(damage)

        files = [
            JournalFile(i, seed_of(bytes(data), i, 5, size), size, lambda n, at, data=data: bytes(data[at : at + n]))  # type: ignore[misc]
            for i, data, size in ((i, data, len(data)) for i, data in sorted(self.files.items()))
            if i >= mark.file
        ]
        return [bytes(r.payload) for group in replay(files, mark, on_damage) for r in group.records]


def test_what_is_written_is_read_over_many_files() -> None:
    tape = Tape()
    rng = random.Random(1)
    written = []
    for _ in range(60):
        group = [rng.randbytes(rng.choice((0, 30, 4096, 9000))) for _ in range(rng.randint(1, 4))]
        tape.write(*group)
        written += group
    assert tape.read() == written
    assert len(tape.files) > 5


def test_replay_begins_at_the_mark() -> None:
    tape = Tape()
    tape.write(b"a")
    mark = tape.write(b"b")
    tape.write(b"c")
    assert tape.read(mark) == [b"c"]


def test_a_group_larger_than_a_file_gets_a_file_that_grows() -> None:
    tape = Tape()
    tape.write(b"a")
    tape.write(bytes(40 * BLOCK))
    tape.write(b"b")
    assert tape.read() == [b"a", bytes(40 * BLOCK), b"b"]


@pytest.mark.parametrize("kept", range(0, 4 * BLOCK, 512))
def test_a_torn_last_group_is_dropped(kept: int) -> None:
    tape = Tape()
    end = tape.write(b"safe")
    tape.write(b"x" * 3000, b"y" * 9000)
    data = tape.files[1]
    data[end.offset + kept :] = bytes(len(data) - end.offset - kept)
    assert tape.read() in ([b"safe"], [b"safe", b"x" * 3000, b"y" * 9000])


def test_any_flipped_bit_before_the_last_group_is_damage() -> None:
    tape = Tape()
    tape.write(b"x" * 50, b"y" * 5000)
    tape.write(b"last")
    size = 32 + 24 + 50 + 24 + 5000
    for byte in range(size):
        at = HEADER_BYTES + byte
        tape.files[1][at] ^= 0x10
        with pytest.raises(JournalDamaged):
            tape.read()
        tape.files[1][at] ^= 0x10
    assert tape.read()[-1] == b"last"


def test_damage_shows_across_files() -> None:
    """The last group of a file is damaged; the next file begins with a later group."""
    tape = Tape()
    while tape.plan.mark.file == 1:
        before = tape.plan.mark
        tape.write(bytes(3000))
    tape.files[1][before.offset - BLOCK + 200] ^= 1
    with pytest.raises(JournalDamaged):
        tape.read()


def test_a_missing_file_is_damage() -> None:
    tape = Tape()
    while tape.plan.mark.file < 4:
        tape.write(bytes(3000))
    for missing in (1, 2, 3):
        kept = tape.files.pop(missing)
        mark = JournalMark(1, HEADER_BYTES, 0, 0)
        with pytest.raises(JournalDamaged):
            tape.read(mark)
        tape.files[missing] = kept
    tape.files = {}
    with pytest.raises(JournalDamaged):
        tape.read(JournalMark(1, HEADER_BYTES, 0, 0))


def test_a_missing_file_is_damage_though_nothing_follows() -> None:
    """Files are made in advance: the one behind the missing one may be empty, and the missing one was the last in
    use."""
    tape = Tape()
    tape.write(b"a")
    tape.files[3] = tape.files[1].copy()
    tape.files[3][:HEADER_BYTES] = file_header(3, 5, 1003, 16 * BLOCK)
    with pytest.raises(JournalDamaged):
        tape.read(JournalMark(1, HEADER_BYTES, 0, 0))


def test_who_goes_on_after_damage_gets_what_is_behind_it() -> None:
    tape = Tape()
    tape.write(b"a")
    middle = tape.plan.mark
    tape.write(b"b")
    tape.write(b"c")
    tape.files[1][middle.offset + 56] ^= 1
    damages: list[Damage] = []
    assert tape.read(damages=damages) == [b"a", b"c"]
    assert damages == [Damage(1, middle.offset, 2)]


def test_a_header_is_of_one_file_of_one_bookie() -> None:
    header = file_header(3, 5, 9, 100)
    assert seed_of(header, 3, 5, 100) != seed_of(file_header(3, 5, 10, 100), 3, 5, 100)
    with pytest.raises(ForeignJournalError, match="mount the right disk"):
        seed_of(header, 3, 6, 100)
    with pytest.raises(JournalDamaged, match="cut off"):
        seed_of(header, 3, 5, 99)
    with pytest.raises(JournalDamaged):
        seed_of(header, 4, 5, 100)
    with pytest.raises(JournalDamaged):
        seed_of(b"", 3, 5, 100)


def test_groups_of_another_life_do_not_verify() -> None:
    """A recycled file still holds whole groups; with the new header's seed they do not verify."""
    tape = Tape()
    for payload in (b"a", b"b", b"c"):
        tape.write(payload)
    tape.files[1][:HEADER_BYTES] = file_header(1, 5, 777, 16 * BLOCK)
    assert tape.read() == []


def test_ledger_records() -> None:
    for fenced in (False, True):
        assert parse_ledger_record(ledger_record(2**40, b"k" * 20, fenced).payload) == (2**40, b"k" * 20, fenced)


def test_padding_brings_a_group_to_whole_blocks() -> None:
    for size in (0, 1, 4000, 4096 - 32 - 24, 4096, 10_000):
        buffers, total = encode_group(7, 1, 0, [record(bytes(size))])
        assert sum(map(len, buffers)) == total and total % BLOCK == 0 and total < size + 2 * BLOCK


# ---- the same through a whole bookie ---------------------------------------------------------------------------------


def journal_path(disk: SimulatedDisk) -> str:
    return "/journal/" + next(n for n in disk.names("/journal") if n.startswith("journal-"))


def incarnation() -> SimulatedDisk:
    disk = SimulatedDisk()
    station = Station(disk, OPTIONS)
    for entry in range(3):
        station.ask(add(1, entry, b"%d" % entry))
        station.commit()
    return disk


def test_a_bookie_refuses_to_start_on_a_damaged_journal_and_says_what_to_do() -> None:
    disk = incarnation()
    disk.image.flip_bit(journal_path(disk), (HEADER_BYTES + BLOCK + 60) * 8)
    with pytest.raises(JournalDamaged, match="--salvage"):
        Station(disk, OPTIONS)


def test_salvage_serves_what_is_left_read_only_and_denies_nothing() -> None:
    disk = incarnation()
    disk.image.flip_bit(journal_path(disk), (HEADER_BYTES + BLOCK + 60) * 8)
    salvaging = Station(disk, BookieOptions(journal_file_bytes=64 * 1024, salvage=True))
    assert any(isinstance(event, StorageDamaged) for event in salvaging.events)
    for station in (salvaging, Station(disk, OPTIONS)):  # and so it stays
        assert [station.stored(1, entry) for entry in (0, 1, 2)] == [
            packet(1, 0, b"0"),
            Code.IO_ERROR,
            packet(1, 2, b"2"),
        ]
        assert station.stored(1, 7) is Code.IO_ERROR and station.stored(2, 0) is Code.IO_ERROR
        assert station.code(add(1, 9)) is Code.READ_ONLY
        assert station.code(add(3, 0, high_priority=True)) is Code.READ_ONLY


def test_a_marked_idle_journal_shows_damage_of_its_last_group() -> None:
    disk = SimulatedDisk()
    station = Station(disk, OPTIONS)
    station.ask(add(1, 0, b"last"))
    station.commit()
    station.mark_idle()
    disk.image.flip_bit(journal_path(disk), (HEADER_BYTES + 100) * 8)
    with pytest.raises(JournalDamaged):
        Station(disk, OPTIONS)


def test_what_was_refused_in_the_middle_of_a_file_is_written_over_before_the_next_file_is_begun() -> None:
    """A file system that copies on write may refuse a group after all its records arrived, except the padding."""
    disk = SimulatedDisk()
    station = Station(disk, OPTIONS)
    station.ask(add(1, 0, b"before"))
    station.commit()
    disk.copy_on_write, disk.bytes_max = True, disk.used + 3 * 512
    station.ask(add(1, 1, b"refused", recovery=True))
    station.commit()
    disk.copy_on_write, disk.bytes_max = False, 1 << 40
    mark = station.opened.journals[0].mark
    station.ask(add(1, 2, bytes(63 * 1024), recovery=True))
    station.commit()
    assert station.opened.journals[0].mark.file == mark.file
    station.ask(add(1, 3, b"behind", recovery=True))
    station.commit()
    assert station.opened.journals[0].mark.file == mark.file + 1
    station.take_answers()
    again = Station(SimulatedDisk(disk.image), OPTIONS)
    assert [again.stored(1, entry) for entry in range(4)] == [
        packet(1, 0, b"before"),
        Code.NO_ENTRY,
        packet(1, 2, bytes(63 * 1024)),
        packet(1, 3, b"behind"),
    ]


def test_names_that_are_not_ours_are_left_alone() -> None:
    disk = SimulatedDisk()
    for name in ("journal-old", "journal-", "spare-mine", "journal-00000000000000zz", "core"):
        disk.create(f"/journal/{name}")
    station = Station(disk, OPTIONS)
    station.ask(add(1, 0))
    station.commit()
    assert Station(disk, OPTIONS).stored(1, 0) == packet(1, 0)
    assert {"journal-old", "journal-", "spare-mine", "core"} <= set(disk.names("/journal"))


def test_a_new_file_is_filled_past_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros that are never read are not copied. A size that is no multiple of a fill's is filled to its end."""
    through: list[int] = []
    written = RealFile.pwritev

    def pwritev(file: RealFile, buffers: Sequence[Buffer], offset: int) -> None:
        through.append(sum(map(len, buffers)))
        written(file, buffers, offset)

    monkeypatch.setattr(RealFile, "pwritev", pwritev)
    size = (5 << 20) // 2 + BLOCK
    files = JournalFiles(RealDisk(), str(tmp_path), owner=1, file_bytes=size)
    files.start(FIRST_MARK)
    files.prepare(2)
    files.close()
    assert through == [HEADER_BYTES] * 3
    made = sorted(tmp_path.iterdir())
    assert len(made) == 3
    assert all(path.read_bytes()[HEADER_BYTES:] == bytes(size - HEADER_BYTES) for path in made)


def test_a_spare_that_had_no_room_for_its_header_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next file may get the same id. It was renamed over that spare later, which was then missing."""
    disk = SimulatedDisk()
    files = JournalFiles(disk, "/journal", owner=1, file_bytes=16 * 1024)
    files.start(FIRST_MARK)
    writes: list[int] = []

    def refuse(inode: int, offset: int, data: bytes) -> None:
        writes.append(offset)
        raise OSError(errno.ENOSPC, "no space")

    files._spare()
    with monkeypatch.context() as full:
        full.setattr(disk, "write", refuse)
        with pytest.raises(OSError, match="no space"):
            files.prepare(1)
    disk.create("/journal/journal-0000000000000002")
    files._ids.add(2)  # made from another spare
    files.release(JournalMark(3, HEADER_BYTES, 0, 0))
    assert writes and disk.names("/journal").count("spare-0000000000000002") == 1
    files._next_id = 4
    files.prepare(3)
    files.close()


def test_files_are_released_while_others_are_made(tmp_path: Path) -> None:
    """The flush thread releases files, the preparer makes them: both iterate over the set of files under their lock
    only, because a set that grows meanwhile would end the bookie."""
    files = JournalFiles(RealDisk(), str(tmp_path), owner=1, file_bytes=16 * 1024)
    files.start(FIRST_MARK)
    unlocked: list[str] = []

    class Watched(set[int]):
        def __iter__(self) -> Iterator[int]:
            if not files._lock.locked():
                unlocked.append("iterated")
            return super().__iter__()

    files._ids = Watched(files._ids)
    mark = files.mark
    while mark.file < 4:
        files.prepare()
        mark = files.write([record(bytes(4000))])
    files.release(mark)
    assert not unlocked
    assert not any((tmp_path / f"journal-{file_id:016x}").exists() for file_id in range(mark.file))
    files.close()
