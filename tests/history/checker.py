"""Checks the history of one stream: S1-S9, S11 and S15 of the reliability notes, each by its name (verdict.py KINDS).

The method: one merge into a master order, then linear passes; real time by prefix maxima (Jepsen's and Porcupine's
checkers for logs work the same way).

Invariants:
- Nothing is assumed of the service.
- An append without an answer counts neither as written nor as not written: it may be at one position, and all readers
  must agree on it.
- A record is missed only where a reader passed its position, or was shown the tail after the acknowledgement.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from dlog.log.dedup_trailer import is_note
from dlog.wire.entry import CONTROL_PAYLOAD, END_OF_STREAM_PAYLOAD
from tests.history.master import Join, Master, master_of
from tests.history.notes import (
    NEVER,
    NOWHERE,
    End,
    History,
    Outcome,
    Reader,
    Start,
    dlsn_of,
    entry_of,
    segment_of,
)
from tests.history.verdict import Verdict

_BEYOND_ALL = 1 << 63  # a position after every other


def check(history: History) -> Verdict:
    """The verdict on everything noted so far. May be called at any time; it changes nothing."""
    return _Judge(history).judge()


class _Steps:
    """A maximum over time: the highest value strictly before an instant."""

    def __init__(self, events: Iterable[tuple[int, int]]) -> None:
        self._times = array("q")
        self._tops = array("q")
        top = NOWHERE
        for time, value in events:
            if value > top:
                top = value
                self._times.append(time)
                self._tops.append(top)

    def before(self, time: int) -> int:
        index = bisect_left(self._times, time)
        return self._tops[index - 1] if index else NOWHERE


class _Judge:
    def __init__(self, history: History) -> None:
        self.history = history
        self.verdict = Verdict()
        self.rows: list[Sequence[int] | range] = [self._forward(reader) for reader in history.readers]
        self.master: Master
        self.join: Join

    def judge(self) -> Verdict:
        history, verdict = self.history, self.verdict
        self._count()
        self.master = master_of(history.appends, list(zip(history.readers, self.rows, strict=True)), verdict)
        self.join = Join(self.master, history.appends, self._is_given, verdict)
        by_answer = sorted(self._acknowledged(), key=history.appends.answered.__getitem__)
        self.acked = _Steps((history.appends.answered[op], self._last_position(op)) for op in by_answer)
        self._txids()
        self._owners()
        self._truncations()
        spans = [self._reader(number) for number in range(len(history.readers))]
        self._coverage(sorted(span for span in spans if span is not None))
        self._order_in_time()
        self._deliveries_in_time()
        return verdict

    # ---- counts -----------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        verdict, appends = self.verdict, self.history.appends
        for op, count in enumerate(appends.count):
            verdict.invoked += count
            match appends.outcome[op]:
                case Outcome.OK:
                    verdict.acknowledged += count
                case Outcome.FAILED:
                    verdict.failed += count
                case _:
                    verdict.unknown += count
        verdict.readers = len(self.history.readers)
        verdict.delivered = sum(sum(reader.count) for reader in self.history.readers)

    def _acknowledged(self) -> Iterator[int]:
        """Acknowledged operations whose position is known."""
        appends = self.history.appends
        return (
            op for op in range(len(appends)) if appends.position[op] != NOWHERE and appends.outcome[op] == Outcome.OK
        )

    def _last_position(self, op: int) -> int:
        return self.history.appends.position[op] + self.history.appends.count[op] - 1

    # ---- one reader by itself: S4, S8 -------------------------------------------------------------------------------

    def _forward(self, reader: Reader) -> Sequence[int] | range:
        """Indices of the runs that go forward; all others are reported."""
        end = NOWHERE
        good: list[int] | None = None
        for index, position in enumerate(reader.position):
            if position < end:
                if good is None:
                    good = list(range(index))
                self._backward(reader, index, good)
                continue
            if good is not None:
                good.append(index)
            end = position + reader.count[index]
        for position, _, payload in reader.strange:
            where = dlsn_of(position) if position != NOWHERE else "no place"
            if is_note(payload) or payload in (CONTROL_PAYLOAD, END_OF_STREAM_PAYLOAD):
                self.verdict.breach("control", f"{reader.name} was given {payload[:20]!r} at {where}")
            else:
                self.verdict.breach("invented", f"{reader.name} was given {payload[:32]!r} at {where}")
        return range(len(reader.position)) if good is None else good

    def _backward(self, reader: Reader, index: int, good: list[int]) -> None:
        producer, first, count = reader.producer[index], reader.first[index], reader.count[index]
        again = any(
            reader.producer[i] == producer
            and reader.first[i] < first + count
            and first < reader.first[i] + reader.count[i]
            for i in good
        )
        self.verdict.breach(
            "duplicated" if again else "reordered",
            f"{reader.name} was given {producer}#{first} at {dlsn_of(reader.position[index])} after "
            f"{dlsn_of(reader.position[index - 1])}",
            count,
        )

    def _is_given(self, position: int) -> bool:
        """Whether any reader was sent the record at this position."""
        for reader, rows in zip(self.history.readers, self.rows, strict=True):
            index = bisect_left(rows, position + 1, key=reader.position.__getitem__) - 1
            if index >= 0 and reader.position[rows[index]] + reader.count[rows[index]] > position:
                return True
        return False

    # ---- S7, S6, S9 -------------------------------------------------------------------------------------------------

    def _txids(self) -> None:
        last, where = -1, NOWHERE
        for index, txid in enumerate(self.master.txid):
            if 0 <= txid < last:
                here = dlsn_of(self.master.position[index])
                self.verdict.breach("txid", f"{txid} at {here} after {last} at {dlsn_of(where)}")
            if txid >= last:
                last, where = txid, self.master.position[index]
        appends = self.history.appends
        for op, asked in enumerate(appends.asked_txid):
            if asked >= 0 and appends.txid[op] >= 0 and appends.txid[op] != asked:
                self.verdict.breach("txid", f"asked for {asked}, told {appends.txid[op]}")

    def _owners(self) -> None:
        appends = self.history.appends
        epochs: dict[int, set[int]] = {}
        for segment, epoch in self.history.owners:
            epochs.setdefault(segment, set()).add(epoch)
        for op in self._acknowledged():
            if appends.epoch[op] and not appends.repeated[op]:
                epochs.setdefault(segment_of(appends.position[op]), set()).add(appends.epoch[op])
        newest = 0
        for segment in sorted(epochs):
            if len(epochs[segment]) > 1:
                self.verdict.breach("rivalled", f"segment {segment} has owners {sorted(epochs[segment])}")
            elif min(epochs[segment]) < newest:
                self.verdict.breach("rivalled", f"segment {segment} is epoch {min(epochs[segment])}'s, after {newest}")
            newest = max(newest, *epochs[segment])

    def _truncations(self) -> None:
        told = sorted((t.answered, t.kept) for t in self.history.truncations if t.answered != NEVER)
        self.kept = _Steps(told)
        self.asked = _Steps(sorted((t.invoked, t.position) for t in self.history.truncations))
        for truncation in self.history.truncations:
            if truncation.kept > max(truncation.position, self.asked.before(truncation.answered)):
                wanted, kept = dlsn_of(truncation.position), dlsn_of(truncation.kept)
                self.verdict.breach("truncated", f"asked to let go what is before {wanted}, kept from {kept} on")
            before = self.kept.before(truncation.invoked)
            if NOWHERE < truncation.kept < before:
                self.verdict.breach("revived", f"kept from {dlsn_of(truncation.kept)} on after {dlsn_of(before)}")
        beginners = [
            (reader.at[0], reader.position[0])
            for reader in self.history.readers
            if reader.start.kind is Start.START and reader.position
        ]
        self.begun = _Steps(sorted(beginners))

    # ---- a reader against the order: S2, S4, S9, S11 ----------------------------------------------------------------

    def _reader(self, number: int) -> tuple[int, int] | None:
        """Check one reader. Returns the range of positions that it covers."""
        reader, rows = self.history.readers[number], self.rows[number]
        begin = reader.position[rows[0]] if rows else NOWHERE
        end = reader.position[rows[-1]] + reader.count[rows[-1]] if rows else NOWHERE
        known = reader.at[rows[0]] if rows else reader.ended
        gone = self.asked.before(known)  # positions before may have been truncated by then
        due = self._due(reader, begin)
        if begin != NOWHERE:
            self._begins(reader, begin, due)
        if reader.end is End.TRUNCATED:
            at = max(end, reader.start.value if reader.start.kind is Start.DLSN else NOWHERE)
            if self.asked.before(reader.ended) <= at:
                self.verdict.breach("truncated", f"{reader.name} was told so at {dlsn_of(max(at, 0))}")
        elif reader.end is End.DAMAGED:
            self.verdict.breach("damaged", f"{reader.name} after {dlsn_of(max(end, 0))}")
        low = max(due, min(gone, begin) if begin != NOWHERE else gone)
        high = end
        if reader.end is End.TAIL:
            high = max(end, self.acked.before(reader.opened) + 1)
        if high <= low or (begin == NOWHERE and reader.start.kind is Start.TAIL):
            return None
        self._walk(reader, rows, low, high, begin)
        return low, high

    def _due(self, reader: Reader, begin: int) -> int:
        """The position from which on the reader covers everything."""
        match reader.start.kind:
            case Start.START:
                return 0
            case Start.DLSN:
                return reader.start.value
            case Start.TXID:
                index = self._first_txid(reader.start.value)
                return self.master.position[index] if index < len(self.master) else max(begin, _BEYOND_ALL)
            case _:
                return begin

    def _first_txid(self, txid: int) -> int:
        """Index of the first run with this txid or above. Txids do not decrease; a decrease is reported elsewhere."""
        return bisect_left(self.master.txid, txid)

    def _begins(self, reader: Reader, begin: int, due: int) -> None:
        first = reader.position.index(begin)
        match reader.start.kind:
            case Start.DLSN if begin < due:
                self.verdict.breach("misled", f"{reader.name} asked for {dlsn_of(due)} and began at {dlsn_of(begin)}")
            case Start.TXID if 0 <= reader.txid[first] < reader.start.value:
                self.verdict.breach(
                    "misled", f"{reader.name} asked for txid {reader.start.value} and began at {reader.txid[first]}"
                )
            case Start.TAIL if begin <= self.acked.before(reader.opened):
                self._lags(reader, f"asked for news and began at {dlsn_of(begin)}, which is old", 1)
            case Start.START:
                floor = max(self.kept.before(reader.opened), self.begun.before(reader.opened))
                if begin < floor:
                    self.verdict.is_stale(
                        f"{reader.name} began at {dlsn_of(begin)}, before {dlsn_of(floor)}, where the stream begins", 1
                    )

    def _walk(self, reader: Reader, rows: Sequence[int] | range, low: int, high: int, begin: int) -> None:
        """Check that everything of the order in [low, high) was sent to this reader."""
        master, positions, counts = self.master, reader.position, reader.count
        at, last = 0, len(rows)
        for index in range(master.at(low), len(master)):
            position = max(low, master.position[index])
            stop = min(high, master.position[index] + master.count[index])
            if position >= high:
                return
            while position < stop:
                while at < last and positions[rows[at]] + counts[rows[at]] <= position:
                    at += 1
                given = positions[rows[at]] if at < last else high
                if given <= position:
                    position = min(stop, given + counts[rows[at]])
                else:
                    upto = min(stop, given)
                    self._missing(reader, index, position, upto, begin)
                    position = upto

    def _missing(self, reader: Reader, index: int, position: int, stop: int, begin: int) -> None:
        """Report that [position, stop) of a run of the order was not sent to a reader that covers it."""
        appends, run = self.history.appends, self.master.run(index)
        sought = reader.start.kind in (Start.DLSN, Start.TXID) and begin != NOWHERE and position < begin
        while position < stop:
            sequence = run.first + position - run.position
            op = self._op(run.producer, sequence)
            upto = stop
            acknowledged = False
            if op is not None:
                upto = min(stop, position + appends.first[op] + appends.count[op] - sequence)
                acknowledged = appends.outcome[op] == Outcome.OK
            if (not reader.position or position > reader.position[-1]) and self._is_given(position):
                text = f"was shown a tail before {run.producer}#{sequence} at {dlsn_of(position)}"
                self._lags(reader, text, upto - position)
            elif not self.join.is_doubled(run.producer, sequence):
                kind = "misled" if sought else "lost" if acknowledged else "skipped"
                self.verdict.breach(
                    kind,
                    f"{reader.name} was not given {run.producer}#{sequence} at {dlsn_of(position)}",
                    upto - position,
                )
            position = upto

    def _lags(self, reader: Reader, text: str, count: int) -> None:
        """Report a tail behind what had been acknowledged, unless a read proxy was cut off from ZooKeeper or
        bookies."""
        last = reader.ended if reader.ended != NEVER else _BEYOND_ALL
        if any(begin <= last and reader.opened <= end for begin, end in self.history.blind):
            self.verdict.is_stale(f"{reader.name} {text}", count)
        else:
            self.verdict.breach("stale", f"{reader.name} {text}", count)

    def _op(self, producer: int, sequence: int) -> int | None:
        appends = self.history.appends
        ops = appends.of_producer.get(producer)
        if not ops:
            return None
        index = bisect_left(ops, sequence + 1, key=appends.first.__getitem__) - 1
        if index < 0 or sequence >= appends.first[ops[index]] + appends.count[ops[index]]:
            return None
        return ops[index]

    # ---- coverage ---------------------------------------------------------------------------------------------------

    def _coverage(self, spans: list[tuple[int, int]]) -> None:
        """Count acknowledged records beyond every reader; report batches of which a part is missing where readers
        passed."""
        appends, join = self.history.appends, self.join
        joined: list[tuple[int, int]] = []
        for low, high in spans:
            if joined and low <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
            else:
                joined.append((low, high))
        gone = max((t.position for t in self.history.truncations), default=NOWHERE)
        for op in range(len(appends)):
            outcome, count, got = appends.outcome[op], appends.count[op], join.got[op]
            if outcome == Outcome.UNKNOWN and got:
                self.verdict.unknown_found += got
            position = appends.position[op] if appends.position[op] != NOWHERE else join.found[op]
            if position == NOWHERE:
                if outcome == Outcome.OK and not self.history.truncations and self._proved_absent(op):
                    self.verdict.breach("lost", f"{appends.producer[op]}#{appends.first[op]} was acknowledged", count)
                continue
            index = bisect_left(joined, (position + 1,)) - 1
            stop = joined[index][1] if index >= 0 else NOWHERE
            if 0 < got < count and position + count <= stop and joined[index][0] <= position:
                self.verdict.breach(
                    "torn",
                    f"of {appends.producer[op]}#{appends.first[op]} at {dlsn_of(position)} there are {got} of {count}",
                )
            if outcome == Outcome.OK and position >= gone:
                self.verdict.unread += max(0, min(count, position + count - stop))

    def _proved_absent(self, op: int) -> bool:
        """Whether some reader read from the start to the tail after this was acknowledged."""
        answered = self.history.appends.answered[op]
        return any(
            reader.start.kind is Start.START and reader.end is End.TAIL and reader.opened > answered
            for reader in self.history.readers
        )

    # ---- time: S5, S8 -----------------------------------------------------------------------------------------------

    def _order_in_time(self) -> None:
        """Check that an append sent after another was answered or read lies after it, and each producer's in its
        order."""
        appends, found = self.history.appends, self.join.found
        read = _Steps(
            sorted(
                (reader.at[i], reader.position[i] + reader.count[i] - 1)
                for reader, rows in zip(self.history.readers, self.rows, strict=True)
                for i in rows
            )
        )
        for op in range(len(appends)):
            position = appends.position[op] if appends.position[op] != NOWHERE else found[op]
            if position == NOWHERE:
                continue
            before = self.acked.before(appends.invoked[op])
            if before > position:
                self.verdict.breach(
                    "overtaken", f"{self._name(op)} at {dlsn_of(position)} was asked after {dlsn_of(before)}"
                )
            seen = read.before(appends.invoked[op])
            if seen > position:
                self.verdict.breach(
                    "early", f"{dlsn_of(seen)} was read before {self._name(op)} was asked for, at {dlsn_of(position)}"
                )
        for ops in appends.of_producer.values():
            last = NOWHERE
            for op in ops:
                if appends.outcome[op] == Outcome.OK and appends.position[op] != NOWHERE:
                    if appends.position[op] < last:
                        self.verdict.breach("reordered", f"{self._name(op)} lies before what its producer wrote before")
                    last = max(last, appends.position[op])
            self._given_up(ops)

    def _given_up(self, ops: Sequence[int]) -> None:
        """Check appends after a failed one. A producer whose append failed, outcome unknown, goes on with the same
        client. Then its later acknowledged records lie behind the failed one, or that one is not in the log."""
        appends, found = self.history.appends, self.join.found
        for index, op in enumerate(ops):
            if appends.outcome[op] != Outcome.UNKNOWN or appends.answered[op] == NEVER or found[op] == NOWHERE:
                continue
            for later in ops[index + 1 :]:
                is_acked = appends.outcome[later] == Outcome.OK and appends.position[later] != NOWHERE
                if is_acked and appends.invoked[later] >= appends.answered[op] and appends.position[later] < found[op]:
                    what = f"{self._name(op)} was given up, and lies at {dlsn_of(found[op])}"
                    self.verdict.breach("late", f"{what} behind {self._name(later)}")
                    break

    def _deliveries_in_time(self) -> None:
        """Report what was delivered before it was written, or beyond the LAC."""
        appends = self.history.appends
        lacs = {
            segment: _Steps(sorted((at, entry) for at, s, entry in self.history.lacs if s == segment))
            for segment in {s for _, s, _ in self.history.lacs}
        }
        for reader, rows in zip(self.history.readers, self.rows, strict=True):
            for i in rows:
                op = self._op(reader.producer[i], reader.first[i] + reader.count[i] - 1)
                if op is not None and appends.invoked[op] > reader.at[i]:
                    self.verdict.breach("early", f"{reader.name} was given {self._name(op)} before it was asked for")
                steps = lacs.get(segment_of(reader.position[i])) if lacs else None
                if steps is not None and steps.before(reader.at[i] + 1) < entry_of(reader.position[i]):
                    self.verdict.breach(
                        "early", f"{reader.name} was given {dlsn_of(reader.position[i])} beyond the LAC"
                    )

    def _name(self, op: int) -> str:
        return f"{self.history.appends.producer[op]}#{self.history.appends.first[op]}"
