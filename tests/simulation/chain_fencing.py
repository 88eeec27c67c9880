"""Explores every order of events of a small chain of chunks: is what a writer confirms kept by all, and for ever?

Two writers begin the same chain, of which one is refused. Two recoveries fence it, and one process looks for the tail.
Each request to create a chunk may be carried out never, once, or a second time, at any later moment; its answer may be
lost, or be the answer to its second copy. The machines are those of dlog/objects/chain.py; a planted defect replaces a
part.

    python -m tests.simulation.chain_fencing [--writers ab] [--others rst] [--entries N] [--restarts N]

prints the number of states, and a violation if there is one.

Invariants, checked in each state over the chunks that the storage holds:
- C1: each confirmed entry counts, with the bytes of the writer that confirmed it.
- C2: what counted before counts still.
- C3: what a recovery or a sealing writer found as the end is the end, and what a tail search found counts.
- C4: nobody takes the chain for damaged.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from dlog.errors import DamagedError
from dlog.objects.chain import (
    Begun,
    ChainTail,
    ChainWriter,
    ChunkPut,
    Confirmed,
    CreateChunk,
    EntryAppended,
    GivenUp,
    HeadsRead,
    ListBehind,
    Listed,
    NoChain,
    Put,
    ReadHeads,
    SealAsked,
    Sealed,
    TailFound,
)
from dlog.wire.chunk import ChunkHead, ChunkKind, rows_size

T = TypeVar("T")

IN_FLIGHT_MAX = 2


class Request(NamedTuple):
    """A request to create a chunk. attempt: of its sender. copies: how often it may still be carried out."""

    sender: str
    attempt: int
    chunk: CreateChunk
    copies: int


class Answer(NamedTuple):
    """is_made: as the storage says; False: there is a chunk of this number, perhaps by an earlier copy."""

    sender: str
    attempt: int
    number: int
    is_made: bool


@dataclass(frozen=True)
class Writer:
    """left: entries to append. sealed: the end that it sealed at."""

    machine: ChainWriter
    left: int
    waiting: tuple[int, ...] = ()  # numbers of chunks without an answer
    confirmed: int = 0
    sealed: int | None = None


@dataclass(frozen=True)
class Tail:
    """A recovery, or a search for the tail. phase: ready, waiting, over. attempt: a recovery may begin again."""

    machine: ChainTail
    phase: str = "ready"
    attempt: int = 0
    found: TailFound | None = None


class Chunk(NamedTuple):
    nonce: str
    kind: ChunkKind
    contiguous: int
    first: int
    end: int


@dataclass(frozen=True)
class State:
    chunks: tuple[tuple[int, Chunk], ...] = ()
    requests: tuple[Request, ...] = ()
    answers: frozenset[Answer] = frozenset()
    writers: tuple[tuple[str, Writer], ...] = ()
    tails: tuple[tuple[str, Tail], ...] = ()


@dataclass(frozen=True)
class Parts:
    """What a planted defect replaces. resolves: a chunk that is there is read to see whose it is."""

    writer: type[ChainWriter] = ChainWriter
    tail: type[ChainTail] = ChainTail
    resolves: bool = True


SHIPPED = Parts()


def counted(chunks: Sequence[tuple[int, Chunk]]) -> list[Chunk]:
    """The chunks that count, with the one that ends the segment."""
    found: list[Chunk] = []
    for number, chunk in sorted(chunks):
        if number != len(found):
            break
        found.append(chunk)
        if chunk.kind.is_end:
            break
    return found


def entries_of(counting: Sequence[Chunk]) -> list[str]:
    """Which writer wrote each entry."""
    return [chunk.nonce for chunk in counting for _ in range(chunk.first, chunk.end)]


def _with(pairs: tuple[tuple[str, T], ...], name: str, changed: T) -> tuple[tuple[str, T], ...]:
    return tuple((one, changed if one == name else kept) for one, kept in pairs)


class Explorer:
    """Visits all states that are reachable. others: r and s are recoveries, t looks for the tail. restarts: of each
    recovery. copies: of each request, how often it may be carried out."""

    def __init__(
        self,
        parts: Parts = SHIPPED,
        *,
        writers: Sequence[str] = "a",
        others: Sequence[str] = "r",
        entries: int = 2,
        restarts: int = 1,
        copies: int = 2,
    ) -> None:
        self._parts = parts
        self._writers = writers
        self._others = others
        self._entries = entries
        self._restarts = restarts
        self._copies = copies
        self.visited = 0

    def run(self) -> str:
        """The first violation found, with the chunks, or ""."""
        tail = self._parts.tail
        start = State(tails=tuple((n, Tail(tail(n != "t", IN_FLIGHT_MAX))) for n in self._others))
        for name in self._writers:
            machine, effects = self._parts.writer(1, IN_FLIGHT_MAX).begin()
            writer = Writer(machine, self._entries)
            start = self._perform(replace(start, writers=(*start.writers, (name, writer))), name, writer, effects)
        seen = {start}
        waiting = deque([start])
        while waiting:
            state = waiting.popleft()
            self.visited += 1
            before = counted(state.chunks)
            try:
                steps = [self._without_idle_requests(following) for following in self._steps(state)]
            except DamagedError as error:
                return f"C4: {error}: chunks {state.chunks}"
            for following in steps:
                if following in seen:
                    continue
                seen.add(following)
                if violation := self._violation(before, following):
                    return f"{violation}: chunks {following.chunks}"
                waiting.append(following)
        return ""

    def _violation(self, before: list[Chunk], state: State) -> str:
        counting = counted(state.chunks)
        if counting[: len(before)] != before:
            return f"C2: {before} counted before"
        entries = entries_of(counting)
        for name, writer in state.writers:
            if entries[: writer.confirmed] != [name] * writer.confirmed:
                return f"C1: {name} confirmed {writer.confirmed} entries, {entries} count"
            if writer.sealed is not None and not (counting[-1].kind.is_end and len(entries) == writer.sealed):
                return f"C3: {name} sealed at {writer.sealed}, {len(entries)} count"
        for name, tail in state.tails:
            if tail.found is None:
                continue
            end, is_ended = tail.found.end, tail.found.is_ended
            if end > len(entries) or (is_ended and not (end == len(entries) and counting[-1].kind.is_end)):
                return f"C3: {name} found {tail.found}, {len(entries)} count"
        return ""

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _steps(self, state: State) -> Iterator[State]:
        """A request is carried out, an answer arrives, a process gives up waiting for one, or a search begins."""
        for request in state.requests:
            yield self._land(state, request)
        for answer in state.answers:
            yield self._answer(replace(state, answers=state.answers - {answer}), answer)
        for name, writer in state.writers:
            for number in writer.waiting:
                yield self._tell_writer(state, name, writer, ChunkPut(number, Put.UNKNOWN))
        for name, tail in state.tails:
            if tail.phase == "ready":
                machine, effects = tail.machine.begin()
                yield self._drive_tail(state, name, replace(tail, machine=machine, phase="waiting"), effects)
            elif tail.phase == "waiting":
                yield self._tell_tail(state, name, tail, ChunkPut(tail.machine.asked, Put.UNKNOWN))

    def _without_idle_requests(self, state: State) -> State:
        """Drop requests that change nothing any more: their chunk exists, and nobody waits for the answer."""
        there = dict(state.chunks)
        left = [one for one in state.requests if one.chunk.number not in there or self._waits(state, one)]
        return replace(state, requests=tuple(left))

    def _land(self, state: State, request: Request) -> State:
        left = [one for one in state.requests if one != request]
        if request.copies > 1:
            left.append(request._replace(copies=request.copies - 1))
        chunks, number = dict(state.chunks), request.chunk.number
        is_made = number not in chunks
        if is_made:
            nonce = self._nonce(request.sender, request.attempt)
            chunk = request.chunk
            chunks[number] = Chunk(nonce, chunk.kind, chunk.contiguous, chunk.first, chunk.end)
        answers = state.answers
        if self._waits(state, request):
            answers |= {Answer(request.sender, request.attempt, number, is_made)}
        return replace(state, chunks=tuple(sorted(chunks.items())), requests=_ordered(left), answers=answers)

    def _nonce(self, sender: str, attempt: int) -> str:
        return f"{sender}{attempt}" if sender in self._others else sender

    def _waits(self, state: State, request: Request) -> bool:
        writer = dict(state.writers).get(request.sender)
        if writer is not None:
            return request.chunk.number in writer.waiting
        tail = dict(state.tails)[request.sender]
        asked = ("waiting", request.attempt, request.chunk.number)
        return (tail.phase, tail.attempt, tail.machine.asked) == asked

    def _answer(self, state: State, answer: Answer) -> State:
        chunk = dict(state.chunks)[answer.number]
        is_ours = chunk.nonce == self._nonce(answer.sender, answer.attempt)
        result = Put.MADE if (is_ours if self._parts.resolves else True) else Put.EXISTS
        answers = frozenset(a for a in state.answers if (a.sender, a.number) != (answer.sender, answer.number))
        state = replace(state, answers=answers)
        writer = dict(state.writers).get(answer.sender)
        if writer is not None:
            return self._tell_writer(state, answer.sender, writer, ChunkPut(answer.number, result))
        tail = dict(state.tails)[answer.sender]
        return self._tell_tail(state, answer.sender, tail, ChunkPut(answer.number, result))

    # ---- writers ----------------------------------------------------------------------------------------------------

    def _tell_writer(self, state: State, name: str, writer: Writer, fact: ChunkPut) -> State:
        waiting = tuple(number for number in writer.waiting if number != fact.number)
        machine, effects = writer.machine.after(fact)
        return self._perform(state, name, replace(writer, machine=machine, waiting=waiting), effects)

    def _perform(self, state: State, name: str, writer: Writer, effects: Sequence[object]) -> State:
        requests, answers, queue = list(state.requests), state.answers, deque(effects)
        while queue:
            match queue.popleft():
                case CreateChunk() as chunk:
                    requests.append(Request(name, 0, chunk, self._copies))
                    writer = replace(writer, waiting=(*writer.waiting, chunk.number))
                case Begun():
                    machine = writer.machine
                    for fact in [*[EntryAppended(1)] * writer.left, SealAsked()]:
                        machine, more = machine.after(fact)  # type: ignore[arg-type]  # of either kind
                        queue.extend(more)
                    writer = replace(writer, machine=machine, left=0)
                case Confirmed(end):
                    writer = replace(writer, confirmed=end)
                case Sealed(end):
                    writer = replace(writer, sealed=end)
                case _:  # fenced, or given up
                    writer = replace(writer, waiting=())
                    answers = frozenset(answer for answer in answers if answer.sender != name)
        writers = _with(state.writers, name, writer)
        return replace(state, requests=_ordered(requests), answers=answers, writers=writers)

    # ---- recoveries -------------------------------------------------------------------------------------------------

    def _tell_tail(self, state: State, name: str, tail: Tail, fact: ChunkPut) -> State:
        machine, effects = tail.machine.after(fact)
        return self._drive_tail(state, name, replace(tail, machine=machine), effects)

    def _drive_tail(self, state: State, name: str, tail: Tail, effects: Sequence[object]) -> State:
        """Answer listings and reads at once: chunks do not change, and a listing that comes later adds no state."""
        requests, answers, queue, chunks = list(state.requests), state.answers, deque(effects), dict(state.chunks)
        while queue:
            fact: Listed | HeadsRead
            match queue.popleft():
                case ListBehind(behind):
                    fact = Listed(behind, tuple(sorted(number for number in chunks if number > behind)))
                case ReadHeads(numbers):
                    fact = HeadsRead(tuple(_head(number, chunks[number]) for number in numbers))
                case CreateChunk() as chunk:
                    requests.append(Request(name, tail.attempt, chunk, self._copies))
                    continue
                case TailFound() as found:
                    tail = replace(tail, phase="over", found=found)
                    continue
                case GivenUp() if tail.attempt < self._restarts:
                    machine = self._parts.tail(tail.machine.is_recovery, IN_FLIGHT_MAX)
                    tail = Tail(machine, attempt=tail.attempt + 1)
                    answers = frozenset(answer for answer in answers if answer.sender != name)
                    continue
                case GivenUp() | NoChain():
                    tail = replace(tail, phase="over")
                    answers = frozenset(answer for answer in answers if answer.sender != name)
                    continue
                case other:
                    raise AssertionError(other)
            machine, more = tail.machine.after(fact)
            tail = replace(tail, machine=machine)
            queue.extend(more)
        tails = _with(state.tails, name, tail)
        return replace(state, requests=_ordered(requests), answers=answers, tails=tails)


def _ordered(requests: Sequence[Request]) -> tuple[Request, ...]:
    return tuple(sorted(requests, key=lambda one: (one.sender, one.attempt, one.chunk.number, one.copies)))


def _head(number: int, chunk: Chunk) -> ChunkHead:
    size = rows_size(chunk.end - chunk.first) if chunk.kind is ChunkKind.DATA else 0
    which = (chunk.contiguous, chunk.first, chunk.end)
    return ChunkHead(chunk.kind, chunk.nonce.encode(), b"", number, 1, *which, 0, size, 0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.chain_fencing", description=__doc__)
    parser.add_argument("--writers", default="a", help="a or ab")
    parser.add_argument("--others", default="rt", help="recoveries r and s, and t, a search for the tail")
    parser.add_argument("--entries", type=int, default=2, help="of each writer")
    parser.add_argument("--restarts", type=int, default=1, help="of each recovery")
    parser.add_argument("--copies", type=int, default=2, help="how often a request may be carried out")
    arguments = parser.parse_args(argv)
    explorer = Explorer(**vars(arguments))
    violation = explorer.run()
    print(f"{explorer.visited} states; {violation or 'no violation'}")
    return 1 if violation else 0


if __name__ == "__main__":
    raise SystemExit(main())
