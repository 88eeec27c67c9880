"""In which order batches are sent, and what counts as held."""

from __future__ import annotations

import asyncio

from dlog.client.batch import SLOT_BYTES, Batch, BatchFuture
from dlog.client.batch_queue import BatchQueue
from dlog.client.options import ClientOptions
from dlog.client.producer_identity import ProducerIdentity
from dlog.client.single_appends import SingleAppends


class Sender:
    """A queue, and a writer of single records into it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.queue = BatchQueue(ClientOptions(buffer_bytes_max=1000), loop)
        self.singles = SingleAppends(self.queue, self.queue, loop)  # type: ignore[arg-type]  # only `append_and_lend`
        self.identity = ProducerIdentity(bytes(12))

    def add(self, payload: bytes) -> None:
        assert self.singles.add(payload, None) is not None

    def add_whole(self, payload: bytes, *, may_join: bool = False) -> None:
        listener = BatchFuture(1, asyncio.get_running_loop().create_future())
        self.queue.add_whole([payload], len(payload) + SLOT_BYTES, None, listener, may_join=may_join)

    def send(self, in_flight_max: int) -> Batch | None:
        batch = self.queue.next_to_send(in_flight_max)
        if batch is not None:
            self.identity.number(batch)
        return batch


async def test_the_open_batch_is_sent_only_while_few_are_in_flight() -> None:
    sender = Sender()
    sender.add(b"a")
    assert sender.send(0) is None
    for n in range(2):
        sender.add(b"b")
        assert sender.send(5) is not None, f"{n} are in flight"
        sender.add(b"c")
    assert sender.send(5) is None
    sender.queue.close_open()
    assert sender.send(2) is None
    assert sender.send(3) is not None, "what is ready is sent up to the limit of the caller"
    assert [batch.count for batch in sender.queue.in_flight] == [2, 2, 1]


async def test_batches_that_come_back_are_sent_in_the_order_of_their_sequences() -> None:
    sender = Sender()
    for _ in range(4):
        sender.add_whole(b"x")
    sent = [sender.send(3) for _ in range(3)]
    first, second, third = [batch for batch in sent if batch is not None]
    last = sender.queue.ready[0]
    sender.queue.in_flight.remove(second)
    sender.queue.put_back(second)
    assert sender.queue.has_before(third)
    assert not sender.queue.has_before(first)
    sender.queue.put_back_in_flight()
    assert list(sender.queue.ready) == [first, second, third, last]
    assert [batch.may_be_written for batch in (first, second, third, last)] == [True, False, True, False]


async def test_batches_of_the_application_are_joined_only_before_they_are_sent() -> None:
    sender = Sender()
    sender.add_whole(b"a")
    sender.add_whole(b"b", may_join=True)
    sender.add_whole(b"c")
    assert [batch.payloads for batch in sender.queue.ready] == [[b"a", b"b"], [b"c"]]
    batch = sender.send(1)
    assert batch is not None
    sender.queue.ready.clear()
    sender.queue.put_back_in_flight()
    sender.add_whole(b"d", may_join=True)
    assert [batch.body != b"" for batch in sender.queue.ready] == [True, False]


async def test_records_added_during_a_loan_are_counted_when_it_ends() -> None:
    sender = Sender()
    sender.add(b"12345678")
    assert sender.queue.room.held == 8 + SLOT_BYTES
    sender.add(b"1234")
    assert sender.queue.room.held == 8 + SLOT_BYTES, "added without a call"
    batch = sender.send(1)
    assert batch is not None
    assert sender.queue.room.held == batch.size == 12 + 2 * SLOT_BYTES
    assert not sender.queue.is_empty
    sender.queue.in_flight.clear()
    assert sender.queue.is_empty
