"""Operations of the controller and its answers, as bytes of the proxy protocol.

    message   = version u8 | crc32c u32 | msgpack [kind, field, ...]
    operation = the fields in the order of its class (dlog/wire/object_fields.py)
    answer    = a result, likewise, or a refusal: [0, code, message, outcome unknown, number or nil]

Big-endian. The checksum covers all behind it. number: `expected` of OffsetMismatchError, `current` of
NodeEpochExpiredError. docs/protocol.md lists the kinds.

Invariants:
- what an encoder returns, its decoder accepts and gives back;
- every fault is a DamagedError; a newer version or a kind that is not known is an UnsupportedVersionError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

import msgpack

from dlog.errors import DamagedError, DLogError, InvalidRequestError, UnsupportedVersionError, from_wire
from dlog.model.ids import Epoch
from dlog.model.object_streams import ObjectStreamId
from dlog.objects import operations as ops
from dlog.objects.errors import BY_CODE, NodeEpochExpiredError, OffsetMismatchError
from dlog.objects.operations import Operation, RangeState, Result
from dlog.options import KiB
from dlog.wire.digest import crc32c
from dlog.wire.object_fields import (
    BLOB,
    BOOL,
    COUNT,
    ID,
    IDS,
    SET_OR_NONE,
    SETS,
    STREAM_OBJECTS,
    TEXT,
    U64,
    WAL_POSITION,
    WAL_SEGMENT,
    Codec,
    read_id,
    read_list,
    read_numbers,
    read_u64,
)

Buffer = bytes | bytearray | memoryview

VERSION = 1
OPERATION_BYTES_MAX = 768 * KiB  # so that its records fit into one entry of the metadata stream
RANGES_MAX = 1_000_000  # of a node
MESSAGE_MAX = 1000  # characters of a refusal's message
_HEAD = struct.Struct(">BI")
_REFUSED = 0


class OperationTooLargeError(InvalidRequestError):
    """The operation exceeds OPERATION_BYTES_MAX, or a number or text does not fit into its field: split it."""


# ---- fields ---------------------------------------------------------------------------------------------------------


def _write_triples(value: Iterable[tuple[int, int, int]]) -> list[int]:
    return [number for triple in value for number in triple]


def _read_triples(value: Any) -> tuple[tuple[ObjectStreamId, Epoch, int], ...]:
    flat = read_numbers(value, 3)
    if not all(flat[::3]):
        raise ValueError("an id is not 0")
    return tuple(zip(map(ObjectStreamId, flat[::3]), map(Epoch, flat[1::3]), flat[2::3], strict=True))


def _write_ranges(value: tuple[RangeState, ...]) -> list[Any]:
    return [
        part for its in value for part in (its.stream, its.epoch, its.start, its.end, its.committed, its.stream_start)
    ]


def _read_ranges(value: Any) -> tuple[RangeState, ...]:
    if type(value) is not list or len(value) % 6 or len(value) > RANGES_MAX * 6:
        raise ValueError("not a list of ranges, or too long, or cut short")
    return tuple(
        [
            RangeState(
                ObjectStreamId(read_id(stream)),
                Epoch(read_u64(epoch)),
                read_u64(start),
                None if end is None else read_u64(end),
                read_u64(committed),
                read_u64(stream_start),
            )
            for stream, epoch, start, end, committed, stream_start in zip(*[iter(value)] * 6, strict=True)
        ]
    )


def _or_none(codec: Codec) -> Codec:
    write, read = codec
    return (
        lambda value: None if value is None else write(value),
        lambda value: None if value is None else read(value),
    )


def _write_wal(value: Iterable[Any]) -> list[Any]:
    return [list(WAL_SEGMENT[0](its)) for its in value]


def _read_wal(value: Any) -> tuple[Any, ...]:
    return tuple(map(WAL_SEGMENT[1], read_list(value)))


_ENDS: Codec = (_write_triples, _read_triples)
_RANGES: Codec = (_write_ranges, _read_ranges)
_WAL: Codec = (_write_wal, _read_wal)

#: kind -> the class, and how each of its fields is written; a kind is never used again for something else
OPERATIONS: dict[int, tuple[type[Any], tuple[Codec, ...]]] = {
    1: (ops.PutKey, (TEXT, BLOB)),
    2: (ops.GetKey, (TEXT,)),
    3: (ops.DeleteKey, (TEXT,)),
    4: (ops.CreateStreams, (TEXT, COUNT)),
    5: (ops.DeleteStreams, (IDS, _or_none(TEXT))),
    6: (ops.OpenStream, (TEXT, ID, ID, U64)),
    7: (ops.CloseStreams, (TEXT, ID, _ENDS)),
    8: (ops.TrimStream, (TEXT, ID, ID, U64, U64)),
    9: (ops.DropRange, (ID, U64)),
    10: (ops.OpenNode, (TEXT, ID, BOOL, BLOB)),
    11: (ops.BeginWalSegment, (TEXT, ID, WAL_SEGMENT)),
    12: (ops.WalDeleted, (TEXT, ID, U64)),
    13: (ops.PrepareObjects, (TEXT, ID, COUNT, U64)),
    14: (ops.CommitUpload, (TEXT, ID, SET_OR_NONE, STREAM_OBJECTS, WAL_POSITION)),
    15: (ops.CommitCompaction, (TEXT, ID, IDS, SETS, STREAM_OBJECTS)),
}
RESULTS: dict[int, tuple[type[Any], tuple[Codec, ...]]] = {
    1: (type(None), ()),
    2: (ops.Done, (U64,)),
    3: (ops.KeyValue, (BLOB, BOOL)),
    4: (ops.StreamsCreated, (IDS, BOOL)),
    5: (ops.StreamIsOpen, (U64, U64)),
    6: (ops.NodeIsOpen, (_RANGES, _WAL, WAL_POSITION)),
    7: (ops.ObjectsArePrepared, (ID, COUNT)),
}
Writers = Mapping[type[Any], tuple[int, tuple[tuple[str, Callable[[Any], Any]], ...]]]


def _writers(kinds: Mapping[int, tuple[type[Any], tuple[Codec, ...]]]) -> Writers:
    def names(cls: type[Any]) -> tuple[str, ...]:
        return () if cls is type(None) else tuple(field.name for field in fields(cls))

    return {
        cls: (kind, tuple(zip(names(cls), [write for write, _ in codecs], strict=True)))
        for kind, (cls, codecs) in kinds.items()
    }


_WRITE_OPERATION = _writers(OPERATIONS)
_WRITE_RESULT = _writers(RESULTS)


# ---- messages -------------------------------------------------------------------------------------------------------


def encode_operation(operation: Operation) -> bytes:
    """Encode an operation. Raises OperationTooLargeError for what `decode_operation` would not accept."""
    plain = _plain(operation, _WRITE_OPERATION)
    try:
        data = _encoded(plain)
        _value(plain, OPERATIONS)
    except (ValueError, TypeError, OverflowError) as error:
        raise OperationTooLargeError(
            f"the operation cannot be sent: operation={type(operation).__name__} error={error}"
        ) from None
    if len(data) > OPERATION_BYTES_MAX:
        raise OperationTooLargeError(
            f"the operation is too large, split it: operation={type(operation).__name__} bytes={len(data)} "
            f"max={OPERATION_BYTES_MAX}"
        )
    return data


def decode_operation(data: Buffer) -> Operation:
    """Decode an operation. Raises DamagedError, UnsupportedVersionError, OperationTooLargeError."""
    if len(data) > OPERATION_BYTES_MAX:
        raise OperationTooLargeError(f"the operation is too large: bytes={len(data)} max={OPERATION_BYTES_MAX}")
    operation: Operation = _decoded(data, OPERATIONS, "an operation on metadata")
    return operation


def encode_answer(answer: Result | DLogError) -> bytes:
    """Encode a result or a refusal."""
    if not isinstance(answer, DLogError):
        return _encoded(_plain(answer, _WRITE_RESULT))
    number: int | None = None
    if isinstance(answer, OffsetMismatchError):
        number = answer.expected if answer.expected >= 0 else None
    elif isinstance(answer, NodeEpochExpiredError):
        number = answer.current
    text = answer.message.encode(errors="replace").decode()[:MESSAGE_MAX]
    return _encoded([_REFUSED, answer.code, text, answer.outcome_unknown, number])


def decode_answer(data: Buffer) -> Result | DLogError:
    """Decode a result, or a refusal, which is returned and not raised. Raises DamagedError, UnsupportedVersionError."""
    answer: Result | DLogError = _decoded(data, RESULTS, "an answer about metadata")
    return answer


def _plain(value: Any, writers: Writers) -> list[Any]:
    kind, its = writers[type(value)]
    return [kind, *(write(getattr(value, name)) for name, write in its)]


def _encoded(plain: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(plain)
    return _HEAD.pack(VERSION, crc32c(packed)) + packed


def _decoded(data: Buffer, kinds: Mapping[int, tuple[type[Any], tuple[Codec, ...]]], what: str) -> Any:
    if len(data) < _HEAD.size:
        raise DamagedError(f"{what} is cut short: bytes={len(data)}")
    version, crc = _HEAD.unpack_from(data)
    packed = memoryview(data)[_HEAD.size :]
    if version > VERSION:
        raise UnsupportedVersionError(f"{what} has a newer format, upgrade: version={version} known={VERSION}")
    if version != VERSION or crc32c(packed) != crc:
        raise DamagedError(f"the checksum of {what} does not match: version={version}")
    try:
        return _value(msgpack.unpackb(packed), kinds)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise DamagedError(f"{what} is not valid: {error}") from None


def _value(plain: Any, kinds: Mapping[int, tuple[type[Any], tuple[Codec, ...]]]) -> Any:
    if type(plain) is not list or not plain or type(plain[0]) is not int:
        raise ValueError("no kind")
    if plain[0] == _REFUSED and kinds is RESULTS:
        return _refusal(*plain[1:])
    known = kinds.get(plain[0])
    if known is None:
        raise UnsupportedVersionError(f"a kind of a newer release, upgrade: kind={plain[0]}")
    cls, codecs = known
    read = [read(part) for (_, read), part in zip(codecs, plain[1:], strict=True)]
    return None if cls is type(None) else cls(*read)


def _refusal(code: Any, message: Any, outcome_unknown: Any, number: Any) -> DLogError:
    if read_u64(code) > 0xFFFF or type(message) is not str or type(outcome_unknown) is not bool:
        raise ValueError("not a refusal")
    number = None if number is None else read_u64(number)
    cls = BY_CODE.get(code)
    if cls is None:
        return from_wire(code, message, None, outcome_unknown)
    error = cls(message, outcome_unknown=outcome_unknown)
    if number is not None and isinstance(error, OffsetMismatchError):
        error.expected = number
    elif number is not None and isinstance(error, NodeEpochExpiredError):
        error.current = number
    return error
