"""Scenarios of a reader of a ledger."""

from __future__ import annotations

from dlog.ledger.reading import EntryReader, ReadDone, ReadingOptions, ReadLedger, UseMetadata
from dlog.ledger.replica_health import ReplicaHealth
from dlog.machine import Answer, Received, SetTimer
from dlog.model.ids import EntryId
from dlog.model.ledger import LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.wire.bookie import BatchReadDone, Code
from tests.unit.ledger.story import DIGEST, LEDGER, Story, ledger, only, packet


def reader(metadata: LedgerMetadata | None = None, *, batch: bool = False, parallel: int = 16) -> Story:
    options = ReadingOptions(batch=batch, parallel_entries_max=parallel)
    return Story(EntryReader(LEDGER, metadata or ledger(), DIGEST, options))


def read(story: Story, first: int, last: int, bytes_max: int = 1 << 20) -> list[str]:
    return story.ask(ReadLedger(EntryId(first), EntryId(last), bytes_max))


def batch(story: Story, bookie: str, start: int, request: int, *packets: bytes, code: Code = Code.OK) -> list[str]:
    return story.hear(Received(bookie, BatchReadDone(LEDGER, EntryId(start), request, code, packets)))


def got(story: Story) -> list[bytes]:
    """Payloads of the last answer."""
    answer = next(e for e in reversed(story.effects) if isinstance(e, Answer))
    assert isinstance(answer.result, ReadDone)
    return [bytes(entry.payload) for entry in answer.result.entries]


def test_one_replica_is_enough() -> None:
    story = reader()
    assert read(story, 0, 0) == ["read 0 of a"]
    assert only(story.has("a", 0, packet(0, b"zero"), fence=False), "answer")
    assert got(story) == [b"zero"]
    assert not story.timers


def test_the_next_replica_is_asked_after_an_error_damage_denial_and_loss() -> None:
    story = reader(ledger("0 a b c d", quorum=Quorum(ensemble=4, write=4, ack=2)))
    read(story, 0, 0)
    assert story.has_not(0, "a", code=Code.IO_ERROR, fence=False) == ["read 0 of b"]
    assert story.has("b", 0, packet(1, b"another entry"), fence=False) == ["read 0 of c"]
    assert story.lost("c") == ["read 0 of d"]
    story.has("d", 0, packet(0, b"zero"), fence=False)
    assert got(story) == [b"zero"]


def test_the_nearest_replica_is_asked_first_unless_it_failed() -> None:
    far = {"a": 2, "b": 1, "c": 0}
    story = Story(EntryReader(LEDGER, ledger(), DIGEST, ReadingOptions(batch=False), far.__getitem__))
    assert read(story, 0, 0) == ["read 0 of c"]
    assert story.has_not(0, "c", code=Code.IO_ERROR, fence=False) == ["read 0 of b"]
    story.has("b", 0, packet(0, b"zero"), fence=False)
    assert read(story, 1, 1) == ["read 1 of b"], "c has failed lately"


def test_a_run_of_entries_is_asked_of_the_nearest_replica() -> None:
    far = {"a": 2, "b": 1, "c": 0}
    story = Story(EntryReader(LEDGER, ledger(), DIGEST, distance=far.__getitem__))
    assert [text.split(" of ")[1].split()[0] for text in read(story, 0, 9)] == ["c"]


def test_a_slow_replica_gets_company_and_the_first_answer_counts() -> None:
    story = reader()
    read(story, 0, 0)
    assert story.fires(("speculate", 1)) == ["read 0 of b"]
    story.has("b", 0, packet(0, b"zero"), fence=False)
    assert got(story) == [b"zero"]
    assert story.has("a", 0, packet(0, b"zero"), fence=False) == []


def test_a_confirmed_entry_that_too_many_deny_is_missing_after_metadata_was_read_again() -> None:
    story = reader()
    read(story, 0, 0)
    story.has_not(0, "a", "b", fence=False)
    assert story.has_not(0, "c", code=Code.IO_ERROR, fence=False) == ["read metadata"]
    assert story.reads(ledger(), 1) == ["answer 1 EntryMissingError"]


def test_without_metadata_nothing_is_called_missing() -> None:
    """The bookies that deny the entry may have been replaced before it was written."""
    story = reader()
    read(story, 0, 0)
    story.has_not(0, "a", "b", "c", fence=False)
    assert story.unknown() == ["answer 1 EntryUnreadableError"]


def test_a_confirmed_entry_that_nobody_can_give_now_is_unreadable() -> None:
    story = reader()
    read(story, 0, 0)
    story.has_not(0, "a", fence=False)
    assert story.lost("b", "c") == ["read 0 of c", "read metadata"]
    assert story.unknown() == ["answer 1 EntryUnreadableError"]


def test_an_entry_that_a_repair_moved_is_found() -> None:
    story = reader()
    read(story, 0, 0)
    story.lost("a", "b", "c")
    assert story.reads(ledger("0 a d c"), 4) == ["read 0 of d"]
    story.has("d", 0, packet(0, b"zero"), fence=False)
    assert got(story) == [b"zero"]


def test_who_denied_an_entry_and_is_none_of_its_bookies_does_not_make_it_missing() -> None:
    """Metadata that another part read arrived in between, and the bookies that have the entry are out of reach."""
    story = reader(ledger(quorum=Quorum(ensemble=3, write=3, ack=2)))
    read(story, 0, 0)
    story.has_not(0, "a", "b", fence=False)
    story.ask(UseMetadata(ledger("0 d e c")))
    assert story.lost("c")
    story.lost("d")
    story.lost("e")
    assert story.reads(ledger("0 d e c"), 4) == ["answer 1 EntryUnreadableError"]


def test_metadata_that_names_others_again_is_read_once_more_after_they_were_asked() -> None:
    story = reader()
    read(story, 0, 0)
    story.has_not(0, "a", "b", "c", fence=False)
    assert story.reads(ledger("0 d b c"), 1) == ["read 0 of d"]
    assert story.has_not(0, "d", fence=False) == ["read metadata"]
    assert story.reads(ledger("0 d b e"), 2) == ["read 0 of e"]
    story.has("e", 0, packet(0, b"zero"), fence=False)
    assert got(story) == [b"zero"]


def test_entries_of_different_fragments_come_from_their_own_bookies() -> None:
    story = reader(ledger("0 a b c", "2 d e f"))
    assert read(story, 1, 2) == ["read 1 of b", "read 2 of f"]


def test_a_range_is_answered_in_order_and_bounded_by_bytes() -> None:
    story = reader(parallel=3)
    assert read(story, 0, 9, bytes_max=8) == ["read 0 of a", "read 1 of b", "read 2 of c"]
    assert story.has("c", 2, packet(2, b"two"), fence=False) == []
    assert story.has("a", 0, packet(0, b"zero"), fence=False) == ["read 3 of a"]
    story.has("b", 1, packet(1, b"one!"), fence=False)
    assert got(story) == [b"zero", b"one!"]


def test_where_every_bookie_has_every_entry_a_run_is_asked_for_at_once() -> None:
    story = reader(batch=True)
    assert read(story, 0, 3, 8192) == ["read 0+4 of a max=8192"]
    lines = batch(story, "a", 0, 1, packet(0, b"zero"), packet(1, b"one"))
    assert lines == ["read 2+2 of a max=8185"]
    batch(story, "a", 2, 2, packet(2, b"two"), packet(3, b"three"))
    assert got(story) == [b"zero", b"one", b"two", b"three"]


def test_a_run_is_answered_when_one_more_entry_like_those_that_came_would_be_too_many() -> None:
    """A reader that goes on would need a round trip for that one entry; it gets it with the entries behind it."""
    story = reader(batch=True)
    read(story, 0, 9, 10_000)
    lines = batch(story, "a", 0, 1, packet(0, b"z" * 4096), packet(1, b"o" * 4096))
    assert lines[-1].startswith("answer 1")
    assert got(story) == [b"z" * 4096, b"o" * 4096]
    read(story, 0, 9, 13_000)
    lines = batch(story, "a", 0, 2, packet(0, b"z" * 4096), packet(1, b"o" * 4096))
    assert lines == ["read 2+8 of a max=4808"], "one more would fit"


def test_a_batch_ends_at_its_fragment() -> None:
    story = reader(ledger("0 a b c", "2 d e f"), batch=True)
    assert read(story, 0, 5) == ["read 0+2 of a max=1048576"]


def test_a_batch_that_begins_with_damage_goes_on_elsewhere_entry_by_entry() -> None:
    story = reader(batch=True)
    read(story, 0, 1, 8192)
    assert batch(story, "a", 0, 1, packet(5, b"wrong")) == ["read 0 of b", "read 1 of b"]
    story.has("b", 0, packet(0, b"zero"), fence=False)
    story.has("b", 1, packet(1, b"one"), fence=False)
    assert got(story) == [b"zero", b"one"]


def test_a_bookie_that_does_not_know_batches_is_not_asked_for_one_again() -> None:
    story = reader(batch=True)
    read(story, 0, 3, 8192)
    assert story.lost("a") == ["read 0+4 of b max=8192"]
    assert story.lost("b") == ["read 0+4 of c max=8192"]
    assert only(story.lost("c"), "read") == [f"read {e} of {b}" for e, b in enumerate("abca")]


def test_bookies_that_know_batches_and_are_lost_again_and_again_are_not_asked_for_ever() -> None:
    """A bookie that was just lost is lost at once when asked again: only the loss itself can end the attempts."""
    story = reader(batch=True)
    request = 0
    for bookie in "abc":  # each shows that it knows batches
        (asked_of,) = read(story, 0, 1, 8192)
        request += 1
        if asked_of != f"read 0+2 of {bookie} max=8192":
            assert story.lost(asked_of[len("read 0+2 of ")]) == [f"read 0+2 of {bookie} max=8192"]
            request += 1
        batch(story, bookie, 0, request, packet(0, b"zero"), packet(1, b"one"))
        assert got(story) == [b"zero", b"one"]
    asked = read(story, 0, 1, 8192)
    losses = 0
    while reads := [line for line in asked if line.startswith("read 0")]:
        losses += 1
        assert losses < 20, "it goes round for ever"
        asked = [line for one in reads for line in story.lost(one.split(" of ")[1][0])]
    assert only(asked, "read metadata")


def test_news_of_metadata_are_taken_in() -> None:
    story = reader()
    assert story.ask(UseMetadata(ledger("0 x y z"))) == ["answer 1 None"]
    assert read(story, 0, 0) == ["read 0 of x"]


def test_a_replica_that_was_late_is_asked_after_the_others_by_all_readers_of_a_client() -> None:
    health = ReplicaHealth(0.5, 0.02)

    def client() -> Story:
        return Story(EntryReader(LEDGER, ledger(), DIGEST, ReadingOptions(batch=False), health=health))

    one, other = client(), client()
    read(one, 0, 0)
    assert one.fires(("speculate", 1)) == ["read 0 of b"]
    one.has("a", 0, packet(0, b"zero"), fence=False)
    assert read(other, 0, 0) == ["read 0 of b"]


def test_the_wait_for_a_replica_follows_the_replies() -> None:
    story = reader()
    for entry in range(200):
        read(story, entry, entry)
        story.has("abc"[entry % 3], entry, packet(entry), fence=False)

    def waits() -> list[float]:
        return [e.after_s for e in story.effects if isinstance(e, SetTimer)]

    assert (waits()[0], waits()[-1]) == (0.5, 0.02)
    read(story, 0, 0)
    before = waits()[-1]
    story.fires(("speculate", 201))
    assert waits()[-1] == before * 1.5


def test_quick_reads_of_single_entries_do_not_shorten_the_wait_for_batches() -> None:
    """Large batches of cold disks take longer, and would be asked of two bookies each time."""
    health = ReplicaHealth(0.5, 0.02)
    singles = Story(EntryReader(LEDGER, ledger(), DIGEST, ReadingOptions(batch=False), health=health))
    batches = Story(EntryReader(LEDGER, ledger(), DIGEST, health=health))

    def wait(story: Story) -> float:
        return [e.after_s for e in story.effects if isinstance(e, SetTimer)][-1]

    for number in range(1, 201):
        read(singles, number, number)
        singles.has("abc"[number % 3], number, packet(number), fence=False)
    assert read(batches, 0, 1) == ["read 0+2 of a max=1048576"]
    assert (wait(singles), wait(batches)) == (0.02, 0.5)
    batches.fires(("speculate", 1))
    assert wait(batches) == 0.75
    batch(batches, "a", 0, 1, packet(0), packet(1))
    read(singles, 0, 0)
    assert wait(singles) == 0.02, "nor does a late batch make it longer"
    for number in range(2, 201):
        (asked,) = read(batches, 0, 1)
        assert asked.startswith("read 0+2 of a"), "it was late only once"
        batch(batches, "a", 0, number + 1, packet(0), packet(1))
    assert wait(batches) < 0.03


def test_a_bookie_whose_batches_are_late_again_and_again_is_asked_last() -> None:
    story, asked, request = reader(batch=True), "", 0
    for number in range(1, 6):
        asked += read(story, 0, 1)[0].split(" of ")[1][0]
        request += 1
        if asked[-1] == "a":
            assert story.fires(("speculate", number)) == ["read 0+2 of b max=1048576"]
            request += 1
        batch(story, "b", 0, request, packet(0), packet(1))
    assert asked == "aaabb"


def test_a_range_that_goes_on_is_not_late() -> None:
    story = reader(parallel=1)
    read(story, 0, 1)
    story.has("a", 0, packet(0, b"zero"), fence=False)
    assert story.fires(("speculate", 1)) == [], "an entry came"
    assert story.fires(("speculate", 1)) == ["read 1 of c"], "and none since"
