"""Reads at the tail of a ledger: an entry with the LAC that this bookie knows, long polls, and the explicit LAC.

Invariants:
- A LAC is served only if it is durable here: it was in a durable entry or in a durable explicit LAC. It never falls.
- A long poll ends once: when the LAC passes its previous LAC, when the ledger is fenced, at its timeout, or when its
  client sends nothing more. It then reads its entry; if the client is gone, it is dropped and reads nothing.
- At most `polls_max` long polls wait; a further one is refused.

Source: BookKeeper, LongPollReadEntryProcessorV3. Unlike there, an update that does not pass the previous LAC leaves the
poll waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from dlog.bookie.ledgers import Ledger
from dlog.bookie.messages import PollWaits
from dlog.bookie.stored_reads import Outcome, Resume
from dlog.machine import CancelTimer, Peer, Send, SetTimer
from dlog.model.ids import NO_ENTRY, EntryId, LedgerId
from dlog.wire.bookie import Code
from dlog.wire.bookie_v3_messages import LacRead, ReadLac, ReadWithLac, ReadWithLacDone

POLL_MS_MAX = 60_000  # a longer long poll ends then
_ENDED_KEPT = 16  # ended polls that the heap of a ledger may hold beside as many as wait


@dataclass(frozen=True, slots=True)
class PollTimer:
    """Key of the timer of one long poll."""

    number: int


@dataclass(slots=True, eq=False)
class TailRead:
    """A read that no longer waits for the LAC. entry: the one to read; piggybacked: its absence is no error."""

    peer: Peer
    request: ReadWithLac
    entry: int
    waited: bool = False
    piggybacked: bool = False


@dataclass(slots=True, eq=False)
class LacReading:
    """A ReadLac that waits for the last entry."""

    peer: Peer
    request: ReadLac


@dataclass(slots=True, eq=False)
class _Poll:
    """A long poll that waits. previous: the LAC to pass."""

    number: int
    peer: Peer
    request: ReadWithLac
    previous: int


@dataclass(slots=True, eq=False)
class _LedgerPolls:
    """Long polls of one ledger. waiting: by number; heap: (previous, number) of these and of some that have ended."""

    waiting: dict[int, _Poll] = field(default_factory=dict)
    heap: list[tuple[int, int]] = field(default_factory=list)

    def add(self, poll: _Poll) -> None:
        self.waiting[poll.number] = poll
        heappush(self.heap, (poll.previous, poll.number))

    def remove(self, poll: _Poll) -> None:
        del self.waiting[poll.number]
        if len(self.heap) > 2 * len(self.waiting) + _ENDED_KEPT:
            self.heap[:] = [(left.previous, left.number) for left in self.waiting.values()]
            heapify(self.heap)

    def pop_below(self, lac: int) -> _Poll | None:
        """The next poll with a previous LAC below `lac`; the caller removes it. None: there is no more."""
        while self.heap and self.heap[0][0] < lac:
            poll = self.waiting.get(heappop(self.heap)[1])
            if poll is not None:
                return poll
        return None


#: find(ledger, entry, peer, parked, resume, waiter, out, alone): as Bookie._find
Find = Callable[[int, int, Peer, Any, Resume, Any, list[Any], bool], Outcome]


class TailReads:
    """Part of the bookie's state machine. ledgers: those of the bookie, by id; find: reads an entry."""

    def __init__(self, ledgers: dict[int, Ledger], find: Find, polls_max: int) -> None:
        self._ledgers = ledgers
        self._find = find
        self._polls_max = polls_max
        self._numbers = 0
        self._polls: dict[int, _Poll] = {}
        self._of_peer: dict[Peer, dict[int, _Poll]] = {}
        self.polled: dict[int, _LedgerPolls] = {}  # by ledger; those of the ledgers that are polled

    @property
    def polls(self) -> int:
        """How many long polls wait."""
        return len(self._polls)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def read(self, peer: Peer, m: ReadWithLac, out: list[Any]) -> None:
        if m.ledger < 0 or m.entry < -1 or (m.piggyback and (m.entry != -1 or m.previous_lac is None)):
            _refuse(peer, m, Code.BAD_REQUEST, out)
            return
        ledger = self._ledgers.get(m.ledger)
        if m.previous_lac is None or ledger is None:
            self.serve(TailRead(peer, m, m.entry), out)
            return
        previous = max(m.previous_lac, -1)
        if ledger.lac > previous:
            self._serve_passed(peer, m, False, out)
        elif m.timeout_ms <= 0:
            self._serve_unmoved(peer, m, False, out)
        elif len(self._polls) >= self._polls_max:
            _refuse(peer, m, Code.TOO_MANY_REQUESTS, out)
        else:
            self._wait(peer, m, previous, out)

    def read_lac(self, peer: Peer, m: ReadLac, out: list[Any]) -> None:
        if m.ledger < 0:
            out.append(Send(peer, LacRead(m.ledger, Code.BAD_REQUEST)))
        else:
            self.serve_lac(LacReading(peer, m), out)

    def serve(self, read: TailRead, out: list[Any], alone: bool = False) -> None:
        outcome = self._find(read.request.ledger, read.entry, read.peer, read, self._resume, read, out, alone)
        if outcome is not None:
            self._resume(read, outcome, out)

    def serve_lac(self, reading: LacReading, out: list[Any], alone: bool = False) -> None:
        number = reading.request.ledger
        outcome = self._find(number, NO_ENTRY, reading.peer, reading, self._resume_lac, reading, out, alone)
        if outcome is not None:
            self._resume_lac(reading, outcome, out)

    # ---- what ends a long poll ---------------------------------------------------------------------------------------

    def lac_moved(self, ledger: Ledger, out: list[Any]) -> None:
        """The LAC of a polled ledger has risen."""
        polls = self.polled[ledger.ledger]
        while (poll := polls.pop_below(ledger.lac)) is not None:
            self._end(poll, out)
            self._serve_passed(poll.peer, poll.request, True, out)

    def fenced(self, ledger: int, out: list[Any]) -> None:
        polls = self.polled.get(ledger)
        for poll in list(polls.waiting.values()) if polls is not None else ():
            self._end(poll, out)
            self._serve_unmoved(poll.peer, poll.request, True, out)

    def timed_out(self, timer: PollTimer, out: list[Any]) -> None:
        poll = self._polls.get(timer.number)
        if poll is not None:
            self._end(poll, out)
            self._serve_unmoved(poll.peer, poll.request, True, out)

    def lost(self, peer: Peer, out: list[Any]) -> None:
        """The client is gone: drop its polls, nobody takes the answers."""
        for poll in list(self._of_peer.get(peer, {}).values()):
            self._end(poll, out)

    def input_ended(self, peer: Peer, out: list[Any]) -> None:
        """The client sends nothing more: its polls are answered now."""
        for poll in list(self._of_peer.get(peer, {}).values()):
            self._end(poll, out)
            self._serve_unmoved(poll.peer, poll.request, True, out)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _wait(self, peer: Peer, m: ReadWithLac, previous: int, out: list[Any]) -> None:
        self._numbers = number = self._numbers + 1
        poll = _Poll(number, peer, m, previous)
        self._polls[number] = poll
        polls = self.polled.get(m.ledger)
        if polls is None:
            polls = self.polled[m.ledger] = _LedgerPolls()
        polls.add(poll)
        self._of_peer.setdefault(peer, {})[number] = poll
        out.append(SetTimer(PollTimer(number), min(m.timeout_ms, POLL_MS_MAX) / 1000))
        out.append(PollWaits(peer))

    def _end(self, poll: _Poll, out: list[Any]) -> None:
        del self._polls[poll.number]
        polls = self.polled[poll.request.ledger]
        polls.remove(poll)
        if not polls.waiting:
            del self.polled[poll.request.ledger]
        of_peer = self._of_peer[poll.peer]
        del of_peer[poll.number]
        if not of_peer:
            del self._of_peer[poll.peer]
        out.append(CancelTimer(PollTimer(poll.number)))

    def _serve_passed(self, peer: Peer, m: ReadWithLac, waited: bool, out: list[Any]) -> None:
        """The LAC is above the previous one: read the entry behind that, or the one that was named."""
        assert m.previous_lac is not None
        entry = max(m.previous_lac, -1) + 1 if m.piggyback else m.entry
        self.serve(TailRead(peer, m, entry, waited, m.piggyback), out)

    def _serve_unmoved(self, peer: Peer, m: ReadWithLac, waited: bool, out: list[Any]) -> None:
        """The LAC is not above the previous one, and the wait is over."""
        ledger = self._ledgers.get(m.ledger)
        if m.piggyback and ledger is not None:
            out.append(Send(peer, ReadWithLacDone(m.ledger, NO_ENTRY, Code.OK, None, EntryId(ledger.lac), waited)))
        else:
            self.serve(TailRead(peer, m, m.entry, waited), out)

    def _resume(self, read: TailRead, outcome: Outcome, out: list[Any]) -> None:
        m, ledger = read.request, self._ledgers.get(read.request.ledger)
        lac = EntryId(ledger.lac if ledger is not None else -1)
        if outcome is None:
            self.serve(read, out, alone=True)
        elif not isinstance(outcome, Code):
            entry = EntryId(read.entry) if read.piggybacked else m.entry
            out.append(Send(read.peer, ReadWithLacDone(m.ledger, entry, Code.OK, outcome, lac, read.waited)))
        elif read.piggybacked and outcome is Code.NO_ENTRY:
            out.append(Send(read.peer, ReadWithLacDone(m.ledger, NO_ENTRY, Code.OK, None, lac, read.waited)))
        else:
            _refuse(read.peer, m, outcome, out)

    def _resume_lac(self, reading: LacReading, outcome: Outcome, out: list[Any]) -> None:
        number = reading.request.ledger
        ledger = self._ledgers.get(number)
        explicit = ledger.explicit_lac if ledger is not None else b""
        if outcome is None:
            self.serve_lac(reading, out, alone=True)
        elif not isinstance(outcome, Code):
            out.append(Send(reading.peer, LacRead(number, Code.OK, explicit, outcome)))
        elif outcome is Code.NO_ENTRY and explicit:
            out.append(Send(reading.peer, LacRead(number, Code.OK, explicit)))
        else:
            code = Code.NO_ENTRY if outcome is Code.NO_LEDGER else outcome  # as BookKeeper's bookie says it
            out.append(Send(reading.peer, LacRead(number, code)))


def _refuse(peer: Peer, m: ReadWithLac, code: Code, out: list[Any]) -> None:
    out.append(Send(peer, ReadWithLacDone(LedgerId(m.ledger), m.entry, code)))
