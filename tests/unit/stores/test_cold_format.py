"""A segment object returns what was written into it; damage anywhere is reported, and never returned as data."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.stores.cold.format import (
    BLOCK_ENTRIES,
    FOOTER_BYTES,
    Builder,
    Contents,
    Row,
    Summary,
    is_sound,
    parse_footer,
    parse_header,
    parse_rows,
    parse_summary,
)
from dlog.wire.digest import crc32c
from tests.unit.stores.cold import built, contents, head

NUMBERS = st.integers(0, 2**63 - 1)


def opened(data: bytes) -> Summary:
    """Open an object with all checks that need no entry."""
    footer = parse_footer(data[-FOOTER_BYTES:], len(data))
    summary = parse_summary(data[footer.summary_at : footer.summary_at + footer.summary_bytes], footer)
    parse_header(data[: summary.header_bytes], summary)
    return summary


def rows(data: bytes, summary: Summary) -> list[Row]:
    return [
        row
        for block in summary.blocks
        for row in parse_rows(data[block.offset : block.offset + block.bytes], block, summary)
    ]


def read(data: bytes) -> list[bytes]:
    """Read as a reader does: everything that is used is checked."""
    summary = opened(data)
    payloads = []
    for row in rows(data, summary):
        payload = data[row.offset : row.offset + row.length]
        if not is_sound(payload, row):
            raise DamagedError("payload")
        payloads.append(payload)
    return payloads


@settings(max_examples=60)
@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=60),
    st.builds(
        head,
        st.just(1),
        stream=st.text("abc-._Z", min_size=1, max_size=200),
        incarnation=st.text("0aZ", max_size=64),
        number=st.integers(1, 10**17),
        first_txid=NUMBERS,
        last_txid=NUMBERS,
        records=NUMBERS,
        start_sequence_id=st.integers(-1, 2**62),
        is_enveloped=st.booleans(),
        source_name=st.text(max_size=100),
    ),
    st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, st.integers(-1, 2**31 - 1), st.integers(0, 2**32 - 1))),
)
def test_what_goes_in_comes_out(payloads: list[bytes], of: object, told: list[tuple[int, ...]]) -> None:
    own = head(len(payloads), **{n: getattr(of, n) for n in of.__slots__ if n != "last_entry"})  # type: ignore[attr-defined]
    builder = Builder(own)
    parts = [builder.begin()]
    holds = [Contents(*told[i]) if i < len(told) else Contents() for i in range(len(payloads))]
    for payload, hold in zip(payloads, holds, strict=True):
        builder.add(payload, hold)
        parts.append(payload)
    data = b"".join([*parts, *builder.end()])
    summary = opened(data)
    assert summary.head == own
    assert read(data) == payloads
    assert [row[3:] for row in rows(data, summary)] == holds
    footer = summary.footer
    assert (footer.entries, footer.payload_bytes) == (len(payloads), sum(map(len, payloads)))
    assert footer.records == sum(hold.records for hold in holds)
    sums = b"".join(len(p).to_bytes(4, "big") + crc32c(p).to_bytes(4, "big") for p in payloads)
    assert footer.entries_crc == crc32c(sums)
    assert footer.object_crc == crc32c(data[:-FOOTER_BYTES])
    assert b"".join(payloads) in data, "unchanged, one behind the other"


def test_an_index_of_several_blocks() -> None:
    payloads = [b"%d" % i for i in range(2 * BLOCK_ENTRIES + 3)]
    data = built(payloads)
    summary = opened(data)
    assert [(b.first, b.entries) for b in summary.blocks] == [(0, 1024), (1024, 1024), (2048, 3)]
    assert (summary.blocks[1].first_txid, summary.blocks[1].last_txid) == (1124, 2147)
    assert summary.blocks[2].unix_ms == 5000 + 2050
    assert [summary.block_of(e) for e in (0, 1023, 1024, 2050)] == [0, 0, 1, 2]
    assert read(data) == payloads


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_one_byte_that_differs_is_told_wherever_it_is(flip: int) -> None:
    payloads = [b"first entry", b"", b"the third"]
    data = built(payloads)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= flip
        with pytest.raises(DamagedError):
            read(bytes(damaged))


def test_what_is_cut_short_or_grew_is_told() -> None:
    data = built([b"first entry", b"the second"])
    for size in range(len(data)):
        with pytest.raises(DamagedError):
            read(data[:size])
    for more in (b"\0", data, b"x" * 100):
        with pytest.raises(DamagedError):
            read(data + more)
        with pytest.raises(DamagedError):
            read(more + data)


@settings(max_examples=200)
@given(st.binary(max_size=400))
def test_bytes_of_no_object_are_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(DamagedError):
        read(data)


@settings(max_examples=200)
@given(st.data())
def test_a_summary_with_a_good_checksum_is_judged_all_the_same(data: st.DataObject) -> None:
    """Invented bytes with matching checksums: the result is an error or a segment, and nothing else."""
    from dataclasses import replace

    whole = built([b"entry"])
    footer = parse_footer(whole[-FOOTER_BYTES:], len(whole))
    summary = bytearray(whole[footer.summary_at : footer.summary_at + footer.summary_bytes])
    for _ in range(data.draw(st.integers(1, 4))):
        summary[data.draw(st.integers(0, len(summary) - 1))] = data.draw(st.integers(0, 255))
    made_up = replace(footer, summary_crc=crc32c(bytes(summary)))
    try:
        parsed = parse_summary(bytes(summary), made_up)
    except DamagedError:
        return
    assert parsed.blocks[0].offset == parsed.header_bytes + footer.payload_bytes


def test_a_newer_format_is_not_called_damaged() -> None:
    data = bytearray(built([b"entry"]))
    data[-FOOTER_BYTES + 1] += 1
    data[-4:] = crc32c(bytes(data[-FOOTER_BYTES:-4])).to_bytes(4, "big")
    with pytest.raises(UnsupportedVersionError):
        opened(bytes(data))


def test_a_header_of_another_object_is_told() -> None:
    one, other = built([b"entry"]), built([b"entry"], head(1, source_name="4712"))
    summary = opened(one)
    with pytest.raises(DamagedError, match="different objects"):
        opened(other[: summary.header_bytes] + one[summary.header_bytes :])


def test_a_builder_takes_no_more_and_no_fewer_entries_than_were_said() -> None:
    builder = Builder(head(2))
    builder.begin()
    builder.add(b"one", contents(0))
    with pytest.raises(AssertionError):
        builder.end()
    builder.add(b"two", contents(1))
    with pytest.raises(AssertionError):
        builder.add(b"three", contents(2))
