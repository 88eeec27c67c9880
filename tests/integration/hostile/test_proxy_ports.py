"""The ports of both proxies: what hostile and faulty clients send, and how it is answered.

Rows `write.*` and `read.*`. Each case runs against a real process on real bookies; a correct connection beside it is
served all the time, and at the end of the module every acknowledged record is read back.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

import lz4.block
import msgpack
import pytest

from dlog.wire import proxy
from dlog.wire.digest import crc32c
from dlog.wire.entry import RECORD_BYTES_MAX, build_record_set
from dlog.wire.proxy import Start
from tests.integration.hostile.conftest import SETTINGS, Bystander, SmallCluster
from tests.integration.hostile.table import each, row
from tests.integration.hostile.talk import HELLO, REQUEST, Talk, forged, framed, said, write

pytestmark = pytest.mark.zookeeper
FRAME_MAX = RECORD_BYTES_MAX + 64 * 1024 + 6
STREAM = "bystander"
INCARNATION = "a1"  # incarnation of the streams that are created here
LIVING = "living"
NOWHERE = "no-such-stream"

_producers = itertools.count(1)


def producer() -> bytes:
    """A producer id of sixteen bytes that was not used before."""
    return b"hostile %8d" % next(_producers)


def header(data: bytes) -> bytes:
    return framed(data)


def hello(**fields: Any) -> bytes:
    return forged(proxy.Hello(REQUEST, 1, 1, "tool", "x"), **fields)


def read(stream: str = STREAM, start: Start = Start.START, value: object = None, credit: int = 1000) -> proxy.Read:
    return proxy.Read(REQUEST, stream, start, value, credit, False, True)


def record_set(meta: int, count: int, size: int, packed: bytes) -> proxy.Write:
    """A batch with any header and a correct checksum."""
    body = struct.pack(">iiii", meta, count, size, len(packed)) + packed
    return write(STREAM, body, count=max(count, 1), producer=producer())


#: sent before any hello: a peer that does not speak the protocol gets no answer
BEFORE_HELLO: dict[str, Callable[[], bytes]] = {
    "length-0": lambda: struct.pack(">I", 0) + bytes(20),
    "length-1": lambda: struct.pack(">IB", 1, 0),
    "length-hello-max-plus-1": lambda: struct.pack(">I", 4097) + bytes(20),
    "length-2^31-1": lambda: struct.pack(">I", 2**31 - 1) + bytes(20),
    "length-2^31": lambda: struct.pack(">I", 2**31) + bytes(20),
    "length-2^32-1": lambda: struct.pack(">I", 2**32 - 1) + bytes(20),
    "tls-hello": lambda: bytes.fromhex("16030100c8010000c40303") + bytes(197),
    "http-request": lambda: b"GET / HTTP/1.1\r\nHost: proxy\r\n\r\n",
    "bookie-v2-read": lambda: struct.pack(">IIqq", 20, 2 << 24 | 2 << 16, 1, 0),
    "zeros": lambda: bytes(5000),
    "ones": lambda: b"\xff" * 5000,
    "ping-first": lambda: said(proxy.Ping(REQUEST)),
    "write-first": lambda: said(write(STREAM)),
    "answer-first": lambda: said(proxy.Done(REQUEST)),
    "hello-version-0": lambda: hello(version_min=0, version_max=0),
    "hello-version-future": lambda: hello(version_min=2, version_max=65535),
    "hello-version-backwards": lambda: hello(version_min=9, version_max=1),
    "hello-name-bytes": lambda: hello(name=b"x"),
    "hello-role-long": lambda: hello(role="r" * 4096),
    "hello-without-fields": lambda: header(msgpack.packb([1])),
}

#: sent after a valid hello: bytes that are not a message close the connection
NO_MESSAGE: dict[str, Callable[[], bytes]] = {
    "greeted-length-0": lambda: struct.pack(">I", 0) + bytes(20),
    "greeted-length-max-plus-1": lambda: struct.pack(">I", FRAME_MAX + 1) + bytes(20),
    "greeted-length-2^32-1": lambda: struct.pack(">I", 2**32 - 1),
    "header-past-frame": lambda: struct.pack(">IH", 10, 5000) + bytes(8),
    "header-empty": lambda: struct.pack(">IH", 2, 0),
    "header-no-msgpack": lambda: header(b"\xc1\xc1"),
    "header-truncated": lambda: header(b"\x95\x02\x4d"),
    "header-trailing": lambda: header(msgpack.packb([16, REQUEST]) + b"\0"),
    "header-map": lambda: header(msgpack.packb({"op": 16})),
    "op-unknown": lambda: header(msgpack.packb([63, REQUEST])),
    "op-float": lambda: header(msgpack.packb([16.0, REQUEST])),
    "op-text": lambda: header(msgpack.packb(["PING", REQUEST])),
    "op-bool": lambda: header(msgpack.packb([True, REQUEST])),
    "fields-few": lambda: header(msgpack.packb([10, REQUEST])),
    "fields-many": lambda: header(msgpack.packb([16, REQUEST, 0])),
    "field-null": lambda: forged(proxy.Stat(REQUEST, STREAM), stream=None),
    "field-bytes-for-text": lambda: forged(proxy.Stat(REQUEST, STREAM), stream=b"x"),
    "field-text-no-utf8": lambda: header(b"\x93\x0a\x4d\xa2\xff\xfe"),
    "field-float-for-integer": lambda: forged(proxy.Ping(REQUEST), request=7.0),
    "field-nan": lambda: forged(proxy.Ping(REQUEST), request=math.nan),
    "field-bool-for-integer": lambda: forged(proxy.Ping(REQUEST), request=True),
    "field-integer-for-bool": lambda: forged(write(STREAM), retry=1),
    "field-negative": lambda: forged(proxy.Ping(REQUEST), request=-1),
    "field-2^63": lambda: forged(proxy.Ping(REQUEST), request=2**63),
    "field-2^64-1": lambda: forged(proxy.Ping(REQUEST), request=2**64 - 1),
    "depth-bomb": lambda: header(b"\x91" * 60_000),
    "depth-bomb-of-maps": lambda: header(b"\x81\xa1a" * 20_000),
    "array-of-2^32": lambda: header(b"\xdd\xff\xff\xff\xff"),
    "map-of-2^32": lambda: header(b"\xdf\xff\xff\xff\xff"),
    "text-of-2^32": lambda: header(b"\xdb\xff\xff\xff\xff"),
    "bytes-of-2^32": lambda: header(b"\xc6\xff\xff\xff\xff"),
    "extension": lambda: header(b"\x92\x10\xd4\x05\x00"),
    "timestamp": lambda: header(b"\x92\x10\xd6\xff\x00\x00\x00\x00"),
    "map-keys-twice": lambda: header(b"\x94\x06\x4d\xa1s\x82\xa5store\xa1a\xa5store\xa1b"),
    "map-keys-integers": lambda: forged(proxy.Create(REQUEST, "s", INCARNATION, 0, {}), settings={1: 2}),
    "map-keys-bytes": lambda: forged(proxy.Create(REQUEST, "s", INCARNATION, 0, {}), settings={b"store": "x"}),
    "map-too-large": lambda: forged(
        proxy.Create(REQUEST, "s", INCARNATION, 0, {}), settings={str(n): n for n in range(1025)}
    ),
    "body-where-none-is": lambda: forged(proxy.Ping(REQUEST), body=b"body"),
    "producer-15-bytes": lambda: forged(write(STREAM), producer=b"x" * 15),
    "count-0": lambda: forged(write(STREAM), count=0),
    "count-negative": lambda: forged(write(STREAM), count=-1),
    "sequence-overflow": lambda: forged(write(STREAM), sequence=2**63 - 1),
    "crc-2^32": lambda: forged(write(STREAM), crc=2**32),
    "incarnation-empty": lambda: forged(proxy.Seal(REQUEST, STREAM, INCARNATION), incarnation=""),
    "incarnation-of-slashes": lambda: forged(proxy.Seal(REQUEST, STREAM, INCARNATION), incarnation="../x"),
    "incarnation-of-bytes": lambda: forged(proxy.Delete(REQUEST, STREAM, INCARNATION), incarnation=b"a1"),
    "dlsn-of-two": lambda: forged(proxy.Truncate(REQUEST, STREAM, INCARNATION, (1, 0, 0)), dlsn=[1, 0]),
    "dlsn-of-text": lambda: forged(proxy.Truncate(REQUEST, STREAM, INCARNATION, (1, 0, 0)), dlsn=["1", "0", "0"]),
    "start-unknown": lambda: forged(read(), start=5),
    "start-without-value": lambda: forged(read(), start=2),
    "start-value-of-another-kind": lambda: forged(read(), start=3, value=[1, 0, 0]),
    "credit-2^63": lambda: forged(read(), credit=2**63),
}

#: well formed requests with wrong contents: an error by number, and the connection stays open
QUESTIONS: dict[str, Callable[[], bytes]] = {
    "hello-twice": lambda: hello(),
    "answer-instead": lambda: said(proxy.Failed(REQUEST, 500, "no")),
    "stat-unknown": lambda: said(proxy.Stat(REQUEST, NOWHERE)),
    "seal-unknown": lambda: said(proxy.Seal(REQUEST, NOWHERE, INCARNATION)),
    "delete-unknown": lambda: said(proxy.Delete(REQUEST, NOWHERE, INCARNATION)),
    "hand-over-unknown": lambda: said(proxy.HandOver(REQUEST, NOWHERE, INCARNATION)),
    "truncate-unknown": lambda: said(proxy.Truncate(REQUEST, NOWHERE, INCARNATION, (1, 0, 0))),
    "alter-unknown": lambda: said(proxy.Alter(REQUEST, NOWHERE, INCARNATION, 0, {"retention_s": 1.0})),
    "owner-unknown": lambda: said(proxy.GetOwner(REQUEST, NOWHERE)),
    "owner-suspect-garbage": lambda: said(proxy.GetOwner(REQUEST, STREAM, "\0 no address \n" * 200)),
    "seal-of-another-incarnation": lambda: said(proxy.Seal(REQUEST, LIVING, "b2")),
    "delete-of-another-incarnation": lambda: said(proxy.Delete(REQUEST, LIVING, "b2")),
    "alter-of-another-incarnation": lambda: said(proxy.Alter(REQUEST, LIVING, "b2", 0, {"retention_s": 1.0})),
    "create-after-a-deletion": lambda: said(proxy.Create(REQUEST, "late", INCARNATION, 1, dict(SETTINGS))),
    "name-empty": lambda: said(proxy.Stat(REQUEST, "")),
    "name-dot-dot": lambda: said(proxy.Stat(REQUEST, "..")),
    "name-slash": lambda: said(proxy.Stat(REQUEST, "a/b")),
    "name-nul": lambda: said(proxy.Stat(REQUEST, "a\0b")),
    "name-twin": lambda: said(proxy.Stat(REQUEST, "bystande\N{CYRILLIC SMALL LETTER ER}")),
    "name-long": lambda: said(proxy.Stat(REQUEST, "n" * 201)),
    "name-longest-text": lambda: said(proxy.Stat(REQUEST, "n" * 4096)),
    "create-exists": lambda: said(proxy.Create(REQUEST, STREAM, INCARNATION, 0, dict(SETTINGS))),
    "create-name-illegal": lambda: said(proxy.Create(REQUEST, "../../ledgers", INCARNATION, 0, dict(SETTINGS))),
    "create-setting-unknown": lambda: said(proxy.Create(REQUEST, "s", INCARNATION, 0, {"colour": "red"})),
    "create-setting-type": lambda: said(proxy.Create(REQUEST, "s", INCARNATION, 0, {"ensemble": "3"})),
    "create-setting-nan": lambda: said(proxy.Create(REQUEST, "s", INCARNATION, 0, {"retention_s": math.nan})),
    "create-setting-infinite": lambda: said(proxy.Create(REQUEST, "s", INCARNATION, 0, {"segment_age_s": math.inf})),
    "create-setting-huge": lambda: said(proxy.Create(REQUEST, "s", INCARNATION, 0, {"segment_bytes": 2**64 - 1})),
    "create-setting-negative": lambda: said(proxy.Create(REQUEST, "s", INCARNATION, 0, {"segment_bytes": -5})),
    "create-setting-nested": lambda: said(proxy.Create(REQUEST, "s", INCARNATION, 0, {"store": {"a": [[[[1]]]]}})),
    "create-store-unknown": lambda: said(proxy.Create(REQUEST, "s", INCARNATION, 0, {"store": "floppy"})),
    "create-quorums-contradict": lambda: said(
        proxy.Create(REQUEST, "s", INCARNATION, 0, {"ensemble": 2, "write_quorum": 3, "ack_quorum": 2})
    ),
    "create-ack-above-write": lambda: said(
        proxy.Create(REQUEST, "s", INCARNATION, 0, {"ensemble": 3, "write_quorum": 2, "ack_quorum": 3})
    ),
    "create-ensemble-beyond-bookies": lambda: said(
        proxy.Create(REQUEST, "s", INCARNATION, 0, {"ensemble": 99, "write_quorum": 3, "ack_quorum": 2})
    ),
    "alter-setting-unknown": lambda: said(proxy.Alter(REQUEST, LIVING, INCARNATION, 0, {"colour": "red"})),
    "alter-setting-type": lambda: said(proxy.Alter(REQUEST, LIVING, INCARNATION, 0, {"retention_s": "1h"})),
    "alter-store-unknown": lambda: said(proxy.Alter(REQUEST, LIVING, INCARNATION, 0, {"store": "floppy"})),
    "alter-ack-above-write": lambda: said(proxy.Alter(REQUEST, LIVING, INCARNATION, 0, {"ack_quorum": 9})),
    "alter-nothing": lambda: said(proxy.Alter(REQUEST, LIVING, INCARNATION, 0, {})),
    "alter-after-another": lambda: said(proxy.Alter(REQUEST, LIVING, INCARNATION, 2**63 - 1, {"retention_s": 7.0})),
    "list-limit-0": lambda: said(proxy.List(REQUEST, "", 0)),
    "list-limit-huge": lambda: said(proxy.List(REQUEST, "", 2**32 - 1)),
    "list-after-garbage": lambda: said(proxy.List(REQUEST, "\0\U0010ffff/../" * 100, 10)),
    "truncate-dlsn-lowest": lambda: said(proxy.Truncate(REQUEST, LIVING, INCARNATION, (-(2**63),) * 3)),
    "truncate-dlsn-beyond-the-end": lambda: said(proxy.Truncate(REQUEST, LIVING, INCARNATION, (2**62, 0, 0))),
}

#: batches and tails, which only a write proxy takes
TO_WRITERS: dict[str, Callable[[], bytes]] = {
    "write-unknown-stream": lambda: said(write(NOWHERE)),
    "write-name-illegal": lambda: said(write("../bystander")),
    "write-name-empty": lambda: said(write("")),
    "write-empty-body": lambda: said(write(STREAM, b"")),
    "write-no-record-set": lambda: said(write(STREAM, b"plain bytes, not a set of records")),
    "write-count-too-high": lambda: said(write(STREAM, count=3, producer=producer())),
    "write-count-too-low": lambda: said(write(STREAM, count=1, producer=producer())),
    "write-count-huge": lambda: said(write(STREAM, count=2**31 - 1, producer=producer())),
    "write-crc-wrong": lambda: said(write(STREAM, crc=1, producer=producer())),
    "write-codec-2": lambda: said(record_set(0x1002, 1, 5, b"\0\0\0\1x")),
    "write-codec-3": lambda: said(record_set(0x1003, 1, 5, b"\0\0\0\1x")),
    "write-set-version": lambda: said(record_set(0x2000, 1, 5, b"\0\0\0\1x")),
    "write-set-size-wrong": lambda: said(record_set(0x1000, 1, 500, b"\0\0\0\1x")),
    "write-set-size-negative": lambda: said(record_set(0x1000, 1, -5, b"\0\0\0\1x")),
    "write-set-count-beyond-size": lambda: said(record_set(0x1000, 2**30, 5, b"\0\0\0\1x")),
    "write-bomb-declared": lambda: said(record_set(0x1001, 1, 2**31 - 1, lz4_of(1000))),
    "write-bomb-beyond-a-batch": lambda: said(record_set(0x1001, 1, RECORD_BYTES_MAX, lz4_of(RECORD_BYTES_MAX))),
    "write-bomb-of-ratio": lambda: said(record_set(0x1001, 1, 1_000_000, b"x" * 50)),
    "write-oversize": lambda: said(write(STREAM, bytes(RECORD_BYTES_MAX + 1))),
    "write-sequence-gap": lambda: said(write(STREAM, sequence=10, producer=producer())),
    "write-txid-end-of-stream": lambda: said(write(STREAM, txid=2**63 - 1, producer=producer())),
    "write-retry-of-nothing": lambda: said(write(STREAM, retry=True, sequence=500, producer=producer())),
    "tail-unknown": lambda: said(proxy.Tail(REQUEST, NOWHERE)),
    "tail-name-illegal": lambda: said(proxy.Tail(REQUEST, "a/b")),
    "read-at-the-wrong-door": lambda: said(read()),
}

#: reads, which only a read proxy serves
TO_READERS: dict[str, Callable[[], bytes]] = {
    "read-unknown-stream": lambda: said(read(NOWHERE)),
    "read-name-illegal": lambda: said(read("../../etc/passwd")),
    "read-dlsn-lowest": lambda: said(read(start=Start.DLSN, value=(-(2**63),) * 3)),
    "read-dlsn-highest": lambda: said(read(start=Start.DLSN, value=(2**63 - 1,) * 3)),
    "read-txid-highest": lambda: said(read(start=Start.TXID, value=2**63 - 1)),
    "read-time-highest": lambda: said(read(start=Start.TIME, value=2**63 - 1)),
    "read-credit-0": lambda: said(read(credit=0)),
    "read-credit-overflows": lambda: said(read(credit=2**63 - 1)) + said(proxy.Credit(REQUEST, 2**63 - 1)) * 3,
    "write-at-the-wrong-door": lambda: said(write(STREAM)),
    "tail-at-the-wrong-door": lambda: said(proxy.Tail(REQUEST, STREAM)),
}


def lz4_of(size: int) -> bytes:
    packed: bytes = lz4.block.compress(struct.pack(">I", size - 4) + bytes(size - 4), store_size=False)
    return packed


def _of(role: str) -> dict[str, Callable[[], bytes]]:
    mine = TO_WRITERS if role == "write" else TO_READERS
    return {**BEFORE_HELLO, **NO_MESSAGE, **QUESTIONS, **mine}


@pytest.fixture(scope="module", autouse=True)
def nothing_is_lost(bystander: Bystander, cluster: SmallCluster) -> Iterator[None]:
    """Append before the first case, and read everything after the last."""
    asyncio.run(bystander.work())
    with Talk(cluster.writer.address) as raw:
        raw.send(said(proxy.Create(REQUEST, LIVING, INCARNATION, 0, dict(SETTINGS))))
        assert raw.answer() == "DONE"
    yield
    asyncio.run(bystander.work())


@pytest.fixture(scope="module")
def good(cluster: SmallCluster) -> Iterator[dict[str, Talk]]:
    """A correct client, on one connection to each proxy all the time."""
    with Talk(cluster.writer.address) as writer, Talk(cluster.reader.address) as reader:
        yield {"write": writer, "read": reader}


def check(cluster: SmallCluster, good: dict[str, Talk], role: str, case: str, answer: str) -> None:
    with Talk(cluster.proxy(role).address, hello=case not in BEFORE_HELLO) as stranger:
        stranger.send(_of(role)[case]())
        assert stranger.answer() == answer
    good[role].send(said(proxy.Ping(REQUEST)))
    assert good[role].answer() == "DONE"


@each("write", _of("write"))
def test_a_write_proxy_answers_so(cluster: SmallCluster, good: dict[str, Talk], case: str, answer: str) -> None:
    check(cluster, good, "write", case, answer)


@each("read", _of("read"))
def test_a_read_proxy_answers_so(cluster: SmallCluster, good: dict[str, Talk], case: str, answer: str) -> None:
    check(cluster, good, "read", case, answer)


@row("write.sequence-backwards")
def test_a_sequence_that_was_used_is_not_written_again(cluster: SmallCluster, answer: str) -> None:
    """However the repetition is cut: a batch whose position is known gets it as answer, another one is refused."""
    name, told = producer(), []
    with Talk(cluster.writer.address) as raw:
        raw.send(said(proxy.Create(REQUEST, "backwards", INCARNATION, 0, dict(SETTINGS))))
        assert raw.answer() == "DONE"
        for sequence, records in ((0, 2), (2, 2), (0, 2), (1, 1), (3, 5), (0, 4)):
            body = build_record_set([b"%d" % n for n in range(records)])
            raw.send(said(write("backwards", body, sequence=sequence, count=records, producer=name, crc=crc32c(body))))
            message = raw.next()
            word = f"error {message.code}" if isinstance(message, proxy.Failed) else "written"
            told.append(f"{word}{' (duplicate)' if getattr(message, 'duplicate', False) else ''}")
    assert ", ".join(told) == answer


@row("read.numbers-used-twice")
def test_a_number_names_one_reader(cluster: SmallCluster, answer: str) -> None:
    with Talk(cluster.reader.address) as raw:
        open_reader = said(proxy.Read(REQUEST, STREAM, Start.START, None, 0, True, True))
        raw.send(open_reader + open_reader)
        words: set[str] = set()
        while len(words) < 2:
            message = raw.next()
            assert message is not None
            words.add(f"error {message.code}" if isinstance(message, proxy.Failed) else "event STARTED")
    assert ", ".join(sorted(words, reverse=True)) == answer


@row("write.hello-in-single-bytes")
def test_a_hello_may_come_byte_by_byte(cluster: SmallCluster, answer: str) -> None:
    with Talk(cluster.writer.address, hello=False) as raw:
        for byte in HELLO:
            raw.send(bytes([byte]))
        assert raw.answer() == answer
