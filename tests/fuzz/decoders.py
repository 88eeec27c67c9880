"""Every decoder as a function of bytes, with the errors it may raise and a source of bytes that it accepts.

Invariants:
- For any bytes a decoder returns or raises one of its own errors, in time and memory proportional to their length.
- A decoder that is fed in pieces gives the same result as one that gets all bytes at once.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from dlog.bookie import index, manifest
from dlog.errors import CookieError, DamagedError, DLogError, ProtocolError, UnsupportedVersionError
from dlog.io import zookeeper_layout, zookeeper_members
from dlog.log.contents import entry_span
from dlog.log.dedup_trailer import decode_trailer
from dlog.model import object_streams
from dlog.model.ids import BookieId, EntryId, Epoch, LedgerId, SegmentNumber, Txid
from dlog.model.ledger import DigestType, Fragment, LedgerMetadata
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectId, ObjectStreamId
from dlog.model.quorum import Quorum
from dlog.model.segment import Owner, Segment
from dlog.objects import operation_codec, operations
from dlog.objects.errors import OffsetMismatchError
from dlog.stores.kinds import stored_settings
from dlog.wire import (
    bookie,
    bookie_info,
    bookie_port,
    digest,
    entry,
    ledger_metadata,
    node_wal,
    object_records,
    object_snapshot,
    proxy,
    proxy_codec,
    proxy_protocol,
    stream_metadata,
    stream_object,
)
from dlog.wire.entry import Codec, Record, build_record_set, encode_entry
from dlog.wire.protobuf import bytes_field
from tests.stream_settings import SETTINGS

Decode = Callable[[bytes], object]
TROUBLE = (b"\xdd\xff\xff\xff\xff", b"\x91" * 200, b"\xc1", b"[" * 2000, b"#" * 50, b"\xff", b"9" * 5000)
STORED = (DamagedError, UnsupportedVersionError)


@dataclass(frozen=True)
class Target:
    """seeds: bytes it accepts. feed: decodes pieces, if it can, to an outcome that can be compared."""

    name: str
    decode: Decode
    errors: tuple[type[DLogError], ...]
    seeds: tuple[bytes, ...]
    feed: Callable[[Sequence[bytes]], object] | None = None


def _joined(parts: Sequence[Any]) -> bytes:
    return b"".join(bytes(part) for part in parts)


def _fed(make: Callable[[], Any]) -> Callable[[Sequence[bytes]], object]:
    """The messages of all pieces, as text."""

    def feed(pieces: Sequence[bytes]) -> object:
        decoder = make()
        return [_said(message) for piece in pieces for message in decoder.feed(piece)]

    return feed


def _said(message: Any) -> list[object]:
    """A message by its content: views as the bytes they show."""
    fields: list[object] = [type(message).__name__]
    for name in type(message).__slots__:
        value = getattr(message, name)
        if isinstance(value, memoryview | bytearray):
            value = bytes(value)
        elif isinstance(value, tuple):
            value = [bytes(part) if isinstance(part, memoryview) else part for part in value]
        elif isinstance(value, bookie.AddEntry):  # inside a v3 request
            value = _said(value)
        fields.append(value)
    return fields


def _proxy_seeds() -> tuple[bytes, ...]:
    body = build_record_set([b"a", b"", b"ccc"])
    return tuple(
        _joined(proxy_codec.encode(message))
        for message in (
            proxy.Hello(1, 1, 1, "client", "fuzz"),
            proxy.Write(2, "orders", b"p" * 16, 0, 3, None, digest.crc32c(body), False, body=body),
            proxy.Read(3, "orders", proxy.Start.DLSN, (1, 2, 3), 1000, True),
            proxy.Create(4, "orders", "a1", 0, {"ensemble": 3, "retention_s": 1.5}),
            proxy.Written(2, 2, (1, 0, 0), 5),
            proxy.Failed(3, 511, "gone", "h:1", False, {"first": [1, 2, 3]}),
            proxy.Entries(3, 1, 0, (3, 2), 0, b"abcde"),
            proxy.Done(9, {"streams": ["a", "b"], "more": False}),
        )
    )


def _bookie_seeds() -> tuple[bytes, ...]:
    packet = struct.pack(">qqqq", 7, 0, -1, 3) + b"abc"
    requests: list[bookie.Request] = [
        bookie.AddEntry(LedgerId(7), EntryId(0), b"k" * 20, (packet,)),
        bookie.ReadEntry(LedgerId(7), EntryId(0), True, b"k" * 20),
        bookie.BatchRead(LedgerId(7), EntryId(0), 5, 10, 1000),
        bookie.Collect(3),
        bookie.SummarizeEntries(LedgerId(7), EntryId(0), EntryId(511), 4, 3, 1),
    ]
    v3 = bytes.fromhex("000000180a06080310011802a2060d080710ffffffffffffffffff01")
    key_and_packet = bytes_field(3, b"k" * 20) + bytes_field(4, packet)
    v3_add = bytes.fromhex("0a0608031002180a") + bytes_field(101, bytes.fromhex("08071000") + key_and_packet)
    v3_lac = bytes.fromhex("0a0608031006180b") + bytes_field(103, bytes.fromhex("08071000") + key_and_packet)
    framed = [struct.pack(">I", len(body)) + body for body in (v3_add, v3_lac)]
    return (*(_joined(bookie.encode_request(request)) for request in requests), v3, *framed)


def _answer_seeds() -> tuple[bytes, ...]:
    packet = struct.pack(">qqqq", 7, 0, -1, 3) + b"abc"
    answers: list[bookie.Response] = [
        bookie.EntryAdded(LedgerId(7), EntryId(0), bookie.Code.OK),
        bookie.EntryRead(LedgerId(7), EntryId(0), bookie.Code.OK, packet),
        bookie.BatchReadDone(LedgerId(7), EntryId(0), 5, bookie.Code.OK, (packet, packet)),
        bookie.CollectionReport(3, bookie.CollectionState.FAILED, 1, 2, 3, 4, "metadata is unreachable"),
        bookie.EntriesSummarized(LedgerId(7), EntryId(0), 4, bookie.Code.OK, 3, 0xFFFFFFFF),
    ]
    return tuple(_joined(bookie.encode_response(answer)) for answer in answers)


def _entry_seeds() -> tuple[bytes, ...]:
    batch = build_record_set([b"one", b"", b"three" * 10])
    packed = build_record_set([b"x" * 500] * 5, Codec.LZ4)
    records = [Record(4, 1, 9, batch), Record(4, 4, 9, packed), Record(0, 9, 9, b"alone"), Record(1, 9, 9, b"control")]
    return tuple(_joined(encode_entry(records, codec)) for codec in Codec)


def _metadata_seeds() -> tuple[bytes, ...]:
    fragments = (Fragment(EntryId(0), (BookieId("a:1"), BookieId("b:2"))),)
    metadata = LedgerMetadata(quorum=Quorum(ensemble=2, write=2, ack=1), fragments=fragments, password=b"secret")
    text = (
        b"BookieMetadataFormatVersion\t2\nquorumSize: 1 ensembleSize: 1 length: 0 state: OPEN "
        b'segment { ensembleMember: "a:1" firstEntryId: 0 } # so\ndigestType: CRC32C password: "\\001x"'
    )
    return (ledger_metadata.encode(metadata), text, b"BookieMetadataFormatVersion\t1\n1\n1\n0\n0\ta:1\n-1\tCLOSED\n")


def _object_seeds() -> tuple[bytes, ...]:
    found = []
    for span in (None, stream_object.Span(1, 2, 3, 4)):
        encoder = stream_object.ObjectEncoder(ObjectId(7), NodeId("n"), NodeEpoch(1), block_bytes=30)
        parts = []
        for stream, offset in ((1, 0), (1, 1), (1, 2**40), (2, 5)):
            parts += encoder.add(
                ObjectStreamId(stream), offset, stream_object.ObjectEntry(b"entry" * (offset % 7), span)
            )
        found.append(_joined([*parts, *encoder.finish()]))
    return tuple(found)


def _decode_object(data: bytes) -> object:
    """The entries of a whole object, by its footer, its index and its blocks."""
    footer = stream_object.decode_footer(data, len(data))
    index = stream_object.index_in(footer, data)
    if index is None:
        raise DamagedError("the index begins before the object")
    rows = stream_object.decode_index(footer, index).blocks
    return [stream_object.decode_block(row, data[row.position : row.position + row.bytes]) for row in rows]


_segment = Segment(number=SegmentNumber(1), name="7", first_txid=Txid(1))
_cookie = bookie_info.encode_cookie(bookie_info.Cookie(BookieId("a:1"), ("/j",), ("/l",), "id"))
_note = b"dlog1" + msgpack.packb(
    [1, -1, [[b"p" * 16, 0, 3, 5, 0]], [[1, -1], [[b"p" * 16, 0, 3, [[0, 3, 1, 0, 0, 9]]]]]]
)


_upload = object_streams.UploadCommitted(
    node=object_streams.NodeId("n"),
    node_epoch=object_streams.NodeEpoch(1),
    set_object=None,
    stream_objects=(
        object_streams.StreamObject(object_streams.ObjectId(8), object_streams.ObjectStreamId(3), 0, 9, 55),
    ),
    flush_point=object_streams.WalPosition(1, 2),
    time_ms=3,
)


def _node_wal_seeds() -> tuple[bytes, ...]:
    marked = node_wal.stream_entry(b"abc", stream_object.Span(1, 2, 3, 4))
    one = node_wal.WalFrame(ObjectStreamId(1), Epoch(1), 0, (marked, node_wal.stream_entry(b"")))
    two = node_wal.WalFrame(ObjectStreamId(2), Epoch(7), 2**40, (node_wal.stream_entry(b"x" * 50),))
    return tuple(
        _joined(node_wal.encode_wal_entry(node_wal.WalEntry(NodeEpoch(5), frames))) for frames in ((one,), (one, two))
    )


def _splits(frames: Callable[[], Any]) -> Decode:
    return lambda data: _fed(frames)([data])


TARGETS = (
    Target(
        "proxy frames",
        _splits(lambda: proxy_codec.FrameDecoder(1 << 20)),
        (ProtocolError,),
        _proxy_seeds(),
        _fed(lambda: proxy_codec.FrameDecoder(1 << 20)),
    ),
    Target(
        "bookie requests",
        _splits(bookie_port.RequestDecoder),
        (ProtocolError,),
        _bookie_seeds(),
        _fed(bookie_port.RequestDecoder),
    ),
    Target(
        "bookie answers",
        _splits(bookie.ResponseDecoder),
        (ProtocolError,),
        _answer_seeds(),
        _fed(bookie.ResponseDecoder),
    ),
    Target("entries", lambda data: entry.decode_entry(data), (DamagedError,), _entry_seeds()),
    Target("entry spans", entry_span, (), _entry_seeds()),
    Target("record sets", entry.parse_record_set, (DamagedError,), (build_record_set([b"a", b"b"]),)),
    Target("notes", lambda data: decode_trailer(data), (DamagedError,), (_note,)),
    Target("ledger metadata", ledger_metadata.decode, STORED, _metadata_seeds()),
    Target(
        "segments",
        lambda data: stream_metadata.decode_segment("inprogress_000000000000000001", data),
        STORED,
        (stream_metadata.encode_segment(_segment),),
    ),
    Target("owners", stream_metadata.decode_owner, STORED, (stream_metadata.encode_owner(Owner()),)),
    Target(
        "settings",
        lambda data: stream_metadata.decode_settings(data, stored_settings),
        STORED,
        (stream_metadata.encode_settings(SETTINGS),),
    ),
    Target(
        "bindings",
        stream_metadata.decode_binding,
        STORED,
        (b'1\nBKDL\n{"1":{"str":"h"},"2":{"str":"/l"},"6":{"str":"h"}}',),
    ),
    Target("objects with entries", _decode_object, STORED, _object_seeds()),
    Target("numbers", lambda data: stream_metadata.decode_number(data, "x"), STORED, (b"17",)),
    Target("cookies", bookie_info.decode_cookie, (CookieError,), (_cookie.encode(),)),
    Target(
        "registrations",
        lambda data: bookie_info.address_of(BookieId("a:1"), data),
        STORED,
        (bookie_info.encode_address("h", 3181),),
    ),
    Target(
        "proxies registered",
        lambda data: zookeeper_members._proxies("write", [("a", data)]),
        (),
        (b'{"address":"h:1"}', b'{"address":"h:1","peer":"p:2"}'),
    ),
    Target(
        "PROXY protocol",
        lambda data: proxy_protocol.parse(data) if proxy_protocol.begins(data) else None,
        (ProtocolError,),
        (
            proxy_protocol.encode_v1(("10.0.0.1", 5), ("10.0.0.2", 6)),
            proxy_protocol.encode_v2(("10.0.0.1", 5), ("10.0.0.2", 6)),
        ),
    ),
    Target(
        "metadata records",
        lambda data: object_records.decode_entry(data),
        STORED,
        (object_records.encode_entry(7, [_upload, object_streams.KeyDeleted("k")]),),
    ),
    Target(
        "operations on metadata",
        lambda data: operation_codec.decode_operation(data),
        (DamagedError, UnsupportedVersionError, operation_codec.OperationTooLargeError),
        (
            operation_codec.encode_operation(operations.GetKey("k")),
            operation_codec.encode_operation(
                operations.CloseStreams(NodeId("n"), NodeEpoch(1), ((ObjectStreamId(1), Epoch(2), 3),))
            ),
        ),
    ),
    Target(
        "answers about metadata",
        lambda data: operation_codec.decode_answer(data),
        STORED,
        (
            operation_codec.encode_answer(operations.KeyValue(b"v", is_new=True)),
            operation_codec.encode_answer(OffsetMismatchError("no", expected=5)),
        ),
    ),
    Target(
        "metadata snapshots",
        lambda data: object_snapshot.decode_snapshot(data),
        STORED,
        (object_snapshot.encode_snapshot(object_snapshot.SnapshotContents.empty()),),
    ),
    Target("layouts", zookeeper_layout.parse_layout, (), (zookeeper_layout.LAYOUT,)),
    Target("manifests", manifest.decode, (DamagedError,), (manifest.encode(manifest.Manifest()),)),
    Target("index trailers", lambda data: index.parse_trailer(data), (DamagedError,), (bytes(index.TRAILER_BYTES),)),
    Target("index chunks", lambda data: index.parse_chunk(data, 1), (DamagedError,), (bytes(64),)),
    Target("WAL entries of nodes", node_wal.decode_wal_entry, STORED, _node_wal_seeds()),
    Target(
        "packets",
        lambda data: digest.Digest(7, DigestType.CRC32C).verify(data, 0),
        (DamagedError, ProtocolError),
        (_joined(digest.Digest(7, DigestType.CRC32C).pack(0, -1, 3, [b"abc"])),),
    ),
)


def mutated(seed: bytes, rng: random.Random) -> bytes:
    """Mutate valid bytes: flipped, cut, doubled, overwritten with numbers that often cause faults."""
    data = bytearray(seed)
    for _ in range(rng.choice((0, 1, 1, 2, 4, 12))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.randrange(1, 9)]
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3:
                data[at : at + 4] = struct.pack(">I", rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, len(data))))
            case 4:
                data[at:at] = data[max(0, at - rng.randrange(1, 60)) : at]
            case 5:
                data[at : at + 1] = rng.choice(TROUBLE)
            case _:
                del data[at:]
    return bytes(data)


def outcome(decode: Callable[[Any], object], errors: tuple[type[DLogError], ...], given: Any) -> str:
    """The outcome: the value, or the name of an error it may raise. Any other error is a defect and is raised."""
    try:
        return repr(decode(given))
    except errors as error:
        return type(error).__name__


def one(target: Target, rng: random.Random) -> None:
    """Run one round: random or mutated bytes, whole and in pieces. Raises an error that the decoder should not have
    raised."""
    seeds = [rng.choice(target.seeds) for _ in range(rng.randrange(1, 4) if target.feed else 1)]
    data = rng.randbytes(rng.randrange(200)) if rng.random() < 0.1 else mutated(b"".join(seeds), rng)
    whole = outcome(target.decode, target.errors, data)
    if target.feed is not None:
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        assert outcome(target.feed, target.errors, pieces) == whole, f"{target.name}: pieces differ: {data.hex()}"
