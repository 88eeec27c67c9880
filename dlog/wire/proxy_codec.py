"""Encoder and decoder of the messages in dlog/wire/proxy.py.

    frame = length u32 | header_bytes u16 | header | body          `length` counts the bytes after it
    header = msgpack array [op, field, field, ...]                 all fields, in SCHEMA's order

Write and SinkWrite have a body (a record set), also Entries (payloads), Done (a msgpack map), ImportSegments (an
array) and ObjectsAsk (an operation).

Invariants:
- SCHEMA defines the protocol; a test checks docs/protocol.md against it.
- Every field is checked by type and range. Declared sizes do not allocate: an array in a header has at most ARRAY_MAX
  elements, and long lists of numbers are packed.
- The decoder raises only ProtocolError.
- A request that no peer would decode is not sent: the connection, which many callers share, would be closed.
"""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter, index
from typing import Any, NamedTuple

import msgpack

from dlog.errors import InvalidRequestError, ProtocolError
from dlog.model.ids import LOCATION_BYTES_MAX, is_location_name
from dlog.model.window import WINDOW_MAX
from dlog.wire import proxy
from dlog.wire.framing import Buffer, Decoder
from dlog.wire.proxy import Message, Op, ReaderEventKind, Start
from dlog.wire.stream_metadata import INCARNATION_NAME

HELLO_LENGTH_MAX = 4096  # of frames until a Hello was accepted
HEADER_BYTES_MAX = 65_535
PARTS_MAX = 1000  # of a ImportSegments
ARRAY_MAX = 256  # elements of an array in a header
RESULT_ARRAY_MAX = 16_384  # elements of an array in a Done's result
MAP_MAX = 1024
TEXT_MAX = 4096  # bytes of UTF-8; longer messages of Failed are cut when they are sent

_I64_MIN, _I64_MAX = -(2**63), 2**63 - 1
_HEAD = struct.Struct(">IH")


# ---- kinds of fields ------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """Type of a field: its name in docs/protocol.md, and a check that returns the decoded value.

    A check raises ProtocolError or ValueError. plain: an expression that is true of values `{0}` which the check would
    return as they are.
    """

    name: str
    check: Callable[[Any], Any]
    plain: str = "False"


def _integer(name: str, low: int, high: int) -> Kind:
    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"not a {name}")
        return value

    return Kind(name, check, f"type({{0}}) is int and {low} <= {{0}} <= {high}")


def _flag(value: Any) -> bool:
    if value is not True and value is not False:
        raise ValueError("not a bool")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("not a string")
    return value


def _location_name(value: Any) -> str:
    if not is_location_name(_text(value)):
        raise ValueError(f"not a location: printable text of 1 to {LOCATION_BYTES_MAX} bytes")
    return str(value)


def _map(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError("not a map")
    _check_keys(value)
    return value


def _check_keys(value: Any) -> None:
    """Keys of maps at any depth must be strings (msgpack also accepts bytes); msgpack's stack bounds the depth."""
    waiting = [value]
    while waiting:
        outer = waiting.pop()
        if type(outer) is dict:
            if not all(type(key) is str for key in outer):
                raise ValueError("a map has strings for keys")
            outer = outer.values()
        waiting.extend(inner for inner in outer if type(inner) in (dict, list))


def _limits(value: Any) -> dict[str, int]:
    if not all(type(limit) is int and limit >= 0 for limit in _map(value).values()):
        raise ValueError("a limit is not a number, or negative")
    return value  # type: ignore[no-any-return]


def _dlsn(value: Any) -> tuple[int, int, int]:
    if type(value) is not list or len(value) != 3:
        raise ValueError("not a DLSN")
    for part in value:
        if type(part) is not int or not _I64_MIN <= part <= _I64_MAX:
            raise ValueError("not a DLSN")
    return value[0], value[1], value[2]


def _producer(value: Any) -> bytes:
    if type(value) is not bytes or len(value) != 16:
        raise ValueError("not 16 bytes")
    return value


def _incarnation(value: Any) -> str:
    if type(value) is not str or not INCARNATION_NAME.match(value):
        raise ValueError("not an incarnation id of a stream")
    return value


def _lengths(value: Any) -> tuple[int, ...]:
    if type(value) is not bytes or len(value) % 4:
        raise ValueError("not packed u32")
    return struct.unpack(f">{len(value) // 4}I", value)


def _start_value(value: Any) -> Any:
    """Check a read's start position; `_check_read` checks it against the kind of start."""
    return _dlsn(value) if type(value) is list else value if value is None else U63.check(value)


def _or_nil(kind: Kind) -> Kind:
    check = kind.check
    plain = f"{{0}} is None or {kind.plain}"
    return Kind(f"{kind.name} or nil", lambda value: None if value is None else check(value), plain)


U63 = _integer("u63", 0, _I64_MAX)
I64 = _integer("i64", _I64_MIN, _I64_MAX)
U32 = _integer("u32", 0, 2**32 - 1)
U16 = _integer("u16", 0, 2**16 - 1)
COUNT = _integer("count", 1, 2**31 - 1)
WINDOW = _integer("window", 1, WINDOW_MAX)
BOOL = Kind("bool", _flag, "type({0}) is bool")
TEXT = Kind("str", _text, "type({0}) is str")
LOCATION_NAME = Kind("location", _location_name)
INCARNATION = Kind("incarnation", _incarnation)
MAP = Kind("map", _map)
LIMITS = Kind("map of u63", _limits)
DLSN = Kind("dlsn", _dlsn)
PRODUCER = Kind("bin 16", _producer, "type({0}) is bytes and len({0}) == 16")
LENGTHS = Kind("packed u32", _lengths)
START = Kind("start", Start)
START_VALUE = Kind("start value", _start_value)
EVENT = Kind("event", ReaderEventKind)

_SINK: tuple[tuple[str, Kind], ...] = (
    *(("sink", TEXT), ("epoch", U63), ("query", TEXT), ("batch", U63)),
    ("since", _or_nil(DLSN)),
)

#: op -> class, and kinds of its fields in their order after the op in the header
SCHEMA: dict[Op, tuple[type[Any], tuple[tuple[str, Kind], ...]]] = {
    Op.HELLO: (
        proxy.Hello,
        (
            ("request", U63),
            ("version_min", U16),
            ("version_max", U16),
            ("role", TEXT),
            ("name", TEXT),
            ("hops", U16),
        ),
    ),
    Op.WRITE: (
        proxy.Write,
        (
            ("request", U63),
            ("stream", TEXT),
            ("producer", PRODUCER),
            ("sequence", U63),
            ("count", COUNT),
            ("txid", _or_nil(U63)),
            ("crc", U32),
            ("retry", BOOL),
            ("since", _or_nil(DLSN)),
            ("replaces", _or_nil(U63)),
            ("incarnation", _or_nil(TEXT)),
        ),
    ),
    Op.READ: (
        proxy.Read,
        (
            ("request", U63),
            ("stream", TEXT),
            ("start", START),
            ("value", START_VALUE),
            ("credit", U63),
            ("follow", BOOL),
            ("forwarded", BOOL),
            ("incarnation", _or_nil(TEXT)),
            ("region", _or_nil(TEXT)),
        ),
    ),
    Op.CREDIT: (proxy.Credit, (("request", U63), ("bytes", U63))),
    Op.CANCEL: (proxy.Cancel, (("request", U63),)),
    Op.CREATE: (
        proxy.Create,
        (("request", U63), ("stream", TEXT), ("incarnation", INCARNATION), ("deletions", U63), ("settings", MAP)),
    ),
    Op.DELETE: (proxy.Delete, (("request", U63), ("stream", TEXT), ("incarnation", INCARNATION), ("force", BOOL))),
    Op.TRUNCATE: (proxy.Truncate, (("request", U63), ("stream", TEXT), ("incarnation", INCARNATION), ("dlsn", DLSN))),
    Op.SEAL: (proxy.Seal, (("request", U63), ("stream", TEXT), ("incarnation", INCARNATION))),
    Op.STAT: (proxy.Stat, (("request", U63), ("stream", TEXT))),
    Op.LIST: (
        proxy.List,
        (("request", U63), ("after", TEXT), ("limit", U32), ("listing", _or_nil(TEXT))),
    ),
    Op.OWNER: (
        proxy.GetOwner,
        (("request", U63), ("stream", TEXT), ("suspect", _or_nil(TEXT)), ("region", _or_nil(TEXT))),
    ),
    Op.OWNERS: (proxy.GetOwners, (("request", U63),)),
    Op.HAND_OVER: (proxy.HandOver, (("request", U63), ("stream", TEXT), ("incarnation", INCARNATION))),
    Op.TAIL: (proxy.Tail, (("request", U63), ("stream", TEXT))),
    Op.PING: (proxy.Ping, (("request", U63),)),
    Op.IMPORT_SEGMENTS: (
        proxy.ImportSegments,
        (("request", U63), ("stream", TEXT), ("incarnation", INCARNATION), *_SINK, ("store", _or_nil(TEXT))),
    ),
    Op.SINK_WRITE: (
        proxy.SinkWrite,
        (
            ("request", U63),
            ("stream", TEXT),
            ("incarnation", INCARNATION),
            *_SINK,
            ("count", COUNT),
            ("txid", _or_nil(U63)),
            ("crc", U32),
        ),
    ),
    Op.MOVE_SEGMENT: (
        proxy.MoveSegment,
        (
            ("request", U63),
            ("stream", TEXT),
            ("incarnation", INCARNATION),
            ("segment", U63),
            ("store", TEXT),
            ("location", LOCATION_NAME),
            ("to_store", TEXT),
            ("to_location", LOCATION_NAME),
        ),
    ),
    Op.GET_INCARNATION: (proxy.GetIncarnation, (("request", U63), ("stream", TEXT))),
    Op.ALTER: (
        proxy.Alter,
        (("request", U63), ("stream", TEXT), ("incarnation", INCARNATION), ("version", U63), ("settings", MAP)),
    ),
    Op.OBJECTS_ASK: (proxy.ObjectsAsk, (("request", U63), ("suspect", _or_nil(TEXT)))),
    Op.WELCOME: (
        proxy.Welcome,
        (("request", U63), ("version", U16), ("server", TEXT), ("role", TEXT), ("limits", LIMITS)),
    ),
    Op.WRITTEN: (
        proxy.Written,
        (
            ("first", U63),
            ("last", U63),
            ("dlsn", DLSN),
            ("txid", I64),
            ("duplicate", BOOL),
            ("window", _or_nil(WINDOW)),
        ),
    ),
    Op.FAILED: (
        proxy.Failed,
        (
            ("request", U63),
            ("code", U16),
            ("message", TEXT),
            ("location", _or_nil(TEXT)),
            ("outcome_unknown", BOOL),
            ("detail", MAP),
        ),
    ),
    Op.DONE: (proxy.Done, (("request", U63),)),
    Op.ENTRIES: (
        proxy.Entries,
        (("request", U63), ("segment", U63), ("first_entry", U63), ("lengths", LENGTHS), ("skip", U63)),
    ),
    Op.READER_EVENT: (proxy.ReaderEvent, (("request", U63), ("kind", EVENT), ("detail", MAP))),
    Op.LAC: (proxy.Lac, (("request", U63), ("segment", U63), ("lac", I64), ("ended", BOOL))),
    Op.GOAWAY: (proxy.GoAway, (("request", U63), ("reason", TEXT), ("location", _or_nil(TEXT)))),
}

#: operations whose last field is left out if it is nil, since it was added to the protocol later
_LAST_IS_LEFT_OUT = frozenset({Op.IMPORT_SEGMENTS, Op.WRITTEN, Op.OWNER, Op.READ})


# ---- encoding -------------------------------------------------------------------------------------------------------


def encode(message: Message) -> list[Buffer]:
    """The frame of a message, as buffers to be written in order; a body is not copied.

    Raises InvalidRequestError if names or maps make the header exceed HEADER_BYTES_MAX, if msgpack cannot encode a
    value (half a surrogate pair, an integer beyond 64 bits, another type), or if a field of a request is out of the
    bounds that `decode` checks. Not checked are those of Write, which is encoded for each batch: its sender checks
    what the application gave before it takes the records. Integers of other types, such as numpy's, are converted.
    """
    kind = type(message)
    make_body = _SENT_BODIES.get(kind)
    body: Buffer = b"" if make_body is None else make_body(message)
    fields = _HEADERS[kind](message)
    if fields[-1] is None and fields[0] in _LAST_IS_LEFT_OUT:
        del fields[-1]
    header = _packed(fields, message)
    if len(header) > HEADER_BYTES_MAX:
        raise InvalidRequestError(f"message too large: message={kind.__name__} header_bytes={len(header)}")
    size = len(header)
    head = _HEAD.pack(2 + size + len(body), size) + header
    if kind in _CHECKED:
        _check_request(head, body if kind is proxy.ImportSegments else b"")
    return [head, body] if body else [head]


def _packed(value: Any, message: Message) -> bytes:
    try:
        try:
            return msgpack.packb(value)  # type: ignore[no-any-return]
        except TypeError:
            return msgpack.packb(value, default=index)  # type: ignore[no-any-return]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(f"message cannot be encoded: message={type(message).__name__}: {error}") from None


def _check_request(head: bytes, body: Buffer) -> None:
    """Raise InvalidRequestError if the receiver would refuse the frame. body: b"" if it is not decoded there."""
    try:
        decode(memoryview(head + body)[_HEAD.size - 2 :])
    except ProtocolError as error:
        raise InvalidRequestError(f"the request was not sent, an argument is wrong: {error.message}") from None


def _header_of(op: Op, names: tuple[str, ...]) -> Callable[[Any], list[Any]]:
    number = int(op)
    if len(names) == 1:
        get_one = attrgetter(names[0])
        return lambda message: [number, get_one(message)]
    get = attrgetter(*names)
    return lambda message: [number, *get(message)]


def _failed_header(m: proxy.Failed) -> list[Any]:
    text = m.message if len(m.message) <= TEXT_MAX // 4 else m.message[: TEXT_MAX // 4 - 3] + "..."
    return [int(Op.FAILED), m.request, m.code, text, m.location, m.outcome_unknown, m.detail]


def _entries_header(m: proxy.Entries) -> list[Any]:
    lengths = struct.pack(f">{len(m.lengths)}I", *m.lengths)
    return [int(Op.ENTRIES), m.request, m.segment, m.first_entry, lengths, m.skip]


_HEADERS: dict[type[Any], Callable[[Any], list[Any]]] = {
    cls: _header_of(op, tuple(name for name, _ in fields)) for op, (cls, fields) in SCHEMA.items()
}
_HEADERS[proxy.Failed] = _failed_header
_HEADERS[proxy.Entries] = _entries_header
_SENT_BODIES: dict[type[Any], Callable[[Any], Buffer]] = {
    proxy.Write: attrgetter("body"),
    proxy.Entries: attrgetter("body"),
    proxy.SinkWrite: attrgetter("body"),
    proxy.ObjectsAsk: attrgetter("body"),
    proxy.Done: lambda message: _packed(message.result, message),
    proxy.ImportSegments: lambda message: _packed(message.parts, message),
}
#: requests whose fields `encode` checks; those of replies are our own
_CHECKED = frozenset(cls for op, (cls, _) in SCHEMA.items() if op < Op.WELCOME) - {proxy.Write}


# ---- decoding -------------------------------------------------------------------------------------------------------


class FrameDecoder(Decoder[Iterator[Message]]):
    """Decodes a peer's bytes into messages, each when the iterator reaches it. One per connection.

    Bodies are views of the received data and stay valid for ever. `length_max` bounds the length word and may be raised
    between two messages, as servers do after a Hello. Close the connection at a ProtocolError.
    """

    __slots__ = ()

    def __init__(self, length_max: int = HELLO_LENGTH_MAX) -> None:
        super().__init__(length_max)

    @property
    def length_max(self) -> int:
        return self.frames.length_max

    @length_max.setter
    def length_max(self, value: int) -> None:
        self.frames.length_max = value

    def _decoded(self, frames: Iterable[memoryview]) -> Iterator[Message]:
        return map(decode, frames)


def decode(frame: memoryview) -> Message:
    """One message from a frame without its length word. Raises ProtocolError."""
    size = len(frame)
    if size < 2:
        raise ProtocolError(f"frame without a header: bytes={size}")
    stop = 2 + (frame[0] << 8 | frame[1])
    if stop > size:
        raise ProtocolError(f"header runs past the frame: header_bytes={stop - 2} bytes={size}")
    try:
        header = _unpack_header(frame[2:stop])
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"header is not msgpack within bounds: {error}") from None
    if type(header) is not list or not header or type(header[0]) is not int:
        raise ProtocolError("header is not an array that begins with an op")
    known = _DECODERS.get(header[0])
    if known is None:
        raise ProtocolError(f"unknown op: op={header[0]}")
    cls, count, make, with_body = known
    if len(header) == count and header[0] in _LAST_IS_LEFT_OUT:
        header.append(None)
    if len(header) != count + 1:
        raise ProtocolError(f"wrong number of fields: op={header[0]} fields={len(header) - 1} expected={count}")
    body = frame[stop:]
    if body and not with_body:
        raise ProtocolError(f"message may have no body: op={header[0]} bytes={len(body)}")
    op = header.pop(0)
    try:
        message: Message = make(*header, with_body(body)) if with_body else make(*header)
        if type(message) in _WHOLE:
            _WHOLE[type(message)](message)
    except ValueError as error:
        field = _wrong_field(Op(op), header)
        raise ProtocolError(f"field out of its bounds: message={cls.__name__}{field}: {error}") from None
    return message


def _wrong_field(op: Op, values: list[Any]) -> str:
    """Name and value of the first field that its own check refuses, for an error message; "" if there is none."""
    for (name, kind), value in zip(SCHEMA[op][1], values, strict=True):
        try:
            kind.check(value)
        except ValueError:
            return f" {name}={reprlib.repr(value)}"
    return ""


def _no_ext(code: int, data: bytes) -> Any:
    raise ValueError("extension types are not used")


def _once(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A map without repeated keys: decoders differ in whether the first or the last of them counts."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a map names a key twice")
    return found


_BOUNDS = {
    "raw": False,
    "object_pairs_hook": _once,
    "strict_map_key": True,
    "max_ext_len": 0,
    "ext_hook": _no_ext,
    "max_map_len": MAP_MAX,
}
_unpack_header = partial(
    msgpack.unpackb, **_BOUNDS, max_array_len=ARRAY_MAX, max_str_len=TEXT_MAX, max_bin_len=HEADER_BYTES_MAX
)


def _result(body: memoryview) -> dict[str, Any]:
    if not body:
        return {}
    array_max = min(RESULT_ARRAY_MAX, len(body))  # an element has at least one byte
    return _map(msgpack.unpackb(body, **_BOUNDS, max_array_len=array_max, max_str_len=1 << 20, max_bin_len=1 << 20))


def _parts(body: memoryview) -> tuple[tuple[str, int], ...]:
    bounds = {**_BOUNDS, "max_array_len": min(PARTS_MAX, len(body)), "max_str_len": TEXT_MAX, "max_bin_len": 0}
    value = msgpack.unpackb(body, **bounds)
    if type(value) is not list:
        raise ValueError("parts are not an array")
    for part in value:
        if type(part) is not list or len(part) != 2:
            raise ValueError("a part is not [location, last entry]")
    return tuple((LOCATION_NAME.check(name), U63.check(last)) for name, last in value)


def _as_it_is(body: memoryview) -> Buffer:
    return body


def _check_write(m: proxy.Write) -> None:
    if m.sequence + m.count > _I64_MAX:
        raise ValueError("sequence beyond its range")


def _check_read(m: proxy.Read) -> None:
    wanted = tuple if m.start is Start.DLSN else int if m.start in (Start.TXID, Start.TIME) else type(None)
    if type(m.value) is not wanted:
        raise ValueError("value does not fit the kind of start")


def _check_entries(m: proxy.Entries) -> None:
    if sum(m.lengths) != len(m.body):
        raise ValueError("lengths do not add up to the body")


def _check_written(m: proxy.Written) -> None:
    if m.last < m.first:
        raise ValueError("range of requests is backwards")


_WHOLE: dict[type[Any], Callable[[Any], None]] = {
    proxy.Write: _check_write,
    proxy.Read: _check_read,
    proxy.Entries: _check_entries,
    proxy.Written: _check_written,
}
_BODIES: dict[Op, Callable[[memoryview], Any]] = {
    Op.WRITE: _as_it_is,
    Op.ENTRIES: _as_it_is,
    Op.DONE: _result,
    Op.IMPORT_SEGMENTS: _parts,
    Op.SINK_WRITE: _as_it_is,
    Op.OBJECTS_ASK: _as_it_is,
}


def _maker(cls: type[Any], kinds: list[Kind]) -> Callable[..., Any]:
    """A function that makes a message of its fields, which it checks, and its body, which it does not. It is compiled:
    calls of all checks would take as long as the rest of `decode`."""
    names = [f"v{i}" for i in range(len(kinds))]
    given = [f"{v} if {kind.plain.format(v)} else check_{v}({v})" for v, kind in zip(names, kinds, strict=True)]
    known: dict[str, Any] = {f"check_{v}": kind.check for v, kind in zip(names, kinds, strict=True)} | {"cls": cls}
    exec(f"def make({', '.join(names)}, *body):\n    return cls({', '.join(given)}, *body)", known)
    made: Callable[..., Any] = known["make"]
    return made


_DECODERS = {
    int(op): (cls, len(fields), _maker(cls, [kind for _, kind in fields]), _BODIES.get(op))
    for op, (cls, fields) in SCHEMA.items()
}
