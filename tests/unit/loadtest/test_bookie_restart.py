"""What a bookie is filled with, and what is read back from it."""

from __future__ import annotations

import pytest

from dlog.model.ids import EntryId, LedgerId
from dlog.wire.bookie import Code, EntryRead
from loadtest.bookie_restart import Content, _check_read, digest_of


def packet(content: Content, ledger: int, entry: int) -> bytes:
    for add in content.requests():
        if (add.ledger, add.entry) == (ledger, entry):
            return b"".join(add.parts)
    raise AssertionError((ledger, entry))


def test_ledgers_are_written_in_turns_and_their_last_entries_read_back() -> None:
    content = Content(3, 4, 50)
    adds = [(add.ledger, add.entry) for add in content.requests()]
    assert adds[:4] == [(0, 0), (1, 0), (2, 0), (0, 1)] and len(adds) == 12 and content.size == 600
    assert content.last == adds[-1] == (2, 3)
    sample = content.sample()
    assert sample == content.sample() and {(ledger, 3) for ledger in range(3)} <= set(sample) <= set(adds)
    assert len(sample) > 3, "others than the last ones, too"
    assert Content(5, 1, 50).sample() == [(ledger, 0) for ledger in range(5)]


def test_an_entry_that_is_not_as_written_is_found() -> None:
    content = Content(2, 2, 50)
    good = packet(content, 1, 1)
    foreign = b"".join(map(bytes, digest_of(1).pack(1, 0, 100, (bytes(50),))))

    def checked(code: Code, data: bytes) -> str:
        return _check_read(EntryRead(LedgerId(1), EntryId(1), code, data), content.payload)

    assert checked(Code.OK, good) == ""
    assert "not as written" in checked(Code.OK, foreign)
    assert "digest does not match" in checked(Code.OK, good[:-1] + b"x")
    assert "another entry" in checked(Code.OK, packet(content, 0, 1))
    assert "not read" in checked(Code.NO_ENTRY, b"")


@pytest.mark.parametrize("entries", [1, 7])
def test_lengths_grow_with_the_entries_of_a_ledger(entries: int) -> None:
    content = Content(2, entries, 30)
    found = digest_of(1).verify(packet(content, 1, entries - 1), entries - 1)
    assert (found.length, found.lac, bytes(found.payload)) == (30 * entries, entries - 2, content.payload)
