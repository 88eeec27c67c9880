"""The one order of a stream, put together from everything acknowledged and delivered.

It is one merge of sorted columns, so its cost grows with the runs, not with the records.

Invariants:
- A position enters the order once, with the first record that a source named for it; another record for it is reported.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from tests.history.notes import NOWHERE, Appends, Outcome, Reader, Run, dlsn_of
from tests.history.verdict import Verdict


class Master:
    """Runs by position, without overlap."""

    def __init__(self) -> None:
        self.position = array("q")
        self.count = array("q")
        self.producer = array("q")
        self.first = array("q")
        self.txid = array("q")

    def __len__(self) -> int:
        return len(self.position)

    def run(self, index: int) -> Run:
        return Run(self.position[index], self.count[index], self.producer[index], self.first[index], self.txid[index])

    def at(self, position: int) -> int:
        """Index of the first run that ends after this position."""
        index = bisect_right(self.position, position) - 1
        return index if index >= 0 and self.position[index] + self.count[index] > position else index + 1

    def append(self, run: Run) -> None:
        self.position.append(run.position)
        self.count.append(run.records)
        self.producer.append(run.producer)
        self.first.append(run.first)
        self.txid.append(run.txid)


def master_of(appends: Appends, orders: Sequence[tuple[Reader, Sequence[int] | range]], verdict: Verdict) -> Master:
    """Merge all sources. orders: the readers, each with the indices of its runs that go forward. Reports `diverged` and
    `txid`."""
    master = Master()
    sources = [_acknowledged(appends), *(_delivered(reader, rows) for reader, rows in orders)]
    end = NOWHERE
    for run in heapq.merge(*sources):
        if run.position >= end:
            master.append(run)
            end = run.position + run.records
            continue
        _compare(master, run, verdict)
        if run.position + run.records > end:
            over = end - run.position
            master.append(Run(end, run.records - over, run.producer, run.first + over, run.txid))
            end = run.position + run.records
    return master


def _acknowledged(appends: Appends) -> Iterator[Run]:
    """Acknowledged batches by position; neighbours are joined."""
    positions, firsts, counts, producers, txids = (
        appends.position,
        appends.first,
        appends.count,
        appends.producer,
        appends.txid,
    )
    told = [op for op in range(len(appends)) if positions[op] > NOWHERE and appends.outcome[op] == Outcome.OK]
    told.sort(key=positions.__getitem__)
    position, count, producer, first, txid = NOWHERE, 0, 0, 0, 0
    for op in told:
        if (
            positions[op] == position + count
            and producers[op] == producer
            and firsts[op] == first + count
            and txids[op] == txid
            and count
        ):
            count += counts[op]
            continue
        if count:
            yield Run(position, count, producer, first, txid)
        position, count, producer, first, txid = positions[op], counts[op], producers[op], firsts[op], txids[op]
    if count:
        yield Run(position, count, producer, first, txid)


def _delivered(reader: Reader, rows: Sequence[int] | range) -> Iterator[Run]:
    if len(rows) == len(reader.position):
        return reader.runs()
    return (Run(reader.position[i], reader.count[i], reader.producer[i], reader.first[i], reader.txid[i]) for i in rows)


def _compare(master: Master, run: Run, verdict: Verdict) -> None:
    """Compare a run with positions that are in the order already; other records are reported."""
    index = len(master) - 1
    begin, end = run.position, run.position + run.records
    while index >= 0:
        position = master.position[index]
        stop = position + master.count[index]
        if stop <= begin:
            return
        low, high = max(begin, position), min(end, stop)
        if low < high:
            same = (
                master.producer[index] == run.producer
                and master.first[index] + low - position == run.first + low - run.position
            )
            if not same:
                known = master.run(index)
                verdict.breach(
                    "diverged",
                    f"at {dlsn_of(low)} lie {_said(known, low)} and {_said(run, low)}",
                    high - low,
                )
            elif run.txid >= 0 and master.txid[index] != run.txid:
                if master.txid[index] >= 0:
                    verdict.breach("txid", f"{dlsn_of(low)} has txid {run.txid} and {master.txid[index]}")
                else:
                    master.txid[index] = run.txid
        if position <= begin:
            return
        index -= 1


def _said(run: Run, position: int) -> str:
    return f"{run.producer}#{run.first + position - run.position}"


class Join:
    """Which operation each record of the order belongs to. found: where an operation begins; got: how many of its
    records are in the order. doubled: (producer, first, count) of records that are there more than once, or not at
    their acknowledged position."""

    def __init__(self, master: Master, appends: Appends, is_given: Callable[[int], bool], verdict: Verdict) -> None:
        self.found = array("q", [NOWHERE]) * len(appends)
        self.got = array("q", [0]) * len(appends)
        self.doubled: list[tuple[int, int, int]] = []
        self._master = master
        self._appends = appends
        self._is_given = is_given
        self._verdict = verdict
        of_producer: dict[int, list[int]] = {}
        for index, producer in enumerate(master.producer):
            of_producer.setdefault(producer, []).append(index)
        for producer, runs in of_producer.items():
            runs.sort(key=master.first.__getitem__)
            self._repeats(producer, runs)
            self._join(producer, runs)

    def is_doubled(self, producer: int, sequence: int) -> bool:
        return any(p == producer and first <= sequence < first + count for p, first, count in self.doubled)

    def _repeats(self, producer: int, runs: list[int]) -> None:
        """Report records at two positions: `misplaced` if one of them was only acknowledged, else `duplicated`."""
        master, verdict = self._master, self._verdict
        last = -1
        end = -1
        for index in runs:
            first, count = master.first[index], master.count[index]
            if first < end:
                both = min(end, first + count) - first
                one = master.position[last] + first - master.first[last]
                other = master.position[index]
                self.doubled.append((producer, first, both))
                kind = "duplicated" if self._is_given(one) and self._is_given(other) else "misplaced"
                verdict.breach(kind, f"{producer}#{first} is at {dlsn_of(one)} and at {dlsn_of(other)}", both)
            if first + count > end:
                last, end = index, first + count

    def _join(self, producer: int, runs: list[int]) -> None:
        master, appends, verdict = self._master, self._appends, self._verdict
        ops = appends.of_producer.get(producer, array("q"))
        firsts, counts = appends.first, appends.count
        at = 0
        for index in runs:
            position, sequence = master.position[index], master.first[index]
            end = sequence + master.count[index]
            while at and firsts[ops[at - 1]] + counts[ops[at - 1]] > sequence:
                at -= 1  # this run begins within the one before it
            while at < len(ops) and firsts[ops[at]] + counts[ops[at]] <= sequence:
                at += 1
            while sequence < end:
                op = ops[at] if at < len(ops) else -1
                begins = firsts[op] if op >= 0 else end
                if begins > sequence:
                    stop = min(begins, end)
                    verdict.breach(
                        "invented", f"nobody wrote {producer}#{sequence} at {dlsn_of(position)}", stop - sequence
                    )
                    position, sequence = position + stop - sequence, stop
                    continue
                stop = min(end, begins + counts[op])
                begin = position - (sequence - begins)
                if self.found[op] == NOWHERE:
                    self.found[op] = begin
                elif self.found[op] != begin and not self.is_doubled(producer, sequence):
                    verdict.breach(
                        "torn", f"{producer}#{begins} lies at {dlsn_of(self.found[op])}, a part at {dlsn_of(position)}"
                    )
                self.got[op] += stop - sequence
                if appends.outcome[op] == Outcome.FAILED:
                    verdict.breach(
                        "resurrected",
                        f"{producer}#{sequence} was refused and is at {dlsn_of(position)}",
                        stop - sequence,
                    )
                position, sequence = position + stop - sequence, stop
                if sequence == begins + counts[op]:
                    at += 1
