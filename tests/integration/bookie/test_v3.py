"""BookKeeper v3 (protobuf) frames on the socket of a real bookie: long polls among other requests, and their end."""

from __future__ import annotations

import itertools
import socket
import struct
from typing import Any

import pytest

from dlog.wire.protobuf import BYTES, bytes_field, fields, int_field, signed
from tests.integration.bookie.process import BookieProcess
from tests.integration.bookie.raw import KEY, Raw, frame, packet

pytestmark = pytest.mark.zookeeper

_ledgers = itertools.count(9_000_000)


@pytest.fixture
def ledger(raw: Raw) -> int:
    return next(_ledgers)


def request(op: int, txn: int, body: bytes) -> bytes:
    number = {1: 100, 2: 101, 6: 103, 7: 104, 8: 105, 10: 107, 11: 108}[op]
    header = int_field(1, 3) + int_field(2, op) + int_field(3, txn)
    return frame(bytes_field(1, header) + bytes_field(number, body))


def add(txn: int, ledger: int, entry: int, body: bytes = b"") -> bytes:
    ids = int_field(1, ledger) + int_field(2, entry)
    return request(2, txn, ids + bytes_field(3, KEY) + bytes_field(4, packet(ledger, entry, body)))


def poll(txn: int, ledger: int, previous: int, ms: int) -> bytes:
    ids = int_field(1, ledger) + int_field(2, -1)
    return request(1, txn, ids + int_field(4, previous) + int_field(5, ms) + int_field(100, 2))


def answer(raw: Raw) -> tuple[int, dict[int, Any]]:
    """txnId, and the fields of the inner message."""
    top: dict[int, Any] = {number: value for number, _, value in fields(raw.frame())}
    header: dict[int, Any] = {number: value for number, _, value in fields(top.pop(1))}
    del top[2]
    (inner,) = top.values()
    values: list[tuple[int, int, Any]] = list(fields(inner))
    return header[3], {number: bytes(v) if kind == BYTES else signed(v) for number, kind, v in values}


def test_every_operation_on_one_connection(raw: Raw, ledger: int) -> None:
    raw.send(add(1, ledger, 0, b"x"))
    assert answer(raw) == (1, {1: 0, 2: ledger, 3: 0})
    one = int_field(1, ledger)
    lac_packet = struct.pack(">qq", ledger, 0) + b"dgst"
    raw.send(request(6, 2, one + int_field(2, 0) + bytes_field(3, KEY) + bytes_field(4, lac_packet)))
    assert answer(raw) == (2, {1: 0, 2: ledger})
    raw.send(request(7, 3, one))
    assert answer(raw) == (3, {1: 0, 2: ledger, 3: lac_packet, 4: packet(ledger, 0, b"x")})
    raw.send(request(1, 4, one + int_field(2, 0)))
    assert answer(raw) == (4, {1: 0, 2: ledger, 3: 0, 4: packet(ledger, 0, b"x"), 5: 0})
    raw.send(request(10, 5, one))
    assert answer(raw) == (5, {1: 0, 2: ledger})
    raw.send(request(11, 6, one))
    txn, listed = answer(raw)
    assert (txn, listed[1], len(listed[3])) == (6, 0, 64 + 24)
    raw.send(request(8, 7, int_field(1, 3)))
    txn, space = answer(raw)
    assert (txn, space[1]) == (7, 0) and 0 < space[3] < space[2]


def test_many_polls_wait_and_keep_nothing_else_from_being_served(raw: Raw, ledger: int) -> None:
    """More than the limit of reads without an answer on one connection."""
    raw.send(add(1, ledger, 0))
    assert answer(raw)[0] == 1
    polls = range(1000, 1400)
    raw.send(b"".join(poll(txn, ledger, 0, 60_000) for txn in polls))
    raw.send(request(1, 2, int_field(1, ledger) + int_field(2, 0)))
    assert answer(raw)[0] == 2
    raw.send(add(3, ledger, 1) + add(4, ledger, 2))
    told = [answer(raw) for _ in range(len(polls) + 2)]
    assert sorted(txn for txn, _ in told) == [3, 4, *polls]
    for txn, inner in told:
        if txn in polls:
            assert inner.pop(6) > 0
            assert inner == {1: 0, 2: ledger, 3: 1, 4: packet(ledger, 1), 5: 1}


@pytest.mark.parametrize("half_close", [False, True])
def test_a_poll_ends_at_its_time_and_at_a_half_close(bookie: BookieProcess, ledger: int, half_close: bool) -> None:
    with bookie.connect() as client:
        client.send(add(1, ledger, 0))
        assert answer(client)[0] == 1
        client.send(poll(2, ledger, 0, 60_000 if half_close else 200))
        if half_close:
            client.socket.shutdown(socket.SHUT_WR)
        txn, inner = answer(client)
        assert txn == 2 and inner.pop(6) > 0 and inner == {1: 0, 2: ledger, 3: -1, 5: -1}
        if half_close:
            assert client.is_closed()


def test_polls_of_clients_that_left_make_room(make_bookie: Any, ledger: int) -> None:
    process = make_bookie(long_polls_max=1).start()
    for left in ("closed", "reset", "not yet"):
        with process.connect() as client:
            client.send(add(1, ledger, 0))
            assert answer(client) == (1, {1: 0, 2: ledger, 3: 0})
            for _ in range(500):  # the bookie may not have noticed yet that the client before has left
                client.send(poll(2, ledger, 0, 60_000) + request(10, 3, int_field(1, ledger)))
                if answer(client)[0] == 3:
                    break  # without a refusal of the poll before it
                assert answer(client)[0] == 3
            else:
                pytest.fail("the poll of a client that has left still counts")
            client.send(poll(4, ledger, 0, 60_000))
            assert answer(client) == (4, {1: 506, 2: ledger, 3: -1})
            if left == "reset":
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
