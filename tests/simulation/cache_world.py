"""The simulated world of a read proxy's cache: the production source of one stream, its readers, and a changing stream.

Everything between a reader's machine and the ports is production code (actors/stream_feed.py with its views, segment
readers, upstream and cache; dlog/log/reading.py under its driver), on the virtual loop of tests/simulation/service. The
stream, its owners, store and metadata are models (cache_stream.py, cache_ports.py). Plans are drawn in
cache_drawing.py.

After the faults the world heals; then every reader must reach the tail, and the cache must hold nothing that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any

from actors.entry_cache import EntryCache
from actors.feed_options import FeedOptions
from actors.segment_readers import segment_key
from actors.stream_feed import StreamFeed
from dlog.io.driver import Driver
from dlog.log.reading import ReadingOptions, StreamReaderMachine
from dlog.log.source_messages import (
    READER,
    SOURCE,
    EntriesGot,
    GetEntries,
    Locate,
    SegmentLacSeen,
    SourceFailed,
    StreamSeen,
    WatchLac,
)
from dlog.machine import Fact, PeerLost, Received
from dlog.model.dlsn import of
from dlog.model.segment import StreamMetadata, Truncation
from dlog.options import draw
from dlog.wire.proxy import Credit, Entries, Read, ReaderEvent, ReaderEventKind, Start
from tests.simulation.cache_checks import CacheChecks, Watched, first_readable
from tests.simulation.cache_drawing import STYLES, draw_plan
from tests.simulation.cache_ports import MetadataPort, OwnersPort, StorePort, draw_latency
from tests.simulation.cache_stream import STREAM, StreamModel
from tests.simulation.kernel import Violation, judged
from tests.simulation.mutants import planting
from tests.simulation.plan import Fault, FaultKind, Plan
from tests.simulation.service.loop import Process, SimulatedLoop
from tests.simulation.worlds import Outcome, Room

S = 1_000_000_000
MUST_REACH = (
    "sent",
    "caught_up",
    "end_of_stream",
    "truncated_reader",
    "take_over",
    "recovered",
    "rolled",
    "number_came_again",
    "truncated",
    "deleted_segment",
    "deleted",
    "cache_hit",
    "evicted",
    "source_failed",
    "reader_held",
    "sent_along",
    "beyond_end",
    "truncated_open",
    "other_life",
    "went_cold",
    "taken_back",
)
PROGRESS = {
    "entries read": ("sent",),
    "take-overs": ("take_over",),
    "recoveries": ("recovered",),
    "segments": ("segment_started",),
    "readers": ("opened",),
}
RARE = ("deleted_reader", "number_came_again", "lost_source")
SETTLE_S = 60.0
BEYOND = (99, 0, 0)  # a position that no stream of this world reaches
WAKING_NS = S // 20  # after a freeze, contact with metadata is back within this time
R4_AFTER_S = 2.0  # truncated data has left the cache within this time, when metadata can be reached
Op = tuple[float, str]


class ReaderHost:
    """One reader in the proxy's process: its machine under its driver, its view of the source, its client's credit."""

    def __init__(self, world: CacheWorld, read: Read, machine: StreamReaderMachine, watched: Watched) -> None:
        self.world = world
        self.watched = watched
        self.machine = machine
        self.ended = ""
        self.incarnation = ""  # the incarnation that it was sent
        self._places: dict[int, str] = {}  # location of each segment of which it asked entries
        self.driver = Driver(machine, name=watched.name, send=self._send)
        self.subscription = world.tailer.attach(self._heard, self._lost)
        self.driver.post(Received(READER, read))
        self._read = read

    async def run(self) -> None:
        try:
            await self.driver.run()
        finally:
            self.subscription.close()

    def _heard(self, fact: Fact) -> None:
        assert isinstance(fact, Received)
        self.world.tell(self.watched.name, "hears", fact.message)
        if isinstance(fact.message, SegmentLacSeen):
            self.world.checks.lac_said(fact.message)
        elif type(fact.message).__name__ == "SourceFailed":
            self.world.reach("source_failed")
        self.driver.post(fact)

    def _lost(self) -> None:
        self.world.reach("lost_source")
        self.driver.post(PeerLost(SOURCE, "the source ended"))

    def _send(self, peer: object, message: Any) -> None:
        world = self.world
        world.tell(self.watched.name, "asks" if peer == SOURCE else "says", message)
        if peer == SOURCE:
            if isinstance(message, GetEntries):
                self._places[message.segment.number] = message.segment.name
                if world.cache.holds(segment_key(message.segment), message.first):
                    world.reach("cache_hit")
            self.subscription.ask(message)
            return
        if isinstance(message, Entries):
            self._sent(message)
        elif isinstance(message, ReaderEvent):
            self._told(message.kind, message.detail)
        if self.machine.has_ended:
            self.driver.stop()

    def _sent(self, entries: Entries) -> None:
        world = self.world
        world.reach("sent")
        world.checks.sent(self.watched, world.known(self.watched), entries, self._places[entries.segment])
        world.checks.bounded(world.cache)
        delay_s = draw_latency(world.rng, 0.002)
        world.loop.call_later(
            delay_s, self.driver.post, Received(READER, Credit(self._read.request, len(entries.body)))
        )

    def _told(self, kind: ReaderEventKind, detail: Mapping[str, Any]) -> None:
        world, watched = self.world, self.watched
        world.checks.told(watched, kind)
        match kind:
            case ReaderEventKind.STARTED:
                watched.start = of(*detail["dlsn"])
                self.incarnation = detail["incarnation"]
            case ReaderEventKind.CAUGHT_UP:
                world.reach("caught_up")
                if not watched.follow:
                    self.ended = "caught up"
                    world.checks.contiguous(watched)
                    # a reader that cannot read metadata may believe an owner that was deposed
                    if not (world.config.get("unaware") and world.sure_at(watched) < watched.opened_at):
                        world.checks.ended(watched, self.machine.position, world.known(watched))
            case ReaderEventKind.END_OF_STREAM:
                self.ended = "end of stream"
                world.reach("end_of_stream")
                world.checks.end_of_stream(watched, self.machine.position)
            case ReaderEventKind.TRUNCATED:
                self.ended = "truncated"
                world.reach("truncated_reader")
                if self._read.start is Start.TAIL and watched.start is None:
                    world.checks.fail("R4", f"{watched.name} has no position yet, and was told that it is truncated")
                points = {first_readable(value) for value in world.stream.values_since(world.sure_at(watched))}
                if of(*detail["first"]) not in points:
                    world.checks.fail("R4", f"{watched.name} was told that {detail} is the first, it was {points}")
            case ReaderEventKind.BEYOND_END:
                self.ended = "beyond the end"
                world.reach("beyond_end")
            case ReaderEventKind.DELETED:
                self.ended = "deleted"
                world.reach("deleted_reader")
                if watched.incarnation and not watched.seen:
                    world.reach("other_life")
                elif not world.was_deleted_since(world.sure_at(watched)):
                    world.checks.fail("R3", f"{watched.name} was told that the stream is not there")
            case ReaderEventKind.DAMAGED:
                self.ended = "damaged"
                if not world.was_deleted_since(world.sure_at(watched)):
                    world.checks.fail("R3", f"{watched.name} was told of damage: {detail}")


def listed(value: StreamMetadata | None) -> str:
    """Describe a list of segments in a few words."""
    if value is None:
        return "gone"
    segments = ", ".join(
        f"{s.name} {'ended at ' + str(s.last_entry) if s.completed else 'goes on'}"
        f"{'' if s.truncation is Truncation.ACTIVE else f' {s.truncation.name.lower()} from {s.min_entry}'}"
        for s in value.listed
    )
    return f"of life {value.incarnation}, epoch {value.owner.epoch}: {segments or 'empty'}"


def story(what: object) -> str:
    """Describe a message in a few words."""
    match what:
        case StreamSeen(stream, fresh):
            return f"StreamSeen fresh={fresh} {listed(stream)}"
        case GetEntries(segment, first, last):
            return f"GetEntries {segment.name}:{first}..{last}"
        case Locate(segment, target, first, last):
            return f"Locate {target} in {segment.name}:{first}..{last}"
        case WatchLac(segment, known):
            return f"WatchLac {segment.name} known={known}"
        case EntriesGot(_, place, first, payloads):
            return f"EntriesGot {place}:{first}, {len(payloads)} of them"
        case Entries():
            return f"Entries {what.segment}:{what.first_entry}, {len(what.lengths)} of them"
        case ReaderEvent():
            return f"{what.kind.name} {dict(what.detail)}"
        case SourceFailed(question, error):
            return f"SourceFailed {story(question)}: {error.message}"
    return str(what)


def _judge(task: asyncio.Task[None]) -> None:
    """End the trial if a reader's task failed with anything but its own end."""
    if task.cancelled():
        return
    error: BaseException | None = task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Violation):
        raise error
    if error is not None:
        raise Violation("assert", f"{task.get_name()} ended with {error!r}") from error


class CacheWorld:
    """One history of one stream's source."""

    def __init__(self, plan: Plan, parts: Mapping[str, Any], *, trace: bool = False) -> None:
        self.plan = plan
        self.config = plan.config
        self.lines: list[str] | None = [] if trace else None
        self.reached: Counter[str] = Counter()
        self.loop = SimulatedLoop(f"cache/{plan.seed}")
        if trace:
            assert self.lines is not None
            self.loop.on_line = self.lines.append
        self.rng = random.Random(f"cache/{plan.seed}/environment")
        self.struck: dict[FaultKind, int] = {}
        self.healed = False
        self._until: dict[FaultKind, int] = {}
        self._rates: dict[FaultKind, float] = {}
        self._marked: dict[str, list[Fault]] = {}
        self.blind_at = 0  # when metadata was last out of contact for longer than WAKING_NS
        self.trouble_at = 0  # when contact with metadata was last in doubt, or the proxy did not run
        self.readers: list[ReaderHost] = []
        self.opened = 0
        self._lives: list[asyncio.Task[None]] = []
        deposed = random.Random(f"cache/{plan.seed}/deposed")
        self._waking = random.Random(f"cache/{plan.seed}/waking")
        self.stream = StreamModel(
            self.loop,
            self.rng,
            final=self.config["final"],
            reach=self.reach,
            unaware=lambda: deposed.random() < self.config.get("unaware", 0.0),
        )
        self.checks = CacheChecks(self.stream, parts.get("mute", ()))
        self.stream.on_change = self._changed
        self.store = StorePort(self)
        self.process = self._start()
        for fault in plan.faults:
            if fault.mark:
                self._marked.setdefault(fault.mark, []).append(fault)
            else:
                self.stream.after(fault.at_s, self._strike, fault)

    # ---- the proxy ---------------------------------------------------------------------------------------------------

    def _start(self) -> Process:
        """Start a new process of the read proxy: an empty cache, a new source."""
        process = self.loop.spawn("r")
        self.metadata = MetadataPort(self, process)
        self.cache = EntryCache(self.config["cache_bytes"])
        options = draw(FeedOptions, random.Random(self.rng.random()))
        self.tailer: StreamFeed
        tailer = StreamFeed(
            STREAM,
            metadata=self.metadata,  # type: ignore[arg-type]  # as far as a source asks one
            stores={"ledger": self.store, "cold": self.store},  # type: ignore[dict-item]  # the same
            cache=self.cache,
            fetches=asyncio.Semaphore(2),
            upstream=OwnersPort(self, process),
            options=options,
            rng=random.Random(self.rng.random()),
        )
        self.tailer = tailer
        self.process = process
        process.post(lambda: self._live(tailer.run(), "source"))
        return process

    def _live(self, incarnation: Coroutine[Any, Any, None], name: str) -> None:
        task = self.loop.create_task(incarnation, name=name)
        task.add_done_callback(_judge)
        self._lives.append(task)

    def open_reader(self) -> None:
        """Open a new reader."""
        rng, stream = self.rng, self.stream
        start, value = rng.choice(((Start.START, None), (Start.TAIL, None), (Start.START, None)))
        if stream.confirmed and rng.random() < 0.5:
            _, number, entry, _ = rng.choice(stream.confirmed)
            start, value = Start.DLSN, (number, entry, 0)
        incarnation = saved_in = ""
        if rng.random() < self.config.get("positions", 0.0):
            start, value, incarnation, saved_in = self._draw_position()
        follow = rng.random() < self.config["followers"]
        self.process.post(self._open, start, value, follow, incarnation, saved_in)

    def _draw_position(self) -> tuple[Start, Any, str, str]:
        """Draw the position of a returning reader: one in this incarnation of the stream, in an earlier one, or one
        that never existed. Returns start, value, the incarnation it names, and the one in which a record was confirmed
        there."""
        rng, stream = self.rng, self.stream
        if rng.random() < 0.2 or not stream.confirmed:
            return Start.DLSN, BEYOND, rng.choice(("", str(stream.lives))), ""
        latest = stream.confirmed[-5:] if rng.random() < 0.5 else stream.confirmed
        _, number, entry, place = rng.choice(latest)
        saved_in = str(stream.stored[place].incarnation)
        return Start.DLSN, (number, entry, rng.randint(0, 1)), rng.choice((saved_in, saved_in, "")), saved_in

    def _open(self, start: Start, value: Any, follow: bool, incarnation: str = "", saved_in: str = "") -> None:
        self.opened += 1
        self.reach("opened")
        watched = Watched(f"reader-{self.opened}", self.loop.now, self.metadata.seen_at, follow)
        watched.incarnation, watched.saved_in, watched.is_beyond = incarnation, saved_in, value == BEYOND
        credit = self.rng.choice((1, 200, 10**6))
        read = Read(self.opened, STREAM, start, value, credit, follow, incarnation=incarnation or None)
        machine = StreamReaderMachine(draw(ReadingOptions, random.Random(self.rng.random())))
        host = ReaderHost(self, read, machine, watched)
        self.readers.append(host)
        self._live(host.run(), watched.name)

    def known(self, watched: Watched) -> StreamMetadata | None:
        """The oldest list that a reader may have been served from."""
        return self.stream.value_at(self.sure_at(watched))

    def sure_at(self, watched: Watched) -> int:
        """The oldest time whose state a reader may be sent: its opening, or the last contact with metadata before it if
        there was none since."""
        return watched.opened_at if self.blind_at < watched.opened_at else watched.known_at

    def tell(self, who: str, does: str, what: object) -> None:
        """Write a line of the trace, if tracing is on."""
        if self.lines is not None:
            self.loop.note(f"{who} {does} {story(what)}")

    def _hold(self) -> None:
        """Let the client take nothing of what it is sent, for a while."""
        living = [r for r in self.readers if not r.ended]
        if not living:
            return
        host, process = self.rng.choice(living), self.process
        self.reach("reader_held")
        process.post(host.subscription.hold, True)
        process.post(host.subscription.hold, False, delay_ns=int(self.rng.random() * 0.3 * S))

    # ---- faults ------------------------------------------------------------------------------------------------------

    def reach(self, mark: str) -> None:
        self.reached[mark] += 1
        for fault in self._marked.get(mark, ()):
            if fault.count == self.reached[mark] and not self.healed:
                self.stream.after(fault.at_s, self._strike, fault)

    def is_on(self, kind: FaultKind) -> bool:
        return self._until.get(kind, 0) > self.loop.now

    def rate(self, kind: FaultKind) -> float:
        return self._rates.get(kind, 0.0) if self.is_on(kind) else 0.0

    def latency_s(self, mean_s: float) -> float:
        return draw_latency(self.rng, mean_s)

    async def store_answers(self) -> None:
        """Make a round trip to the store, or raise its refusal."""
        await asyncio.sleep(self.latency_s(0.001) + self.rng.random() * self.rate(FaultKind.SLOW))

    def _strike(self, fault: Fault) -> None:
        if self.healed:
            return
        self.reached[f"fault.{fault.kind.value}"] += 1
        self.loop.note(f"fault {fault}")
        until = self.loop.now + int(fault.for_s * S)
        match fault.kind:
            case FaultKind.CRASH:
                self._crash()
            case FaultKind.PAUSE:
                process = self.process
                if self.metadata.reads and self.metadata.seen_at < self.blind_at:
                    # the request was under way and could get no answer since the cut; the cut may last for longer
                    self.blind_at = max(self.blind_at, until + WAKING_NS)
                self.loop.pause(process)
                self.loop.at(until, self.loop.world, self._wake, process, self.metadata, fault.for_s)
                self.trouble_at = max(self.trouble_at, until)
            case _:
                self.struck[fault.kind] = self.loop.now
                self._until[fault.kind] = max(until, self._until.get(fault.kind, 0))
                self._rates[fault.kind] = fault.rate
                if fault.kind in (FaultKind.META_CUT, FaultKind.META_DELAY, FaultKind.META_REPLY_LOST):
                    self.trouble_at = max(self.trouble_at, self._until[fault.kind])
                if fault.kind is FaultKind.META_CUT:
                    self.blind_at = max(self.blind_at, self._until[fault.kind])
                    self.loop.at(self._until[fault.kind] + 1, self.loop.world, self.metadata.back)
                if fault.kind is FaultKind.WATCH_LATE:
                    self.trouble_at = max(self.trouble_at, until + int(fault.rate * S))

    def _wake(self, process: Process, metadata: MetadataPort, after_s: float) -> None:
        if after_s > self.config.get("session_s", after_s):
            metadata.lose(self.loop.now + int(self._waking.random() * WAKING_NS))
        self.loop.resume(process)

    def _crash(self) -> None:
        """Crash the proxy and start it again with nothing; its followers come back."""
        again = [host for host in self.readers if not host.ended]
        for host in self.readers:
            if not host.ended:
                self.checks.contiguous(host.watched)
                host.ended = "crash"
                self.process.post(host.driver.stop)
        self.process.post(self.tailer.stop)  # its messages are gone, and no reader is left to receive later ones
        self._start()
        self.trouble_at = self.loop.now + S // 10
        for host in again:
            if host.incarnation and self.config.get("positions"):
                self.process.post(self._open, Start.DLSN, tuple(host.machine.position), True, host.incarnation)
            else:
                self.open_reader()

    def heal(self) -> None:
        self.healed = True
        cut = self.is_on(FaultKind.META_CUT)
        self._until.clear()
        self.loop.resume(self.process)
        if cut:
            self.metadata.back()

    # ---- events ------------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self.tell("the list", "is", listed(self.stream.value))
        self.metadata.changed()
        now = self.loop.now
        self.stream.after(R4_AFTER_S, self._look_at_cache, now)

    def _look_at_cache(self, changed_at: int) -> None:
        if self.trouble_at < changed_at:
            self.checks.forgotten(self.cache, changed_at)
            self.reach("cache_looked_at")

    def was_deleted_since(self, when: int) -> bool:
        """Whether the stream did not exist at any time since then."""
        return None in self.stream.values_since(when)

    def _play(self, op: str) -> None:
        self.tell("script", "plays", op)
        match op:
            case "append":
                self.stream.append()
            case "take_over":
                self.stream.take_over(dead_s=self.rng.random() * self.config["dead_s"])
            case "roll":
                self.stream.roll()
            case "truncate":
                self.stream.truncate()
            case "truncate_open":
                self.stream.truncate_open()
            case "relocate":
                self.stream.relocate()
            case "delete":
                self.stream.delete()
            case "open":
                self.open_reader()
            case "hold":
                self._hold()

    def run(self) -> None:
        loop, config = self.loop, self.config
        begun = loop.now_s
        self.stream.take_over(dead_s=0.0)
        self.open_reader()
        for at_s, op in config["script"]:
            self.stream.after(at_s, self._play, op)
        loop.run(until_s=begun + config["duration_s"] * 1.1)
        self.heal()
        self._end_of_script()
        if not loop.run(until_s=loop.now_s + SETTLE_S, until=self._is_settled) and not self._is_settled():
            late = [r for r in self.readers if not self._is_done(r)]
            names, tail = [r.watched.name for r in late], self.stream.confirmed[-1:]
            if any(r.machine._cursor is not None and r.machine.position.entry <= r.machine._cursor.lac for r in late):
                self.checks.fail("R3", f"all is well, and these do not get what they know to be there: {names} {tail}")
            self.checks.fail("R2", f"all is well, and these were not told: {names} {tail}")
        loop.run(until_s=loop.now_s + R4_AFTER_S + 2.0)
        self.checks.forgotten(self.cache, loop.now - int(R4_AFTER_S * S))
        for host in self.readers:
            self.checks.contiguous(host.watched)
        self.reached["evicted"] += self.cache.bytes_max < 1 << 20 and len(self.stream.confirmed) > 20

    def close(self) -> None:
        """Let the remaining tasks end by themselves: a coroutine that the collector must close may run code that
        waits."""
        self._until.clear()
        self.loop.resume(self.process)
        self.process.post(self.tailer.stop)
        for host in self.readers:
            self.process.post(host.driver.stop)
        self.checks.is_over = True
        until_s = self.loop.now_s + 5.0
        while any(not task.done() for task in self._lives) and self.loop.now_s < until_s:
            with contextlib.suppress(Violation):  # the outcome stands, whatever a defect still causes
                self.loop.failures.clear()
                self.loop.run(until_s=until_s)

    def _end_of_script(self) -> None:
        """End the script: a last owner takes over, a last record is written, and the stream is sealed in some plans."""
        stream = self.stream
        if stream.value is not None and (stream.owner is None or not stream.owner.is_alive):
            stream.take_over(dead_s=0.0)
        for step in range(1, 6):
            stream.after(1.0 + 0.05 * step, stream.append)
        if self.config["seal"]:
            self._seal_after = True
            stream.after(1.8, self._seal)

    def _seal(self) -> None:
        if self.stream.value is None or not self.stream.value.is_sealed:
            self.stream.seal()
            self.stream.after(0.2, self._seal)

    def _is_settled(self) -> bool:
        if self.loop.now_s < 1000.0 + self.config["duration_s"] * 1.1 + 2.5:
            return False
        if self.config["seal"] and not (self.stream.value is not None and self.stream.value.is_sealed):
            return False
        return all(self._is_done(reader) for reader in self.readers)

    def _is_done(self, host: ReaderHost) -> bool:
        if host.ended or not host.watched.follow or host.watched.is_beyond:
            return bool(host.ended)
        if self.config["seal"] or not self.stream.confirmed:
            return not self.config["seal"]
        _, number, entry, _ = self.stream.confirmed[-1]
        return host.machine.position > of(number, entry, 0)


def run_plan(plan: Plan, parts: Mapping[str, Any] | None = None, *, trace: bool = False) -> Outcome:
    """Run one plan to its end or to the first violation. parts["planted"]: pairs of a class and its mutant."""
    parts = parts or {}
    with planting(parts.get("planted", ())):
        world = CacheWorld(plan, parts, trace=trace)
        violation, text = judged(world.run, trace=trace)
        failed = list(world.loop.failures)
        world.close()
        loop, reached, lines = world.loop, world.reached, world.lines
        loop.keep(world)  # released together with everything else of the trial
        del world
        failed += loop.dispose()
    if failed and not violation:
        violation, text = "V3", failed[0]
    return Outcome(
        plan=plan,
        violation=violation,
        text=text,
        reached=reached,
        trace_hash=loop.trace_hash & 0xFFFFFFFF,
        events=loop.events,
        virtual_s=loop.now_s - 1000.0,
        lines=lines,
    )


def room() -> Room:
    """The simulation `cache` of `python -m tests.simulation`."""
    from tests.simulation.mutants.cache import MUTANTS

    gc.freeze()
    return Room(
        name="cache",
        styles=STYLES,
        draw=draw_plan,
        run=run_plan,
        must_reach=MUST_REACH,
        mutants=MUTANTS,
        progress=PROGRESS,
        rare=RARE,
    )
