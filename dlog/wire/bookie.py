"""Messages between a ledger client and a bookie, and their encoding in BookKeeper's v2 protocol.

A frame is `length u32 | header u32 | fields`; the header packs version, operation and flags. Integers are big-endian.

Invariants:
- Encoders return buffers to be written in order and never copy a payload.
- Decoders raise only ProtocolError, and check declared sizes before they keep a byte. They do not check ids.

Source: BookKeeper v2 binary protocol as restated in docs/protocol.md.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable

from dlog.errors import ProtocolError
from dlog.model.ids import EntryId, LedgerId
from dlog.values import value
from dlog.wire.bookie_auth import is_auth_message
from dlog.wire.framing import Buffer, Decoder


class Code(enum.IntEnum):
    """Return codes of the v2 protocol."""

    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO_ERROR = 101
    UNAUTHORIZED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106
    UNKNOWN_LEDGER_STATE = 107  # sent as IO_ERROR, because it makes a v2 client fail


@value
class AddEntry:
    """Store an entry packet (head, digest, payload): `parts` joined. A decoder returns one part."""

    ledger: LedgerId
    entry: EntryId
    master_key: bytes
    parts: tuple[Buffer, ...]
    recovery: bool = False  # accepted despite the fence: sent by recovery and re-replication only
    high_priority: bool = False
    deferred: bool = False  # DEFERRED_SYNC of v3: acknowledged when written, durable after a ForceLedger


@value
class ReadEntry:
    """Read one entry; entry -1: the last one that the bookie has. `fence`: fence the ledger first; needs the key."""

    ledger: LedgerId
    entry: EntryId
    fence: bool = False
    master_key: bytes = b""
    high_priority: bool = False


@value
class BatchRead:
    """Read consecutive entries from `start` on; max_count <= 0: any number."""

    ledger: LedgerId
    start: EntryId
    request: int
    max_count: int
    max_bytes: int
    fence: bool = False
    master_key: bytes = b""


@value
class Auth:
    """An AuthMessage protobuf; its content is not decoded."""

    message: bytes


@value
class Collect:
    """Garbage collection: `number` 0 starts one, or joins the running one; another number requests that collection's
    report. Not part of BookKeeper's protocol."""

    number: int = 0


@value
class SummarizeEntries:
    """Summarize the entries that the bookie has of `first` to `last`, inclusive, if id % modulus == remainder: those of
    one stripe. At most SUMMARY_IDS_MAX ids. digest: number of the ledger's DigestType, which the bookie does not know.
    Not part of BookKeeper's protocol."""

    ledger: LedgerId
    first: EntryId
    last: EntryId
    request: int
    modulus: int = 1
    remainder: int = 0
    digest: int = 3


@value
class Unsupported:
    """A request that is refused as it arrives. `answer` is the whole response frame with its length word: in v3 form to
    a v3 request, in v2 form with BAD_VERSION or BAD_REQUEST to a v2 one."""

    answer: bytes


Request = AddEntry | ReadEntry | BatchRead | Auth | Collect | SummarizeEntries | Unsupported


@value
class EntryAdded:
    """Response to AddEntry: OK if stored and durable, or an error."""

    ledger: LedgerId
    entry: EntryId
    code: Code


@value
class EntryRead:
    """Response to ReadEntry. `fence` is copied from the request by the connection; the peer does not send it.

    `entry` echoes the request (-1 stays -1; the real id is in the packet).
    """

    ledger: LedgerId
    entry: EntryId
    code: Code
    packet: Buffer = b""
    fence: bool = False


@value
class BatchReadDone:
    """Response to BatchRead: packets of consecutive entries."""

    ledger: LedgerId
    start: EntryId
    request: int
    code: Code
    packets: tuple[Buffer, ...] = ()


@value
class AuthDone:
    """Response to Auth: an AuthMessage protobuf."""

    message: bytes


class CollectionState(enum.IntEnum):
    """State of a garbage collection. STARTED: by this request; RUNNING: it was started before. FAILED: it ended early;
    nothing or not everything was deleted. REFUSED: this bookie cannot collect now."""

    UNKNOWN = 0
    STARTED = 1
    RUNNING = 2
    DONE = 3
    FAILED = 4
    REFUSED = 5


@value
class CollectionReport:
    """Response to Collect: the report of a garbage collection. number: counts from the bookie's start.

    removed: deleted ledgers; reclaimed_bytes: of deleted entry logs. ledgers: remaining ones; `unseen` of them are kept
    because metadata never named them. reason: why it failed, was refused, or kept ledgers that metadata does not name.
    """

    number: int
    state: CollectionState
    removed: int = 0
    reclaimed_bytes: int = 0
    ledgers: int = 0
    unseen: int = 0
    reason: str = ""
    code: Code = Code.OK


@value
class EntriesSummarized:
    """Response to SummarizeEntries. count: durable entries of the range; chain: CRC32C over their ids and contents, in
    order of id (dlog/wire/entry_summary.py). NO_LEDGER: the bookie has none of the ledger."""

    ledger: LedgerId
    first: EntryId
    request: int
    code: Code
    count: int = 0
    chain: int = 0


Response = EntryAdded | EntryRead | BatchReadDone | AuthDone | CollectionReport | EntriesSummarized


# ---- bytes ----------------------------------------------------------------------------------------------------------

SUMMARY_IDS_MAX = 512  # ids in a SummarizeEntries: a bookie may have to seek for each
REQUEST_LENGTH_MAX = 5 * 1024 * 1024 - 4  # largest length word a bookie accepts; above it the connection is closed
RESPONSE_LENGTH_MAX = 5 * 1024 * 1024 + 64 * 1024  # a batch read may return 5 MiB of packets, plus their lengths

_ADD, _READ, _AUTH, _BATCH_READ = 1, 2, 3, 7
_COLLECT, _SUMMARIZE = 192, 193  # ours; BookKeeper numbers its operations from 1
_FENCE, _RECOVERY, _HIGH_PRIORITY = 0x1, 0x2, 0x4
_VERSION = 2
_KEY_SIZE = 20
_PACKET_MIN = 24  # a shorter packet is refused
_PACKET_IDS = 16  # a packet shorter than this does not identify its entry

_WORD = struct.Struct(">I")
_IDS = struct.Struct(">qq")
_ADD_HEAD = struct.Struct(">IBBH20s")
_ADD_FIELDS = struct.Struct(">20sqq")
_READ_HEAD = struct.Struct(">IBBHqq")
_BATCH_HEAD = struct.Struct(">IBBHqqqiq")
_BATCH_FIELDS = struct.Struct(">qqqiq")
_RESPONSE_HEAD = struct.Struct(">IBBHiqq")
_RESPONSE_FIELDS = struct.Struct(">iqq")
_REQUEST_ID = struct.Struct(">q")
_REPORT_FIELDS = struct.Struct(">qqqq")
_REASON_BYTES_MAX = 1000
_SUMMARIZE_HEAD = struct.Struct(">IBBHqqqqiiB")
_SUMMARIZE_FIELDS = struct.Struct(">qqqqiiB")
_SUMMARY_FIELDS = struct.Struct(">qqI")


def encode_request(request: Request) -> list[Buffer]:
    """The frame of a request; payload parts are not copied. Unsupported cannot be encoded."""
    if isinstance(request, AddEntry):  # the most frequent one
        assert not request.deferred, "deferred sync needs v3"
        assert len(request.master_key) == _KEY_SIZE, "a master key has 20 bytes"
        flags = (_RECOVERY if request.recovery else 0) | (_HIGH_PRIORITY if request.high_priority else 0)
        size = sum(map(len, request.parts)) + 4 + _KEY_SIZE
        return [_ADD_HEAD.pack(size, _VERSION, _ADD, flags, request.master_key), *request.parts]
    match request:
        case ReadEntry(ledger, entry, fence, key, high_priority):
            flags = (_FENCE if fence else 0) | (_HIGH_PRIORITY if high_priority else 0)
            tail = _key_of(fence, key)
            return [_READ_HEAD.pack(20 + len(tail), _VERSION, _READ, flags, ledger, entry) + tail]
        case BatchRead(ledger, start, number, max_count, max_bytes, fence, key):
            tail = _key_of(fence, key)
            head = (40 + len(tail), _VERSION, _BATCH_READ, _FENCE if fence else 0)
            return [_BATCH_HEAD.pack(*head, ledger, start, number, max_count, max_bytes) + tail]
        case Auth(message):
            return [_head(4 + len(message), _AUTH), message]
        case Collect(number):
            return [_head(12, _COLLECT) + _REQUEST_ID.pack(number)]
        case SummarizeEntries(ledger, first, last, number, modulus, remainder, digest):
            head = (4 + _SUMMARIZE_FIELDS.size, _VERSION, _SUMMARIZE, 0)
            return [_SUMMARIZE_HEAD.pack(*head, ledger, first, last, number, modulus, remainder, digest)]
        case Unsupported():
            raise AssertionError("Unsupported is only received, never sent")


def encode_response(response: Response) -> list[Buffer]:
    """The frame of a response; packets are not copied.

    UNKNOWN_LEDGER_STATE is sent as IO_ERROR, because it makes BookKeeper's v2 client fail.
    """
    match response:
        case EntryAdded():
            return [encode_added(response)]
        case EntryRead(ledger, entry, code, packet):
            if code is not Code.OK:
                return [_RESPONSE_HEAD.pack(24, _VERSION, _READ, 0, _v2_code(code), ledger, entry)]
            return [_RESPONSE_HEAD.pack(24 + len(packet), _VERSION, _READ, 0, 0, ledger, entry), packet]
        case BatchReadDone(ledger, start, number, code, packets):
            sent = packets if code is Code.OK else ()
            size = 32 + sum(map(len, sent)) + 4 * len(sent)
            head = _RESPONSE_HEAD.pack(size, _VERSION, _BATCH_READ, 0, _v2_code(code), ledger, start)
            out: list[Buffer] = [head + _REQUEST_ID.pack(number)]
            for packet in sent:
                out.append(_WORD.pack(len(packet)))
                out.append(packet)
            return out
        case AuthDone(message):
            return [_head(4 + len(message), _AUTH), message]
        case CollectionReport():
            body = b""
            if response.code is Code.OK:
                counts = (response.removed, response.reclaimed_bytes, response.ledgers, response.unseen)
                body = _REPORT_FIELDS.pack(*counts) + response.reason.encode()[:_REASON_BYTES_MAX]
            status = (_v2_code(response.code), response.number, response.state)
            return [_RESPONSE_HEAD.pack(24 + len(body), _VERSION, _COLLECT, 0, *status) + body]
        case EntriesSummarized(ledger, first, number, code, count, chain):
            size = 24 + _SUMMARY_FIELDS.size
            fields = _RESPONSE_HEAD.pack(size, _VERSION, _SUMMARIZE, 0, _v2_code(code), ledger, first)
            return [fields + _SUMMARY_FIELDS.pack(number, count, chain)]


def encode_added(added: EntryAdded) -> bytes:
    """The frame of the most frequent response."""
    return _RESPONSE_HEAD.pack(24, _VERSION, _ADD, 0, _v2_code(added.code), added.ledger, added.entry)


class ResponseDecoder(Decoder[list[Response]]):
    """Decodes a bookie's bytes into responses. One per connection. Validity of buffers as in RequestDecoder."""

    __slots__ = ()

    def __init__(self, length_max: int = RESPONSE_LENGTH_MAX) -> None:
        super().__init__(length_max)

    def feed(self, data: Buffer) -> list[Response]:
        if not self.frames.have and len(data) % _RESPONSE_HEAD.size == 0:  # most chunks are responses to adds
            responses: list[Response] = [
                EntryAdded(ledger, entry, _CODES[number])
                for length, version, op, _, number, ledger, entry in _RESPONSE_HEAD.iter_unpack(data)
                if op == _ADD and length == 24 and version <= _VERSION and number in _CODES
            ]
            if len(responses) * _RESPONSE_HEAD.size == len(data):
                return responses
        return super().feed(data)

    def _decoded(self, frames: Iterable[memoryview]) -> list[Response]:
        return [_decode_response(frame) for frame in frames]


def decode_request(frame: memoryview) -> Request:
    """The request of a v2 frame. Raises ProtocolError. Its buffers are views of the frame."""
    size = len(frame)
    if size < 4:
        raise ProtocolError(f"frame without a header: bytes={size}")
    version, op = frame[0], frame[1]
    flags = frame[2] << 8 | frame[3]
    if version == 0:  # historic: the whole word is the operation
        op, flags = op << 16 | flags, 0
    if op == _ADD:
        return _decode_add(frame, version, flags)
    if op == _READ:
        fields_end = 20
    elif op == _BATCH_READ:
        fields_end = 40
    elif op == _AUTH:
        if not is_auth_message(frame[4:]):
            raise ProtocolError("AUTH request does not hold an AuthMessage")
        return Auth(bytes(frame[4:]))
    elif op == _COLLECT:
        if size != 12:
            raise ProtocolError(f"COLLECT request must have 12 bytes: bytes={size}")
        (number,) = _REQUEST_ID.unpack_from(frame, 4)
        if version > _VERSION:
            return _refused(CollectionReport(number, CollectionState.UNKNOWN, code=Code.BAD_VERSION))
        return Collect(number)
    elif op == _SUMMARIZE:
        if size != 4 + _SUMMARIZE_FIELDS.size:
            raise ProtocolError(f"SUMMARIZE request must have {4 + _SUMMARIZE_FIELDS.size} bytes: bytes={size}")
        summarize = SummarizeEntries(*_SUMMARIZE_FIELDS.unpack_from(frame, 4))
        if version > _VERSION:
            refusal = EntriesSummarized(summarize.ledger, summarize.first, summarize.request, Code.BAD_VERSION)
            return _refused(refusal)
        return summarize
    else:
        raise ProtocolError(f"unknown operation: version={version} op={op}")
    fence = bool(flags & _FENCE)
    with_key = fence and version >= 2  # version 1 has no field for a key, so its fences are never authorised
    if size < fields_end + (_KEY_SIZE if with_key else 0):
        raise ProtocolError(f"frame too short: op={op} bytes={size}")
    key = bytes(frame[fields_end : fields_end + _KEY_SIZE]) if with_key else b""
    if op == _READ:
        ledger, entry = _IDS.unpack_from(frame, 4)
        if version > _VERSION:
            return _refused(EntryRead(ledger, entry, Code.BAD_VERSION))
        return ReadEntry(ledger, entry, fence, key, bool(flags & _HIGH_PRIORITY))
    ledger, start, number, max_count, max_bytes = _BATCH_FIELDS.unpack_from(frame, 4)
    if version > _VERSION:
        return _refused(BatchReadDone(ledger, start, number, Code.BAD_VERSION))
    return BatchRead(ledger, start, number, max_count, max_bytes, fence, key)


def _decode_add(frame: memoryview, version: int, flags: int) -> Request:
    packet = frame[4 + _KEY_SIZE :]
    if len(packet) < _PACKET_IDS:
        raise ProtocolError(f"add request too short to identify an entry: bytes={len(frame)}")
    key, ledger, entry = _ADD_FIELDS.unpack_from(frame, 4)
    if version > _VERSION:
        return _refused(EntryAdded(ledger, entry, Code.BAD_VERSION))
    if len(packet) < _PACKET_MIN:
        return _refused(EntryAdded(ledger, entry, Code.BAD_REQUEST))
    return AddEntry(ledger, entry, key, (packet,), bool(flags & _RECOVERY), bool(flags & _HIGH_PRIORITY))


def _decode_response(frame: memoryview) -> Response:
    size = len(frame)
    if size < 4 or frame[0] > _VERSION:
        raise ProtocolError(f"response is not of version 2: bytes={size}")
    op = frame[1]
    if op == _AUTH:
        return AuthDone(bytes(frame[4:]))
    if size < 24:
        raise ProtocolError(f"response too short: op={op} bytes={size}")
    number, ledger, entry = _RESPONSE_FIELDS.unpack_from(frame, 4)
    code = _CODES.get(number)
    if code is None:
        raise ProtocolError(f"unknown return code: op={op} code={number}")
    if op == _ADD:
        return EntryAdded(ledger, entry, code)
    if op == _READ:
        return EntryRead(ledger, entry, code, frame[24:] if code is Code.OK else b"")
    if op == _BATCH_READ:
        if size < 32:
            raise ProtocolError(f"response too short: op={op} bytes={size}")
        packets = _split_packets(frame[32:]) if code is Code.OK else ()
        return BatchReadDone(ledger, entry, _REQUEST_ID.unpack_from(frame, 24)[0], code, packets)
    if op == _COLLECT:
        return _decode_report(frame, code, ledger, entry)
    if op == _SUMMARIZE:
        if size < 24 + _SUMMARY_FIELDS.size:
            raise ProtocolError(f"response too short: op={op} bytes={size}")
        number, count, chain = _SUMMARY_FIELDS.unpack_from(frame, 24)
        return EntriesSummarized(ledger, entry, number, code, count, chain)
    raise ProtocolError(f"unknown operation: op={op}")


def _decode_report(frame: memoryview, code: Code, number: int, state: int) -> CollectionReport:
    if state not in _STATES:
        raise ProtocolError(f"unknown state of a garbage collection: state={state}")
    if code is not Code.OK:
        return CollectionReport(number, _STATES[state], code=code)
    if len(frame) < 24 + _REPORT_FIELDS.size:
        raise ProtocolError(f"garbage collection report too short: bytes={len(frame)}")
    removed, reclaimed_bytes, ledgers, unseen = _REPORT_FIELDS.unpack_from(frame, 24)
    reason = bytes(frame[24 + _REPORT_FIELDS.size :][:_REASON_BYTES_MAX]).decode(errors="replace")
    return CollectionReport(number, _STATES[state], removed, reclaimed_bytes, ledgers, unseen, reason)


def _split_packets(body: memoryview) -> tuple[memoryview, ...]:
    packets = []
    at, end = 0, len(body)
    while at < end:
        if end - at < 4:
            raise ProtocolError("batch ends inside a length")
        stop = at + 4 + _WORD.unpack_from(body, at)[0]
        if stop > end:
            raise ProtocolError(f"batch ends inside a packet: bytes={end - at - 4}")
        if stop - at - 4 < _PACKET_MIN:  # else a batch of empty packets would take fifty times its bytes of memory
            raise ProtocolError(f"packet in a batch is shorter than its head: bytes={stop - at - 4}")
        packets.append(body[at + 4 : stop])
        at = stop
    return tuple(packets)


def _refused(response: Response) -> Unsupported:
    return Unsupported(b"".join(encode_response(response)))


def _v2_code(code: Code) -> Code:
    return Code.IO_ERROR if code is Code.UNKNOWN_LEDGER_STATE else code


def _key_of(fence: bool, key: bytes) -> bytes:
    assert not fence or len(key) == _KEY_SIZE, "a fence needs the master key"
    return key if fence else b""


def _head(length: int, op: int) -> bytes:
    return struct.pack(">IBBH", length, _VERSION, op, 0)


_CODES = {code.value: code for code in Code}
_STATES = {state.value: state for state in CollectionState}
