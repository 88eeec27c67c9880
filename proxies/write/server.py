"""The write proxy: composes and runs the parts of the process that owns streams and accepts batches.

On shutdown every owned stream is handed over, within `drain_s`, before the listener closes.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from actors.runtime import TaskScope
from actors.stream_deletion import StreamDeletionActor
from actors.stream_owner import StreamOwnerActor
from actors.supervisor import Supervisor
from dlog.errors import CookieError, DLogError, MetadataUnavailableError
from dlog.events import ClaimLost, Event, LacMoved, ProxyDrained, ProxyDraining, StreamReady, StreamStalled
from dlog.io.clock import NeverAheadClock
from dlog.io.metadata import Members, ProxyInfo, SessionState
from dlog.io.object_metadata import ProxySender
from dlog.io.shared_timers import ProcessTimers, SharedTimers
from dlog.machine import Versioned
from dlog.model.ids import METADATA_STREAM, NO_ENTRY, ProxyId, StreamName, stream_name
from dlog.model.location import DEFAULT_LOCATION, NetworkLocation
from dlog.model.segment import StreamKey
from dlog.ownership.claim import Claimant
from dlog.stores.contract import SegmentStore
from dlog.stores.kafka.store import KafkaStore
from dlog.stores.s3.store import S3Store
from dlog.wire.proxy import Hello
from proxies import serving
from proxies.admission import Admission
from proxies.connection import Connection, Session
from proxies.detector import Detector
from proxies.dialling import Dialler
from proxies.forwarding import ForwardingPool
from proxies.health import Health
from proxies.meters import Meters, add_stores
from proxies.preference import Preference
from proxies.streams import ProxyMetadata
from proxies.write.admin import Admin
from proxies.write.dependency_check import DependencyCheck
from proxies.write.lac_subscriptions import LacSubscriptions
from proxies.write.object_controllers import ObjectControllers, ObjectStorageAccess, OperationConnection
from proxies.write.options import WriteOptions
from proxies.write.owned_streams import OwnedStreams
from proxies.write.ownership_advisor import OwnershipAdvisor
from proxies.write.session import WriteSession
from proxies.write.store_check import check_store, checks_of
from proxies.write.takeover_queue import TakeoverQueue
from proxies.write.upkeep import Upkeep

RELEASES_AT_ONCE = 32
UNREGISTER_S = 2.0
ASK_CONNECT_S = 1.0  # to the proxy that has the controller of streams in objects
OWNERS_END_S = 2.0  # for owners that are left after the hand-over
REGION_WAIT_S = 5.0  # for a region to be open before the proxy serves; Kafka may be out of reach


class WriteProxy:
    """One write proxy, serving while `run` runs."""

    def __init__(
        self,
        options: WriteOptions,
        metadata: ProxyMetadata,
        stores: Mapping[str, SegmentStore],
        *,
        location: NetworkLocation = DEFAULT_LOCATION,
        object_storage: ObjectStorageAccess | None = None,
        on_event: Callable[[Event], None] = serving.report_event,
        rng: random.Random | None = None,
    ) -> None:
        """location: where it stands. object_storage: None: this process does not host the controller of streams in
        objects."""
        self.options = options
        self.role = "write"
        self.address = ""
        self.id = ProxyId(options.id)
        self.tails = LacSubscriptions()
        self.admission = Admission(
            process_bytes_max=options.process_bytes_max, stream_bytes_max=options.stream_bytes_max
        )
        self.connection_bytes_max = options.connection_bytes_max
        self.batch_bytes_max = options.batch_bytes_max
        self.tasks: TaskScope
        self.owned_streams: OwnedStreams
        self.fitness: DependencyCheck
        self.placing: OwnershipAdvisor
        self.admin: Admin
        self.object_controllers: ObjectControllers
        self.forwarding: ForwardingPool
        self.health = Health(metadata, patience_s=options.unready_after_s, needs_bookies="ledger" in stores)
        self.listener: serving.Listener
        self._metadata = metadata
        self._stores = stores
        self._location = location
        self._object_storage = object_storage
        self._on_event = on_event
        self._rng = rng or serving.seeded()
        self._owner_options = options.owner  # shared by all streams
        self._clock = NeverAheadClock()
        self._timers = ProcessTimers(SharedTimers(), SharedTimers(options.control_records_per_s))
        self._on_lac = self._moved  # one bound method for all streams
        self._on_event_of_owner = self._on_owner_event
        self._detector: Detector
        self._readers = Preference()
        self._rival: str | None = None  # address of another process that is registered under this id

    async def run(self, stop: asyncio.Event, on_ready: Callable[[str, str], None]) -> None:
        """Serve until `stop`, hand streams over, return. on_ready: called with id and address once clients may connect.

        Raises ConfigError (port taken), MetadataUnavailableError (cannot register), CookieError (another process is
        registered under this id, now or later).
        """
        options = self.options
        limits = {**serving.limits(options), "inflight_bytes_max": options.connection_bytes_max}
        self.listener = serving.Listener(
            "write", options.id, limits, options, self._open_session, on_event=self._on_event
        )
        bound = await self.listener.bind()
        self.address = options.advertise or bound
        self.id = ProxyId(options.id or self.address)
        self.listener.name = self.id
        supervisor = Supervisor("owners", rng=self._rng, on_event=self._on_event, drain_s=OWNERS_END_S)
        try:
            async with supervisor, TaskScope(drain_s=0.0, on_failure=serving.failed(self._on_event)) as self.tasks:
                self._compose(supervisor)
                self.tasks.start(self._detector.run(), name="detector")
                self.tasks.start(self.fitness.run(), name="fitness")
                self.tasks.start(self.owned_streams.run(), name="holdings")
                for check in checks_of(next(iter(self._stores.values()))):
                    if check.is_awaited:
                        self.health.readiness.expect_over(check.trouble)
                    note = partial(self.health.note, check.trouble, check.is_needed)
                    self.tasks.start(check_store(check, note, self._on_event), name=f"check: {check.trouble}")
                on_regions = [store for store in self._stores.values() if isinstance(store, KafkaStore)]
                for store in on_regions:
                    self.tasks.start(store.keep_region_open(), name="keep a region open")
                if options.upkeep_s:
                    self.tasks.start(self._upkeep.run(), name="upkeep")
                for store in on_regions:  # else a stream that comes to this proxy waits for new topics
                    await store.wait_region_checked(REGION_WAIT_S)
                await self.health.listen(options.host, options.http_port)
                await self._metadata.register_proxy(
                    ProxyInfo(self.id, "write", self.address, serving.peer_address(options, bound), self._location)
                )
                await self.listener.serve()  # not before: another process may have this id, and would lose its streams
                self.health.readiness.serving()
                on_ready(self.id, self.address)
                self.tasks.start(self._upload_own(), name="upload what the last process of this proxy left")
                self.tasks.start(self._watch_id(stop), name="watch for another process of this id")
                await stop.wait()
                self.health.readiness.draining()
                await asyncio.sleep(options.notice_s if self._rival is None else 0.0)
                await self._drain()
                if self._rival is not None:
                    raise CookieError(
                        f"another process was registered under this id, so this one ends; give each its own id: "
                        f"id={self.id} other={self._rival} here={self.address}"
                    )
        finally:
            self.health.close()
            self.listener.close()
            for connection in tuple(self.listener.connections):
                connection.abort()

    # ---- ServerContext, used by sessions -----------------------------------------------------------------------------

    def read_proxy(self, stream: str, client: NetworkLocation | None) -> str | None:
        """Address of the read proxy that the ring prefers for a stream: in the client's region, if it is known, else in
        this one; without a read proxy there, of all."""
        members = self._metadata.known_members().read_proxies
        chosen = self._readers.choose(members, stream, (client or self._location,))
        return None if chosen is None else chosen.address

    def proxies(self) -> dict[str, str]:
        """Addresses of all registered proxies that are not suspected, in order, and the region of each."""
        members = self._metadata.known_members()
        every = [*members.write_proxies.values(), *members.read_proxies.values()]
        found = sorted((p.address, p.location.region) for p in every if not self._detector.suspects(p.address))
        return dict(found[:1000])

    def other_writers(self) -> list[str]:
        """Addresses of the other write proxies that are not suspected."""
        members = self._metadata.known_members().write_proxies.values()
        return sorted(p.address for p in members if p.proxy != self.id and not self._detector.suspects(p.address))

    def ping_reply(self) -> dict[str, Any]:
        """The fields of the reply to another write proxy's ping: `lacks`, what this proxy does not reach, and
        `suspects`, addresses of the proxies that it suspects for what they lack; each only if there is any."""
        fields: dict[str, Any] = {}
        if self.fitness.lacks:
            fields["lacks"] = self.fitness.lacks
        if unfit := self._detector.unfit:
            fields["suspects"] = unfit
        return fields

    async def hand_over(self, stream: str, incarnation: str) -> dict[str, Any]:
        """Hand a stream over; see OwnedStreams.hand_over_on_request."""
        await self.admin.check_incarnation(stream, incarnation)
        await self.owned_streams.hand_over_on_request(stream_name(stream), incarnation)
        return {}

    async def stat(self, stream: str) -> dict[str, Any]:
        """What this proxy knows of a stream. Raises StreamNotFoundError, MetadataUnavailableError."""
        return await self.admin.stat(stream)

    async def names(self, after: str, limit: int, listing: str | None) -> dict[str, Any]:
        """Stream names in order. Raises MetadataUnavailableError."""
        return await self.admin.names(after, limit, listing)

    def meters(self) -> Meters:
        """Metrics of this proxy; call it once the proxy is ready."""
        meters = self.listener.meters()
        admission = self.admission
        meters.counter("write_batches", "Batches accepted", lambda: admission.batches)
        meters.counter("write_bytes", "Bytes of batches accepted", lambda: admission.bytes)
        meters.counter("write_refused", "Batches refused because too much was in flight", lambda: admission.refused)
        meters.counter(
            "write_producers_unknown",
            "Batches refused because their producer is not in the producer table; see producers_max",
            lambda: admission.producers_unknown,
        )
        meters.gauge(
            "write_in_flight_bytes", "Bytes of batches accepted and not replied to", lambda: admission.process.bytes
        )
        meters.gauge("write_streams", "Streams being taken over, owned or handed over", lambda: len(self.owned_streams))
        takes = self.owned_streams.takes
        meters.counter("write_takes", "Take-overs begun", lambda: takes.begun)
        meters.gauge("write_takes_running", "Streams being taken over", lambda: takes.running)
        meters.gauge("write_takes_waiting", "Streams waiting to be taken over", lambda: takes.waiting)
        meters.gauge("write_takes_peak", "Most streams being taken over at once so far", lambda: takes.peak)
        meters.counter(
            "write_retired", "Streams released because they were not used", lambda: self.owned_streams.retired
        )
        self.forwarding.add_to(meters)
        add_stores(meters, self._stores.values())
        meters.gauge("write_tails", "Subscriptions to the LAC of a stream", lambda: len(self.tails))
        return meters

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _compose(self, supervisor: Supervisor) -> None:
        options = self.options
        says_preamble = options.preambles().of_everybody
        dialler = Dialler("write-proxy", self.id, self._metadata, says_preamble=says_preamble)
        self.forwarding = ForwardingPool(dialler, self.tasks)
        self._detector = Detector(
            self.id,
            self.address,
            self._metadata,
            options.detector,
            dialler,
            reaches=lambda what: self.fitness.reaches(what),
            on_event=self._on_event,
        )
        self.placing = OwnershipAdvisor(
            self.id,
            self.address,
            self._metadata,
            self._detector,
            drains=lambda: self.owned_streams.draining or self.fitness.is_unfit,
            location=self._location,
        )
        self.owned_streams = OwnedStreams(
            supervisor,
            self.tasks,
            self.placing,
            self._build,
            build_deletion=self._build_deletion,
            takes=TakeoverQueue(
                self.tasks,
                at_once=options.takes_at_once,
                waiting_max=options.takes_max,
                slow_s=options.take_slow_s,
            ),
            waiting_max=options.requests_max,
            idle_s=options.idle_s,
            streams_max=options.streams_max,
            on_gone=self._gone,
            on_release=lambda stream: self.object_controllers.release(stream),
            is_followed=lambda stream: self.tails.has(stream) or self.object_controllers.hosts(stream),
            may_retire=lambda: self._metadata.state is SessionState.CONNECTED,
            is_unfit=lambda: self.fitness.is_unfit,
        )
        self.object_controllers = ObjectControllers(
            self.owned_streams, self._metadata, self._stores, supervisor, self._object_storage, on_event=self._on_event
        )
        if self._object_storage is not None:
            remote = ProxySender(
                self._metadata, lambda address: dialler.open(address, ASK_CONNECT_S, OperationConnection), self._rng
            )
            self._object_storage.sender.attach(self.object_controllers, remote)
        self.fitness = DependencyCheck(
            self._metadata,
            self.owned_streams,
            self._stores,
            has_peer=lambda: bool(self.other_writers()),
            is_suspected=lambda: self._detector.is_suspected,
        )
        self.admin = Admin(
            self._metadata, self._stores, self.owned_streams, self.placing, self.tasks, on_event=self._on_event
        )
        self._upkeep = Upkeep(
            self.id,
            self._metadata,
            self.owned_streams,
            preferred=self.placing.maintainer,
            finish=self.admin.finish_deletion,
            upload=self._upload_left,
            unix_ms=self._clock.unix_ms,
            every_s=self.options.upkeep_s,
            rng=random.Random(os.urandom(8)),
        )

    async def _upload_left(self) -> None:
        """Have uploaded what the last process of this proxy left in its write-ahead log. Raises StoreError,
        MetadataUnavailableError."""
        store = self._stores.get("s3")
        if isinstance(store, S3Store) and isinstance(await self._metadata.read(StreamKey(METADATA_STREAM)), Versioned):
            await store.upload_left()

    async def _upload_own(self) -> None:
        with suppress(DLogError):  # out of reach: the next round of upkeep tries again
            await self._upload_left()

    def _open_session(self, connection: Connection, hello: Hello) -> Session:
        return WriteSession(self, connection, hello)

    def _claimant(self) -> Claimant:
        return Claimant(proxy=self.id, address=self.address, nonce=os.urandom(8).hex())

    def _build_deletion(self, stream: StreamName) -> StreamDeletionActor:
        return StreamDeletionActor(
            stream,
            self._claimant(),
            metadata=self._metadata,
            stores=self._stores,
            options=self._owner_options,
        )

    def _build(self, stream: StreamName, on_end: Callable[[StreamOwnerActor], None]) -> StreamOwnerActor:
        return StreamOwnerActor(
            stream,
            self._claimant(),
            metadata=self._metadata,
            stores=self._stores,
            options=self._owner_options,
            requests_max=self.options.requests_max,
            on_lac=self._on_lac,
            on_event=self._on_event_of_owner,
            on_end=on_end,
            shared=self._timers,
            clock=self._clock,
        )

    def _on_owner_event(self, owner: StreamOwnerActor, event: Event) -> None:
        """Handle an event of an owner."""
        self._on_event(event)
        if isinstance(event, ClaimLost):
            self.owned_streams.lost(owner.stream, owner)
        elif isinstance(event, StreamStalled):
            self.owned_streams.stalled(owner, event)
        elif isinstance(event, StreamReady):
            self._moved(LacMoved(event.stream, event.segment, NO_ENTRY))

    def _moved(self, event: LacMoved) -> None:
        self.fitness.moves += 1
        self.owned_streams.moved(event.stream)
        self.tails.moved(event)

    def _gone(self, stream: StreamName) -> None:
        self.object_controllers.gone(stream)
        self.tails.end(stream, lambda: self.owned_streams.elsewhere(stream))

    async def _watch_id(self, stop: asyncio.Event) -> None:
        """Stop this process once another one is registered under its id, which can happen after the end of a session:
        each takes the streams of the other for those of a former self."""
        news = asyncio.Event()
        unsubscribe = self._metadata.on_members(news.set)
        try:
            while self._rival is None:
                news.clear()
                with suppress(MetadataUnavailableError):
                    if self._other_address(self._metadata.known_members()):
                        self._rival = self._other_address(await self._metadata.members())  # what is known may be old
                if self._rival is None:
                    await news.wait()
        finally:
            unsubscribe()
        stop.set()

    def _other_address(self, members: Members) -> str | None:
        """The address under which another process is registered with this id."""
        found = members.write_proxies.get(self.id)
        return found.address if found is not None and found.address != self.address else None

    # ---- shutdown ---------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        owned = self.owned_streams.drain()
        self._on_event(ProxyDraining(len(owned)))
        handed = 0
        room = asyncio.Semaphore(RELEASES_AT_ONCE)

        async def hand_over(stream: StreamName) -> None:
            nonlocal handed
            async with room:
                try:
                    await self.owned_streams.ask(stream, None)  # a take-over under way is completed first
                    released = await self.owned_streams.hand_over(stream)
                    handed += released  # two statements: `+= await` would use the value from before the wait
                except DLogError:
                    return  # not owned any more, or its state is unknown: the next owner recovers it

        try:
            async with asyncio.timeout(self.options.drain_s):
                await self._unregister()
                async with asyncio.TaskGroup() as group:
                    for stream in owned:
                        if stream != METADATA_STREAM:
                            group.create_task(hand_over(stream), name=f"hand over {stream}")
                if METADATA_STREAM in owned:  # last: the others ask its controller for the ends of their segments
                    await hand_over(METADATA_STREAM)
        except TimeoutError:
            pass
        self._on_event(ProxyDrained(handed, len(owned) - handed))
        self.listener.close()
        self.listener.dismiss("this proxy is shutting down")
        await self.listener.gone(1.0)

    async def _unregister(self) -> None:
        """Leave the ring; requests for the streams owned here are still served."""
        try:
            async with asyncio.timeout(UNREGISTER_S):
                await self._metadata.unregister_proxy(self.id)
        except (TimeoutError, DLogError):
            return  # the end of the session does it
