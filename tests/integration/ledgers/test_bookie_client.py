"""The transport to bookies on real sockets: what may be in flight together, and which requests fail at a loss."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from dlog.errors import ConnectionLostError
from dlog.events import BookieLost, Event
from dlog.io.bookie_client import BookieClient, BookieClientOptions, BookieRequester
from dlog.machine import Fact, PeerLost, Received
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.wire.bookie import (
    AddEntry,
    BatchRead,
    BatchReadDone,
    Code,
    EntriesSummarized,
    EntryAdded,
    EntryRead,
    ReadEntry,
    Request,
    Response,
    SummarizeEntries,
)
from dlog.wire.bookie_v3_messages import (
    EntriesListed,
    ForceLedger,
    LedgerForced,
    ListEntries,
    ReadWithLac,
    ReadWithLacDone,
)
from dlog.wire.protobuf import bytes_field, int_field
from tests.integration.ledgers.model_bookie import ModelBookie

KEY = b"k" * 20
A = BookieId("bookie-a")
PATIENT = BookieClientOptions(request_timeout_s=3600.0, backoff_min_s=0.0, backoff_max_s=0.0)
PATIENT_V3 = replace(PATIENT, protocol="v3")
both_protocols = pytest.mark.parametrize("options", [PATIENT, PATIENT_V3], ids=["v2", "v3"])


def add(entry: int, ledger: int = 7, size: int = 8, recovery: bool = False) -> AddEntry:
    packet = ledger.to_bytes(8, "big") + entry.to_bytes(8, "big") + b"\0" * 16 + b"x" * size
    return AddEntry(LedgerId(ledger), EntryId(entry), KEY, (packet,), recovery=recovery)


def read(entry: int, fence: bool = False, ledger: int = 7) -> ReadEntry:
    return ReadEntry(LedgerId(ledger), EntryId(entry), fence, KEY if fence else b"")


class Listener:
    """Stands in for a machine: receives facts, and can wait for a number of them."""

    def __init__(self, client: BookieClient) -> None:
        self.facts: list[Fact] = []
        self._more = asyncio.Event()
        self.requester: BookieRequester = client.asker()
        self.requester.post = self._hear

    def _hear(self, fact: Fact) -> None:
        self.facts.append(fact)
        self._more.set()

    def send(self, *messages: object) -> None:
        for message in messages:
            self.requester.send(A, message)

    async def heard(self, count: int) -> list[Fact]:
        async with asyncio.timeout(90):
            while len(self.facts) < count:
                self._more.clear()
                await self._more.wait()
        return self.facts

    @property
    def answers(self) -> list[tuple[str, int, Code]]:
        return [
            (type(f.message).__name__, f.message.entry, f.message.code) for f in self.facts if isinstance(f, Received)
        ]


@asynccontextmanager
async def joined(
    options: BookieClientOptions = PATIENT, told: list[Event] | None = None
) -> AsyncIterator[tuple[ModelBookie, BookieClient]]:
    async with (
        ModelBookie() as bookie,
        BookieClient(
            lambda _: bookie.address,
            rng=random.Random(1),
            options=options,
            on_event=told.append if told is not None else lambda _: None,
        ) as client,
    ):
        yield bookie, client


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not condition():  # noqa: ASYNC110  any condition, not one event
            await asyncio.sleep(0.001)


@both_protocols
async def test_adds_and_reads_are_answered_to_who_asked(options: BookieClientOptions) -> None:
    async with joined(options) as (bookie, client):
        one, two = Listener(client), Listener(client)
        one.send(add(0), add(1))
        two.send(add(0, ledger=8))
        await one.heard(2)
        await two.heard(1)
        two.send(read(1), read(5), read(-1))
        await two.heard(4)
        assert one.answers == [("EntryAdded", 0, Code.OK), ("EntryAdded", 1, Code.OK)]
        assert [code for _, _, code in two.answers] == [Code.OK, Code.OK, Code.NO_ENTRY, Code.OK]
        last = two.facts[-1]
        assert isinstance(last, Received) and bytes(last.message.packet) == add(1).parts[0]
        assert bookie.connections == 1
        assert client.unanswered_bytes(A) == 0


@both_protocols
async def test_a_fence_and_a_plain_read_of_one_entry_are_never_in_flight_together(options: BookieClientOptions) -> None:
    async with joined(options) as (bookie, client):
        bookie.entries[7, 3] = add(3).parts[0]  # type: ignore[assignment]
        bookie.hold = True
        reader, recoverer = Listener(client), Listener(client)
        reader.send(read(3))
        recoverer.send(read(3, fence=True), read(4, fence=True))
        await until(lambda: len(bookie.requests) == 2)
        assert [(r.entry, r.fence) for r in bookie.requests if isinstance(r, ReadEntry)] == [(3, False), (4, True)]
        bookie.release()
        await reader.heard(1)
        await until(lambda: len(bookie.requests) == 3)
        assert bookie.requests[2] == read(3, fence=True)
        bookie.release()
        await recoverer.heard(2)
        fences = {f.message.entry: f.message.fence for f in recoverer.facts if isinstance(f, Received)}
        assert fences == {3: True, 4: True}
        [answer] = reader.facts
        assert isinstance(answer, Received) and not answer.message.fence


@both_protocols
async def test_a_plain_read_waits_for_a_fence_in_flight_too(options: BookieClientOptions) -> None:
    async with joined(options) as (bookie, client):
        bookie.hold = True
        reader, recoverer = Listener(client), Listener(client)
        recoverer.send(read(-1, fence=True))
        reader.send(read(-1), read(-1))
        await until(lambda: len(bookie.requests) == 1)
        bookie.release()
        await recoverer.heard(1)
        await until(lambda: len(bookie.requests) == 2)  # both plain ones as one request
        bookie.release()
        await reader.heard(2)
        assert bookie.requests == [read(-1, fence=True), read(-1)]


@both_protocols
async def test_plain_reads_share_a_good_answer_but_not_a_negative_one(options: BookieClientOptions) -> None:
    async with joined(options) as (bookie, client):
        bookie.entries[7, 1] = add(1).parts[0]  # type: ignore[assignment]
        bookie.hold = True
        early, late = Listener(client), Listener(client)
        early.send(read(1), read(2))
        late.send(read(1), read(2))
        await until(lambda: len(bookie.requests) == 2)
        bookie.release()  # 1 is there; 2 is not, and that may be older than the late request
        await early.heard(2)
        await until(lambda: len(bookie.requests) == 3)
        bookie.entries[7, 2] = add(2).parts[0]  # type: ignore[assignment]
        bookie.release()
        await late.heard(2)
        assert early.answers == [("EntryRead", 1, Code.OK), ("EntryRead", 2, Code.NO_ENTRY)]
        assert late.answers == [("EntryRead", 1, Code.OK), ("EntryRead", 2, Code.OK)]


@both_protocols
async def test_reads_of_the_last_entry_never_share_an_older_question(options: BookieClientOptions) -> None:
    async with joined(options) as (bookie, client):
        bookie.hold = True
        early, late = Listener(client), Listener(client)
        early.send(read(-1))
        await until(lambda: len(bookie.requests) == 1)
        late.send(read(-1))
        bookie.release()
        await early.heard(1)
        await until(lambda: len(bookie.requests) == 2)
        bookie.release()
        await late.heard(1)


@both_protocols
async def test_two_adds_of_one_entry_are_told_apart(options: BookieClientOptions) -> None:
    """A fenced writer's add and a recovery's re-add name the same entry: neither may get the other's answer."""
    async with joined(options) as (bookie, client):
        bookie.fenced.add(7)
        bookie.hold = True
        writer, recoverer = Listener(client), Listener(client)
        writer.send(add(0))
        recoverer.send(add(0, recovery=True))
        await until(lambda: len(bookie.requests) == 1)
        bookie.release()
        await until(lambda: len(bookie.requests) == 2)
        bookie.release()
        await recoverer.heard(1)
        assert writer.answers == [("EntryAdded", 0, Code.FENCED)]
        assert recoverer.answers == [("EntryAdded", 0, Code.OK)]


async def test_batch_reads_of_two_askers_keep_their_own_numbers() -> None:
    async with joined() as (bookie, client):
        for entry in range(3):
            bookie.entries[7, entry] = add(entry).parts[0]  # type: ignore[assignment]
        one, two = Listener(client), Listener(client)
        one.send(BatchRead(LedgerId(7), EntryId(0), 1, 10, 1 << 20))
        two.send(BatchRead(LedgerId(7), EntryId(1), 1, 10, 1 << 20))
        await one.heard(1)
        await two.heard(1)
        for listener, count in ((one, 3), (two, 2)):
            [fact] = listener.facts
            assert isinstance(fact, Received) and isinstance(fact.message, BatchReadDone)
            assert (fact.message.request, len(fact.message.packets)) == (1, count)


@both_protocols
async def test_a_reset_is_told_once_to_everybody_who_waits_and_to_nobody_else(options: BookieClientOptions) -> None:
    told: list[Event] = []
    async with joined(options, told) as (bookie, client):
        idle, busy, held = Listener(client), Listener(client), Listener(client)
        idle.send(add(9))
        await idle.heard(1)
        bookie.hold = True
        busy.send(add(0), add(1), read(4))
        held.send(read(4, fence=True))
        await until(lambda: len(bookie.requests) == 4)
        bookie.reset()
        await busy.heard(1)
        await held.heard(1)
        assert [type(f) for f in busy.facts] == [type(f) for f in held.facts] == [PeerLost]
        assert len(idle.facts) == 1
        assert [type(e) for e in told] == [BookieLost]
        bookie.hold = False
        busy.send(add(2))  # the next request dials again
        await busy.heard(2)
        assert busy.answers == [("EntryAdded", 2, Code.OK)]


async def test_an_answer_that_does_not_come_closes_the_connection() -> None:
    async with joined(BookieClientOptions(request_timeout_s=0.05)) as (bookie, client):
        bookie.hold = True
        listener = Listener(client)
        listener.send(add(0))
        await until(lambda: len(bookie.requests) == 1)
        [fact] = await listener.heard(1)
        assert isinstance(fact, PeerLost) and "no response" in fact.reason
        bookie.release()  # too late: the connection is gone, and this is not taken for another answer
        await until(lambda: bookie.connections == 0)
        assert len(listener.facts) == 1


async def test_a_bookie_that_lags_too_far_counts_as_lost() -> None:
    options = BookieClientOptions(request_timeout_s=3600.0, lag_bytes_max=1 << 20)
    async with joined(options) as (bookie, client):
        bookie.reads_wholly = False
        listener = Listener(client)
        for entry in range(5):
            listener.send(add(entry, size=250_000))
        [fact] = await listener.heard(1)
        assert isinstance(fact, PeerLost) and "lags" in fact.reason
        with pytest.raises(ConnectionLostError):
            listener.send(add(5))


async def test_who_cannot_be_reached_is_lost_and_left_alone_for_a_while() -> None:
    async with ModelBookie() as bookie:
        nowhere = bookie.address
    options = BookieClientOptions(backoff_min_s=3600.0, backoff_max_s=3600.0)
    async with BookieClient(lambda _: nowhere, rng=random.Random(1), options=options) as client:
        listener = Listener(client)
        listener.send(add(0), add(1))
        [fact] = await listener.heard(1)
        assert isinstance(fact, PeerLost) and "cannot connect" in fact.reason
        with pytest.raises(ConnectionLostError) as caught:
            listener.send(add(2))
        assert not caught.value.outcome_unknown


async def test_an_unregistered_bookie_is_found_by_its_id() -> None:
    async with ModelBookie() as bookie, BookieClient(lambda _: None, rng=random.Random(1)) as client:
        listener = Listener(client)
        listener.requester.send(BookieId(f"127.0.0.1:{bookie.address[1]}"), add(0))
        await listener.heard(1)
        listener.requester.send(BookieId("a-name-of-no-place"), add(0))
        facts = await listener.heard(2)
        assert isinstance(facts[1], PeerLost) and "not registered" in facts[1].reason


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\xff\xff\xff\xff",
        b"\0\0\0\x18\x02\x01\0\0\0\0\0\0" + b"\0" * 16,  # an answer to an add that was not sent
        b"\0\0\0\x04\x02\x63\0\0",
        b"\0\0\0\x0a\x0a\x06\x08\x03\x10\x02\x18\x63\x10\0",  # the same on v3
    ],
)
@both_protocols
async def test_hostile_answers_end_the_connection_and_nothing_else(
    rubbish: bytes, options: BookieClientOptions
) -> None:
    async with joined(options) as (bookie, client):
        bookie.hold = True
        listener = Listener(client)
        listener.send(add(5))
        await until(lambda: len(bookie.requests) == 1)
        for session in list(bookie._sessions):
            session.say_bytes(rubbish)
        [fact] = await listener.heard(1)
        assert isinstance(fact, PeerLost) and "protocol error" in fact.reason


@pytest.mark.parametrize(
    "request_",
    [
        BatchRead(LedgerId(7), EntryId(0), 1, 10, 1 << 20),
        SummarizeEntries(LedgerId(7), EntryId(0), EntryId(9), 1),
    ],
    ids=["batch", "summary"],
)
async def test_an_answer_of_another_ledger_is_a_loss(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(request: Request) -> Response:
        if isinstance(request, BatchRead):
            return BatchReadDone(LedgerId(8), request.start, request.request, Code.NO_ENTRY)
        assert isinstance(request, SummarizeEntries)
        return EntriesSummarized(LedgerId(8), request.first, request.request, Code.OK)

    async with joined() as (bookie, client):
        monkeypatch.setattr(bookie, "answer", other)
        listener = Listener(client)
        listener.send(request_)
        [fact] = await listener.heard(1)
        assert isinstance(fact, PeerLost) and "response without a request" in fact.reason


@pytest.mark.parametrize("ledger", [None, 7, 8])
async def test_a_list_of_entries_is_that_of_the_ledger_or_a_loss(ledger: int | None) -> None:
    """An error response may come without its content; what names another ledger answers nothing."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack(">I", await reader.readexactly(4))
        await reader.readexactly(length)
        no_ledger = int_field(2, 402)
        content = b"" if ledger is None else bytes_field(108, int_field(1, 402) + int_field(2, ledger))
        writer.write(struct.pack(">I", len(no_ledger + content)) + no_ledger + content)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1")
    async with server, BookieClient(lambda _: server.sockets[0].getsockname(), rng=random.Random(1)) as client:
        listener = Listener(client)
        client.list_entries(listener.requester, A, ListEntries(LedgerId(7)))
        [fact] = await listener.heard(1)
    if ledger == 7:
        assert fact == Received(A, EntriesListed(LedgerId(7), Code.NO_LEDGER, b""))
    else:
        assert fact == PeerLost(A, "no list of entries: NO_LEDGER")


async def test_a_closed_door_hears_nothing_and_the_key_stays_taken() -> None:
    async with joined() as (bookie, client):
        bookie.hold = True
        gone, successor = Listener(client), Listener(client)
        gone.send(read(1, fence=True))
        await until(lambda: len(bookie.requests) == 1)
        gone.requester.close()
        successor.send(read(1))
        bookie.release()
        await until(lambda: len(bookie.requests) == 2)
        bookie.release()
        await successor.heard(1)
        assert gone.facts == []


async def test_what_is_sent_in_one_turn_arrives_in_order() -> None:
    async with joined() as (bookie, client):
        listener = Listener(client)
        for entry in range(500):
            listener.send(add(entry))
        await listener.heard(500)
        assert [r.entry for r in bookie.requests if isinstance(r, AddEntry)] == list(range(500))
        assert all(isinstance(f, Received) and isinstance(f.message, EntryAdded) for f in listener.facts)


async def test_closing_the_client_tells_those_who_wait_and_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    async with ModelBookie() as bookie:
        bookie.hold = True
        async with BookieClient(lambda _: bookie.address, rng=random.Random(1)) as client:
            listener = Listener(client)
            listener.send(read(0))
            await until(lambda: len(bookie.requests) == 1)
        assert [type(f) for f in listener.facts] == [PeerLost]
        with pytest.raises(ConnectionLostError):
            listener.send(read(1))
    assert asyncio.all_tasks() == before


def test_fence_is_set_from_the_question_only() -> None:
    """The wire has no such flag: a peer cannot set it."""
    assert EntryRead(LedgerId(1), EntryId(1), Code.OK).fence is False


NO_ADDRESSES = (
    "a..b:3181",
    ".:3181",
    f"{'x' * 70}:3181",
    "127.0.0.1:70000",
    "127.0.0.1:0",
    "b:\u00b2",
    "nobody",
    "a\0b:3181",
)


@pytest.mark.parametrize("name", NO_ADDRESSES)
async def test_a_bookie_id_that_is_no_address_is_a_loss_and_nothing_more(name: str) -> None:
    """Ids come from the metadata of ledgers, which any client of ZooKeeper may have written."""
    told: list[Event] = []
    async with BookieClient(lambda _: None, rng=random.Random(1), options=PATIENT, on_event=told.append) as client:
        listener = Listener(client)
        listener.requester.send(BookieId(name), read(0))
        (lost,) = await listener.heard(1)
        assert isinstance(lost, PeerLost) and lost.peer == name
        assert [type(event) for event in told] == [BookieLost]


@pytest.mark.parametrize("address", [("a..b", 3181), ("127.0.0.1", 70_000), ("x" * 70, 3181), ("127.0.0.1", -1)])
async def test_a_registration_that_is_no_address_is_a_loss_and_nothing_more(address: tuple[str, int]) -> None:
    async with BookieClient(lambda _: address, rng=random.Random(1), options=PATIENT) as client:
        listener = Listener(client)
        listener.send(read(0))
        (lost,) = await listener.heard(1)
        assert isinstance(lost, PeerLost)


async def test_who_waits_behind_a_question_that_ends_the_connection_hears_of_the_loss() -> None:
    """Requests that were held back may exceed the connection's limit when they are sent."""
    options = BookieClientOptions(request_timeout_s=3600.0, lag_bytes_max=1000, backoff_min_s=0.0, backoff_max_s=0.0)
    async with joined(options) as (bookie, client):
        bookie.hold = True
        one, two, three = Listener(client), Listener(client), Listener(client)
        one.send(add(0))
        two.send(add(0, size=2000, recovery=True))
        three.send(add(0, recovery=True))
        await until(lambda: len(bookie.requests) == 1)
        bookie.release()
        await one.heard(1)
        for listener in (two, three):
            (lost,) = await listener.heard(1)
            assert isinstance(lost, PeerLost)


@both_protocols
async def test_who_is_held_back_hears_of_a_loss_that_the_answer_itself_brought_about(
    options: BookieClientOptions,
) -> None:
    options = BookieClientOptions(request_timeout_s=3600.0, lag_bytes_max=1000, backoff_min_s=0.0, backoff_max_s=0.0)
    async with joined(options) as (bookie, client):
        bookie.hold = True
        one, two = Listener(client), Listener(client)
        heard = one.requester.post

        def answer_with_too_much(fact: Fact) -> None:
            heard(fact)
            if len(one.facts) == 1:
                one.send(add(1, size=2000))

        one.requester.post = answer_with_too_much
        one.send(add(0))
        two.send(add(0, recovery=True))
        await until(lambda: len(bookie.requests) == 1)
        bookie.release()
        (lost,) = await two.heard(1)
        assert isinstance(lost, PeerLost)


async def test_a_force_of_v3_is_answered_and_batch_reads_are_refused() -> None:
    async with joined(PATIENT_V3) as (_, client):
        listener = Listener(client)
        listener.send(ForceLedger(LedgerId(7)))
        await listener.heard(1)
        assert listener.facts == [Received(A, LedgerForced(LedgerId(7), Code.OK))]
        with pytest.raises(AssertionError, match="BatchRead"):
            listener.send(BatchRead(LedgerId(7), EntryId(0), 1, 10, 1 << 20))


def long_poll(timeout_ms: int) -> ReadWithLac:
    return ReadWithLac(LedgerId(7), EntryId(-1), EntryId(0), timeout_ms)


async def test_a_long_poll_holds_nothing_back_and_only_its_sender_is_answered() -> None:
    async with joined(PATIENT_V3) as (bookie, client):
        one, two, gone = Listener(client), Listener(client), Listener(client)
        one.send(add(0), long_poll(60_000))
        two.send(long_poll(60_000), read(-1), add(1))
        gone.send(long_poll(60_000))
        gone.requester.close()
        await two.heard(2)
        assert two.answers == [("EntryRead", -1, Code.OK), ("EntryAdded", 1, Code.OK)]
        await until(lambda: len(bookie.requests) == 6)
        bookie.release()
        assert isinstance((await one.heard(2))[1], Received) and isinstance((await two.heard(3))[2], Received)
        assert one.answers[1:] == two.answers[2:] == [("ReadWithLacDone", -1, Code.OK)]
        again = Listener(client)
        again.send(long_poll(60_000))
        await until(lambda: len(bookie.requests) == 7)
        bookie.release()
        await again.heard(1)
        assert not gone.facts and bookie.connections == 1


async def test_a_long_poll_may_take_its_own_time_and_that_of_any_request() -> None:
    async with joined(replace(PATIENT_V3, request_timeout_s=0.05)) as (bookie, client):
        listener = Listener(client)
        listener.send(long_poll(3_600_000))
        await until(lambda: len(bookie.requests) == 1)
        await asyncio.sleep(0.2)
        bookie.release()
        [fact] = await listener.heard(1)
        assert isinstance(fact, Received) and isinstance(fact.message, ReadWithLacDone)
        listener.send(long_poll(10))
        assert isinstance((await listener.heard(2))[1], PeerLost)


async def test_a_request_behind_a_long_poll_is_overdue_in_its_own_time() -> None:
    async with joined(replace(PATIENT_V3, request_timeout_s=0.05)) as (bookie, client):
        bookie.hold = True
        listener = Listener(client)
        listener.send(long_poll(3_600_000))
        await until(lambda: len(bookie.requests) == 1)
        listener.send(add(0))
        [fact] = await listener.heard(1)
        assert isinstance(fact, PeerLost) and "no response" in fact.reason


async def test_a_loss_is_told_to_those_who_sent_adds_with_deferred_sync_also_if_all_are_answered() -> None:
    async with joined(PATIENT_V3) as (bookie, client):
        writer, synced, gone = Listener(client), Listener(client), Listener(client)
        deferred = replace(add(0), deferred=True)
        for listener, message in ((writer, deferred), (synced, add(1)), (gone, replace(deferred, entry=EntryId(2)))):
            listener.send(message)
            await listener.heard(1)
        gone.requester.close()
        bookie.reset()
        await writer.heard(2)
        assert [type(fact) for fact in writer.facts] == [Received, PeerLost]
        assert len(synced.facts) == len(gone.facts) == 1
