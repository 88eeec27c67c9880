"""Programs that write to the stream as sinks: batches, written ahead as stages or appended, and repeated.

A program numbers its batches and does one after the other until each is acknowledged. It repeats a batch with an
unknown outcome as it is, or makes it anew, as a program does that was killed and started again: with other bytes, other
stages or in the other way. A program of a higher epoch shuts out the one before, which goes on until it learns that.

After a batch was decided, some programs sweep by the rule of dlog/model/sink.py, as dlog/spark/stages.py does: at once
or late, and slowly, while others write, import stages and are shut out.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from dlog.errors import (
    DLogError,
    EndOfStreamError,
    InvalidRequestError,
    OwnedElsewhereError,
    ProducerUnknownError,
    StreamUnavailableError,
    TxidOutOfOrderError,
)
from dlog.log.messages import (
    STORE,
    AppendEntry,
    AppendSinkBatch,
    BatchWritten,
    CreateSegment,
    DeleteSegment,
    EntryAppended,
    ImportStages,
    SealSegment,
    SegmentCreated,
    SegmentDeleted,
    SegmentSealed,
    SegmentsImported,
    WriteBatch,
)
from dlog.log.staging import StagedSet, StagePacker
from dlog.machine import (
    Answer,
    Asked,
    Effect,
    Fact,
    MetadataSeen,
    ReadMetadata,
    Received,
    Send,
    SetTimer,
    Ticket,
    TimerFired,
    Versioned,
)
from dlog.model.ids import EntryId, Epoch, SegmentNumber, Txid
from dlog.model.segment import Location, StreamMetadata
from dlog.model.sink import RegisteredStage, SinkBatch, StageSweepRule, StreamLook, SweepDecision
from dlog.stores.contract import STAGE
from dlog.wire.entry import build_record_set, decode_entry
from dlog.wire.proxy_codec import PARTS_MAX
from tests.simulation.stream_retention import EPOCH_MS

if TYPE_CHECKING:
    from tests.simulation.stream_world import StreamWorld

SINK_NODE = "k"
SINK = "sink"
_STAGE_S = 2.0  # after this time another stage is begun
assert PARTS_MAX >= 3


@dataclass(slots=True)
class SinkWritten:
    """One batch of a sink: the payloads of each try, in order, and whether it was acknowledged."""

    batch: SinkBatch
    tries: list[list[bytes]] = field(default_factory=list)
    is_acked: bool = False


class Stager:
    """Writes one stage, an entry for each payload. It is asked with payloads and their txid, and answers with the value
    that an ImportStages names. batch: for which it is registered. store: None: that of the stream's settings."""

    def __init__(self, world: StreamWorld, batch: SinkBatch, store: str | None = None) -> None:
        self._world = world
        self._store = store
        self._batch = batch
        self._packer = StagePacker(b"stager..........")
        self._ticket: Ticket
        self._payloads: list[bytes] = []
        self._txid = 0
        self.location: Location | None = None  # once it is created

    def handle(self, fact: Fact) -> list[Effect]:
        match fact:
            case Asked(ticket, (list() as payloads, int() as txid)):
                self._ticket, self._payloads, self._txid = ticket, payloads, txid
                settings = self._world.value.settings
                store = self._store or settings.store
                chosen = settings.store_settings if store == settings.store else ()
                return [Send(STORE, CreateSegment(SegmentNumber(0), Epoch(0), store, chosen))]
            case Received(_, SegmentCreated(_, location)) if self.location is None:
                self.location, place = location, location.name
                begun_ms = int(self._world.sim.now_s * 1000)
                stage = RegisteredStage(place, self._world.stream, self._batch, begun_ms, store=location.store)
                self._world.stages[place] = stage
                return [self._append(entry, payload) for entry, payload in enumerate(self._payloads)]
            case Received(_, EntryAppended(_, entry)) if entry == len(self._payloads) - 1:
                return [Send(STORE, SealSegment(SegmentNumber(0)))]
            case Received(_, SegmentSealed(_, last)) if self.location is not None:
                return [Answer(self._ticket, (self.location.name, last))]
        return []  # it failed: the program begins another stage

    def _append(self, entry: int, payload: bytes) -> Effect:
        staged = StagedSet(self._txid, 1, build_record_set([payload]))
        return Send(STORE, AppendEntry(SegmentNumber(0), EntryId(entry), self._packer.entry([staged], EPOCH_MS)))


class Sweeper:
    """Sweeps once; a request without an answer is left to the next sweep. It may pause between its steps."""

    def __init__(self, world: StreamWorld, rule: StageSweepRule, rng: random.Random) -> None:
        self._world = world
        self._rule = rule
        self._rng = rng
        self._left = list(world.stages)  # children as ZooKeeper listed them once
        self._looks: list[StreamLook] = []

    def handle(self, fact: Fact) -> list[Effect]:
        match fact:
            case Asked():
                return self._go_on()
            case MetadataSeen(_, Versioned(StreamMetadata() as value)):
                places = frozenset(place for segment in value.listed for place in segment.locations)
                self._looks.append(StreamLook(value.sink(SINK), places, is_open=not value.is_sealed))
                pause_s = self._rng.choice((0.0, 0.0, 0.01, 0.05, 0.2))
                return [SetTimer("go on", pause_s)] if pause_s else self._go_on()
            case Received(_, SegmentDeleted(location)):
                self._world.stages.pop(location.name, None)
                return self._go_on()
            case TimerFired():
                return self._go_on()
        return []

    def _go_on(self) -> list[Effect]:
        world = self._world
        while self._left:
            stage = world.stages.get(self._left[0])
            verdict = SweepDecision.STAYS if stage is None else self._rule.judge(stage, self._looks)
            if verdict is SweepDecision.LOOK:
                return [ReadMetadata("look", world.key)]
            place = self._left.pop(0)
            if verdict is SweepDecision.GOES:
                return [Send(STORE, DeleteSegment(Location("ledger", place), STAGE))]
            if verdict is SweepDecision.LISTED:
                world.sim.reach("stage_listed")
                del world.stages[place]
            elif stage is not None and self._rule.judge(stage, ()) is SweepDecision.LOOK:
                world.sim.reach("stage_kept")
        return []


class SinkProgram:
    """One program. name: of its query. epoch: assigned to it."""

    def __init__(self, world: StreamWorld, name: str, epoch: int, batches: int) -> None:
        self.world = world
        self.name = name
        self.left = batches
        self.is_shut_out = False
        self.rng = random.Random(f"{world.plan.seed}/{name}")
        self._epoch = epoch
        self._number = -1
        self._written: SinkWritten
        self._kind = ""
        self._parts: list[tuple[str, EntryId]] = []
        self._missing = 0
        self._payloads: list[bytes] = []
        self._least_txid = 0
        self._since: tuple[int, int] | None = None
        self._try = 0
        self._proxy = self.rng.choice(sorted(world.proxies))
        self._is_working = False
        self._sweeps = 0
        self._empty_rng = random.Random(f"{world.plan.seed}/{name}/empty")
        self._sweep_rng = random.Random(f"{world.plan.seed}/{name}/sweep")

    @property
    def is_done(self) -> bool:
        return self.is_shut_out or (self.left == 0 and not self._is_working)

    @property
    def doing(self) -> str:
        """Describe its present work, for the analysis of a history that does not end."""
        return f"{self._kind} {self._written.batch} parts={self._parts} missing={self._missing} at {self._proxy}"

    def begin(self) -> None:
        """Go on with the next batch."""
        if self.left == 0 or self.is_shut_out:
            self._is_working = False
            return
        self.left -= 1
        self._number += 1
        self._is_working = True
        self._since = None
        self._written = SinkWritten(SinkBatch(SINK, self._epoch, self.name, self._number))
        self.world.sinks.append(self._written)
        self._make()

    def _make(self) -> None:
        """Make a new try of the present batch, from the beginning."""
        self._try += 1
        self._kind = self.rng.choice(("append", "stage", "stage"))
        if self._epoch and self._empty_rng.random() < self.world.config.get("empties", 0.0):
            self._kind = "nothing"
        count = self.rng.choice((1, 2, 5)) if self._kind != "nothing" else 0
        stem = f"sink:{self.name}:{self._number}:{self._try}"
        self._payloads = [f"{stem}:{i}:".encode() + bytes(self.rng.choice((0, 40))) for i in range(count)]
        self._written.tries.append(self._payloads)
        if self._kind == "stage":
            self._stage()
        else:
            self._parts = []
            self._send()

    def _stage(self) -> None:
        txid = self.world.next_txid(self.rng)
        txid = max(self._least_txid, self.world.proxies[self._proxy].unix_ms() if txid is None else txid)
        cuts = sorted(
            self.rng.sample(range(1, len(self._payloads)), min(len(self._payloads) - 1, self.rng.choice((0, 1, 2))))
        )
        pieces = [self._payloads[a:b] for a, b in zip([0, *cuts], [*cuts, len(self._payloads)], strict=True)]
        self._parts = [("", EntryId(0))] * len(pieces)
        self._missing = len(pieces)
        self._try += 1
        this = self._try
        for at, piece in enumerate(pieces):
            address = f"{SINK_NODE}/{self.name}-{self._number}-{this}-{at}"
            self.world.sim.place(SINK_NODE, address, Stager(self.world, self._written.batch))
            self.world.sim.ask(address, (piece, txid), partial(self._staged, this, at))
        self.world.sim.call_in(_STAGE_S, self._stage_overdue, this)

    def _staged(self, this: int, at: int, told: Any) -> None:
        if this != self._try or isinstance(told, DLogError):
            return
        self._parts[at] = told
        self._missing -= 1
        if not self._missing:
            self.world.sim.reach("staged")
            self._send()

    def _stage_overdue(self, this: int) -> None:
        if this == self._try and self._missing:
            self._stage()

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        world = self.world
        self._try += 1
        proxy, this = world.proxies[self._proxy], self._try
        batch = self._written.batch
        request: Any
        if self._kind == "append":
            txid = world.next_txid(self.rng)
            txid = None if txid is None else max(self._least_txid, txid)
            body = build_record_set(self._payloads)
            given = None if txid is None else Txid(txid)
            write = WriteBatch(body, len(self._payloads), given, b"", 0, 0, True, proxy.unix_ms(), self._since)
            request = AppendSinkBatch(batch, write)
        else:
            request = ImportStages(batch, tuple(self._parts), since=self._since)
        world.sim.call_in(world.config["client_timeout_s"] * 2, self._overdue, this)
        if world.is_cut(SINK_NODE, self._proxy) or self.rng.random() < world.config["client_loss"]:
            return
        late = self.rng.random() * 2 if self.rng.random() < 0.05 else 0.0
        world.sim.call_in(
            self.rng.expovariate(1.0) * 0.001 + late, self._arrive, proxy, request, this, node=self._proxy
        )

    def _arrive(self, proxy: Any, request: Any, this: int) -> None:
        def reply(result: Any, _: int) -> None:
            if world.is_cut(proxy.name, SINK_NODE) or self.rng.random() < world.config["client_loss"]:
                return
            world.sim.call_in(self.rng.expovariate(1.0) * 0.001, self._answered, this, result)

        world = self.world
        proxy.receive(request, self.rng.random() < 0.3, reply)

    def _overdue(self, this: int) -> None:
        if this == self._try:
            self._again(self.rng.choice(sorted(self.world.proxies)))

    def _again(self, proxy: str) -> None:
        """Repeat the try after a pause, as it is or made anew."""
        self._try += 1
        self._proxy = proxy
        self.world.sim.call_in(self.rng.uniform(0, 0.05), self._repeat, self._try)

    def _repeat(self, this: int) -> None:
        if this != self._try:
            return
        if self.rng.random() < 0.3:
            self._make()
        else:
            self._send()

    def _read_log(self, upto: tuple[int, int] | None) -> None:
        """Look for one of the tries in the log, below this position."""
        assert upto is not None
        mine = {payload for tried in self._written.tries for payload in tried}
        for segment in self.world.value.segments:
            held = self.world.store.segments.get(segment.location)
            last = upto[1] - 1 if segment.number == upto[0] else -1 if segment.number > upto[0] else 2**63
            for payload in held.payloads[: min(last, held.confirmed) + 1] if held is not None else ():
                if any(bytes(record.payload) in mine for record in decode_entry(payload)):
                    self._decided()
                    self.world.sim.reach("sink_found")
                    self._try += 1
                    self.world.sim.call_in(self.rng.uniform(0, 0.02), self.begin)
                    return
        self._since = upto
        self._again(self._proxy)

    def _answered(self, this: int, result: Any) -> None:
        if this != self._try:
            return
        world = self.world
        match result:
            case SegmentsImported() | BatchWritten():
                self._try += 1
                self._decided()
                kind = {"append": "sink_appended", "stage": "taken_in", "nothing": "sink_nothing"}[self._kind]
                if self._kind == "nothing" and not result.duplicate:
                    world.sink_checks.shut_out(self._epoch)
                world.sim.reach("sink_repeated" if result.duplicate else kind)
                world.sim.call_in(self.rng.uniform(0, 0.02), self.begin)
            case TxidOutOfOrderError():
                world.sim.reach("sink_behind")
                self._least_txid = max(self._least_txid, result.last) + self.rng.choice((0, 5, 100))
                self._make()
            case ProducerUnknownError():
                world.sim.reach("sink_in_doubt")  # an earlier try was to be appended
                self._read_log(result.since)
            case EndOfStreamError():
                self.is_shut_out = True
            case InvalidRequestError():
                if "taken over" in result.message or "another program" in result.message:
                    world.sim.reach("sink_shut_out")
                    self.is_shut_out = True
                else:
                    world.sim.reach("stage_refused")
                    self._make()  # its stage was swept, or an earlier try has listed it
            case DLogError():
                location = result.location if isinstance(result, OwnedElsewhereError) else None
                hint = None if isinstance(result, StreamUnavailableError) else location
                self._again(hint or self.rng.choice(sorted(world.proxies)))
            case _:
                raise AssertionError(f"not an answer to a sink: {result}")

    # ---- sweeping ---------------------------------------------------------------------------------------------------

    def names(self, place: str) -> bool:
        """Whether a batch that is not decided may ask for this stage."""
        return self._is_working and not self._written.is_acked and any(place == part for part, _ in self._parts)

    def _decided(self) -> None:
        self._written.is_acked = True
        if self._sweep_rng.random() < self.world.config.get("sweeps", 0.0):
            for _ in range(3):
                late_s = self._sweep_rng.choice((0.0, 0.01, 0.1, 0.5))
                self.world.sim.call_in(late_s, self._sweep, self._written.batch)

    def _sweep(self, done: SinkBatch) -> None:
        sim = self.world.sim
        self._sweeps += 1
        rule = StageSweepRule(done, (sim.now_s - self.world.config["stage_keep_s"]) * 1000)
        address = f"{SINK_NODE}/{self.name}-sweep-{self._sweeps}"
        sim.place(SINK_NODE, address, Sweeper(self.world, rule, self._sweep_rng))
        sim.ask(address, "sweep")


class SinkChecks:
    """Checks of sinks, over everything that is stored."""

    def __init__(self, world: StreamWorld) -> None:
        self.world = world
        self._epoch = 0  # programs of a lower epoch were reported as shut out
        self._listed: set[str] = set()

    def shut_out(self, epoch: int) -> None:
        """Note that a program of this epoch was acknowledged as the writer."""
        self._epoch = max(self._epoch, epoch)

    def listed(self, value: StreamMetadata) -> None:
        """S13 and T7, checked when the list changed or something was deleted: no stage in the list was swept, and no
        stage of a program that was shut out entered it."""
        for segment in value.listed:
            stage = self.world.stages.get(segment.name)
            if stage is not None and segment.name not in self._listed:
                self._listed.add(segment.name)
                if stage.batch.epoch < self._epoch:
                    self.world.checks.fail("T7", f"{stage.batch} was taken in, epoch {self._epoch} writes")
            if segment.location in self.world.store.deleted and not value.has_lost(segment.number):
                self.world.checks.fail("S13", f"segment {segment.number} was swept, it lay at {segment.name}")

    def swept(self, place: str) -> None:
        """Note that a location was deleted."""
        programs = [p for p in self.world.programs if p.names(place)]
        if place in self.world.stages:
            self.world.sim.reach("swept_under_way" if programs else "swept")
        self.listed(self.world.value)

    def check(self, order: list[bytes], has_lost: bool) -> set[bytes]:
        """Check S13 and T7 over all payloads in the order of the log; returns those of sinks. has_lost: records of the
        stream's beginning may be gone."""
        world, checks = self.world, self.world.checks
        at = {payload: i for i, payload in enumerate(order)}
        mine: set[bytes] = set()
        found: list[tuple[int, SinkBatch]] = []
        for written in world.sinks:
            there = [sorted(at[p] for p in tried if p in at) for tried in written.tries]
            mine.update(p for tried in written.tries for p in tried)
            present = [(tried, places) for tried, places in zip(written.tries, there, strict=True) if places]
            if len(present) > 1:
                checks.fail("S13", f"{written.batch} is in the stream by {len(present)} of its tries")
            if not present:
                if written.is_acked and not has_lost and all(written.tries):  # or one of its tries was empty
                    checks.fail("S13", f"{written.batch} was said to be done and is nowhere")
                continue
            tried, places = present[0]
            expected = list(range(places[-1] - len(tried) + 1, places[-1] + 1))
            if [at.get(p) for p in tried][-len(places) :] != places or places != expected[-len(places) :]:
                checks.fail("S13", f"{written.batch} does not lie together in its order: {places}")
            if len(places) < len(tried) and not has_lost:
                checks.fail("S13", f"{written.batch} is there in part: {len(places)} of {len(tried)}")
            found.append((places[0], written.batch))
        found.sort(key=lambda pair: pair[0])
        for (_, one), (_, two) in itertools.pairwise(found):
            if (two.epoch, two.batch) < (one.epoch, one.batch):
                checks.fail("T7", f"{two} was written behind {one}")
        return mine
