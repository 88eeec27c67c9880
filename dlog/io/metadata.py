"""The metadata port: what the service asks of ZooKeeper, in the words of the domain.

A `read`, a list and `members` show all that was answered to anybody before they were asked; `known_members` may be
old. Versions are of one life of a key: what is deleted and made again never takes a change that names an older one.

Three implementations keep it: dlog/io/zookeeper_metadata.py (the real one), dlog/io/memory_metadata.py for tests of one
process, and the model in tests/simulation. Every decision write is a compare-and-set; watches are hints.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dlog.machine import Key, Missing, Outcome, Versioned
from dlog.model.ids import BookieId, LedgerId, ProxyId, StreamName
from dlog.model.ledger import LedgerKey
from dlog.model.segment import Owner


class SessionState(enum.Enum):
    """Of the metadata session. SUSPENDED: out of contact, may still be valid. LOST: gone, ephemerals with it."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """Where a registered bookie listens."""

    bookie: BookieId
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ProxyInfo:
    """A registered proxy; role is "write" or "read".

    address: host:port that clients are sent to, and by which everybody names the proxy. peer_address: where other
    proxies connect to, if that is another one.
    """

    proxy: ProxyId
    role: str
    address: str
    peer_address: str = ""


@dataclass(frozen=True, slots=True)
class Members:
    """Who is registered now, by id."""

    writable: dict[BookieId, BookieInfo]
    readonly: dict[BookieId, BookieInfo]
    write_proxies: dict[ProxyId, ProxyInfo]
    read_proxies: dict[ProxyId, ProxyInfo]

    def peer_of(self, address: str) -> str:
        """Where a proxy connects to in order to reach the proxy that is named by `address`."""
        for proxies in (self.write_proxies, self.read_proxies):
            for info in proxies.values():
                if info.address == address:
                    return info.peer_address or address
        return address


@dataclass(frozen=True, slots=True)
class Absent:
    """The version of a stream that is not there. deletions: a count by `Metadata.deletions` before it is made.

    A creation under this version takes place only while no stream was deleted since that count, so one that comes late
    cannot make its stream a second time.
    """

    deletions: int


@dataclass(frozen=True, slots=True)
class StreamHead:
    """A stream without its segments. is_truncated: there are segments before the trim point."""

    owner: Owner
    retention_s: float
    is_truncated: bool


Unsubscribe = Callable[[], None]


class Metadata(Protocol):
    """Ledgers by LedgerKey (LedgerMetadata), streams by StreamKey (StreamMetadata).

    `read` and `compare_and_set` never raise for the network: they return OutcomeUnknown. They raise what asking again
    cannot mend: DamagedError, UnsupportedVersionError, MetadataWentBackError for what cannot be read, and
    RequestTooLargeError or NoRightsError for what was not written. The other calls raise MetadataUnavailableError. A
    cancelled call may still take effect.
    """

    @property
    def state(self) -> SessionState: ...

    def on_state(self, callback: Callable[[SessionState], None]) -> Unsubscribe: ...

    def silent_s(self) -> float:
        """For how long the oldest question has waited for an answer, or contact has been lost; 0: all is well."""
        ...

    async def read(self, key: Key) -> Outcome: ...

    async def compare_and_set(self, key: Key, value: object, version: object) -> Outcome:
        """version None creates; so does Absent, for a stream: Missing if one was deleted since. The claim of a stream
        (a higher owner epoch) also moves the stream's lock node.

        A created stream has the life that the value names, or a new one. A stream whose owner is written as deleted
        is gone at that moment: it is read as Missing, with what is left of it, and one more deletion is counted.

        A stream's next value is made from the one that came with its version, which bears what metadata gave to each
        segment (`Segment.metadata_version`).
        """
        ...

    async def delete(self, key: LedgerKey) -> None:
        """Idempotent."""
        ...

    async def remove(self, stream: StreamName, life: str) -> None:
        """Remove what is left of a stream that was marked as deleted in this life (its ledgers are the caller's work).

        Does nothing if that life is gone, or is not marked. Idempotent.
        """
        ...

    async def deletions(self) -> int:
        """How many streams of the namespace were deleted so far."""
        ...

    def watch(self, key: Key, callback: Callable[[], None]) -> Unsubscribe:
        """Hint that the value may have changed: called with nothing, at least once after each change. After a reconnect
        it is also called where a change cannot be ruled out; `on_state` tells of every reconnect."""
        ...

    async def new_ledger_id(self, ahead: int = 1) -> LedgerId:
        """Draw `ahead` ids and return the last; the others are used for nothing. More than one jumps past ids that
        bookies know though they were not given out: the generator went back with a restored backup."""
        ...

    def ledgers(self) -> AsyncIterator[LedgerId]: ...

    async def streams(self) -> list[StreamName]: ...

    async def stream_heads(self, streams: Sequence[StreamName]) -> list[StreamHead | None]:
        """What two znodes say of each stream, in order; None for one that is not there or cannot be read. Asked for
        many at once, as of now or a moment ago; nothing is cached or watched."""
        ...

    async def instance_id(self) -> str:
        """Identity of the cluster. Raises MetadataUnavailableError, or NotFound errors when no cluster was made."""
        ...

    async def members(self) -> Members:
        """Read fresh."""
        ...

    def known_members(self) -> Members:
        """As last heard, kept current by watches; no wait."""
        ...

    def on_members(self, callback: Callable[[], None]) -> Unsubscribe: ...

    async def register_bookie(self, info: BookieInfo, *, readonly: bool = False) -> None:
        """Keep the bookie registered (ephemeral) across reconnects and new sessions until unregistered.

        Going read-only creates the readonly node first and deletes the other after; back, the reverse.
        """
        ...

    async def unregister_bookie(self, bookie: BookieId) -> None: ...

    async def register_proxy(self, info: ProxyInfo) -> None: ...

    async def unregister_proxy(self, proxy: ProxyId) -> None: ...

    async def read_cookie(self, bookie: BookieId) -> Versioned | Missing:
        """The cookie's text."""
        ...

    async def write_cookie(self, bookie: BookieId, text: str, version: object) -> None:
        """version None creates; a conflict raises CookieError."""
        ...

    async def read_mark(self, bookie: BookieId) -> Versioned | Missing:
        """The mark of a bookie's collections (dlog/bookie/collecting.py), a text. Read fresh."""
        ...

    async def write_mark(self, bookie: BookieId, text: str, version: object) -> Outcome:
        """version None creates. Never raises for the network, as `compare_and_set`."""
        ...

    async def close(self) -> None: ...
