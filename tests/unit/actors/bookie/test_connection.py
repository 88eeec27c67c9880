"""A bookie's connection without a socket or a disk: which requests are taken, and how many may wait."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from actors.bookie.connection import Connection
from actors.bookie.v3_exchange import V3Exchange
from dlog.bookie.options import BookieOptions
from dlog.model.ids import EntryId, LedgerId
from dlog.model.ledger import DigestType
from dlog.wire.bookie import (
    AddEntry,
    Auth,
    BatchRead,
    BatchReadDone,
    Code,
    Collect,
    CollectionReport,
    CollectionState,
    EntriesSummarized,
    EntryAdded,
    EntryRead,
    ReadEntry,
    SummarizeEntries,
    encode_request,
    encode_response,
)
from dlog.wire.bookie_v3 import EUA
from dlog.wire.bookie_v3_messages import ReadWithLac, ReadWithLacDone
from dlog.wire.protobuf import bytes_field, fields, int_field

KEY = b"k" * 20
PACKET = struct.pack(">qqqq", 7, 1, 0, 0)


class Sink(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Any] = []
        self.reading = True
        self.closed = False
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class Client:
    """A connection and the requests that it gave to the state machine. waits: whether polls wait there."""

    def __init__(self, waits: bool, has_certificate: bool = False, **options: Any) -> None:
        self.waits = waits
        self.upgraded: list[Connection] = []
        self.taken: list[tuple[V3Exchange, Any]] = []
        self.ended = 0
        self.plain = 0
        self.connection = Connection(
            BookieOptions(**options),
            take=self._take,
            settle=lambda: None,
            is_congested=lambda: False,
            out_dirty=lambda _: None,
            on_eof=self._on_eof,
            on_lost=lambda _: None,
            count_bytes=lambda _: True,
            upgrade=self.upgraded.append if has_certificate else None,
            on_plain=self._on_plain,
        )
        self.sink = Sink()
        self.connection.connection_made(self.sink)

    def _take(self, peer: Any, message: Any) -> None:
        self.taken.append((peer, message))
        if self.waits and isinstance(message, ReadWithLac) and message.timeout_ms:
            peer.wait()

    def _on_plain(self, _: str) -> None:
        self.plain += 1

    def _on_eof(self, connection: Connection) -> None:
        self.ended += 1
        for exchange in tuple(connection.polling):
            exchange.send(ReadWithLacDone(LedgerId(7), EntryId(-1), Code.OK))

    def send(self, data: bytes) -> None:
        self.connection.get_buffer(len(data))[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def answer_first(self) -> None:
        exchange, _ = self.taken.pop(0)
        exchange.send(ReadWithLacDone(LedgerId(7), EntryId(0), Code.NO_ENTRY))
        self.connection.flush()

    def statuses(self) -> list[Any]:
        """Status of each answer that was written, each in a write of its own."""
        self.connection.flush()
        return [{n: v for n, _, v in fields(frame[4:])}[2] for frame in self.sink.written]


def request(op: int, number: int, body: bytes) -> bytes:
    header = int_field(1, 3) + int_field(2, op) + int_field(3, 1)
    data = bytes_field(1, header) + bytes_field(number, body)
    return struct.pack(">I", len(data)) + data


POLL = request(1, 100, int_field(1, 7) + int_field(2, 0) + int_field(4, -1) + int_field(5, 60_000))
READ = request(1, 100, int_field(1, 7) + int_field(2, 0))
START_TLS = request(9, 106, b"")
ADD = request(2, 101, int_field(1, 7) + int_field(2, 1) + bytes_field(3, KEY) + bytes_field(4, PACKET))


@pytest.mark.parametrize("kind", [READ, POLL], ids=["read", "poll"])
async def test_reads_count_though_they_could_have_waited(kind: bytes) -> None:
    """An old previous LAC makes a long poll a read, which goes to the disk at once."""
    client = Client(waits=False, connection_reads_max=3)
    client.send(kind * 5)
    assert len(client.taken) == 3 and not client.sink.reading
    client.answer_first()
    assert len(client.taken) == 3, "one answered, one more taken"
    client.answer_first()
    assert client.sink.reading


async def test_polls_that_wait_keep_no_other_request_from_being_taken() -> None:
    client = Client(waits=True, connection_reads_max=3)
    client.send(POLL * 5 + ADD + READ)
    assert [type(message) for _, message in client.taken[5:]] == [AddEntry, ReadWithLac] and client.sink.reading
    client.answer_first()
    client.send(READ * 3)
    assert len(client.taken) == 8, "the answer to a poll takes nothing from the count of reads"


async def test_polls_that_wait_are_bounded() -> None:
    client = Client(waits=True, connection_long_polls_max=2)
    client.send(POLL * 3)
    assert client.statuses() == [506] and len(client.taken) == 2
    client.answer_first()
    client.send(POLL)
    assert len(client.taken) == 2 and len(client.connection.polling) == 2


async def test_a_poll_that_is_taken_after_the_end_of_the_input_ends_at_once() -> None:
    client = Client(waits=True, connection_reads_max=1)
    client.send(READ + POLL)
    assert len(client.taken) == 1
    client.connection.eof_received()
    client.answer_first()
    assert len(client.taken) == 1 and client.ended == 2 and not client.connection.polling
    client.connection.flush()
    client.connection.flush()
    assert client.sink.closed


async def test_a_bookie_without_a_certificate_refuses_tls_and_goes_on() -> None:
    client = Client(waits=False)
    client.send(START_TLS + READ)
    assert client.statuses() == [404] and len(client.taken) == 1


async def test_tls_begins_once_the_answer_is_written_and_nothing_is_read_until_then() -> None:
    client = Client(waits=False, has_certificate=True)
    client.send(START_TLS)
    assert client.statuses() == [0] and client.upgraded == [client.connection]
    assert not client.sink.reading, "the handshake is no request"


@pytest.mark.parametrize(
    "data",
    [START_TLS + READ, START_TLS + READ[:7], READ + START_TLS],
    ids=["request behind", "part of one behind", "unanswered request before"],
)
async def test_plain_text_around_start_tls_ends_the_connection(data: bytes) -> None:
    """Otherwise an attacker on the network could send requests before those of a client that proved who it is."""
    client = Client(waits=False, has_certificate=True)
    client.send(data)
    assert client.sink.aborted and not client.upgraded


async def test_tls_does_not_begin_twice() -> None:
    client = Client(waits=False, has_certificate=True)
    client.send(START_TLS)
    client.send(START_TLS)
    assert client.statuses() == [0, 404] and len(client.upgraded) == 1


REQUIRED = {"tls_required": True, "tls_certificate": "bookie.pem", "tls_key": "bookie.key"}


async def test_where_tls_is_required_plain_requests_of_v3_are_refused_and_tls_may_follow() -> None:
    client = Client(waits=False, has_certificate=True, **REQUIRED)
    client.send(READ)
    assert client.statuses() == [EUA]
    client.send(ADD)
    assert client.statuses() == [EUA, EUA] and not client.taken and client.plain == 2
    client.send(START_TLS)
    assert client.statuses() == [EUA, EUA, 0] and client.upgraded == [client.connection]
    client.send(READ)
    assert len(client.taken) == 1, "what comes under TLS is served"


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (AddEntry(LedgerId(7), EntryId(1), KEY, (PACKET,)), EntryAdded(LedgerId(7), EntryId(1), Code.UNAUTHORIZED)),
        (ReadEntry(LedgerId(7), EntryId(1)), EntryRead(LedgerId(7), EntryId(1), Code.UNAUTHORIZED, b"", False)),
        (BatchRead(LedgerId(7), EntryId(1), 5, 1, 1000), BatchReadDone(LedgerId(7), EntryId(1), 5, Code.UNAUTHORIZED)),
        (
            SummarizeEntries(LedgerId(7), EntryId(0), EntryId(9), 3, 1, 0, DigestType.CRC32C),
            EntriesSummarized(LedgerId(7), EntryId(0), 3, Code.UNAUTHORIZED),
        ),
        (Collect(0), CollectionReport(0, CollectionState.UNKNOWN, code=Code.UNAUTHORIZED)),
    ],
    ids=["add", "read", "batch read", "summary", "collection"],
)
async def test_where_tls_is_required_plain_requests_of_v2_are_refused(asked: Any, answer: Any) -> None:
    client = Client(waits=False, has_certificate=True, **REQUIRED)
    client.send(b"".join(bytes(part) for part in encode_request(asked)))
    client.connection.flush()
    assert client.sink.written == [b"".join(bytes(part) for part in encode_response(answer))]
    assert not client.taken and client.plain == 1 and not client.sink.aborted


async def test_where_tls_is_required_what_has_no_answer_ends_a_plain_connection() -> None:
    client = Client(waits=False, has_certificate=True, **REQUIRED)
    client.send(b"".join(bytes(part) for part in encode_request(Auth(b"x"))))
    assert client.sink.aborted and not client.taken


def test_tls_cannot_be_required_without_a_certificate() -> None:
    with pytest.raises(ValueError, match="tls_required needs"):
        BookieOptions(tls_required=True)
