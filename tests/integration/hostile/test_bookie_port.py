"""The port of a bookie: what hostile and faulty clients send, and how it is answered. Rows `bookie.*`."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from dlog.wire.protobuf import fields
from tests.integration.bookie.raw import (
    COLLECT,
    FENCE,
    KEY,
    RECOVERY,
    Raw,
    add_frame,
    batch_frame,
    frame,
    packet,
    read_frame,
    summarize_frame,
)
from tests.integration.cluster import BookieCluster, ServerProcess
from tests.integration.hostile.table import each, row

pytestmark = pytest.mark.zookeeper
OTHER_KEY = b"z" * 20
FRAME_MAX = 5_242_876
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(197)
V3_READ = bytes.fromhex("0a06080310011802 a2060d080710ffffffffffffffffff01")

_ledgers = itertools.count(5_000_000)


def word(version: int, op: int, flags: int = 0) -> bytes:
    return struct.pack(">I", version << 24 | op << 16 | flags)


#: bytes sent on a fresh connection, for a ledger that no other test uses; some need an entry 0 in it
CASES: dict[str, Callable[[int], bytes]] = {
    "length-0": lambda _: struct.pack(">I", 0) + bytes(20),
    "length-1": lambda _: frame(b"\2"),
    "length-max-plus-1": lambda _: struct.pack(">I", FRAME_MAX + 1) + bytes(20),
    "length-2^31-1": lambda _: struct.pack(">I", 2**31 - 1) + bytes(20),
    "length-2^31": lambda _: struct.pack(">I", 2**31) + bytes(20),
    "length-2^32-1": lambda _: struct.pack(">I", 2**32 - 1) + bytes(20),
    "length-max": lambda ledger: add_frame(ledger, 1, bytes(FRAME_MAX - 4 - 20 - 32)),
    "tls-hello": lambda _: TLS_HELLO,
    "http-request": lambda _: b"GET / HTTP/1.1\r\nHost: bookie\r\nAccept: */*\r\n\r\n",
    "ssh-banner": lambda _: b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "zeros": lambda _: bytes(4096),
    "ones": lambda _: b"\xff" * 4096,
    "proxy-hello": lambda _: frame(b"\x00\x0b\x96\x01\x01\x01\x01\xa4tool\xa1x"),
    "op-unknown": lambda _: frame(word(2, 99) + bytes(16)),
    "op-0": lambda _: frame(word(2, 0) + bytes(16)),
    "version-3-as-v2": lambda ledger: add_frame(ledger, 1, b"x", version=3),
    "version-255": lambda ledger: read_frame(ledger, 0, version=255),
    "v3-unknown-ledger": lambda _: frame(V3_READ),
    "v3-without-content": lambda _: frame(V3_READ[:8]),
    "v3-content-cut-off": lambda _: frame(V3_READ[:10] + b"\x03" + V3_READ[11:14]),
    "v3-truncated": lambda _: frame(V3_READ[:-3]),
    "v3-long-header": lambda _: frame(b"\x0a\x81\x02" + V3_READ[2:8] + b"\x7a\xf8\x01" + bytes(248) + V3_READ[8:]),
    "v3-another-version": lambda _: frame(V3_READ[:3] + b"\2" + V3_READ[4:]),
    "v3-unknown-operation": lambda _: frame(V3_READ[:5] + b"\x7f" + V3_READ[6:]),
    "add-without-ids": lambda _: frame(word(2, 1) + KEY + bytes(15)),
    "add-without-lac": lambda ledger: frame(word(2, 1) + KEY + struct.pack(">qq", ledger, 1) + bytes(7)),
    "add-without-digest": lambda ledger: frame(word(2, 1) + KEY + struct.pack(">qqq", ledger, 1, 0)),
    "read-truncated": lambda ledger: frame(word(2, 2) + struct.pack(">q", ledger) + bytes(7)),
    "batch-truncated": lambda ledger: frame(word(2, 7) + struct.pack(">qq", ledger, 0)),
    "fence-without-key": lambda ledger: frame(word(2, 2, FENCE) + struct.pack(">qq", ledger, 0)),
    "auth-garbage": lambda _: frame(word(2, 3) + b"\xff\xff\xff"),
    "key-wrong-add": lambda ledger: add_frame(ledger, 1, b"x", key=OTHER_KEY),
    "key-wrong-recovery-add": lambda ledger: add_frame(ledger, 1, b"x", key=OTHER_KEY, flags=RECOVERY),
    "key-wrong-fence": lambda ledger: read_frame(ledger, 0, key=OTHER_KEY, flags=FENCE),
    "key-wrong-batch-fence": lambda ledger: batch_frame(ledger, 0, 1, 100, flags=FENCE, key=OTHER_KEY),
    "ledger-negative": lambda _: add_frame(-1, 0, b"x"),
    "ledger-lowest": lambda _: add_frame(-(2**63), 0, b"x"),
    "entry-negative": lambda ledger: add_frame(ledger, -5, b"x"),
    "entry-lowest": lambda ledger: read_frame(ledger, -(2**63)),
    "ledger-unknown": lambda ledger: read_frame(2**62 + ledger, 0),
    "entry-unknown": lambda ledger: read_frame(ledger, 2**40),
    "batch-count-negative": lambda ledger: batch_frame(ledger, 0, -(2**31), 2**62),
    "batch-size-negative": lambda ledger: batch_frame(ledger, 0, 5, -(2**63)),
    "collect-truncated": lambda _: frame(word(2, COLLECT) + bytes(7)),
    "collect-trailing": lambda _: frame(word(2, COLLECT) + bytes(9)),
    "collect-number-unknown": lambda _: frame(word(2, COLLECT) + struct.pack(">q", 2**62)),
    "collect-number-negative": lambda _: frame(word(2, COLLECT) + struct.pack(">q", -1)),
    "collect-version-3": lambda _: frame(word(3, COLLECT) + bytes(8)),
    "summarize-truncated": lambda ledger: frame(summarize_frame(ledger, 0, 9)[4:-1]),
    "summarize-everything": lambda ledger: summarize_frame(ledger, 0, 2**63 - 1),
    "summarize-backwards": lambda ledger: summarize_frame(ledger, 9, 0),
    "summarize-negative-ledger": lambda _: summarize_frame(-1, 0, 9),
    "summarize-stripe-of-none": lambda ledger: summarize_frame(ledger, 0, 9, modulus=0),
    "summarize-unknown-digest": lambda ledger: summarize_frame(ledger, 0, 9, digest=9),
    "summarize-unknown-ledger": lambda ledger: summarize_frame(2**62 + ledger, 0, 9),
    "summarize-version-3": lambda ledger: summarize_frame(ledger, 0, 9, version=3),
    "batch-of-nothing": lambda ledger: batch_frame(ledger, 7, 5, 100),
}


@pytest.fixture(scope="module")
def bookie(bookies: BookieCluster) -> ServerProcess:
    return bookies.bookies[0]


@pytest.fixture(scope="module")
def good(bookie: ServerProcess) -> Iterator[Raw]:
    """A correct client, on one connection all the time."""
    with raw(bookie) as client:
        yield client


@pytest.fixture
def ledger(good: Raw) -> int:
    """A ledger with entry 0."""
    number = next(_ledgers)
    assert good.add(number, 0, b"first") == 0
    return number


def raw(bookie: ServerProcess) -> Raw:
    host, _, port = bookie.address.rpartition(":")
    return Raw((host, int(port)))


def heard(client: Raw) -> str:
    """The result: closed, or the first answer."""
    try:
        data = client.frame()
    except (EOFError, ConnectionError):
        return "closed"
    if data[0] == 0x0A:  # protobuf: a field 1
        values = {number: value for number, _, value in fields(data)}
        return f"v3 status {values[2]}"
    return f"rc {struct.unpack_from('>i', data, 4)[0]}"


def still_served(good: Raw, ledger: int) -> None:
    assert good.read(ledger, 0) == (0, packet(ledger, 0, b"first"))
    assert good.add(next(_ledgers), 0, b"more") == 0


@each("bookie", CASES)
def test_what_is_sent_is_answered_so(bookie: ServerProcess, good: Raw, ledger: int, case: str, answer: str) -> None:
    with raw(bookie) as stranger:
        stranger.send(CASES[case](ledger))
        stranger.socket.shutdown(socket.SHUT_WR)
        assert heard(stranger) == answer
    still_served(good, ledger)


@row("bookie.truncated")
def test_a_frame_that_ends_early_is_no_request(bookie: ServerProcess, good: Raw, ledger: int, answer: str) -> None:
    whole = add_frame(ledger, 1, b"never whole")
    for size in (1, 3, 4, 5, 23, 24, len(whole) - 1):
        with raw(bookie) as stranger:
            stranger.send(whole[:size])
            stranger.socket.shutdown(socket.SHUT_WR)
            assert heard(stranger) == answer
    assert good.read(ledger, 1)[0] == 2
    still_served(good, ledger)


@row("bookie.wrong-digest")
def test_a_digest_is_the_readers_to_judge(bookie: ServerProcess, good: Raw, ledger: int, answer: str) -> None:
    """A bookie has no password: it stores what it gets, and every reader verifies."""
    with raw(bookie) as stranger:
        stranger.send(add_frame(ledger, 1, b"\0\0\0\0 not the digest of anything"))
        assert heard(stranger) == answer
    assert good.read(ledger, 1) == (0, packet(ledger, 1, b"\0\0\0\0 not the digest of anything"))


@row("bookie.wrong-id-in-packet")
def test_an_entry_lies_under_the_ids_inside_its_packet(
    bookie: ServerProcess, good: Raw, ledger: int, answer: str
) -> None:
    """v2 has ledger and entry only in the packet, so nothing can contradict them; another ledger has another key."""
    with raw(bookie) as stranger:
        stranger.send(frame(word(2, 1) + OTHER_KEY + packet(ledger, 0, b"somebody else's")))
        assert heard(stranger) == answer
    still_served(good, ledger)


@row("bookie.flood-then-garbage")
def test_what_was_asked_before_the_garbage_harms_nobody(
    bookie: ServerProcess, good: Raw, ledger: int, answer: str
) -> None:
    """Adds that arrive together with garbage may be dropped or answered; an acknowledged one is stored."""
    with raw(bookie) as stranger:
        stranger.send(b"".join(add_frame(ledger, 1 + n, b"x") for n in range(50)))
        acked = [stranger.answer() for _ in range(50)]
        stranger.send(struct.pack(">I", 0))
        assert heard(stranger) == answer
    assert all(good.read(ledger, one.entry)[0] == 0 for one in acked if one.rc == 0)
    still_served(good, ledger)
