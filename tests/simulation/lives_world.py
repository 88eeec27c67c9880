"""The simulated world of one name: streams created, written, sealed, truncated and deleted under it, one after the
other.

The style "lives" of the simulation `stream`. An operator tries each deletion at any proxy until it is answered; copies
of it, and of seals, truncations and alterations, arrive late, also in the next incarnation. Proxies freeze between
their read of metadata and what they do next; an owner that is cut off from metadata goes on writing. The store keeps
what was written to a deleted stream, as bookies do.

Invariants:
- D1: a request for one incarnation never changes another.
- D2: a request made after a deletion was answered is not acknowledged in the deleted incarnation (the answer to what
  was durable before it may come late).
- D3: an alteration changes the settings at most once, and only the settings that it was made from. An alteration that
  was answered as done was done; one that was refused because the settings had changed is never done.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from dlog.errors import DLogError, StaleRequestError
from dlog.events import SegmentStarted
from dlog.log.messages import (
    AcquireStream,
    AlterStream,
    BatchWritten,
    DeleteStream,
    SealStream,
    TruncateBefore,
    WriteBatch,
)
from dlog.log.options import OwnerOptions
from dlog.log.owner import StreamOwnerMachine
from dlog.log.producer_table import NAME_BYTES
from dlog.log.stream_deletion import StreamDeletion
from dlog.machine import Missing, Versioned
from dlog.model.dlsn import DLSN, of
from dlog.model.ids import Epoch, ProxyId, StreamName
from dlog.model.segment import LEDGER, StreamKey, StreamMetadata, StreamSettings, Truncation
from dlog.options import draw
from dlog.ownership.claim import Claimant
from dlog.stores.contract import Capabilities
from dlog.wire.entry import ENTRY_BYTES_MAX, build_record_set
from tests.simulation.kernel import Simulation, Violation
from tests.simulation.network import Node
from tests.simulation.plan import EVERY_KIND, Plan, draw_faults
from tests.simulation.store_model import StoreModel, StoreTransport
from tests.simulation.stream_checks import first_readable

STREAM = StreamName("s")
KEY = StreamKey(STREAM)
STORES = {LEDGER: Capabilities(visible_is_final=False, entry_bytes_max=ENTRY_BYTES_MAX, has_foreign_writers=True)}
PROXIES = ("p1", "p2", "p3")
STORE_NODE = "store"
MUST_REACH = (
    *("deleted", "life_gone", "late", "life_refused", "segment_not_ended", "acked_in_a_later_life"),
    *("altered", "alter_stale", "alter_in_doubt"),
)
RETENTION_S = 10.0**6  # at least: nothing expires
SETTLE_S = 60.0


def draw_plan(seed: int) -> Plan:
    """Draw the plan of a seed."""
    rng = random.Random(f"lives/{seed}/plan")
    duration = rng.choice((1.0, 3.0))
    config: dict[str, Any] = {
        "style": "lives",
        "lives": rng.choice((2, 3, 5)),
        "pace_s": rng.choice((0.005, 0.02, 0.1)),
        "segment_bytes": rng.choice((300, 2000, 10**6)),
        "copies": rng.choice((0.2, 0.5)),
        "late_s": rng.choice((0.05, 0.5, 2.0)),
        "seals": rng.choice((0.0, 0.02)),
        "truncates": rng.choice((0.0, 0.05)),
        "force": rng.random() < 0.2,
        "alters": random.Random(f"lives/{seed}/alters").choice((0.0, 0.1, 0.3)),
        "duration_s": duration,
        "timeout_s": rng.choice((0.05, 0.5)),
        "sync_s": rng.choice((0.0002, 0.001)),
    }
    faults = draw_faults(
        rng,
        servers=PROXIES,
        clients=(STORE_NODE, *PROXIES[:2]),
        duration_s=duration,
        kinds=EVERY_KIND,
        count_max=10,
        marks=("deleting", "deleted", "claimed"),
        messages=("AppendEntry", "EntryAppended", "RecoverSegment", "SegmentRecovered"),
    )
    return Plan(seed=seed, config=config, faults=faults)


class Proxy:
    """A write proxy: one machine at a time, an owner or a deletion."""

    def __init__(self, world: LivesWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.address = ""
        self.claims = 0

    @property
    def machine(self) -> StreamOwnerMachine | StreamDeletion | None:
        machine: StreamOwnerMachine | StreamDeletion | None = self.world.sim.machine(self.address)
        return None if machine is None or machine.has_ended else machine

    def receive(self, request: Any, incarnation: str) -> None:
        """Handle a request that has arrived. What the proxy reads first may be outdated when it goes on."""
        world = self.world
        value = world.value
        is_frozen_behind_its_look = world.sim.rng.random() < 0.5
        looks = not isinstance(request, WriteBatch) and not is_frozen_behind_its_look
        if looks and (value is None or value.incarnation != incarnation):
            world.sim.reach("life_gone")
            world.told(request, incarnation, None)
            return
        if isinstance(request, DeleteStream):
            self._delete(request, incarnation)
        elif isinstance(machine := self.machine, StreamDeletion):
            return
        else:
            if machine is None and not self._claim(value):
                return
            owner = world.sim.machine(self.address)
            world.sim.ask(self.address, request, lambda result: self._answered(owner, request, incarnation, result))

    def _answered(self, owner: StreamOwnerMachine, request: Any, incarnation: str, result: Any) -> None:
        if isinstance(request, WriteBatch):
            self.world.written(owner, request, result)
        else:
            self.world.told(request, incarnation, result)

    def _claim(self, value: StreamMetadata | None) -> bool:
        """Become the owner, on evidence that may be wrong."""
        sim = self.world.sim
        if value is None or (value.owner.epoch and value.owner.proxy != self.name and sim.rng.random() < 0.7):
            return False
        machine = StreamOwnerMachine(KEY, self._claimant("owner"), self.world.options, stores=STORES)
        sim.place(self.name, self.address, machine, on_event=self._heard)
        sim.ask(self.address, AcquireStream(self._epoch(value), 4_000_000))
        return True

    def _delete(self, request: DeleteStream, incarnation: str) -> None:
        sim = self.world.sim
        if isinstance(self.machine, StreamDeletion):
            return  # one is under way here
        sim.reach("deleting")
        sim.remove(self.address)
        machine = StreamDeletion(KEY, self._claimant("deletion"), self.world.options, patience_s=0.3)
        sim.place(self.name, self.address, machine)
        request = replace(request, if_epoch=self._epoch(self.world.value))
        sim.ask(self.address, request, lambda result: self.world.told(request, incarnation, result))

    def _epoch(self, value: StreamMetadata | None) -> Epoch | None:
        return None if value is None or self.world.sim.rng.random() < 0.5 else value.owner.epoch

    def _claimant(self, kind: str) -> Claimant:
        self.claims += 1
        incarnation = self.world.sim.nodes[self.name].incarnation
        self.address = f"{self.name}/{kind}-{incarnation}-{self.claims}"
        return Claimant(proxy=ProxyId(self.name), address=self.name, nonce=self.address)

    def _heard(self, event: Any) -> None:
        if isinstance(event, SegmentStarted):
            self.world.sim.reach("claimed")


class LivesWorld:
    """One history of one name."""

    def __init__(self, plan: Plan, *, trace: bool = False) -> None:
        config = self.config = plan.config
        self.sim = Simulation(
            plan,
            transport=StoreTransport(),
            trace=trace,
            request_timeout_s=config["timeout_s"],
            sync_s=config["sync_s"],
        )
        self.options = replace(
            draw(OwnerOptions, random.Random(f"{plan.seed}/options")), producers_max=100, pending_bytes_max=10**6
        )
        self.lives: list[str] = []  # ids of all incarnations, in order
        self.deleted: dict[str, int] = {}  # incarnation -> when its deletion was answered
        self._asked_at: dict[bytes, int] = {}  # producer -> when its batch was sent
        self.asked: dict[str, set[type[Any]]] = {}  # incarnation -> kinds of requests for it
        self.points: dict[str, DLSN] = {}  # incarnation -> the highest truncation point requested
        self.acked: dict[str, list[DLSN]] = {}
        self.alterations: dict[float, AlterStream] = {}  # by their retention, which is unique
        self.altered: dict[float, int] = {}  # how often metadata took each one
        self.refused: set[float] = set()  # answered as not done, for good
        self._batches = 0
        self.sim.metadata.on_change = self._changed
        self.sim.node(STORE_NODE, start=self._start_store)
        self.proxies = [Proxy(self, name) for name in PROXIES]
        for name in PROXIES:
            self.sim.node(name)

    @property
    def value(self) -> StreamMetadata | None:
        """The stream that has the name now."""
        seen = self.sim.metadata.read(KEY)
        return seen.value if isinstance(seen, Versioned) else None

    def _start_store(self, node: Node) -> None:
        rng = random.Random(self.sim.rng.random())
        self.store = StoreModel(rng, self.sim.disk("store").durable, STORES)
        self.sim.place(STORE_NODE, "store", self.store, listens=True)

    # ---- requests ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._make()
        self.sim.call_in(0.0, self._write)

    def _make(self) -> None:
        """Create the next stream of the name, once nothing is left of the one before."""
        seen = self.sim.metadata.read(KEY)
        if isinstance(seen, Missing) and seen.left is not None:
            self.sim.metadata.remove(KEY, seen.left.value.incarnation)
        incarnation = f"life{len(self.lives) + 1}"
        self.lives.append(incarnation)
        self.asked[incarnation], self.acked[incarnation] = set(), []
        settings = StreamSettings(segment_bytes=self.config["segment_bytes"], retention_s=0.0)
        self.sim.metadata.create(KEY, StreamMetadata(name=STREAM, incarnation=incarnation, settings=settings))
        if len(self.lives) < self.config["lives"]:
            self.sim.call_in(self.sim.rng.uniform(0.0, self.config["duration_s"] / 2), self._delete, incarnation)

    def _write(self) -> None:
        """Append a record of a producer of its own, at any proxy; now and then request a seal or a truncation."""
        rng, incarnation = self.sim.rng, self.lives[-1]
        body = build_record_set([b"%d" % self._batches])
        producer = (b"%d" % self._batches).ljust(NAME_BYTES, b".") + bytes(16 - NAME_BYTES)
        self._batches += 1
        self._asked_at[producer] = self.sim.now
        self._send(WriteBatch(body, 1, None, producer, 0, 0, False, 4_000_000), incarnation, copies=False)
        if rng.random() < self.config["seals"]:
            self._send(SealStream(incarnation), incarnation)
        if self.acked[incarnation] and rng.random() < self.config["truncates"]:
            point = rng.choice(self.acked[incarnation])
            self.points[incarnation] = max(self.points.get(incarnation, point), point)
            self._send(TruncateBefore(point, incarnation), incarnation)
        if self.config.get("alters") and rng.random() < self.config["alters"]:
            self._alter(incarnation)
        self.sim.call_in(rng.expovariate(1.0) * self.config["pace_s"], self._write)

    def _alter(self, incarnation: str) -> None:
        """Alter the settings that were read."""
        value = self.value
        if value is None or value.incarnation != incarnation:
            return
        retention_s = RETENTION_S + len(self.alterations)
        settings = replace(value.settings, retention_s=retention_s, version=value.settings.version + 1)
        request = self.alterations[retention_s] = AlterStream(settings, incarnation)
        self._send(request, incarnation)

    def _delete(self, incarnation: str) -> None:
        """Delete, at any proxy, until that is answered."""
        if incarnation not in self.deleted:
            self._send(DeleteStream(incarnation, None, self.config["force"]), incarnation)
            self.sim.call_in(self.sim.rng.uniform(0.02, 0.4), self._delete, incarnation)

    def _send(self, request: Any, incarnation: str, *, copies: bool = True) -> None:
        sim, rng = self.sim, self.sim.rng
        self.asked[incarnation].add(type(request))
        self._arrive_in(rng.expovariate(1.0) * 0.001, request, incarnation)
        if copies and rng.random() < self.config["copies"]:
            sim.reach("late")
            self._arrive_in(rng.uniform(0.0, self.config["late_s"]), request, incarnation)

    def _arrive_in(self, delay_s: float, request: Any, incarnation: str) -> None:
        proxy = self.sim.rng.choice(self.proxies)
        self.sim.call_in(delay_s, proxy.receive, request, incarnation, node=proxy.name)

    # ---- answers ----------------------------------------------------------------------------------------------------

    def told(self, request: Any, incarnation: str, result: Any) -> None:
        if isinstance(request, DeleteStream) and result is None and incarnation not in self.deleted:
            self.sim.reach("deleted")
            self.deleted[incarnation] = self.sim.now
            if self.value is not None and self.value.incarnation == incarnation:
                raise Violation("D2", f"the deletion of {incarnation} was answered, and metadata has it as it was")
            self.sim.call_in(self.sim.rng.choice((0.0, 0.01, 0.2)), self._make)
        elif isinstance(request, AlterStream):
            self._told_of_alteration(request, result)
        elif isinstance(result, DLogError):
            self.sim.reach("segment_not_ended" if result.code == 556 else "life_refused")

    def _told_of_alteration(self, request: AlterStream, result: Any) -> None:
        retention_s = request.settings.retention_s
        if isinstance(result, StaleRequestError) and not result.outcome_unknown:
            self.sim.reach("alter_stale")
            self.refused.add(retention_s)
            if retention_s in self.altered:
                raise Violation("D3", f"{request} was refused, and was done before")
        elif isinstance(result, DLogError) and result.outcome_unknown:
            self.sim.reach("alter_in_doubt")
        elif result is None and self.value is not None and self.value.incarnation == request.incarnation:
            self.sim.reach("altered")
            if retention_s not in self.altered:
                raise Violation("D3", f"{request} was answered as done, and is not in metadata")

    def written(self, owner: StreamOwnerMachine, request: WriteBatch, result: Any) -> None:
        if not isinstance(result, BatchWritten):
            return
        incarnation = owner.incarnation or ""
        deleted_at = self.deleted.get(incarnation)
        if deleted_at is not None and self._asked_at[request.producer] > deleted_at and not self.config["force"]:
            raise Violation("D2", f"acknowledged {result.dlsn} in {incarnation}, asked after its deletion was answered")
        self.acked[incarnation].append(result.dlsn)
        self.sim.reach("ack" if incarnation == self.lives[0] else "acked_in_a_later_life")

    def _changed(self, key: Any, old: StreamMetadata | None, new: StreamMetadata) -> None:
        incarnation, asked = new.incarnation, self.asked[new.incarnation]
        if old is None or old.incarnation != incarnation:
            return
        if new.owner.deleted and not old.owner.deleted and DeleteStream not in asked:
            raise Violation("D1", f"{incarnation} was deleted, nobody asked for it")
        if new.is_sealed and not old.is_sealed and SealStream not in asked:
            raise Violation("D1", f"{incarnation} was sealed, nobody asked for it")
        if new.settings != old.settings:
            self._check_settings(old.settings, new.settings, incarnation)
        first = first_readable(new)
        is_cut = bool(new.truncated) or any(s.truncation is not Truncation.ACTIVE for s in new.segments)
        if is_cut and first is not None and first > self.points.get(incarnation, of(1, 0, 0)):
            raise Violation(
                "D1", f"{incarnation} was truncated to {first}, asked for was {self.points.get(incarnation)}"
            )

    def _check_settings(self, old: StreamSettings, new: StreamSettings, incarnation: str) -> None:
        request = self.alterations.get(new.retention_s)
        if request is None or request.incarnation != incarnation:
            raise Violation("D1", f"the settings of {incarnation} were altered to {new}, nobody asked for it")
        times = self.altered[new.retention_s] = self.altered.get(new.retention_s, 0) + 1
        if times > 1 or new != request.settings or old.version != new.version - 1:
            raise Violation("D3", f"altered for time {times} by {request}: from {old} to {new}")
        if new.retention_s in self.refused:
            raise Violation("D3", f"{request} was refused before it was done")

    # ---- the end ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        sim = self.sim
        self.begin()
        sim.run(until_s=self.config["duration_s"])
        sim.heal()
        wanted = self.config["lives"]
        if not sim.run(until_s=sim.now_s + SETTLE_S, until=lambda: len(self.lives) == wanted and self._is_served()):
            raise Violation("T5", f"not settled: lives={self.lives} deleted={self.deleted} metadata={self.value}")
        self._check_last()

    def _is_served(self) -> bool:
        value = self.value
        return value is not None and (bool(self.acked[value.incarnation]) or value.is_sealed)

    def _check_last(self) -> None:
        """Check that what was acknowledged in the present incarnation is in it."""
        value = self.value
        assert value is not None
        for dlsn in self.acked[value.incarnation]:
            segment = value.segment(dlsn.segment)
            if segment is None:
                if dlsn >= self.points.get(value.incarnation, of(0, 0, 0)):
                    raise Violation("D1", f"{dlsn} was acknowledged in {value.incarnation} and its segment is gone")
                continue
            held = self.store.segments.get(segment.location)
            if held is None or dlsn.entry >= len(held.payloads):
                raise Violation("D1", f"{dlsn} was acknowledged in {value.incarnation} and is nowhere")
