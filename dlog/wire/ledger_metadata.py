"""Ledger metadata in BookKeeper's znode format: a header line, then one of three forms.

    BookieMetadataFormatVersion\\t3\\n   varint length, LedgerMetadataFormat in protobuf's binary form   (we write this)
    BookieMetadataFormatVersion\\t2\\n   the same message in protobuf's text form
    BookieMetadataFormatVersion\\t1\\n   lines: Qw, E, length, then `first\\tbookie\\tbookie...`, last `entry\\tCLOSED`

We write every field that Java writes, in its order, so that a ledger updated by us looks like one updated by Java.
Unknown fields are skipped; invalid data is a DamagedError, another version an UnsupportedVersionError.
Source: BookKeeper, LedgerMetadataSerDe, DataFormats.proto.
"""

from __future__ import annotations

from dlog.errors import DamagedError, InvalidRequestError, UnsupportedVersionError
from dlog.model.ids import NO_ENTRY, EntryId, bookie_id
from dlog.model.ledger import DigestType, Fragment, LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum
from dlog.wire import protobuf, textproto
from dlog.wire.protobuf import BYTES, VARINT, Buffer, Malformed, bytes_field, int_field

_NAME = b"BookieMetadataFormatVersion\t"
_HEAD_3 = _NAME + b"3\n"
_HEAD_MAX = len(_NAME) + 12
_I64_END = 2**63


def encode(metadata: LedgerMetadata) -> bytes:
    """Encode in version 3. The ensemble's order is kept: it decides which bookie holds which entry."""
    fields = [
        int_field(1, metadata.quorum.write),
        int_field(2, metadata.quorum.ensemble),
        int_field(3, metadata.length),
        int_field(4, metadata.last_entry),
        int_field(5, metadata.state),
    ]
    for fragment in metadata.fragments:
        members = b"".join(bytes_field(1, bookie.encode()) for bookie in fragment.ensemble)
        fields.append(bytes_field(6, members + int_field(2, fragment.first_entry)))
    fields.append(int_field(7, metadata.digest))
    fields.append(bytes_field(8, metadata.password))
    fields.append(int_field(9, metadata.quorum.ack))
    if metadata.ctime_ms is not None:
        fields.append(int_field(10, metadata.ctime_ms))
    for key, value in metadata.custom:
        fields.append(bytes_field(11, bytes_field(1, key.encode()) + bytes_field(2, value)))
    fields.append(int_field(12, metadata.ctoken))
    message = b"".join(fields)
    return _HEAD_3 + protobuf.varint(len(message)) + message


def decode(data: Buffer) -> LedgerMetadata:
    """Decode versions 1 to 3. Raises DamagedError, or UnsupportedVersionError for another version."""
    data = bytes(data)
    head, newline, body = data.partition(b"\n")
    if not head.startswith(_NAME) or not newline or len(head) > _HEAD_MAX:
        raise DamagedError(f"not ledger metadata: begins with {data[:32]!r}")
    version = head[len(_NAME) :]
    try:
        if version == b"3":
            return _read_binary(_undelimited(body))
        if version == b"2":
            return _read_text(body)
        if version == b"1":
            return _read_lines(body)
    except (Malformed, ValueError, InvalidRequestError) as error:
        raise DamagedError(f"ledger metadata cannot be decoded: version={version.decode()}: {error}") from None
    raise UnsupportedVersionError(f"unsupported version of ledger metadata: version={version.decode(errors='replace')}")


class _Draft:
    """Fields decoded so far; missing ones have their proto2 default, required ones None."""

    def __init__(self) -> None:
        self.write: int | None = None
        self.ensemble: int | None = None
        self.length: int | None = None
        self.state: int | None = None
        self.last_entry: int = NO_ENTRY
        self.ack: int | None = None
        self.digest: int = DigestType.CRC32  # of ledgers older than the field
        self.password = b""
        self.ctime_ms: int | None = None
        self.ctoken = 0
        self.fragments: list[Fragment] = []
        self.custom: list[tuple[str, bytes]] = []

    def add_fragment(self, first_entry: int | None, members: list[str]) -> None:
        if first_entry is None:
            raise ValueError("a fragment without a first entry")
        ensemble = tuple(bookie_id(member) for member in members)
        self.fragments.append(Fragment(EntryId(first_entry), ensemble))

    def finished(self) -> LedgerMetadata:
        if self.write is None or self.ensemble is None or self.length is None or self.state is None:
            raise ValueError("a required field is missing")
        quorum = Quorum(ensemble=self.ensemble, write=self.write, ack=self.write if self.ack is None else self.ack)
        if not self.fragments:
            raise ValueError("no fragment")
        firsts = [fragment.first_entry for fragment in self.fragments]
        if firsts[0] < 0 or firsts != sorted(set(firsts)):
            raise ValueError(f"fragments do not start at increasing entries: {firsts}")
        if any(len(fragment.ensemble) != self.ensemble for fragment in self.fragments):
            raise ValueError(f"a fragment's number of bookies differs from the ensemble size: ensemble={self.ensemble}")
        if not (0 <= self.length < _I64_END and NO_ENTRY <= self.last_entry < _I64_END and firsts[-1] < _I64_END):
            raise ValueError("length, last or first entry out of range")
        return LedgerMetadata(
            quorum=quorum,
            fragments=tuple(self.fragments),
            state=LedgerState(self.state),
            last_entry=EntryId(self.last_entry),
            length=self.length,
            digest=DigestType(self.digest),
            password=self.password,
            ctime_ms=self.ctime_ms,
            custom=tuple(self.custom),
            ctoken=self.ctoken,
        )


# ---- version 3 ------------------------------------------------------------------------------------------------------


def _undelimited(body: bytes) -> memoryview:
    view = memoryview(body)
    size, at = protobuf.read_varint(view, 0)
    if size != len(view) - at:
        raise Malformed(f"declared size differs from the bytes present: declared={size} bytes={len(view) - at}")
    return view[at:]


def _read_binary(message: Buffer) -> LedgerMetadata:
    draft = _Draft()
    for number, wire_type, value in protobuf.fields(message):
        if wire_type == VARINT and isinstance(value, int):
            _put_number(draft, number, protobuf.signed(value))
        elif wire_type == BYTES and isinstance(value, memoryview):
            if number == 6:
                _read_fragment(draft, value)
            elif number == 8:
                draft.password = bytes(value)
            elif number == 11:
                _read_custom(draft, value)
    return draft.finished()


def _put_number(draft: _Draft, number: int, value: int) -> None:
    name = _NUMBERS.get(number)
    if name is not None:
        setattr(draft, name, value)


_NUMBERS = {
    1: "write",
    2: "ensemble",
    3: "length",
    4: "last_entry",
    5: "state",
    7: "digest",
    9: "ack",
    10: "ctime_ms",
    12: "ctoken",
}


def _read_fragment(draft: _Draft, message: memoryview) -> None:
    members: list[str] = []
    first_entry: int | None = None
    for number, wire_type, value in protobuf.fields(message):
        if number == 1 and wire_type == BYTES and isinstance(value, memoryview):
            members.append(bytes(value).decode())
        elif number == 2 and wire_type == VARINT and isinstance(value, int):
            first_entry = protobuf.signed(value)
    draft.add_fragment(first_entry, members)


def _read_custom(draft: _Draft, message: memoryview) -> None:
    found: dict[int, bytes] = {}
    for number, wire_type, value in protobuf.fields(message):
        if wire_type == BYTES and isinstance(value, memoryview):
            found[number] = bytes(value)
    draft.custom.append((found.get(1, b"").decode(), found.get(2, b"")))


# ---- version 2 ------------------------------------------------------------------------------------------------------

_STATES = {state.name: state.value for state in LedgerState}
_DIGESTS = {digest.name: digest.value for digest in DigestType}
_TEXT_NUMBERS = {
    "quorumSize": "write",
    "ensembleSize": "ensemble",
    "length": "length",
    "lastEntryId": "last_entry",
    "ackQuorumSize": "ack",
    "ctime": "ctime_ms",
    "cToken": "ctoken",
}


def _read_text(body: bytes) -> LedgerMetadata:
    draft = _Draft()
    for name, value in textproto.parse(body):
        if name in _TEXT_NUMBERS:
            setattr(draft, _TEXT_NUMBERS[name], textproto.integer(value))
        elif name == "state":
            draft.state = textproto.enumerated(value, _STATES)
        elif name == "digestType":
            draft.digest = textproto.enumerated(value, _DIGESTS)
        elif name == "password":
            draft.password = textproto.octets(value)
        elif name == "segment":
            inner = textproto.message(value)
            members = [textproto.octets(v).decode() for n, v in inner if n == "ensembleMember"]
            firsts = [textproto.integer(v) for n, v in inner if n == "firstEntryId"]
            draft.add_fragment(firsts[-1] if firsts else None, members)
        elif name == "customMetadata":
            pair = dict(textproto.message(value))
            key, content = pair.get("key", b""), pair.get("value", b"")
            draft.custom.append((textproto.octets(key).decode(), textproto.octets(content)))
    return draft.finished()


# ---- version 1 ------------------------------------------------------------------------------------------------------


def _read_lines(body: bytes) -> LedgerMetadata:
    lines = [line for line in body.decode().split("\n") if line]
    if len(lines) < 4:
        raise ValueError("version 1 has at least four lines")
    draft = _Draft()
    draft.write, draft.ensemble, draft.length = (int(line) for line in lines[:3])
    draft.state = LedgerState.OPEN
    for line in lines[3:]:
        first, *rest = line.split("\t")
        if draft.state == LedgerState.CLOSED:
            raise ValueError("lines after CLOSED")
        if rest == ["CLOSED"]:
            draft.state, draft.last_entry = LedgerState.CLOSED, int(first)
            if draft.last_entry == _IN_RECOVERY:
                draft.state, draft.last_entry = LedgerState.IN_RECOVERY, NO_ENTRY
        else:
            draft.add_fragment(int(first), rest)
    return draft.finished()


_IN_RECOVERY = -102  # last entry of a version 1 ledger in recovery
