"""A namespace in which each kind of damage is planted exactly once, each in a stream of its own beside a sound segment.

Ledgers are written packet by packet to real bookies, and lists into a real ZooKeeper; no owner is used, because it
would refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from dlog.io.clock import SYSTEM_CLOCK
from dlog.io.zookeeper import ANY_VERSION
from dlog.io.zookeeper_layout import LedgerPaths, StreamPaths
from dlog.machine import Fact, Received, Versioned
from dlog.model.ids import BookieId, EntryId, LedgerId, SegmentNumber, StreamName, Txid
from dlog.model.ledger import DigestType, Fragment, LedgerKey, LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.model.segment import Segment, StreamKey, StreamMetadata
from dlog.spark.cluster_connection import Cluster
from dlog.wire.bookie import AddEntry, Code, EntryAdded
from dlog.wire.digest import Digest
from dlog.wire.stream_metadata import segment_name
from tests.unit.spark.audit_parts import Laid, Packed, lay, packed, with_one

MARK = b"these bytes are turned on one disk, while its bookie is stopped."
SHAPE = [[[b"a" * n, b"b" * n, b"c"], [b"d" * 300]] for n in range(1, 6)]  # five entries of two sets
VALUES = (b"x", b"y", b"z", b"w")

Spoil = Callable[[int, int, bytes], bytes | None]  # entry, index of the bookie, packet -> what it gets


class Row(NamedTuple):
    """What an audit must report; None: anything."""

    stream: str
    segment: int | None
    entry: int | None
    kind: str
    bookie: str | None


@dataclass
class Corpus:
    """planted: the damage in each stream. unreadable: the stream in which a disk is still to be damaged."""

    cluster: Cluster
    namespace: str
    planted: list[Row] = field(default_factory=list)
    bookies: tuple[BookieId, ...] = ()

    async def plant(self) -> Corpus:
        members = await self.cluster.metadata.members()
        self.bookies = tuple(sorted(members.writable))[:3]
        await self._plant_copies()
        await self._plant_entries()
        await self._plant_lists()
        await self._plant_ledgers()
        await self.stream("sound")
        await self.stream("unreadable", first=with_one(packed(SHAPE), 3, sets=((16, (MARK, b"y", b"z", b"w")),)))
        return self

    # ---- kinds ------------------------------------------------------------------------------------------------------

    async def _plant_copies(self) -> None:
        def spoil(entry: int, bookies: Sequence[int], change: Callable[[bytes], bytes | None]) -> Spoil:
            return lambda e, b, packet: change(packet) if e == entry and b in bookies else packet

        def turned(packet: bytes) -> bytes:
            return packet[:-1] + bytes([packet[-1] ^ 1])

        await self.stream("digest", spoil=spoil(2, (1,), turned))
        await self.stream("missing", spoil=spoil(1, (0,), lambda _: None))
        await self.stream("lost", spoil=spoil(3, (0, 1, 2), lambda _: None))
        other = packed([[[b"another entry"]]])[0].payload()
        await self.stream("replica_differs", spoil=spoil(4, (2,), lambda packet: _repacked(packet, other)))
        self.planted += [
            Row("digest", 1, 2, "digest", self.bookies[1]),
            Row("missing", 1, 1, "missing", self.bookies[0]),
            Row("lost", 1, 3, "lost", None),
            Row("replica_differs", 1, 4, "replica_differs", self.bookies[2]),
        ]

    async def _plant_entries(self) -> None:
        sound = packed(SHAPE)
        jump = [replace(entry, position=entry.position + (5 if n >= 2 else 0)) for n, entry in enumerate(sound)]
        wrong: dict[str, list[Packed]] = {
            "record_set_crc": with_one(sound, 2, crc_shift=1, sets=((13, VALUES),)),
            "note": with_one(sound, 2, noted_shift=1),
            "slot": with_one(sound, 2, slot_shift=1),
            "txid": with_one(sound, 2, sets=((9, VALUES[:3]), (14, VALUES[3:]))),
            "time": with_one(sound, 2, unix_ms=5),
            "position": jump,
        }
        for kind, entries in wrong.items():
            more = 5 if kind == "position" else 0
            laid = lay(entries)
            await self.stream(kind, laid=replace(laid, records=laid.records + more))
            self.planted.append(Row(kind, 1, 2, kind, None))
        laid = lay(sound)
        torn = replace(laid, payloads=(*laid.payloads[:2], b"\x02" + laid.payloads[2][1:], *laid.payloads[3:]))
        await self.stream("undecodable", laid=torn)
        longer = replace(laid, lengths=(*laid.lengths[:2], *(length + 9 for length in laid.lengths[2:])))
        await self.stream("length", laid=longer)
        await self.stream("across", second=packed(SHAPE, txid=15, unix_ms=2000))
        self.planted += [
            Row("undecodable", 1, 2, "undecodable", None),
            Row("length", 1, 2, "length", None),
            Row("across", 2, 0, "txid", None),
        ]

    async def _plant_lists(self) -> None:
        numbers: dict[str, dict[str, Any]] = {
            "record_count": {"record_count": 7},
            "last_entry": {"last_entry": EntryId(3)},
            "last_slot": {"last_slot": 1},
            "last_txid": {"last_txid": Txid(18)},
            "first_txid": {"first_txid": Txid(11)},
            "start_sequence_id": {"start_sequence_id": 3},
            "min_entry": {"min_entry": EntryId(5)},
        }
        for kind, wrong in numbers.items():
            number = 2 if kind == "start_sequence_id" else 1
            await self.stream(kind, wrong={number: wrong})
            self.planted.append(Row(kind, number, None, kind, None))
        unsealed: dict[str, Any] = {"completed": False, "last_entry": EntryId(-1), "last_slot": -1, "record_count": 0}
        await self.stream("unsealed", wrong={1: {**unsealed, "last_txid": Txid(-1)}})
        await self.stream("segment_gap", wrong={2: {"number": SegmentNumber(3)}})
        await self.stream("max_segment", max_segment=1)
        await self.stream("max_txid", max_txid=28)
        metadata = await self.stream("metadata")
        root = StreamPaths(self.namespace).root(StreamName("metadata"))
        path = f"{root}/ledgers/{segment_name(metadata.segments[1])}"
        await self.cluster.metadata.zookeeper.set(path, b"no segment", ANY_VERSION)
        self.planted += [
            Row("unsealed", 1, None, "unsealed", None),
            Row("segment_gap", 3, None, "segment_gap", None),
            Row("max_segment", None, None, "max_segment", None),
            Row("max_txid", None, None, "max_txid", None),
            Row("metadata", None, None, "metadata", None),
        ]

    async def _plant_ledgers(self) -> None:
        gone = await self.stream("ledger_gone")
        await self.cluster.ledgers.delete(LedgerId(int(gone.segments[0].name)))
        await self.stream("ledger_open", closed=False)
        await self.stream("ledger_length", ledger_length=17)
        garbled = await self.stream("ledger_metadata")
        path = LedgerPaths().ledger(LedgerId(int(garbled.segments[0].name)))
        await self.cluster.metadata.zookeeper.set(path, b"no ledger", ANY_VERSION)
        await self.ledger(lay(packed(SHAPE)), "orphan", 4)
        self.planted += [
            Row("ledger_gone", 1, None, "ledger_gone", None),
            Row("ledger_open", 1, None, "ledger_open", None),
            Row("ledger_length", 1, None, "ledger_length", None),
            Row("ledger_metadata", 1, None, "ledger_metadata", None),
            Row("orphan", 4, None, "orphan_ledger", None),
        ]

    # ---- writing ----------------------------------------------------------------------------------------------------

    async def stream(
        self,
        name: str,
        *,
        first: Sequence[Packed] | None = None,
        second: Sequence[Packed] | None = None,
        laid: Laid | None = None,
        spoil: Spoil | None = None,
        wrong: dict[int, dict[str, Any]] | None = None,
        max_segment: int | None = None,
        max_txid: int | None = None,
        closed: bool = True,
        ledger_length: int | None = None,
    ) -> StreamMetadata:
        """A stream of two completed segments. laid, spoil, closed and ledger_length are of the first one; wrong: other
        values in the list, by segment number."""
        one = laid or lay(first or packed(SHAPE))
        two = lay(second or packed(SHAPE, txid=20, unix_ms=2000))
        segments: list[Segment] = []
        for number, part in ((1, one), (2, two)):
            place = await self.ledger(
                part,
                name,
                number,
                spoil=spoil if number == 1 else None,
                closed=closed or number == 2,
                length=ledger_length if number == 1 else None,
            )
            segment = Segment(
                number=SegmentNumber(number),
                name=str(place),
                first_txid=Txid(0),
                completed=True,
                last_txid=Txid(part.last_txid),
                last_entry=EntryId(len(part.payloads) - 1),
                last_slot=part.last_slot,
                record_count=part.records,
                completed_unix_ms=SYSTEM_CLOCK.unix_ms(),
                start_sequence_id=0 if number == 1 else one.records,
            )
            segments.append(replace(segment, **(wrong or {}).get(number, {})))
        value = StreamMetadata(
            name=StreamName(name),
            segments=tuple(segments),
            max_segment=SegmentNumber(segments[-1].number if max_segment is None else max_segment),
            max_txid=Txid(two.last_txid if max_txid is None else max_txid),
        )
        written = await self.cluster.metadata.compare_and_set(StreamKey(value.name), value, None)
        assert isinstance(written, Versioned), written
        return value

    async def ledger(
        self,
        laid: Laid,
        stream: str,
        number: int,
        *,
        spoil: Spoil | None = None,
        closed: bool = True,
        length: int | None = None,
    ) -> LedgerId:
        """Write these entries to each bookie, as `spoil` changes them."""
        ledger = await self.cluster.metadata.new_ledger_id()
        metadata = LedgerMetadata(
            quorum=Quorum(),
            fragments=(Fragment(EntryId(0), self.bookies),),
            ctime_ms=SYSTEM_CLOCK.unix_ms(),
            custom=(("dlog.stream", stream.encode()), ("dlog.segment", b"%d" % number)),
        )
        if closed:
            last = EntryId(len(laid.payloads) - 1)
            metadata = metadata.closed_at(last, laid.lengths[-1] if length is None else length)
        written = await self.cluster.metadata.compare_and_set(LedgerKey(ledger), metadata, None)
        assert isinstance(written, Versioned), written
        digest = Digest(ledger, DigestType.CRC32C)
        adds: dict[tuple[BookieId, int], AddEntry] = {}
        for entry, (payload, so_far) in enumerate(zip(laid.payloads, laid.lengths, strict=True)):
            packet = b"".join(map(bytes, digest.pack(entry, entry - 1, so_far, (payload,))))
            for index, bookie in enumerate(self.bookies):
                given = packet if spoil is None else spoil(entry, index, packet)
                if given is not None:
                    adds[bookie, entry] = AddEntry(ledger, EntryId(entry), digest.master_key, (given,), recovery=True)
        await self._add(adds)
        return ledger

    async def _add(self, adds: dict[tuple[BookieId, int], AddEntry]) -> None:
        waiting, done = set(adds), asyncio.Event()
        asker = self.cluster.ledgers.asker()

        def hear(fact: Fact) -> None:
            assert isinstance(fact, Received) and isinstance(fact.message, EntryAdded), fact
            assert fact.message.code is Code.OK, fact
            waiting.discard((BookieId(str(fact.peer)), fact.message.entry))
            if not waiting:
                done.set()

        asker.post = hear
        for (bookie, _), add in adds.items():
            asker.send(bookie, add)
        async with asyncio.timeout(30):
            await done.wait()
        asker.close()


def _repacked(packet: bytes, payload: bytes) -> bytes:
    """Another payload under the same header."""
    head = Digest(int.from_bytes(packet[:8]), DigestType.CRC32C).verify(packet)
    digest = Digest(int.from_bytes(packet[:8]), DigestType.CRC32C)
    return b"".join(map(bytes, digest.pack(head.entry_id, head.lac, head.length, (payload,))))


def turn_bytes(directory: Path, bookie: str) -> None:
    """Change a byte of MARK on the disk of this bookie, which has stopped."""
    for version in directory.glob("bookie-*/ledgers/VERSION"):
        if f'bookieHost: "{bookie}"' not in version.read_text():
            continue
        for log in sorted(version.parent.glob("entries-*")):
            at = log.read_bytes().find(MARK)
            if at >= 0:
                with log.open("r+b") as file:
                    file.seek(at)
                    file.write(bytes([MARK[0] ^ 1]))
                return
    raise AssertionError(f"the bookie has not flushed the entry: bookie={bookie}")
