"""Tests against bytes that Java wrote or accepted (BookKeeper and DistributedLog 4.17): dlog writes the same, or reads
them as the same."""

from __future__ import annotations

import struct

import lz4.block
import pytest

from dlog.model.dlsn import DLSN_BEFORE_ALL, DLSN_INVALID, of
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import DigestType, Fragment, LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum
from dlog.model.segment import Segment, Truncation
from dlog.wire import bookie_info, ledger_metadata, stream_metadata
from dlog.wire.bookie import (
    AddEntry,
    AuthDone,
    Code,
    EntryAdded,
    EntryRead,
    ReadEntry,
    encode_request,
    encode_response,
)
from dlog.wire.bookie_auth import AUTH_DISABLED
from dlog.wire.bookie_port import RequestDecoder
from dlog.wire.bookie_v3 import V3Request
from dlog.wire.bookie_v3_messages import ReadWithLac
from dlog.wire.digest import Digest, master_key
from dlog.wire.entry import (
    RECORD_SET,
    Record,
    build_record_set,
    control_record,
    decode_entry,
    encode_entry,
    end_of_stream_record,
)

PW = b"pw"
KEY = bytes.fromhex("2aa226ba095b6969a64871977693b14671710d76")


def h(text: str) -> bytes:
    return bytes.fromhex(text)


# ---- keys, packets --------------------------------------------------------------------------------------------------


def test_master_keys() -> None:
    assert master_key(b"") == h("850bf1071c5e3d8c24235676f8816ae0cbe2f14f")
    assert master_key(PW) == Digest(1, DigestType.CRC32, PW).master_key == KEY


PACKETS = [
    (1, DigestType.CRC32, 0, -1, 5, b"hello", "0000000030a56872"),
    (1, DigestType.CRC32, 1, 0, 11, b"world!", "00000000cf2cf407"),
    (2, DigestType.CRC32C, 0, -1, 5, b"hello", "dd683456"),
    (2, DigestType.CRC32C, 1, 0, 11, b"world!", "a32f8a65"),
    (3, DigestType.HMAC, 0, -1, 5, b"hello", "3e658d0c0505d2f36be482c1c18fb2b2baba0e85"),
    (3, DigestType.HMAC, 1, 0, 11, b"world!", "a57c0895cbe46d0b0cdf291153775ea16d1033f3"),
    (4, DigestType.DUMMY, 0, -1, 5, b"hello", ""),
]


@pytest.mark.parametrize("ledger,type,entry,lac,length,payload,digest", PACKETS)
def test_packets(ledger: int, type: DigestType, entry: int, lac: int, length: int, payload: bytes, digest: str) -> None:
    java = struct.pack(">qqqq", ledger, entry, lac, length) + h(digest) + payload
    assert b"".join(Digest(ledger, type, PW).pack(entry, lac, length, (payload,))) == java
    assert Digest(ledger, type, PW).verify(java, entry).payload == payload


def test_explicit_lacs() -> None:
    assert Digest(5, DigestType.CRC32, PW).pack_lac(1) == h("0000000000000005 0000000000000001 00000000d12b3e8c")
    assert Digest(6_000_000_000, DigestType.CRC32C, PW).pack_lac(1) == h("0000000165a0bc00 0000000000000001 f26df016")


# ---- v2 and v3 frames -----------------------------------------------------------------------------------------------

L7 = LedgerId(7)
E0 = EntryId(0)


def test_v2_requests() -> None:
    assert encode_request(ReadEntry(L7, E0)) == [h("00000014 02020000 0000000000000007 0000000000000000")]
    fence = h("00000028 02020001 0000000000000007 ffffffffffffffff") + KEY
    assert encode_request(ReadEntry(L7, EntryId(-1), fence=True, master_key=KEY)) == [fence]
    assert RequestDecoder().feed(fence) == [ReadEntry(L7, EntryId(-1), True, KEY)]


ANSWERS = [
    (EntryAdded(L7, E0, Code.OK), "00000018 02010000 00000000 0000000000000007 0000000000000000"),
    (EntryAdded(L7, E0, Code.UNAUTHORIZED), "00000018 02010000 00000066 0000000000000007 0000000000000000"),
    (EntryAdded(L7, E0, Code.FENCED), "00000018 02010000 00000068 0000000000000007 0000000000000000"),
    (EntryRead(L7, EntryId(-1), Code.NO_ENTRY), "00000018 02020000 00000002 0000000000000007 ffffffffffffffff"),
]


@pytest.mark.parametrize("answer,java", ANSWERS)
def test_v2_answers(answer: EntryAdded | EntryRead, java: str) -> None:
    assert encode_response(answer) == [h(java)]


def test_v2_auth_answer() -> None:
    body = h("02030000 0a12") + b"AuthDisabledPlugin" + h("1200")
    assert b"".join(encode_response(AuthDone(AUTH_DISABLED))) == struct.pack(">I", len(body)) + body


V3_READ = "00000018 0a06 0803 1001 1802 a206 0d 0807 10ffffffffffffffffff01"
V3_ADD = (
    "00000056 0a06080310021801 aa064b 0807 1000 1a14 2aa226ba095b6969a64871977693b14671710d76 222d 0000000000000007"
    "0000000000000000 ffffffffffffffff 0000000000000005 00000000b9e72242 68656c6c6f 2800"
)


def test_v3_requests() -> None:
    (read,) = RequestDecoder().feed(h(V3_READ))
    assert isinstance(read, V3Request) and read.call.header.txn == 2
    assert read.message == ReadWithLac(L7, EntryId(-1))
    (add,) = RequestDecoder().feed(h(V3_ADD))
    packet = b"".join(Digest(7, DigestType.CRC32, PW).pack(0, -1, 5, (b"hello",)))
    assert isinstance(add, V3Request) and add.message == AddEntry(L7, E0, KEY, (packet,))


def test_the_packet_of_the_v3_add_is_ours() -> None:
    packet = b"".join(Digest(7, DigestType.CRC32, PW).pack(0, -1, 5, (b"hello",)))
    assert packet in h(V3_ADD)
    (add,) = RequestDecoder().feed(b"".join(encode_request(AddEntry(L7, E0, KEY, (packet,)))))
    assert isinstance(add, AddEntry) and add.parts == (packet,)


# ---- ledger metadata ------------------------------------------------------------------------------------------------

BOOKIES = tuple(BookieId(f"127.0.0.1:{port}") for port in (13181, 13183, 13182))
SEGMENT = "3235" + "".join("0a0f" + bookie.encode().hex() for bookie in BOOKIES) + "1000"
HEAD = b"BookieMetadataFormatVersion\t3\n"
OPEN = HEAD + h(f"66 0802 1003 1800 20ffffffffffffffffff01 2801 {SEGMENT} 3803 42027077 4802 5a080a03 617070 120178")
OPEN += h("60f0b7c3b3c0e290aa2d")
CLOSED = HEAD + h(f"4b 0802 1003 1815 2006 2803 {SEGMENT} 3803 42027077 4802 6000")


def test_open_ledger_metadata() -> None:
    metadata = LedgerMetadata(
        quorum=Quorum(ensemble=3, write=2, ack=2),
        fragments=(Fragment(EntryId(0), BOOKIES),),
        digest=DigestType.CRC32C,
        password=PW,
        custom=(("app", b"x"),),
    )
    found = ledger_metadata.decode(OPEN)
    assert found == metadata
    assert ledger_metadata.encode(found) == OPEN
    without_token = OPEN[len(HEAD) + 1 : -10]
    assert ledger_metadata.encode(metadata) == HEAD + b"\x5e" + without_token + b"\x60\x00"


def test_closed_ledger_metadata() -> None:
    found = ledger_metadata.decode(CLOSED)
    assert (found.state, found.last_entry, found.length) == (LedgerState.CLOSED, 6, 0x15)
    assert ledger_metadata.encode(found) == CLOSED


def test_registration() -> None:
    java = h("3223 0a06") + b"bookie" + h("10 ddfc03 1a09") + b"127.0.0.1" + h("220a") + b"bookie-rpc"
    assert bookie_info.encode_address("127.0.0.1", 65117) == java
    assert bookie_info.address_of(BookieId("b"), java) == ("127.0.0.1", 65117)


# ---- DistributedLog -------------------------------------------------------------------------------------------------

RECORD = h("0000000000010000 00000000000003e8 00000005 68656c6c6f")
CONTROL_RECORD = h("0000000000010001 00000000000003e8 00000007 636f6e74726f6c")
EOS_RECORD = h("0000000000010002 7fffffffffffffff 0000000b 656e644f6653747265616d")
SET_OF_TWO = h("00001000 00000002 0000000d 0000000d 00000002 6162 00000003 636465")


def test_dlsn_texts() -> None:
    assert of(1, 0, 0).to_base64() == "AQAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAA=="
    assert DLSN_BEFORE_ALL.to_base64() == "AQAAAAAAAAABAAAAAAAAAAD//////////w=="
    assert DLSN_INVALID.to_base64() == "AQAAAAAAAAAA/////////////////////w=="
    assert of(3, 17, 2).to_base64() == "AQAAAAAAAAADAAAAAAAAABEAAAAAAAAAAg=="


def test_records_and_the_envelope() -> None:
    def records_of(record: Record) -> bytes:
        return b"".join(encode_entry([record]))[13:]

    assert b"".join(encode_entry([Record(0, 1, 1000, b"hello")])) == h("01 00000000 00000019 00000019") + RECORD
    assert records_of(control_record(1, 1000)) == CONTROL_RECORD
    assert records_of(end_of_stream_record(1)) == EOS_RECORD


def test_an_entry_from_java() -> None:
    payload = b"rec0-" + b"a" * 36
    java = h("01 00000000 0000003d 0000003d 0000000000010000 00000000000003e8 00000029") + payload
    assert decode_entry(java) == [Record(0, 1, 1000, payload)]


def test_a_record_set_and_the_record_around_it() -> None:
    assert build_record_set([b"ab", b"cde"]) == SET_OF_TWO
    record = h("0000000000060004 00000000000007d0 0000001d") + SET_OF_TWO
    assert b"".join(encode_entry([Record(RECORD_SET, 6, 2000, SET_OF_TWO)]))[13:] == record
    found = decode_entry(record, enveloped=False)
    assert found == [Record(0, 6, 2000, b"ab", 0), Record(0, 7, 2000, b"cde", 1)]


def test_an_lz4_block() -> None:
    block = h("1f61010027506161616161")
    assert lz4.block.decompress(block, uncompressed_size=64) == b"a" * 64
    inner = struct.pack(">qqi", 1 << 16, 9, 44) + b"a" * 44
    packed = lz4.block.compress(inner, store_size=False)
    entry = struct.pack(">biii", 1, 1, len(inner), len(packed)) + packed
    assert decode_entry(entry) == [Record(0, 1, 9, b"a" * 44)]


SEGMENTS = [
    ("inprogress_000000000000000001", "5;9;1000;1;0;0;-1"),
    (
        "logrecs_000000000000000001",
        "34359738373;11;1000;9223372036854775807;1795167342520;1;0;8;0;0;0",
    ),
    ("logrecs_000000000000000002", "8589934597;16;40;41;1795167475756;2;1;0;0;0;6"),
]


@pytest.mark.parametrize("name,java", SEGMENTS)
def test_segments_read_and_write_back_the_same(name: str, java: str) -> None:
    segment = stream_metadata.decode_segment(name, java.encode())
    assert stream_metadata.encode_segment(segment) == java.encode()
    assert stream_metadata.segment_name(segment) == name


def test_a_completed_segment() -> None:
    segment = stream_metadata.decode_segment(*SEGMENTS[1][:1], SEGMENTS[1][1].encode())
    assert segment == Segment(
        number=segment.number,
        name="11",
        first_txid=segment.first_txid,
        completed=True,
        last_txid=segment.last_txid,
        last_entry=EntryId(0),
        last_slot=8,
        record_count=8,
        completed_unix_ms=1795167342520,
        start_sequence_id=0,
    )
    assert (segment.number, segment.first_txid, segment.last_txid) == (1, 1000, 2**63 - 1)


@pytest.mark.parametrize(
    "f0,count,truncation",
    [
        (51539607557, 12, Truncation.ACTIVE),
        (51539607813, 12, Truncation.PARTIAL),
        (51539608069, 12, Truncation.TRUNCATED),
    ],
)
def test_the_first_field_packs(f0: int, count: int, truncation: Truncation) -> None:
    data = f"{f0};1;1;2;3;1;4;5;0;0;0".encode()
    segment = stream_metadata.decode_segment("logrecs_000000000000000001", data)
    assert (segment.record_count, segment.truncation, segment.version) == (count, truncation, 5)
    assert stream_metadata.encode_segment(segment) == data


def test_a_binding_from_java() -> None:
    java = (
        b'1\nBKDL\n{"1":{"str":"127.0.0.1:22181"},"2":{"str":"/ledgers"},"3":{"tf":0},"4":{"tf":0},'
        b'"5":{"str":"127.0.0.1:22181"},"6":{"str":"127.0.0.1:22181"},"7":{"str":"127.0.0.1:22181"}}'
    )
    binding = stream_metadata.decode_binding(java)
    assert (binding.zookeeper, binding.ledgers_path, binding.encode_region) == ("127.0.0.1:22181", "/ledgers", False)
    assert stream_metadata.encode_binding(binding) == java
