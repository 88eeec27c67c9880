"""The read proxy: composes and runs the process that serves readers from one source per stream and a cache.

Invariants:
- a reader that was redirected here is served; any other one is redirected to the proxy that the ring prefers in the
  reader's region, or of all if there is none in it, so that a stream's readers of a region share one source;
- nothing here is the only copy of anything: on shutdown readers are notified and go to another proxy.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

from actors.entry_cache import EntryCache
from actors.registry import Registry
from actors.runtime import TaskScope
from actors.stream_feed import StreamFeed
from actors.supervisor import Supervisor
from dlog.errors import DLogError, OverCapacityError
from dlog.events import Event
from dlog.io.metadata import ProxyInfo
from dlog.model.ids import ProxyId, StreamName, stream_name
from dlog.model.location import DEFAULT_LOCATION, NetworkLocation
from dlog.stores.contract import SegmentStore
from dlog.wire.proxy import GetOwner, Hello, Read
from proxies import catalog, serving
from proxies.admission import Admission
from proxies.connection import Connection, Session
from proxies.dialling import Dialler
from proxies.dispatch import client_location
from proxies.forwarding import ForwardingPool
from proxies.health import Health
from proxies.meters import Meters, add_stores
from proxies.preference import Preference
from proxies.read.contact import MetadataContact
from proxies.read.options import ReadOptions
from proxies.read.owner_connections import OwnerConnections
from proxies.read.reader import ReaderActor
from proxies.read.rechecks import recheck_periodically
from proxies.read.relay import Relay
from proxies.read.session import ReadSession
from proxies.streams import ProxyMetadata, read_stream

UNREGISTER_S = 2.0
TAILERS_END_S = 2.0


class ReadProxy:
    """One read proxy, serving while `run` runs."""

    def __init__(
        self,
        options: ReadOptions,
        metadata: ProxyMetadata,
        stores: Mapping[str, SegmentStore],
        *,
        location: NetworkLocation = DEFAULT_LOCATION,
        on_event: Callable[[Event], None] = serving.report_event,
        rng: random.Random | None = None,
    ) -> None:
        self.options = options
        self.role = "read"
        self.address = ""
        self.id = ProxyId(options.id)
        self.cache = EntryCache(options.cache_bytes_max)
        self.readers_per_connection_max = options.readers_per_connection_max
        self._readers: dict[ReaderActor, None] = {}
        self._far_readers = 0  # of clients that named another region
        self.tasks: TaskScope
        self.relay: Relay
        self.forwarding: ForwardingPool
        self.admission = Admission(
            process_bytes_max=options.process_bytes_max, stream_bytes_max=options.stream_bytes_max
        )
        self.connection_bytes_max = options.connection_bytes_max
        self.batch_bytes_max = options.batch_bytes_max
        self.health = Health(metadata, patience_s=options.unready_after_s)
        self.listener: serving.Listener
        self._metadata = metadata
        self._listings = catalog.Listings(metadata)
        self._stores = stores
        self._location = location
        self._on_event = on_event
        self._rng = rng or serving.seeded()
        self._fetches = asyncio.Semaphore(options.fetches_max)
        self._upstream: OwnerConnections
        self._tailers: Registry[StreamFeed]
        self._readers_ring = Preference()
        self._contact: MetadataContact

    async def run(self, stop: asyncio.Event, on_ready: Callable[[str, str], None]) -> None:
        """Serve until `stop`, send GoAway to all clients, return. on_ready: called with id and address.

        Raises ConfigError (port taken), MetadataUnavailableError (cannot register).
        """
        options = self.options
        self.listener = serving.Listener(
            "read", options.id, serving.limits(options), options, self._open_session, on_event=self._on_event
        )
        bound = await self.listener.bind()
        self.address = options.advertise or bound
        self.id = ProxyId(options.id or self.address)
        self.listener.name = self.id
        supervisor = Supervisor("tailers", rng=self._rng, on_event=self._on_event, drain_s=TAILERS_END_S)
        try:
            async with supervisor, TaskScope(drain_s=0.0, on_failure=serving.failed(self._on_event)) as self.tasks:
                dialler = Dialler("read-proxy", self.id, self._metadata, says_preamble=options.preambles().of_everybody)
                self.forwarding = ForwardingPool(dialler, self.tasks)
                self.relay = Relay(dialler, self._metadata, here=self._location)
                self._upstream = OwnerConnections(dialler, options.upstream, self.tasks, self._find_owner)
                self._tailers = Registry(
                    supervisor, self._build_tailer, idle_s=options.idle_s, count_max=options.streams_max
                )
                self.tasks.start(self._tailers.run(), name="retire idle tailers")
                doubting = recheck_periodically(
                    self._tailers, every_s=options.doubt_every_s, per_s_max=options.doubts_per_s_max, rng=self._rng
                )
                self.tasks.start(doubting, name="recheck metadata of quiet streams")
                self._contact = MetadataContact(
                    self._metadata,
                    dialler,
                    self.id,
                    every_s=options.contact_every_s,
                    patience_s=options.contact_patience_s,
                )
                looking = self._contact.run(self._a_stream, self._hand_readers_on)
                self.tasks.start(looking, name="check contact with ZooKeeper")
                await self.listener.serve()
                await self.health.listen(options.host, options.http_port)
                await self._metadata.register_proxy(
                    ProxyInfo(self.id, "read", self.address, serving.peer_address(options, bound), self._location)
                )
                self.health.readiness.serving()
                on_ready(self.id, self.address)
                await stop.wait()
                self.health.readiness.draining()
                await asyncio.sleep(options.notice_s)
                await self._leave()
                self.relay.close()
        finally:
            self.health.close()
            self.listener.close()
            for connection in tuple(self.listener.connections):
                connection.abort()

    @property
    def readers(self) -> int:
        """Number of open readers."""
        return len(self._readers)

    # ---- ServerContext, used by sessions -----------------------------------------------------------------------------

    def elsewhere(self, read: Read) -> str | None:
        """Address of the read proxy that should serve a read, by the ring of the reader's region; None: it is this one.
        A reader that names no region is served in this one. Raises InvalidRequestError."""
        near = client_location(read.region) or self._location
        members = self._contact.better_served_by or {
            **self._metadata.known_members().read_proxies,
            self.id: ProxyInfo(self.id, "read", self.address, location=self._location),
        }
        chosen = self._readers_ring.choose(members, read.stream, (near,))
        return None if chosen is None or chosen.proxy == self.id else chosen.address

    def open_reader(self, connection: Connection, read: Read, on_end: Callable[[], None]) -> ReaderActor:
        """Start a reader. Raises OverCapacityError, InvalidRequestError."""
        client = client_location(read.region)
        is_far = client is not None and not client.is_near(self._location)
        if self.readers >= self.options.readers_max:
            raise OverCapacityError(f"too many readers on this proxy, use another one: readers={self.readers}")

        def end() -> None:
            self._readers.pop(reader, None)
            self._far_readers -= is_far
            on_end()

        reader = ReaderActor(connection, read, self._tailers, end, chunk_bytes=self.options.chunk_bytes)
        self._readers[reader] = None
        self._far_readers += is_far
        self.tasks.start_alone(reader.run(), name=f"reader {read.request} of {connection.peer}", stop=reader.stop)
        return reader

    async def stat(self, stream: str) -> dict[str, Any]:
        """What this proxy knows of a stream. Raises StreamNotFoundError, MetadataUnavailableError."""
        name = stream_name(stream)
        seen = await read_stream(self._metadata, name)
        description = catalog.with_durability(
            await catalog.describe(seen.value), self._stores.get(seen.value.settings.store)
        )
        tailer = self._tailers.living(name)
        for segment in seen.value.in_progress if tailer is not None else ():
            assert tailer is not None
            catalog.with_tail(description, segment.number, tailer.lac(segment), None)
        return description

    async def names(self, after: str, limit: int, listing: str | None) -> dict[str, Any]:
        """Stream names in order, see catalog.Listings. Raises MetadataUnavailableError."""
        return await self._listings.page(after, limit, listing)

    def meters(self) -> Meters:
        """Metrics of this proxy; call it once the proxy is ready."""
        meters = self.listener.meters()
        cache = self.cache
        meters.gauge("read_readers", "Readers open", lambda: self.readers)
        meters.gauge("read_readers_far", "Readers open of clients in other regions", lambda: self._far_readers)
        meters.gauge("read_streams", "Streams followed", lambda: len(self._tailers))
        meters.gauge("read_upstreams", "Connections to owners", lambda: len(self._upstream))
        meters.gauge("read_cache_bytes", "Bytes of entries cached", lambda: cache.bytes)
        meters.counter("read_cache_hits", "Entries found in the cache", lambda: cache.hits)
        self.forwarding.add_to(meters)
        add_stores(meters, self._stores.values())
        meters.counter("read_cache_misses", "Requests whose first entry was not in the cache", lambda: cache.misses)
        return meters

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _open_session(self, connection: Connection, hello: Hello) -> Session:
        return ReadSession(self, connection, hello)

    async def _find_owner(self, stream: StreamName, lost: str) -> str:
        """See OwnerConnections."""
        reply = await self.relay.ask(GetOwner(0, stream, lost))
        return str(reply.get("location") or "")

    def _a_stream(self) -> str | None:
        """A stream that has a reader here."""
        reader = next(iter(self._readers), None)
        return None if reader is None else reader.stream

    def _hand_readers_on(self) -> None:
        """Redirect readers to proxies that reach ZooKeeper, which this one does not."""
        for reader in tuple(self._readers):
            location = self.elsewhere(reader.read)
            if location is not None:
                reader.move(location)

    def _build_tailer(self, stream: str) -> StreamFeed:
        return StreamFeed(
            StreamName(stream),
            metadata=self._metadata,
            stores=self._stores,
            cache=self.cache,
            fetches=self._fetches,
            upstream=self._upstream,
            options=self.options.tailer,
            rng=self._rng,
        )

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(UNREGISTER_S):
                await self._metadata.unregister_proxy(self.id)
        except (TimeoutError, DLogError):
            pass  # the end of the session does it
        self.listener.close()
        self.listener.dismiss("this proxy is shutting down")
        await self.listener.gone(1.0)
