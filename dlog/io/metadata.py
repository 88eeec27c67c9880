"""The metadata ports: all reads and writes of metadata that the service makes in ZooKeeper.

LedgerMetadataStore, StreamMetadataStore, Membership and Cookies; a caller names those that it needs. Calls raise
MetadataUnavailableError unless they say otherwise. A cancelled call may still take effect.

Invariants:
- `read`, lists and `members` show every write confirmed to any client before the call; `known_members` may be old.
- A version belongs to one incarnation of a key: a key deleted and created again takes no write with an older version.
- Every write that decides something is a compare-and-set; watches are hints.

Implementations of all: dlog/io/zookeeper_metadata.py, and tests/memory_metadata.py for tests of one process. The
model in tests/simulation is a VersionedStore.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from dlog.machine import Key, Missing, Outcome, Versioned
from dlog.model.ids import BookieId, LedgerId, ProxyId, StreamName
from dlog.model.ledger import LedgerKey
from dlog.model.location import DEFAULT_LOCATION, NetworkLocation
from dlog.model.segment import Owner
from dlog.values import value


class SessionState(enum.Enum):
    """ZooKeeper session. SUSPENDED: disconnected, may still be valid. LOST: expired, with its ephemeral znodes."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@value
class BookieInfo:
    """Registered address of a bookie, and its rack and region. summaries: it serves SUMMARIZE (docs/protocol.md)."""

    bookie: BookieId
    host: str
    port: int
    location: NetworkLocation = DEFAULT_LOCATION
    summaries: bool = False


@value
class ProxyInfo:
    """A registered proxy; role is "write" or "read".

    address: host:port for clients, which also identifies the proxy. peer_address: host:port for other proxies, if
    different. location: its rack and region.
    """

    proxy: ProxyId
    role: str
    address: str
    peer_address: str = ""
    location: NetworkLocation = DEFAULT_LOCATION


@value
class Members:
    """Registered bookies and proxies by id."""

    writable: dict[BookieId, BookieInfo]
    readonly: dict[BookieId, BookieInfo]
    write_proxies: dict[ProxyId, ProxyInfo]
    read_proxies: dict[ProxyId, ProxyInfo]

    def peer_address_of(self, address: str) -> str:
        """The address at which other proxies reach the proxy identified by `address`."""
        for proxies in (self.write_proxies, self.read_proxies):
            for info in proxies.values():
                if info.address == address:
                    return info.peer_address or address
        return address


@value
class AbsentStream:
    """Version of a stream that does not exist. deletions: `StreamMetadataStore.deletions`, read before the creation.

    A creation with it fails if any stream was deleted since, so a delayed one cannot create its stream a second time.
    """

    deletions: int


@value
class StreamHead:
    """A stream's metadata without its segments. is_truncated: there are segments before the truncation point."""

    owner: Owner
    retention_s: float
    is_truncated: bool


Unsubscribe = Callable[[], None]

#: returns a bookie's cookie as it is in ZooKeeper. Raises CookieError: the bookie must not be registered
CookieCheck = Callable[[], Awaitable[Versioned]]


class MetadataSession(Protocol):
    """The connection that all metadata ports of a process share."""

    @property
    def state(self) -> SessionState: ...

    def on_state(self, callback: Callable[[SessionState], None]) -> Unsubscribe: ...

    def on_unreadable(self, callback: Callable[[str], None]) -> Unsubscribe:
        """Call `callback(path)` once for each znode that a list or a bulk read leaves out, because this process lacks
        the right to read it; at once for those found before."""
        ...

    def unresponsive_s(self) -> float:
        """Seconds since the oldest pending request was sent or the connection was lost; 0: neither."""
        ...

    async def instance_id(self) -> str:
        """Identity of the cluster. Raises MetadataUnavailableError; ClusterNotFoundError if there is no cluster."""
        ...


class VersionedStore(MetadataSession, Protocol):
    """Values that change by compare-and-set: ledgers by LedgerKey (LedgerMetadata), streams by StreamKey
    (StreamMetadata).

    After a network failure `read` and `compare_and_set` return OutcomeUnknown. They raise only what a retry cannot
    repair: DamagedError, UnsupportedVersionError, MetadataWentBackError (not readable), RequestTooLargeError,
    NoRightsError (not written).
    """

    async def read(self, key: Key) -> Outcome: ...

    async def compare_and_set(self, key: Key, value: object, version: object) -> Outcome:
        """Write if the version is current. None creates; Absent creates a stream, or returns Missing if one was deleted
        since. Claiming a stream (a higher owner epoch) also moves its lock znode.

        A created stream gets the value's incarnation id, or a new one. A stream whose owner is written as
        deleted is read as Missing from then on, with its remains in `left`, and counted in `deletions`.

        Derive a stream's next value from the one returned with its version: that has each segment's
        `Segment.metadata_version`.
        """
        ...

    def watch(self, key: Key, callback: Callable[[], None]) -> Unsubscribe:
        """Call `callback` at least once after each change of the value, and after a reconnect if it may have changed.
        `on_state` reports every reconnect."""
        ...


class LedgerMetadataStore(VersionedStore, Protocol):
    """Ledgers: their metadata, ids and list."""

    async def delete(self, key: LedgerKey) -> None:
        """Idempotent."""
        ...

    async def new_ledger_id(self, ahead: int = 1) -> LedgerId:
        """Draw `ahead` ids and return the last; the others stay unused. More than one skips ids that bookies know
        already, after a restored backup has set the generator back."""
        ...

    def ledgers(self) -> AsyncIterator[LedgerId]: ...


class StreamMetadataStore(VersionedStore, Protocol):
    """Streams of one namespace: their metadata, list and deletion."""

    async def remove(self, stream: StreamName, incarnation: str) -> None:
        """Remove the znodes of an incarnation that is marked as deleted. The caller deletes its ledgers.

        Does nothing if that incarnation is gone or not marked. Idempotent.
        """
        ...

    async def deletions(self) -> int:
        """Number of streams deleted in the namespace so far."""
        ...

    async def streams(self) -> list[StreamName]: ...

    async def stream_heads(self, streams: Sequence[StreamName]) -> list[StreamHead | None]:
        """Read the two znodes of each stream's head, in order; None: missing, not decodable, or this process may not
        read it. Made for many streams; may be slightly old, caches and watches nothing."""
        ...


class Membership(MetadataSession, Protocol):
    """Registrations of bookies and proxies."""

    async def members(self) -> Members:
        """Read the registrations now."""
        ...

    def known_members(self) -> Members:
        """The cached registrations, kept current by watches."""
        ...

    def on_members(self, callback: Callable[[], None]) -> Unsubscribe: ...

    async def register_bookie(
        self, info: BookieInfo, *, readonly: bool = False, known: CookieCheck | None = None
    ) -> None:
        """Keep the bookie registered (ephemeral znode) across reconnects and new sessions until unregistered.

        A change to or from read-only creates the new znode before it deletes the old one. known: awaited before each
        creation, also in later sessions; the znode is created only if the cookie still has the version that it
        returned. If it raises CookieError in a later session, the bookie is not registered any more: the check must
        notify its owner.
        """
        ...

    async def unregister_bookie(self, bookie: BookieId) -> None: ...

    async def register_proxy(self, info: ProxyInfo) -> None: ...

    async def unregister_proxy(self, proxy: ProxyId) -> None: ...


class Cookies(MetadataSession, Protocol):
    """What metadata remembers of each bookie: its cookie and its garbage collection mark."""

    async def read_cookie(self, bookie: BookieId) -> Versioned | Missing:
        """Read the cookie's text."""
        ...

    async def write_cookie(self, bookie: BookieId, text: str, version: object) -> None:
        """Write a cookie; version None creates it. Raises CookieError on a conflict."""
        ...

    async def read_gc_mark(self, bookie: BookieId) -> Versioned | Missing:
        """Read the text of a bookie's garbage collection mark (dlog/bookie/garbage_collection.py), not from a cache."""
        ...

    async def write_gc_mark(self, bookie: BookieId, text: str, version: object) -> Outcome:
        """Write the mark; version None creates it. Returns OutcomeUnknown as `compare_and_set`."""
        ...


class Metadata(LedgerMetadataStore, StreamMetadataStore, Membership, Cookies, Protocol):
    """All ports on one session, as they are opened and closed."""

    async def close(self) -> None: ...
