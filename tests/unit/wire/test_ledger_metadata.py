"""Tests ledger metadata: three versions are read, the third is written; invalid text is damage, a newer version is
unsupported."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.model.ids import BookieId, EntryId
from dlog.model.ledger import DigestType, Fragment, LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum
from dlog.wire.ledger_metadata import decode, encode
from dlog.wire.protobuf import bytes_field, int_field, varint

HEAD = b"BookieMetadataFormatVersion\t"


@st.composite
def metadatas(draw: st.DrawFn) -> LedgerMetadata:
    size = draw(st.integers(1, 4))
    write = draw(st.integers(1, size))
    quorum = Quorum(ensemble=size, write=write, ack=draw(st.integers(1, write)))
    firsts = sorted(draw(st.sets(st.integers(1, 2**62), max_size=3)) | {0})
    members = st.text(alphabet="abc.:-_09", min_size=1, max_size=12).map(BookieId)
    ensembles = [tuple(draw(st.lists(members, min_size=size, max_size=size))) for _ in firsts]
    return LedgerMetadata(
        quorum=quorum,
        fragments=tuple(Fragment(EntryId(f), e) for f, e in zip(firsts, ensembles, strict=True)),
        state=draw(st.sampled_from(LedgerState)),
        last_entry=EntryId(draw(st.integers(-1, 2**62))),
        length=draw(st.integers(0, 2**62)),
        digest=draw(st.sampled_from(DigestType)),
        password=draw(st.binary(max_size=20)),
        ctime_ms=draw(st.none() | st.integers(0, 2**50)),
        custom=tuple(draw(st.dictionaries(st.text(max_size=5), st.binary(max_size=5), max_size=2)).items()),
        ctoken=draw(st.integers(-(2**63), 2**63 - 1)),
    )


@settings(max_examples=80)
@given(metadatas())
def test_what_is_written_reads_back(metadata: LedgerMetadata) -> None:
    found = decode(encode(metadata))
    assert found == metadata and found.ctoken == metadata.ctoken


@settings(max_examples=150)
@given(st.binary(max_size=100), st.sampled_from([b"", HEAD + b"1\n", HEAD + b"2\n", HEAD + b"3\n"]))
def test_hostile_bytes_end_in_metadata_or_a_typed_error(garbage: bytes, head: bytes) -> None:
    data = head + (varint(len(garbage)) if head.endswith(b"3\n") else b"") + garbage
    with contextlib.suppress(DamagedError, UnsupportedVersionError):
        decode(data)


@settings(max_examples=150)
@given(metadatas(), st.data())
def test_a_changed_byte_ends_in_metadata_or_a_typed_error(metadata: LedgerMetadata, data: st.DataObject) -> None:
    packed = bytearray(encode(metadata))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(DamagedError, UnsupportedVersionError):
        decode(packed)


TEXT = rb"""quorumSize: 2 ensembleSize: 3
length: 21
lastEntryId: 6
state: CLOSED
segment {
  ensembleMember: "127.0.0.1:3181"
  ensembleMember: "b\055two"  # an escaped dash
  ensembleMember: 'b3'
  firstEntryId: 0
}
segment < ensembleMember: "a" ensembleMember: "b" ensembleMember: "c", firstEntryId: 4 >
digestType: CRC32C
password: "p\"w\n" "\001"
ackQuorumSize: 1
unknownThing { nested: TRUE }
customMetadata { key: "app" value: "x" }
"""


def test_version_2_is_text() -> None:
    assert decode(HEAD + b"2\n" + TEXT) == LedgerMetadata(
        quorum=Quorum(ensemble=3, write=2, ack=1),
        fragments=(
            Fragment(EntryId(0), (BookieId("127.0.0.1:3181"), BookieId("b-two"), BookieId("b3"))),
            Fragment(EntryId(4), (BookieId("a"), BookieId("b"), BookieId("c"))),
        ),
        state=LedgerState.CLOSED,
        last_entry=EntryId(6),
        length=21,
        digest=DigestType.CRC32C,
        password=b'p"w\n\x01',
        custom=(("app", b"x"),),
    )


@settings(max_examples=150)
@given(st.data())
def test_broken_text_ends_in_metadata_or_a_typed_error(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(TEXT)))
    cut = data.draw(st.integers(0, 5))
    with contextlib.suppress(DamagedError):
        decode(HEAD + b"2\n" + TEXT[:at] + data.draw(st.binary(max_size=3)) + TEXT[at + cut :])


V1 = b"2\n3\n0\n0\ta\tb\tc\n5\ta\tb\td\n"
FRAGMENTS = (
    Fragment(EntryId(0), (BookieId("a"), BookieId("b"), BookieId("c"))),
    Fragment(EntryId(5), (BookieId("a"), BookieId("b"), BookieId("d"))),
)


@pytest.mark.parametrize(
    "tail,state,last",
    [
        (b"", LedgerState.OPEN, -1),
        (b"9\tCLOSED\n", LedgerState.CLOSED, 9),
        (b"-102\tCLOSED", LedgerState.IN_RECOVERY, -1),
    ],
)
def test_version_1_is_lines(tail: bytes, state: LedgerState, last: int) -> None:
    found = decode(HEAD + b"1\n" + V1 + tail)
    assert (found.state, found.last_entry, found.fragments) == (state, last, FRAGMENTS)
    assert found.quorum == Quorum(ensemble=3, write=2, ack=2)


@pytest.mark.parametrize("version", [b"0", b"4", b"99", b"x", b""])
def test_other_versions_are_unsupported(version: bytes) -> None:
    with pytest.raises(UnsupportedVersionError):
        decode(HEAD + version + b"\n")


@pytest.mark.parametrize("data", [b"", b"\n", b"3\n", HEAD, HEAD + b"3", b"Other\t3\n"])
def test_what_is_no_metadata_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError):
        decode(data)


def message(*, skip: int = 0, more: bytes = b"", ensemble: int = 1, first: int = 0) -> bytes:
    fields = {
        1: int_field(1, 1),
        2: int_field(2, ensemble),
        3: int_field(3, 0),
        5: int_field(5, 1),
        6: bytes_field(6, bytes_field(1, b"b1") + int_field(2, first)),
    }
    body = b"".join(value for number, value in fields.items() if number != skip) + more
    return HEAD + b"3\n" + varint(len(body)) + body


def test_optional_fields_have_their_defaults_and_unknown_ones_are_skipped() -> None:
    found = decode(message(more=int_field(99, 5) + bytes_field(98, b"x") + varint(97 << 3 | 5) + b"\0\0\0\0"))
    assert (found.quorum.ack, found.last_entry, found.digest, found.password) == (1, -1, DigestType.CRC32, b"")


@pytest.mark.parametrize("skip", [1, 2, 3, 5, 6])
def test_a_missing_required_field_is_damage(skip: int) -> None:
    with pytest.raises(DamagedError):
        decode(message(skip=skip))


@pytest.mark.parametrize(
    "broken",
    [
        message(ensemble=2),
        message(first=-1),
        message(more=int_field(5, 9)),
        message(more=int_field(7, 9)),
        message(more=int_field(9, 5)),
        message(more=int_field(4, -2)),
        message(more=bytes_field(6, bytes_field(1, b"b1") + int_field(2, 0))),
        message(more=bytes_field(6, bytes_field(1, b"b1"))),
        message(more=bytes_field(6, bytes_field(1, b"no spaces allowed") + int_field(2, 9))),
        message(more=varint(1 << 3 | 3)),
        message() + b"x",
        message()[:-1],
    ],
)
def test_values_that_make_no_sense_are_damage(broken: bytes) -> None:
    with pytest.raises(DamagedError):
        decode(broken)
