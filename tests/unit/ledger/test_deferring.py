"""Scenarios of a writer with deferred sync: what is written, what a force covers, and what a loss undoes."""

from __future__ import annotations

from random import Random

import pytest

from dlog.errors import ClosedError, DLogError, OverCapacityError, UnavailableError
from dlog.ledger.adding import AddingOptions, Close
from dlog.ledger.deferred_window import DeferredWindow
from dlog.ledger.deferring import DeferredLedgerAdder, Force
from dlog.machine import Answer, Received, Send, Versioned
from dlog.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from dlog.model.ledger import LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.wire.bookie import AddEntry, Code, EntryRead
from dlog.wire.bookie_v3_messages import ForceLedger, LedgerForced
from tests.unit.ledger.story import DIGEST, LEDGER, Story, ledger, spare


class ForceStory(Story):
    """Keeps the numbers of forces, so that they can be answered."""

    def forced(self, *bookies: str, code: Code = Code.OK) -> list[str]:
        """Answer the newest force to each bookie."""
        lines: list[str] = []
        for bookie in bookies:
            number = next(n for b, n in reversed(self.forces) if b == bookie)
            lines += self.hear(Received(bookie, LedgerForced(LEDGER, code, number)))
        return lines

    @property
    def forces(self) -> list[tuple[str, int]]:
        return [
            (str(e.peer), e.message.number)
            for e in self.effects
            if isinstance(e, Send) and isinstance(e.message, ForceLedger)
        ]

    @property
    def lac(self) -> int:
        assert isinstance(self.machine, DeferredLedgerAdder)
        return self.machine.lac


def writer(
    metadata: LedgerMetadata | None = None,
    options: AddingOptions = AddingOptions(),  # noqa: B008 - frozen
) -> ForceStory:
    placement = spare("d")
    return ForceStory(DeferredLedgerAdder(LEDGER, Versioned(metadata or ledger(), 1), DIGEST, placement, options))


def answers(story: Story) -> list[object]:
    return [e.result for e in story.effects if isinstance(e, Answer)]


def test_an_add_is_answered_when_it_is_written_and_durable_after_a_force_of_an_ack_quorum() -> None:
    story = writer()
    assert story.add()[0] == "store 0 on a lac=-1 length=1"
    assert all(e.message.deferred for e in story.effects if isinstance(e, Send) and isinstance(e.message, AddEntry))
    assert story.stored(0, "a", "b") == ["answer 1 0"]
    assert story.add()[0] == "store 1 on b lac=-1 length=2", "the LAC does not move"
    story.ask(Force())
    assert [bookie for bookie, _ in story.forces] == ["a", "b"], "c has written nothing"
    assert story.forced("a") == []
    assert story.forced("b") == ["answer 3 0"] and story.lac == 0
    assert story.add()[0] == "store 2 on c lac=0 length=3"


def test_a_force_without_anything_to_force_is_answered_at_once() -> None:
    story = writer()
    assert story.ask(Force()) == ["answer 1 -1"] and not story.forces


def test_a_force_does_not_cover_what_is_written_after_it_was_sent() -> None:
    story = writer()
    story.add()
    story.stored(0, "a")
    story.add()
    story.stored(0, "b")
    story.ask(Force())
    story.stored(0, "c")
    story.stored(1, "a", "b")
    story.forced("a", "b")
    assert story.lac == 0
    story.ask(Force())
    assert len(story.forces) == 5, "c, a and b"
    story.forced("c", "a", "b")
    assert story.lac == 1


def test_what_a_bookie_has_written_is_unknown_once_its_connection_was_lost() -> None:
    story = writer()
    story.add()
    story.stored(0, "a", "b")
    story.ask(Force())
    a_force = story.forces[0][1]
    story.lost("a")
    story.forced("b")
    story.hear(Received("a", LedgerForced(LEDGER, Code.OK, a_force)))
    assert story.lac == -1 and answers(story) == [0]
    story.stored(0, "c")
    assert story.forced("c") == ["answer 2 0"] and story.lac == 0


def test_a_replaced_bookie_is_sent_what_was_acknowledged_and_is_not_durable() -> None:
    story = writer()
    story.add()
    story.stored(0, "a", "b", "c")
    assert story.lost("a")[:1] == ["tell bookie.lost"]
    story.hear(Received("d", EntryRead(LEDGER, NO_ENTRY, Code.NO_LEDGER)))
    assert "store 0 on d lac=-1 length=1" in story.written(2)
    story.ask(Force())
    assert [bookie for bookie, _ in story.forces] == ["b", "c"]
    story.forced("b")
    assert story.forced("c") == ["answer 2 0"]


def test_a_bookie_that_fails_to_force_is_replaced() -> None:
    story = writer()
    story.add()
    story.stored(0, "a", "b", "c")
    story.ask(Force())
    assert story.forced("a", code=Code.IO_ERROR)[:1] == ["tell bookie.lost"]
    story.forced("b", "c")
    assert story.lac == 0


def test_a_close_makes_durable_what_is_written_and_then_ends_there() -> None:
    story = writer()
    story.add()
    story.stored(0, "a", "b")
    assert story.ask(Close()) and len(story.forces) == 2
    assert story.forced("a") == []
    assert story.forced("b") == ["write v1 closed at 0 length=1: 0 a b c"]
    story.written(2)
    assert story.lac == 0


def test_a_close_that_does_not_drain_leaves_out_what_no_force_covers() -> None:
    story = writer()
    story.add()
    story.stored(0, "a", "b")
    story.add()
    story.ask(Force())
    story.ask(Close(drain=False))
    failed = [result for result in answers(story) if isinstance(result, DLogError)]
    assert answers(story)[0] == 0 and len(failed) == 2, "entry 1 and the force"
    assert all(isinstance(error, ClosedError) and error.outcome_unknown for error in failed)
    story.written(2)
    assert story.lac == -1


def test_entries_that_no_force_covers_are_bounded() -> None:
    story = writer(options=AddingOptions(unforced_entries_max=2))
    for entry in range(2):
        story.add()
        story.stored(entry, "a", "b")
    story.add()
    error = answers(story)[-1]
    assert isinstance(error, OverCapacityError) and "force the ledger" in error.message
    story.ask(Force())
    story.forced("a", "b")
    assert story.add()[0] == "store 2 on c lac=1 length=3"


def test_the_ack_quorum_timeout_is_for_what_is_not_written() -> None:
    story = writer(options=AddingOptions(ack_quorum_timeout_s=2.0))
    story.add()
    story.stored(0, "a", "b")
    story.fires("quorum")
    assert "quorum" not in story.timers, "nothing waits for its answer"
    story.add()
    story.fires("quorum")
    story.fires("quorum")
    assert isinstance(answers(story)[-1], UnavailableError)


def test_a_dead_handle_answers_a_force_with_its_error() -> None:
    story = writer()
    story.add()
    story.stored(0, "a", "b")
    story.ask(Force())
    story.refused(0, "c", Code.FENCED)
    error = answers(story)[-1]
    assert isinstance(error, DLogError) and error.outcome_unknown
    story.ask(Force())
    assert isinstance(answers(story)[-1], DLogError)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_durable_was_covered_by_forces_of_an_ack_quorum(seed: int) -> None:
    """Against bookies that lose what they have not forced at each loss of the connection."""
    rng = Random(seed)
    quorum = Quorum(ensemble=4, write=3, ack=2)
    names = [BookieId(b) for b in "abcd"]
    window = DeferredWindow(quorum, tuple(names), EntryId(-1), 0, 1000)
    memory: dict[BookieId, set[int]] = {b: set() for b in names}
    disk: dict[BookieId, set[int]] = {b: set() for b in names}
    in_flight: list[tuple[BookieId, ForceLedger]] = []

    def arrived(sends: list[Send]) -> None:
        for send in sends:
            bookie = BookieId(str(send.peer))
            if isinstance(send.message, ForceLedger):
                in_flight.append((bookie, send.message))
            elif rng.random() < 0.9:
                memory[bookie].add(send.message.entry)
                window.acknowledge(bookie, send.message.entry)

    for _ in range(300):
        bookie = rng.choice(names)
        match rng.randrange(5):
            case 0 | 1:
                entry = EntryId(window.pushed + 1)
                arrived(window.push(AddEntry(LedgerId(7), entry, b"k" * 20, (b"x",)), entry + 1))
            case 2:
                window.force(window.written)
            case 3 if in_flight:
                bookie, force = in_flight.pop(rng.randrange(len(in_flight)))
                disk[bookie] |= memory[bookie]
                window.note_forced(bookie, force.number)
            case 4 if rng.random() < 0.3:
                memory[bookie].clear()
                in_flight[:] = [(b, force) for b, force in in_flight if b != bookie]
                window.disconnect(bookie, "lost")
                arrived(window.readmit(bookie))
        arrived(window.forces(LedgerId(7)))
        window.confirm()
        for durable in range(window.lac + 1):
            assert sum(durable in held for held in disk.values()) >= quorum.ack
    assert window.lac > 0
