"""Gives facts to a machine and shows its effects as lines of text: the harness of the ledger tests."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from typing import Any

from dlog.errors import DLogError
from dlog.ledger.adding import Add, Closed
from dlog.ledger.placement import RandomPlacement
from dlog.ledger.placement_policy import PlacementPolicy
from dlog.ledger.recovery import Recovered
from dlog.ledger.spread_placement import SpreadPlacement
from dlog.machine import (
    Answer,
    Asked,
    CancelTimer,
    CompareAndSet,
    Conflict,
    Effect,
    Emit,
    Fact,
    Machine,
    MetadataSeen,
    Missing,
    OutcomeUnknown,
    PeerLost,
    ReadMetadata,
    Received,
    Send,
    SetTimer,
    TimerFired,
    Versioned,
)
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import DigestType, Fragment, LedgerMetadata, LedgerState
from dlog.model.location import NetworkLocation
from dlog.model.quorum import Quorum
from dlog.wire.bookie import AddEntry, BatchRead, Code, EntryAdded, EntryRead, ReadEntry
from dlog.wire.bookie_v3_messages import LacRead, ReadLac, ReadWithLac, ReadWithLacDone, WriteLac
from dlog.wire.digest import Digest

LEDGER = LedgerId(7)
DIGEST = Digest(LEDGER, DigestType.CRC32C)
DEFAULT = Quorum(ensemble=3, write=3, ack=2)


def ledger(
    *fragments: str, quorum: Quorum = DEFAULT, state: LedgerState = LedgerState.OPEN, last: int = -1, length: int = 0
) -> LedgerMetadata:
    """Metadata from fragments like "0 a b c"."""
    made = []
    for text in fragments or ("0 a b c",):
        first, *bookies = text.split()
        made.append(Fragment(EntryId(int(first)), tuple(BookieId(b) for b in bookies)))
    return LedgerMetadata(quorum=quorum, fragments=tuple(made), state=state, last_entry=EntryId(last), length=length)


def spare(*bookies: str) -> RandomPlacement:
    """A placement whose writable bookies are these; the first of them in order is chosen first."""
    writable = [BookieId(b) for b in bookies]
    return RandomPlacement(lambda exclude: [b for b in writable if b not in exclude], random.Random(1))


def racked(policy: PlacementPolicy, *bookies: str) -> SpreadPlacement:
    """A placement whose writable bookies are these; the rack and region of a bookie are the first letter of its
    name."""

    def candidates(exclude: Collection[BookieId]) -> list[BookieId]:
        return [BookieId(b) for b in bookies if b not in exclude]

    return SpreadPlacement(policy, candidates, lambda b: NetworkLocation(b[0], b[0]), random.Random(1))


def packet(entry: int, payload: bytes = b"", *, lac: int = -1, length: int | None = None) -> bytes:
    """The packet of an entry as a bookie stores it."""
    size = len(payload) if length is None else length
    return b"".join(bytes(p) for p in DIGEST.pack(entry, lac, size, (payload,)))


class Story:
    """Drives one machine; every call returns a line for each effect of the machine (timers left out)."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.effects: list[Effect] = []
        self.tickets = 0
        self.timers: set[Any] = set()

    def hear(self, *facts: Fact) -> list[str]:
        lines: list[str] = []
        for fact in facts:
            effects = self.machine.handle(fact)
            self.effects += effects
            for effect in effects:
                if isinstance(effect, SetTimer):
                    self.timers.add(effect.key)
                elif isinstance(effect, CancelTimer):
                    self.timers.discard(effect.key)
                else:
                    lines.append(line(effect))
        return lines

    def ask(self, request: Any) -> list[str]:
        self.tickets += 1
        return self.hear(Asked(self.tickets, request))

    def add(self, payload: bytes = b"x") -> list[str]:
        return self.ask(Add((payload,)))

    def stored(self, entry: int, *bookies: str) -> list[str]:
        return self.hear(*(Received(b, EntryAdded(LEDGER, EntryId(entry), Code.OK)) for b in bookies))

    def refused(self, entry: int, bookie: str, code: Code) -> list[str]:
        return self.hear(Received(bookie, EntryAdded(LEDGER, EntryId(entry), code)))

    def has(self, bookie: str, entry: int, data: bytes, *, fence: bool = True) -> list[str]:
        return self.hear(Received(bookie, EntryRead(LEDGER, EntryId(entry), Code.OK, data, fence)))

    def has_not(self, entry: int, *bookies: str, code: Code = Code.NO_ENTRY, fence: bool = True) -> list[str]:
        return self.hear(*(Received(b, EntryRead(LEDGER, EntryId(entry), code, b"", fence)) for b in bookies))

    def polled(self, bookie: str, data: bytes = b"", *, code: Code = Code.OK) -> list[str]:
        """The end of a long poll of this bookie."""
        return self.hear(Received(bookie, ReadWithLacDone(LEDGER, EntryId(-1), code, data, EntryId(999))))

    def tells(self, bookie: str, explicit: int | None, last: bytes = b"", *, code: Code = Code.OK) -> list[str]:
        """A bookie answers a read of its LAC."""
        lac = b"" if explicit is None else DIGEST.pack_lac(explicit)
        return self.hear(Received(bookie, LacRead(LEDGER, code, lac, last)))

    def lost(self, *bookies: str) -> list[str]:
        return self.hear(*(PeerLost(b, "gone") for b in bookies))

    def fires(self, key: Any) -> list[str]:
        assert key in self.timers, f"no such timer, there are {self.timers}"
        self.timers.discard(key)
        return self.hear(TimerFired(key, 0.0))

    @property
    def question(self) -> ReadMetadata | CompareAndSet:
        """The latest request to metadata."""
        return next(e for e in reversed(self.effects) if isinstance(e, ReadMetadata | CompareAndSet))

    def written(self, version: int) -> list[str]:
        """Answer that the compare-and-set succeeded."""
        asked = self.question
        assert isinstance(asked, CompareAndSet)
        return self.hear(MetadataSeen(asked.token, Versioned(asked.value, version)))

    def reads(self, value: LedgerMetadata, version: int) -> list[str]:
        assert isinstance(self.question, ReadMetadata)
        return self.hear(MetadataSeen(self.question.token, Versioned(value, version)))

    def conflict(self) -> list[str]:
        return self.hear(MetadataSeen(self.question.token, Conflict()))

    def missing(self) -> list[str]:
        return self.hear(MetadataSeen(self.question.token, Missing()))

    def unknown(self) -> list[str]:
        return self.hear(MetadataSeen(self.question.token, OutcomeUnknown("connection lost")))


def line(effect: Effect) -> str:
    """An effect as a line of text."""
    match effect:
        case Send(peer, AddEntry() as add):
            found = DIGEST.verify(b"".join(bytes(p) for p in add.parts))
            again = " recovery" if add.recovery else ""
            return f"store {add.entry} on {peer} lac={found.lac} length={found.length}{again}"
        case Send(peer, ReadEntry() as read):
            return f"read {read.entry} of {peer}{' fencing' if read.fence else ''}"
        case Send(peer, ReadWithLac(previous_lac=previous, timeout_ms=wait_ms)):
            return f"wait at {peer} for a LAC above {previous} wait_ms={wait_ms}"
        case Send(peer, WriteLac(_, lac)):
            return f"tell {peer} lac={lac}"
        case Send(peer, ReadLac()):
            return f"read lac of {peer}"
        case Send(peer, BatchRead() as read):
            return f"read {read.start}+{read.max_count} of {peer} max={read.max_bytes}"
        case CompareAndSet(_, _, value, version):
            return f"write v{version} {metadata_line(value)}"
        case ReadMetadata():
            return "read metadata"
        case Answer(ticket, result):
            return f"answer {ticket} {result_line(result)}"
        case Emit(event):
            return f"tell {event.name}"
    return repr(effect)


def metadata_line(value: LedgerMetadata) -> str:
    ensembles = ", ".join(f"{f.first_entry} {' '.join(f.ensemble)}" for f in value.fragments)
    end = f" at {value.last_entry} length={value.length}" if value.is_closed else ""
    return f"{value.state.name.lower()}{end}: {ensembles}"


def result_line(result: Any) -> str:
    match result:
        case Closed(last, length) | Recovered(last, length):
            return f"closed at {last} length={length}"
        case DLogError():
            return f"{type(result).__name__}{' outcome unknown' if result.outcome_unknown else ''}"
    return str(result)


def only(lines: Iterable[str], word: str) -> list[str]:
    """The lines that begin with a word."""
    return [text for text in lines if text.startswith(word)]
