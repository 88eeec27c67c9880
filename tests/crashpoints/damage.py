"""J5: damages a disk on which a bookie has written every kind of file, and checks what a start makes of it.

Invariants:
- After any damage a start refuses with an error of dlog's, or every acknowledged entry is answered with its bytes or
  "unknown" (an I/O error), every fence holds and every master key is right.
- What a bookie acknowledges after such a start is there after a checkpoint and another start.

One case is left out, because it cannot be told apart from a group that was never acknowledged: damage of the very last
group of a journal whose bookie died before it was idle for a fifth of a second and could write an empty group behind
it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from dlog.bookie.journal import BLOCK, HEADER_BYTES
from dlog.errors import DLogError
from dlog.wire.bookie import Code
from tests.crashpoints.bookie_start import OPTIONS, begin
from tests.crashpoints.history import History, asked
from tests.crashpoints.station import Station, add, fence, packet
from tests.memory_metadata import MemoryMetadata
from tests.simulation.disk import SECTOR, Image, SimulatedDisk

Hurt = Callable[[Image], None]
LARGER_LOGS = replace(OPTIONS, entry_log_bytes=1 << 20)  # so that a start continues the last entry log
FILLING_SHARE = 0.02  # of the bytes behind the last one that is not zero


@dataclass(slots=True)
class Held:
    """A stopped bookie's disk, its cookie, and what it acknowledged."""

    image: Image
    metadata: MemoryMetadata
    history: History


def held() -> Held:
    """The disk has a merged run and a later one, rolled logs, several journal files behind the mark, and some made in
    advance."""
    disk, metadata, history = SimulatedDisk(), MemoryMetadata(), History()
    station = begin(disk, metadata)
    rng = random.Random(4)

    def put(ledger: int, entry: int, size: int) -> None:
        body = rng.randbytes(size)
        history.sent[ledger, entry] = packet(ledger, entry, body)
        history.added.append((0, ledger, entry))
        station.ask(add(ledger, entry, body, recovery=True))

    for step in range(5):
        for ledger in (1, 2):
            put(ledger, step, 20)
        station.commit()
        if step == 2:
            station.ask(fence(1, -1), fence(9, -1))
            station.commit()
        station.checkpoint()
    for entry in range(5, 10):
        put(1, entry, 1500)
        put(3, entry, 10)
        station.commit()
        station.prepare()
    station.ask(fence(3, -1))
    station.commit()
    station.mark_idle()
    history.fenced = [(0, 1), (0, 9), (0, 3)]
    assert all(getattr(answer, "code", Code.OK) in (Code.OK, Code.NO_ENTRY) for answer in station.take_answers())
    return Held(disk.image, metadata, history)


def kind_of(path: str) -> str:
    """The kind of a file: journal, spare, index, entries, MANIFEST or VERSION."""
    return path.rpartition("/")[2].partition("-")[0]


def flips(image: Image, rng: random.Random, share: float) -> Iterator[tuple[str, Hurt]]:
    """One flipped bit in every byte of the small files (but only a few in padding of blocks), in every byte of journal
    headers, and in a share of the other bytes of journals."""
    for path in sorted(image.names):
        content = bytes(image.contents[image.names[path]])
        kind = kind_of(path)
        used = len(content.rstrip(b"\0"))
        for byte in range(len(content)):
            if kind in ("journal", "spare") and not (kind == "journal" and byte < 44):
                in_use = kind == "journal" and bool(content[byte])
                if rng.random() > share * (0.2 if in_use else 0.004):
                    continue
            elif byte >= used and rng.random() > FILLING_SHARE:
                continue
            bit = byte * 8 + rng.randrange(8)
            yield f"flip {kind}", lambda hurt, path=path, bit=bit: hurt.flip_bit(path, bit)  # type: ignore[misc]


def wounds(image: Image, rng: random.Random, count: int) -> Iterator[tuple[str, Hurt]]:
    """Other damage: each file gone, emptied or cut off; sectors zeroed, stale, or written to the wrong position."""
    paths = sorted(image.names)
    for path in paths:
        kind = kind_of(path)
        yield f"gone {kind}", lambda hurt, path=path: hurt.names.pop(path)  # type: ignore[misc]
        for size in {0, 1, SECTOR, HEADER_BYTES + BLOCK, image.size(path) // 2, image.size(path) - 1}:
            if size < image.size(path):
                yield f"cut off {kind}", lambda hurt, path=path, size=size: _cut_off(hurt, path, size)  # type: ignore[misc]
        for other in paths:
            if other != path and kind_of(other) == kind:
                yield f"swapped {kind}", lambda hurt, a=path, b=other: _swap(hurt, a, b)  # type: ignore[misc]
    for _ in range(count):
        path, source = rng.choice(paths), rng.choice(paths)
        at = rng.randrange(0, image.size(path), SECTOR)
        data = bytes(SECTOR)
        if rng.random() < 0.7:
            begin_at = rng.randrange(0, image.size(source), SECTOR)
            data = bytes(image.contents[image.names[source]][begin_at : begin_at + SECTOR])
        yield f"sector {kind_of(path)}", lambda hurt, path=path, at=at, data=data: _over(hurt, path, at, data)  # type: ignore[misc]


def _cut_off(image: Image, path: str, size: int) -> None:
    del image.contents[image.names[path]][size:]


def _swap(image: Image, one: str, other: str) -> None:
    image.names[one], image.names[other] = image.names[other], image.names[one]


def _over(image: Image, path: str, at: int, data: bytes) -> None:
    content = image.contents[image.names[path]]
    end = min(len(content), at + len(data))
    content[at:end] = data[: end - at]


def judge_damaged(before: Held, hurt: Hurt, what: str, counts: Counter[str]) -> None:
    """Start on the disk as it is now, and count the result."""
    image = before.image.copy()
    hurt(image)
    disk = SimulatedDisk(image)
    counts[what] += 1
    try:
        station = begin(disk, before.metadata, LARGER_LOGS)
    except DLogError:
        counts["refused"] += 1
        return
    history = before.history
    for _, ledger, entry in history.added:
        found = station.stored(ledger, entry)
        counts["unknown"] += found is Code.IO_ERROR
        assert found in (history.sent[ledger, entry], Code.IO_ERROR), f"{what}: ledger={ledger} entry={entry} {found!r}"
    for _, ledger in history.fenced:
        code = asked(station, add(ledger, 10_000))
        assert code in (Code.FENCED, Code.READ_ONLY), f"{what}: a fence was forgotten: ledger={ledger} {code}"
    for ledger in (1, 2, 3):
        code = asked(station, add(ledger, 10_000, key=b"z" * 20))
        assert code in (Code.UNAUTHORIZED, Code.READ_ONLY), f"{what}: a key was forgotten: ledger={ledger} {code}"
    counts["served"] += 1
    if asked(station, add(78, 0, b"new")) is Code.READ_ONLY:
        return
    for ledger in (77, 78):  # one in each directory
        assert has_served(station, ledger), what
    station.checkpoint()
    again = begin(disk, before.metadata, LARGER_LOGS)
    for ledger in (77, 78):
        assert again.stored(ledger, 0) == packet(ledger, 0, b"new"), f"{what}: acknowledged after the damage, and lost"
    counts["written"] += 1


def has_served(station: Station, ledger: int = 77) -> bool:
    """Whether it accepts an add and serves it."""
    station.ask(add(ledger, 0, b"new"))
    station.commit()
    return station.stored(ledger, 0) == packet(ledger, 0, b"new")
