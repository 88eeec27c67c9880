"""The requests to a bookie, what it acknowledged after how many disk operations, and what a later start must know.

Only what a client could see is checked. J13 (a disk without a free byte frees the logs of buried ledgers) is checked by
the scripts in stories.py.

Invariants:
- J1-J4: acknowledged entries are served, served entries were sent, bytes are equal; an answered fence holds; a master
  key that was accepted is the key.
- J14: after an explicit LAC was acknowledged, it is read, or one that was sent later.
- J15: the answer to a force acknowledges what was sent before it and not refused.
- J12: a ledger that was to be buried may be gone; once it is buried it stays so, and takes no add.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

from dlog.model.ids import LedgerId
from dlog.wire.bookie import AddEntry, Code, EntryAdded, EntryRead
from dlog.wire.bookie_v3_messages import ForceLedger, LacRead, LacWritten, LedgerForced, ReadLac
from tests.crashpoints.station import Station, add, fence, packet, write_lac

ABSENT = (Code.NO_ENTRY, Code.NO_LEDGER)


@dataclass
class History:
    """`added`, `fenced`, `burying` and `buried` begin with the number of disk operations after which it was so."""

    sent: dict[tuple[int, int], bytes] = field(default_factory=dict)
    added: list[tuple[int, int, int]] = field(default_factory=list)
    fenced: list[tuple[int, int]] = field(default_factory=list)
    fences_sent: set[int] = field(default_factory=set)
    burying: list[tuple[int, int]] = field(default_factory=list)
    buried: list[tuple[int, int]] = field(default_factory=list)
    lacs: list[tuple[int, int, int]] = field(default_factory=list)  # number of an explicit LAC, by ledger from 0 on
    lacs_sent: dict[int, int] = field(default_factory=dict)  # how many, by ledger
    refused: int = 0

    def known_at(self, after: int) -> History:
        """The history up to `after` operations, as the past of a later start."""
        return History(
            dict(self.sent),
            [(0, ledger, entry) for at, ledger, entry in self.added if at <= after],
            [(0, ledger) for at, ledger in self.fenced if at <= after],
            set(self.fences_sent),
            [(0, ledger) for at, ledger in self.burying if at <= after],
            [(0, ledger) for at, ledger in self.buried if at <= after],
            [(0, ledger, number) for at, ledger, number in self.lacs if at <= after],
            dict(self.lacs_sent),
        )


class Script:
    """Sends requests to one bookie process and keeps its history. may_refuse: adds may get READ_ONLY for lack of
    space."""

    def __init__(self, station: Station, history: History, rng: random.Random, *, may_refuse: bool = False) -> None:
        self.station = station
        self.history = history
        self.rng = rng
        self.may_refuse = may_refuse
        self._lacs_asked: dict[int, list[int]] = {}  # numbers by ledger, in the order in which they are answered
        self._refused: set[tuple[int, int]] = set()
        self._forces_asked: dict[int, list[list[tuple[int, int]]]] = {}  # entries that each must make durable

    def add(self, ledger: int, entry: int, body: bytes | None = None) -> None:
        if body is None:
            body = self.rng.randbytes(self.rng.choice((0, 10, 600, 5000)))
        self.history.sent[ledger, entry] = packet(ledger, entry, body)
        self.station.ask(add(ledger, entry, body, recovery=True))
        self.note()

    def fence(self, ledger: int) -> None:
        self.history.fences_sent.add(ledger)
        self.station.ask(fence(ledger, -1))
        self.note()

    def write_lac(self, ledger: int, lac: int) -> None:
        number = self.history.lacs_sent.get(ledger, 0)
        self.history.lacs_sent[ledger] = number + 1
        self._lacs_asked.setdefault(ledger, []).append(number)
        self.station.ask(write_lac(ledger, lac, struct.pack(">I", number)))
        self.note()

    def force(self, ledger: int) -> None:
        before = [sent for sent in self.history.sent if sent[0] == ledger]
        self._forces_asked.setdefault(ledger, []).append(before)
        self.station.ask(ForceLedger(LedgerId(ledger)))
        self.note()

    def bury(self, *ledgers: int) -> None:
        """Bury ledgers that are at rest; their entries may be missing from now on."""
        disk = self.station.disk
        self.history.burying += [(len(disk.operations), ledger) for ledger in ledgers]
        self.station.bury(*ledgers)
        known = self.station.machine.known()
        self.history.buried += [(len(disk.operations), ledger) for ledger in ledgers if ledger not in known]

    def commit(self, *journals: int) -> None:
        self.station.commit(*journals)
        self.note()

    def note(self) -> None:
        now = len(self.station.disk.operations)
        for answer in self.station.take_answers():
            if isinstance(answer, EntryAdded):
                if answer.code is Code.OK:
                    self.history.added.append((now, answer.ledger, answer.entry))
                else:
                    assert self.may_refuse and answer.code is Code.READ_ONLY, answer
                    self.history.refused += 1
                    self._refused.add((answer.ledger, answer.entry))
            elif isinstance(answer, EntryRead) and answer.fence:
                if answer.code in (Code.OK, Code.NO_ENTRY):
                    self.history.fenced.append((now, answer.ledger))
                else:
                    assert self.may_refuse and answer.code is Code.IO_ERROR, answer
            elif isinstance(answer, LacWritten):
                number = self._lacs_asked[answer.ledger].pop(0)
                if answer.code is Code.OK:
                    self.history.lacs.append((now, answer.ledger, number))
                else:
                    assert self.may_refuse and answer.code is Code.READ_ONLY, answer
            elif isinstance(answer, LedgerForced):
                forced = self._forces_asked[answer.ledger].pop(0)
                if answer.code is Code.OK:
                    self.history.added += [(now, *entry) for entry in forced if entry not in self._refused]
                else:
                    assert self.may_refuse and answer.code is Code.IO_ERROR, answer


def judge(station: Station, history: History, after: int, *, lost: tuple[Code, ...] = ()) -> None:
    """Check the answers of a bookie that was started after that point. lost: an answer that is allowed everywhere
    (limbo)."""
    burying = {ledger for at, ledger in history.burying if at <= after}
    buried = {ledger for at, ledger in history.buried if at <= after}
    acked = {(ledger, entry) for at, ledger, entry in history.added if at <= after and ledger not in burying}
    for (ledger, entry), sent in history.sent.items():
        found = station.stored(ledger, entry)
        if (found == sent and ledger not in buried) or found in lost:
            continue
        assert (ledger, entry) not in acked, f"acknowledged and not there: ledger={ledger} entry={entry} {found!r}"
        assert found in ABSENT and not lost, f"never sent: ledger={ledger} entry={entry} found={found!r}"
    for ledger in {ledger for at, ledger, _ in history.lacs if at <= after} - burying:
        known = max(number for at, other, number in history.lacs if at <= after and other == ledger)
        told = station.answer(ReadLac(LedgerId(ledger)))
        assert isinstance(told, LacRead)
        newest = struct.unpack_from(">I", told.lac_packet, 16)[0] if len(told.lac_packet) else -1
        assert newest >= known, f"an explicit LAC was forgotten: ledger={ledger} known={known} found={newest}"
    for ledger in {ledger for at, ledger in history.fenced if at <= after}:
        code = asked(station, add(ledger, 10_000))
        assert code in (Code.FENCED, *lost), f"a fence was forgotten: ledger={ledger} code={code}"
    for ledger in {ledger for ledger, _ in acked}:
        code = asked(station, add(ledger, 10_000, key=b"z" * 20))
        assert code in (Code.UNAUTHORIZED, *lost), f"a key was forgotten: ledger={ledger} code={code}"
    for ledger in buried:
        assert asked(station, add(ledger, 10_000)) in (Code.FENCED, *lost), f"a buried ledger takes adds: {ledger}"
        code = asked(station, add(ledger, 10_000, recovery=True))
        assert code in (Code.NO_LEDGER, *lost), f"a buried ledger takes a recovery's adds: {ledger}"
        assert station.code(fence(ledger, -1)) in (Code.NO_ENTRY, *lost), f"a buried ledger's id is free: {ledger}"
    if lost:
        return
    for ledger in {ledger for ledger, _ in history.sent} - history.fences_sent:
        assert station.stored(ledger, 9_999) in ABSENT


def asked(station: Station, request: AddEntry) -> Code | None:
    """The code of the answer; None: the add was accepted."""
    station.take_answers()
    station.ask(request)
    return next((answer.code for answer in station.take_answers()), None)
