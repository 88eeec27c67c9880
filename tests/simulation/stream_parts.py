"""The parts of the simulated world of one stream: proxies that own it in turn, clients that write, readers.

Clients are models, not machines of dlog: each keeps its batches in order on one connection at a time, goes to another
proxy when refused or left without an answer, and repeats, marked as such, each batch with an unknown outcome.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlog.errors import (
    DLogError,
    EndOfStreamError,
    OwnedElsewhereError,
    ProducerUnknownError,
    SequenceGapError,
    StreamUnavailableError,
    TxidOutOfOrderError,
)
from dlog.events import (
    ClaimLost,
    LacMoved,
    SegmentDeleted,
    SegmentRemoved,
    SegmentStarted,
    StreamOwned,
    StreamReady,
    StreamReleased,
    StreamStalled,
)
from dlog.log.contents import entry_span
from dlog.log.messages import AcquireStream, BatchWritten, StreamAcquired, WriteBatch
from dlog.log.owner import StreamOwnerMachine
from dlog.log.producer_table import NAME_BYTES
from dlog.log.reading import ReadingOptions, StreamReaderMachine
from dlog.log.source_messages import (
    READER,
    SOURCE,
    EntriesGot,
    GetEntries,
    GetStream,
    Locate,
    Located,
    SegmentLacSeen,
    SourceFailed,
    StreamSeen,
    WatchLac,
)
from dlog.machine import Effect, Fact, Received, Send, SetTimer, TimerFired
from dlog.model.dlsn import DLSN, DLSN_INVALID, of
from dlog.model.ids import NO_ENTRY, EntryId, ProxyId, Txid
from dlog.model.segment import StreamMetadata
from dlog.options import draw
from dlog.ownership.claim import Claimant
from dlog.ownership.evidence import Advice, Probe, judge
from dlog.stores.contract import SegmentNotFoundError, SegmentTruncatedError, StoreUnavailableError
from dlog.stores.object_storage.seeking import is_span_before
from dlog.wire.entry import build_record_set
from dlog.wire.proxy import Credit, Entries, Read, ReaderEvent, ReaderEventKind, Start
from proxies.write.lac_subscriptions import LacSubscriptions
from tests.simulation.kernel import S
from tests.simulation.stream_checks import Delivered, Written, first_readable
from tests.simulation.stream_retention import EPOCH_MS

if TYPE_CHECKING:
    from tests.simulation.stream_world import StreamWorld


PATIENCE_S = 1000.0  # of a client that never gives up


class Proxy:
    """A write proxy: at most one owner machine that has not ended."""

    def __init__(self, world: StreamWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.address = ""  # of the newest owner machine
        self.claims = 0
        self.tails = LacSubscriptions()  # of that machine
        self.is_ready = False  # it has served before
        self.skew_ms = world.sim.rng.randint(-50, 50)
        if world.config.get("clocks") == "metadata":
            self.skew_ms = 0  # the proxies' clocks are right

    @property
    def owner(self) -> StreamOwnerMachine | None:
        machine: StreamOwnerMachine | None = self.world.sim.machine(self.address)
        return machine

    @property
    def is_serving(self) -> bool:
        """Whether a reader may subscribe to the stream's tail here."""
        return self.is_ready and self.owner is not None and not self.owner.has_ended

    def holds(self, nonce: str) -> bool:
        owner = self.owner
        return owner is not None and not owner.has_ended and owner.nonce == nonce

    def unix_ms(self) -> int:
        sim = self.world.sim
        return max(0, int((sim.now_s + sim.nodes[self.name].skew_s) * 1000) + self.skew_ms + EPOCH_MS)

    def receive(self, request: Any, suspected: bool, reply: Callable[[Any, int], None]) -> None:
        """Handle a client's request that has arrived."""
        owner = self.owner
        if owner is None or owner.has_ended:
            error = self._claim_or_redirect(suspected)
            if error is not None:
                reply(error, 0)
                return
            owner = self.owner
        assert owner is not None
        machine, confirmed = owner, self.world.checks.confirmed_of(request)
        self.world.sim.ask(
            self.address, request, lambda result: self._answer(machine, request, confirmed, result, reply)
        )

    def _answer(
        self, machine: StreamOwnerMachine, request: Any, confirmed: int, result: Any, reply: Callable[[Any, int], None]
    ) -> None:
        world = self.world
        world.checks.said(request, confirmed, result)
        if isinstance(result, BatchWritten) and not result.duplicate:
            location = world.checks.places.get(result.dlsn.segment)
            world.checks.answered(machine, result, world.store.segments.get(location) if location else None)
            world.sim.call_in(0.0, self._check_told, machine, result, node=self.name)
        reply(result, machine.epoch)

    def _check_told(self, machine: StreamOwnerMachine, result: BatchWritten) -> None:
        """Check, at the end of the turn in which a batch was answered, that subscribers to the tail were notified."""
        place = self.tails.next_position(self.world.stream)
        if machine is self.owner and not machine.has_ended and place is not None and place <= result.dlsn:
            self.world.checks.fail("T6", f"acknowledged {result.dlsn}, and the tail is still said to be at {place}")

    def _claim_or_redirect(self, suspected: bool) -> DLogError | None:
        world = self.world
        value = world.value
        owner = value.owner
        registered = {p.name: p.name for p in world.proxies.values() if world.sim.is_up(p.name)}
        judgement = judge(
            owner,
            me=ProxyId(self.name),
            registered={ProxyId(n): a for n, a in registered.items()},
            suspected=suspected,
        )
        if judgement.advice is Advice.ASK:
            judgement = judge(
                owner,
                me=ProxyId(self.name),
                registered={},
                suspected=suspected,
                probe=self._probe(owner.proxy, owner.claim),
            )
        if judgement.advice is Advice.CLAIM or world.sim.rng.random() < world.config["steal"]:
            self.claim(owner.epoch if world.sim.rng.random() < 0.9 else None)
            return None
        return OwnedElsewhereError("owned", location=owner.address)

    def _probe(self, name: str, nonce: str) -> Probe:
        world = self.world
        if not world.sim.is_up(name) or world.is_cut(self.name, name) or world.stands_still(name):
            return Probe.NO_ANSWER
        return Probe.OWNS if world.proxies[name].holds(nonce) else Probe.DENIES

    def claim(self, if_epoch: Any) -> None:
        world, sim = self.world, self.world.sim
        self.claims += 1
        nonce = f"{self.name}/{sim.nodes[self.name].incarnation}/{self.claims}"
        self.address = f"{self.name}/owner-{sim.nodes[self.name].incarnation}-{self.claims}"
        machine = world.parts.get("owner", StreamOwnerMachine)(
            world.key,
            Claimant(proxy=ProxyId(self.name), address=self.name, nonce=nonce),
            world.owner_options,
            stores=world.stores,
        )
        self.is_ready = False
        self.tails = tails = LacSubscriptions()
        sim.place(self.name, self.address, machine, on_event=lambda event: self.told(machine, tails, event))
        sim.ask(self.address, AcquireStream(if_epoch, self.unix_ms()), self.taken)

    def taken(self, result: Any) -> None:
        self.world.sim.reach("taken" if isinstance(result, StreamAcquired) else "claim_failed")

    def told(self, machine: StreamOwnerMachine, tails: LacSubscriptions, event: Any) -> None:
        world, sim = self.world, self.world.sim
        self._tell_tails(tails, event)
        match event:
            case StreamOwned(_, epoch):
                world.checks.owned(epoch, machine.nonce)
                sim.reach("owned")
            case StreamReady(_, epoch, _, recovered):
                sim.reach(f"ready_after_{min(recovered, 2)}")
                if (epoch, "ready") in world.marks:
                    sim.reach("mended")
                world.marks.add((epoch, "ready"))
            case SegmentStarted():
                sim.reach("segment_started")
            case ClaimLost():
                sim.reach("lease_lost")
            case SegmentDeleted():
                sim.reach("segment_deleted")
            case SegmentRemoved():
                sim.reach("taken_over_removed")
            case StreamStalled():
                sim.reach("stalled")
            case _:
                world.on_lac(event)

    def _tell_tails(self, tails: LacSubscriptions, event: Any) -> None:
        """Notify the tails as proxies/write/server.py does."""
        match event:
            case LacMoved():
                tails.moved(event)
            case StreamReady(stream, _, segment):
                tails.moved(LacMoved(stream, segment, NO_ENTRY))
                self.is_ready = self.is_ready or tails is self.tails
            case ClaimLost(stream) | StreamReleased(stream):
                tails.end(stream, lambda: StreamUnavailableError("not served here"))


class Client:
    """Writes batches in order, as many at a time as the owner allows, at most the plan's window. Repeats those with an
    unknown outcome, for `patience_s` at most.

    A batch that it gives up is not carried over into its producer's next generation; one that an owner refused is. An
    owner's answer that it waits for an earlier batch means that the later one is not in the log
    (dlog/client/producer.py).
    """

    def __init__(self, world: StreamWorld, name: str, batches: int) -> None:
        self.world = world
        self.name = name
        self.rng = random.Random(f"{world.plan.seed}/{name}")
        self.left = batches
        self.window = world.owner_options.window_min  # until an owner tells another one
        self.made = 0
        self.generation = -1
        self.producer = b""
        self.sequence = 0
        self.highest = 0  # all sequences of older generations are below
        self.replaces: int | None = None
        self.is_settling = False  # the next generation begins once every batch under way is answered
        self.since: tuple[int, int] | None = None  # of this producer id
        self.reached: tuple[int, int] | None = None  # the last position in the log that was answered
        self.queue: list[_Attempt] = []  # not answered, in order
        self.proxy = self.rng.choice(sorted(world.proxies))
        self.suspected = False
        self.ended = False
        self.connection = 0  # answers on an older connection are dropped, requests on it may still arrive
        self._last_arrival = 0.0
        self._new_producer()

    @property
    def is_done(self) -> bool:
        return self.ended or (self.left == 0 and not self.queue)

    def begin(self) -> None:
        self._fill()

    def _new_producer(self) -> None:
        self.generation += 1
        self.producer = self.name.encode().ljust(NAME_BYTES, b".") + self.generation.to_bytes(4, "big")
        self.since = self.reached
        if self.generation:
            carried = [attempt.written.sequence for attempt in self.queue]
            self.highest = max(self.highest, self.sequence)
            self.sequence = self.replaces = min([self.highest, *carried])
        for attempt in self.queue:
            attempt.begin_again(self)
            self.sequence += len(attempt.written.payloads)

    @property
    def _has_room(self) -> bool:
        """Whether the next batch is less than a window behind the first unanswered one."""
        window = min(self.window, self.world.config["window"])
        return not self.queue or self.made + 1 - self.queue[0].made < window

    def _fill(self) -> None:
        """Create new batches while the window is not full."""
        while self.left and self._has_room and not (self.ended or self.is_settling):
            self.left -= 1
            count = self.rng.choice((1, 1, 2, 5))
            self.made += 1
            payloads = tuple(
                f"{self.name}.{self.made}:{i}:".encode() + bytes(self.rng.choice((0, 3, 40))) for i in range(count)
            )
            txid = self.world.next_txid(self.rng)
            written = Written(self.producer, self.sequence, payloads, self.world.sim.now, txid)
            self.world.checks.batches.append(written)
            attempt = _Attempt(self.made, written, build_record_set(payloads), self.since, self.replaces)
            self.sequence += count
            self.queue.append(attempt)
            self._send(attempt)

    def _send(self, attempt: _Attempt) -> None:
        world = self.world
        attempt.connection = self.connection
        attempt.sent_at = world.sim.now
        attempt.number += 1
        number, written = attempt.number, attempt.written
        txid = None if written.txid is None else Txid(written.txid)
        proxy = world.proxies[self.proxy]
        request = WriteBatch(
            attempt.body,
            len(written.payloads),
            txid,
            written.producer,
            written.sequence,
            0,
            attempt.unknown,
            proxy.unix_ms(),
            attempt.since,
            attempt.replaces,
        )
        suspected, self.suspected = self.suspected, False
        is_late = self.rng.random() < world.config.get("late", 0.005)
        delay = self.rng.expovariate(1.0) * 0.001 + (self.rng.random() * 2 if is_late else 0)
        self._last_arrival = max(self._last_arrival, world.sim.now_s + delay)
        world.sim.call_in(world.config["client_timeout_s"], self._overdue, attempt, number)
        if world.is_cut(self.name, self.proxy) or self.rng.random() < world.config["client_loss"]:
            if self.rng.random() < 0.5:
                return
            self._last_arrival += self.rng.random()
        delay = self._last_arrival - world.sim.now_s
        world.sim.call_in(delay, self._arrive, proxy, request, suspected, attempt, number, node=self.proxy)

    def _arrive(self, proxy: Proxy, request: Any, suspected: bool, attempt: _Attempt, number: int) -> None:
        def reply(result: Any, epoch: int) -> None:
            world = self.world
            if world.is_cut(proxy.name, self.name) or self.rng.random() < world.config["client_loss"]:
                world.sim.reach("reply_lost")
                return
            world.sim.call_in(self.rng.expovariate(1.0) * 0.001, self._answered, attempt, number, result, epoch)

        proxy.receive(request, suspected, reply)

    def _overdue(self, attempt: _Attempt, number: int) -> None:
        if attempt in self.queue and attempt.number == number:
            attempt.unknown = True
            self.suspected = True
            patience_s = self.world.config.get("patience_s", PATIENCE_S)
            if self.is_settling or self.world.sim.now - attempt.written.asked_at > patience_s * S:
                self.world.sim.reach("given_up")
                self.proxy = self._another()
                self._give_up()
                return
            self._reconnect(self._another())

    def _another(self) -> str:
        others = [p for p in sorted(self.world.proxies) if p != self.proxy]
        return self.rng.choice(others) if others else self.proxy

    def _answered(self, attempt: _Attempt, number: int, result: Any, epoch: int) -> None:
        if attempt not in self.queue or attempt.number != number:
            return
        world = self.world
        match result:
            case BatchWritten():
                self.queue.remove(attempt)
                self.window = result.window
                if result.dlsn == DLSN_INVALID:
                    world.checks.fail("S17", f"epoch {epoch} does not know where {attempt.written} was written")
                attempt.written.result = result
                attempt.written.acked_at = world.sim.now
                attempt.written.epoch = epoch
                if result.dlsn.segment > 0:
                    self.reached = result.dlsn[:2]
                world.sim.reach("duplicate" if result.duplicate else "ack")
                if self.is_settling:
                    self._settle()
                else:
                    self._fill()
                return
            case SequenceGapError():
                world.sim.reach("gap")
                if result.expected < attempt.written.sequence:
                    attempt.unknown = False  # the log shows it
                if not attempt.unknown:
                    attempt.refused = True
                if self.is_settling or self._is_forgotten(attempt, result.expected, epoch):
                    self._settle()
                    return
            case ProducerUnknownError():
                world.sim.reach("producer_unknown")
                self.reached = result.since or self.reached
                attempt.unknown = attempt.unknown or result.outcome_unknown
                attempt.refused = not attempt.unknown
                for other in self.queue:  # nothing can prove any more that it was not written
                    other.unknown = other.unknown or other.carried
                self._give_up()
                return
            case TxidOutOfOrderError() | EndOfStreamError():
                world.sim.reach("txid_refused" if isinstance(result, TxidOutOfOrderError) else "end_refused")
                self._refused(attempt, isinstance(result, EndOfStreamError))
                return
            case DLogError():
                attempt.unknown = attempt.unknown or result.outcome_unknown
                if self.is_settling:
                    attempt.refused = not attempt.unknown
                    self._settle()
                    return
            case _:
                raise AssertionError(f"not an answer to a write: {result}")
        location = result.location if isinstance(result, OwnedElsewhereError) else None
        hint = None if isinstance(result, StreamUnavailableError) else location
        self._reconnect(hint or (self.proxy if isinstance(result, SequenceGapError) else self._another()))

    def _is_forgotten(self, attempt: _Attempt, expected: int, epoch: int) -> bool:
        """Whether the owner waits for a batch that this client dropped, because it was refused for good."""
        for batch in self.world.checks.batches:
            was_written = batch.result is not None and epoch >= batch.epoch and batch.acked_at < attempt.sent_at
            if batch.producer == self.producer and was_written and batch.sequence >= expected:
                self.world.checks.fail("S2", f"epoch {epoch} has forgotten {batch}, it expects {expected}")
        return expected < self.queue[0].written.sequence

    def _refused(self, attempt: _Attempt, ended: bool) -> None:
        """Drop a batch that will never be written, unless an earlier attempt was."""
        attempt.written.certainly_not = not attempt.unknown
        self.queue.remove(attempt)
        if ended:
            self.ended = not self.queue
            self.left = 0
            return
        self._settle()  # later batches wait for a sequence that will not come: start a new generation

    def _settle(self) -> None:
        """Start the next generation once it is known of each batch whether it was refused."""
        self.is_settling = True
        if all(attempt.refused or attempt.unknown for attempt in self.queue):
            self._give_up()

    def _give_up(self) -> None:
        """Give up the producer's sequence numbers: what was sent stays unknown, the next generation goes on."""
        for attempt in self.queue:
            attempt.written.is_given_up = attempt.unknown or not attempt.refused
        self.is_settling = False
        self.queue = [attempt for attempt in self.queue if not attempt.written.is_given_up]
        if self.queue:
            self.world.sim.reach("carried")
        self._new_producer()
        self._reconnect(self.proxy)
        self._fill()

    def _reconnect(self, proxy: str) -> None:
        """Drop the connection and send all unanswered batches again, in order, after a pause."""
        self.connection += 1
        self.proxy = proxy
        for attempt in self.queue:
            if attempt.connection >= 0 and attempt.number and not attempt.refused:
                attempt.unknown = True  # its answer, if any, will be dropped
            attempt.refused = False
            attempt.number += 1
        self.world.sim.call_in(self.rng.uniform(0, 0.02), self._resend, self.connection)

    def _resend(self, connection: int) -> None:
        if connection == self.connection:
            self._last_arrival = self.world.sim.now_s
            for attempt in [a for a in self.queue if a.connection != connection]:
                self._send(attempt)


class _Attempt:
    """The client's batch `made`, on its way. unknown: the outcome of some attempt is. number: of the attempt whose
    answer counts."""

    __slots__ = (
        "body",
        "carried",
        "connection",
        "made",
        "number",
        "refused",
        "replaces",
        "sent_at",
        "since",
        "unknown",
        "written",
    )

    def __init__(
        self, made: int, written: Written, body: bytes, since: tuple[int, int] | None, replaces: int | None
    ) -> None:
        self.made = made
        self.written = written
        self.body = body
        self.carried = False  # from an older generation
        self.since = since
        self.replaces = replaces
        self.connection = -1
        self.number = 0
        self.sent_at = 0
        self.unknown = False
        self.refused = False

    def begin_again(self, client: Client) -> None:
        """Continue under the client's new generation, as its next batch."""
        self.carried = True
        self.since, self.replaces = client.since, client.replaces
        self.written.producer, self.written.sequence = client.producer, client.sequence


class ReaderHost:
    """A reader's machine with its source and its reader in the same process.

    The source sends metadata (which may be old), the store's entries, and LACs that it asks the store for now and then.
    """

    def __init__(self, world: StreamWorld, reader: Reader, machine: StreamReaderMachine) -> None:
        self.world = world
        self.reader = reader
        self.machine = machine
        self.address = ""
        self._watch: WatchLac | None = None
        self._told: StreamMetadata | None = None
        self._heard_s = 0.0  # when the last message arrives

    def handle(self, fact: Fact) -> list[Effect]:
        if isinstance(fact, TimerFired) and fact.key == "poll":
            self._poll()
            return [] if self.machine.has_ended else [SetTimer("poll", 0.01)]
        rest: list[Effect] = []
        for effect in self.machine.handle(fact):
            match effect:
                case Send(peer, message) if peer == SOURCE:
                    rest += self._asked(message)
                case Send(_, Entries() as entries):
                    self._post(self.reader.received(entries), READER)
                case Send(_, ReaderEvent(_, kind, detail)):
                    self.reader.told(kind, detail)
                case _:
                    rest.append(effect)
        return rest

    def _post(self, message: Any, peer: str = SOURCE) -> None:
        """Deliver a message to the machine a little later, in order, unless the machine is gone by then."""
        host, sim = self.world.sim.hosts.get(self.address), self.world.sim
        if host is not None:
            self._heard_s = max(self._heard_s + 1e-6, sim.now_s + sim.rng.expovariate(1.0) * 0.001)
            sim.call_in(self._heard_s - sim.now_s, sim.hand, host, Received(peer, message), node="r")

    def _asked(self, question: Any) -> list[Effect]:
        match question:
            case GetStream(fresh):
                fresh = fresh or self.world.sim.rng.random() < 0.7
                value = self.world.value if fresh else self.world.older_value
                self._told = value
                self._post(StreamSeen(value, fresh=fresh))
                return [SetTimer("poll", 0.005)]
            case GetEntries():
                self._post(self._entries(question))
            case Locate():
                self._post(self._located(question))
            case WatchLac():
                self._watch = question
                return [SetTimer("poll", 0.0)]
        return []

    def _located(self, question: Locate) -> Located | SourceFailed:
        """As a store with an index of some blocks answers, or one without."""
        held, rng = self.world.store.segments.get(question.segment.location), self.world.sim.rng
        if held is None or rng.random() < 0.02:
            return SourceFailed(question, StoreUnavailableError("not now"))
        first, last, block = question.first, question.last, rng.choice((1, 2, 5))
        for entry in range(question.first, question.last + 1):
            span = None if rng.random() < 0.2 else entry_span(held.payloads[entry])
            is_before = is_span_before(span, question.target.least, by_time=question.target.by_time)
            if is_before and entry % block == 0:
                first = EntryId(entry + 1)
            elif is_before is False:
                self.world.sim.reach("located")
                last = EntryId(min(last, entry + rng.randrange(block)))
                break
        return Located(question, first, last)

    def _entries(self, question: GetEntries) -> EntriesGot | SourceFailed:
        held = self.world.store.segments.get(question.segment.location)
        if held is None:
            return SourceFailed(question, SegmentNotFoundError("no such place"))
        if held.is_removed and not self.world.removals.is_cached():
            return SourceFailed(question, SegmentTruncatedError("removed"))
        payloads = tuple(held.payloads[question.first : question.last + 1])
        if not payloads or self.world.sim.rng.random() < 0.02:
            return SourceFailed(question, StoreUnavailableError("not now"))
        size, upto = 0, 0
        while upto < len(payloads) and (upto == 0 or size < question.max_bytes):
            size += len(payloads[upto])
            upto += 1
        return EntriesGot(question.segment.number, question.segment.location, question.first, payloads[:upto])

    def _poll(self) -> None:
        if self._told != self.world.value:
            self._told = self.world.value
            self._post(StreamSeen(self._told, fresh=False))
        watch = self._watch
        if watch is not None and self._is_removed(watch):
            self._watch = None
            self._post(SourceFailed(watch, SegmentTruncatedError("removed")))
            return
        lac = self._lac(watch) if watch is not None else None
        if watch is not None and lac is not None and (lac[0] > watch.known or lac[1]):
            self._watch = None
            self._post(SegmentLacSeen(watch.segment.number, watch.segment.location, EntryId(lac[0]), lac[1]))

    def _is_removed(self, watch: WatchLac) -> bool:
        """Whether the store, asked for the LAC, has removed the segment. Owners report LACs of one in progress."""
        held = self.world.store.segments.get(watch.segment.location)
        if held is None or not held.is_removed:
            return False
        is_told = watch.segment.location in self.world.hints and not watch.segment.completed
        return not is_told and not self.world.removals.is_cached()

    def _lac(self, watch: WatchLac) -> tuple[int, bool] | None:
        hinted = self.world.hints.get(watch.segment.location)
        stored = self.world.store.readable(watch.segment.location)
        if stored is None or hinted is None or stored[1]:
            return stored
        return max(stored[0], hinted), False


class Reader:
    """Reads from a start position, and continues from its position when its machine dies."""

    def __init__(self, world: StreamWorld, number: int, start: Start, value: Any, *, follow: bool) -> None:
        self.world = world
        self.number = number
        self.start = start
        self.value = value
        self.follow = follow
        self.ended = ""
        self.next: DLSN | None = None
        self.delivered = Delivered(None, [], value if start is Start.TXID else None)
        self.machine: StreamReaderMachine | None = None
        world.checks.readers.append(self.delivered)
        self._opened = 0
        self._owed = 0  # the last segment with a record that was acknowledged before it was opened

    def open(self) -> None:
        world = self.world
        if self.ended:
            return
        self._opened += 1
        acked = [batch.result.dlsn.segment for batch in world.checks.batches if batch.result is not None]
        self._owed = max(acked, default=0)
        address = f"r/reader-{self.number}-{self._opened}"
        machine = self.machine = world.parts.get("reader", StreamReaderMachine)(
            draw(ReadingOptions, random.Random(world.sim.rng.random()))
        )
        shell = ReaderHost(world, self, machine)
        shell.address = address
        host = world.sim.place("r", address, shell)
        read = Read(
            self.number, world.stream, self.start, self.value, world.sim.rng.choice((1, 200, 10**6)), self.follow
        )
        if self.next is not None:
            self.delivered.resumed.add(len(self.delivered.seen))
            read = Read(self.number, world.stream, Start.DLSN, tuple(self.next), 500, self.follow)
        world.sim.hand(host, Received(READER, read))

    def received(self, entries: Entries) -> Credit:
        """Take entries that were pushed; returns the credit for them."""
        world, at, payloads = self.world, 0, []
        for length in entries.lengths:
            payloads.append(bytes(entries.body[at : at + length]))
            at += length
        segment = world.value.segment(entries.segment) or world.older_segments.get(entries.segment)
        held = world.store.segments.get(segment.location) if segment is not None else None
        if held is not None:
            lac = held.confirmed
            world.checks.delivered(self.delivered, entries.segment, entries.first_entry, payloads, entries.skip, lac)
        else:
            self.delivered.seen.clear()  # deleted meanwhile: nothing to compare with
        self.next = of(entries.segment, entries.first_entry + len(payloads), 0)
        world.sim.reach("delivered")
        return Credit(self.number, at)

    def _truncated(self, first: DLSN) -> None:
        """Begin again at the first position that is left."""
        world = self.world
        kept = first_readable(world.value) or of(world.value.max_segment + 1, 0, 0)
        self.next, self.start, self.value = None, Start.START, None
        if first > kept:
            if not world.removals.explains(first):
                world.checks.fail("S9", f"told that {first} is the first, and that is {kept}")
            world.sim.reach("reader_of_removed")
            self.start, self.value = Start.DLSN, tuple(first)
        self.delivered = Delivered(None, [])
        world.checks.readers.append(self.delivered)

    def told(self, kind: ReaderEventKind, detail: dict[str, Any]) -> None:
        world = self.world
        world.sim.reach(f"reader_{kind.name.lower()}")
        match kind:
            case ReaderEventKind.STARTED:
                if self.next is None:
                    self.delivered.start = of(*detail["dlsn"])
            case ReaderEventKind.TRUNCATED:
                self._truncated(of(*detail["first"]))
                world.sim.call_in(0.001, self.open, node="r")
            case ReaderEventKind.END_OF_STREAM:
                self.ended = "end of stream"
            case ReaderEventKind.CAUGHT_UP:
                self.ended = "" if self.follow else "caught up"
                owed = 0 if world.value.has_lost(self._owed) else self._owed  # it may be truncated since
                if not self.follow and self.machine is not None and self.machine.position.segment < owed:
                    at = self.machine.position
                    world.checks.fail("S4", f"a read ends at {at}, segment {owed} was acknowledged before it")
            case ReaderEventKind.BEYOND_END:
                world.sim.call_in(0.01, self.open, node="r")  # LACs of this source lag; R6 is checked in `cache`
            case ReaderEventKind.DAMAGED:
                world.checks.fail("S9", f"a reader was told of damage: {detail}")
