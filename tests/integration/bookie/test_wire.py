"""The bytes that a raw v2 socket gets from a bookie. Source: BookKeeper 4.17.3 as measured on the wire."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.integration.bookie.process import BookieProcess
from tests.integration.bookie.raw import (
    FENCE,
    HIGH_PRIORITY,
    KEY,
    RECOVERY,
    Raw,
    add_frame,
    batch_frame,
    frame,
    packet,
    read_frame,
)

pytestmark = pytest.mark.zookeeper
OK, NO_LEDGER, NO_ENTRY, BAD, UNAUTHORIZED, BAD_VERSION, FENCED = 0, 1, 2, 100, 102, 103, 104
FRAME_MAX = 5_242_876

_ids = iter(range(1000, 10**6))


@pytest.fixture
def ledger() -> int:
    return next(_ids)


class TestFraming:
    def test_the_largest_frame_is_served(self, raw: Raw, ledger: int) -> None:
        body = random.Random(1).randbytes(FRAME_MAX - 4 - 20 - 32)
        data = add_frame(ledger, 0, body)
        assert struct.unpack_from(">I", data) == (FRAME_MAX,)
        assert raw.ask(data).rc == OK
        assert raw.read(ledger, 0) == (OK, packet(ledger, 0, body))

    @pytest.mark.parametrize("length", [FRAME_MAX + 1, 5 << 20, 0, 0x80000000, 0xFFFFFFFF])
    def test_other_lengths_close(self, raw: Raw, length: int) -> None:
        raw.send(struct.pack(">I", length) + bytes(100))
        assert raw.is_closed()

    @pytest.mark.parametrize("op", [0, 4, 5, 6, 8, 9, 255])
    def test_operations_nobody_serves_close(self, raw: Raw, op: int) -> None:
        raw.send(frame(struct.pack(">Iqq", 2 << 24 | op << 16, 1, 1)))
        assert raw.is_closed()

    @pytest.mark.parametrize(
        "payload", [b"\2", b"\2\1\0\0", b"\2\2\0\0" + bytes(15), b"\2\2\0\1" + bytes(16), b"\2\1\0\0" + KEY + bytes(15)]
    )
    def test_short_frames_close(self, raw: Raw, payload: bytes) -> None:
        raw.send(frame(payload))
        assert raw.is_closed()

    def test_a_frame_in_single_bytes(self, raw: Raw, ledger: int) -> None:
        for byte in add_frame(ledger, 0, b"slowly"):
            raw.send(bytes([byte]))
        assert raw.answer().rc == OK

    def test_unknown_flags_and_trailing_bytes_are_ignored(self, raw: Raw, ledger: int) -> None:
        assert raw.add(ledger, 0, b"x", flags=0x7FF8) == OK
        assert raw.ask(read_frame(ledger, 0, flags=0x100)[:0] + frame(read_frame(ledger, 0)[4:] + b"tail")).rc == OK

    def test_hostile_bytes_harm_nobody_else(self, bookie: BookieProcess, raw: Raw, ledger: int) -> None:
        assert raw.add(ledger, 0, b"safe") == OK
        rng = random.Random(2)
        for _ in range(60):
            with bookie.connect() as hostile:
                data = bytearray(add_frame(ledger, rng.randrange(9), rng.randbytes(50)) + read_frame(ledger, 0))
                for _ in range(rng.randrange(1, 6)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
                hostile.send(bytes(data) if rng.random() < 0.7 else rng.randbytes(300))
                hostile.socket.shutdown(socket.SHUT_WR)
                try:
                    while hostile.socket.recv(4096):
                        pass
                except ConnectionError:
                    pass
        assert raw.read(ledger, 0) == (OK, packet(ledger, 0, b"safe"))


class TestVersions:
    def test_answers_say_version_two_and_no_flags(self, raw: Raw, ledger: int) -> None:
        assert raw.ask(add_frame(ledger, 0, flags=HIGH_PRIORITY)).word == 0x02010000
        assert raw.ask(read_frame(ledger, 0)).word == 0x02020000
        assert raw.ask(add_frame(ledger, 1, version=1)).word == 0x02010000

    def test_version_zero_is_the_operation_alone(self, raw: Raw, ledger: int) -> None:
        assert raw.add(ledger, 0, b"x") == OK
        answer = raw.ask(frame(struct.pack(">Iqq", 2, ledger, 0)))
        assert (answer.rc, answer.rest) == (OK, packet(ledger, 0, b"x"))

    @pytest.mark.parametrize("version", [3, 9, 255])
    def test_later_versions_are_told_so(self, raw: Raw, ledger: int, version: int) -> None:
        answer = raw.ask(add_frame(ledger, 3, version=version))
        assert answer[1:] == (BAD_VERSION, ledger, 3, b"")
        data = bytearray(batch_frame(ledger, 3, 1, 1))
        data[4] = version
        assert raw.ask(bytes(data))[1:] == (BAD_VERSION, ledger, 3, struct.pack(">q", 5))

    def test_a_version_one_fence_has_no_key(self, raw: Raw, ledger: int) -> None:
        assert raw.add(ledger, 0) == OK
        assert raw.ask(read_frame(ledger, 0, flags=FENCE, version=1)).rc == UNAUTHORIZED
        assert raw.add(ledger, 1) == OK

    def test_a_v3_client_is_answered_in_its_own_form_and_may_go_on_in_v2(self, raw: Raw, ledger: int) -> None:
        raw.send(bytes.fromhex("00000018 0a06080310011802 a2060d087f10ffffffffffffffffff01"))
        assert raw.frame().hex() == "0a06080310011802109203a20610089203107f18ffffffffffffffffff01", "no such ledger"
        assert raw.add(ledger, 0) == OK

    def test_auth_is_answered_as_disabled(self, raw: Raw) -> None:
        raw.send(frame(bytes.fromhex("02030000") + b"\x0a\x03abc\x12\x00"))
        assert raw.frame().hex() == "02030000" + "0a12" + b"AuthDisabledPlugin".hex() + "1200"


class TestAddsAndReads:
    def test_add_and_read(self, raw: Raw, ledger: int) -> None:
        raw.send(b"".join(add_frame(ledger, entry, b"%d" % entry) for entry in range(100)))
        assert sorted(a.entry for a in raw.answers(100)) == list(range(100))
        assert [raw.read(ledger, entry) for entry in (0, 57, 99)] == [
            (OK, packet(ledger, entry, b"%d" % entry)) for entry in (0, 57, 99)
        ]
        assert raw.read(ledger, 100) == (NO_ENTRY, b"")
        assert raw.read(ledger + 10**9, 0) == (NO_LEDGER, b"")

    def test_minus_one_is_the_last(self, raw: Raw, ledger: int) -> None:
        assert raw.add(ledger, 0, b"a") == raw.add(ledger, 9, b"b") == OK
        answer = raw.ask(read_frame(ledger, -1))
        assert (answer.rc, answer.entry, answer.rest) == (OK, -1, packet(ledger, 9, b"b"))

    def test_negative_ids_are_refused_and_do_no_harm(self, raw: Raw, ledger: int) -> None:
        for entry in (-1, -0x1000, -0x2000, -0x4000, -0x8000, -(2**62)):
            assert raw.add(ledger, entry) == BAD
        assert raw.add(-5, 0) == BAD
        assert raw.read(ledger, -2)[0] == BAD
        assert raw.read(-5, 0)[0] == BAD
        assert raw.read(ledger, 0)[0] == NO_LEDGER

    @pytest.mark.parametrize("entry", [2**31, 2**40, 2**63 - 1])
    def test_huge_ids(self, raw: Raw, ledger: int, entry: int) -> None:
        assert raw.add(ledger, entry, b"far") == OK
        assert raw.add(2**62 + ledger, entry, b"far") == OK
        assert raw.read(ledger, entry) == (OK, packet(ledger, entry, b"far"))
        assert raw.read(2**62 + ledger, -1) == (OK, packet(2**62 + ledger, entry, b"far"))

    def test_packets_need_a_lac(self, raw: Raw, ledger: int) -> None:
        head = struct.pack(">I", 0x02010000) + KEY
        assert raw.ask(frame(head + struct.pack(">qq", ledger, 0) + bytes(7))).rc == BAD
        assert raw.ask(frame(head + struct.pack(">qq", ledger, 0) + bytes(8))).rc == OK

    def test_adding_again_keeps_the_first(self, raw: Raw, ledger: int) -> None:
        assert raw.add(ledger, 0, b"first") == raw.add(ledger, 0, b"first") == OK
        assert raw.add(ledger, 0, b"other") == UNAUTHORIZED
        assert raw.read(ledger, 0)[1] == packet(ledger, 0, b"first")

    def test_the_key_is_the_first_writers(self, raw: Raw, ledger: int) -> None:
        assert raw.add(ledger, 0) == OK
        assert raw.ask(add_frame(ledger, 1, key=b"z" * 20)).rc == UNAUTHORIZED
        assert raw.fence(ledger, key=b"z" * 20).rc == UNAUTHORIZED
        assert raw.add(ledger, 1) == OK

    def test_batch_reads(self, raw: Raw, ledger: int) -> None:
        for entry in (0, 1, 2, 5):
            assert raw.add(ledger, entry, bytes(1024)) == OK
        rc, packets = raw.batch(ledger, 0)
        assert (rc, packets) == (OK, [packet(ledger, e, bytes(1024)) for e in (0, 1, 2)])
        assert len(raw.batch(ledger, 0, count=2)[1]) == 2
        assert len(raw.batch(ledger, 0, size=1)[1]) == len(raw.batch(ledger, 0, size=-1)[1]) == 1
        assert raw.batch(ledger, 3) == (NO_ENTRY, [])
        assert [p[15] for p in raw.batch(ledger, -1)[1]] == [5, 0, 1, 2]


class TestFences:
    def test_a_fence_stops_the_writer_and_not_recovery(self, raw: Raw, ledger: int) -> None:
        assert raw.add(ledger, 0, b"a") == OK
        answer = raw.fence(ledger)
        assert (answer.rc, answer.rest) == (OK, packet(ledger, 0, b"a"))
        assert raw.add(ledger, 1) == FENCED
        assert raw.ask(add_frame(ledger, 1, key=b"z" * 20)).rc == UNAUTHORIZED
        assert raw.add(ledger, 1, b"r", flags=RECOVERY) == OK
        assert raw.read(ledger, 1)[0] == OK

    def test_an_unknown_ledger_is_created_fenced_with_that_key(self, raw: Raw, ledger: int) -> None:
        assert raw.fence(ledger).rc == NO_ENTRY
        assert raw.add(ledger, 0) == FENCED
        assert raw.ask(add_frame(ledger, 0, key=b"z" * 20)).rc == UNAUTHORIZED
        assert raw.read(ledger, 0)[0] == NO_ENTRY

    def test_everything_acknowledged_before_the_fence_is_in_its_answer(
        self, bookie: BookieProcess, raw: Raw, ledger: int
    ) -> None:
        with bookie.connect() as other:
            raw.send(b"".join(add_frame(ledger, entry, bytes(2000)) for entry in range(200)))
            fenced = other.fence(ledger)
            answers = raw.answers(200)
            acked = sorted(a.entry for a in answers if a.rc == OK)
            assert acked == list(range(len(acked))), "the fence came between two adds"
            assert {a.rc for a in answers} <= {OK, FENCED}
            last = struct.unpack_from(">q", fenced.rest, 8)[0] if fenced.rc == OK else -1
            assert last >= max(acked, default=-1)


class TestConnections:
    def test_half_close_gets_every_answer_it_is_owed(self, raw: Raw, ledger: int) -> None:
        raw.send(b"".join(add_frame(ledger, e, b"x") for e in range(50)) + read_frame(ledger, 49))
        raw.socket.shutdown(socket.SHUT_WR)
        assert [a.rc for a in raw.answers(51)] == [OK] * 51
        with pytest.raises(EOFError):
            raw.frame()

    def test_a_client_that_does_not_read_is_bounded_and_blocks_nobody(
        self, bookie: BookieProcess, raw: Raw, ledger: int
    ) -> None:
        assert raw.add(ledger, 0, bytes(1 << 20)) == OK
        before = bookie.resident_bytes()
        with bookie.connect() as slow:
            slow.socket.settimeout(0.3)
            try:
                for _ in range(200):
                    slow.send(read_frame(ledger, 0) * 100)
            except TimeoutError:
                pass
            for entry in range(1, 20):
                assert raw.add(ledger, entry, b"quick") == OK
                assert raw.read(ledger, entry)[0] == OK
            assert bookie.resident_bytes() - before < 100 << 20
            slow.socket.settimeout(90)
            assert len(slow.answers(20)) == 20

    def test_many_connections_at_once(self, bookie: BookieProcess, ledger: int) -> None:
        def clients() -> Iterator[Raw]:
            for _ in range(50):
                yield bookie.connect()

        everybody = list(clients())
        for number, client in enumerate(everybody):
            client.send(add_frame(ledger, number, b"%d" % number))
        assert [client.answer().rc for client in everybody] == [OK] * 50
        for client in everybody:
            client.socket.close()
