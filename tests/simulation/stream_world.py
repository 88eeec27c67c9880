"""The simulated world of one stream: three proxies that own it in turn, clients that write through them, readers, a
store.

Styles of plan:
- "swarm": any faults, bursts around take-overs and new segments, claims on wrong evidence;
- "roll": tiny segments, faults bound to new segments, so that take-overs meet rolls;
- "final": as swarm, on a store where what is visible is final;
- "forget": a producer table too small for the number of producers;
- "stranger": a foreign writer takes over without a claim, as a Java writer does without the lock (stream_stranger.py);
- "emptied": as stranger, while the stream is young: the foreign writers wait between removing empty segments and
  beginning their own, and readers open at positions that may not be written yet, while the list is empty;
- "clocks": segments expire, and clocks jump by days both ways: the proxies' or metadata's (stream_retention.py);
- "offload": several runs at once move segments to cold storage and back, and they are truncated meanwhile
  (stream_offload.py);
- "sink": programs also write batches as sinks, repeat them, and sweep stages that were not used (stream_sinks.py);
- "stores": the store of the next segments is altered again and again, between one in which what is visible is final,
  and another in which it is not; segments of both are moved to cold storage and back (stream_offload.py), and stages
  in both are imported without a number, again and again (stream_imports.py);
- "lives": streams of one name that are deleted and created again (lives_world.py);
- "removed": the store removes segments by itself, completed ones and those in progress (stream_removal.py);
- "calm": no faults except conflicts between clients: every batch must be acknowledged, hand-overs, truncation, seal.

After the faults the world heals; then every client must have its answers, every reader must have reached the tail, and
everything is read back and compared (stream_checks.py).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dlog.errors import DLogError, InvalidRequestError, PositionBeyondEndError
from dlog.events import LacMoved
from dlog.log.messages import AlterStream, HandOverStream, SealStream, StatStream, TruncateBefore
from dlog.log.options import OwnerOptions
from dlog.machine import Versioned
from dlog.model.dlsn import DLSN, of
from dlog.model.ids import StreamName
from dlog.model.segment import LEDGER, Location, Segment, StreamKey, StreamMetadata, StreamSettings
from dlog.model.sink import RegisteredStage
from dlog.options import draw
from dlog.stores.contract import Capabilities
from dlog.wire.entry import ENTRY_BYTES_MAX
from dlog.wire.proxy import Start
from tests.simulation import lives_world
from tests.simulation.kernel import Simulation, judged
from tests.simulation.lives_world import LivesWorld
from tests.simulation.mutants import planting
from tests.simulation.network import Node
from tests.simulation.plan import EVERY_KIND, Fault, FaultKind, Plan, draw_faults
from tests.simulation.store_model import StoredSegment, StoreModel, StoreTransport
from tests.simulation.stream_checks import StreamChecks
from tests.simulation.stream_follower import Follower
from tests.simulation.stream_imports import ImportProgram
from tests.simulation.stream_offload import RUN_NODE, OffloadChecks
from tests.simulation.stream_parts import Client, Proxy, Reader
from tests.simulation.stream_removal import Removals, draw_removals
from tests.simulation.stream_retention import EPOCH_MS, RetentionChecks, draw_jumps
from tests.simulation.stream_sinks import SINK_NODE, SinkChecks, SinkProgram, SinkWritten
from tests.simulation.stream_stranger import STRANGER, Stranger
from tests.simulation.worlds import Outcome, Room

FILE = "file"  # the second store
STREAM = StreamName("s")
KEY = StreamKey(STREAM)
STORE_NODE, READ_NODE, STRANGE_NODE = "store", "r", "j"
MARKS = ("owned", "owned", "segment_started", "ready_after_1", "ready_after_2", "lease_lost")
STYLES = (
    "swarm",
    "roll",
    "final",
    "forget",
    "stranger",
    "emptied",
    "calm",
    "sink",
    "clocks",
    "given-up",
    "lives",
    "offload",
    "stores",
    "removed",
)
MUST_REACH = (
    "ack",
    "duplicate",
    "taken",
    "claim_failed",
    "lease_lost",
    "mended",
    "empty_mended",
    "followed",
    "ready_after_0",
    "ready_after_1",
    "ready_after_2",
    "segment_deleted",
    "metadata.conflict",
    "delivered",
    "reader_truncated",
    "reader_end_of_stream",
    "gap",
    "reply_lost",
    "released",
    "sealed",
    "truncated",
    "producer_unknown",
    "given_up",
    "carried",
    "stalled",
    "stranger",
    "misstated",
    "staged",
    "taken_in",
    "sink_appended",
    "sink_repeated",
    "sink_behind",
    "sink_in_doubt",
    "sink_found",
    "sink_shut_out",
    "swept",
    "swept_under_way",
    "stage_kept",
    "stage_listed",
    "sink_nothing",
    "sent_along",
    "expired",
    "clock_jumped",
    *lives_world.MUST_REACH,
    "relocated",
    "offloaded",
    "offload_retire",
    "offload_back",
    "offload_take_back",
    "offload_drop",
    "store_altered",
    "begun_with_altered_settings",
    "removed",
    "removed_open",
    "taken_over_removed",
    "located",
    "reader_of_removed",
)
PROGRESS = {
    "acks": ("ack",),
    "take-overs": ("taken",),
    "recoveries": ("ready_after_1", "ready_after_2"),
    "segments": ("segment_started",),
    "entries read": ("delivered",),
}
RARE = ("ready_after_2", "sealed_failed", "truncated_failed", "released_failed", "reader_truncated")
SETTLE_S = 40.0
CHANGED_SEGMENTS_MAX = 2  # by one change; waiting changes may be more together, and are then tried one by one


def draw_plan(seed: int, style: str = "swarm") -> Plan:
    """Draw the plan of a seed."""
    if style == "lives":
        return lives_world.draw_plan(seed)
    rng = random.Random(f"{style}/{seed}/plan")
    duration = rng.choice((0.2, 1.0, 3.0))
    calm = style == "calm"
    config: dict[str, Any] = {
        "style": style,
        "final": style == "final" or rng.random() < 0.1,
        "clients": rng.choice((1, 2, 3)) if style != "forget" else rng.choice((4, 6)),
        "batches": rng.choice((5, 15, 30)) if style != "forget" else 6,
        "window": rng.choice((1, 4, 8) if style == "stores" else (1, 2, 4)),
        "client_timeout_s": rng.choice((0.05, 0.3)) if not calm else 5.0,
        "client_loss": 0.0 if calm else rng.choice((0.0, 0.02, 0.1)),
        "txids": rng.choice(("assigned", "assigned", "given")),
        "steal": 0.0 if calm else rng.choice((0.0, 0.0, 0.05, 0.5)),
        "segment_bytes": rng.choice((100, 400)) if style == "roll" else rng.choice((300, 2000, 10**6)),
        "segment_age_s": rng.choice((0.05, 0.5, 100.0)),
        "retention_s": rng.choice((0.0, 0.3, 1000.0)),
        "producers_max": rng.choice((2, 3)) if style == "forget" else 100,
        "readers": rng.randint(1, 3),
        "releases": sorted(rng.uniform(0, duration) for _ in range(rng.choice((0, 1, 3)))),
        "truncates": sorted(rng.uniform(0, duration) for _ in range(rng.choice((0, 0, 2, 4)))),
        "seal": rng.random() < 0.25,
        "touch": [] if calm else sorted(rng.uniform(0, duration) for _ in range(rng.choice((0, 2)))),
        "duration_s": duration,
        "timeout_s": rng.choice((0.05, 0.5)),
        "sync_s": rng.choice((0.0002, 0.001, 0.01)),
    }
    kinds = EVERY_KIND
    if style == "clocks":
        config |= draw_jumps(rng, duration)
        config |= {"segment_bytes": rng.choice((100, 300)), "retention_s": rng.choice((0.05, 0.2, 0.5))}
        config |= {"truncates": [], "batches": 30}
        if config["clocks"] == "metadata":
            kinds = tuple(kind for kind in EVERY_KIND if kind is not FaultKind.CLOCK)
    faults = (
        ()
        if calm
        else draw_faults(
            rng,
            servers=("p1", "p2", "p3"),
            clients=(STORE_NODE, "p1", "p2", "c1", READ_NODE),
            duration_s=duration,
            kinds=kinds,
            count_max=16,
            marks=MARKS,
            messages=("AppendEntry", "EntryAppended", "RecoverSegment", "SegmentSealed", "SegmentCreated"),
        )
    )
    if style == "given-up":
        config["patience_s"] = rng.choice((0.01, 0.1, 0.5))
        config["late"] = rng.choice((0.02, 0.1, 0.3))
        config["client_loss"] = rng.choice((0.02, 0.1))
        config["steal"] = rng.choice((0.0, 0.05, 0.5))
        config["batches"] = 30
    config["too_small"] = 0.0 if calm else rng.choice((0.0, 0.0, 0.05, 0.4))
    if style == "stranger":
        config["strangers"] = sorted(rng.uniform(0, duration) for _ in range(rng.choice((2, 4, 8))))
    if style == "emptied":
        config["strangers"] = sorted(rng.uniform(0, duration * 0.3) for _ in range(rng.choice((2, 4, 8))))
        config["stranger_pause_s"] = rng.choice((0.01, 0.05, 0.2))
        config |= {"segment_bytes": rng.choice((100, 300)), "readers": 8, "retention_s": 1000.0}
        faults += tuple(  # several segments are begun before one has an entry
            Fault(kind=FaultKind.DROP_KTH, a=proxy, b=STORE_NODE, message=message, count=count)
            for proxy in ("p1", "p2", "p3")
            for message in ("AppendEntry", "RecoverSegment")
            for count in range(1, 1 + rng.choice((0, 2, 4)))
        )
    if style == "offload":
        config |= {"offloads": sorted(rng.uniform(0, duration * 1.3) for _ in range(rng.choice((8, 20, 40))))}
        config |= {"segment_bytes": rng.choice((100, 300)), "retention_s": 0.0, "batches": 15}
    if style == "stores":
        config["alters"] = sorted(rng.uniform(0, duration) for _ in range(rng.choice((2, 5, 10))))
        config |= {"final": False, "segment_bytes": rng.choice((100, 300)), "batches": 30}
        config |= {"offloads": sorted(rng.uniform(0, duration * 1.3) for _ in range(rng.choice((0, 8, 20))))}
        config |= {"imports": sorted(rng.uniform(0, duration) for _ in range(rng.choice((0, 4, 8))))}
        config["slow_s"] = rng.choice((0.0, 0.0, 0.1, 0.3))  # latency of the store FILE
    if style == "removed":
        config |= {"segment_bytes": rng.choice((100, 300)), "client_loss": rng.choice((0.02, 0.1)), "batches": 30}
        config["steal"] = rng.choice((0.0, 0.05, 0.5))
        faults += draw_removals(rng, duration)
    if style == "clocks":
        config["strangers"] = [rng.uniform(0, duration)] if rng.random() < 0.3 else []
    if style == "sink":
        config["sinks"] = [[rng.uniform(0, duration), rng.choice((2, 5, 10))] for _ in range(rng.choice((1, 2, 3)))]
        config["strangers"] = [rng.uniform(0, duration)] if rng.random() < 0.2 else []
        config["sweeps"] = rng.choice((0.0, 1.0, 1.0))
        config["stage_keep_s"] = rng.choice((0.0, 0.0, 0.0, 0.02))
        config["empties"] = rng.choice((0.0, 0.0, 0.3, 0.8))
    return Plan(seed=seed, config=config, faults=faults)


class StreamWorld:
    """One history of one stream. parts: what replaces the production machines (mutants)."""

    def __init__(self, plan: Plan, parts: Mapping[str, Any], *, trace: bool = False) -> None:
        config = plan.config
        self.plan = plan
        self.config = config
        self.parts = parts
        self.stream = STREAM
        self.key = KEY
        self.marks: set[Any] = set()
        self.hints: dict[Location, int] = {}  # LAC sent by an owner
        self.dropped: set[Location] = set()  # segments that ended empty and left the list
        self.older_value: StreamMetadata | None = None
        self.older_segments: dict[int, Segment] = {}
        self.highest_point = of(1, 0, 0)  # the highest truncation point requested
        self.checks = StreamChecks(tuple(parts.get("mute", ())))
        self.sink_checks = SinkChecks(self)
        self.retention = RetentionChecks(self)
        self.offload = OffloadChecks(self)
        self.removals = Removals(self)
        options = random.Random(f"{plan.seed}/options")
        drawn = replace(draw(OwnerOptions, options), **config.get("options", {}))  # a stored plan may name some
        self.owner_options = replace(
            drawn,
            producers_max=config["producers_max"],
            pending_bytes_max=10**6,
            truncate_portion=min(drawn.truncate_portion, CHANGED_SEGMENTS_MAX),
            window_min=min(2, drawn.window_min) if config["style"] == "stores" else 5,
        )
        if config["style"] == "forget":
            self.owner_options = replace(self.owner_options, pending_bytes_max=drawn.pending_bytes_max)
        self._txid = 0
        self._sealing = False
        self.sim = sim = Simulation(
            plan,
            transport=StoreTransport(),
            trace=trace,
            request_timeout_s=config["timeout_s"],
            sync_s=config["sync_s"],
        )
        settings = StreamSettings(
            segment_bytes=config["segment_bytes"],
            segment_age_s=config["segment_age_s"],
            retention_s=config["retention_s"],
        )
        sim.on_environment = self.removals.happen
        sim.metadata.on_change = self._changed
        sim.metadata.stamp = self._stamp
        sim.metadata.refusal = self._refusal
        sim.node(STORE_NODE, start=self._start_store)
        sim.metadata.create(KEY, StreamMetadata(name=STREAM, settings=settings))
        self.proxies: dict[str, Proxy] = {}
        for name in ("p1", "p2", "p3"):
            sim.node(name)
            self.proxies[name] = Proxy(self, name)
        self.clients = [Client(self, f"c{i + 1}", config["batches"]) for i in range(config["clients"])]
        for client in self.clients:
            sim.node(client.name)
        self.sinks: list[SinkWritten] = []
        self.stages: dict[str, RegisteredStage] = {}  # by location, as in ZooKeeper
        self.programs = [
            SinkProgram(self, f"k{i + 1}", i, batches) for i, (_, batches) in enumerate(config.get("sinks", ()))
        ]
        self.imports = [ImportProgram(self, number) for number in range(len(config.get("imports", ())))]
        if self.programs or self.imports:
            sim.node(SINK_NODE)
        self.readers: dict[int, Reader] = {}
        self.follower = Follower(self)
        sim.node(READ_NODE, start=self._start_readers)
        sim.node(STRANGE_NODE)
        sim.node(RUN_NODE)
        self._strangers = 0

    @property
    def stores(self) -> Mapping[str, Capabilities]:
        """What owners know of the stores. Strangers write to ledgers. The other store allows a producer more."""
        rng = random.Random(f"{self.plan.seed}/stores")
        entries = [self.config.get("entries_in_flight", rng.randint(1, 4)) for _ in range(2)]
        ledger = Capabilities(
            visible_is_final=self.config["final"],
            entry_bytes_max=ENTRY_BYTES_MAX,
            has_foreign_writers=True,
            entries_in_flight=entries[0],
            bytes_in_flight=0,
        )
        other = Capabilities(
            visible_is_final=True,
            entry_bytes_max=ENTRY_BYTES_MAX,
            entries_in_flight=entries[1],
            bytes_in_flight=rng.choice((0, 4 << 20)),
        )
        return {LEDGER: ledger, FILE: other}

    @property
    def value(self) -> StreamMetadata:
        seen = self.sim.metadata.values[KEY]
        assert isinstance(seen, Versioned)
        value: StreamMetadata = seen.value
        return value

    # ---- nodes and machines -----------------------------------------------------------------------------------------

    def _start_store(self, node: Node) -> None:
        rng = random.Random(self.sim.rng.random())
        made = self.parts.get("store", StoreModel)
        self.store: StoreModel = made(rng, self.sim.disk("store").durable, self.stores)
        self.store.too_small = self.config.get("too_small", 0.0)
        self.store.latency_s = {FILE: self.config.get("slow_s", 0.0)}
        self.store.is_curt = self.config["style"] == "stranger" and self.plan.seed % 2 == 0
        self.store.on_append = self._appended
        self.store.on_delete = self._deleted
        self.offload.store_started()
        self.removals.store_started()
        self.sim.place("store", "store", self.store, listens=True)

    def _start_readers(self, node: Node) -> None:
        for reader in self.readers.values():
            reader.open()
        self.follower.begin()

    def _appended(self, stored: StoredSegment) -> None:
        self.checks.appended(stored, self.value, self.store)
        self.retention.stored(stored.location)

    def _refusal(self, old: Any, new: Any) -> DLogError | None:
        """Refuse a change of more than CHANGED_SEGMENTS_MAX segments, as ZooKeeper refuses a large request."""
        if not isinstance(new, StreamMetadata) or sum(1 for _ in new.changes_since(old)) <= CHANGED_SEGMENTS_MAX:
            return None
        self.sim.reach("refused")
        return InvalidRequestError("more than metadata takes at once")

    def _stamp(self, value: Any) -> Any:
        return value.stamped(self.retention.metadata_unix_ms) if isinstance(value, StreamMetadata) else value

    def _deleted(self, location: Location) -> None:
        self.offload.check(self.value)
        self.sink_checks.swept(location.name)
        self.checks.deleted(location, self.value)

    def _changed(self, key: Any, old: Any, new: Any) -> None:
        if key != KEY:
            return
        self.older_value = old or new
        if old is not None:
            self.older_segments.update({s.number: s for s in old.listed})
            self._note_dropped(old, new)
            self.retention.changed(old, new)
            if {segment.store for segment in new.listed} >= {LEDGER, FILE}:
                self.sim.reach("store_altered")
            self._check_settings(old, new)
        self.checks.changed(old, new, self.store)
        self.offload.check(new)
        self.sink_checks.listed(new)

    def _check_settings(self, old: StreamMetadata, new: StreamMetadata) -> None:
        """Check S18. One change may begin a segment and alter the settings behind it."""
        known = {segment.location for segment in old.segments}
        wanted = [(value.settings.store, value.settings.store_settings) for value in (old, new)]
        for segment in new.in_progress:
            stored = self.store.segments.get(segment.location)
            if segment.location in known or stored is None or not stored.creator.startswith("p"):
                continue  # created by a foreign writer
            if (segment.store, stored.settings) not in wanted:
                self.checks.fail("S18", f"segment {segment} begins with {stored.settings} instead of one of {wanted}")
            if new.settings.store_settings:
                self.sim.reach("begun_with_altered_settings")

    def _note_dropped(self, old: StreamMetadata, new: StreamMetadata) -> None:
        """Note segments that left the list because they ended empty."""
        for segment in old.segments:
            now = new.segment(segment.number) or new.truncated_segment(segment.number)
            if not segment.completed and (now is None or now.location != segment.location):
                self.dropped.add(segment.location)
                if (new.owner.epoch, "ready") in self.marks:
                    self.sim.reach("empty_mended")

    def on_lac(self, event: Any) -> None:
        """Pass on a LAC that an owner sent to its tails; it may be lost."""
        if isinstance(event, LacMoved) and self.sim.rng.random() < 0.7:
            segment = self.value.segment(event.segment)
            location = self.checks.places.get(event.segment)
            if segment is not None and segment.location == location:
                self.hints[location] = max(self.hints.get(location, -1), event.lac)

    def is_cut(self, a: str, b: str) -> bool:
        return self.sim.network.cuts.get((a, b), 0) > self.sim.now

    def stands_still(self, name: str) -> bool:
        return self.sim.nodes[name].stands_still(self.sim.now)

    def next_txid(self, rng: random.Random) -> int | None:
        """None to have it assigned; txids that are given sometimes decrease."""
        if self.config["txids"] == "assigned":
            return None
        self._txid += rng.choice((0, 1, 10))
        return max(0, self._txid - (rng.choice((5, 100)) if rng.random() < 0.03 else 0))

    # ---- work -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Schedule all requests."""
        sim, rng, duration = self.sim, self.sim.rng, self.config["duration_s"]
        for client in self.clients:
            sim.call_in(rng.uniform(0, duration * 0.5), client.begin)
        for at_s in self.config["releases"]:
            sim.call_in(at_s, self._release)
        for at_s in self.config["truncates"]:
            sim.call_in(at_s, self._truncate)
        for at_s in self.config.get("alters", ()):
            sim.call_in(at_s, self._alter_store)
        for at_s in self.config.get("strangers", ()):
            sim.call_in(at_s, self._estrange)
        for program, (at_s, _) in zip(self.programs, self.config.get("sinks", ()), strict=True):
            sim.call_in(at_s, program.begin)
        for importing, at_s in zip(self.imports, self.config.get("imports", ()), strict=True):
            sim.call_in(at_s, importing.begin)
        for at_s in self.config["touch"]:
            sim.call_in(at_s, self._touch)
        self.retention.begin()
        self.offload.begin()
        open_within_s = duration * (0.4 if self.config["style"] == "emptied" else 1.0)
        for _ in range(self.config["readers"]):
            sim.call_in(rng.uniform(0, open_within_s), self._open_reader, rng.random() < 0.8)

    def _open_reader(self, follow: bool) -> None:
        rng, number = self.sim.rng, len(self.readers) + 1
        acked = [b.result for b in self.checks.batches if b.result is not None and b.result.dlsn.segment > 0]
        choices: list[tuple[Start, Any]] = [
            (Start.START, None),
            (Start.TAIL, None),
            (Start.TIME, int(self.sim.now_s * 500) + EPOCH_MS),
        ]
        start, value = rng.choice(choices)
        if acked and rng.random() < 0.5:
            one = rng.choice(acked)
            places = [(Start.DLSN, tuple(one.dlsn.next_slot(one.count - 1))), (Start.TXID, max(0, one.txid))]
            start, value = rng.choice(places)
        if self.config["style"] == "emptied":
            start, value = Start.DLSN, (rng.choice((1, 1, 2)), rng.choice((0, 1)), rng.choice((0, 1)))
        reader = self.readers[number] = Reader(self, number, start, value, follow=follow)
        if self.sim.is_up(READ_NODE):
            reader.open()

    def owner_address(self) -> str | None:
        proxy = self.proxies.get(self.value.owner.proxy)
        owner = proxy.owner if proxy is not None else None
        return proxy.address if proxy is not None and owner is not None and not owner.has_ended else None

    def _release(self) -> None:
        address = self.owner_address()
        if address is not None:
            self.sim.ask(address, HandOverStream(), lambda r: self._done("released", r))

    def _alter_store(self) -> None:
        """Put the next segments into the other store, or into the same one with other settings of it."""
        address, settings = self.owner_address(), self.value.settings
        if address is not None:
            version = settings.version + 1
            stores = (FILE, LEDGER) if version % 3 else (LEDGER, FILE)
            store = stores[settings.store == FILE]
            altered = replace(settings, store=store, store_settings=(("copies", version),), version=version)
            self.sim.ask(address, AlterStream(altered), lambda r: self._done("altered", r))

    def _truncate(self) -> None:
        address = self.owner_address()
        acked = [b.result.dlsn for b in self.checks.batches if b.result is not None and b.result.dlsn.segment > 0]
        if address is None or not acked:
            return
        dlsn = self.sim.rng.choice(acked)
        self.highest_point = max(self.highest_point, dlsn)
        self.sim.ask(address, TruncateBefore(dlsn), lambda r: self._truncated(dlsn, r))

    def _truncated(self, dlsn: DLSN, result: Any) -> None:
        self._done("truncated", result)
        if not isinstance(result, DLogError):
            self.checks.truncated(dlsn, result, self.value)
        elif isinstance(result, PositionBeyondEndError):
            self.checks.denied(dlsn, self.value)

    def _touch(self) -> None:
        """Change the stream's settings, so that every version an owner knows is old."""
        value = self.value
        bytes_ = value.settings.segment_bytes + 1
        self.sim.metadata.create(KEY, replace(value, settings=replace(value.settings, segment_bytes=bytes_)))

    def _estrange(self) -> None:
        """Let a foreign writer take over."""
        self._strangers += 1
        address = f"{STRANGE_NODE}/stranger-{self._strangers}"
        self.sim.place(STRANGE_NODE, address, Stranger(self, self._strangers))
        self.sim.ask(address, "take over")

    def _seal(self) -> None:
        """Seal through the present owner, again and again until the stream is sealed."""
        if self.value.is_sealed:
            return
        address = self.owner_address()
        if address is not None:
            self.sim.ask(address, SealStream(), lambda r: self._done("sealed", r))
        else:
            proxy = self.proxies["p1"]
            proxy.receive(SealStream(), True, lambda r, _: self._done("sealed", r))
        self.sim.call_in(1.0, self._seal)

    def _care(self) -> None:
        """Let a write proxy take over streams whose owner is gone, so that their last records become visible."""
        named = self.value.owner.proxy  # another proxy may believe that it owns the stream, and would do nothing
        carer = named if named and self.sim.is_up(named) else "p1"
        if self.value.owner.epoch and self.sim.is_up(carer):
            self.proxies[carer].receive(StatStream(), True, lambda _result, _epoch: None)
        self.removals.care()
        self.sim.call_in(1.0, self._care)

    def _done(self, mark: str, result: Any) -> None:
        self.sim.reach(mark if not isinstance(result, DLogError) else f"{mark}_failed")

    # ---- the end ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        sim = self.sim
        self.begin()
        sim.run(until_s=self.config["duration_s"] * 1.2)
        sim.heal()
        self.config = {**self.config, "steal": 0.0, "client_loss": 0.0, "too_small": 0.0}
        self.store.too_small = 0.0
        if self.config["seal"]:
            self._seal()
        self._care()
        if not sim.run(until_s=sim.now_s + SETTLE_S, until=lambda: self._is_settled() and self.follower.is_at_tail):
            self.checks.fail("T6" if self._is_settled() else "T5", self._unsettled())
        self.checks.final(self.value, self.store, self._check_staged, self.removals.open)

    def _check_staged(self, order: list[bytes], has_lost: bool) -> set[bytes]:
        there = Counter(order)
        for program in self.imports:
            program.check(there, has_lost)
        return self.sink_checks.check(order, has_lost).union(*(program.payloads for program in self.imports))

    def _is_settled(self) -> bool:
        if not (all(c.is_done for c in self.clients) and all(p.is_done for p in self.programs)):
            return False
        if self.value.truncated or (self.config["seal"] and not self.value.is_sealed):
            return False
        return all(self._has_reached_tail(r) for r in self.readers.values())

    def _has_reached_tail(self, reader: Reader) -> bool:
        # a foreign writer's last batch may never be confirmed
        ours = (b for b in self.checks.batches if b.producer != STRANGER)
        last = max((b.result.dlsn for b in ours if b.result is not None), default=of(0, 0, 0))
        if reader.ended or not reader.follow:
            begins_behind = reader.start is Start.DLSN and reader.next is None and of(*reader.value) > last
            return bool(reader.ended) or begins_behind
        if reader.machine is None:
            return False
        position = reader.machine.position
        waits_for_the_first = not self.value.segments and position.segment == 0  # everything has expired
        return position > last or waits_for_the_first

    def _unsettled(self) -> str:
        clients = {c.name: (c.left, len(c.queue), c.proxy) for c in self.clients if not c.is_done}
        programs = {p.name: (p.left, p.doing) for p in self.programs if not p.is_done}
        readers = {n: r.next for n, r in self.readers.items() if not self._has_reached_tail(r)}
        heard = self.follower.lacs
        return f"not settled: clients={clients} sinks={programs} readers={readers} heard={heard} metadata={self.value}"


def run_plan(plan: Plan, parts: Mapping[str, Any] | None = None, *, trace: bool = False) -> Outcome:
    """Run one plan to its end. parts["planted"]: pairs of a class and its mutant, whose methods it has meanwhile."""
    parts = parts or {}
    is_of_lives = plan.config["style"] == "lives"
    world = LivesWorld(plan, trace=trace) if is_of_lives else StreamWorld(plan, parts, trace=trace)
    with planting(parts.get("planted", ())):
        violation, text = judged(world.run, trace=trace)
    story = ""
    if violation and trace:
        story = "\n\n".join(f"{a}:\n{world.sim.story(a)}" for a in sorted(world.sim.hosts) if "owner" in a)
    return Outcome(
        plan=plan,
        violation=violation,
        text=text,
        reached=world.sim.reached,
        trace_hash=world.sim.trace_hash,
        events=world.sim.events,
        virtual_s=world.sim.now_s,
        lines=world.sim.lines,
        story=story,
    )


def room() -> Room:
    """The simulation `stream` of `python -m tests.simulation`."""
    from tests.simulation.mutants.stream import MUTANTS

    return Room(
        name="stream",
        styles=STYLES,
        draw=draw_plan,
        run=run_plan,
        must_reach=MUST_REACH,
        mutants=MUTANTS,
        progress=PROGRESS,
        rare=RARE,
    )
