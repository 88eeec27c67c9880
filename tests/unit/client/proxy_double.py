"""A double of a proxy that a script controls: the protocol on a real socket, a log in memory, a script for each
request.

It is for tests that need no service: what the client sends, in which order, and how it handles an answer. Several
doubles may share a log, as a stream's entries outlive its owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dlog.client.decoding import decode_one
from dlog.log.dedup_trailer import encode_trailer
from dlog.model.dlsn import DLSN
from dlog.wire import proxy
from dlog.wire.digest import crc32c
from dlog.wire.entry import Record, build_record_set, control_record, encode_entry, parse_record_set
from dlog.wire.proxy_codec import FrameDecoder, encode
from dlog.wire.stream_metadata import settings_to_map
from tests.stream_settings import SETTINGS

FRAME_BYTES_MAX = 64 * 1024 * 1024
SET_FLAG = 0x4


def entry_of(batches: list[tuple[bytes, bytes, int]], *, txid: int = 1, unix_ms: int = 1000) -> bytes:
    """An entry as an owner packs it: (producer, record set, sequence) each, then the dedup trailer."""
    records: list[Record] = []
    noted = []
    slot = 0
    for producer, body, sequence in batches:
        count = len(parse_record_set(body))
        records.append(Record(SET_FLAG, slot + 1, txid, body))
        noted.append((producer, sequence, count, crc32c(body), slot))
        slot += count
    note = control_record(slot, txid, encode_trailer(unix_ms, 0, noted, None))
    return b"".join(encode_entry([*records, note]))


@dataclass
class Log:
    """One stream: an entry for each batch, and the producers of its batches."""

    stream: str = "s"
    incarnation: str | None = "a1"
    entries: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    nexts: dict[bytes, int] = field(default_factory=dict)
    newest: dict[bytes, bytes] = field(default_factory=dict)  # name of a producer -> its newest id
    places: dict[tuple[bytes, int], tuple[int, int, int]] = field(default_factory=dict)
    sealed: bool = False
    complete: bool = True
    settings: dict[str, Any] = field(default_factory=lambda: settings_to_map(SETTINGS))
    settings_version: int = 0
    window: int | None = None  # told with each reply

    def write(self, message: proxy.Write) -> proxy.Written | proxy.Failed:
        producer, sequence = message.producer, message.sequence
        if message.incarnation not in (None, self.incarnation):
            return proxy.Failed(message.request, 510, "the stream that this was sent to was deleted")
        expected = self.nexts.get(producer)
        newest = self.newest.get(producer[:12], producer)
        if producer < newest:
            return proxy.Failed(message.request, 535, "an older generation", outcome_unknown=message.retry)
        if producer > newest:
            expected = message.replaces or 0
            if expected < self.nexts[newest]:
                return proxy.Failed(message.request, 535, "what it replaces is in the log", outcome_unknown=True)
        elif expected is None:
            if message.retry and (sequence > 0 or not self.complete):
                return proxy.Failed(message.request, 535, "producer not known")
            expected = sequence
        if sequence > expected:
            return proxy.Failed(message.request, 530, "gap", detail={"expected": expected})
        if sequence < expected:
            place = self.places.get((producer, sequence), (0, -1, -1))
            return proxy.Written(message.request, message.request, place, 1, True)
        assert crc32c(message.body) == message.crc
        records = parse_record_set(message.body)
        assert len(records) == message.count
        place = (1, len(self.entries), 0)
        self.entries.append(entry_of([(producer, bytes(message.body), sequence)]))
        self.payloads += records
        self.nexts[producer] = sequence + message.count
        self.newest[producer[:12]] = producer
        self.places[producer, sequence] = place
        return proxy.Written(message.request, message.request, place, 1, False, self.window)

    def alter(self, message: proxy.Alter) -> proxy.Done | proxy.Failed:
        wanted = self.settings | message.settings
        if wanted != self.settings and message.version != self.settings_version:
            return proxy.Failed(message.request, 555, "altered since")
        self.settings_version += wanted != self.settings
        self.settings = wanted
        return proxy.Done(message.request, {"settings": wanted})

    def stat(self) -> dict[str, Any]:
        """The description of a stream with one open segment, as a proxy gives it, without the owner's part."""
        return {
            "stream": self.stream,
            "incarnation": self.incarnation,
            "sealed": self.sealed,
            "settings": self.settings,
            "owner": {"epoch": 1, "proxy": "p", "location": "host:1", "released": False},
            "first_dlsn": None,
            "last_dlsn": None,
            "last_txid": None,
            "records": len(self.payloads),
            "segments": [],
            "segments_left_out": 0,
            "segments_to_delete": 0,
        }

    def at(self, place: DLSN, count: int) -> list[bytes]:
        """This many records from a position on."""
        return [r for b in decode_one(memoryview(self.entries[place.entry]), 1, place.entry) for r in b.payloads][
            place.slot : place.slot + count
        ]

    def fill(self, *payloads: bytes) -> None:
        """Append each payload as an entry of its own."""
        for payload in payloads:
            self.entries.append(entry_of([(b"f" * 16, build_record_set([payload]), len(self.payloads))]))
            self.payloads.append(payload)


Script = Callable[["Peer", proxy.Message], bool]


class Double:
    """`async with Double(log) as double`. script: called first for each message; True when it has handled it."""

    def __init__(self, log: Log | None = None, *, role: str = "write", script: Script | None = None) -> None:
        self.log = log or Log()
        self.role = role
        self.script = script
        self.heard: list[proxy.Message] = []
        self.peers: list[Peer] = []
        self.limits: dict[str, int] = {}
        self.owner: str | None = None  # the owner that GetOwner names; None: this one
        self.address = ""
        self._server: asyncio.Server | None = None
        self._news = asyncio.Event()

    async def __aenter__(self) -> Double:
        self._server = await asyncio.get_running_loop().create_server(lambda: Peer(self), "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    @property
    def target(self) -> str:
        return f"dlog://{self.address}"

    @property
    def writes(self) -> list[proxy.Write]:
        return [m for m in self.heard if isinstance(m, proxy.Write)]

    def of(self, kind: type[proxy.Message]) -> list[proxy.Message]:
        return [m for m in self.heard if isinstance(m, kind)]

    def stop(self) -> None:
        """Stop listening and cut every connection, as a killed process does."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for peer in tuple(self.peers):
            peer.cut()

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; it is checked after each message."""
        async with asyncio.timeout(90):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def on_message(self, peer: Peer, message: proxy.Message) -> None:
        self.heard.append(message)
        self._news.set()
        if self.script is None or not self.script(peer, message):
            self.answer(peer, message)

    def answer(self, peer: Peer, message: proxy.Message) -> None:
        """Answer as a proxy would."""
        match message:
            case proxy.Hello():
                peer.send(proxy.Welcome(message.request, 1, "double", self.role, self.limits))
            case proxy.GetOwner():
                told = {"location": self.owner or self.address, "epoch": 1, "incarnation": self.log.incarnation or ""}
                peer.send(proxy.Done(message.request, told))
            case proxy.Write():
                peer.send(self.log.write(message))
            case proxy.Read():
                self._serve(peer, message)
            case proxy.GetIncarnation():
                known: dict[str, Any] = {"incarnation": self.log.incarnation, "deleted": False, "deletions": 0}
                if self.log.incarnation is not None:
                    known |= {"settings": self.log.settings, "settings_version": self.log.settings_version}
                peer.send(proxy.Done(message.request, known))
            case proxy.Ping() | proxy.Delete() | proxy.Seal():
                peer.send(proxy.Done(message.request, {}))
            case proxy.Truncate():
                peer.send(proxy.Done(message.request, {"first": list(message.dlsn)}))
            case proxy.Create():
                peer.send(proxy.Done(message.request, {"settings": self.log.settings | message.settings}))
            case proxy.Alter():
                peer.send(self.log.alter(message))
            case proxy.Stat():
                peer.send(proxy.Done(message.request, self.log.stat()))
            case proxy.List():
                peer.send(proxy.Done(message.request, {"streams": [self.log.stream]}))
            case proxy.GetOwners():
                peer.send(proxy.Done(message.request, {"owned": [[self.log.stream, 1, "serving"]]}))
            case _:
                pass

    def _serve(self, peer: Peer, read: proxy.Read) -> None:
        first, skip = 0, 0
        if read.start is proxy.Start.DLSN:
            _, first, skip = read.value
            if skip and first < len(self.log.entries) and skip >= self.slots(first):
                first, skip = first + 1, 0
        kind = proxy.ReaderEventKind
        peer.send(proxy.ReaderEvent(read.request, kind.STARTED, {"dlsn": [1, first, skip]}))
        for entry in range(first, len(self.log.entries)):
            payload = self.log.entries[entry]
            left = len(self.log.entries) - entry - 1
            if left:
                peer.send(proxy.ReaderEvent(read.request, kind.BEHIND, {"segments": 0, "entries": left}))
            peer.send(proxy.Entries(read.request, 1, entry, (len(payload),), skip if entry == first else 0, payload))
        peer.send(proxy.ReaderEvent(read.request, kind.END_OF_STREAM if self.log.sealed else kind.CAUGHT_UP))

    def slots(self, entry: int) -> int:
        """Slots of user records in an entry."""
        return sum(len(batch) for batch in decode_one(memoryview(self.log.entries[entry]), 1, entry))


class Peer(asyncio.Protocol):
    """A client's connection, seen from the double."""

    def __init__(self, double: Double) -> None:
        self.double = double
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.double.peers.append(self)

    def data_received(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            if self._transport is not None:
                self.double.on_message(self, message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self in self.double.peers:
            self.double.peers.remove(self)

    def send(self, message: proxy.Message) -> None:
        self.send_bytes(b"".join(encode(message)))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes, perhaps a part of a frame."""
        if self._transport is not None:
            self._transport.write(data)

    def cut(self) -> None:
        """Reset the connection; messages that arrived and were not handled are lost."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
